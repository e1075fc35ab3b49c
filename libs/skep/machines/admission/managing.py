"""What admission answers to managers that set and remove the templates of their virtual cluster."""

from __future__ import annotations

import msgspec

from skep.access.templates import Templates
from skep.policy.check import template_trouble
from skep.wire.cluster import VirtualCluster
from skep.wire.reasons import Reason
from skep.wire.spec import Problem
from skep.wire.template_facts import MANAGED_BYTES_MAX, MANAGED_MAX, AskSetTemplate, TemplateAsk


def problems(ask: TemplateAsk, vc: str, config: VirtualCluster, kept: Templates) -> list[Problem]:
    """Return why a template may not be set or removed; nothing: it may.

    Args:
        ask: What is asked.
        vc: The virtual cluster, whose manager the asker is.
        config: What the operator says of it.
        kept: The templates of managers.
    """
    own = kept.of_vc.get(vc, {})
    if isinstance(ask, AskSetTemplate):
        return _set_problems(ask, vc, config, there=ask.name in own, count=len(own))
    if ask.name in own:
        return []
    if ask.name in config.templates:
        return [_operators(ask.name)]
    listed = ", ".join(sorted(own)) or "none"
    text = f"the managers of `{vc}` have no template `{ask.name}`; there are: {listed}"
    return [Problem(path="$.name", reason=Reason.UNKNOWN_TEMPLATE, text=text)]


def _set_problems(
    ask: AskSetTemplate, vc: str, config: VirtualCluster, *, there: bool, count: int
) -> list[Problem]:
    if ask.name in config.templates:
        return [_operators(ask.name)]
    if not there and count >= MANAGED_MAX:
        text = f"the managers of `{vc}` have {MANAGED_MAX} templates, as many as they may"
        hint = "remove one: `skep template rm`"
        return [
            Problem(path="$.name", reason=Reason.TOO_MANY_TEMPLATES, text=text, suggestion=hint)
        ]
    length = len(msgspec.json.encode(ask.template))
    if length > MANAGED_BYTES_MAX:
        text = f"it has {length} bytes; a template has at most {MANAGED_BYTES_MAX}"
        return [Problem(path="$.template", reason=Reason.TOO_LARGE, text=text)]
    return list(template_trouble(vc, ask.template, "$.template"))


def _operators(name: str) -> Problem:
    return Problem(
        path="$.name",
        reason=Reason.TEMPLATE_OF_OPERATOR,
        text=f"`{name}` is a template of the operator's: the cluster file has it",
        suggestion="use another name",
    )
