"""How a simulated cluster behaves: what things cost, what owners say, and what may be odd."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from skep.units import Duration
from skep.wire.spec import OverQuota

Reporting = Literal["auto", "none", "on-change", "per-second"]


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it takes to begin, end and change a job, in seconds; all 0: ideal.

    A job makes no progress meanwhile. `start_s` and `resume_s` hold its GPUs before it trains,
    `stop_s` after it was told to end, `suspend_s` until its GPUs are free, `migrate_s` from its
    stop on one place to its going on at the other, `resize_s` in the old size. Every
    `checkpoint_every_s` it stores its state (0: never by itself): what it did since is lost when
    it is stopped.
    """

    start_s: float = 0.0
    stop_s: float = 0.0
    suspend_s: float = 0.0
    resume_s: float = 0.0
    migrate_s: float = 0.0
    resize_s: float = 0.0
    checkpoint_every_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError for a cost below zero."""
        for field in self.__struct_fields__:
            if getattr(self, field) < 0:
                reason = f"{field} is below zero"
                raise ValueError(reason)


IDEAL = Costs()

EVERYTHING = ("suspend", "release", "checkpoint", "migrate", "resize", "rebind")
"""What a cooperative job lets Skep do with it."""

AT_ONCE = "instants-at-once"
FIRST_NODE = "first-node"
COMPAT: dict[str, str] = {
    AT_ONCE: "whatever happens at one instant is all known before anything is decided, as in a"
    " simulator that steps by seconds: Helios' and Tiresias' do",
    FIRST_NODE: "of nodes with equal room the first of the cluster is taken, as Helios' simulator"
    " does, and not the one that has had it for longest",
}
"""Quirks of published simulators that a run can have, by name, and what each is."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. `policies` are by VC (name and options) and override the cluster's.

    `sample_every_s`: how often the cluster is looked at (0: never); `until`: when the run ends even
    if the trace has not; `noise`: the relative spread of each attempt's speed around its model's;
    `hints`: what a job's owner says about its run time. `can`: what jobs let Skep do with them;
    None: everything where a policy acts on running jobs, else nothing, which nobody would ask for.
    """

    seed: int = 0
    costs: Costs = IDEAL
    policies: dict[str, tuple[str, dict[str, Any]]] = {}
    sample_every_s: float = 0.0
    until: Duration | None = None
    noise: float = 0.0
    hints: Literal["exact", "none", "noisy"] = "exact"
    compat: frozenset[str] = frozenset()
    can: tuple[str, ...] | None = None
    samples_by_vc: bool = False
    reports: Reporting = "auto"
    """What agents report of running jobs, and whether introspector and advisor listen. `auto`: on
    every change of pace where a policy goes by rates, else nothing, which nobody would hear."""
    over_quota: OverQuota = "wait"
    """What guaranteed jobs do that are more than their VC's cells hold (`spec.over_quota`). Here
    they wait unless something else is said: published experiments have strict queues."""
    gpu_memory: dict[str, int] = {}
    """Bytes of a GPU's memory by type; of one that is not here nobody knows."""

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense."""
        unknown = sorted(self.compat - COMPAT.keys())
        if unknown:
            reason = f"no compat switch is called {unknown[0]!r}; there are: {', '.join(COMPAT)}"
            raise ValueError(reason)
        if self.noise < 0 or self.sample_every_s < 0:
            reason = "noise and sample_every_s are 0 or more"
            raise ValueError(reason)
