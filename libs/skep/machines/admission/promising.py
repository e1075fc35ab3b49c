"""How admission answers to deadlines, and what it does about promises later.

    Submission --answer--> Answer: the spec as it runs, and what is told
    JobRan, JobRequeued, ... --heard--> facts: seen, moved, kept, broken
    timer --due--> facts: moved, broken, cancelled
    Outlook --measured--> facts: moved, broken, a few at a time

Nothing here changes state: `Pledges` does, as facts are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from skep.machines.admission.measuring import Measurements
from skep.policy.registry import POLICIES
from skep.promises.book import Book, kind_of
from skep.promises.judge import Ruling, judge
from skep.promises.length import FACTOR_MAX, Way, due, left, spread, ways
from skep.promises.pledges import DAY_HOURS, HOUR, Pledge, Pledges
from skep.units import NS_PER_SECOND, Duration, Instant
from skep.wire.changes import Goal, JobChanged, Result
from skep.wire.cluster import VirtualCluster
from skep.wire.facts import (
    CancelAsked,
    End,
    JobEnded,
    JobRan,
    JobRequeued,
    NodeBack,
    NodeDrained,
    NodeLost,
)
from skep.wire.promises import (
    Answer,
    JobSeen,
    Judged,
    Lasts,
    LengthSeen,
    NodeAway,
    Place,
    PromiseBroken,
    PromiseJudged,
    PromiseKept,
    PromiseMade,
    PromiseMoved,
)
from skep.wire.reasons import TEXT, Reason
from skep.wire.spec import JobSpec, Problem, Promised

BUDGETS = {"urgent": 50, "prior": 350}
"""Thousandths of a VC's GPU time of 24 hours that a class may use: beyond them jobs are normal, for
a tenant to which everything is urgent would come first always."""
DUE_MAX = 100
"""Promises that are judged again in one decision: each is a fact or two."""
MEASURED_MAX = 2
"""Promises that are judged again on measurement in one decision: behind 2,000 others each takes
6 ms, and a submission may be next."""
OTHER_DIVISOR, OTHER_LEAST = 10, 30 * NS_PER_SECOND
"""A job runs longer or shorter than was promised if what is left of it differs by more than this
part, and by more than so much."""
HEARD = (JobRan, JobChanged, JobRequeued, NodeLost, NodeBack, NodeDrained)
"""The allocator's facts that matter here, beside those that admission takes in any case."""
News = JobRan | JobChanged | JobRequeued | NodeLost | NodeBack | NodeDrained
UNMEASURED = (Reason.NOT_PROFILED, Reason.PROFILE_REFUSED)
TOO_LITTLE = (Reason.NOT_PROFILED, Reason.PROFILED_TOO_LITTLE, Reason.PROFILED_ON_ONE_NODE)
NOTHING = Promised(answer="none")
"""What is written into the spec of a job without a deadline, in a VC that keeps promises."""


class Answered(NamedTuple):
    """What is answered to a submission."""

    spec: JobSpec
    """As it is admitted."""
    judged: Judged | None = None
    problem: Problem | None = None
    """Why it is not admitted."""
    ruling: Ruling | None = None
    declared: tuple[int, ...] = ()


class Promising:
    """Answers and judges again, by what `pledges` say."""

    def __init__(self, pledges: Pledges) -> None:
        """Judge by these promises."""
        self.pledges = pledges
        self.measurements = Measurements(pledges)
        """What was heard of the speed of jobs; soft."""

    # --- submissions -------------------------------------------------------------------------

    def answer(
        self, spec: JobSpec, entry: VirtualCluster, submitted_at: Instant, now: Instant
    ) -> Answered:
        """Return the answer to a job that its cluster can run.

        Args:
            spec: The job, as its quota allows it.
            entry: Its VC.
            submitted_at: When it was submitted.
            now: The time.
        """
        kept = keeps(entry)
        if spec.finish_by is None and spec.qos is None:
            follows = kept and not spec.opportunistic
            return Answered(_with(spec, NOTHING) if follows else spec)
        found, why_none = self._ways(spec)
        spec, note = self._class(spec, found, now, keeps=kept)
        when = due(spec, found, submitted_at)
        if when is not None and when <= now:
            ruling = judge(Book({}), spec, (), why_none, when, now)
        elif when is None:
            ruling = judge(Book({}), spec, (), why_none, Instant(now + 1), now)
            ruling = Ruling(msgspec.structs.replace(ruling.judged, due=Instant(0)))
        elif spec.opportunistic or not kept:
            why = Reason.BORROWED_GPUS if spec.opportunistic else Reason.KEEPS_NO_PROMISES
            text = f"no promise: {TEXT[why]}"
            ruling = Ruling(Judged(answer=Answer.REFUSED, why=why, due=when, text=text))
        else:
            book = self.pledges.books.get(spec.vc) or Book({})
            ruling = judge(book, spec, found, why_none, when, now)
        if ruling.judged.why in UNMEASURED and self.measurements.is_new(now):
            note = note or "admission has just begun, and may not know yet what was measured"
        if note:
            ruling = ruling._replace(judged=msgspec.structs.replace(ruling.judged, note=note))
        passed = when is not None and when <= submitted_at
        return _as_asked(spec, ruling, found, passed=passed)

    def _ways(self, spec: JobSpec) -> tuple[list[Way], Reason]:
        book = self.pledges.books.get(spec.vc)
        parts = book.parts if book is not None else {}
        largest = {kind: sizes[0].size for kind, sizes in parts.items() if sizes}
        said = spread(self.pledges.seen.get(spec.vc, ()))
        return ways(spec, largest, largest, self.measurements.speeds, said)

    def _class(
        self, spec: JobSpec, found: list[Way], now: Instant, *, keeps: bool
    ) -> tuple[JobSpec, str]:
        """Return the spec, of the normal class if its budget is used up, and what is said then."""
        if spec.qos not in BUDGETS or not keeps or spec.opportunistic:
            return spec, ""
        share, whole = BUDGETS[spec.qos], self.pledges.owned(spec.vc) * DAY_HOURS * HOUR
        asks = min((way.cost for way in found if way.willing), default=0)
        uses = self.pledges.used_by(spec.vc, spec.qos, now) + asks
        if uses * 1000 <= share * whole:
            return spec, ""
        used = uses * 100 / max(whole, 1)
        note = (
            f"it counts as normal: with it `qos: {spec.qos}` would have {used:.1f} % of the GPU "
            f"time of `{spec.vc}` in 24 hours, and at most {share / 10:g} % may; use `qos: normal`"
        )
        return msgspec.structs.replace(spec, qos="normal"), note

    def made(self, job: str, answered: Answered, at: Instant) -> Iterator[Any]:
        """Yield the fact of an answer, after the job is admitted."""
        judged, ruling = answered.judged, answered.ruling
        if judged is None or ruling is None:
            return
        spec = answered.spec
        if ruling.place is None or ruling.way is None:
            yield PromiseJudged(job=job, vc=spec.vc, judged=judged, at=at)
            return
        declared = round(float(spec.size.run_time or 0) * NS_PER_SECOND)
        yield PromiseMade(
            job=job,
            vc=spec.vc,
            judged=judged,
            place=ruling.place,
            lasts=ruling.way.lasts,
            at=at,
            declared=Duration(declared if ruling.way.declared else 0),
            spread=spread(self.pledges.seen.get(spec.vc, ())) if ruling.way.declared else (),
        )

    # --- what happens to jobs ----------------------------------------------------------------

    def heard(
        self,
        fact: News,
        vcs: Mapping[str, VirtualCluster],
        now: Instant,
        record: Callable[[Any], None],
    ) -> None:
        """Take note of what the allocator did, and judge the promise again that it concerns.

        Args:
            fact: What it did.
            vcs: All VCs: where none keeps promises, nodes do not matter.
            now: The time.
            record: Records a fact.
        """
        pledges = self.pledges
        match fact:
            case NodeLost() | NodeBack() | NodeDrained():
                away = fact.drain if isinstance(fact, NodeDrained) else isinstance(fact, NodeLost)
                drained = isinstance(fact, NodeDrained) and (away or fact.node in pledges.drained)
                known = fact.node in (pledges.drained if drained else pledges.lost)
                if away is not known and (known or any(keeps(vc) for vc in vcs.values())):
                    record(NodeAway(node=fact.node, away=away, drained=drained))
                return
            case JobRan():
                self.measurements.runs(fact.job, fact.attempt)
                if fact.job in self.pledges.jobs:
                    record(JobSeen(job=fact.job, runs=True, at=fact.at))
            case JobRequeued():
                pledge = self.pledges.jobs.get(fact.job)
                if pledge is not None:
                    record(JobSeen(job=fact.job, runs=False, at=fact.at, lost=True, why=fact.why))
            case JobChanged():
                if not self._changed(fact, record):
                    return
        pledge = self.pledges.jobs.get(fact.job)
        if pledge is not None and pledge.promised:
            self._again(pledge, min(now, fact.at), record)

    def _changed(self, fact: JobChanged, record: Callable[[Any], None]) -> bool:
        """Note that a job is suspended or goes on; return whether it does."""
        pledge = self.pledges.jobs.get(fact.job)
        done = fact.result is Result.DONE and fact.goal in {Goal.SUSPEND, Goal.RESUME}
        if pledge is None or not done:
            return False
        runs = fact.goal is Goal.RESUME
        if runs is bool(pledge.since):
            return False
        record(JobSeen(job=fact.job, runs=runs, at=fact.at, why=None if runs else fact.why))
        return True

    def _again(self, pledge: Pledge, now: Instant, record: Callable[[Any], None]) -> None:
        """Find the place of a promise anew: from now on if it runs, else as late as may be."""
        place, book = pledge.place, self.pledges.books.get(pledge.spec.vc)
        assert place is not None, pledge
        if now >= pledge.due:
            self._break(pledge, now, record)
            return
        found: Place | None = None
        rest = pledge.left(now)
        if book is not None:
            lengths = (rest.p90,) if pledge.since else (rest.p90, rest.p50)
            for lasts in lengths:
                found = found or _anew(book, pledge, lasts, now)
        if found is not None:
            if found != place or not pledge.booked:
                why = Reason.IN_TIME if pledge.booked else Reason.CELLS_CHANGED
                record(PromiseMoved(job=pledge.job, place=found, why=why, at=now))
        elif pledge.booked and _began_late(pledge, now):
            # Whether it is on time shows. Its place goes on being what it was.
            if now >= place.end:
                why = Reason.STARTED_TOO_LATE
                record(PromiseMoved(job=pledge.job, place=place, why=why, at=now))
        elif not pledge.since or now >= place.end or not pledge.booked:
            self._break(pledge, now, record)

    def measured(self, now: Instant, record: Callable[[Any], None]) -> None:
        """Judge some of the promises again whose jobs are now expected to run longer or shorter.

        Args:
            now: The time.
            record: Records a fact.
        """
        pending = self.measurements.pending
        for job in list(islice(pending, MEASURED_MAX)):
            del pending[job]
            pledge = self.pledges.jobs.get(job)
            if pledge is None or not pledge.promised or not pledge.booked or now >= pledge.due:
                continue
            lasts = self.measurements.lasts(pledge, now)
            if lasts is not None:
                self._lasts(pledge, lasts, now, record)

    def _lasts(
        self, pledge: Pledge, lasts: Lasts, now: Instant, record: Callable[[Any], None]
    ) -> None:
        """Give a promise the place that its job needs by what was measured, or break it.

        It is broken when not one time in ten the job is on time. Where only its nine times in ten
        find no place beside other promises, it keeps the place that it has.
        """
        place, book = pledge.place, self.pledges.books.get(pledge.spec.vc)
        assert place is not None, pledge
        assert book is not None, pledge
        before, rest = pledge.left(now), left(lasts, pledge.served(now))
        if abs(rest.p90 - before.p90) <= max(before.p90 // OTHER_DIVISOR, OTHER_LEAST):
            return
        if now + rest.p10 > pledge.due:
            why, _ = cause(pledge, now, slow=True)
            detail = (
                f"as measured it runs {rest.p50 // NS_PER_SECOND} s more (P50); it has run "
                f"{pledge.served(now) // NS_PER_SECOND} s, and P90 was "
                f"{pledge.lasts.p90 // NS_PER_SECOND} s in all"
            )
            self._break(pledge, now, record, (why, detail))
            return
        most = pledge.due - now
        for each in (rest.p90, rest.p50):
            found = _anew(book, pledge, Duration(min(each, most)), now)
            if found is not None:
                why = Reason.AS_MEASURED
                moved = PromiseMoved(job=pledge.job, place=found, why=why, at=now, lasts=lasts)
                record(moved)
                return

    def _break(
        self,
        pledge: Pledge,
        now: Instant,
        record: Callable[[Any], None],
        why: tuple[Reason, str] | None = None,
    ) -> None:
        record(self._broken(pledge, now, why))
        if pledge.spec.late == "cancel" and not pledge.cancelled:
            record(CancelAsked(job=pledge.job))

    def ended(self, fact: JobEnded, record: Callable[[Any], None]) -> None:
        """Close the account of a job that is over: kept, broken, or neither.

        A job that failed or was cancelled before its deadline leaves no promise broken.
        """
        pledge = self.pledges.jobs.get(fact.job)
        self.measurements.forget(fact.job)
        if pledge is None:
            return
        at = fact.at
        if pledge.since:
            record(JobSeen(job=fact.job, runs=False, at=at, why=pledge.hurt))
        if pledge.promised:
            if at > pledge.due:
                record(self._broken(pledge, at))
            elif fact.end is End.SUCCEEDED:
                record(PromiseKept(job=fact.job, vc=pledge.spec.vc, due=pledge.due, at=at))
        said, ran = pledge.spec.size.run_time, pledge.ran
        if fact.end is End.SUCCEEDED and said and ran and not pledge.spec.elastic:
            milli = min(ran * 1000 / max(float(said) * NS_PER_SECOND, 1.0), FACTOR_MAX)
            record(LengthSeen(job=fact.job, vc=pledge.spec.vc, milli=round(milli)))

    def due(self, now: Instant, record: Callable[[Any], None]) -> bool:
        """Judge again what has come to its time; return whether something came of all of it.

        Args:
            now: The time.
            record: Records a fact.
        """
        pledges = self.pledges
        for _ in range(DUE_MAX):
            check = pledges.next_check()
            if check is None or check[0] > now:
                break
            job = check[1]
            pledge = pledges.jobs[job]
            if pledge.promised:
                self._again(pledge, now, record)
            else:
                record(CancelAsked(job=job))
            if pledges.next_check() == check:
                return False
        return True

    def _broken(
        self, pledge: Pledge, now: Instant, known: tuple[Reason, str] | None = None
    ) -> PromiseBroken:
        why, detail = known or cause(pledge, now)
        return PromiseBroken(
            job=pledge.job, vc=pledge.spec.vc, due=pledge.due, why=why, at=now, detail=detail
        )


def _began_late(pledge: Pledge, now: Instant) -> bool:
    """Return whether a job runs beyond its place for having begun late, not for being long."""
    late = bool(pledge.since) and not pledge.loose
    return late and pledge.served(now) < pledge.lasts.p90


def keeps(entry: VirtualCluster) -> bool:
    """Return whether the policy of a VC keeps promises."""
    policy = POLICIES.get(entry.policy)
    return policy is not None and policy.keeps_promises


def cause(pledge: Pledge, now: Instant, *, slow: bool = False) -> tuple[Reason, str]:
    """Return why a promise is broken, and in which figures.

    A job that ran longer than nine of ten times were to be is late by that: its owner's length was
    wrong, or the prediction. Else what took its GPUs is the cause, and without that it was not
    given them in time.
    """
    ran = pledge.served(now)
    ran_s, lasts_s = ran // NS_PER_SECOND, pledge.lasts.p90 // NS_PER_SECOND
    if slow or ran >= pledge.lasts.p90:
        why = Reason.OUTRAN_ITS_LENGTH if pledge.declared else Reason.SLOWER_THAN_PREDICTED
        said_s = pledge.declared // NS_PER_SECOND
        said = f", its spec says {said_s} s" if pledge.declared else ""
        return why, f"it has run {ran_s} s; P90 was {lasts_s} s{said}"
    if not pledge.booked:
        return Reason.CELLS_CHANGED, f"`{pledge.spec.vc}` has no cells for it any more"
    if pledge.hurt is not None:
        return pledge.hurt, TEXT[pledge.hurt]
    return Reason.STARTED_TOO_LATE, f"it has run {ran_s} s of {lasts_s} s (P90)"


def _anew(book: Book, pledge: Pledge, lasts: Duration, now: Instant) -> Place | None:
    """Return a place for a promise beside the others; the book is as before afterwards."""
    place = pledge.place
    assert place is not None, pledge
    booked = book.places.get(pledge.job)
    if booked is not None:
        book.take(pledge.job)
    try:
        pieces = place.gpus, sum(gpus for _, gpus in place.nodes) // place.gpus
        if not pledge.since:
            return book.find(kind_of(place), pieces, lasts, now, pledge.due)
        end = Instant(now + lasts)
        here = msgspec.structs.replace(place, begin=now, end=end)
        if book.fits(here):
            return here
        return book.find(kind_of(place), pieces, lasts, now, end)
    finally:
        if booked is not None:
            book.put(pledge.job, booked)


def _with(spec: JobSpec, promise: Promised) -> JobSpec:
    return msgspec.structs.replace(spec, promise=promise)


def _as_asked(spec: JobSpec, ruling: Ruling, found: list[Way], *, passed: bool) -> Answered:
    """Return what `late` makes of an answer.

    Args:
        spec: The job.
        ruling: The answer.
        found: The ways to run it.
        passed: Whether its deadline was over when it was submitted, and not only now.
    """
    judged = ruling.judged
    hopeless = judged.answer in {Answer.LATE, Answer.REFUSED}
    if passed or (hopeless and spec.late == "refuse"):
        problem = Problem(
            path="$.finish_by" if spec.finish_by is not None else "$.qos",
            reason=judged.why,
            text=judged.text,
            suggestion=_suggestion(judged),
        )
        return Answered(spec, judged, problem)
    opportunistic = hopeless and spec.late == "opportunistic" and not spec.resources.pinned
    if opportunistic:
        spec = msgspec.structs.replace(spec, service_class="opportunistic")
    place, way = ruling.place, ruling.way
    if place is not None and way is not None:
        promise = Promised(
            answer=judged.answer,
            due=judged.due,
            begin=place.begin,
            lasts=way.lasts.p90,
            workers=max(way.total // spec.resources.gpus, 1),
        )
        spec = _on_type(spec, way)
    else:
        allowed = [each for each in found if each.willing]
        lasts = min((each.lasts.p90 for each in allowed), default=0)
        begin = max(judged.due - lasts, 0)
        promise = Promised(answer=judged.answer, due=judged.due, begin=begin, lasts=lasts)
        if judged.why in TOO_LITTLE:
            spec = _to_be_measured(spec)
    return Answered(_with(spec, promise), judged, None, ruling)


def _to_be_measured(spec: JobSpec) -> JobSpec:
    """Return a spec by which a job may have idle GPUs while it waits, if it allows short runs.

    It is measured there, for the next jobs of its model. Others that need the GPUs take them back.
    """
    asks = spec.over_quota == "auto" and not (spec.opportunistic or spec.resources.pinned)
    if not asks or spec.willing.profile != "allowed":
        return spec
    return msgspec.structs.replace(spec, over_quota="opportunistic")


def _on_type(spec: JobSpec, way: Way) -> JobSpec:
    """Return a spec that asks for the type of GPUs on which it was promised to be in time."""
    asked = spec.resources.gpu_type
    if not spec.willing.types and (way.declared or asked == way.kind.gpu_type):
        return spec
    resources = msgspec.structs.replace(spec.resources, gpu_type=way.kind.gpu_type)
    return msgspec.structs.replace(spec, resources=resources)


def _suggestion(judged: Judged) -> str:
    if judged.why is Reason.DEADLINE_PASSED:
        return "say a later time, or a length from now such as `8h`"
    return f"use `{judged.helps[0].key}: {judged.helps[0].value}`" if judged.helps else ""
