"""Decides whether a run kept Skep's promises, from evidence no service can bend.

acknowledged   every acknowledged submission is in the stream, was answered once, and, if it
               was admitted, ended exactly once
one-key        one key of a VC is one job; nothing exists that nobody submitted
verdict        what clients were told is what the log says, and a refusal says why
end            a job ended as its program does, or as was asked, and a success has every rank
slots          no slot was in two processes at once; a process that noted something before and after
               another one had its slot was suspended and resumed in between, by the log
execution      a rank of an attempt was executed once, on the slots the log gave it; attempts
               of a job overlap only where the log says that a lost node may still run one
steps          steps count on without gap or repetition; only a recorded attempt goes on anew
orphan         no process of a job is left
late           after healing everything ended in time
log            counters, hash chains, epochs, and what the plain models of both logs forbid
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from skep.ids import job_id
from skep.sim.model import AdmissionModel, AllocatorModel
from skep.sim.violation import ViolationError
from skep.wire.changes import GpusRegained
from skep.wire.facts import (
    Admitted,
    EpochBegan,
    JobBound,
    JobEnded,
    JobOver,
    JobQueued,
    MemberGone,
    Refused,
    Repeated,
)
from skep.wire.reasons import Reason
from skep_services.ports import LogRecord
from tests.system.chaos.evidence import Evidence, Run, Told

ENDS: dict[str, tuple[str, ...]] = {
    "trivial": ("succeeded",),
    "steps": ("succeeded",),
    "real": ("succeeded",),
    "gang": ("succeeded",),
    "idle": ("succeeded",),
    "retried": ("succeeded",),
    "fails": ("failed",),
    "endless": ("cancelled",),
    "wrong": (),
}
"""How each kind of job ends if nobody cancels it; a wrong one is refused."""
REASONS = {str(reason) for reason in Reason}


class Violation(NamedTuple):
    """A promise that was broken, and the story of it."""

    promise: str
    text: str


class Checker:
    """One run's evidence, and what the logs say of it by job."""

    def __init__(self, evidence: Evidence) -> None:
        """Index the logs."""
        self.evidence = evidence
        self.answers: dict[str, list[Any]] = defaultdict(list)
        self.ends: dict[str, list[JobEnded]] = defaultdict(list)
        self.queued: dict[str, int] = defaultdict(int)
        self.bound: dict[tuple[str, int], JobBound] = {}
        self.ghosts: dict[tuple[str, int], list[str]] = defaultdict(list)
        self.regained: Counter[tuple[str, int]] = Counter()
        for fact in _facts(evidence.admission):
            if isinstance(fact, Admitted | Refused | Repeated):
                self.answers[fact.job].append(fact)
        for fact in _facts(evidence.allocator):
            match fact:
                case JobEnded():
                    self.ends[fact.job].append(fact)
                case JobQueued():
                    self.queued[fact.job] += 1
                case JobBound():
                    self.bound[fact.job, fact.attempt] = fact
                case GpusRegained():
                    self.regained[fact.job, fact.attempt] += 1
                case MemberGone() if not fact.free:
                    self.ghosts[fact.job, fact.attempt].append(fact.node)
                case _:
                    pass

    def check(self) -> list[Violation]:
        """Return everything that is not as promised."""
        checks: tuple[Callable[[], Iterator[Violation]], ...] = (
            self.acknowledged,
            self.one_key,
            self.verdicts,
            self.as_meant,
            self.slots,
            self.executions,
            self.attempts,
            self.steps,
            self.left,
            self.logs,
        )
        return [violation for each in checks for violation in each()]

    # --- what was acknowledged -------------------------------------------------------------------

    def acknowledged(self) -> Iterator[Violation]:
        """Find what was acknowledged and is not there, or not answered or not ended once."""
        stored = {one.sequence: (one.vc, one.key) for one in self.evidence.submitted}
        for told in self.evidence.told:
            for ack in told.acks:
                there = stored.get(ack.sequence)
                if there != (told.vc, told.key):
                    yield Violation(
                        "acknowledged",
                        f"{told.key} was acknowledged as {ack.sequence}, where {there} is",
                    )
        for one in self.evidence.submitted:
            count = len(self.answers.get(job_id(one.sequence), []))
            if count != 1:
                yield Violation(
                    "acknowledged", f"{job_id(one.sequence)} ({one.key}) has {count} answers"
                )
        for job, answers in self.answers.items():
            if isinstance(answers[0], Admitted):
                counts = self.queued.get(job, 0), len(self.ends.get(job, []))
                if counts != (1, 1):
                    yield Violation("acknowledged", f"{job} was queued and ended {counts} times")

    def one_key(self) -> Iterator[Violation]:
        """Find keys that are two jobs, and jobs that nobody submitted."""
        keys = {(told.vc, told.key) for told in self.evidence.told if told.sent_at}
        stored: dict[str, tuple[str, str]] = {
            job_id(one.sequence): (one.vc, one.key) for one in self.evidence.submitted
        }
        jobs: dict[tuple[str, str], str] = {}
        for job, (answer, *_) in self.answers.items():
            if job not in stored:
                yield Violation("one-key", f"{job} was answered and never submitted")
                continue
            key = stored[job]
            if key not in keys:
                yield Violation("one-key", f"{job} has the key {key}, which no client sent")
            if isinstance(answer, Repeated):
                if stored.get(answer.original) != key:
                    yield Violation("one-key", f"{job} {key} is said to repeat {answer.original}")
            elif jobs.setdefault(key, job) != job:
                yield Violation("one-key", f"{key} is {jobs[key]} and {job}")
        for job in [*self.ends, *self.queued]:
            if not isinstance(self.answers.get(job, [None])[0], Admitted):
                yield Violation("one-key", f"{job} was not admitted, and is in the allocator's log")

    def verdicts(self) -> Iterator[Violation]:
        """Find verdicts that contradict the log, one another, or give no reason."""
        for told in self.evidence.told:
            for verdict in told.verdicts:
                yield from self._verdict(told, verdict)
            for verdict in told.cancels:
                if not verdict.get("accepted") and not _reasoned(verdict):
                    yield Violation("verdict", f"cancelling {told.job}: {verdict} has no reason")

    def _verdict(self, told: Told, verdict: dict[str, Any]) -> Iterator[Violation]:
        job = str(verdict.get("job"))
        if job != told.job:
            yield Violation("verdict", f"{told.key} was told to be {told.job} and {job}")
        answers = self.answers.get(job, [None])
        accepted = bool(verdict.get("accepted"))
        if accepted != isinstance(answers[0], Admitted):
            yield Violation("verdict", f"{told.key} was told {verdict}, the log has {answers[0]}")
        if not accepted and not _reasoned(verdict):
            yield Violation("verdict", f"{told.key} was refused without a reason: {verdict}")
        if accepted == (told.kind == "wrong"):
            yield Violation("verdict", f"{told.key}, which is {told.kind}, was told {verdict}")

    def as_meant(self) -> Iterator[Violation]:
        """Find ends that neither the program nor a wish explains, and successes without ranks."""
        codes: dict[tuple[str, int], dict[int, Run]] = defaultdict(dict)
        for run in self.evidence.runs:
            codes[run.job, run.attempt][run.rank] = run
        kinds = {told.job: told for told in self.evidence.told if told.job}
        for job, ends in self.ends.items():
            end, told = ends[0], kinds.get(job)
            if told is not None:
                expected = ENDS[told.kind] + (("cancelled",) if told.cancel_sent else ())
                if end.end not in expected:
                    yield Violation(
                        "end",
                        f"{job} ({told.kind}) {end.end}: {end.why} after "
                        f"{end.attempts} attempts: {end.detail}",
                    )
            runs = codes.get((job, end.attempts), {})
            worlds = {run.world for run in runs.values()} or {1}
            done = [rank for rank, run in runs.items() if run.code == 0]
            if end.end == "succeeded" and sorted(done) != list(range(max(worlds))):
                yield Violation("end", f"{job} succeeded, of its ranks only {sorted(done)} did")

    # --- what processes did ----------------------------------------------------------------------

    def slots(self) -> Iterator[Violation]:
        """Find slots that processes used in turns which the log does not explain."""
        taken: dict[tuple[str, int], list[Run]] = defaultdict(list)
        for run in self.evidence.runs:
            for slot in run.slots:
                taken[run.node, slot].append(run)
        for (node, slot), runs in taken.items():
            notes = sorted(
                (at, number)
                for number, run in enumerate(runs)
                for at in (run.began, *run.noted, run.last)
            )
            order = [number for number, _ in groupby(number for _, number in notes)]
            for number, turns in Counter(order).items():
                run = runs[number]
                given = 1 + self.regained[run.job, run.attempt]
                if turns > given:
                    between = order[order.index(number) + 1 :]
                    others = {runs[other].name for other in between} - {run.name}
                    yield Violation(
                        "slots",
                        f"slot {slot} of {node} was used by {run.name} in "
                        f"{turns} turns, by the log in at most {given}; others then: "
                        f"{', '.join(sorted(others))}",
                    )

    def executions(self) -> Iterator[Violation]:
        """Find ranks executed twice or on slots that are not theirs by the log."""
        seen: dict[str, Run] = {}
        for run in sorted(self.evidence.runs, key=lambda run: run.began):
            earlier = seen.get(run.name)
            if earlier is not None and not self._cut_between(earlier.last, run.began):
                yield Violation(
                    "execution", f"{run.name} was executed twice: pids {earlier.pid} and {run.pid}"
                )
            seen[run.name] = run
            bound = self.bound.get((run.job, run.attempt))
            if bound is None:
                yield Violation("execution", f"{run.name} was executed and never bound")
                continue
            given = {
                member.first_rank + i: (member.node, tuple(devices))
                for member in bound.members
                for i, devices in enumerate(member.devices)
            }
            if given.get(run.rank) != (run.node, run.slots):
                yield Violation(
                    "execution",
                    f"{run.name} ran on {run.slots} of {run.node}, its "
                    f"own were {given.get(run.rank)}",
                )

    def attempts(self) -> Iterator[Violation]:
        """Find attempts of a job that ran at once without the log saying why."""
        jobs: dict[str, list[Run]] = defaultdict(list)
        for run in self.evidence.runs:
            jobs[run.job].append(run)
        for runs in jobs.values():
            for run in runs:
                for later in runs:
                    overlap = later.attempt > run.attempt and later.began < run.last
                    if overlap and run.node not in self.ghosts[run.job, run.attempt]:
                        yield Violation("execution", f"{later.name} began while {run.name} ran")

    def steps(self) -> Iterator[Violation]:
        """Find steps lost, repeated or going backwards."""
        ranks: dict[tuple[str, int], list[Run]] = defaultdict(list)
        for run in self.evidence.runs:
            wrong = [(a, b) for a, b in pairwise([run.from_step, *run.steps]) if b != a + 1]
            if wrong:
                yield Violation(
                    "steps", f"{run.name} went from step {wrong[0][0]} to {wrong[0][1]}"
                )
            ranks[run.job, run.rank].append(run)
        for runs in ranks.values():
            runs.sort(key=lambda run: run.began)
            for run, later in pairwise(runs):
                made = run.steps[-1] if run.steps else run.from_step
                if later.began > run.last and later.from_step < made:
                    yield Violation(
                        "steps", f"{later.name} went back from step {made} to {later.from_step}"
                    )

    def _cut_between(self, begin: int, end: int) -> bool:
        return any(begin <= cut <= end for cut in self.evidence.cuts)

    # --- what is left, and the logs --------------------------------------------------------------

    def left(self) -> Iterator[Violation]:
        """Find processes that outlived their jobs, and jobs that did not end in time."""
        for text in self.evidence.alive:
            yield Violation("orphan", text)
        for text in self.evidence.unfinished:
            yield Violation("late", text)

    def logs(self) -> Iterator[Violation]:
        """Find gaps, epochs out of order, and what the plain models of the logs forbid."""
        for text in self.evidence.broken:
            yield Violation("log", text)
        for name in ("admission", "allocator"):
            yield from _envelopes(name, getattr(self.evidence, name))
        try:
            replay(self.evidence.admission, self.evidence.allocator)
        except ViolationError as error:
            yield Violation("log", str(error))


def replay(admission: Sequence[LogRecord], allocator: Sequence[LogRecord]) -> None:
    """Run both logs through their plain models, each record behind those it was decided from.

    Raises ViolationError.
    """
    allocated = AllocatorModel(_nothing, _nothing, _nothing, _nothing, _nothing)
    admitted = AdmissionModel(allocated)
    allocated.admission = admitted
    taken = {"ADMISSION": 0, "ALLOC": 0}
    logs: dict[str, tuple[Sequence[LogRecord], str, AdmissionModel | AllocatorModel]]
    logs = {
        "ADMISSION": (admission, "ALLOC", admitted),
        "ALLOC": (allocator, "ADMISSION", allocated),
    }
    went_on = True
    while went_on:
        went_on = False
        for name, (records, other, model) in logs.items():
            while taken[name] < len(records):
                record = records[taken[name]]
                if record.positions.get(other, 0) > taken[other]:
                    break
                if not _known(record, admitted, allocated):
                    break
                model.take(record.facts)
                taken[name] += 1
                went_on = True
    for name, (records, other, _) in logs.items():
        if taken[name] < len(records):
            invariant = "I6"
            text = (
                f"record {taken[name] + 1} of {name} was decided from a record that {other} lacks"
            )
            raise ViolationError(invariant, text)


def _known(record: LogRecord, admitted: AdmissionModel, allocated: AllocatorModel) -> bool:
    """Return whether the other log has been read as far as these facts need it.

    A record may be decided from the first facts of another service's record, before the position
    says that the whole of it was consumed.
    """
    return all(
        fact.job in admitted.answers
        if isinstance(fact, JobQueued)
        else fact.job in allocated.ended
        if isinstance(fact, JobOver)
        else True
        for fact in record.facts
    )


def _nothing(*_: object) -> None:
    """Take part in nothing: what processes do is checked from their own notes."""


def _envelopes(name: str, records: Sequence[LogRecord]) -> Iterator[Violation]:
    epoch = 0
    for number, record in enumerate(records, 1):
        if record.counter != number:
            yield Violation("log", f"{name}: record {number} is numbered {record.counter}")
        began = [fact.epoch for fact in record.facts if isinstance(fact, EpochBegan)]
        if began:
            if began != [epoch + 1]:
                yield Violation("log", f"{name}: epoch {began} follows {epoch}")
            epoch = began[0]
        if record.epoch != epoch:
            yield Violation("log", f"{name}: record {number} of epoch {record.epoch} in {epoch}")


def _facts(records: Sequence[LogRecord]) -> Iterator[Any]:
    for record in records:
        yield from record.facts


def _reasoned(verdict: dict[str, Any]) -> bool:
    """Return whether a refusal names a reason of the closed list, or problems with reasons."""
    problems = verdict.get("problems", [])
    return verdict.get("reason") in REASONS and all(
        problem.get("reason") in REASONS and problem.get("text") for problem in problems
    )
