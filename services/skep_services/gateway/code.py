"""`/v1/code`: snapshots of code, handed in by clients; and what nodes ask for of them.

    PUT  /v1/code/{vc}/{digest}   a snapshot -> which of its chunks are to be sent; none: it is kept
    POST /v1/code/{vc}            chunks, each with its length (4 bytes) before it

Both may be repeated without harm: what is stored is known by its digest. A gateway that dies amid
this loses nothing that was acknowledged by a kept snapshot; the client sends the rest again.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from aiohttp import web

from skep.access.rights import Action
from skep.ids import is_token
from skep.ledger.job_state import JobState
from skep.ledger.state import ClusterState
from skep.units import MIB
from skep.wire import subjects
from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.reasons import Reason
from skep.wire.snapshot import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    VC_BYTES_MAX,
    AskCode,
    decode,
    digest_of,
    encode,
    is_digest,
)
from skep_services.gateway.api import ApiError, caller_of, json_response
from skep_services.gateway.code_store import CodeFullError, CodeStore
from skep_services.gateway.submit import submits
from skep_services.ports import Bus, Delivery, FullError, MissingStreamError, RefusedError

log = structlog.get_logger(service="gateway")

LIST_BYTES_MAX = CHUNKS_MAX * 80 + 1000
BODY_BYTES_MAX = 4 * MIB + 64
BODY_S = 120.0
"""What one body may take to come: 35 KB/s."""
BODIES_MAX = 8
"""Bodies of chunks that are read at once: 32 MiB of memory."""
LENGTH = struct.Struct(">I")
PUBLISH_TIMEOUT_S = 20.0
GATEWAY_HEADER = "Skep-Gateway"
REFUSED_HEADER = "Skep-Refused"
REASON_HEADER = "Skep-Reason"

ANSWERS_MAX = 16
"""Chunks that are read for nodes at once."""
WAITING_MAX = 1024
"""Requests of nodes that wait; a node repeats one that is not answered."""

_ASKS = msgspec.json.Decoder(AskCode)

Ledger = Callable[[], ClusterState]
"""Returns the allocator's state as its facts say it."""


class Code:
    """The handlers of `/v1/code`, and the answers to nodes."""

    def __init__(self, bus: Bus, store: CodeStore, state: Ledger, identity: str) -> None:
        self._bus, self._store, self._state, self._identity = bus, store, state, identity
        self._answers = asyncio.Semaphore(ANSWERS_MAX)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bodies = asyncio.Semaphore(BODIES_MAX)

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/code/{vc}", self.listing, allow_head=False),
            web.post("/v1/code/{vc}", self.chunks),
            web.put("/v1/code/{vc}/{digest}", self.put),
        ]

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer which snapshots a VC has, and how much it may have.

        Raises:
            ApiError: The VC is no name (400), or another's (403).
        """
        vc = _vc(request)
        found = [
            {
                "code": digest,
                "files": kept.snapshot.files,
                "bytes": kept.snapshot.bytes,
                "at": kept.at,
            }
            for digest, kept in self._store.listed(vc).items()
        ]
        used = self._store.bytes_of(vc)
        return json_response({"vc": vc, "bytes": used, "bytes_max": VC_BYTES_MAX, "code": found})

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Keep a snapshot, or answer which of its chunks are to be sent first.

        Raises:
            ApiError: It is none (400), too large (413), the VC is another's (403) or has as much
                code as it may (409), or the store has no room (503).
        """
        vc, digest = _vc(request), request.match_info["digest"]
        raw = await _body(request, LIST_BYTES_MAX)
        snapshot = decode(raw)
        if isinstance(snapshot, str):
            raise ApiError(400, Reason.BAD_VALUE, snapshot)
        if not is_digest(digest) or digest_of(raw) != digest:
            text = "the snapshot's digest is another than its address says"
            raise ApiError(400, Reason.BAD_VALUE, text)
        if missing := self._store.missing(vc, snapshot):
            return json_response({"code": digest, "kept": False, "missing": missing})
        await _stored(self._store.keep(vc, digest, snapshot))
        log.info("code kept", vc=vc, code=digest, bytes=snapshot.bytes, by=caller_of(request).name)
        return json_response({"code": digest, "kept": True, "missing": []}, 201)

    async def chunks(self, request: web.Request) -> web.StreamResponse:
        """Keep chunks.

        Raises:
            ApiError: They are none (400), too large (413), or slow (408); the VC is another's
                (403) or sent too many (409), or the store has no room (503).
        """
        vc = _vc(request)
        async with self._bodies:
            chunks = _framed(await _body(request, BODY_BYTES_MAX))
            await _stored(self._store.put_chunks(vc, chunks))
        return json_response({"chunks": len(chunks)}, 201)

    def check(self, vc: str, body: bytes) -> None:
        """Stop at a spec whose code is not here.

        Raises:
            ApiError: It names a snapshot that its VC does not have (422).
        """
        for code in _code_of(body):
            if not is_digest(code) or self._store.find(vc, code) is not None:
                continue
            text = f"VC {vc} has no snapshot {code[:12]}: submit with `skep submit`, which sends it"
            raise ApiError(422, Reason.NO_CODE, text)

    # --- nodes ----------------------------------------------------------------------------------

    async def answer(self, asked: Delivery) -> None:
        """Hand a node a snapshot, or a chunk of it, of a job that it is to run; or say why not."""
        if asked.reply and len(self._tasks) < WAITING_MAX:
            task = asyncio.create_task(self._answer(asked))
            self._tasks[id(task)] = task
            task.add_done_callback(lambda done: self._tasks.pop(id(done)))

    async def close(self) -> None:
        """Answer no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, asked: Delivery) -> None:
        payload, refused = b"", None
        try:
            async with self._answers:
                payload = await self._given(asked)
        except _Refusal as refusal:
            refused = refusal
        headers = {GATEWAY_HEADER: self._identity}
        if refused is not None:
            headers[REFUSED_HEADER] = one_line(refused)
            headers[REASON_HEADER] = refused.reason
        await self._bus.send(asked.reply, payload, headers)

    async def _given(self, asked: Delivery) -> bytes:
        try:
            ask = _ASKS.decode(asked.payload)
        except UNDECODABLE as error:
            raise _Refusal(Reason.BAD_VALUE, str(error)) from None
        parsed = subjects.parse(asked.subject)
        if parsed is None or parsed.first != ask.node:
            raise _Refusal(Reason.NOT_BOUND_HERE, f"{ask.node} is not the node that asks")
        job = self._state().jobs.get(ask.job)
        if (
            job is None
            or ask.code not in job.spec.snapshots
            or not _is_on(job, ask.attempt, ask.node)
        ):
            text = f"attempt {ask.attempt} of {ask.job} with this code is not bound to {ask.node}"
            raise _Refusal(Reason.NOT_BOUND_HERE, text)
        snapshot = self._store.find(job.spec.vc, ask.code)
        if snapshot is None:
            text = f"VC {job.spec.vc} has no snapshot {ask.code[:12]} any more: submit it again"
            raise _Refusal(Reason.NO_CODE, text)
        if not ask.chunk:
            return encode(snapshot)
        if not any(one.digest == ask.chunk for one in snapshot.chunks):
            raise _Refusal(Reason.NO_CODE, "the snapshot has no such chunk")
        data = await self._store.chunk(job.spec.vc, ask.chunk)
        if data is None:
            text = (
                f"chunk {ask.chunk[:12]} of the snapshot {ask.code[:12]} is lost or corrupt in the "
                "store: submit the job again from its folder, which sends it anew"
            )
            raise _Refusal(Reason.NO_CODE, text)
        return data


class _Refusal(Exception):  # noqa: N818  a name for what happened
    """A node gets nothing; the text says why."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class _Files(msgspec.Struct):
    files: str = ""


class _WithCode(msgspec.Struct):
    code: str = ""
    environment: _Files | None = None


def _code_of(body: bytes) -> list[str]:
    """Return the snapshots that a spec names."""
    try:
        found = msgspec.json.decode(body, type=_WithCode)
    except UNDECODABLE:
        return []  # Whatever is wrong with the spec is said of it elsewhere.
    return [found.code, found.environment.files if found.environment is not None else ""]


def _is_on(job: JobState, attempt: int, node: str) -> bool:
    if attempt == job.attempt:
        return node in job.members
    following = job.successor
    return following is not None and attempt == following.attempt and node in following.members


def _vc(request: web.Request) -> str:
    """Return the VC that a request is about, in which the caller may have jobs.

    Raises:
        ApiError: It is no name (400), or the caller may have none there (403).
    """
    vc = request.match_info["vc"]
    if not is_token(vc):
        raise ApiError(400, Reason.BAD_VALUE, "a VC has a name of letters, digits, `_` and `-`")
    submits(Action.SUBMIT, caller_of(request), vc)
    return vc


async def _body(request: web.Request, most: int) -> bytes:
    """Return a request's body.

    Raises:
        ApiError: It is too large (413), or takes too long (408).
    """
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.content.iter_any():
                found += piece
                if len(found) > most:
                    text = f"a body here has at most {most} bytes"
                    raise ApiError(413, Reason.TOO_LARGE, text)
    except TimeoutError:
        raise ApiError(408, "slow", f"the body did not come within {BODY_S:.0f} s") from None
    return bytes(found)


def _framed(body: bytes) -> list[bytes]:
    """Return the chunks in a body.

    Raises:
        ApiError: They are not framed as they should be (400).
    """
    found, at = [], 0
    while at < len(body):
        size = LENGTH.unpack_from(body, at)[0] if len(body) - at >= LENGTH.size else 0
        at += LENGTH.size
        if not 1 <= size <= CHUNK_BYTES_MAX or at + size > len(body):
            text = f"chunks have 1 to {CHUNK_BYTES_MAX} bytes, and their length before them"
            raise ApiError(400, Reason.BAD_VALUE, text)
        found.append(body[at : at + size])
        at += size
    return found


async def _stored(work: Any) -> None:
    """Wait until the bus has stored something.

    Raises:
        ApiError: It does not (503), or the VC has as much as it may (409).
    """
    try:
        async with asyncio.timeout(PUBLISH_TIMEOUT_S):
            await work
    except TimeoutError:
        raise ApiError(503, "bus-away", "the bus did not take it: repeat it") from None
    except CodeFullError as error:
        raise ApiError(409, Reason.CODE_FULL, str(error)) from None
    except FullError:
        text = (
            "the store of code is full, and the job was not submitted: wait until jobs with code "
            "have ended, or have an operator look (`skep doctor`); nothing else is affected"
        )
        raise ApiError(503, Reason.CODE_FULL, text) from None
    except (RefusedError, MissingStreamError) as error:
        raise ApiError(503, "bus-refused", f"the bus refuses it: {error}") from error
