"""The simulator's command line.

python -m skep.sim.run --seeds 2000             run histories; exit 1 if an invariant broke
python -m skep.sim.run --story 17               print everything that happens in one history
python -m skep.sim.run --seeds 200 --no-fence   take the fence away: it must be noticed
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

# The one clock of this library: it measures how long the simulation takes, nothing inside it.
import time  # noqa: TID251 - progress and rate of a command line
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from skep.sim.history import Result, run_seed
from skep.sim.story import table
from skep.sim.world import Settings

TELL_EVERY_S = 2.0
FAILURES_SHOWN_MAX = 5
TAIL_LINES = 40
"""How much of a failed history is printed: what led to most failures."""
WORKERS_MAX = 64
SEEDS_AT_ONCE = 8
"""Seeds a worker takes at a time: a second or two of work."""


class Summary(msgspec.Struct):
    """What came of many histories. The minima are over all of them."""

    seeds: int = 0
    failed: int = 0
    failures: list[Result] = []
    by_invariant: dict[str, int] = {}
    events: int = 0
    steps: int = 0
    faults: int = 0
    crashes: int = 0
    jobs: int = 0
    attempts: int = 0
    breaches: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    events_min: int = 0
    faults_min: int = 0
    crashes_min: int = 0
    coverage: dict[str, int] = {}
    trials: dict[str, int] = {}

    def add(self, result: Result) -> None:
        """Take one more history."""
        first = self.seeds == self.failed
        self.seeds += 1
        for name in (
            "events",
            "steps",
            "faults",
            "crashes",
            "jobs",
            "attempts",
            "breaches",
            "virtual_s",
        ):
            setattr(self, name, getattr(self, name) + getattr(result, name))
        if not result.violation:
            for name in ("events", "faults", "crashes"):
                least = getattr(result, name)
                known = getattr(self, f"{name}_min")
                setattr(self, f"{name}_min", least if first else min(least, known))
        else:
            self.failed += 1
            self.failures.append(result)
            counts = self.by_invariant
            counts[result.invariant] = counts.get(result.invariant, 0) + 1
        for key, count in result.coverage.items():
            self.coverage[key] = self.coverage.get(key, 0) + count
        for key, count in result.trials.items():
            self.trials[key] = self.trials.get(key, 0) + count
        result.coverage = {}


class Options(argparse.Namespace):
    """What the command line says."""

    seeds: int
    first: int
    json: bool
    no_fence: bool
    no_faults: bool
    story: int | None
    regressions: Path | None
    workers: int
    check_every: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code: 0 if all is as it should be."""
    options = _options(arguments)
    settings = Settings(
        fence=not options.no_fence, faults=not options.no_faults, check_every=options.check_every
    )
    if options.story is not None:
        return _tell_story(options.story, settings)
    known = read_seeds(options.regressions)
    fresh = range(options.first, options.first + options.seeds)
    seeds = [*known, *(seed for seed in fresh if seed not in dict.fromkeys(known))]
    summary = _run(seeds, settings, options.workers)
    if options.regressions is not None and settings.fence:
        found = [failure.seed for failure in summary.failures if failure.seed not in known]
        _add_seeds(options.regressions, found)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=1).decode())
    else:
        _print(summary, settings)
    if settings.fence:
        return 1 if summary.failed else 0
    return 0 if summary.failed else 1


def read_seeds(path: Path | None) -> list[int]:
    """Return the seeds in a regressions file: one in a line, the rest of the line is for people."""
    if path is None or not path.exists():
        return []
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [int(line) for line in lines if line]


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m skep.sim.run",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many histories")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--no-fence", action="store_true", help="take the logs' fence away")
    parser.add_argument("--no-faults", action="store_true", help="let nothing go wrong")
    parser.add_argument("--story", type=int, metavar="SEED", help="print one history")
    parser.add_argument(
        "--regressions",
        type=Path,
        metavar="FILE",
        help="run the seeds in FILE first, and add those that fail",
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument(
        "--check-every",
        type=int,
        default=8,
        metavar="N",
        help="steps between two checks of a machine (8)",
    )
    options = parser.parse_args(arguments, namespace=Options())
    if options.seeds < 0 or options.check_every < 1 or not 1 <= options.workers <= WORKERS_MAX:
        parser.error(f"--seeds from 0, --check-every from 1, --workers from 1 to {WORKERS_MAX}")
    return options


def _tell_story(seed: int, settings: Settings) -> int:
    result = run_seed(seed, msgspec.structs.replace(settings, story=True))
    print("\n".join(result.story))
    print(result.violation or f"seed {seed}: every invariant held ({result.digest})")
    return 1 if result.violation else 0


def _run(seeds: Sequence[int], settings: Settings, workers: int) -> Summary:
    summary = Summary()
    began = told = time.monotonic()
    for result in _results(seeds, settings, workers):
        summary.add(result)
        at = time.monotonic()
        summary.seconds = at - began
        if at - told >= TELL_EVERY_S or summary.seeds == len(seeds):
            told = at
            _tell_progress(summary, len(seeds))
    return summary


def _results(seeds: Sequence[int], settings: Settings, workers: int) -> Iterator[Result]:
    jobs = [(seed, settings) for seed in seeds]
    if workers == 1:
        yield from (_run_one(job) for job in jobs)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_run_one, jobs, SEEDS_AT_ONCE)


def _run_one(job: tuple[int, Settings]) -> Result:
    return run_seed(*job)


def _tell_progress(summary: Summary, seeds: int) -> None:
    left_s = summary.seconds / summary.seeds * (seeds - summary.seeds)
    rate = summary.steps / max(summary.seconds, 0.001)
    end = "\n" if summary.seeds == seeds else ""
    print(
        f"\r{summary.seeds:,} of {seeds:,} seeds, {summary.failed} failed, "
        f"{rate:,.0f} events/s, {int(left_s // 60)}:{int(left_s % 60):02} left ",
        end=end,
        file=sys.stderr,
        flush=True,
    )


def _print(summary: Summary, settings: Settings) -> None:
    print("\nfault x step of the protocol that it hit\n")
    print(table({_pair(key): count for key, count in summary.coverage.items()}))
    seeds = max(1, summary.seeds)
    print(
        f"\n{summary.seeds:,} histories in {summary.seconds:.0f} s: "
        f"{summary.steps:,} events ({summary.events:,} apart from timers and heartbeats), "
        f"{summary.faults:,} faults, {summary.crashes:,} crashes, {summary.jobs:,} jobs, "
        f"{summary.attempts:,} attempts, {summary.virtual_s / 3600:.1f} virtual hours"
        f"\neach at least {summary.events_min} events, {summary.faults_min} faults, "
        f"{summary.crashes_min} crashes; on average {summary.events // seeds}, "
        f"{summary.faults // seeds} and {summary.crashes // seeds}"
    )
    told = ", ".join(f"{count} {name}" for name, count in sorted(summary.trials.items()))
    print(f"trials: {told or 'none'}")
    for failure in summary.failures[:FAILURES_SHOWN_MAX]:
        print(f"\nseed {failure.seed}: {failure.violation}")
    if summary.failed and settings.fence:
        seed = summary.failures[0].seed
        story = run_seed(seed, msgspec.structs.replace(settings, story=True)).story
        print("\n".join(story[-TAIL_LINES:]))
        print(f"all of it: python -m skep.sim.run --story {seed}")
    found = ", ".join(f"{name} in {count}" for name, count in sorted(summary.by_invariant.items()))
    if settings.fence:
        print(f"\n{summary.failed} failed ({found})" if found else "\nevery invariant held")
    else:
        print(f"\nwithout the fence {summary.failed} of {summary.seeds} histories broke ({found})")


def _pair(key: str) -> tuple[str, str]:
    fault, _, step = key.partition(" ")
    return fault, step


def _add_seeds(path: Path, seeds: Iterable[int]) -> None:
    lines = "".join(f"{seed}\n" for seed in seeds)
    if lines:
        with path.open("a") as file:
            file.write(lines)


if __name__ == "__main__":
    sys.exit(main())
