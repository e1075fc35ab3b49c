"""What is answered to a deadline: a promise with its place in the book, or why there is none.

*Accepted* needs a place for the P90 of the length, all of it before the deadline. Promises keep
their places: none is moved for a newer one. A new promise gets the last place before its deadline,
so that earlier deadlines still find theirs; jobs begin as soon as there is room in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skep.perf.model.predict import POINTS_PROMISED
from skep.promises.book import FOREVER, Book
from skep.promises.length import Way
from skep.units import NS_PER_SECOND, Duration, Instant
from skep.wire.deadline import told
from skep.wire.promises import NAMED_MAX, Answer, Help, Judged, Place
from skep.wire.reasons import TEXT, Reason
from skep.wire.spec import JobSpec

MINUTE = 60 * NS_PER_SECOND


class Ruling(NamedTuple):
    """An answer, and if it is a promise, its place and the way to run the job."""

    judged: Judged
    place: Place | None = None
    way: Way | None = None


def judge(
    book: Book, spec: JobSpec, found: Sequence[Way], why_none: Reason, due: Instant, now: Instant
) -> Ruling:
    """Return the answer to a deadline. The book stays as it is.

    Args:
        book: The promises of its VC.
        spec: The job.
        found: The ways to run it, and some that its owner does not allow, to be offered.
        why_none: Why there are no ways, if there are none.
        due: When it is to have ended.
        now: The time.
    """
    if due <= now:
        text = f"the deadline, {told(due)}, has passed: it is {told(now)}"
        return _refused(Reason.DEADLINE_PASSED, due, text)
    allowed = [way for way in found if way.willing]
    if not allowed:
        return _refused(why_none, due, _missing(spec, why_none))
    fitting = [way for way in allowed if book.holds(way.kind, way.gpus, way.workers)]
    if not fitting:
        text = f"no cells of `{spec.vc}` hold {_sizes(allowed)}"
        return _refused(Reason.CELLS_TOO_SMALL, due, text, _offers(book, spec, found, due, now))
    for way in fitting:
        place = book.find(way.kind, (way.gpus, way.workers), way.lasts.p90, now, due)
        if place is not None:
            return _accepted(way, place, due)
    return _without(book, spec, found, fitting, due, now)


def _accepted(way: Way, place: Place, due: Instant) -> Ruling:
    text = (
        f"accepted: by {told(due)}, nine times in ten, on {_gpus(way.total, way.kind.gpu_type)}; "
        f"it runs {_spoken(way.lasts.p50)} (P50), {_spoken(way.lasts.p90)} (P90)"
    )
    end50 = Instant(place.begin + way.lasts.p50)
    judged = Judged(
        answer=Answer.ACCEPTED,
        why=Reason.IN_TIME,
        due=due,
        text=text,
        p50=end50,
        p90=place.end,
        alone=way.lasts.p50,
    )
    return Ruling(judged, place, way)


def _without(
    book: Book,
    spec: JobSpec,
    found: Sequence[Way],
    fitting: Sequence[Way],
    due: Instant,
    now: Instant,
) -> Ruling:
    """Return why a job has no promise that some cells of its VC could hold."""
    ends90 = min(_ends(book, way, way.lasts.p90, now) for way in fitting)
    ends50 = min(_ends(book, way, way.lasts.p50, now) for way in fitting)
    best = min(fitting, key=lambda way: way.lasts.p50)
    answer = Answer.AT_RISK if ends50 <= due else Answer.LATE
    behind: tuple[str, ...] = ()
    if now + min(way.lasts.p90 for way in fitting) > due:
        why = Reason.TOO_LITTLE_EVEN_ALONE
        because = f"even alone it runs {_spoken(best.lasts.p50)} at its best placement"
    else:
        why = Reason.BEHIND_PROMISES
        names = book.between(now, due, dict.fromkeys(way.kind for way in fitting))
        behind = tuple(job for _, job in names[:NAMED_MAX])
        because = f"its cells are promised to {', '.join(behind) or 'others'}"
    helps = _offers(book, spec, found, due, now, ends90)
    text = (
        f"{answer.value.replace('-', ' ')}: {because}; it ends by {told(ends50)} five and by "
        f"{told(ends90)} nine times in ten{_advice(helps)}"
    )
    return Ruling(
        Judged(
            answer=answer,
            why=why,
            due=due,
            text=text,
            p50=ends50,
            p90=ends90,
            alone=best.lasts.p50,
            behind=behind,
            helps=helps,
        )
    )


def _ends(book: Book, way: Way, lasts: Duration, now: Instant) -> Instant:
    """Return when a job that some cells hold ends at the earliest; FOREVER: after all deadlines."""
    pieces = (way.gpus, way.workers)
    place = book.find(way.kind, pieces, lasts, now, Instant(FOREVER), late=False)
    return Instant(FOREVER if place is None else place.end)


def _offers(
    book: Book,
    spec: JobSpec,
    found: Sequence[Way],
    due: Instant,
    now: Instant,
    ends90: Instant | None = None,
) -> tuple[Help, ...]:
    """Return changes with which there would be a promise, the cheapest first.

    More GPUs of a type that it may have come first, then another type, then a later time, and then
    to go without a promise on what is idle.
    """
    more: list[tuple[int, Way]] = []
    kinds = {way.kind for way in found if way.willing}
    for way in found:
        if not way.willing and book.holds(way.kind, way.gpus, way.workers):
            place = book.find(way.kind, (way.gpus, way.workers), way.lasts.p90, now, due)
            if place is not None:
                more.append((way.cost, way))
    more.sort(key=lambda each: (each[1].kind not in kinds, *each))
    helps = [_help(spec, way, other=way.kind not in kinds) for _, way in more[:1]]
    if ends90 is not None:
        later = Instant((ends90 // MINUTE + 1) * MINUTE)
        helps.append(Help(why=Reason.AT_A_LATER_TIME, key="finish_by", value=told(later)))
    helps.append(Help(why=Reason.AS_OPPORTUNISTIC, key="late", value="opportunistic"))
    return tuple(helps[:NAMED_MAX])


def _help(spec: JobSpec, way: Way, *, other: bool) -> Help:
    """Return the key with which a job would be run that way."""
    if other:
        return Help(why=Reason.WITH_ANOTHER_TYPE, key="willing.types", value=way.kind.gpu_type)
    workers, elastic = way.total // spec.resources.gpus, spec.elastic
    if elastic is None:
        key, value = "resources.workers", str(workers)
    elif workers > elastic.max:
        key, value = "elastic.max", str(workers)
    else:
        key, value = "willing.gpus", f"{elastic.min * spec.resources.gpus}..{way.total}"
    return Help(why=Reason.WITH_MORE_GPUS, key=key, value=value)


def _advice(helps: Sequence[Help]) -> str:
    if not helps:
        return ""
    return f"; `{helps[0].key}: {helps[0].value}` would do"


def _refused(why: Reason, due: Instant, text: str, helps: tuple[Help, ...] = ()) -> Ruling:
    text = f"no promise: {text}{_advice(helps)}"
    return Ruling(Judged(answer=Answer.REFUSED, why=why, due=due, text=text, helps=helps))


def _missing(spec: JobSpec, why: Reason) -> str:
    if why is Reason.LENGTH_UNKNOWN:
        return (
            "it is not known how long the job is: say `size.run_time`, or `size.mini_batches` and "
            "`size.family`"
        )
    family = spec.size.family or "this job"
    if why is Reason.PROFILE_REFUSED:
        return (
            f"the speed of {family} is not known, and `willing.profile` is `refused`: say "
            "`size.run_time`, or allow short runs by `willing: {profile: allowed}`"
        )
    if why is Reason.PROFILED_ON_ONE_NODE:
        return (
            f"the speed of {family} was measured on one node only, and it needs several here: run "
            "one on two nodes first, or say `size.run_time`"
        )
    if why is Reason.PROFILED_TOO_LITTLE:
        return (
            f"the speed of {family} was measured at fewer than {POINTS_PROMISED} placements: run "
            "it with other numbers of GPUs first, or say `size.run_time`"
        )
    if why is Reason.NOT_PROFILED:
        return (
            f"the speed of {family} is not known yet: it is measured first; or say `size.run_time`"
        )
    return TEXT[why]


def _sizes(found: Sequence[Way]) -> str:
    sizes = sorted({(way.total, way.kind.gpu_type) for way in found})
    return " or ".join(_gpus(total, kind) for total, kind in sizes[:NAMED_MAX])


def _gpus(count: int, kind: str) -> str:
    return f"{count} {'GPU' if count == 1 else 'GPUs'} of type {kind}"


def _spoken(length: int) -> str:
    """Return a length of time in words: `2 h 05 min`."""
    minutes, rest = divmod(length // NS_PER_SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
