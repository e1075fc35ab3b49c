"""What would be if: the production code on a copy of the machine, which is then thrown away.

    answer ──apart──> copy of the machine ──decide, played on──> Outcome
                          (one for each thing that is tried)

How a copy is made is the caller's: a service forks, a test copies deeply. In the copy the job is
submitted, or cancelled and submitted anew, by the very events that would do it, and the outcome is
read from the facts that follow. To tell when it starts if it does not start now, the copy is played
on (`Ahead`): nodes do at once what they are told, and jobs end when they are known to. What is not
knows the end of runs for ever. Moves and changes of size are not played: the job goes on as before.

Work is bounded: TRIES_MAX copies for a question, a few decisions in each, and DECISIONS_MAX in the
one that looks ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from skep.ledger.job_state import JobState, State
from skep.machines.allocator.machine import AllocatorMachine
from skep.machines.allocator.what_if.play_forward import DECISIONS_MAX, Ahead
from skep.units import Instant
from skep.wire.codec import Facts
from skep.wire.drafts import Answer, Option, Outcome, Question, Start
from skep.wire.facts import Admitted, CancelAsked
from skep.wire.reasons import Reason
from skep.wire.spec import PRIORITY_MAX, TYPES_APART, JobSpec, Resources

__all__ = ["DECISIONS_MAX", "TRIES_MAX", "Apart", "answer"]

TRIES_MAX = 40
"""Things tried for one question: about ten kinds of changes, and a few sizes of some."""
SIZES_TRIED = 8
"""Numbers of workers tried one by one; of more the first that serves is looked for by halves."""
KINDS_MAX = 8
"""Types of GPU, and virtual clusters, that are tried."""

Apart = Callable[[Callable[[AllocatorMachine], Outcome]], Outcome]
"""Does something with a copy of the machine as it is now, and returns what comes of it."""

Tried = tuple[Reason, str, JobSpec]
"""A change: what it is, its value in words, and the spec with it."""

ORDER = (
    Reason.WITHOUT_ITS_PIN,
    Reason.WITHOUT_ITS_AFFINITY,
    Reason.WITH_ANOTHER_TYPE,
    Reason.WITHOUT_CPUS,
    Reason.WITH_BORROWED_GPUS,
    Reason.AS_OPPORTUNISTIC,
    Reason.AS_GUARANTEED,
    Reason.WITH_FEWER_GPUS,
    Reason.WITH_A_PRIORITY,
    Reason.IN_ANOTHER_VC,
    Reason.ONCE_OTHERS_END,
)
"""Changes by how little they take from the job, or from others."""


def answer(machine: AllocatorMachine, question: Question, now: Instant, apart: Apart) -> Answer:
    """Answer a question, and leave the machine as it is.

    Args:
        machine: Only looked at.
        question: Names a job or has a spec, and says how long jobs still have to run.
        now: The time at which it is asked.
        apart: Does something with a copy of the machine.

    Returns:
        What becomes of the job, and which changes would help; or what is wrong with the question.
    """
    left = question.remaining

    def submitted(spec: JobSpec, instead: str = "") -> Outcome:
        """Return what becomes of a specification, on a copy."""
        return apart(lambda copy: _submitted(copy, spec, instead, now, left))

    if question.spec is not None:
        return Answer(at=now, outcome=submitted(question.spec))
    job = machine.state.jobs.get(question.job)
    if job is None:
        return Answer(at=now, problem=f"the allocator knows of no unfinished job {question.job}")
    if job.state is not State.QUEUED and job.state is not State.RESERVED:
        return Answer(at=now, problem=f"{job.job} does not wait for GPUs: it is {job.state}")
    as_it_is = apart(lambda copy: Ahead(copy, question.job, now, left).outcome())
    if as_it_is.start in (Start.NOW, Start.AFTER):
        return Answer(at=now, outcome=as_it_is)
    tries = _Tries(lambda spec: submitted(spec, question.job))
    for tried in _changes(machine, job, others=question.others):
        tries.take(tried)
    _fewer(tries, job.spec)
    _urgent(tries, machine, job)
    options = tries.served
    if as_it_is.start is Start.LATER:
        names = " ".join(as_it_is.awaits)
        options.append(Option(why=Reason.ONCE_OTHERS_END, value=names, outcome=as_it_is))
    options.sort(key=lambda option: ORDER.index(option.why))
    return Answer(at=now, outcome=as_it_is, options=tuple(options), in_vain=tuple(tries.in_vain))


def _submitted(
    machine: AllocatorMachine, spec: JobSpec, instead: str, now: Instant, left: Mapping[str, int]
) -> Outcome:
    """Use up a machine: submit a job, or cancel one and try whether that one starts instead."""
    name = f"j{machine.state.last_queued + 1}"
    ahead = Ahead(machine, name, now, left, instead)
    if instead:
        ahead.tell(Facts(service="admission", at=now, facts=(CancelAsked(job=instead),)))
    admitted = Admitted(job=name, spec=spec, submitted_at=now)
    ahead.tell(Facts(service="admission", at=now, facts=(admitted,)))
    return ahead.outcome(far=not instead)


class _Tries:
    """What was tried, and whether it starts the job now."""

    def __init__(self, submitted: Callable[[JobSpec], Outcome]) -> None:
        self.served: list[Option] = []
        self.in_vain: list[Option] = []
        self._submitted = submitted
        self._left = TRIES_MAX

    def look(self, tried: Tried) -> Option | None:
        """Try a change without noting it, and return what came of it; None if enough was tried."""
        if not self._left:
            return None
        self._left -= 1
        why, value, spec = tried
        return Option(why=why, value=value, spec=spec, outcome=self._submitted(spec))

    def note(self, option: Option | None) -> None:
        """Note what was tried."""
        if option is not None:
            (self.served if serves(option) else self.in_vain).append(option)

    def take(self, tried: Tried) -> None:
        """Try a change and note it."""
        self.note(self.look(tried))


def serves(option: Option | None) -> bool:
    """Return whether the job gets its GPUs now, or once others were told to make room."""
    return option is not None and option.outcome.start in (Start.NOW, Start.AFTER)


# --- what is tried --------------------------------------------------------------------------------


def _changes(machine: AllocatorMachine, job: JobState, *, others: bool) -> Iterator[Tried]:
    """Yield the changes that are there or not."""
    spec, wanted = job.spec, job.spec.resources

    def having(**changes: object) -> JobSpec:
        return replace(spec, resources=replace(wanted, **changes))

    if wanted.pinned:
        yield Reason.WITHOUT_ITS_PIN, wanted.pinned, having(pinned="")
    if wanted.topology is not None and wanted.topology.hard:
        loose = replace(wanted.topology, hard=False)
        yield Reason.WITHOUT_ITS_AFFINITY, wanted.topology.within, having(topology=loose)
    for kind in _kinds(machine, wanted):
        yield Reason.WITH_ANOTHER_TYPE, kind, having(gpu_type=kind)
    if wanted.cpus or wanted.memory:
        yield Reason.WITHOUT_CPUS, "cpus 0, memory 0", having(cpus=0, memory=0)
    if spec.opportunistic:
        yield Reason.AS_GUARANTEED, "guaranteed", replace(spec, service_class="guaranteed")
    else:
        if spec.over_quota != "opportunistic":
            borrows = replace(spec, over_quota="opportunistic")
            yield Reason.WITH_BORROWED_GPUS, "opportunistic", borrows
        lower = replace(having(pinned=""), service_class="opportunistic")
        yield Reason.AS_OPPORTUNISTIC, "opportunistic", lower
    if others and not wanted.pinned:
        names = [vc for vc in machine.state.cells.cluster.vcs if vc != spec.vc]
        for vc in names[:KINDS_MAX]:
            yield Reason.IN_ANOTHER_VC, vc, replace(spec, vc=vc)


def _kinds(machine: AllocatorMachine, wanted: Resources) -> list[str]:
    """Return the types of GPU that there are and that the job does not run on."""
    if wanted.gpu_type is None:
        return []
    asked = wanted.gpu_type.split(TYPES_APART)
    there = dict.fromkeys(each.topology.gpu for each in machine.state.cells.chains.values())
    return [kind for kind in there if kind not in asked][:KINDS_MAX]


def _fewer(tries: _Tries, spec: JobSpec) -> None:
    """Look for the most GPUs, below what it asks for, with which the job starts."""
    wanted, gang = spec.resources, spec.resources.workers > 1
    most = wanted.workers if gang else wanted.gpus
    least = spec.elastic.min if gang and spec.elastic is not None else 1

    def tried(size: int) -> Tried:
        smaller = replace(wanted, workers=size) if gang else replace(wanted, gpus=size)
        gpus = smaller.workers * smaller.gpus
        named = f"{gpus} GPU{'s' if gpus > 1 else ''}"
        return Reason.WITH_FEWER_GPUS, named, replace(spec, resources=smaller)

    if most - least <= SIZES_TRIED:
        last = None
        for size in range(most - 1, least - 1, -1):
            last = tries.look(tried(size))
            if serves(last):
                break
        tries.note(last)
        return
    best = tries.look(tried(least))
    low, high = least, most
    while serves(best) and high - low > 1:
        middle = (low + high) // 2
        option = tries.look(tried(middle))
        if option is None:
            break
        if serves(option):
            best, low = option, middle
        else:
            high = middle
    tries.note(best)


def _urgent(tries: _Tries, machine: AllocatorMachine, job: JobState) -> None:
    """Look for the lowest priority, above its own, with which the job starts."""
    mine = job.spec.priority
    others = sorted(
        {
            each.spec.priority + 1
            for each in machine.state.jobs.values()
            if each.spec.vc == job.spec.vc and each.spec.priority >= mine
        }
    )
    steps = [priority for priority in others if mine < priority <= PRIORITY_MAX]

    def tried(priority: int) -> Tried:
        return Reason.WITH_A_PRIORITY, str(priority), replace(job.spec, priority=priority)

    if not steps:
        return
    best = tries.look(tried(steps[-1]))
    low, high = 0, len(steps) - 1
    while serves(best) and low < high:
        middle = (low + high) // 2
        option = tries.look(tried(steps[middle]))
        if option is None:
            break
        if serves(option):
            best, high = option, middle
        else:
            low = middle + 1
    tries.note(best)
