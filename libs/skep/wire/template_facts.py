"""Templates that the managers of a virtual cluster write: what they ask, and what is recorded.

A request is published as requests for changes of jobs are, to `skep.v1.ask.<vc>`: `{"ask":
"set-template", "name": "smoke", "template": {"spec": {...}}}`, or `{"ask": "remove-template",
"name": "smoke"}`. Admission answers it, and records what came of it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skep.units import Instant
from skep.wire.bounds import UNDECODABLE, Token, convert_unbounded
from skep.wire.cluster import Template
from skep.wire.message import Message
from skep.wire.parse import bound_problems, shape_problems
from skep.wire.reasons import Reason
from skep.wire.spec import Problem

MANAGED_MAX = 100
"""Templates that the managers of one VC may have: more than a person reads, at 1.6 MB."""
MANAGED_BYTES_MAX = 16 * 1024
"""What one of them may have as JSON: each is a fact of its own."""
ASKED_BYTES_MAX = 64 * 1024
"""A request may be written with more spaces than it is kept with, and no longer than a spec."""


class _TemplateAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="ask"):
    """What the managers of a VC ask about one template."""

    name: Token


class AskSetTemplate(_TemplateAsk, frozen=True, tag="set-template"):
    """Have a template of this name from now on, in place of one that there is."""

    template: Template


class AskRemoveTemplate(_TemplateAsk, frozen=True, tag="remove-template"):
    """Have no template of this name any more."""


TemplateAsk = AskSetTemplate | AskRemoveTemplate
TEMPLATE_ASKS: dict[str, type[TemplateAsk]] = {
    "set-template": AskSetTemplate,
    "remove-template": AskRemoveTemplate,
}


def parse_template_ask(raw: bytes) -> TemplateAsk | list[Problem] | None:
    """Return the request about a template in `raw`, what is wrong with it; None: it is none."""
    if b"-template" not in raw:
        return None
    if len(raw) > ASKED_BYTES_MAX:
        text = f"a request about a template has at most {ASKED_BYTES_MAX} bytes"
        return [Problem(path="$", reason=Reason.TOO_LARGE, text=text)]
    try:
        tree: Any = msgspec.json.decode(raw)
    except UNDECODABLE:
        return None  # As every other request that cannot be read.
    named = tree.get("ask") if isinstance(tree, dict) else None
    kind = TEMPLATE_ASKS.get(named) if isinstance(named, str) else None
    if kind is None:
        return None
    rest = {key: value for key, value in tree.items() if key != "ask"}
    problems = list(shape_problems(kind, rest, "$")) or bound_problems(kind, tree, "$")
    if problems:
        return problems
    made: TemplateAsk = convert_unbounded(tree, kind)
    return made


class TemplateSet(Message, frozen=True, tag="template-set"):
    """A VC has a template of its managers' from here on; `template` None: it has it no more.

    `number` is the request's sequence in SUBMIT, `by` the person; empty: the VC as a whole.
    """

    vc: str
    name: str
    number: int
    at: Instant
    template: Template | None = None
    by: str = ""
