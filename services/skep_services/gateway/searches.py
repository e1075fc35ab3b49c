"""`/v1/searches`: the searches by their own log, and what is asked of them.

The same log has the services, whose view is kept here too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import structlog
from aiohttp import web
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from skep.access.rights import Action
from skep.machines.searches import SearchesMachine
from skep.machines.searches.serving.state import Service
from skep.machines.searches.state import Search, Trial
from skep.units import Instant
from skep.wire import codec
from skep.wire.bounds import UNDECODABLE
from skep.wire.facts import EpochBegan
from skep.wire.parse import PROBLEMS_MAX
from skep.wire.reasons import Reason
from skep.wire.search import SearchSpec, is_search_id, parse_search, search_id
from skep.wire.search_facts import (
    SearchMessage,
    SearchOver,
    SearchTrialMeasured,
    SearchTrialOver,
    SearchVerdict,
    Stand,
)
from skep.wire.service_facts import ServiceMessage, ServiceOver
from skep.wire.spec import SPEC_BYTES_MAX
from skep_services.gateway.api import ApiError, caller_of, check, hidden, json_response, number
from skep_services.gateway.callers import Only, covers
from skep_services.gateway.index import one_by_one
from skep_services.gateway.intake import Intake
from skep_services.gateway.jobs import WAIT_S, WAIT_S_MAX
from skep_services.gateway.scopes import tenants, without_values
from skep_services.gateway.submit import NO_RIGHT, Submitter, submits, too_large
from skep_services.gateway.watch import Watch
from skep_services.ports import Clock, Delivery

log = structlog.get_logger(service="gateway")

OVER_MAX = 200
"""Searches that are over and at hand: of those with the most trials 2 GB, of usual ones 20 MB."""
SLICE = 32
"""Records taken over before others may run."""
SHOWN_S = 2.0
"""Until a verdict's fact is here, which was stored before it was sent: mostly it is already."""
STATES = ("active", "over", "all")

Curve = tuple[list[int], list[float]]


class SearchesView:
    """All searches, rebuilt from their log at every start.

    Their service's own machine keeps the state: what it forgets at an end is put aside here.
    """

    def __init__(self, watch: Watch, intake: Intake) -> None:
        """Start with nothing known; what cannot be taken over is noted in `intake`."""
        self.position = 0
        self.intake = intake
        self.over: dict[str, tuple[Search, SearchOver]] = {}
        self._watch = watch
        self._machine = SearchesMachine()
        self._curves: dict[str, dict[int, Curve]] = {}
        """Of trials that are over, by search."""
        self.services_over: dict[str, tuple[Service, ServiceOver]] = {}
        self.service_seq: dict[str, int] = {}
        """By service: the place in the log of the latest fact about it."""
        self.service_news: Callable[[], None] = _nothing
        """Called when a fact about a service has come."""

    async def deliver(self, delivery: Delivery) -> None:
        """Take over a record."""
        event = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        self.position = delivery.sequence
        if isinstance(event, codec.Unreadable):
            self.intake.refused(delivery, event.text)
            return
        for each in one_by_one(event):
            self.intake.take(delivery, partial(self.apply, each))
        if self.position % SLICE == 0:
            await asyncio.sleep(0)

    def code_of(self, vc: str) -> set[str]:
        """Return the snapshots of code that the jobs of a VC's running searches have."""
        jobs = [one.spec.job for one in self._machine.searches.values()]
        jobs += [spec.job for one in self.services.values() for spec in one.specs.values()]
        return {digest for job in jobs if job.vc == vc for digest in job.snapshots}

    @property
    def services(self) -> dict[str, Service]:
        """Return the services that are not over, by id."""
        return self._machine.serving.services

    def knows_service(self, name: str) -> bool:
        """Return whether there is, or lately was, a service of this id."""
        return name in self.services or name in self.services_over

    def service(self, name: str, may: Callable[[str], bool]) -> tuple[Service, ServiceOver | None]:
        """Return a service and how it ended; None: it is not over.

        Args:
            name: Its id, or `VC.NAME` of one that is not over.
            may: Whether the caller may see what belongs to a VC.

        Raises:
            ApiError: There is none (404), as far as the caller may know.
            hidden: An ApiError (404): the caller may not see it.
        """
        unknown = ApiError(404, Reason.UNKNOWN_SERVICE, f"there is no service {name}")
        over = self.services_over.get(name)
        found = over[0] if over is not None else self.services.get(name)
        if found is None:
            named = (
                one for one in self.services.values() if f"{one.spec.vc}.{one.spec.name}" == name
            )
            found = next(named, None)
        if found is None:
            raise unknown
        if not may(found.spec.vc):
            raise hidden(unknown, found.spec.vc)
        return found, over[1] if over is not None else None

    def find_service(self, name: str, may: Callable[[str], bool]) -> Service:
        """Return a service that is not over, as `service`.

        Raises:
            ApiError: There is none (404), or it is over (409).
        """
        found, end = self.service(name, may)
        if end is not None:
            raise ApiError(409, Reason.ALREADY_ENDED, f"{name} is over already: {end.why}")
        return found

    def services_of(self, vc: Only, state: str) -> list[tuple[Service, ServiceOver | None]]:
        """Return services, each with its end, the oldest first; as `listed`."""
        found: list[tuple[Service, ServiceOver | None]] = []
        if state != "active":
            found += self.services_over.values()
        if state != "over":
            found += [(service, None) for service in self.services.values()]
        mine = [one for one in found if covers(vc, one[0].spec.vc)]
        return sorted(mine, key=lambda one: int(one[0].service[1:]))

    def apply(self, facts: codec.Facts) -> None:
        """Take over a record's facts."""
        for fact in facts.facts:
            if isinstance(fact, ServiceMessage):
                self._apply_service(fact)
                continue
            if not isinstance(fact, EpochBegan | SearchMessage):
                continue  # Of another service.
            if isinstance(fact, SearchTrialOver):
                trial = self._machine.searches[fact.search].trials[fact.trial]
                self._curves.setdefault(fact.search, {})[fact.trial] = trial.steps, trial.values
            elif isinstance(fact, SearchOver):
                self.over[fact.search] = self._machine.searches[fact.search], fact
                for old in list(self.over)[: max(0, len(self.over) - OVER_MAX)]:
                    del self.over[old]
                    self._curves.pop(old, None)
            self._machine.apply(fact)
            if isinstance(fact, SearchMessage) and not isinstance(fact, SearchTrialMeasured):
                self._watch.wake((fact.search,))

    def _apply_service(self, fact: ServiceMessage) -> None:
        if isinstance(fact, ServiceOver):
            self.services_over[fact.service] = self.services[fact.service], fact
            for old in list(self.services_over)[: max(0, len(self.services_over) - OVER_MAX)]:
                del self.services_over[old], self.service_seq[old]
        self.service_seq[fact.service] = self.position
        self._machine.apply(fact)  # type: ignore[arg-type]
        self._watch.wake((fact.service,))
        self.service_news()

    def find(self, name: str) -> tuple[Search, SearchOver | None] | None:
        """Return a search and how it ended.

        Returns:
            The search, and its end (None: it is not over); None: there is none of this id.
        """
        active = self._machine.searches.get(name)
        return (active, None) if active is not None else self.over.get(name)

    def listed(self, vc: Only, state: str) -> list[tuple[Search, SearchOver | None]]:
        """Return searches, each with its end (None: it is not over), the oldest first.

        Args:
            vc: Their VCs; empty: every VC.
            state: One of STATES.
        """
        found: list[tuple[Search, SearchOver | None]] = []
        if state != "active":
            found += self.over.values()
        if state != "over":
            found += [(search, None) for search in self._machine.searches.values()]
        mine = [one for one in found if covers(vc, one[0].spec.vc)]
        return sorted(mine, key=lambda one: int(one[0].search[1:]))

    def curve(self, search: Search, trial: Trial) -> list[tuple[int, float]]:
        """Return the points of a trial's curve as they are kept: mini-batch and value."""
        kept = self._curves.get(search.search, {}).get(trial.number)
        steps, values = kept if kept is not None else (trial.steps, trial.values)
        return [
            (step, search.spec.signed(value)) for step, value in zip(steps, values, strict=True)
        ]


def _nothing() -> None:
    """Do nothing."""


class Gauges(Collector):
    """What Prometheus reads of searches."""

    def __init__(self, view: SearchesView) -> None:
        """Look it up in `view`."""
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield how many searches and trials there are that are not over."""
        searches: Counter[str] = Counter()
        trials: Counter[tuple[str, str]] = Counter()
        for search, _ in self._view.listed("", "active"):
            searches[search.spec.vc] += 1
            trials.update((search.spec.vc, str(trial.stand)) for trial in search.live)
        active = GaugeMetricFamily("skep_searches", "Searches that are not over", labels=("vc",))
        for vc, count in searches.items():
            active.add_metric((vc,), count)
        yield active
        live = GaugeMetricFamily(
            "skep_search_trials", "Trials of searches that are not over", labels=("vc", "stand")
        )
        for key, count in trials.items():
            live.add_metric(key, count)
        yield live

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: names are known once they are collected."""
        return iter(())


def summary(search: Search, end: SearchOver | None, now: Instant) -> dict[str, Any]:
    """Return a search without its trials.

    Args:
        end: How it ended; None: it is not over.
        now: Until when GPU time is counted if it is not over (wall-clock ns).
    """
    spec, best = search.spec, search.best()
    stands = [trial.stand for trial in search.trials.values()]
    state = "over" if end is not None else "ending" if search.ending is not None else "active"
    return {
        "search": search.search,
        "name": spec.name,
        "vc": spec.vc,
        "owner": search.owner,
        "state": state,
        "why": end.why if end is not None else search.ending,
        "method": spec.method,
        "metric": spec.metric,
        "direction": spec.direction,
        "target": spec.target,
        "began_at": search.began_at,
        "ended_at": end.at if end is not None else None,
        "trials": len(search.trials),
        "trials_max": spec.budget.trials,
        "stands": {str(stand): stands.count(stand) for stand in Stand if stand in stands},
        "gpu_ns": end.gpu_ns if end is not None else search.gpu_ns(now),
        "gpu_time_s": spec.budget.gpu_time,
        "best": None
        if best is None or best.best is None
        else {
            "trial": best.number,
            "job": best.job,
            "value": spec.signed(best.best),
            "step": best.best_step,
            "params": best.params,
        },
    }


def trial_row(view: SearchesView, search: Search, trial: Trial, now: Instant) -> dict[str, Any]:
    """Return a trial with its curve. `promise` is what its metric is expected to come to."""
    spec, points = search.spec, view.curve(search, trial)
    chance, value, spread = trial.scored if trial.scored is not None else (None, None, None)
    return {
        "trial": trial.number,
        "job": trial.job,
        "params": trial.params,
        "stand": trial.stand,
        "end": trial.end,
        "why": trial.ended_why if trial.over else trial.why,
        "wanted": trial.run and not trial.over,
        "demoted": trial.demoted,
        "since": trial.since,
        "ran_ns": trial.ran(now),
        "step": trial.last_step,
        "value": points[-1][1] if points else None,
        "best": None if trial.best is None else spec.signed(trial.best),
        "best_step": trial.best_step,
        "promise": None if value is None else spec.signed(value),
        "spread": spread,
        "chance": chance if spec.target is not None else None,
        "bracket": trial.bracket,
        "rung": trial.rung,
        "rungs": list(search.rungs(trial)),
        "reached": [spec.signed(each) for each in trial.reached],
        "points": points,
    }


class Searches:
    """The handlers."""

    def __init__(
        self, view: SearchesView, watch: Watch, submitter: Submitter, clock: Clock
    ) -> None:
        self._view, self._watch, self._submitter = view, watch, submitter
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/searches", self.listing, allow_head=False),
            web.post("/v1/searches", self.begin),
            web.get("/v1/searches/{search}", self.show, allow_head=False),
            web.delete("/v1/searches/{search}", self.cancel),
            web.post("/v1/searches/{search}/trials", self.ask),
            web.post("/v1/searches/{search}/trials/{trial}", self.tell),
            web.post("/v1/searches/{search}/trials/{trial}/{do:demote|promote}", self.rank),
        ]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer searches without their trials.

        Raises:
            ApiError: A query parameter is wrong (400), or names another tenant's VC (403).
        """
        vc, state = tenants(request), request.query.get("state", "all")
        if state not in STATES:
            raise ApiError(400, Reason.BAD_VALUE, f"`state` is one of {', '.join(STATES)}")
        now = self._clock.now()
        found = [summary(search, end, now) for search, end in self._view.listed(vc, state)]
        return json_response({"searches": found})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Answer a search with all of its trials and its spec; `wait=over` waits for its end.

        Raises:
            ApiError: There is no such search, or the caller may not see it (404), or a query
                parameter is wrong (400).
        """
        search, end = self._search(request)
        until = request.query.get("wait", "")
        timeout_s = number(request, "timeout_s", WAIT_S, WAIT_S_MAX)
        if until not in ("", "over"):
            raise ApiError(400, Reason.BAD_VALUE, "`wait` is `over`")
        if until and end is None:
            name = search.search
            await self._watch.until(name, lambda: name in self._view.over, timeout_s)
            search, end = self._search(request)
        now = end.at if end is not None else self._clock.now()
        spec: Any = search.spec
        if not caller_of(request).ruling(Action.SEE_VALUES, spec.vc, search.owner):
            spec = msgspec.structs.replace(spec, job=without_values(spec.job))
        trials = [trial_row(self._view, search, each, now) for each in search.trials.values()]
        return json_response({**summary(search, end, now), "spec": spec, "rows": trials})

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """Begin a search: the body is its spec.

        Raises:
            ApiError: The spec is wrong (413, 422) or another tenant's (403), or the request is
                refused or not answered (400, 409, 503).
        """
        body = await _body(request)
        parsed = parse_search(body)
        if not isinstance(parsed, SearchSpec):
            raise ApiError(422, parsed[0].reason, parsed[0].text, parsed[:PROBLEMS_MAX])
        submits(Action.SEARCH, caller_of(request), parsed.vc)
        verdict = await self._asked(request, parsed.vc, {"do": "begin", "spec": msgspec.Raw(body)})
        name = verdict.search
        await self._watch.until(name, lambda: self._view.find(name) is not None, SHOWN_S)
        repeated = verdict.reason is Reason.REPEATED
        return json_response({"search": name, "accepted": True, "repeated": repeated}, 201)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """End a search and all of its trials.

        Raises:
            ApiError: There is no such search, or the caller may not see it (404), it is over (409),
                or the request is refused or not answered (400, 422, 503).
        """
        search, end = self._steered(request)
        if end is not None:
            text = f"{search.search} is over already: {end.why}"
            raise ApiError(409, Reason.ALREADY_ENDED, text)
        caller, vc = caller_of(request), search.spec.vc
        await self._submitter.note(caller, "cancel search", search.search, vc, search.owner)
        await self._asked(request, vc, {"do": "cancel", "search": search.search})
        return json_response({"search": search.search, "accepted": True}, 202)

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Add a trial: the body is `{"params": …, "outside": …}`, both optional."""
        search, _ = self._steered(request)
        asked = {**await _object(request), "do": "ask", "search": search.search}
        verdict = await self._asked(request, search.spec.vc, asked)
        repeated = verdict.reason is Reason.REPEATED
        return json_response(
            {
                "search": search.search,
                "trial": verdict.trial,
                "params": verdict.params,
                "repeated": repeated,
            },
            201,
        )

    async def tell(self, request: web.Request) -> web.StreamResponse:
        """Take over how a trial goes that runs outside: `{"step": …, "value": …, "over": …}`."""
        return await self._of_trial(request, "tell", await _object(request))

    async def rank(self, request: web.Request) -> web.StreamResponse:
        """Put a trial behind all others of its search, or among them again: what a pruner says."""
        return await self._of_trial(request, request.match_info["do"], {})

    async def _of_trial(
        self, request: web.Request, do: str, given: dict[str, Any]
    ) -> web.StreamResponse:
        search, _ = self._steered(request)
        trial = request.match_info["trial"]
        if not (trial.isascii() and trial.isdecimal() and len(trial) < 10):
            raise ApiError(404, Reason.UNKNOWN_TRIAL, f"{search.search} has no trial {trial}")
        asked = {**given, "do": do, "search": search.search, "trial": int(trial)}
        await self._asked(request, search.spec.vc, asked)
        return json_response({"search": search.search, "trial": int(trial), "accepted": True})

    def _steered(self, request: web.Request) -> tuple[Search, SearchOver | None]:
        """Return the search that a request asks something of, as `_search`.

        Raises:
            check: An ApiError (403): it is another's, and the caller may only steer its own.
        """
        search, end = self._search(request)
        check(Action.STEER_SEARCH, caller_of(request), search.spec.vc, search.owner)
        return search, end

    def _search(self, request: web.Request) -> tuple[Search, SearchOver | None]:
        """Return the search a request is about, and its end (None: it is not over).

        Raises:
            ApiError: There is no such search (404).
            hidden: An ApiError (404): the caller may not see it.
        """
        name = request.match_info["search"]
        found = self._view.find(name) if is_search_id(name) else None
        unknown = ApiError(404, Reason.UNKNOWN_SEARCH, f"there is no search {name}")
        if found is None:
            raise unknown
        if not caller_of(request).may(found[0].spec.vc):
            raise hidden(unknown, found[0].spec.vc)
        return found

    async def _asked(self, request: web.Request, vc: str, what: dict[str, Any]) -> SearchVerdict:
        """Publish a request; return the verdict, which accepts it.

        Raises:
            ApiError: The verdict refuses the request (404, 409 or 422), none came in time (503),
                the key is wrong (400), or the bus does not take the request (503).
        """
        key = request.headers.get("Idempotency-Key")

        def known(number: int, key: str) -> SearchVerdict | None:
            return self._known(what, number, key)

        verdict = await self._submitter.search(
            caller_of(request), vc, codec.encode(what), key, known
        )
        log.info(
            "search asked",
            do=what["do"],
            vc=vc,
            by=caller_of(request).name,
            search=verdict.search if verdict is not None else "",
        )
        if verdict is None:
            text = (
                "it is stored, and the searches' service has not answered yet: repeat it with "
                "the same Idempotency-Key"
            )
            raise ApiError(503, "unanswered", text)
        if not verdict.accepted:
            reason = verdict.reason or Reason.BAD_VALUE
            missing = reason in (Reason.UNKNOWN_SEARCH, Reason.UNKNOWN_TRIAL)
            text = verdict.problems[0].text if verdict.problems else str(reason)
            status = 404 if missing else 409 if reason is Reason.SEARCH_ENDS else 422
            status = 403 if reason in NO_RIGHT else status
            raise ApiError(status, reason, text, verdict.problems)
        return verdict

    def _known(self, what: dict[str, Any], number: int, key: str) -> SearchVerdict | None:
        """Return what the facts say of a request that began a search or added a trial."""
        if what["do"] == "begin" and self._view.find(search_id(number)) is not None:
            return SearchVerdict(search=search_id(number), accepted=True)
        found = self._view.find(what.get("search", ""))
        if what["do"] == "ask" and found is not None:
            for trial in found[0].trials.values():
                if trial.key == key:
                    return SearchVerdict(
                        search=found[0].search,
                        accepted=True,
                        trial=trial.number,
                        params=trial.params,
                    )
        return None


async def _body(request: web.Request) -> bytes:
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large() from None
    if len(body) > SPEC_BYTES_MAX:
        raise too_large()
    return body


async def _object(request: web.Request) -> dict[str, Any]:
    body = await _body(request)
    try:
        return msgspec.json.decode(body, type=dict[str, Any]) if body else {}
    except UNDECODABLE as error:
        raise ApiError(400, Reason.NOT_JSON, f"the body is no JSON object: {error}") from None
