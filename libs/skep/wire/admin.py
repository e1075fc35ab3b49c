"""What operators publish on `skep.v1.admin.<verb>`; services read it in stream order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from skep.ids import is_token
from skep.wire.message import Message
from skep.wire.reasons import Reason
from skep.wire.spec import Problem

QUOTA_MAX = 1_000_000
"""A quota beyond this is a typing error."""
JOBS_MAX = 1_000_000
"""Unfinished jobs a VC may have unless its entry says less: it bounds every queue."""


class VcConfig(Message, frozen=True, forbid_unknown_fields=True):
    """One tenant: the GPUs its guaranteed jobs may use together, and how many unfinished jobs."""

    gpus: int
    jobs_max: int = JOBS_MAX


class SetVcs(Message, frozen=True, tag="set-vcs", forbid_unknown_fields=True):
    """Replace the virtual clusters, on `skep.v1.admin.vcs`."""

    vcs: dict[str, VcConfig]


def vcs_problems(vcs: Mapping[str, VcConfig]) -> Iterator[Problem]:
    """Yield what is wrong with names and quotas of virtual clusters whose types are right."""
    for vc, config in vcs.items():
        if not is_token(vc):
            text = f"{vc!r} is no name for a virtual cluster (letters, digits, _, -; 63 at most)"
            yield Problem(path="$.vcs", reason=Reason.BAD_VALUE, text=text)
        for key, most in (("gpus", QUOTA_MAX), ("jobs_max", JOBS_MAX)):
            value = getattr(config, key)
            if not 0 <= value <= most:
                text = f"`{key}` is {value}; it must be 0 to {most}"
                yield Problem(path=f"$.vcs.{vc}.{key}", reason=Reason.BAD_VALUE, text=text)


class DrainNode(Message, frozen=True, tag="drain-node", forbid_unknown_fields=True):
    """Place nothing more on a node (or, with `drain` false, use it again): `admin.drain`."""

    node: str
    drain: bool = True


Admin = SetVcs | DrainNode
