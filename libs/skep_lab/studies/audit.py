"""Sharing safety: is anybody worse off in the shared cluster than in one of its own?

HiveD (section 2) calls it a sharing anomaly when a tenant's jobs wait longer in the shared cluster
than they would in its private one. As in `studies.sharing`, the delay of a job is all the time that
it spends in the queue, the first time and after every stop. Delays are compared job by job and, as
a tenant feels them, by the mean of 12 hours of submissions. Work lost to stops is shown beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from skep.units import in_seconds, seconds
from skep_lab.measures.fairness import rho_against
from skep_lab.measures.stat import Stat, stat
from skep_lab.outcome import JobOutcome, RunResult
from skep_lab.studies.replay import STOP_S

WINDOW = seconds(12 * 3600)
"""HiveD averages over 12 hours of submission (section 5)."""
WORST_MAX = 20
"""Jobs named one by one."""

Pair = tuple[JobOutcome, JobOutcome]
"""A job in the shared cluster, and in its tenant's own."""


class WorseJob(msgspec.Struct, frozen=True):
    """A job that waited longer in the shared cluster, in seconds."""

    job: str
    vc: str
    gpus: int
    submitted_s: float
    shared_s: float
    private_s: float
    stopped: int
    """How often its GPUs were taken from it in the shared cluster."""


class Tenant(msgspec.Struct, frozen=True):
    """One tenant in both clusters. Delays are means in seconds over jobs that ran in both."""

    jobs: int = 0
    shared_s: float = 0.0
    private_s: float = 0.0
    lost_s: float = 0.0
    """Work lost to stops in the shared cluster, by job."""
    jobs_worse: int = 0
    excess_s: float = 0.0
    """By how much the worst job waited longer."""
    windows: int = 0
    windows_worse: int = 0
    window_excess_s: float = 0.0
    windows_worse_with_lost_work: int = 0
    rho: Stat = Stat()
    """Themis' rho, measured: completion time here over completion time there."""
    only_here: int = 0
    """Jobs that one of the runs did not finish: in no figure."""

    @property
    def safe(self) -> bool:
        """Return whether no window is worse: sharing cost this tenant nothing."""
        return not self.windows_worse


class Audit(msgspec.Struct, frozen=True):
    """Both clusters compared. `slack_s` is what a delay may be longer without being worse."""

    slack_s: float
    tenants: dict[str, Tenant]
    worst: tuple[WorseJob, ...] = ()

    @property
    def anomalies(self) -> int:
        """Return how many windows of all tenants are worse."""
        return sum(each.windows_worse for each in self.tenants.values())


def audit(shared: RunResult, private: Sequence[RunResult], slack_s: float = STOP_S) -> Audit:
    """Compare every guaranteed job's delay with that in its tenant's private cluster.

    Args:
        shared: The run in the shared cluster.
        private: Runs of one tenant each, or of all; jobs meet by their ids.
        slack_s: What a delay may be longer without being worse (seconds).
    """
    there = {outcome.job.id: outcome for run in private for outcome in run.jobs}
    rho = rho_against(shared, there)
    pairs: dict[str, list[Pair]] = {}
    missing: dict[str, int] = {}
    for outcome in shared.jobs:
        if outcome.job.opportunistic:
            continue
        own = there.get(outcome.job.id)
        mine = pairs.setdefault(outcome.job.vc, [])
        if own is None or own.ended is None or outcome.ended is None:
            missing[outcome.job.vc] = missing.get(outcome.job.vc, 0) + 1
        else:
            mine.append((outcome, own))
    tenants = {vc: _tenant(pairs[vc], missing.get(vc, 0), rho, slack_s) for vc in sorted(pairs)}
    worse = [_worse(pair) for each in pairs.values() for pair in each if _excess_s(pair) > slack_s]
    worse.sort(key=_badness)
    return Audit(slack_s, tenants, tuple(worse[:WORST_MAX]))


def _tenant(
    pairs: Sequence[Pair], missing: int, rho: Mapping[str, float], slack_s: float
) -> Tenant:
    if not pairs:
        return Tenant(only_here=missing)
    windows: dict[int, list[Pair]] = {}
    for pair in pairs:
        windows.setdefault(pair[0].job.at // WINDOW, []).append(pair)
    excess = [_mean(window, _excess_s) for window in windows.values()]
    lost = [_mean(window, _delay_excess_s) for window in windows.values()]
    return Tenant(
        jobs=len(pairs),
        shared_s=_mean(pairs, _shared_s),
        private_s=_mean(pairs, _private_s),
        lost_s=_mean(pairs, _lost_s),
        jobs_worse=sum(_excess_s(pair) > slack_s for pair in pairs),
        excess_s=max(0.0, *(_excess_s(pair) for pair in pairs)),
        windows=len(windows),
        windows_worse=sum(each > slack_s for each in excess),
        window_excess_s=max(0.0, *excess),
        windows_worse_with_lost_work=sum(each > slack_s for each in lost),
        rho=stat(rho[mine.job.id] for mine, _ in pairs if mine.job.id in rho),
        only_here=missing,
    )


def _mean(pairs: Sequence[Pair], of: object) -> float:
    assert callable(of)
    return float(sum(of(pair) for pair in pairs) / len(pairs))


def _shared_s(pair: Pair) -> float:
    return in_seconds(pair[0].waited)


def _private_s(pair: Pair) -> float:
    return in_seconds(pair[1].waited)


def _lost_s(pair: Pair) -> float:
    return in_seconds(pair[0].lost)


def _excess_s(pair: Pair) -> float:
    return in_seconds(pair[0].waited - pair[1].waited)


def _delay_excess_s(pair: Pair) -> float:
    mine, own = pair
    return in_seconds(mine.waited + mine.lost - own.waited - own.lost)


def _worse(pair: Pair) -> WorseJob:
    mine = pair[0]
    return WorseJob(
        mine.job.id,
        mine.job.vc,
        mine.job.gpus,
        in_seconds(mine.job.at),
        _shared_s(pair),
        _private_s(pair),
        mine.preempted,
    )


def _badness(worse: WorseJob) -> tuple[float, str]:
    return worse.private_s - worse.shared_s, worse.job
