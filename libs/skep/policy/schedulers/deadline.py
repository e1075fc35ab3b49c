"""Skep's own policy for deadlines: it keeps what admission promised, and starves no job.

    fixed | pressing | urgent | early | saved | runs | waits

Each job is in a group, and the groups come in this order. A job that waits takes GPUs only from
running jobs of later groups, and only when it has to: at the latest time at which it can begin
(*pressing*). Until then it waits behind all that runs, and is placed where there is room
(backfill).

A promised job that runs and would lose its work is *fixed*. Any other one that has no time to lose
is pressing, as is one that waits: the largest first, for the book says that all of them can be
packed, and small ones find other GPUs. A promised job that runs *early* gives way to these, and is
pressing when it has to go on. Jobs with a deadline but no promise are *saved* while they can be.
A job that can no longer be on time comes after those that can, and one that has waited for long
(*aged*) is as good as one with a deadline.

Jobs without an accepted promise that may begin on several numbers of GPUs, and whose speeds there
are known, come behind these groups, in an order and at placements of their own (`moldable`).

Source: Skep; admission's side is `skep.promises`. Late jobs last, with ageing, is what GENIE
(section 5.4) lacks.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from skep.perf.model.genie import THETA
from skep.policy.api import Planner
from skep.policy.moldable import Moldable, Rule
from skep.policy.parts import Preemptive, check_one_or_more
from skep.policy.plan import Action, Plan, Preempt, Resize, Turn
from skep.policy.powers import Powers
from skep.policy.preempt import preempt_for
from skep.policy.roster import Course, Courses, Key, Roster
from skep.policy.shrinking import gave_up, shrink_first
from skep.policy.sizes import changeable, gpus_per_worker, offered, offers
from skep.policy.symmetric import LEARNED, MeasuredRow, ModelRow, Speeds
from skep.policy.view import STOPPABLE, JobView, Phase, VcView
from skep.units import Instant, seconds
from skep.wire.reasons import Reason
from skep.wire.spec import Promised

FIXED, PRESSING, URGENT, EARLY, SAVED, RUNS, WAITS = range(7)
"""The groups, in their order."""
FIRST, SOON, PLAIN, LATE = range(4)
"""Among those that wait and press no others: urgent, can be on time, no deadline, late."""
MOVES = frozenset({"suspend", "release", "migrate"})
"""What a job must be able to do so that it leaves its GPUs for others and loses nothing."""
NO_PROMISE = Promised(answer="none")

Place = tuple[int, int, int]


class Deadline(Preemptive, frozen=True):
    """Promises first, at the last moment; else what can still be on time; no job starves.

    `lead_s` is how long before its latest begin a job may take GPUs from others, which have to
    leave first. A job that has waited for `age_s` seconds comes before those without a deadline.
    With `sizes` elastic jobs that would be late are given more workers if GPUs are free, as many as
    their measured rates say that they need. Those without a promise give up workers before they are
    stopped, if they are willing to (`willing.shrink`), and have them back once GPUs are free. With
    `probe` all elastic jobs of the VC may be measured for a short time with another number of
    workers, not only those whose specs allow it.

    `models` and `measured` are rates of kinds of jobs (`learned`: what the advisor measured and
    predicts), and `start_s` is what it takes to begin, as of `genie`. Jobs of these kinds that wait
    without an accepted promise start at the placement with the most samples per second for its cost
    (weight `theta`) of those with which they would be on time, were they slower by the part
    `margin`; or at a free one that has at least the part 1 / `near` of that. The least GPU time
    comes first; a job that cannot be on time counts as if it took `late` times as much, and half as
    much for each `half_s` that it has waited. What waits for its placement blocks those behind it.
    """

    name: ClassVar[str] = "deadline"
    source: ClassVar[str] = "Skep; GENIE, section 5.4, for the classes"
    by_run_times: ClassVar[bool] = True
    keeps_promises: ClassVar[bool] = True
    lead_s: float = 60
    age_s: float = 21_600
    sizes: bool = True
    probe: bool = False
    models: tuple[ModelRow, ...] | Literal["learned"] = ()
    measured: tuple[MeasuredRow, ...] = ()
    start_s: float = 0
    theta: float = THETA
    late: float = 2
    near: float = 1.5
    margin: float = 0.03
    half_s: float = 86_400

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: A time or a factor is below 1, or another number below 0.
        """
        check_one_or_more("lead_s", self.lead_s, "seconds")
        check_one_or_more("age_s", self.age_s, "seconds")
        check_one_or_more("half_s", self.half_s, "seconds")
        check_one_or_more("late", self.late, "a factor")
        check_one_or_more("near", self.near, "a factor")
        if min(self.start_s, self.theta, self.margin) < 0:
            reason = "start_s is seconds, theta a weight and margin a part: all 0 or more"
            raise ValueError(reason)

    @property
    def sees_nodes(self) -> bool:
        """Return `places`, or whether it knows rates."""
        return self.places or bool(self.models or self.measured)

    @property
    def sees_rates(self) -> bool:
        """Return `sizes`, or whether rates are learned."""
        return self.sizes or self.models == LEARNED

    @property
    def probes(self) -> bool:
        """Return `probe`."""
        return self.probe

    @property
    def powers(self) -> Powers:
        """Return those of a preemptive order, and that sizes change."""
        return Powers(
            suspends=True,
            passes=True,
            priority="takes",
            run_times=True,
            resizes=self.sizes,
            rates=self.sees_rates,
        )

    def planner(self) -> Planner:
        """Return a function that keeps the order of waiting jobs from one view to the next."""
        roster, why = Roster(), self.why()

        def ordered(view: VcView) -> Plan:
            order = roster.follow(view, self.key(view), self.courses(view))
            made = preempt_for(view, roster, order, why, look_at=order.until)
            if self.sizes and any(isinstance(each, Preempt) for each in made.actions):
                made = shrink_first(view, made, _last_begin(view, made))
            return made

        if not (self.models or self.measured):
            return lambda view: self._sized(view, ordered(view), self.sizes)
        speeds = Speeds(self.models, self.measured, self.theta)
        rule = Rule(seconds(self.start_s), self.late, self.near, self.margin, seconds(self.half_s))
        moldable = Moldable(speeds, rule)

        def plan(view: VcView) -> Plan:
            rest, ours = moldable.divide(view)
            made = self._sized(rest, ordered(rest), self.sizes and not ours.jobs)
            return moldable.add(view, rest, ours, made)

        return plan

    def why(self) -> Reason:
        """Return the reason that turns by this order have."""
        return Reason.BY_DEADLINE

    def key(self, view: VcView) -> Key:
        """Return the group of a job and its place there."""
        return lambda job: self._course(job, view.now).place

    def courses(self, view: VcView) -> Courses:
        """Return the group of a job, its place there, and when that changes."""
        return lambda job: self._course(job, view.now)

    def _course(self, job: JobView, now: Instant) -> Course:
        return self._running(job, now) if job.phase in STOPPABLE else self._waiting(job, now)

    def _running(self, job: JobView, now: Instant) -> Course:
        """Return the course of a job that runs: it is where only more pressing jobs take its GPUs.

        Of those whose GPUs may be taken, the one that began last leaves first.
        """
        promise = promised(job)
        began = job.since
        if promise.answer == "accepted":
            ends = Instant(now + promise.lasts - job.ran(now))
            if ends > now:  # Else it outran its length: its promise is lost, its GPUs are not.
                until = ends if job.phase is Phase.RUNNING else None
                return Course(self._promised(job, promise, ends), until=until)
        if job.spec.qos == "urgent":
            return Course((URGENT, 0, began))
        if promise.answer == "accepted" or self._aged_at(job, now) <= now:
            return Course((SAVED, 0, began))
        if promise.due > now:
            return Course((SAVED, 0, began), until=Instant(promise.due))
        return Course((RUNS, 0, began))

    def _waiting(self, job: JobView, now: Instant) -> Course:
        """Return the course of a job that wants GPUs, or is being stopped.

        It is behind all that run in its group: two jobs never take GPUs from one another in turns.
        """
        promise = promised(job)
        aged = self._aged_at(job, now)
        left = job.remaining(now)
        lasts = max(promise.lasts - job.ran(now), 0)
        least = lasts // 2 if left is None else left
        if promise.answer == "accepted":
            # Advice may be about other placements. What was promised knows more.
            least = min(least, lasts)
        lost = promise.due - least
        if promise.due and lost > now:
            begin = max(promise.due - lasts, 0)
            presses = begin - seconds(self.lead_s)
            if presses > now:
                urgent = job.spec.qos == "urgent"
                until = Instant(presses if aged <= now else min(presses, aged))
                if aged <= now:
                    return Course((SAVED, 2, aged), until=until)
                return Course((WAITS, FIRST if urgent else SOON, begin), until=until)
            return Course(self._presses(job, promise), until=Instant(lost))
        if aged <= now:
            return Course((SAVED, 2, aged))
        rank = LATE if promise.due else PLAIN
        return Course((WAITS, rank, _known(left)), until=aged)

    def _promised(self, job: JobView, promise: Promised, ends: Instant) -> Place:
        """Return the place of a promised job that runs, and ends then, nine times in ten."""
        if not (job.spec.willing.move and set(job.can) >= MOVES):
            return FIXED, 0, job.since
        if ends + seconds(2 * self.lead_s) < promise.due:
            return EARLY, 0, job.since
        return PRESSING, -job.gpus, promise.due

    def _presses(self, job: JobView, promise: Promised) -> Place:
        """Return the place of a job that waits and has to begin."""
        if promise.answer == "accepted":
            return PRESSING, -job.gpus, promise.due
        return URGENT if job.spec.qos == "urgent" else SAVED, 1, promise.due

    def _aged_at(self, job: JobView, now: Instant) -> Instant:
        """Return when a job has waited for long, if it waits from now on; it may be in the past."""
        return Instant(job.submitted_at + job.ran(now) + seconds(self.age_s))

    # --- sizes -------------------------------------------------------------------------------

    def _sized(self, view: VcView, made: Plan, grows: bool) -> Plan:
        """Return a plan in which elastic jobs have the workers with which they are on time.

        Args:
            view: The VC.
            made: The plan.
            grows: Whether those that run may have more.
        """
        jobs = {job.job: job for job in view.jobs if job.spec.elastic is not None}
        if not jobs:
            return made
        turns = tuple([_begin(turn, jobs.get(turn.job)) for turn in made.turns])
        resizes: list[Action] = []
        if grows and not made.turns:
            free = view.free_for()
            for job in view.jobs:
                workers = _needed(job, view.now) if job.job in jobs and changeable(job) else 0
                workers = max(workers, job.workers + gave_up(job))
                more = (workers - job.workers) * gpus_per_worker(job)
                if more > 0 and more <= free.get(job.pin, 0):
                    free[job.pin] -= more
                    resizes.append(Resize(job.job, Reason.BY_DEADLINE, workers))
        return msgspec.structs.replace(made, turns=turns, actions=(*made.actions, *resizes))


def promised(job: JobView) -> Promised:
    """Return what admission answered to the deadline of a job."""
    return job.spec.promise or NO_PROMISE


def _last_begin(view: VcView, made: Plan) -> Instant:
    """Return until when all jobs with turns can wait; the past where one has no promise."""
    begun = {turn.job for turn in made.turns}
    begins = [_begins(job, view.now) for job in view.jobs if job.job in begun]
    return min(begins, default=Instant(0))


def _begins(job: JobView, now: Instant) -> Instant:
    promise = promised(job)
    if promise.answer != "accepted":
        return Instant(0)
    return Instant(promise.due - max(promise.lasts - job.ran(now), 0))


def _known(left: int | None) -> int:
    return 2**62 if left is None else left


def _begin(turn: Turn, job: JobView | None) -> Turn:
    """Return the turn of an elastic job with the workers that were promised to suffice.

    One that does not offer this size begins with the next larger one that it offers, or else with
    that of its spec.
    """
    if job is None or job.phase is not Phase.WAITING or job.spec.elastic is None:
        return turn
    workers = promised(job).workers
    if not workers or workers == job.workers:
        return turn
    suffice = offered(job, workers, max(workers, job.spec.elastic.max))
    if not suffice or suffice[0] == job.workers:
        return turn
    return Turn(turn.job, turn.why, workers=suffice[0])


def _needed(job: JobView, now: Instant) -> int:
    """Return with how many workers a running job is on time, if not with those that it has.

    Returns:
        The fewest; 0: it is on time, has no deadline, or no number that is known suffices.
    """
    due, left, rates = promised(job).due, job.remaining(now), dict(job.rates)
    if not due or left is None or now + left <= due:
        return 0
    work = left * rates.get(job.workers, 0)
    able = [size for size, rate in job.rates if rate and now + work // rate <= due]
    return min((size for size in able if size > job.workers and offers(job, size)), default=0)
