"""Gavel's trace, cluster and rates; and its scheduler in rounds, carried out by Skep's machines.

The policy keeps Gavel's book (`crosscheck_rounds`) from one plan to the next, which a policy must
not do: this serves the cross-check alone.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from skep.policy.api import Policy
from skep.policy.plan import Plan, Preempt, Turn
from skep.policy.view import QUEUED, STOPPABLE, JobView, VcView
from skep.units import NS_PER_SECOND, Instant, in_seconds
from skep.wire.cluster import Cluster
from skep.wire.reasons import Reason
from skep_lab.simulator.build import of_types
from skep_lab.simulator.ledger import BEGIN
from skep_lab.simulator.world import World
from skep_lab.traces.job import Trace, TraceJob
from skep_lab.traces.read import read
from skep_lab.workloads.situation import Situation, Steady
from tests.system.crosscheck.rounds import GPUS, TYPES, Book, Draws, Kind, equal, las, loop

ROUNDING = 100_000
"""By less than this part of a mini-batch, nanoseconds are rounded."""
LATER_NS = 1000
"""Each round begins so much later than in Gavel's book: who ends with the one before is gone then,
however nanoseconds were rounded."""


class Rates(Steady):
    """Gavel's measured mini-batches per second, alone on a GPU."""

    def __init__(self, of: Mapping[str, Mapping[Kind, float]]) -> None:
        """Take rates by type, model and GPUs."""
        self.of = of

    @classmethod
    def read(cls, data: Path) -> Rates:
        """Return the published ones."""
        with gzip.open(data / "gavel" / "simulation_throughputs.json.gz", "rt") as lines:
            raw = json.load(lines)
        return cls(
            {
                gpu: {ast.literal_eval(key): each["null"] for key, each in raw[gpu].items()}
                for gpu in TYPES
            }
        )

    def speed(self, job: TraceJob, where: Situation) -> float:
        """Return the speed relative to a V100's."""
        kind = job.model, job.gpus
        return self.of[where.gpu_type][kind] / self.of["v100"][kind]


def trace(data: Path) -> Trace:
    """Return the anchor: jobs as long as their steps take on V100s."""
    path = data / "anchors" / "gavel_gen_seed0_lam600_multigpu_400jobs.trace"
    rates = Rates.read(data).of["v100"]
    with path.open(newline="") as lines:
        whole = read(
            lines,
            "gavel seed 0",
            "gavel",
            lengths=lambda job: job.mini_batches / rates[job.model, job.gpus],
        )
    return msgspec.structs.replace(
        whole, jobs=tuple(msgspec.structs.replace(job, workers=job.gpus) for job in whole.jobs)
    )


def tied(whole: Trace, data: Path) -> Trace:
    """Return the trace with jobs that do not run on every type tied to the fastest one."""
    rates = Rates.read(data).of
    return msgspec.structs.replace(
        whole,
        jobs=tuple(
            job
            if all(rates[gpu][job.model, job.gpus] > 0 for gpu in TYPES)
            else msgspec.structs.replace(job, gpu_type="v100", tied=True)
            for job in whole.jobs
        ),
    )


def cluster() -> Cluster:
    """Return nine nodes of each type, four GPUs each."""
    return of_types(dict.fromkeys(TYPES, GPUS // 4), gpus_per_node=4)


class Rounds(Policy, frozen=True):
    """Gavel's rounds; `shares`: by its policy `fifo` or `las`."""

    name: ClassVar[str] = "gavel-rounds"
    source: ClassVar[str] = "Gavel's simulator, scheduler.py and policies/"
    shares: str = "las"
    rates: ClassVar[Mapping[str, Mapping[Kind, float]]] = {}
    books: ClassVar[list[Book]] = []
    """The one that is kept in this run."""
    taken: ClassVar[dict[int, None]] = {}
    """The jobs that it knows, or knew."""
    rounds: ClassVar[list[Instant]] = []
    """When each round began."""

    @property
    def sees_nodes(self) -> bool:
        """Return True: types are on nodes."""
        return True

    def plan(self, view: VcView) -> Plan:
        """Return who runs where in this round; nothing changes before the next one."""
        if not self.books:
            fifo = self.shares == "fifo"
            self.books.append(Book(self.rates, Draws() if fifo else las()[0], only_shared=fifo))
        book, jobs = self.books[0], {_number(job.job): job for job in view.jobs}
        if self.nearly_over(view.now) and not any(
            number in jobs and book.left[number] == stint.steps
            for number, stint in book.stints.items()
        ):
            book.close()
            self._open(book, jobs, view, book.over)
        elif not book.stints and any(number not in self.taken for number in jobs):
            self._open(book, jobs, view, in_seconds(view.now - BEGIN))
        types = {node.node: node.gpu_type for node in view.nodes}
        where = {
            job.job: book.stints[number].gpu
            for number, job in jobs.items()
            if number in book.stints
        }
        nodes = {gpu: tuple(n.node for n in view.nodes if n.gpu_type == gpu) for gpu in TYPES}
        stopped = [
            job.job
            for job in view.jobs
            if job.phase in STOPPABLE and types[job.nodes[0][0]] != where.get(job.job)
        ]
        turns = sorted(
            (job for job in view.jobs if job.job in where and job.phase in QUEUED),
            key=lambda job: -job.gpus,
        )
        return Plan(
            turns=tuple(Turn(job.job, Reason.LEAST_TIME, nodes[where[job.job]]) for job in turns),
            strict=False,
            actions=tuple(Preempt(name, Reason.SLICE_OVER) for name in stopped),
            look_at=self.over(book) if book.stints else None,
        )

    def _open(self, book: Book, jobs: dict[int, JobView], view: VcView, now: float) -> None:
        for number, job in jobs.items():
            if number not in self.taken:
                assert isinstance(job.spec.size.mini_batches, int), job
                book.come(number, _kind(job), job.spec.size.mini_batches)
                self.taken[number] = None
        self.rounds.append(view.now)
        book.open(now)

    @classmethod
    def over(cls, book: Book) -> Instant:
        """Return when the round is over here."""
        ends = math.ceil(book.ends_at() * NS_PER_SECOND)
        return Instant(BEGIN + ends + LATER_NS * len(cls.rounds))

    @classmethod
    def nearly_over(cls, now: Instant) -> bool:
        """Return whether the round is over, or would be were it not for LATER_NS."""
        book = cls.books[0] if cls.books else None
        return book is not None and bool(book.stints) and now >= cls.over(book) - 2 * LATER_NS


class Whole(World):
    """A world in which a mini-batch that a round cuts short is lost, as in Gavel's rounds."""

    def _happens(self, at: Instant) -> None:
        super()._happens(at)
        if not Rounds.nearly_over(at):
            return
        for run in self.agents._runs.values():
            work = self.agents.works[run.name]
            if run.trains:
                work.advance(at, 0)
                whole, batches = work.job.run_time, work.job.mini_batches
                steps = (work.done * batches + whole // ROUNDING) // whole
                work.done = -(-steps * whole // batches)
                self.agents._reckon(run, work, work.rate, 1.0, at)


def bare(data: Path, *, fifo: bool) -> dict[str, Any]:
    """Return what Gavel's scheduler comes to in a bare loop."""
    whole, rates = trace(data), Rates.read(data).of
    jobs = [(in_seconds(job.at), (job.model, job.gpus), job.mini_batches) for job in whole.jobs]
    shares, whose = (Draws(), "drawn types") if fifo else las()
    ends = loop(jobs, rates, shares, only_shared=fifo)
    return {
        "jct_s": sum(end - at for end, (at, _, _) in zip(ends, jobs, strict=True)) / len(jobs),
        "makespan_s": max(ends),
        "shares": whose,
    }


def solver() -> bool:
    """Return whether shares are those of Gavel's solver."""
    return las()[0] is not equal


def _number(name: str) -> int:
    return int(name[1:])


def _kind(job: JobView) -> Kind:
    return job.spec.size.family or "", job.gpus


def begin(rates: Rates) -> dict[str, Any]:
    """Forget everything that is kept, and return the policies of this file."""
    for kept in (Rounds.books, Rounds.taken, Rounds.rounds):
        kept.clear()
    Rounds.rates = rates.of
    return {Rounds.name: Rounds}
