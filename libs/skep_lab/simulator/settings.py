"""Settings of a simulated cluster: costs, hints of owners, and quirks of other simulators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from skep.learn.advising import Seat
from skep.units import Duration
from skep.wire.spec import OverQuota

Reporting = Literal["auto", "none", "on-change", "per-second", "timed"]


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it takes to begin, end and change a job, in seconds; all 0: ideal.

    A job makes no progress meanwhile. `start_s` and `resume_s` hold its GPUs before it trains,
    `stop_s` after the command to stop, `suspend_s` until its GPUs are free, `migrate_s` from its
    stop at one place to its continuation at the other, `resize_s` in the old size. Every
    `checkpoint_every_s` it stores its state (0: never by itself): what it did since is lost when it
    is stopped.
    """

    start_s: float = 0.0
    stop_s: float = 0.0
    suspend_s: float = 0.0
    resume_s: float = 0.0
    migrate_s: float = 0.0
    resize_s: float = 0.0
    checkpoint_every_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: A cost is below zero.
        """
        for field in self.__struct_fields__:
            if getattr(self, field) < 0:
                reason = f"{field} is below zero"
                raise ValueError(reason)


IDEAL = Costs()

EVERYTHING = ("suspend", "release", "checkpoint", "migrate", "resize", "rebind")
"""What Skep can do with a cooperative job."""

AT_ONCE = "instants-at-once"
FIRST_NODE = "first-node"
NO_REST = "no-rest"
COMPAT: dict[str, str] = {
    AT_ONCE: "whatever happens at one instant is all known before anything is decided, as in a"
    " simulator that steps by seconds: Helios' and Tiresias' do",
    FIRST_NODE: "of nodes with equal room the first of the cluster is taken, as Helios' simulator"
    " does, and not the one that has had it for longest",
    NO_REST: "a job whose GPUs a policy took may lose its next ones at once, not only after it has"
    " run for a second: no published simulator has such a rule",
}
"""Quirks of published simulators that a run can have, by name, and what each is."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one run. `policies` are by VC (name and options) and override the cluster's.

    `sample_every_s` is how often the cluster is sampled (0: never), `until` when the run ends even
    if the trace has not, `noise` the relative spread of each attempt's speed around its model's,
    `hints` what a job's owner says about its run time. `can` is what Skep can do with jobs; None:
    everything if a policy acts on running jobs, else nothing, as it would not be used.
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
    """What agents report of running jobs, and whether introspector and advisor run. `auto`: every
    change of pace if a policy uses rates, else nothing. `timed`: every second, with what
    mini-batches took, so that the advisor measures them."""
    over_quota: OverQuota = "wait"
    """What guaranteed jobs do that exceed their VC's cells (`spec.over_quota`). The default here is
    to wait: published experiments have strict queues."""
    tick_s: float = 0.0
    """Policies decide only at multiples of so many seconds since 1970, as simulators that step do;
    0: whenever something happens. A queue without a policy (`fifo`) does not wait."""
    again_s: dict[int, float] = {}
    """By GPUs: for how many seconds more a job trains without progress once it has been stopped and
    goes on. The largest number that is not above its own counts; several stops add up."""
    deadlines: Literal["label", "spec"] = "label"
    """Where owners write the deadlines of their jobs: in a label, which `elasticflow` reads, or in
    `finish_by`, to which admission answers."""
    models: dict[str, Callable[[], Seat]] = {}
    """By hash: what makes a seat of a learned model, for VCs with the policy `learned`."""
    guards: bool = False
    """Whether a model has to prove itself in its VC, as it has to in production; else it acts."""
    advice_delay_s: float = 0.0
    """How long what a model says takes to reach the allocator, its own time included."""
    gpu_memory: dict[str, int] = {}
    """Bytes of GPU memory by type; that of other types is unknown."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: A compat switch is unknown, or a number is negative.
        """
        unknown = sorted(self.compat - COMPAT.keys())
        if unknown:
            reason = f"no compat switch is called {unknown[0]!r}; there are: {', '.join(COMPAT)}"
            raise ValueError(reason)
        times = self.sample_every_s, self.tick_s, self.advice_delay_s, *self.again_s.values()
        if min(self.noise, *times) < 0:
            reason = "noise, sample_every_s, tick_s, advice_delay_s and again_s are 0 or more"
            raise ValueError(reason)
