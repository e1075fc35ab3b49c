"""Searches: begins, ranks, suspends and resumes the trials of searches, and ends them all at once.

    request --SearchBegan--> search --SearchEnding--> ending --SearchOver--> forgotten
    trial:  new --SearchTrialAdmitted--> waiting <--SearchTrialStood--> running, suspended
            any --SearchTrialOver--> over

Trials are ordinary jobs, submitted through SUBMIT with a key of their own each, so that a
submission that is repeated makes one job. What becomes of them is read from ADMISSION and ALLOC;
either may be ahead of the other, so a trial learns its job from whichever names it first. What is
asked for a job follows from how its trial stands and how it is to stand, and is repeated until
admission has passed it on: a message that is lost, late or said twice leads to the same end.
Metrics are core messages. A search decides over its trials: one that a tenant suspends by hand is
resumed when its turn comes. Services and their replicas are kept beside searches (`serving`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from skep.access.rights import Action, Ruling, may
from skep.access.roles import Roles
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.machines.searches import hearing, plan
from skep.machines.searches.requests import KEY_CHARACTERS_MAX, begin_problem, ruled_out
from skep.machines.searches.serving.part import ServiceKept, ServicesKept, Serving
from skep.machines.searches.state import Search, Trial, drawn, job_of, key_of
from skep.units import Duration, Instant, after, seconds
from skep.wire import subjects
from skep.wire.changes import AskResume, AskSuspend, Result
from skep.wire.codec import Facts, ServiceFact, Unreadable
from skep.wire.facts import EpochBegan, RolesSeen
from skep.wire.findings import Measured
from skep.wire.reasons import Reason
from skep.wire.search import SearchSpec, param_problems, search_id
from skep.wire.search_facts import (
    AskTrial,
    BeginSearch,
    CancelSearch,
    DemoteTrial,
    PromoteTrial,
    SearchBegan,
    SearchEnding,
    SearchFact,
    SearchMessage,
    SearchOver,
    SearchRefused,
    SearchRequest,
    SearchTrialAdded,
    SearchTrialAdmitted,
    SearchTrialAnswered,
    SearchTrialDemoted,
    SearchTrialFact,
    SearchTrialGivenUp,
    SearchTrialHeard,
    SearchTrialMeasured,
    SearchTrialOver,
    SearchTrialPutOff,
    SearchTrialStood,
    SearchTrialTurned,
    SearchVerdict,
    Stand,
    TellTrial,
    TrialEnd,
    parse_request,
)
from skep.wire.served import Served
from skep.wire.service_facts import ServiceMessage, ServiceWish
from skep.wire.spec import Problem

SearchesEvent = SearchRequest | Facts | Measured | Served | Unreadable
"""What the service takes from outside."""

OfSearch = CancelSearch | AskTrial | TellTrial | DemoteTrial | PromoteTrial

RESEND = seconds(5.0)
"""Until a request is repeated that admission has not passed on: it answers in milliseconds."""
RETRY = seconds(30.0)
"""Until what was refused or undone is asked for again."""
SILENT = seconds(24 * 3600.0)
"""Silence after which a trial that runs outside has failed: a search must come to its end."""
SEARCHES_MAX = 32
"""Searches of one VC that are not over."""
KEYS_MAX = 10_000
"""Keys of requests that are remembered, the latest: a client repeats for minutes, not months."""
LOOK = seconds(1.0)
"""Until a further point of a curve is looked at together with others: as often as jobs tell."""
PIECE = 500
TRIALS_PIECE = 16
"""Trials in one piece of a snapshot: with 64 long parameters 24 KB each, within a record."""


class SearchesKept(msgspec.Struct, frozen=True, kw_only=True, tag="searches-kept"):
    """What is kept of searches beside their history, in pieces: see `SearchesMachine.snapshot`."""

    epoch: int
    last_begun: int


class SearchKept(msgspec.Struct, frozen=True, tag="search-kept"):
    """A search; its trials follow."""

    search: Search


class TrialsKept(msgspec.Struct, frozen=True, tag="search-trials-kept"):
    """Trials of the search kept before."""

    search: str
    trials: tuple[Trial, ...]


class JobsKept(msgspec.Struct, frozen=True, tag="search-jobs-kept"):
    """Jobs and the trials that they are."""

    jobs: tuple[tuple[str, str, int], ...]


class SearchKeysKept(msgspec.Struct, frozen=True, tag="search-keys-kept"):
    """Keys of requests: VC, key, and the search that began by it."""

    keys: tuple[tuple[str, str, str], ...]


Kept = (
    SearchesKept
    | SearchKept
    | TrialsKept
    | JobsKept
    | SearchKeysKept
    | RolesSeen
    | ServicesKept
    | ServiceKept
)


class Soft:
    """What a crash may forget: when what was asked is repeated, and when to look again."""

    def __init__(self) -> None:
        """Start with everything to be asked at once."""
        self.asked: dict[str, dict[int, tuple[int, str, Instant]]] = {}
        """By search and trial: the order and the wish that was sent, and when it is sent again."""
        self.due: dict[str, Instant | None] = {}


class SearchesMachine:
    """The behaviour of the service `searches`."""

    def __init__(self) -> None:
        """Start without searches."""
        self.epoch = 0
        self.last_begun = 0
        self.searches: dict[str, Search] = {}
        self.jobs: dict[str, tuple[str, int]] = {}
        """Unfinished jobs that are trials."""
        self.keys: dict[tuple[str, str], str] = {}
        """Keys of requests: whose they are (see `_scope`), key, and the search that began by it."""
        self.roles = Roles()
        """Of people, as admission has heard them: both decide by the same."""
        self.serving = Serving(self.roles)
        self._soft = Soft()
        self._effects: list[Effect] = []

    def decide(self, event: SearchesEvent | Restarted | Tick, now: Instant) -> list[Effect]:
        """Return the answer to a request, or what follows from others' facts, metrics or time.

        Args:
            event: What came. What is known already changes nothing.
            now: The time of this service's clock.
        """
        self._effects = self.serving.effects = []
        touched: dict[str, None] = {}
        match event:
            case SearchRequest():
                touched = self._request(event, now)
            case Facts():
                for fact in event.facts:
                    if isinstance(fact, RolesSeen):
                        if self.roles.standing(fact.person) != fact.standing:
                            self._record(fact)
                        continue
                    if not self.serving.heard(fact, now):
                        touched.update(self._heard(fact, now))
            case Measured():
                touched = self._measured(event, now)
            case Served():
                self.serving.served(event, now)
            case Tick():
                self.serving.tick(now)
                touched = {
                    search: None
                    for search, due in self._soft.due.items()
                    if due is not None and due <= now
                }
            case Restarted():
                self._soft = Soft()
                touched = dict.fromkeys(self.searches)
                self.serving.restarted(now)
            case Unreadable():
                pass
        for name in touched:
            self._follow(name, now)
        return self._effects

    def wake_at(self) -> Instant | None:
        """Return when something is to be repeated, a turn is over or a budget used up, or None."""
        dues = (*self._soft.due.values(), self.serving.wake_at())
        return min((due for due in dues if due is not None), default=None)

    # --- what others say ---------------------------------------------------------------------

    def _heard(self, fact: ServiceFact, now: Instant) -> dict[str, None]:
        """Record what a fact of admission or the allocator means for a trial."""
        found = hearing.trial_of(self.searches, self.jobs, fact)
        if found is None:
            return {}
        search, trial = found
        for own in hearing.follows(search, trial, fact, now):
            self._record(own)
        return {search.search: None}

    def _measured(self, told: Measured, now: Instant) -> dict[str, None]:
        name, number = self.jobs.get(told.job, ("", 0))
        search = self.searches.get(name)
        if search is None:
            return {}
        value = told.values.get(search.spec.metric)
        if value is None or not search.counts(search.trials[number], told.step, value):
            return {}
        trial = search.trials[number]
        first, reached = trial.best is None, len(trial.reached)
        self._record(
            SearchTrialMeasured(search=name, trial=number, step=told.step, value=value, at=now)
        )
        if first or len(trial.reached) > reached or search.qualifies(value):
            return {name: None}
        # What another point changes of the ranks can wait, and be seen with those of all trials.
        due = self._soft.due.get(name)
        soon = after(now, LOOK)
        self._soft.due[name] = soon if due is None else min(due, soon)
        return {}

    # --- requests ----------------------------------------------------------------------------

    def _request(self, event: SearchRequest, now: Instant) -> dict[str, None]:
        parsed = parse_request(event.raw)
        verdict: SearchVerdict | None
        if isinstance(parsed, list):
            verdict = _refusal("", parsed)
        elif isinstance(parsed, BeginSearch):
            verdict = self._begin(event, parsed, now)
        elif isinstance(parsed, ServiceWish):
            verdict = self.serving.request(event, parsed, now)
        else:
            verdict = self._of_search(event, parsed, now)
        if verdict is None:
            return {}
        if event.reply and subjects.reply_allowed(event.reply, event.vc, event.person):
            self._effects.append(Send(event.reply, verdict))
        self.serving.follow(verdict.search, now)
        return {verdict.search: None} if verdict.search in self.searches else {}

    def _of_search(self, event: SearchRequest, asked: OfSearch, now: Instant) -> SearchVerdict:
        role, search = self.roles.role(event.person, event.vc), self.searches.get(asked.search)
        if role is None:  # It learns nothing of what there is.
            return _forbidden(asked.search, may(Action.STEER_SEARCH, role, own=True, vc=event.vc))
        if search is None or search.spec.vc != event.vc:
            text = f"`{event.vc}` has no search {asked.search}, or it is over"
            return _refused(asked.search, "$.search", Reason.UNKNOWN_SEARCH, text)
        own = event.person != "" and event.person == search.owner
        ruling = may(Action.STEER_SEARCH, role, own=own, vc=event.vc)
        if not ruling:
            return _forbidden(search.search, ruling)
        match asked:
            case CancelSearch():
                return self._cancel(search, now)
            case AskTrial():
                return self._ask(search, asked, event, now)
            case TellTrial():
                return self._tell(search, asked, now)
            case DemoteTrial() | PromoteTrial():
                return self._demote(search, asked, event.number, now)

    def _begin(
        self, event: SearchRequest, asked: BeginSearch, now: Instant
    ) -> SearchVerdict | None:
        name, spec, key = search_id(event.number), asked.spec, event.key
        earlier = self.keys.get((_scope(event.vc, event.person), key)) if key else None
        if earlier is not None:
            return SearchVerdict(search=earlier, accepted=True, reason=Reason.REPEATED)
        if event.number <= self.last_begun:  # Read again after a restart: it is answered.
            # One that was refused, or is over, is told by the facts alone.
            if name not in self.searches:
                return None
            return SearchVerdict(search=name, accepted=True, reason=Reason.REPEATED)
        problem = self._begin_problem(event, spec)
        if problem is not None:
            self._record(SearchRefused(search=name, vc=event.vc, problems=(problem,), at=now))
            return _refusal("", [problem])
        self._record(SearchBegan(search=name, spec=spec, at=now, key=key, owner=event.person))
        return SearchVerdict(search=name, accepted=True)

    def _begin_problem(self, event: SearchRequest, spec: SearchSpec) -> Problem | None:
        """Return why a search may not begin, or None."""
        role = self.roles.role(event.person, event.vc)
        ruling = may(Action.SEARCH, role, own=True, vc=event.vc)
        problem = begin_problem(event, ruling, spec.vc)
        if problem is not None:
            return problem
        if sum(each.spec.vc == event.vc for each in self.searches.values()) >= SEARCHES_MAX:
            return Problem(
                path="$",
                reason=Reason.TOO_MANY_SEARCHES,
                text=f"`{event.vc}` has {SEARCHES_MAX} searches, the most it may",
                suggestion="cancel one, or wait for its end",
            )
        return None

    def _cancel(self, search: Search, now: Instant) -> SearchVerdict:
        if search.ending is None or search.spared:
            self._record(SearchEnding(search=search.search, why=Reason.CANCELLED, at=now))
        return SearchVerdict(search=search.search, accepted=True)

    def _ask(
        self, search: Search, asked: AskTrial, event: SearchRequest, now: Instant
    ) -> SearchVerdict:
        key = event.key or f"#{event.number}"
        for trial in search.trials.values():
            if trial.key == key:
                return SearchVerdict(
                    search=search.search,
                    accepted=True,
                    reason=Reason.REPEATED,
                    trial=trial.number,
                    params=trial.params,
                )
        if len(key) > KEY_CHARACTERS_MAX:
            return _refused(
                search.search,
                f"header {subjects.KEY_HEADER}",
                Reason.BAD_VALUE,
                f"a key has at most {KEY_CHARACTERS_MAX} characters",
            )
        if not plan.may_add(search):
            most, live = search.spec.budget.trials, len(search.live)
            text = f"{search.search} has {len(search.trials)} trials of {most}, {live} unfinished"
            return _refused(search.search, "$.search", Reason.SEARCH_ENDS, text)
        problems = list(param_problems(search.spec, asked.params))
        if problems:
            return _refusal(search.search, problems)
        number = len(search.trials) + 1
        params = drawn(search.spec, number) if asked.params is None else asked.params
        self._record(
            SearchTrialAdded(
                search=search.search,
                trial=number,
                params=params,
                at=now,
                outside=asked.outside,
                bracket=plan.bracket(search),
                key=key,
                run=not asked.outside and plan.has_place(search),
            )
        )
        return SearchVerdict(search=search.search, accepted=True, trial=number, params=params)

    def _tell(self, search: Search, told: TellTrial, now: Instant) -> SearchVerdict:
        trial = search.trials.get(told.trial)
        if trial is None or (trial.job or trial.stand not in (Stand.OUTSIDE, Stand.OVER)):
            text = f"{search.search} has no trial {told.trial} that runs outside"
            return _refused(search.search, "$.trial", Reason.UNKNOWN_TRIAL, text)
        if told.value is not None and search.counts(trial, told.step, told.value):
            self._record(
                SearchTrialMeasured(
                    search=search.search,
                    trial=trial.number,
                    step=told.step,
                    value=told.value,
                    at=now,
                )
            )
        if told.over and not trial.over:
            done = told.over == "done"
            self._record(
                SearchTrialOver(
                    search=search.search,
                    trial=trial.number,
                    at=now,
                    end=TrialEnd.DONE if done else TrialEnd.FAILED,
                    why=Reason.SUCCEEDED if done else Reason.EXITED_NONZERO,
                )
            )
        return SearchVerdict(search=search.search, accepted=True, trial=trial.number)

    def _demote(
        self, search: Search, asked: DemoteTrial | PromoteTrial, number: int, now: Instant
    ) -> SearchVerdict:
        trial = search.trials.get(asked.trial)
        if trial is None or trial.stand is Stand.OUTSIDE:
            text = f"{search.search} has no trial {asked.trial} that Skep runs"
            return _refused(search.search, "$.trial", Reason.UNKNOWN_TRIAL, text)
        demoted = isinstance(asked, DemoteTrial)
        # One that is read again after a restart is answered; what came after it stands.
        if trial.demoted != demoted and not trial.over and number > trial.demoted_number:
            self._record(
                SearchTrialDemoted(
                    search=search.search, trial=trial.number, number=number, demoted=demoted, at=now
                )
            )
        return SearchVerdict(search=search.search, accepted=True, trial=trial.number)

    # --- what follows ------------------------------------------------------------------------

    def _follow(self, name: str, now: Instant) -> None:
        """Do all there is to do for a search, and say when to look again."""
        search = self.searches.get(name)
        if search is None:
            self._soft.due.pop(name, None)
            self._soft.asked.pop(name, None)
            return
        for trial in search.live:
            silent = trial.stand is Stand.OUTSIDE and now >= after(trial.since, SILENT)
            if silent:
                self._record(
                    SearchTrialOver(
                        search=name,
                        trial=trial.number,
                        end=TrialEnd.FAILED,
                        why=Reason.NOT_HEARD,
                        at=now,
                    )
                )
        while (ending := plan.ends(search, now)) is not None:
            self._record(ending)
        while (step := plan.step(search, now)) is not None:
            self._record(step)
        if search.ending is not None:
            self._wind_up(search, now)
        if name in self.searches:
            self._tell_jobs(search, now)
        else:
            self._follow(name, now)

    def _wind_up(self, search: Search, now: Instant) -> None:
        """End trials that run outside or were never submitted, and the search once all are over."""
        assert search.ending is not None
        for trial in search.live:
            outside = trial.stand is Stand.OUTSIDE and trial.number != search.spared
            if outside or (trial.stand is Stand.NEW and not trial.run):
                self._record(
                    SearchTrialOver(
                        search=search.search,
                        trial=trial.number,
                        at=now,
                        end=TrialEnd.CANCELLED,
                        why=search.ending,
                    )
                )
        if search.live:
            return
        best = search.best()
        value = None if best is None or best.best is None else search.spec.signed(best.best)
        self._record(
            SearchOver(
                search=search.search,
                why=search.ending,
                at=now,
                trials=len(search.trials),
                gpu_ns=search.gpu_ns(now),
                trial=best.number if best is not None else 0,
                value=value,
                step=best.best_step if best is not None else 0,
                params=best.params if best is not None else {},
            )
        )

    def _tell_jobs(self, search: Search, now: Instant) -> None:
        """Ask for what trials' jobs are to do, where admission has yet to pass it on."""
        asked = self._soft.asked.setdefault(search.search, {})
        times = [plan.wake_at(search, now)]
        for trial in search.live:
            if trial.stand is Stand.OUTSIDE:
                times.append(after(trial.since, SILENT))
            wish = wish_of(search, trial)
            if not wish or wish == trial.heard:
                asked.pop(trial.number, None)
                continue
            order, sent, again = asked.get(trial.number, (0, "", Instant(0)))
            if (order, sent) != (trial.order, wish):
                again = trial.retry_at if wish != "cancel" else now
            if again <= now:
                self._send(search, trial, wish)
                again = after(now, RESEND)
            asked[trial.number] = trial.order, wish, again
            times.append(again)
        for number in [number for number in asked if search.trials[number].over]:
            del asked[number]
        self._soft.due[search.search] = min(
            (each for each in times if each is not None), default=None
        )

    def _send(self, search: Search, trial: Trial, wish: str) -> None:
        # The job is the person's that began the search. All else Skep asks for itself, as the VC:
        # a search has to come to its end also when its owner may do nothing any more.
        vc = search.spec.vc
        # The order is part of the key: the stream drops repetitions, and takes the next wish.
        headers = {subjects.KEY_HEADER: f"asked/{search.search}/{trial.number}/{trial.order}"}
        match wish:
            case "submit":
                headers = {subjects.KEY_HEADER: key_of(search.search, trial)}
                self._effects.append(
                    Send(subjects.submit(vc, search.owner), job_of(search, trial), headers)
                )
            case "cancel":
                self._effects.append(Send(subjects.cancel(vc), {"job": trial.job}))
            case "suspend":
                ask = AskSuspend(job=trial.job, release=True)
                self._effects.append(Send(subjects.ask(vc), ask, headers))
            case "resume":
                self._effects.append(Send(subjects.ask(vc), AskResume(job=trial.job), headers))
            case _:
                raise AssertionError(wish)

    # --- state -------------------------------------------------------------------------------

    def _record(self, fact: SearchFact) -> None:
        self.apply(fact)
        self._effects.append(Record(fact))

    def apply(self, fact: SearchFact | Kept) -> None:
        """Take over one fact, or one piece of a snapshot."""
        match fact:
            case EpochBegan():
                self.epoch = fact.epoch
            case SearchBegan():
                self.last_begun = max(self.last_begun, int(fact.search[1:]))
                self.searches[fact.search] = Search(
                    search=fact.search,
                    spec=fact.spec,
                    began_at=fact.at,
                    key=fact.key,
                    owner=fact.owner,
                )
                if fact.key:
                    self.keys[_scope(fact.spec.vc, fact.owner), fact.key] = fact.search
                    for old in list(islice(self.keys, max(0, len(self.keys) - KEYS_MAX))):
                        del self.keys[old]
            case SearchRefused():
                self.last_begun = max(self.last_begun, int(fact.search[1:]))
            case SearchOver():
                del self.searches[fact.search]
            case SearchEnding():
                search = self.searches[fact.search]
                search.ending, search.spared = fact.why, fact.spared
                if fact.spared:
                    spared = search.trials[fact.spared]
                    spared.run, spared.order = True, spared.order + 1
            case SearchMessage():
                self._apply_trial(fact)
            case ServiceMessage():
                self.serving.apply(fact)
            case _:
                self._restore(fact)

    def _apply_trial(self, fact: SearchTrialFact) -> None:
        search = self.searches[fact.search]
        if isinstance(fact, SearchTrialAdded):
            stand = Stand.OUTSIDE if fact.outside else Stand.NEW
            search.trials[fact.trial] = Trial(
                number=fact.trial,
                params=fact.params,
                stand=stand,
                since=fact.at,
                bracket=fact.bracket,
                key=fact.key,
                run=fact.run,
            )
            return
        trial = search.trials[fact.trial]
        match fact:
            case SearchTrialAdmitted():
                trial.job = fact.job
                trial.changes(Stand.WAITING, fact.at)
                self.jobs[fact.job] = fact.search, fact.trial
            case SearchTrialPutOff():
                trial.tries, trial.order = trial.tries + 1, trial.order + 1
                trial.retry_at = after(fact.at, RETRY)
            case SearchTrialTurned():
                trial.run, trial.why, trial.rung = fact.run, fact.why, fact.rung
                trial.order += 1
                trial.unheard()
            case SearchTrialDemoted():
                trial.demoted, trial.demoted_number = fact.demoted, fact.number
            case SearchTrialGivenUp():
                trial.given_up, trial.run, trial.why = True, False, Reason.NO_PROMISE
                trial.order += 1
            case SearchTrialHeard():
                trial.heard, trial.heard_number = fact.what, fact.number
            case SearchTrialStood():
                trial.changes(fact.stand, fact.at)
            case SearchTrialAnswered():
                _apply_answer(trial, fact)
            case SearchTrialMeasured():
                trial.measured(fact.step, search.spec.signed(fact.value), search.rungs(trial))
                search.score(trial)
                search.failures = 0
                if trial.stand is Stand.OUTSIDE:
                    trial.since = max(trial.since, fact.at)  # It was heard of.
            case SearchTrialOver():
                trial.changes(Stand.OVER, fact.at)
                trial.end, trial.ended_why = fact.end, fact.why
                silent = trial.best is None and fact.end in (TrialEnd.DONE, TrialEnd.FAILED)
                search.failures += silent
                trial.steps, trial.values = trial.steps[-1:], trial.values[-1:]
                self.jobs.pop(trial.job, None)

    def snapshot(self) -> list[Kept]:
        """Return what rebuilds this state without history; to be encoded before the next event."""
        kept: list[Kept] = [SearchesKept(epoch=self.epoch, last_begun=self.last_begun)]
        kept += [RolesSeen(person=name, standing=each) for name, each in self.roles.people.items()]
        for search in self.searches.values():
            kept.append(SearchKept(msgspec.structs.replace(search, trials={})))
            kept += [
                TrialsKept(search.search, piece)
                for piece in _pieces(iter(search.trials.values()), TRIALS_PIECE)
            ]
        jobs = ((job, *place) for job, place in self.jobs.items())
        kept += [JobsKept(piece) for piece in _pieces(jobs, PIECE)]
        keys = ((vc, key, search) for (vc, key), search in self.keys.items())
        kept += [SearchKeysKept(piece) for piece in _pieces(keys, PIECE)]
        return kept + self.serving.snapshot()

    def _restore(self, kept: Kept) -> None:
        match kept:
            case SearchesKept():
                self.epoch, self.last_begun = kept.epoch, kept.last_begun
            case SearchKept():
                self.searches[kept.search.search] = kept.search
            case TrialsKept():
                trials = self.searches[kept.search].trials
                trials.update((trial.number, trial) for trial in kept.trials)
            case JobsKept():
                self.jobs.update((job, (search, trial)) for job, search, trial in kept.jobs)
            case SearchKeysKept():
                self.keys.update(((vc, key), search) for vc, key, search in kept.keys)
            case RolesSeen():
                self.roles.set(kept.person, kept.standing)
            case ServicesKept() | ServiceKept():
                self.serving.restore(kept)

    def check(self) -> None:
        """Assert that no search runs more than it may, and that jobs and trials agree.

        Raises:
            AssertionError: One does, or they do not.
        """
        jobs = {}
        for search in self.searches.values():
            assert list(search.trials) == list(range(1, len(search.trials) + 1)), search.search
            assert len(search.trials) <= search.spec.budget.trials, search.search
            assert search.live or search.ending is None or not search.trials, search.search
            for trial in search.live:
                assert trial.job or trial.stand in (Stand.NEW, Stand.OUTSIDE), trial
                assert trial.run or not trial.fixed or trial.given_up, trial
                if trial.job:
                    jobs[trial.job] = search.search, trial.number
        assert jobs == self.jobs
        self.serving.check()


def wish_of(search: Search, trial: Trial) -> str:
    """Return what is to be asked for a trial's job.

    A submission is repeated even if the search ends: whether an earlier one arrived is known only
    by its answer, and then the job can be cancelled.

    Args:
        search: The search.
        trial: A trial of it.

    Returns:
        `submit`, `cancel`, `suspend` or `resume`; empty: nothing.
    """
    if trial.stand in (Stand.OVER, Stand.OUTSIDE):
        return ""
    if trial.stand is Stand.NEW:
        return "submit" if trial.run else ""
    if trial.given_up or (search.ending is not None and trial.number != search.spared):
        return "cancel"
    if trial.run and trial.stand is Stand.SUSPENDED:
        return "resume"
    return "suspend" if trial.stand is Stand.RUNNING and not trial.run else ""


def _scope(vc: str, person: str) -> str:
    """Return whose keys of requests are apart from others': a person's, or those of the VC."""
    return f"{vc}.{person}" if person else vc


def _forbidden(search: str, ruling: Ruling) -> SearchVerdict:
    problem = ruled_out(ruling)
    assert problem is not None, ruling
    return _refusal(search, [problem])


def _refused(search: str, path: str, reason: Reason, text: str) -> SearchVerdict:
    return _refusal(search, [Problem(path=path, reason=reason, text=text)])


def _refusal(search: str, problems: list[Problem]) -> SearchVerdict:
    return SearchVerdict(
        search=search, accepted=False, reason=problems[0].reason, problems=tuple(problems)
    )


def _pieces(rest: Iterator[Any], size: int) -> Iterator[tuple[Any, ...]]:
    while piece := tuple(islice(rest, size)):
        yield piece


assert RESEND < RETRY < SILENT
assert Duration(0) < RESEND


def _apply_answer(trial: Trial, fact: SearchTrialAnswered) -> None:
    """Take over how a change that was asked for a trial's job ended."""
    trial.answered = fact.number
    if fact.number == trial.heard_number:
        trial.unheard()
    if fact.number >= trial.heard_number and fact.result is not Result.DONE:
        trial.order += 1
        trial.retry_at = after(fact.at, RETRY)
    if fact.what == "suspend" and fact.why is Reason.CANNOT:
        trial.fixed, trial.run = True, not trial.given_up
