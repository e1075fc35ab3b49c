"""What facts of admission and the allocator mean for trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from skep.machines.searches.requests import PASSING, by_key, whole_number
from skep.machines.searches.state import Search, Trial
from skep.units import Instant
from skep.wire.changes import (
    Ask,
    AskOver,
    AskResume,
    AskSuspend,
    ChangeAsked,
    Goal,
    JobChanged,
    Result,
)
from skep.wire.codec import ServiceFact
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    End,
    JobEnded,
    JobQueued,
    JobRan,
    JobRequeued,
    Refused,
)
from skep.wire.reasons import Reason
from skep.wire.search_facts import (
    SearchFact,
    SearchTrialAdmitted,
    SearchTrialAnswered,
    SearchTrialHeard,
    SearchTrialMeasured,
    SearchTrialOver,
    SearchTrialPutOff,
    SearchTrialStood,
    Stand,
    TrialEnd,
)
from skep.wire.spec import SEARCH_KEYS


def trial_of(
    searches: Mapping[str, Search], jobs: Mapping[str, tuple[str, int]], fact: ServiceFact
) -> tuple[Search, Trial] | None:
    """Return the trial that a fact is about, or None.

    A job that no trial has yet says itself whose it is: by the key it was submitted with, or in
    the allocator's words by its spec, which admission holds against the key. It is none of a search
    of which it has another owner.

    Args:
        searches: The searches that are not over, by name.
        jobs: By unfinished job: its search, and the number of its trial.
        fact: A fact of admission or of the allocator.
    """
    match fact:
        case Admitted() | Refused():
            vc = fact.spec.vc if isinstance(fact, Admitted) else fact.vc
            return _new(searches, *by_key(fact.key, SEARCH_KEYS), (vc, fact.owner))
        case JobQueued():
            trial = whole_number(fact.spec.labels.get("trial", ""))
            return _new(searches, fact.spec.search, trial, 0, (fact.spec.vc, fact.owner))
        case ChangeAsked() | AskOver():
            job = fact.ask.job
        case JobRan() | JobChanged() | JobRequeued() | JobEnded() | CancelAsked():
            job = fact.job
        case _:
            return None
    place = jobs.get(job)
    if place is None:
        return None
    search = searches[place[0]]
    return search, search.trials[place[1]]


def _new(
    searches: Mapping[str, Search], name: str, number: int, tried: int, whose: tuple[str, str]
) -> tuple[Search, Trial] | None:
    search = searches.get(name)
    trial = search.trials.get(number) if search is not None else None
    if search is None or trial is None or trial.stand is not Stand.NEW:
        return None
    if (search.spec.vc, search.owner) != whose:
        return None
    return (search, trial) if tried in (0, trial.tries) else None


def follows(search: Search, trial: Trial, fact: ServiceFact, now: Instant) -> Iterator[SearchFact]:
    """Yield the facts that follow from another service's fact for the trial that it is about.

    Args:
        search: Only looked at.
        trial: A trial of it; only looked at.
        fact: What `trial_of` found to be about it.
        now: The time of the decision.

    Yields:
        Facts to be recorded, in this order.
    """
    name, number = search.search, trial.number
    match fact:
        case Admitted() | JobQueued():
            yield SearchTrialAdmitted(search=name, trial=number, job=fact.job, at=now)
        case Refused():
            yield from _refused(search, trial, fact, now)
        case ChangeAsked(ask=ask):
            what = _what(ask)
            if what and fact.number > max(trial.answered, trial.heard_number):
                yield SearchTrialHeard(search=name, trial=number, what=what, number=fact.number)
        case CancelAsked():
            if trial.heard != "cancel":
                yield SearchTrialHeard(search=name, trial=number, what="cancel")
        case AskOver():
            yield from _ask_over(search, trial, fact, now)
        case JobRan() | JobRequeued() | JobChanged():
            stand = _stand_after(fact)
            if stand is not None and stand is not trial.stand:
                yield SearchTrialStood(search=name, trial=number, stand=stand, at=fact.at)
        case JobEnded():
            value = fact.values.get(search.spec.metric)
            if value is not None and search.told(trial, fact.values_step, value):
                yield SearchTrialMeasured(
                    search=name, trial=number, step=fact.values_step, value=value, at=fact.at
                )
            end, why = _end(search, trial, fact)
            yield SearchTrialOver(
                search=name, trial=number, end=end, why=why, at=fact.at, detail=fact.detail
            )
        case _:
            pass  # Nothing that a search has to know.


def _stand_after(fact: JobRan | JobRequeued | JobChanged) -> Stand | None:
    """Return the stand of a trial after a fact about its job, or None if it stays as it is."""
    match fact:
        case JobRan() | JobChanged(result=Result.DONE, goal=Goal.RESUME):
            return Stand.RUNNING
        case JobChanged(result=Result.DONE, goal=Goal.MIGRATE, released=False):
            return Stand.RUNNING  # A suspended job that moves goes on there.
        case JobRequeued():
            return Stand.WAITING
        case JobChanged(result=Result.DONE, goal=Goal.SUSPEND):
            # A job that only made room resumes without a request.
            return Stand.SUSPENDED if fact.why is Reason.REQUESTED else Stand.WAITING
        case _:
            return None


def _refused(search: Search, trial: Trial, fact: Refused, now: Instant) -> Iterator[SearchFact]:
    name, number = search.search, trial.number
    problem = fact.problems[0] if fact.problems else None
    why = problem.reason if problem is not None else Reason.BAD_VALUE
    if search.ending is not None:
        yield SearchTrialOver(
            search=name, trial=number, end=TrialEnd.CANCELLED, at=now, why=search.ending
        )
    elif all(each.reason in PASSING for each in fact.problems):
        yield SearchTrialPutOff(search=name, trial=number, why=why, at=now)
    else:
        text = problem.text if problem is not None else ""
        yield SearchTrialOver(
            search=name, trial=number, end=TrialEnd.FAILED, why=why, at=now, detail=text
        )


def _ask_over(search: Search, trial: Trial, fact: AskOver, now: Instant) -> Iterator[SearchFact]:
    what = _what(fact.ask)
    name, number = search.search, trial.number
    if what and fact.number > trial.answered:
        yield SearchTrialAnswered(
            search=name,
            trial=number,
            what=what,
            number=fact.number,
            result=fact.result,
            why=fact.why,
            at=now,
        )
    if fact.result is not Result.DONE:
        return
    if what == "suspend" and trial.stand is Stand.WAITING:
        # It had made room and stood already: from here on it stands because its tenant wants it to.
        yield SearchTrialStood(search=name, trial=number, stand=Stand.SUSPENDED, at=now)
    elif what == "resume" and trial.stand is Stand.SUSPENDED:
        yield SearchTrialStood(search=name, trial=number, stand=Stand.RUNNING, at=now)


def _what(ask: Ask) -> str:
    if isinstance(ask, AskSuspend):
        return "suspend"
    return "resume" if isinstance(ask, AskResume) else ""


def _end(search: Search, trial: Trial, fact: JobEnded) -> tuple[TrialEnd, Reason]:
    match fact.end:
        case End.SUCCEEDED:
            return TrialEnd.DONE, fact.why
        case End.FAILED:
            return TrialEnd.FAILED, fact.why
        case End.CANCELLED if trial.given_up:
            return TrialEnd.GIVEN_UP, Reason.NO_PROMISE
        case End.CANCELLED:
            return TrialEnd.CANCELLED, search.ending or fact.why
