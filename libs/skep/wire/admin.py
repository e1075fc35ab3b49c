"""What operators publish on `skep.v1.admin.<verb>`; services read it in stream order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from skep.ids import is_token
from skep.wire.bounds import LISTED_MAX, NODES_MAX, Device, Short, Token
from skep.wire.cluster import (
    JOBS_MAX,
    QUARANTINE,
    Chain,
    Cluster,
    Pin,
    QuarantineRule,
    VirtualCluster,
)
from skep.wire.message import Message
from skep.wire.reasons import Reason
from skep.wire.spec import PRIORITY_MAX, Problem
from skep.wire.volumes import Volume
from skep.wire.windows import CancelWindow, ReserveNodes

QUOTA_MAX = 1_000_000
"""A quota beyond this is a typing error."""


class SetVcs(Message, frozen=True, tag="set-vcs", forbid_unknown_fields=True):
    """Replace the virtual clusters, on `skep.v1.admin.vcs`, and what their cells are made of.

    Without `chains` the nodes that join make them up. `volumes` are replaced with them.
    """

    vcs: Annotated[dict[Short, VirtualCluster], Meta(max_length=LISTED_MAX)]
    chains: Annotated[dict[Short, Chain], Meta(max_length=NODES_MAX)] = {}
    pins: Annotated[dict[Short, Pin], Meta(max_length=LISTED_MAX)] = {}
    quarantine: QuarantineRule = QUARANTINE
    volumes: Annotated[dict[Short, Volume], Meta(max_length=LISTED_MAX)] = {}

    @property
    def cluster(self) -> Cluster:
        """Return what is asked for, as a cluster file says it."""
        return Cluster(
            vcs=self.vcs,
            chains=self.chains,
            pins=self.pins,
            quarantine=self.quarantine,
            volumes=self.volumes,
        )


def vcs_problems(vcs: Mapping[str, VirtualCluster]) -> Iterator[Problem]:
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
        if any(not 0 <= most <= PRIORITY_MAX for most in config.priorities.values()):
            text = f"a priority is 0 to {PRIORITY_MAX}"
            yield Problem(path=f"$.vcs.{vc}.priorities", reason=Reason.BAD_VALUE, text=text)


class DrainNode(Message, frozen=True, tag="drain-node", forbid_unknown_fields=True):
    """Place nothing more on a node (or, with `drain` false, use it again): `admin.drain`."""

    node: Token
    drain: bool = True


class QuarantineGpu(Message, frozen=True, tag="quarantine-gpu", forbid_unknown_fields=True):
    """Count a GPU as bad (or, with `quarantine` false, as healthy): `admin.quarantine`.

    `device` is its index on the node. What runs there goes on.
    """

    node: Token
    device: Device
    quarantine: bool = True


Admin = SetVcs | DrainNode | QuarantineGpu | ReserveNodes | CancelWindow
