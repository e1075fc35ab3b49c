"""Submissions and cancellations: published durably, then answered with the verdict.

The verdict comes on the reply subject and in the facts; whichever is first answers the client. A
submission the bus has taken is durable, so no verdict in time is not an error.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import structlog

from skep.access.rights import Action
from skep.ids import is_token, job_id
from skep.units import Instant
from skep.vault.looks_secret import looks_secret, warning
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.changes import Result, parse_ask
from skep.wire.parse import parse_spec
from skep.wire.promises import Answer as Answered
from skep.wire.promises import Judged
from skep.wire.reasons import TEXT, Reason
from skep.wire.search_facts import SearchVerdict
from skep.wire.spec import SPEC_BYTES_MAX, Problem
from skep.wire.template_facts import TEMPLATE_ASKS, TemplateAsk
from skep.wire.verdict import Verdict
from skep_services.gateway.api import ApiError, check, unknown_job
from skep_services.gateway.callers import Caller
from skep_services.gateway.fold import waited_for
from skep_services.gateway.index import Indexer
from skep_services.gateway.rows import ENDED, Job, State
from skep_services.gateway.watch import Watch
from skep_services.ports import Bus, Clock, Delivery, FullError, MissingStreamError, RefusedError
from skep_services.tracing import Tracer

log = structlog.get_logger(service="gateway")

PUBLISH_TIMEOUT_S = 10.0
"""Longer than the bus takes to elect a leader (4 to 9 s)."""
VERDICT_TIMEOUT_S = 5.0
"""Many times what admission takes (5 ms), and short of a person's patience."""
TAKEN_TIMEOUT_S = 2.0
"""How long to wait for the allocator's first word about a change: it takes milliseconds."""
FULL_RETRY_S = 10.0
"""When a full SUBMIT may have room again: admission looks at its size that often (ADR 0170)."""
KEY_MAX = 256
"""An idempotency key is remembered for ever, so it may not be a document."""
TOLD_MAX = 1_000
"""Answers on searches that are kept for requests that are repeated, some 500 bytes each."""

NO_RIGHT = (Reason.NO_ROLE, Reason.ROLE_TOO_LOW, Reason.NOT_ITS_OWNER, Reason.PERSON_DISABLED)
"""Refusals of admission that are about the person and not about what it asks."""

_VERDICTS = msgspec.json.Decoder(Verdict)
_SEARCH_VERDICTS = msgspec.json.Decoder(SearchVerdict)


Note = Callable[[Caller, str, str, str], Awaitable[None]]
"""Takes a caller, what it does, to what, and in which VC, before that is done."""


async def nowhere(caller: Caller, action: str, target: str, vc: str) -> None:
    """Note nothing: the cluster has no audit log."""


async def _untold(body: bytes) -> None:
    """Allow whatever a spec names: where nothing is known of targets."""


def _unchecked(vc: str, body: bytes) -> None:
    """Stop at nothing: nothing keeps code."""


class Answer(NamedTuple):
    """The answer to a client: status and body."""

    status: int
    body: dict[str, Any]


class Pending(msgspec.Struct):
    """A request that waits for a verdict; `job` is known once the bus has taken the submission."""

    job: str = ""
    verdict: Verdict | None = None
    about_search: SearchVerdict | None = None


class Submitter:
    """Publishes what clients ask. `listen` first."""

    def __init__(
        self,
        bus: Bus,
        indexer: Indexer,
        watch: Watch,
        clock: Clock,
        tracer: Tracer,
        note: Note = nowhere,
    ) -> None:
        """Take the ports; `note` writes what concerns others into the audit log."""
        self._note = note
        self._bus, self._indexer, self._watch = bus, indexer, watch
        self._clock, self._tracer = clock, tracer
        # A random token keeps verdicts meant for an earlier process from being taken for ours.
        self._asker = f"gateway-{secrets.token_hex(8)}"
        self.check_code: Callable[[str, bytes], None] = _unchecked
        self.check_notices: Callable[[bytes], Awaitable[None]] = _untold
        """Stops at a spec of a VC whose code is not there; set by what keeps code."""
        self._pending: dict[str, Pending] = {}
        self._of_searches: dict[str, Pending] = {}
        self._told: dict[tuple[int, str, str], SearchVerdict] = {}
        """What was answered lately on searches, by the request's number, VC and person."""
        self._asked = 0

    async def listen(self) -> None:
        """Take verdicts from here on."""
        for person in ("", "*"):
            await self._bus.listen(subjects.reply("*", f"{self._asker}.*", person), self._verdict)

    async def submit(self, caller: Caller, body: bytes, key: str | None, trace: str) -> Answer:
        """Publish a spec and return its verdict.

        Args:
            body: The spec as JSON.
            key: The idempotency key; None: one is made.
            trace: The client's traceparent; if it is not valid, one is made.

        Raises:
            ApiError: The spec is wrong or refused (413, 422), its VC is another tenant's (403), the
                key is wrong (400) or was used for another VC (409), or the bus does not take it
                (503).
        """
        vc = vc_of(body)
        submits(Action.SUBMIT, caller, vc)
        self.check_code(vc, body)
        await self.check_notices(body)
        key = _checked_key(key)
        began = self._clock.now()
        tell = self._tracer.span
        if not codec.is_trace(trace):
            tell = self._tracer.root
            trace = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
        inbox, pending = self._ask(vc, caller.person)
        headers = {subjects.REPLY_HEADER: inbox, subjects.TRACE_HEADER: trace}
        job = ""
        try:
            subject = subjects.submit(vc, caller.person)
            job = job_id(await self._publish(subject, body, key, headers))
            pending.job = job
            await self._watch.until(
                job, lambda: self._decided(job, pending) is not None, VERDICT_TIMEOUT_S
            )
            answer = self._submitted(job, vc, caller.person, self._decided(job, pending))
            if names := looks_secret(env_of(body)):
                answer.body["warnings"] = [warning(names)]
            return answer
        finally:
            del self._pending[inbox]
            log.info("submitted", job=job, vc=vc, trace=trace.split("-")[1], by=caller.name)
            tell("gateway submit", trace, began, self._clock.now(), {"job": job, "vc": vc})
            await self._tracer.flush()

    async def cancel(self, caller: Caller, job: Job, name: str) -> Answer:
        """Publish a cancellation and return what became of it.

        Args:
            job: The job or array.
            name: What is cancelled: the job, or a task of the array.

        Raises:
            ApiError: The job has already ended (409), or the bus does not take it (503).
            refused: An ApiError (409): admission refuses it.
            unknown_job: An ApiError (404): admission knows no such job.
        """
        row = job.row
        if row.state in ENDED:
            text = f"{row.job} has already ended: {row.state}"
            raise ApiError(409, Reason.ALREADY_ENDED, text, job=row.job)
        await self.note(caller, "cancel", row.job, row.vc, row.owner)
        inbox, pending = self._ask(row.vc, caller.person)
        pending.job = row.job
        headers = {subjects.REPLY_HEADER: inbox}
        body = codec.encode({"job": name})
        try:
            subject = subjects.cancel(row.vc, caller.person)
            await self._publish(subject, body, secrets.token_hex(16), headers)
            await self._watch.until(row.job, lambda: pending.verdict is not None, VERDICT_TIMEOUT_S)
        finally:
            del self._pending[inbox]
        verdict = pending.verdict
        if verdict is None:
            return Answer(202, {"job": name, "accepted": None})
        if verdict.accepted:
            return Answer(202, {"job": name, "accepted": True})
        if verdict.reason is Reason.UNKNOWN_JOB and name == row.job:
            raise unknown_job(row.job)
        status = 404 if verdict.reason is Reason.UNKNOWN_JOB else 409
        raise refused(_status(verdict.reason, status), verdict.reason, verdict.problems, row.job)

    async def ask(self, caller: Caller, job: Job, name: str, options: dict[str, Any]) -> Answer:
        """Publish a request for a change and return the verdict on it.

        `number` in the answer names the request; what comes of it is in the job's `asks`. What the
        allocator refuses at once is refused here.

        Args:
            name: The change, one of `ASKS`.
            options: The other fields of the request.

        Raises:
            ApiError: The job has already ended, or the allocator refuses the change at once (409),
                or the bus does not take it (503).
            refused: An ApiError (409 or 422): the request is wrong, or admission refuses it.
            unknown_job: An ApiError (404): admission knows no such job.
        """
        row = job.row
        if row.state in ENDED and name != "retry":
            text = f"{row.job} has already ended: {row.state}"
            raise ApiError(409, Reason.ALREADY_ENDED, text, job=row.job)
        body = codec.encode({**options, "ask": name, "job": row.job})
        problems = parse_ask(body)
        if isinstance(problems, list):
            raise refused(422, problems[0].reason, problems, row.job)
        await self.note(caller, name, row.job, row.vc, row.owner)
        inbox, pending = self._ask(row.vc, caller.person)
        pending.job = row.job
        headers = {subjects.REPLY_HEADER: inbox}
        try:
            key = secrets.token_hex(16)
            number = await self._publish(subjects.ask(row.vc, caller.person), body, key, headers)
            await self._watch.until(row.job, lambda: pending.verdict is not None, VERDICT_TIMEOUT_S)
        finally:
            del self._pending[inbox]
        verdict = pending.verdict
        log.info("change asked for", job=row.job, ask=name, number=number, by=caller.name)
        accepted = verdict.accepted if verdict is not None else None
        if verdict is None or accepted:
            if name != "retry":  # Which is admission's own.
                await self._watch.until(row.job, lambda: _taken(job, number), TAKEN_TIMEOUT_S)
                _raise_if_refused(job, number)
            return Answer(
                202, {"job": row.job, "ask": name, "number": number, "accepted": accepted}
            )
        if verdict.reason is Reason.UNKNOWN_JOB:
            raise unknown_job(row.job)
        over = verdict.reason in (Reason.ALREADY_ENDED, Reason.NOTHING_FAILED)
        status = 409 if over else 422
        raise refused(_status(verdict.reason, status), verdict.reason, verdict.problems, row.job)

    async def template(
        self, caller: Caller, vc: str, ask: TemplateAsk, seen: Callable[[int], bool]
    ) -> Verdict | None:
        """Publish what is asked about a template of a VC, and return the verdict on it.

        Args:
            caller: A manager of the VC.
            vc: The virtual cluster.
            ask: What is asked.
            seen: Returns whether what the request of a number came to can be seen here.

        Returns:
            The verdict; None: none came in time.

        Raises:
            ApiError: The bus does not take the request (503).
        """
        (tag,) = [name for name, kind in TEMPLATE_ASKS.items() if isinstance(ask, kind)]
        await self._note(caller, tag, ask.name, vc)
        inbox, pending = self._ask(vc, caller.person)
        pending.job = inbox
        headers = {subjects.REPLY_HEADER: inbox}
        try:
            subject, key = subjects.ask(vc, caller.person), secrets.token_hex(16)
            number = await self._publish(subject, codec.encode(ask), key, headers)
            log.info("template asked for", ask=tag, vc=vc, name=ask.name, by=caller.name)
            await self._watch.until(inbox, lambda: pending.verdict is not None, VERDICT_TIMEOUT_S)
        finally:
            del self._pending[inbox]
        if pending.verdict is not None and pending.verdict.accepted:
            name = waited_for(vc, ask.name)
            await self._watch.until(name, lambda: seen(number), TAKEN_TIMEOUT_S)
        return pending.verdict

    async def search(
        self,
        caller: Caller,
        vc: str,
        request: bytes,
        key: str | None,
        known: Callable[[int, str], SearchVerdict | None],
    ) -> SearchVerdict | None:
        """Publish what is asked of a VC's searches.

        Args:
            request: The request as JSON.
            key: The idempotency key; None: one is made.
            known: Returns, by the number and the key of the request, what came of it as far as the
                facts say it. What the bus takes for a repetition gets no other answer.

        Returns:
            The verdict; None: none came in time.

        Raises:
            ApiError: The key is wrong (400), or the bus does not take the request (503).
        """
        key = _checked_key(key)
        inbox, pending = self._ask(vc, caller.person)
        pending.job, self._of_searches[inbox] = inbox, pending
        headers = {subjects.REPLY_HEADER: inbox}
        try:
            subject = subjects.search(vc, caller.person)
            number = await self._publish(subject, request, key, headers)
            asked = (number, vc, caller.person)

            def decided() -> SearchVerdict | None:
                # What the bus takes for a repetition comes to no service again.
                return pending.about_search or self._told.get(asked) or known(number, key)

            await self._watch.until(inbox, lambda: decided() is not None, VERDICT_TIMEOUT_S)
            verdict = decided()
            if verdict is not None:
                self._told[asked] = verdict
                if len(self._told) > TOLD_MAX:
                    del self._told[next(iter(self._told))]
            return verdict
        finally:
            del self._pending[inbox], self._of_searches[inbox]

    async def note(self, caller: Caller, action: str, target: str, vc: str, owner: str) -> None:
        """Write into the audit log what a caller does to what is another's, before it is done.

        Raises:
            ApiError: It cannot be written (503).
        """
        if owner != caller.person:
            await self._note(caller, action, target, vc)

    async def tell(self, caller: Caller, verb: str, message: Any) -> Answer:
        """Publish an operator's change.

        Args:
            verb: The change, as in the subject it is published on.
            message: What is published.

        Raises:
            ApiError: The bus does not take it (503).
        """
        target = getattr(message, "node", "") or ",".join(getattr(message, "vcs", ()))
        await self._note(caller, f"admin {verb}", target, "")
        log.info("change asked for", verb=verb, by=caller.name)
        payload = codec.encode(message)
        await self._publish(subjects.admin(verb), payload, secrets.token_hex(16), {})
        return Answer(202, {"accepted": True})

    # --- verdicts ------------------------------------------------------------------------------

    def _ask(self, vc: str, person: str) -> tuple[str, Pending]:
        """Return where a verdict is waited for: a subject of the asker's, so that no other fits."""
        self._asked += 1
        inbox = subjects.reply(vc, f"{self._asker}.{self._asked}", person)
        pending = Pending()
        self._pending[inbox] = pending
        return inbox, pending

    async def _verdict(self, delivery: Delivery) -> None:
        pending = self._pending.get(delivery.subject)
        if pending is None:
            return  # Its client has its answer from the facts, or has given up.
        try:
            if delivery.subject in self._of_searches:
                pending.about_search = _SEARCH_VERDICTS.decode(delivery.payload)
            else:
                pending.verdict = _VERDICTS.decode(delivery.payload)
        except UNDECODABLE as error:
            log.warning("unreadable verdict", error=str(error))
            return
        if pending.job:
            self._watch.wake((pending.job,))

    def _decided(self, job: str, pending: Pending) -> Verdict | None:
        """Return the verdict as it came, or as the facts say it."""
        if pending.verdict is not None:
            return pending.verdict
        found = self._indexer.fold.find(job)
        if found is None or found.row.state is State.SUBMITTED:
            return None
        if found.row.state is State.REFUSED:
            reason = found.problems[0].reason if found.problems else None
            return Verdict(job=job, accepted=False, reason=reason, problems=found.problems)
        reason = Reason.REPEATED if found.row.job != job else None
        return Verdict(job=found.row.job, accepted=True, reason=reason, judged=judged_of(found))

    def _submitted(self, job: str, vc: str, person: str, verdict: Verdict | None) -> Answer:
        found = self._indexer.fold.find(job)
        row = found.row if found is not None else None
        if row is not None and row.vc and (row.vc, row.owner) != (vc, person):
            # The bus knows keys for all people together, and took this for a repetition.
            text = "this Idempotency-Key was used by another a moment ago: choose another"
            raise ApiError(409, "key-used", text)
        if verdict is None:
            return Answer(202, {"job": job, "accepted": None})
        if not verdict.accepted:
            raise refused(
                _status(verdict.reason, 422), verdict.reason, verdict.problems, verdict.job
            )
        repeated = verdict.reason is Reason.REPEATED
        body = {"job": verdict.job, "accepted": True, "repeated": repeated}
        if verdict.judged is not None:
            body["judged"] = verdict.judged
        return Answer(201, body)

    async def _publish(self, subject: str, body: bytes, key: str, headers: dict[str, str]) -> int:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                return await self._bus.publish(subject, body, key, headers)
        except TimeoutError:
            text = (
                f"the bus did not take it within {PUBLISH_TIMEOUT_S:.0f} s; it may have arrived "
                f"all the same: repeat it with the same Idempotency-Key"
            )
            raise ApiError(503, "bus-away", text, key=key) from None
        except (RefusedError, MissingStreamError) as error:
            if isinstance(error, FullError) and not subject.startswith(subjects.admin("")):
                text = (
                    f"the stream SUBMIT of the bus is full: repeat this in {FULL_RETRY_S:.0f} s; "
                    f"if it stays full, an operator has to see whether admission is away"
                )
                reason, wait_s = "submissions-full", FULL_RETRY_S
                raise ApiError(503, reason, text, key=key, retry_after_s=wait_s) from error
            raise ApiError(503, "bus-refused", f"the bus refuses it: {error}") from error


def submits(action: Action, caller: Caller, vc: str) -> None:
    """Stop at a caller that may have no jobs or searches of its own in a VC.

    Raises:
        ApiError: The VC is another tenant's, or the caller's role there is too low (403).
    """
    if not caller.person and not caller.may(vc):
        text = f"this token is for VC {caller.vc}, the spec names {vc}"
        refused = ApiError(403, Reason.WRONG_VC, text)
        refused.vc = vc
        raise refused
    check(action, caller, vc, caller.person)


def _status(reason: Reason | None, otherwise: int) -> int:
    """Return the status of a refusal: 403 if it is one of rights."""
    return 403 if reason in NO_RIGHT else otherwise


class _WithEnv(msgspec.Struct):
    env: dict[str, str] = {}


def env_of(body: bytes) -> dict[str, str]:
    """Return the environment in a spec; empty if there is none, or it is not sound."""
    try:
        return msgspec.json.decode(body, type=_WithEnv).env
    except UNDECODABLE:
        return {}


def judged_of(job: Job) -> Judged | None:
    """Return what was answered to the deadline of a job, as its row has it; None: it has none."""
    pledged = job.pledged
    if pledged is None:
        return None
    return Judged(
        answer=Answered(pledged.answer),
        why=Reason(pledged.why),
        due=Instant(pledged.due),
        text=pledged.text,
        p50=Instant(pledged.p50),
        p90=Instant(pledged.p90),
        note=pledged.note,
    )


def _taken(job: Job, number: int) -> bool:
    return any(one.taken for one in job.asks if one.number == number)


def _raise_if_refused(job: Job, number: int) -> None:
    """Stop at a change that the allocator has refused.

    Raises:
        ApiError: The allocator has refused the change that has this number (409).
    """
    for one in job.asks:
        if one.number == number and one.result == Result.REFUSED:
            reason = one.why or Result.REFUSED
            text = TEXT[Reason(one.why)] if one.why else "the allocator refuses it"
            detail = f": {one.detail}" if one.detail else ""
            raise ApiError(409, reason, f"{text}{detail}", job=job.row.job, number=number)


def vc_of(body: bytes) -> str:
    """Return the VC a spec is for.

    Raises:
        too_large: An ApiError (413): the spec has more than SPEC_BYTES_MAX bytes.
        refused: An ApiError (422): the spec names no VC; the error has all of its problems.
    """
    if len(body) > SPEC_BYTES_MAX:
        raise too_large()
    try:
        tree = msgspec.json.decode(body)
    except UNDECODABLE:
        tree = None
    vc = tree.get("vc") if isinstance(tree, dict) else None
    if isinstance(vc, str) and is_token(vc):
        return vc
    problems = parse_spec(body)
    assert isinstance(problems, list), problems
    raise refused(422, problems[0].reason, problems, None)


def too_large() -> ApiError:
    """Return the answer to a body no spec may have."""
    text = f"a spec has at most {SPEC_BYTES_MAX} bytes"
    problem = Problem(path="$", reason=Reason.TOO_LARGE, text=text)
    return ApiError(413, Reason.TOO_LARGE, text, (problem,))


def _checked_key(key: str | None) -> str:
    if key is None:
        return secrets.token_hex(16)
    if not 1 <= len(key) <= KEY_MAX or not (key.isascii() and key.isprintable()):
        text = f"an Idempotency-Key has 1 to {KEY_MAX} printable ASCII characters"
        raise ApiError(400, Reason.BAD_VALUE, text)
    return key


def refused(status: int, reason: Reason | None, problems: Any, job: str | None) -> ApiError:
    """Return the answer to what was refused, with what is wrong with it.

    Args:
        reason: Why it was refused; None: `refused` stands there.
        problems: What is wrong with it; the first one is the text.
        job: The job that it is about; None: there is no job.
    """
    first = problems[0].text if problems else (TEXT[reason] if reason is not None else "refused")
    return ApiError(status, reason or "refused", first, problems, job=job)
