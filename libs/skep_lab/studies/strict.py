"""Idle GPUs lent by default, against strict FIFO: the same random worlds, compared job by job.

Every world runs twice, once with `over_quota: wait` (strict FIFO) and once with `auto`, the
default. Jobs do exact, fixed work. For each of them two instants are compared: when it had its
VC's cells (or ended before), and when it ended. Neither may be later by default, but for the time
that jobs take to leave. For each world it is also measured how much GPU time is idle while a job
waits that could have it.

Strict FIFO itself may serve a job later because an earlier one ended sooner: another cell is then
the first that is free, and large jobs find other holes. So the promise is exact where that cannot
be (`even`: cells of one size, and every worker fills one), and a figure where it can (`mixed`).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from skep.cells.check import safe
from skep.cells.decide import placement
from skep.cells.holds import Request
from skep.ids import NO_ATTEMPT
from skep.machines.allocator import AllocatorMachine
from skep.machines.allocator.placement import quota
from skep.units import Duration, Instant, in_seconds, seconds
from skep.wire.changes import JobChanging
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep.wire.facts import AllocatorFact, End, JobBound, JobEnded, JobPromoted, JobStopping
from skep.wire.reasons import Reason
from skep.wire.spec import OverQuota
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.world import World
from skep_lab.studies.tenants import BEGIN, CHAIN, LEVELS, NODE_GPUS
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.workloads.situation import Steady

Kind = Literal["even", "mixed"]
KINDS: tuple[Kind, ...] = ("even", "mixed")
COSTS = Costs(start_s=8.0, stop_s=2.0, suspend_s=3.0, resume_s=3.0)
"""What a job takes to begin, to end after a stop, to store its state or put it into the host's
memory, and to have it back, in seconds."""
CAN: dict[str, tuple[str, ...]] = {
    "observed": ("suspend", "release", "rebind"),
    "cooperative": ("suspend", "release", "rebind", "checkpoint"),
    "stores": ("checkpoint",),
    "driver": ("suspend", "release"),
    "opaque": ("suspend",),
}
"""What the jobs of a world can do, all alike: of unmodified scripts first."""
JOBS_MAX = 50
SPAN_S = 3000.0


class Row(msgspec.Struct):
    """What became of a job, in nanoseconds of the clock."""

    vc: str
    gpus: int
    came: int
    had_cells: int = 0
    """When it first had cells of its VC, or ended without them."""
    ended: int = 0
    attempts: int = 0
    left: int = 0
    """How often it left GPUs that it was lent."""
    anew: int = 0
    """How often it lost what it had done on them."""


class Run(msgspec.Struct):
    """One run of a world."""

    rows: dict[str, Row]
    leaves: list[int] = []
    """When a job was told to leave GPUs that it was lent, each time."""
    wanted_idle_s: float = 0.0
    """GPU-seconds that were idle while a job waited that could have had them."""
    busy_s: float = 0.0
    """GPU-seconds that jobs held."""


class Compared(msgspec.Struct):
    """One world under both rules."""

    seed: int
    kind: Kind
    jobs: int
    later: int = 0
    """Jobs that had their VC's cells later, or ended later, than what leaving may take."""
    worst_cells_s: float = 0.0
    worst_end_s: float = 0.0
    mean_end_s: float = 0.0
    """By how much jobs end earlier by default, on average."""
    left: int = 0
    anew: int = 0
    idle_strict_s: float = 0.0
    idle_lent_s: float = 0.0
    told: list[str] = []


def draw(seed: int, kind: Kind) -> tuple[Cluster, Trace]:
    """Return the world of a seed: a cluster of a few VCs, and more jobs than their cells hold."""
    rng = random.Random(f"strict {kind} {seed}")
    level = "gpu" if kind == "even" and rng.random() < 0.5 else "node"
    quotas = {
        f"vc-{number}": {level: rng.randint(1, 3) * (1 if level == "node" else 3)}
        for number in range(rng.randint(1, 3))
    }
    size = 1 if level == "gpu" else NODE_GPUS
    owned = {vc: quota[level] for vc, quota in quotas.items()}
    cells = sum(owned.values()) + rng.choice((0, 0, 1, 2))
    nodes = tuple(NodeCell(node=f"n{index}") for index in range(-(-cells * size // NODE_GPUS)))
    levels = tuple(Level(name=name, fanout=fan) for name, fan in LEVELS if name != "rack")
    chain = Chain(gpu="v100", levels=levels, node_level="node", nodes=nodes)
    vcs = {
        vc: VirtualCluster(cells=(Quota(chain=CHAIN, level=level, count=count),))
        for vc, count in owned.items()
    }
    jobs = []
    for _ in range(rng.randint(8, JOBS_MAX)):
        vc = rng.choice(list(owned))
        workers = rng.randint(1, owned[vc])
        gpus = size if kind == "even" else rng.choice((1, 2, 4, 8))
        lasts = rng.choice((30.0, 200.0, 900.0)) * rng.uniform(0.5, 1.5)
        jobs.append((rng.uniform(0, SPAN_S), vc, workers, gpus, lasts))
    jobs.sort()
    trace = Trace(
        name=f"strict-{seed}",
        jobs=tuple(
            TraceJob(
                id=f"h{number}",
                at=seconds(at),
                gpus=gpus * workers,
                workers=workers,
                vc=vc,
                run_time=seconds(round(lasts)),
            )
            for number, (at, vc, workers, gpus, lasts) in enumerate(jobs, 1)
        ),
    )
    return Cluster(chains={CHAIN: chain}, vcs=vcs), trace


class _Watcher:
    """Notes when jobs have cells and end, and what is idle between two decisions."""

    def __init__(self, trace: Trace, *, stores: bool) -> None:
        self.run = Run(
            {
                f"j{number}": Row(job.vc, job.gpus, BEGIN + job.at)
                for number, job in enumerate(trace.jobs, 1)
            }
        )
        self._stores = stores
        self._changing: dict[str, int] = {}
        """By job: the latest attempt that was asked to leave alive."""
        self._since = 0
        self._idle = self._busy = 0

    def judge(self, world: World, facts: list[AllocatorFact]) -> None:
        machine, now = world.allocator, world.now
        for chain in machine.state.cells.chains.values():
            safe(chain)
        for fact in facts:
            self._note(fact, now)

    def _note(self, fact: AllocatorFact, now: Instant) -> None:
        match fact:
            case JobBound():
                row = self.run.rows[fact.job]
                row.attempts += 1
                if fact.members[0].levels:
                    row.had_cells = row.had_cells or now
            case JobPromoted():
                row = self.run.rows[fact.job]
                row.had_cells = row.had_cells or now
            case JobChanging(why=Reason.PREEMPTED | Reason.TO_OWN_CELLS, round=1, undoing=False):
                self._leaves(fact.job, now)
                self._changing[fact.job] = fact.attempt
            case JobStopping():
                row = self.run.rows[fact.job]
                if self._changing.get(fact.job) != fact.attempt:
                    self._leaves(fact.job, now)
                if not self._stores or self._changing.get(fact.job) != fact.attempt:
                    row.anew += 1
            case JobEnded():
                assert fact.end is End.SUCCEEDED, fact
                row = self.run.rows[fact.job]
                row.had_cells, row.ended = row.had_cells or now, now
            case _:
                pass

    def _leaves(self, name: str, now: Instant) -> None:
        self.run.rows[name].left += 1
        self.run.leaves.append(now)

    def look(self, machine: AllocatorMachine, now: Instant) -> None:
        """Count what was idle since the last look, and see what is now."""
        if self._since:
            span = in_seconds(Duration(now - self._since))
            self.run.wanted_idle_s += self._idle * span
            self.run.busy_s += self._busy * span
        self._since = now
        self._idle, self._busy = wanted_idle(machine), _busy(machine)


def wanted_idle(machine: AllocatorMachine) -> int:
    """Return how many idle GPUs jobs that wait could have, those of the largest of them.

    By default that is only jobs that can give them back.

    Returns:
        0 if no such job fits.
    """
    most = 0
    tried: dict[Request, None] = {}
    for job in machine.state.jobs.values():
        unable = job.spec.over_quota == "auto" and not quota.lends(job)
        if job.state.value != "queued" or job.spec.opportunistic or unable:
            continue
        asked = Request.of(job.spec, NO_ATTEMPT, guaranteed=False)
        if asked not in tried and job.spec.gpus > most:
            tried[asked] = None
            if placement.find_placement(machine.state.cells, asked) is not None:
                most = job.spec.gpus
    return most


def _busy(machine: AllocatorMachine) -> int:
    return sum(hold.gpus for hold in machine.state.cells.holds.values() if not hold.claims)


def run(
    cluster: Cluster,
    trace: Trace,
    over_quota: OverQuota,
    costs: Costs,
    can: tuple[str, ...] = CAN["observed"],
) -> Run:
    """Run a world until every job has ended, which all do.

    Args:
        cluster: The cluster.
        trace: The jobs.
        over_quota: What jobs do beyond their cells.
        costs: What starting, stopping and suspending take.
        can: What the jobs can do, all alike.
    """
    watcher = _Watcher(trace, stores="checkpoint" in can)
    settings = Settings(costs=costs, hints="none", over_quota=over_quota, can=can)
    world = World(trace, cluster, settings, Steady(), (), watcher.judge)
    for at in world.steps():
        watcher.look(world.allocator, at)
    world.allocator.check()
    unfinished = [name for name, row in watcher.run.rows.items() if not row.ended]
    assert not unfinished, f"{unfinished} wait for ever"
    return watcher.run


def compare(seed: int, kind: Kind, costs: Costs, can: tuple[str, ...] | None = None) -> Compared:
    """Return what lending changes for the jobs of a world.

    Args:
        seed: The seed of the world.
        kind: The kind of the world.
        costs: What starting, stopping and suspending take.
        can: What the jobs can do, all alike; None: an entry of CAN, by the seed.
    """
    cluster, trace = draw(seed, kind)
    can = list(CAN.values())[seed % len(CAN)] if can is None else can
    strict = run(cluster, trace, "wait", costs, can)
    lent = run(cluster, trace, "auto", costs, can)
    found = Compared(
        seed,
        kind,
        len(trace.jobs),
        idle_strict_s=strict.wanted_idle_s,
        idle_lent_s=lent.wanted_idle_s,
    )
    leaves = costs.suspend_s + costs.stop_s
    for name, before in strict.rows.items():
        after = lent.rows[name]
        found.left += after.left
        found.anew += after.anew
        cells = round(in_seconds(Duration(after.had_cells - before.had_cells)), 6)
        end = round(in_seconds(Duration(after.ended - before.ended)), 6)
        found.worst_cells_s = max(found.worst_cells_s, cells)
        found.worst_end_s = max(found.worst_end_s, end)
        found.mean_end_s -= end / len(strict.rows)
        # Each job that left before may have held it up once; its own attempts begin anew.
        ahead = sum(at <= after.had_cells for at in lent.leaves)
        again = after.left * (leaves + costs.start_s + costs.resume_s)
        if cells > ahead * leaves or end > ahead * leaves + again:
            found.later += 1
            found.told.append(
                f"seed {seed}: {name} of {before.vc} ({before.gpus} GPUs): its cells "
                f"{cells:+.1f} s, its end {end:+.1f} s"
            )
    return found


class Options(argparse.Namespace):
    """What the command line says."""

    seeds: int
    first: int
    ideal: bool
    json: bool
    kind: list[Kind]
    can: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worlds and print what came of them.

    Args:
        arguments: The command line; None: that of the process.

    Returns:
        The exit code: 1 if a job of an `even` world is later than may be, else 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m skep_lab.studies.strict",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="worlds (100)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument("--kind", choices=KINDS, action="append", default=[])
    parser.add_argument("--can", choices=list(CAN), help="what jobs can do (each in turn)")
    parser.add_argument("--ideal", action="store_true", help="leaving and beginning take no time")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments, namespace=Options())
    costs = Costs() if options.ideal else COSTS
    bad = 0
    for kind in options.kind or KINDS:
        found = list(_worlds(options, kind, costs))
        bad += sum(each.later for each in found) * (kind == "even")
        if options.json:
            print(msgspec.json.encode({"kind": kind, **_summary(found)}).decode())
        else:
            _print(kind, found)
    return int(bad > 0)


def _worlds(options: Options, kind: Kind, costs: Costs) -> Iterator[Compared]:
    for seed in range(options.first, options.first + options.seeds):
        yield compare(seed, kind, costs, CAN[options.can] if options.can else None)
        if sys.stderr.isatty():
            print(f"\r{kind}: seed {seed} ", end="", file=sys.stderr, flush=True)


def _summary(found: Sequence[Compared]) -> dict[str, float]:
    jobs = sum(each.jobs for each in found)
    return {
        "worlds": len(found),
        "jobs": jobs,
        "left": sum(each.left for each in found),
        "anew": sum(each.anew for each in found),
        "later": sum(each.later for each in found),
        "worst_cells_s": round(max(each.worst_cells_s for each in found), 1),
        "worst_end_s": round(max(each.worst_end_s for each in found), 1),
        "mean_end_earlier_s": round(sum(each.mean_end_s * each.jobs for each in found) / jobs, 1),
        "wanted_idle_gpu_s_strict": round(sum(each.idle_strict_s for each in found), 1),
        "wanted_idle_gpu_s_lent": round(sum(each.idle_lent_s for each in found), 1),
    }


def _print(kind: Kind, found: Sequence[Compared]) -> None:
    said = _summary(found)
    print(
        f"{kind}: {said['worlds']} worlds, {said['jobs']} jobs; {said['left']} times a job left "
        f"GPUs that it was lent, and {said['anew']} times it had to begin anew\n"
        f"  {said['later']} jobs later than leaving may take; at worst cells "
        f"{said['worst_cells_s']} s and ends {said['worst_end_s']} s later\n"
        f"  jobs end {said['mean_end_earlier_s']} s earlier on average\n"
        f"  GPU-seconds idle while a job waits that could have them: "
        f"{said['wanted_idle_gpu_s_strict']:,} under strict FIFO, "
        f"{said['wanted_idle_gpu_s_lent']:,} by default"
    )
    for line in [line for each in found for line in each.told][:10]:
        print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
