"""Looks for worlds in which the introspective mode starves, swings, or makes less than turns do.

    python -m skep_lab.studies.thrash OPTIONS

--first 0 --worlds 1000   short random worlds; exit 1 if a law broke
--worlds 100 --long       of four hours
--worlds 100 --rounds 5   and what comes of changing the worst ones
--world 17.2              one world, as JSON
--keep FILE               go on after the worlds that this very program has kept there

Each world is played twice by the production machines: with introspection, and with turns alone.
The laws, of every world with introspection:

starves    no job stands for longer in a row than STANDS_SLICES slices for each job on a GPU when
           most are there, or STANDS_MORE times as long as the longest with turns alone
trials     no job is in more trials, moved or grown more often within an hour, than the allocator
           says
swings     a pack that was undone is not tried again while it cools down, nor does a pair of jobs
           come together and apart more than PAIR_MAX times within an hour
verdict    every trial has one verdict, at its `until` at the latest
loses      a long world makes at least 98 % of what turns make of it: seconds of GPUs' work
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

# A library without a clock, but for how long a command line takes.
import time  # noqa: TID251 - progress of a command line
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from skep.ledger.records import COOLS
from skep.ledger.trial_facts import HOUR, JOB_MAX, JOB_MOVES_MAX
from skep.units import NS_PER_SECOND, after, seconds
from skep.wire.resizes import GangWidened
from skep.wire.trials import Kind, TrialBegun, TrialOver, Verdict
from skep_lab.measures import program
from skep_lab.outcome import JobOutcome
from skep_lab.simulator.build import ALL, uniform
from skep_lab.simulator.ledger import BEGIN
from skep_lab.simulator.settings import EVERYTHING, Costs, Settings
from skep_lab.simulator.truth import Truth
from skep_lab.simulator.world import World
from skep_lab.studies.adversary import GPU_BYTES, SLICE_S, Drawn, Pairs, named, trace_of
from skep_lab.traces.job import Trace

STANDS_SLICES = 6
STANDS_MORE = 1.5
PAIR_MAX = 3
LEAST = 0.98
"""Of what turns alone make, in a long world."""
WORST, CHANGED = 8, 4
"""Worlds that are changed in a round, and how often each."""
WORKERS_MAX = 64
QUANTILES = {"1 %": 0.01, "10 %": 0.1, "50 %": 0.5}
GPU = "v100"


class Played(msgspec.Struct):
    """What came of one way to play a world. Times are seconds."""

    work: float
    """Seconds of work of all GPUs that were asked for, at the speed of the trace."""
    stands: float
    """The longest that a job stood in a row, or waited."""
    trials: dict[str, int] = {}
    """By kind and verdict; and how many verdicts were held against the truth, and were wrong."""
    broken: list[str] = []


class Result(msgspec.Struct):
    """What came of a world: what it makes with introspection, of what it makes with turns."""

    name: str
    ratio: float = 1.0
    stands: float = 0.0
    bound: float = 0.0
    trials: dict[str, int] = {}
    broken: list[str] = []

    @property
    def badness(self) -> float:
        """Return how near it is to breaking a law; 1 and more: it does."""
        lost = (1 - self.ratio) / (1 - LEAST)
        return max(lost, self.stands / max(self.bound, 1.0), float(len(self.broken)))


def judge(world: Drawn, *, long: bool = False) -> Result:
    """Return what came of a world.

    Args:
        world: The world.
        long: Whether the law `loses` counts too.
    """
    turns, tried = play(world, introspect=False), play(world, introspect=True)
    result = Result(
        name=world.name,
        ratio=tried.work / turns.work if turns.work else 1.0,
        stands=tried.stands,
        bound=max(STANDS_SLICES * SLICE_S * _height(world), STANDS_MORE * turns.stands),
        trials=tried.trials,
        broken=tried.broken,
    )
    if result.stands > result.bound:
        result.broken.append(f"starves: {result.stands:.0f} s of {result.bound:.0f} s")
    if long and result.ratio < LEAST:
        result.broken.append(f"loses: {result.ratio:.3f}")
    return result


def play(world: Drawn, *, introspect: bool) -> Played:
    """Play a world to its end, and see whether a law is broken.

    Args:
        world: The world.
        introspect: Whether the introspective mode is on; else jobs only take turns.
    """
    facts, truth = list[object](), Truth(Pairs(world))

    def note(run: World, decided: Sequence[object]) -> None:
        truth.note(run.agents.works, decided)
        facts.extend(decided)

    costs = Costs(
        start_s=1.0,
        suspend_s=world.boundary,
        resume_s=0.5,
        migrate_s=world.pause,
        resize_s=world.pause / 2,
    )
    options = {"slice_s": SLICE_S, "introspect": introspect}
    settings = Settings(
        costs=costs,
        can=EVERYTHING,
        policies={ALL: ("gandiva", options)},
        until=seconds(world.lasts),
        gpu_memory={GPU: GPU_BYTES},
    )
    trace = Trace(name=world.name, jobs=trace_of(world))
    run = World(trace, uniform(world.nodes, world.size, GPU), settings, Pairs(world), judge=note)
    for name, come in zip(run.agents.works, world.jobs, strict=True):
        for at, phase in come.phases:
            changes = after(BEGIN, seconds(come.at + at))
            run.agents.later.append((changes, (run.agents.vary, name, phase)))
    run.run()
    end = run.now
    for work in run.agents.works.values():
        work.advance(end, 0)
    made = sum(work.done * work.job.gpus for work in run.agents.works.values())
    outcomes = run.ledger.outcomes(end)
    laws = Laws()
    for fact in facts:
        laws.take(fact)
    return Played(
        work=made / NS_PER_SECOND,
        stands=max((_stands(each, end - BEGIN) for each in outcomes), default=0.0),
        trials={**laws.counts, **truth.counts},
        broken=laws.end(end),
    )


def _height(world: Drawn) -> int:
    """Return the most jobs that GPUs are asked for by, on the average of the GPUs."""
    gpus = world.nodes * world.size
    return max(1, -(-sum(job.gpus for job in world.jobs) // gpus))


def _stands(outcome: JobOutcome, end: int) -> float:
    """Return the longest that a job was without running, in seconds."""
    last, longest = int(outcome.job.at), 0
    for span in outcome.spans:
        longest = max(longest, span.began - last)
        last = max(last, span.ended)
    if outcome.ended is None:
        longest = max(longest, end - last)
    return longest / NS_PER_SECOND


class Laws:
    """What facts have to be like."""

    def __init__(self) -> None:
        """Begin before any fact."""
        self.counts: dict[str, int] = {}
        self._broken: list[str] = []
        self._open: dict[int, TrialBegun] = {}
        self._often: dict[tuple[str, ...], list[int]] = {}
        self._cools: dict[tuple[str, ...], int] = {}

    def take(self, fact: object) -> None:
        """Take the next fact of the allocator."""
        if isinstance(fact, TrialBegun):
            self._begin(fact)
        elif isinstance(fact, TrialOver):
            trial = self._open.pop(fact.trial)
            named = f"{trial.kind} {fact.verdict}"
            self.counts[named] = self.counts.get(named, 0) + 1
            if fact.at > trial.until:
                self._broken.append(f"verdict: of trial {fact.trial} after its time")
            if fact.verdict is Verdict.UNDONE:
                self._cools[(trial.kind, *trial.families)] = fact.at + COOLS
        elif isinstance(fact, GangWidened):
            self._count(("widened", fact.job), self._now, JOB_MAX)

    _now = 0

    def end(self, now: int) -> list[str]:
        """Return what was broken.

        Args:
            now: The end of the run (ns).
        """
        late = [number for number, trial in self._open.items() if trial.until < now]
        return [*self._broken, *(f"verdict: trial {number} has none" for number in late)]

    def _begin(self, fact: TrialBegun) -> None:
        self._open[fact.trial], self._now = fact, fact.at
        jobs = [each.job for each in fact.jobs]
        for job in jobs:
            self._count(("trials", job), fact.at, JOB_MAX)
        if fact.kind in (Kind.MIGRATE, Kind.DEFRAG):
            self._count(("moves", jobs[0]), fact.at, JOB_MOVES_MAX)
        if fact.kind is Kind.PACK:
            self._count(("swings", *sorted(jobs)), fact.at, PAIR_MAX)
        if fact.at < self._cools.get((fact.kind, *fact.families), 0):
            self._broken.append(f"swings: {fact.kind} of {' '.join(jobs)} while it cools down")

    def _count(self, whom: tuple[str, ...], at: int, most: int) -> None:
        often = self._often.setdefault(whom, [])
        often.append(at)
        lately = [each for each in often if each > at - HOUR]
        if len(lately) > most:
            self._broken.append(f"{' '.join(whom)}: {len(lately)} times within an hour")


# --- the command line ----------------------------------------------------------------------------


class Options(argparse.Namespace):
    """What the command line says."""

    first: int
    worlds: int
    workers: int
    rounds: int
    long: bool
    json: bool
    world: str
    keep: Path | None


class Summary(msgspec.Struct):
    """What came of many worlds."""

    worlds: int
    failed: list[Result]
    mean_ratio: float
    least_ratio: tuple[float, str]
    ratios: dict[str, float]
    """What a hundredth, a tenth and half of the worlds make at most."""
    most_of_bound: tuple[float, str]
    trials: dict[str, int]
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Play worlds and print what came of them.

    Args:
        arguments: The command line; None: that of the process.

    Returns:
        The exit code: 1 if a law was broken, or (without --rounds) worlds make less than with turns
        alone on average, else 0.
    """
    options = _options(arguments)
    if options.world:
        result = judge(named(options.world, long=options.long), long=options.long)
        print(msgspec.json.encode(result).decode())
        return 1 if result.broken else 0
    began, found = time.monotonic(), dict[str, Result]()
    names = [str(options.first + number) for number in range(options.worlds)]
    for turn in range(options.rounds + 1):
        for result in _results(names, options):
            found[result.name] = result
            if result.broken:
                text = f"world {result.name}: {'; '.join(result.broken[:3])}"
                print(text, file=sys.stderr, flush=True)
        worst = sorted(found.values(), key=lambda each: (-each.badness, each.name))[:WORST]
        names = [
            f"{each.name}.{turn * CHANGED + number}" for each in worst for number in range(CHANGED)
        ]
    summary = summed(found.values(), time.monotonic() - began)
    if options.json:
        print(msgspec.json.encode(summary).decode())
    else:
        print(_text(summary))
    less = summary.mean_ratio < 1 and not options.rounds
    return 1 if summary.failed or less else 0


def summed(results: Iterable[Result], took: float) -> Summary:
    """Return what came of worlds, which took so many seconds."""
    results, trials = list(results), dict[str, int]()
    for each in results:
        for named_, count in each.trials.items():
            trials[named_] = trials.get(named_, 0) + count
    return Summary(
        worlds=len(results),
        failed=[each for each in results if each.broken],
        mean_ratio=sum(each.ratio for each in results) / max(len(results), 1),
        least_ratio=min(((each.ratio, each.name) for each in results), default=(1.0, "")),
        ratios=_quantiles(sorted(each.ratio for each in results)),
        most_of_bound=max(
            ((each.stands / max(each.bound, 1), each.name) for each in results), default=(0.0, "")
        ),
        trials=dict(sorted(trials.items())),
        seconds=took,
    )


def _quantiles(ratios: Sequence[float]) -> dict[str, float]:
    return {
        name: ratios[int(part * (len(ratios) - 1))] for name, part in QUANTILES.items() if ratios
    }


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m skep_lab.studies.thrash",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed")
    parser.add_argument("--worlds", type=int, default=100, metavar="M", help="how many (100)")
    parser.add_argument("--workers", type=int, default=1, metavar="K", help="processes (1)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=0,
        metavar="R",
        help="rounds in which the worst so far are changed (0)",
    )
    parser.add_argument("--long", action="store_true", help="worlds of four hours")
    parser.add_argument("--world", default="", metavar="NAME", help="this world alone, as JSON")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep there what is known")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments, namespace=Options())
    if options.keep is not None and (error := _unfit(options)):
        parser.error(error)
    if options.worlds < 0 or options.rounds < 0 or not 1 <= options.workers <= WORKERS_MAX:
        parser.error(f"--worlds and --rounds from 0, --workers from 1 to {WORKERS_MAX}")
    return options


def _unfit(options: Options) -> str:
    """Return what is wrong with the file of results; empty: nothing, and it begins with a head."""
    assert options.keep is not None
    head = msgspec.json.encode({"long": options.long, "program": program.digest().hex()})
    if not options.keep.exists():
        options.keep.write_bytes(head + b"\n")
    with options.keep.open("rb") as file:
        if file.readline().rstrip() == head:
            return ""
    return f"{options.keep} is of another program, or of other worlds: name another file"


def _results(names: Sequence[str], options: Options) -> Iterator[Result]:
    """Return what comes of worlds, those first that were kept; keep what was played."""
    if options.keep is None:
        yield from _played(names, options)
        return
    lines = options.keep.read_bytes().splitlines()[1:]
    kept = {each.name: each for each in map(msgspec.json.Decoder(Result).decode, lines)}
    yield from (kept[name] for name in names if name in kept)
    with options.keep.open("ab") as file:
        for result in _played([name for name in names if name not in kept], options):
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
            yield result


def _played(names: Sequence[str], options: Options) -> Iterator[Result]:
    jobs = [(name, options.long) for name in names]
    if options.workers == 1:
        yield from map(_one, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        yield from pool.imap_unordered(_one, jobs)


def _one(job: tuple[str, bool]) -> Result:
    name, long = job
    try:
        return judge(named(name, long=long), long=long)
    except Exception as error:  # Whatever breaks is what is looked for.
        return Result(name, broken=[f"breaks: {type(error).__name__}: {error}"])


def _text(summary: Summary) -> str:
    lines = [
        f"{summary.worlds} worlds in {summary.seconds:.0f} s, {len(summary.failed)} failed",
        f"work with introspection over turns alone: {summary.mean_ratio:.4f} on average, "
        f"at least {summary.least_ratio[0]:.3f} (world {summary.least_ratio[1]})",
        "at most, of the worlds: "
        + ", ".join(f"{name} {ratio:.4f}" for name, ratio in summary.ratios.items()),
        f"stood for at most {summary.most_of_bound[0]:.2f} of the bound "
        f"(world {summary.most_of_bound[1]})",
        "trials: " + ", ".join(f"{count} {named_}" for named_, count in summary.trials.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
