"""Reports of training jobs, and the production introspector and advisor that read them.

    a job's pace changes --> NodeReport (lasts) --> introspector --> Rates --> advisor --> allocator

The pace of a simulated rank is known until it changes, so one report for each change is enough
(Gandiva's fast-forwarding). The introspector comes to the same state as with a report every second,
which is available too. Counts are kept here, in whole mini-batches of whole nanoseconds, and only
grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from skep.learn.advising import GivenModels
from skep.machines.advisor import AdvisorMachine
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.machines.introspector import IntrospectorMachine
from skep.perf.course import Course
from skep.units import NS_PER_SECOND, Duration, Instant, after, seconds
from skep.wire.advice import Advice
from skep.wire.changes import JobChanged
from skep.wire.codec import Facts
from skep.wire.facts import CellsSet, JobBound, JobEnded, JobQueued, JobRequeued, NodeAdded
from skep.wire.findings import Finding
from skep.wire.following import AdviceFollowed
from skep.wire.learned import LearnedAdvice, Sight
from skep.wire.moves import JobMoved, SuccessorBound, SuccessorDropped
from skep.wire.packs import GpusShared
from skep.wire.profile import AdvisorFact, Timing
from skep.wire.reports import JobProgress, NodeReport, RankProgress
from skep.wire.resizes import GangNarrowed, GangWidened
from skep.wire.trials import Judged, Trials
from skep_lab.simulator.agents import Agents
from skep_lab.simulator.floor import Run
from skep_lab.simulator.settings import Settings

FOLLOWED = frozenset(
    {
        JobQueued,
        JobBound,
        JobRequeued,
        JobEnded,
        NodeAdded,
        CellsSet,
        JobMoved,
        SuccessorBound,
        SuccessorDropped,
        GangWidened,
        GangNarrowed,
        AdviceFollowed,
        GpusShared,
        JobChanged,
    }
)
RESEND_AFTER, EXPIRES_AFTER = seconds(600.0), seconds(1800.0)
"""No message is lost here, so unchanged advice is only sent again as time passes: a job that has
waited for an hour is not overtaken any more."""
PRUNE_AT = 1000
TIMED_MAX = 64
"""The latest mini-batches that a job looks at."""
A_SECOND = Duration(NS_PER_SECOND)


class Pace(msgspec.Struct):
    """How an attempt continues, by its latest report."""

    course: Course
    rest: float
    """The part of the present mini-batch that was still to be made at the report."""
    utilisation: int = 0
    workers: int = 0
    version: int = 0
    since: int = 0
    """Mini-batches that were made when it became like this."""


class Reports:
    """Reports, and the machines that follow them. `said` collects messages to the allocator."""

    def __init__(
        self, agents: Agents, settings: Settings, *, every_second: bool, timed: bool = False
    ) -> None:
        """Begin before the first event.

        Args:
            agents: The nodes.
            settings: The learned models, and how long their advice takes.
            every_second: Whether every attempt reports every second, though that is not
                necessary.
            timed: Whether reports tell what the latest mini-batches took.
        """
        self.introspector = IntrospectorMachine()
        models = GivenModels(settings.models)
        self.advisor = AdvisorMachine(models=models, guards=settings.guards)
        for each in (self.advisor, self.advisor.advising):
            each.resend_after, each.expires_after = RESEND_AFTER, EXPIRES_AFTER
        self._delay = seconds(settings.advice_delay_s)
        for machine in (self.introspector, self.advisor):
            machine.decide(Restarted(1), Instant(0))
        self.said: list[Advice | Judged] = []
        self.found: list[tuple[Instant, Finding]] | None = None
        """What the introspector found, if that is recorded, without rates."""
        self.recorded: list[AdvisorFact] = []
        """What the advisor recorded."""
        self.reports = 0
        """The number of reports."""
        self._facts: list[Any] = []
        self._sights: list[Sight] = []
        self._agents, self._every_second, self._timed = agents, every_second, timed
        self._paces: dict[Run, Pace] = {}
        self._prune_at = PRUNE_AT
        self._due: dict[Run, None] = {}
        """Attempts that report at this instant."""

    def note(self, fact: Any) -> None:
        """Record a fact of the allocator; it is passed on at the end of the instant."""
        if type(fact) in FOLLOWED:
            self._facts.append(fact)

    def wake_at(self) -> Instant | None:
        """Return when the first machine wants to be woken; None: none does."""
        first, second = self.introspector.wake_at(), self.advisor.wake_at()
        if first is None or second is None:
            return first if second is None else second
        return min(first, second)

    def tick(self, now: Instant) -> None:
        """Wake the machines that are due, before anything else happens at this instant."""
        wake = self.introspector.wake_at()
        if wake is not None and wake <= now:
            self._follow(self.introspector.decide(Tick(), now), now)
        wake = self.advisor.wake_at()
        if wake is not None and wake <= now:
            self._say(self.advisor.decide(Tick(), now), now)

    def tell(self, now: Instant) -> None:
        """Send the machines what was decided so far at this instant."""
        if self._facts:
            message = Facts(service="allocator", at=now, facts=tuple(self._facts))
            self._facts.clear()
            self._follow(self.introspector.decide(message, now), now)
            self._say(self.advisor.decide(message, now), now)
        sights, self._sights = self._sights, []
        for sight in sights:
            self._say(self.advisor.decide(sight, now), now)

    def see(self, sight: Sight) -> None:
        """Have the advisor answer what a policy sees, behind the facts of this instant."""
        self._sights.append(sight)

    def open(self, trials: Trials, now: Instant) -> None:
        """Make the introspector measure trials; it finds nothing before the next second."""
        self._follow(self.introspector.decide(trials, now), now)

    def report(self, now: Instant) -> None:
        """Report, once at an instant and at its end; that has no effects before the next second."""
        changed, self._agents.paced = self._agents.paced, {}
        for run in changed or ():
            self._update_pace(run, now)
        if len(self._paces) > self._prune_at:
            self._paces = {
                run: pace for run, pace in self._paces.items() if self._agents.lives(run)
            }
            self._prune_at = 2 * len(self._paces) + PRUNE_AT
        due, self._due = self._due, {}
        for run in due:
            self._report(run, now)

    def _update_pace(self, run: Run, now: Instant) -> None:
        """Compute how an attempt continues from now on, and have it reported."""
        known = self._paces.get(run)
        if not self._agents.lives(run):
            self._paces.pop(run, None)
            return
        step_ns, utilisation = self._agents.pace(run)
        if known is None:
            if not step_ns:
                return
            steps = self._agents.works[run.name].steps()
            known = self._paces[run] = Pace(
                Course(now, steps, now if steps else 0, 0, step_ns), 1.0
            )
        course = known.course
        steps, ended = course.done(now)
        if course.goes:
            beyond = max(0, now - course.next_at) // course.step_ns + (now >= course.next_at)
            known.rest = (course.next_at + beyond * course.step_ns - now) / course.step_ns
        next_at = now + min(step_ns, max(1, round(known.rest * step_ns))) if step_ns else 0
        known.course = Course(now, steps, ended, next_at, step_ns or course.step_ns)
        known.utilisation, known.workers = utilisation, run.workers
        known.version += 1
        known.since = steps
        self._due[run] = None
        if self._every_second:
            self._again(run, known.version, now)

    def _again(self, run: Run, version: int, now: Instant) -> None:
        pace = self._paces.get(run)
        if pace is not None and pace.version == version and self._agents.lives(run):
            self._due[run] = None
            self._agents.later.append((after(now, A_SECOND), (self._again, run, version)))

    def _report(self, run: Run, now: Instant) -> None:
        pace = self._paces[run]
        course = pace.course
        steps, ended = course.done(now)
        lasts = not self._every_second
        rank = RankProgress(
            rank=0,
            steps=steps,
            step_ns=course.step_ns,
            last_step_at=Instant(ended),
            utilisation=pace.utilisation,
            memory=self._agents.memory(run),
            next_at=Instant(course.next_at if lasts else 0),
            timing=_timing(course.step_ns, steps - pace.since - 1) if self._timed else None,
        )
        job = JobProgress(
            job=run.name, attempt=run.number, world=max(1, pace.workers), ranks=(rank,), lasts=lasts
        )
        # Each attempt reports as if it had a node of its own: a second report of a node at the same
        # instant would be taken for the first.
        message = NodeReport(node=f"{run.name}.{run.number}", at=now, jobs=(job,))
        self.reports += 1
        self._follow(self.introspector.decide(message, now), now)

    def _follow(self, effects: Iterable[Effect], now: Instant) -> None:
        for effect in effects:
            assert isinstance(effect, Send), effect
            if isinstance(effect.message, Judged):
                self.said.append(effect.message)
            if self.found is not None and effect.message.__struct_config__.tag != "rates":
                self.found.append((now, effect.message))
            self._say(self.advisor.decide(effect.message, now), now)

    def _say(self, effects: Iterable[Effect], now: Instant) -> None:
        for effect in effects:
            if isinstance(effect, Record):
                self.recorded.append(effect.fact)
                continue
            assert isinstance(effect, Send), effect
            if self._delay and isinstance(effect.message, LearnedAdvice):
                late = after(now, self._delay)
                self._agents.later.append((late, (self._comes, effect.message)))
            else:
                self.said.append(effect.message)

    def _comes(self, advice: LearnedAdvice, _now: Instant) -> None:
        """Let advice reach the allocator."""
        self.said.append(advice)


def _timing(step_ns: int, made: int) -> Timing | None:
    """Return what the latest mini-batches took, all alike; None: there are too few."""
    if made < 2:
        return None
    samples, step = min(made, TIMED_MAX), Duration(step_ns)
    return Timing(
        samples=samples, mean_ns=step, deviation_ns=0, p10_ns=step, p50_ns=step, p90_ns=step
    )
