"""What operators publish on `skep.v1.admin.<verb>`; services read it in stream order."""

from __future__ import annotations

from skep.wire.message import Message

JOBS_MAX = 1_000_000
"""Unfinished jobs a VC may have unless its entry says less: it bounds every queue."""


class VcConfig(Message, frozen=True, forbid_unknown_fields=True):
    """One tenant: the GPUs its guaranteed jobs may use together, and how many unfinished jobs."""

    gpus: int
    jobs_max: int = JOBS_MAX


class SetVcs(Message, frozen=True, tag="set-vcs", forbid_unknown_fields=True):
    """Replace the virtual clusters, on `skep.v1.admin.vcs`."""

    vcs: dict[str, VcConfig]


class DrainNode(Message, frozen=True, tag="drain-node", forbid_unknown_fields=True):
    """Place nothing more on a node (or, with `drain` false, use it again): `admin.drain`."""

    node: str
    drain: bool = True


Admin = SetVcs | DrainNode
