"""Is a shared cluster ever worse for a tenant than a cluster of its own? Random tenants, simulated.

python -m skep_lab.studies.sharing --seeds 10 --tenants 8 --days 5 --load 0.9

Each seed is a cluster, its tenants and their jobs (`tenants`). The jobs go through the allocator
(`replay`), once with all tenants and a flood of opportunistic jobs, once for each tenant alone on
its own cells. Every grant and every wait in the shared cluster is judged by `mirror`; then mean
queueing delays are compared by tenant and 12 hours of submission. A queueing delay is all the time
that a job spends in the queue, the first time and after every stop, up to its last start (HiveD
section 5.1: completion is queueing delay and training time); work lost to stops is told beside it.
Every second seed has nodes and GPUs that turn bad and heal, which no private cluster has: its
windows are told apart. As a contrast the same with quotas in GPUs (`gpuquota`). Exit 1 if a
legal request was not granted at once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

# Like that of `run`, this command line tells how long its simulations take.
import time  # noqa: TID251 - progress and rate of a command line
from collections.abc import Iterator, Sequence

import msgspec

from skep.units import in_seconds
from skep_lab.studies.gpuquota import GpuQuota
from skep_lab.studies.mirror import BrokenError, Counts, Mirror
from skep_lab.studies.replay import STOP_S, Replay, Served
from skep_lab.studies.tenants import BEGIN, HOUR_S, Plan, Settings, alone, draw, draw_reshaped

WINDOW_S = 12 * HOUR_S
SPARE_NODES = 4
"""In every second seed: spare nodes, and how many places are bad at a time."""
WORKERS_MAX = 64
SHOWN_MAX = 20

Pair = tuple[Served, Served]
"""One job in the shared cluster, and in its tenant's own."""


class Worse(msgspec.Struct):
    """A tenant's window whose mean queueing delay is longer than in its private cluster.

    `hours` from the begin; delays in seconds. `stopped` is the part of the excess that belongs to
    jobs which had run opportunistically and were stopped: the rest waited behind others.
    """

    seed: int
    tenant: str
    hours: float
    jobs: int
    shared_s: float
    private_s: float
    stopped: float


class Result(msgspec.Struct):
    """What came of one seed. Delays are means in seconds over all guaranteed jobs."""

    seed: int
    broken: str = ""
    jobs: int = 0
    events: int = 0
    preemptions: int = 0
    troubles: int = 0
    judged: Counts = msgspec.field(default_factory=Counts)
    windows: int = 0
    worse: list[Worse] = []
    worse_with_lost_work: int = 0
    """Windows that are worse if a stopped job's lost work counts as delay too."""
    control: int = 0
    """Jobs compared where nobody borrows and nothing is bad; `control_differ` waited otherwise."""
    control_differ: int = 0
    tenants: int = 0
    tenants_worse: int = 0
    """Tenants whose mean over the whole time is worse, lost work included."""
    shared_s: float = 0.0
    private_s: float = 0.0
    shared_lost_s: float = 0.0
    """Mean work lost to stops, by job."""
    quota_windows_worse: int = 0
    quota_excess_s: float = 0.0
    """By how much the worst window is worse with quotas in GPUs than in the private cluster."""
    reshaped_quota_s: float = 0.0
    """The same for a tenant of 8-GPU jobs among tenants of 1-GPU jobs, with quotas in GPUs..."""
    reshaped_cells_s: float = 0.0
    """... and with cells."""
    cpu_s: float = 0.0


def run_seed(seed: int, settings: Settings) -> Result:
    """Return what came of the experiment of a seed."""
    began = time.process_time()
    plan = draw(seed, settings)
    result = Result(seed=seed, jobs=len(plan.jobs), troubles=len(plan.troubles))
    try:
        # Priorities within a tenant change who waits, so they are judged in a run of their own.
        day = msgspec.structs.replace(settings, priorities=True, days=min(1.0, settings.days))
        _shared(draw(seed, day), result)
        shared = _shared(plan, result)
    except BrokenError as broken:
        result.broken = str(broken)
        return result
    control = None if plan.troubles else Replay(_guaranteed(plan), over_quota="wait")
    if control is not None:
        control.run()
    quota = GpuQuota(plan)
    quota.run()
    for vc in plan.cluster.vcs:
        private = Replay(alone(plan, vc), over_quota="wait")
        private.run()
        own = list(private.served.values())
        _compare(result, vc, list(zip(_of(shared.served, vc), own, strict=True)))
        if control is not None:
            same = list(zip(_of(control.served, vc), own, strict=True))
            result.control += len(same)
            result.control_differ += sum(a.waited != b.waited for a, b in same)
        _contrast(result, vc, list(zip(_of(quota.served, vc), own, strict=True)))
    _reshaped(draw_reshaped(seed, settings), result)
    guaranteed = sum(not job.opportunistic for job in plan.jobs)
    for name in ("shared_s", "private_s", "shared_lost_s"):
        setattr(result, name, getattr(result, name) / max(1, guaranteed))
    result.cpu_s = time.process_time() - began
    return result


def _guaranteed(plan: Plan) -> Plan:
    """Return a plan without the opportunistic jobs."""
    return plan._replace(jobs=[job for job in plan.jobs if not job.opportunistic])


def _shared(plan: Plan, result: Result) -> Replay:
    mirror = Mirror(plan.cluster)
    mirror.counts = result.judged
    shared = Replay(plan, over_quota="opportunistic", watch=mirror.watch)
    shared.run()
    result.events += shared.events
    result.preemptions += shared.preemptions
    return shared


def _of(served: dict[int, Served], vc: str) -> list[Served]:
    return [each for each in served.values() if each.job.vc == vc and not each.job.opportunistic]


def _windows(pairs: Sequence[Pair]) -> Iterator[tuple[int, list[Pair]]]:
    """Yield a tenant's jobs by 12 hours of submission."""
    by_window: dict[int, list[Pair]] = {}
    for pair in pairs:
        at = int(in_seconds(pair[0].job.at - BEGIN) // WINDOW_S)
        by_window.setdefault(at, []).append(pair)
    yield from sorted(by_window.items())


def _waited(served: Sequence[Served]) -> float:
    return in_seconds(sum(each.waited for each in served)) / len(served)


def _delay(served: Sequence[Served]) -> float:
    return in_seconds(sum(each.delay for each in served)) / len(served)


def _compare(result: Result, vc: str, pairs: list[Pair]) -> None:
    """Compare a tenant's queueing delays; what victims take to be gone is not held against it."""
    for at, window in _windows(pairs):
        mine, alone_ = [pair[0] for pair in window], [pair[1] for pair in window]
        result.windows += 1
        result.worse_with_lost_work += _delay(mine) > _delay(alone_) + STOP_S
        shared, private = _waited(mine), _waited(alone_)
        if shared > private + STOP_S:
            excess = [(a.waited - b.waited, a.stops) for a, b in window if a.waited > b.waited]
            by_stopped = sum(each for each, stops in excess if stops)
            part = by_stopped / sum(each for each, _ in excess)
            hours, jobs = at * WINDOW_S / HOUR_S, len(window)
            result.worse.append(
                Worse(
                    result.seed,
                    vc,
                    hours,
                    jobs,
                    round(shared, 1),
                    round(private, 1),
                    round(part, 2),
                )
            )
    if not pairs:
        return
    mine, alone_ = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    result.tenants += 1
    result.tenants_worse += _delay(mine) > _delay(alone_) + STOP_S
    result.shared_s += _waited(mine) * len(pairs)
    result.private_s += _waited(alone_) * len(pairs)
    result.shared_lost_s += (_delay(mine) - _waited(mine)) * len(pairs)


def _contrast(result: Result, vc: str, pairs: list[Pair]) -> None:
    for _, window in _windows(pairs):
        excess = _waited([pair[0] for pair in window]) - _waited([pair[1] for pair in window])
        result.quota_windows_worse += excess > STOP_S
        if excess > result.quota_excess_s:
            result.quota_excess_s = round(excess, 1)


def _reshaped(plan: Plan, result: Result) -> None:
    """Have both schedulers serve a tenant of large jobs among tenants of small ones."""
    private = Replay(alone(plan, "large"), over_quota="wait")
    quota, cells = GpuQuota(plan), Replay(plan, over_quota="opportunistic")
    for run in (private, quota, cells):
        run.run()
    own = list(private.served.values())
    excess = [
        max(
            (
                _waited([pair[0] for pair in window]) - _waited([pair[1] for pair in window])
                for _, window in _windows(list(zip(_of(run.served, "large"), own, strict=True)))
            ),
            default=0.0,
        )
        for run in (quota, cells)
    ]
    result.reshaped_quota_s, result.reshaped_cells_s = (round(each, 1) for each in excess)


class Summary(msgspec.Struct):
    """What came of all seeds. Sums, or means in seconds over seeds."""

    seeds: int = 0
    broken: list[Result] = []
    jobs: int = 0
    events: int = 0
    preemptions: int = 0
    judged: Counts = msgspec.field(default_factory=Counts)
    control: int = 0
    control_differ: int = 0
    windows: int = 0
    windows_with_bad_nodes: int = 0
    windows_worse: int = 0
    windows_worse_with_bad_nodes: int = 0
    windows_worse_with_lost_work: int = 0
    worst_excess_s: float = 0.0
    worse: list[Worse] = []
    tenants: int = 0
    tenants_worse: int = 0
    shared_s: float = 0.0
    private_s: float = 0.0
    lost_s: float = 0.0
    quota_windows_worse: int = 0
    quota_worst_excess_s: float = 0.0
    reshaped_quota_s: float = 0.0
    reshaped_cells_s: float = 0.0
    cpu_s: float = 0.0
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        """Take one more seed."""
        self.seeds += 1
        if result.broken:
            self.broken.append(result)
            return
        for name in (
            "jobs",
            "events",
            "preemptions",
            "windows",
            "tenants",
            "tenants_worse",
            "control",
            "control_differ",
            "cpu_s",
            "quota_windows_worse",
        ):
            setattr(self, name, getattr(self, name) + getattr(result, name))
        for name in Counts.__struct_fields__:
            setattr(self.judged, name, getattr(self.judged, name) + getattr(result.judged, name))
        self.worse += result.worse
        self.windows_worse += len(result.worse)
        if result.troubles:
            self.windows_with_bad_nodes += result.windows
            self.windows_worse_with_bad_nodes += len(result.worse)
        self.windows_worse_with_lost_work += result.worse_with_lost_work
        for worse in result.worse:
            self.worst_excess_s = max(self.worst_excess_s, worse.shared_s - worse.private_s)
        good = self.seeds - len(self.broken)
        for mine, theirs in (
            ("shared_s", "shared_s"),
            ("private_s", "private_s"),
            ("lost_s", "shared_lost_s"),
        ):
            mean = getattr(self, mine)
            setattr(self, mine, mean + (getattr(result, theirs) - mean) / good)
        self.quota_worst_excess_s = max(self.quota_worst_excess_s, result.quota_excess_s)
        self.reshaped_quota_s = max(self.reshaped_quota_s, result.reshaped_quota_s)
        self.reshaped_cells_s = max(self.reshaped_cells_s, result.reshaped_cells_s)


class Options(argparse.Namespace):
    """What the command line says."""

    seeds: int
    first: int
    tenants: int
    days: float
    load: float
    workers: int
    json: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments and print what came of them.

    Args:
        arguments: The command line; None: that of the process.

    Returns:
        The exit code: 0 if every legal request was granted at once, else 1.
    """
    options = _options(arguments)
    summary = Summary()
    began = time.monotonic()
    for result in _results(options):
        summary.add(result)
        summary.seconds = time.monotonic() - began
        _tell_progress(summary, options.seeds)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=1).decode())
    else:
        _print(summary)
    return 1 if summary.broken else 0


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m skep_lab.studies.sharing",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="experiments (10)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument(
        "--tenants",
        type=int,
        default=8,
        metavar="T",
        help="beside the one that floods the cluster (8)",
    )
    parser.add_argument(
        "--days", type=float, default=5.0, metavar="D", help="in which jobs are submitted (5)"
    )
    parser.add_argument(
        "--load",
        type=float,
        default=0.9,
        metavar="L",
        help="guaranteed work, as a part of what tenants own (0.9)",
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments, namespace=Options())
    if (
        options.seeds < 1
        or options.tenants < 1
        or options.days <= 0
        or options.load <= 0
        or not 1 <= options.workers <= WORKERS_MAX
    ):
        parser.error(f"all numbers are positive, and --workers at most {WORKERS_MAX}")
    return options


def settings_of(seed: int, options: Options) -> Settings:
    """Return what the experiment of a seed is drawn from: odd ones have bad nodes and GPUs."""
    return Settings(
        tenants=options.tenants,
        days=options.days,
        load=options.load,
        spare_nodes=SPARE_NODES if seed % 2 else 0,
    )


def _results(options: Options) -> Iterator[Result]:
    seeds = range(options.first, options.first + options.seeds)
    work = [(seed, settings_of(seed, options)) for seed in seeds]
    if options.workers == 1:
        yield from (_run_one(each) for each in work)
        return
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        yield from pool.imap_unordered(_run_one, work)


def _run_one(work: tuple[int, Settings]) -> Result:
    return run_seed(*work)


def _tell_progress(summary: Summary, seeds: int) -> None:
    left_s = summary.seconds / summary.seeds * (seeds - summary.seeds)
    end = "\n" if summary.seeds == seeds else ""
    print(
        f"\r{summary.seeds:,} of {seeds:,} seeds, {summary.judged.legal:,} requests judged, "
        f"{len(summary.broken)} broken, {int(left_s // 60)}:{int(left_s % 60):02} left ",
        end=end,
        file=sys.stderr,
        flush=True,
    )


def _print(summary: Summary) -> None:
    judged = summary.judged
    print(
        f"{summary.seeds} clusters, {summary.tenants} tenants, {summary.jobs:,} jobs, "
        f"{summary.events:,} events, {summary.preemptions:,} stops "
        f"({summary.cpu_s:.0f} s of CPU)\n"
        f"{judged.legal:,} legal requests, each granted in the decision that could: "
        f"{judged.placed:,} placed, {judged.reserved:,} by stopping others; of {judged.victims:,} "
        f"victims {judged.lower:,} were of the same tenant and lower priority, the rest "
        f"opportunistic\n{judged.not_legal:,} times the next job did not fit its tenant's cells"
        + (
            f", and {judged.unhealthy:,} times there were too few healthy ones"
            if judged.unhealthy
            else ""
        )
        + f"\nmean queueing delay {_hours(summary.shared_s)} shared, "
        f"{_hours(summary.private_s)} private; {_hours(summary.lost_s)} of work lost per job\n"
        f"of {summary.windows:,} windows of 12 h {summary.windows_worse} are worse than private "
        f"({summary.windows_worse_with_lost_work} with lost work), by "
        f"{_hours(summary.worst_excess_s)} at most; {summary.windows_worse_with_bad_nodes} of them "
        f"among {summary.windows_with_bad_nodes} with bad nodes, which no private cluster has; "
        f"of {summary.tenants} tenants "
        f"{summary.tenants_worse} over the whole time\n"
        f"where nobody borrows {summary.control_differ:,} of {summary.control:,} jobs start at "
        f"another instant than in their private cluster\n"
        f"with quotas in GPUs {summary.quota_windows_worse} are worse, by "
        f"{_hours(summary.quota_worst_excess_s)} at most; a tenant of 8-GPU jobs among tenants of "
        f"1-GPU jobs is {_hours(summary.reshaped_quota_s)} worse at most, "
        f"{_hours(summary.reshaped_cells_s)} with cells"
    )
    for each in summary.worse[:SHOWN_MAX]:
        print(
            f"  seed {each.seed}, {each.tenant}, hour {each.hours:.0f}: {each.jobs} jobs, "
            f"{_hours(each.shared_s)} instead of {_hours(each.private_s)}, "
            f"{each.stopped:.0%} of it by jobs that were stopped"
        )
    for result in summary.broken[:SHOWN_MAX]:
        print(f"  seed {result.seed}: {result.broken}")


def _hours(value_s: float) -> str:
    return f"{value_s / HOUR_S:.2f} h"


if __name__ == "__main__":
    sys.exit(main())
