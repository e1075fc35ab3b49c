"""`/v1/jobs`: listing, showing, explaining, submitting, cancelling."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import msgspec
from aiohttp import web

from skep.access.rights import Action
from skep.ids import job_id, job_sequence
from skep.wire import codec
from skep.wire.array import task_id, task_of, tasks_of
from skep.wire.bounds import UNDECODABLE
from skep.wire.changes import ASKS
from skep.wire.reasons import Reason
from skep_services.gateway import arrays
from skep_services.gateway.api import (
    ApiError,
    caller_of,
    check,
    hidden,
    json_response,
    number,
    raw_response,
    unknown_job,
)
from skep_services.gateway.callers import Caller, covers
from skep_services.gateway.choosing import (
    GROUPS,
    Choice,
    Line,
    Sorting,
    choice_of,
    in_order,
    order_in_sql,
    sorting_of,
    stage,
)
from skep_services.gateway.code_store import KEEP_S
from skep_services.gateway.index import Indexer
from skep_services.gateway.metrics import Metrics
from skep_services.gateway.model import EventQuery, JobQuery, Listed
from skep_services.gateway.promises import lines
from skep_services.gateway.requeue import Requeue, check_ended, spec_again
from skep_services.gateway.rows import ENDED, Job, Row, State
from skep_services.gateway.scopes import owner_in, tenants, without_values
from skep_services.gateway.submit import Submitter, too_large
from skep_services.gateway.views import held_rows
from skep_services.gateway.watch import Watch
from skep_services.gateway.what_if import Drafts
from skep_services.gateway.why import explain
from skep_services.ports import Clock

LIMIT = 20_000
"""Rows of one answer: two such lists of a full cluster fit a person's patience (some 50 ms)."""
WAIT_S = 30
WAIT_S_MAX = 60
"""A long poll ends before proxies give up on the connection; the client asks again."""
JOB_EVENTS_MAX = 10_000
NAMESAKES_SHOWN = 5
"""Ids named where several jobs have the name that was given."""
DAY_S = 24 * 3600
STARTED = (State.RUNNING, State.SUSPENDED, State.STOPPING, *ENDED)


class Jobs:
    """The handlers."""

    def __init__(
        self,
        indexer: Indexer,
        watch: Watch,
        submitter: Submitter,
        metrics: Metrics,
        clock: Clock,
        drafts: Drafts,
    ) -> None:
        self._indexer, self._watch, self._submitter = indexer, watch, submitter
        self._metrics, self._clock, self._drafts = metrics, clock, drafts

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/jobs", self.listing, allow_head=False),
            web.post("/v1/jobs", self.submit),
            web.get("/v1/jobs/{job}", self.show, allow_head=False),
            web.delete("/v1/jobs/{job}", self.cancel),
            web.post(f"/v1/jobs/{{job}}/{{ask:{'|'.join(ASKS)}}}", self.ask),
            web.post("/v1/jobs/{job}/requeue", self.requeue),
            web.post("/v1/plan", self.plan),
            web.get("/v1/jobs/{job}/why", self.why, allow_head=False),
            web.get("/v1/jobs/{job}/curve", self.curve, allow_head=False),
            web.get("/v1/jobs/{job}/events", self.events, allow_head=False),
            web.get("/v1/jobs/{job}/trace", self.trace, allow_head=False),
        ]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer the jobs that match, the newest where the limit cuts.

        Raises:
            ApiError: A query parameter is wrong (400), or names another tenant's VC (403).
        """
        choice = choice_of(request, tenants(request), owner_in(request))
        order = request.query.get("order", "submitted")
        if array := request.query.get("array", ""):
            choice = choice._replace(array=await self._array(caller_of(request), array))
        sorting, limit = sorting_of(order), number(request, "limit", LIMIT, LIMIT)
        self._drafts.estimates.refresh(choice.vc)
        listed = Listed([], 0)
        # Memory first: a job that ends in between is then in both, not in neither.
        active = self._active(choice) if choice.active else []
        if choice.ended:
            wanted = order_in_sql(sorting) if sorting is not None else "sequence DESC"
            listed = await self._indexer.ended(JobQuery(limit, choice.conditions(), wanted))
        return raw_response(_table(active, listed, sorting or order, limit))

    async def submit(self, request: web.Request) -> web.StreamResponse:
        """Publish a spec and answer its verdict.

        Raises:
            ApiError: The spec is refused, or the bus does not take it (503).
            too_large: An ApiError (413): the body is larger than any that the gateway reads.
        """
        answer = "unpublished"
        try:
            try:
                body = await request.read()
            except web.HTTPRequestEntityTooLarge:
                raise too_large() from None
            headers = request.headers
            done = await self._submitter.submit(
                caller_of(request),
                body,
                headers.get("Idempotency-Key"),
                headers.get("traceparent", ""),
            )
            answer = "accepted" if done.status == 201 else "unanswered"
        except ApiError as error:
            answer = "refused" if error.status < 500 else "unpublished"
            raise
        finally:
            self._metrics.submitted(answer)
        return json_response(done.body, done.status)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Answer everything about a job, at once or (`wait`) when it has started or ended.

        `wait=asked` with a `number` waits for the end of that request.
        """
        job = await self.job(request)
        until = request.query.get("wait", "")
        timeout_s = number(request, "timeout_s", WAIT_S, WAIT_S_MAX)
        asked = number(request, "number", 0)
        if until:
            reached = self._reached(until, asked)
            caller, name = caller_of(request), job.row.job
            await self._watch.until(name, lambda: reached(self._by_id(caller, name)), timeout_s)
            job = self._by_id(caller, name)
        return json_response(await self._whole(job, caller_of(request)))

    @staticmethod
    def _reached(until: str, asked: int) -> Callable[[Job], bool]:
        """Return the test of whether a job is as a request waits for.

        Args:
            until: What the request waits for.
            asked: The number of the request for a change that `asked` waits for.

        Raises:
            ApiError: `until` is not started, ended or asked (400).
        """
        match until:
            case "started" | "ended":
                states = STARTED if until == "started" else ENDED
                return lambda job: job.row.state in states
            case "asked":
                return lambda job: (
                    job.row.state in ENDED
                    or any(one.number == asked and one.result is not None for one in job.asks)
                )
            case _:
                raise ApiError(400, Reason.BAD_VALUE, "`wait` is one of started, ended, asked")

    async def curve(self, request: web.Request) -> web.StreamResponse:
        """Answer what the job said about its training since this process began to listen."""
        job = await self.job(request)
        points = self._indexer.live.curves.of(job.row.job)
        return json_response({"job": job.row.job, "points": [point._asdict() for point in points]})

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Ask for a change of a running job.

        Raises:
            ApiError: The body is no JSON object (400), there is no such job (404), the change is
                refused (409, 422), or the bus does not take it (503).
        """
        body = await request.read()
        try:
            options = msgspec.json.decode(body, type=dict[str, Any]) if body else {}
        except UNDECODABLE as error:
            raise ApiError(400, Reason.NOT_JSON, f"the body is no JSON object: {error}") from None
        name, job, caller = request.match_info["ask"], await self.job(request), caller_of(request)
        action = Action.PRIORITISE if name == "priority" else Action.CHANGE
        check(action, caller, job.row.vc, job.row.owner)
        if name == "pack" and isinstance(options.get("beside"), str):
            beside = await self.named(caller, options["beside"])
            check(action, caller, beside.row.vc, beside.row.owner)
            options["beside"] = beside.row.job
        if name == "retry":
            await self._check_code(job)
        done = await self._submitter.ask(caller, job, name, options)
        return json_response(done.body, done.status)

    async def _check_code(self, job: Job) -> None:
        """Stop at an array whose tasks could not run: no unfinished job named their code.

        Raises:
            ApiError: Its code was taken out (409).
        """
        row = job.row
        try:
            self._submitter.check_code(row.vc, await self._indexer.spec(job) or b"")
        except ApiError:
            text = (
                f"{row.job}: its code is kept for {KEEP_S // DAY_S} days after its end at most, "
                "and is gone: submit it again from its folder (`skep submit`, `skep run --array`)"
            )
            raise ApiError(409, Reason.NO_CODE, text, job=row.job) from None

    async def have_back(self, caller: Caller, job: Job) -> None:
        """Ask for the return of a job that was suspended because it did nothing.

        Raises:
            ApiError: The caller may not change it (403), or it cannot return (409).
        """
        check(Action.CHANGE, caller, job.row.vc, job.row.owner)
        await self._submitter.ask(caller, job, "resume", {})

    async def have_back_if_idle(self, caller: Caller, name: str) -> bool:
        """Ask for the return of a job if it is suspended because it did nothing; return whether.

        Raises:
            ApiError: As `have_back` does, or there is no such job any more (404).
        """
        job = self._by_id(caller, name)
        idle = job.row.state is State.SUSPENDED and job.row.why == Reason.IDLE
        if idle:
            await self.have_back(caller, job)
        return idle

    async def requeue(self, request: web.Request) -> web.StreamResponse:
        """Submit an ended job again, as a new job of the caller; answer that one's verdict.

        Raises:
            ApiError: The body is no JSON object, or has a key that is not known (400), there is no
                such job (404), it cannot be submitted again (409), or the new one is refused (422).
        """
        body = await request.read()
        try:
            options = msgspec.json.decode(body or b"{}", type=Requeue)
        except UNDECODABLE as error:
            text = f'the body is no `{{"hold": true}}` or `{{}}`: {error}'
            raise ApiError(400, Reason.BAD_VALUE, text) from None
        caller, job = caller_of(request), await self.job(request)
        # The spec of a job has values that not everyone may see: its new owner would see them.
        check(Action.SEE_VALUES, caller, job.row.vc, job.row.owner)
        check_ended(job.row)
        spec = spec_again(job.row, await self._indexer.spec(job), hold=options.hold)
        headers = request.headers
        key, trace = headers.get("Idempotency-Key"), headers.get("traceparent", "")
        done = await self._submitter.submit(caller, spec, key, trace)
        return json_response({**done.body, "of": job.row.job}, done.status)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Ask for the end of a job, an array, or a task, which need not be a job yet."""
        caller, task = caller_of(request), task_of(request.match_info["job"])
        job = await self.job(request) if task is None else self._by_id(caller, task[0])
        check(Action.CANCEL, caller, job.row.vc, job.row.owner)
        name = job.row.job if task is None else task_id(*task)
        done = await self._submitter.cancel(caller, job, name)
        return json_response(done.body, done.status)

    async def why(self, request: web.Request) -> web.StreamResponse:
        """Answer why a job is where it is, and (`what_if=1`) what would start it now."""
        indexer = self._indexer
        job = await self.job(request)
        told = explain(job, indexer.fold, indexer.live, self._clock.now())
        told["trials"] = indexer.fold.ledger.of(job.row.job)
        told["reasons"] += lines(job)
        if number(request, "what_if", 0):
            check(Action.ASK_WHAT_IF, caller_of(request), job.row.vc, job.row.owner)
            told["what_if"] = await self._drafts.what_if(caller_of(request), job)
            if not caller_of(request).ruling(Action.SEE_VALUES, job.row.vc, job.row.owner):
                for option in (*told["what_if"]["options"], *told["what_if"]["in_vain"]):
                    option["spec"] = without_values(option["spec"])
        return json_response(told)

    async def plan(self, request: web.Request) -> web.StreamResponse:
        """Answer what would become of a spec, without submitting it.

        Raises:
            ApiError: The spec would be refused, or there is no answer (429, 503).
            too_large: An ApiError (413): the body is larger than any that the gateway reads.
        """
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise too_large() from None
        return json_response(await self._drafts.plan(caller_of(request), body))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Answer a job's story."""
        job = await self.job(request)
        await self._indexer.settle()
        found = await self._indexer.events(EventQuery(JOB_EVENTS_MAX, None, job.row.job))
        docs = b",".join(doc for _, doc in found)
        return raw_response(b'{"events":[' + docs + b"]}")

    async def trace(self, request: web.Request) -> web.StreamResponse:
        """Answer a job's spans by their start."""
        job = await self.job(request)
        trace_id = trace_id_of(job)
        spans = b",".join(await self._indexer.spans(trace_id) if trace_id else [])
        head = b'{"trace_id":' + codec.encode(trace_id)
        return raw_response(head + b',"spans":[' + spans + b"]}")

    async def job(self, request: web.Request) -> Job:
        """Return the job a request is about.

        Raises:
            ApiError: There is no such job, or the caller may not see it (404), or several jobs have
                this name (409).
        """
        return await self.named(caller_of(request), request.match_info["job"])

    async def named(self, caller: Caller, name: str) -> Job:
        """Return the job with this id, or the only one with this name.

        A name means the caller's active job of that name; if none is active, the ended one.

        Raises:
            ApiError: Several jobs have this name (409).
            unknown_job: An ApiError (404): there is no such job, or the caller may not see it.
        """
        if job_sequence(name) is not None:
            return self._by_id(caller, name)
        task = task_of(name)
        if task is not None:
            return await self._task(caller, *task)
        fold = self._indexer.fold
        found = [
            job.row.job
            for job in chain(fold.active.values(), fold.arrays.values())
            if job.row.name == name and covers(caller.sees, job.row.vc) and not arrays.is_task(job)
        ]
        count = len(found)
        if not found:
            where = [("name = ?", [name]), *Choice(GROUPS["ended"], caller.sees).conditions()]
            ended = await self._indexer.ended(JobQuery(NAMESAKES_SHOWN, where))
            found, count = [job_id(sequence) for sequence, _ in ended.lines], ended.total
        if count > 1:
            shown = ", ".join(found[:NAMESAKES_SHOWN])
            more = f" and {count - NAMESAKES_SHOWN} more" if count > NAMESAKES_SHOWN else ""
            text = f"{count} jobs have the name {name}: {shown}{more}; give the id of one"
            raise ApiError(409, "ambiguous-name", text)
        if not found:
            raise unknown_job(name)
        return self._by_id(caller, found[0])

    async def _array(self, caller: Caller, name: str) -> str:
        """Return the id of an array.

        Raises:
            ApiError: The job is no array (422).
        """
        row = (await self.named(caller, name)).row
        if row.tasks is None:
            raise ApiError(422, Reason.CANNOT, f"{row.job} is no array: it has no tasks")
        return row.job

    async def _task(self, caller: Caller, name: str, index: int) -> Job:
        """Return the latest job of an array's task.

        Raises:
            ApiError: The array has no such task, or it is no job (404).
        """
        array, task = self._by_id(caller, name), task_id(name, index)
        job = await self._indexer.task(task)
        if job is not None:
            return job
        text = f"{task} is no job: it waits for its turn, or was cancelled before"
        if array.row.tasks is None:
            text = f"{name} is no array: it has no task {index}"
        elif array.array and index not in tasks_of(array.array):
            text = f"array {name} has no task {index}: it has {array.array}"
        raise ApiError(404, Reason.UNKNOWN_JOB, text)

    def _by_id(self, caller: Caller, name: str) -> Job:
        job = self._indexer.fold.find(name)
        if job is None:
            raise unknown_job(name)
        if not caller.may(job.row.vc):
            raise hidden(unknown_job(name), job.row.vc)
        return job

    def _active(self, choice: Choice) -> list[Job]:
        listed, fold = choice.test(), self._indexer.fold
        there = chain(fold.active.values(), fold.arrays.values())
        found = [job for job in there if listed(job.row)]
        if choice.tasks or choice.array:
            return found
        return [job for job in found if not arrays.is_task(job)]

    async def _whole(self, job: Job, caller: Caller) -> dict[str, Any]:
        self._drafts.estimates.refresh(job.row.vc)
        spec = _json_or_none(await self._indexer.spec(job))
        if not caller.ruling(Action.SEE_VALUES, job.row.vc, job.row.owner):
            spec = without_values(spec)
        live, now = self._indexer.live, self._clock.now()
        tier, can = job.attempts[-1].can() if job.attempts else ("", ())
        return {
            **msgspec.structs.asdict(job.row),
            "spec": spec,
            "problems": job.problems,
            "detail": job.detail,
            "attempts": job.attempts,
            "trace": job.trace,
            "key": job.key,
            "repeated_by": job.repeated_by,
            "cancel_asked": job.cancel_asked,
            "tier": tier,
            "can": can,
            "released": job.released,
            "changing": job.changing,
            "asks": job.asks,
            "trials": self._indexer.fold.ledger.of(job.row.job),
            "pledged": job.pledged,
            "building": live.builds(job.row.job, job.row.attempt, now),
            "held_up": held_rows(self._indexer.fold.state, job.row.job),
        }


def trace_id_of(job: Job) -> str:
    """Return the 32 hex digits of a job's trace, empty if it has none."""
    parts = job.trace.split("-")
    return parts[1] if len(parts) == 4 else ""


def _table(active: list[Job], listed: Listed, order: str | Sorting, limit: int) -> bytes:
    """Return the answer of a listing. Ended jobs are JSON already; only active ones are encoded."""
    both = {sequence for sequence, _ in listed.lines} if active and listed.lines else set()
    rows = [(job.sequence, job.row) for job in active if job.sequence not in both]
    total = len(rows) + listed.total
    if isinstance(order, Sorting):
        chosen: list[Line] = in_order([*rows, *listed.lines], order)[:limit]
        docs = [row if isinstance(row, bytes) else codec.encode(row) for _, row in chosen]
    elif order == "queue":
        rows.sort(key=lambda one: (stage(one[1]), -one[1].priority, one[0]))
        docs = [codec.encode([row for _, row in rows[:limit]])[1:-1]]
        docs += [line for _, line in listed.lines[: max(0, limit - len(rows))]]
    elif not listed.lines:
        rows.sort(key=_by_sequence, reverse=True)
        shown = rows[:limit] if order == "newest" else rows[:limit][::-1]
        docs = [codec.encode([row for _, row in shown])[1:-1]]  # One call for all is the fastest.
    else:
        lines = [(sequence, codec.encode(row)) for sequence, row in rows] + listed.lines
        lines.sort(key=_by_sequence, reverse=True)
        docs = [line for _, line in lines[:limit]]
        if order == "submitted":
            docs.reverse()
    jobs = b",".join(doc for doc in docs if doc)
    return b'{"jobs":[' + jobs + b'],"total":' + str(total).encode() + b"}"


def _by_sequence(one: tuple[int, Row | bytes]) -> int:
    return one[0]


def _json_or_none(raw: bytes | None) -> msgspec.Raw | None:
    """Return a stored spec if it is JSON; a refused submission may have been anything."""
    if raw is None:
        return None
    try:
        msgspec.json.decode(raw)
    except UNDECODABLE:
        return None
    return msgspec.Raw(raw)
