"""What every request goes through: the caller, the shape of errors, the duration."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
from aiohttp import web

from skep.access.rights import RIGHTS, Action, Ruling, may
from skep.ids import is_token
from skep.wire import codec
from skep.wire.bounds import UNDECODABLE
from skep.wire.reasons import TEXT, Reason
from skep.wire.spec import Problem
from skep_services.gateway.callers import Caller
from skep_services.gateway.metrics import Metrics
from skep_services.gateway.route_rights import ACTIONS
from skep_services.gateway.rows import Job
from skep_services.service import ConfigurationError

log = structlog.get_logger(service="gateway")

OPERATOR = "operator"
OPEN_PATHS = (
    "/",
    "/v1/health",
    "/metrics",
    "/v1/ca",
    "/v1/login",
    "/v1/login/provider",
    "/v1/login/begin",
    "/v1/login/end",
    "/v1/join",
    "/v1/renew",
    "/v1/openapi.json",
    "/v1/docs",
)
"""What answers without a token: nothing there names a job or a tenant's secret. To log in, to join
and to renew one shows something else."""
API_PREFIX = "/v1/"
CALLS = "/v1/services/{service}/http/{path}"
"""The route of requests to services: what bounds them is not what bounds requests to Skep."""
"""What is not under it is the page, and what monitors read."""
QUERY_NUMBER_MAX = 2**53
GONE = 499
"""The client went away; the number is what nginx calls it."""

CODES: Mapping[str, Reason] = {reason.value: reason for reason in Reason}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """An answer that is not what was asked for: status, reason code, and what to do about it."""

    def __init__(
        self, status: int, reason: str, text: str, problems: Sequence[Problem] = (), **more: Any
    ) -> None:
        super().__init__(text)
        self.status = status
        self.why = CODES.get(reason, Reason.ROLE_TOO_LOW) if status == 403 else None
        """Why the caller has no right to what it asked for, as the audit log says it; None: it is
        refused for something else, or there is a line already."""
        self.vc = ""
        """The VC that it has no right in, if it is of one."""
        self.caller: Caller | None = None
        """The caller, where it is known and yet refused as such."""
        self.body = {"error": {"reason": reason, "text": text, "problems": problems}, **more}


CALLER: ContextVar[Caller] = ContextVar("caller")
"""The caller whose request the current task answers."""


class Tokens:
    """The callers by bearer token. Those of a file are read again when it changes."""

    def __init__(self, tokens: Mapping[str, str], path: Path | None = None) -> None:
        """Take the tokens.

        Args:
            tokens: The identity (`operator` or `vc-<vc>`) by token.
            path: The file that they are from, which `refresh` reads again; None: they never change.

        Raises:
            ConfigurationError: An identity is neither, or a token is empty.
        """
        self._callers = self._checked(tokens)
        self._path, self._seen = path, _state(path)

    @staticmethod
    def _checked(tokens: Mapping[str, str]) -> list[tuple[bytes, Caller]]:
        callers: list[tuple[bytes, Caller]] = []
        for token, name in tokens.items():
            vc = name.removeprefix("vc-") if name.startswith("vc-") else ""
            if not token or not (name == OPERATOR or (vc and is_token(vc))):
                text = f"SKEP_TOKENS: {name!r} is neither `operator` nor `vc-<vc>`"
                raise ConfigurationError(text)
            callers.append((token.encode(), Caller(name, vc)))
        return callers

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Return the tokens in a JSON file.

        Raises:
            ConfigurationError: The file cannot be read, or does not hold identities by token.
        """
        try:
            return cls(msgspec.json.decode(path.read_bytes(), type=dict[str, str]), path)
        except (OSError, *UNDECODABLE) as error:
            text = f'SKEP_TOKENS: {path} must be JSON like {{"<token>": "operator"}}: {error}'
            raise ConfigurationError(text) from error

    def key(self, purpose: str) -> bytes:
        """Return a key that all gateways with these tokens have, and none but they."""
        made = hashlib.sha256(purpose.encode())
        for token in sorted(token for token, _ in self._callers):
            made.update(b"\0" + token)
        return made.digest()

    def refresh(self) -> None:
        """Take over the file's tokens if it changed; one that cannot be read changes nothing."""
        if self._path is None or (state := _state(self._path)) == self._seen:
            return
        try:
            self._callers = Tokens.read(self._path)._callers
            log.info("tokens read again", tokens=len(self._callers))
        except ConfigurationError as error:
            log.error("tokens not read again", error=str(error))
        self._seen = state

    def caller(self, authorization: str) -> Caller | None:
        """Return the caller with this Authorization header; None if it has no known token."""
        scheme, _, given = authorization.partition(" ")
        found = None
        secret = given.strip().encode("utf-8", "surrogateescape")
        for token, caller in self._callers:
            # Every token is compared, in constant time: the time it takes says nothing.
            if hmac.compare_digest(token, secret):
                found = caller
        return found if scheme.lower() == "bearer" else None


def _state(path: Path | None) -> tuple[int, int, int]:
    """Return what differs between two contents of a file; zeros without a file."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return 0, 0, 0
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found is not None else (0, 0, 0)


class Authenticates(Protocol):
    """Finds the caller of a request."""

    async def caller(self, request: web.Request) -> Caller:
        """Return the caller.

        Raises:
            ApiError: There is none, or it is refused.
        """
        ...


def middleware(
    authentication: Authenticates,
    metrics: Metrics,
    count: Callable[[Caller], None],
    note: Callable[[Caller, web.Request, ApiError], None],
) -> Any:
    """Return the middleware that authenticates, measures, and turns errors into JSON.

    Args:
        authentication: Finds the callers.
        metrics: Every request is counted in it.
        count: Takes the caller of each request that has a token. It raises ApiError for one too
            many.
        note: Takes what is refused to callers, for the audit log.
    """

    @web.middleware
    async def through(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        status = 500
        caller: Caller | None = None
        try:
            if not is_open(request.path):
                caller = await authentication.caller(request)
                CALLER.set(caller)
                if not _is_call(request):
                    count(caller)
                    _not_packed(request)
                _admit(request, caller)
            response = await handler(request)
            status = response.status
        except ApiError as error:
            status = error.status
            if (refused := error.caller or caller) is not None:
                note(refused, request, error)
            response = json_response(error.body, status)
            if "retry_after_s" in error.body:
                # The header has whole seconds; the body says it exactly.
                response.headers["Retry-After"] = str(math.ceil(error.body["retry_after_s"]))
        except web.HTTPException as error:
            status = error.status
            response = json_response(_http_error(request, error), status)
            if isinstance(error, web.HTTPMethodNotAllowed):
                response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        except ConnectionError:
            status = GONE
            if not is_gone(request):
                raise
            response = web.Response(status=GONE)  # No one reads it, and no failure is logged.
        except asyncio.CancelledError:
            status = GONE
            raise
        except Exception:
            log.exception("request failed", method=request.method, path=request.path)
            body = {"reason": "internal", "text": "the gateway failed; its log says how"}
            response = json_response({"error": body}, 500)
        finally:
            resource = request.match_info.route.resource
            route = resource.canonical if resource is not None else "unknown"
            metrics.answered(request.method, route, status, time.perf_counter() - began)
        return response

    return through


def is_gone(request: web.Request) -> bool:
    """Return whether the client of a request has closed its connection."""
    return request.transport is None or request.transport.is_closing()


def _not_packed(request: web.Request) -> None:
    """Refuse a compressed body, which nothing here unpacks.

    Raises:
        web.HTTPUnsupportedMediaType: It is one (415).
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise web.HTTPUnsupportedMediaType(reason="send the body without Content-Encoding")


def _is_call(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical == CALLS


def is_open(path: str) -> bool:
    """Return whether a path answers without a token."""
    return path in OPEN_PATHS or not path.startswith(API_PREFIX)


def caller_of(request: web.Request) -> Caller:
    """Return the caller of the authenticated request that this task answers."""
    assert not is_open(request.path), request.path
    return CALLER.get()


def json_response(value: Any, status: int = 200) -> web.Response:
    """Return a value as a JSON answer."""
    return raw_response(codec.encode(value), status)


def raw_response(body: bytes, status: int = 200) -> web.Response:
    """Return JSON that is already encoded."""
    return web.Response(body=body, status=status, content_type="application/json")


def takes_gzip(request: web.Request) -> bool:
    """Return whether a client reads gzip, by its Accept-Encoding."""
    for each in request.headers.get("Accept-Encoding", "").split(","):
        name, _, weight = each.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def number(request: web.Request, name: str, default: int, most: int = QUERY_NUMBER_MAX) -> int:
    """Return a query parameter that is a whole number of 0 or more.

    Args:
        default: What is returned if the request does not have it.
        most: What is returned for any larger number.

    Raises:
        ApiError: It is no such number (400).
    """
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ApiError(400, Reason.BAD_VALUE, f"`{name}` must be a number of 0 or more")
    return min(int(text), most)


def forbidden(ruling: Ruling) -> ApiError:
    """Return the answer to what a caller may not do; it names the role that would be enough."""
    assert ruling.reason is not None, ruling
    error = ApiError(403, ruling.reason, ruling.text)
    error.vc = ruling.vc
    return error


def check(action: Action, caller: Caller, vc: str, owner: str = "") -> None:
    """Stop at what a caller may not do to what belongs to a VC.

    Args:
        action: What it wants to do.
        caller: The caller.
        vc: The VC, in which the caller may see what there is.
        owner: The person whose job or search it is; empty: the VC's.

    Raises:
        forbidden: An ApiError (403): its role is too low.
    """
    ruling = caller.ruling(action, vc, owner)
    if ruling.reason is Reason.NOT_ITS_OWNER and owner:
        ruling = msgspec.structs.replace(ruling, text=f"{ruling.text}, and it is {owner}'s")
    if not ruling:
        raise forbidden(ruling)


def wrong_vc(caller: Caller, vc: str) -> ApiError:
    """Return the answer to what is about a VC of which the caller sees nothing."""
    if caller.person:
        return forbidden(caller.ruling(Action.SEE_JOBS, vc))
    error = ApiError(403, Reason.WRONG_VC, f"this token is for VC {caller.vc}, not {vc}")
    error.vc = vc
    return error


def no_array(job: Job) -> None:
    """Refuse an array where only one job will do.

    Raises:
        ApiError: It is one (422).
    """
    if job.row.tasks is not None:
        name = job.row.job
        text = f"{name} is an array: name a task of it, such as {name}[0]"
        raise ApiError(422, Reason.CANNOT, text)


def unknown_job(name: str) -> ApiError:
    """Return the answer for a job that does not exist, or that the caller may not know of."""
    return ApiError(404, Reason.UNKNOWN_JOB, f"there is no job {name}")


def hidden(error: ApiError, vc: str) -> ApiError:
    """Return an answer that hides something of a VC; the audit log says that it was asked for."""
    error.why, error.vc = Reason.NO_ROLE, vc
    return error


def _admit(request: web.Request, caller: Caller) -> None:
    """Stop at what the caller has no right to in any VC, or to any job: the rest is the handler's.

    What has no right in the table is refused to people, so that nothing is open by an oversight.

    Raises:
        forbidden: An ApiError (403): no role of the caller is high enough.
        ApiError: Only an operator may do this (403).
    """
    resource = request.match_info.route.resource
    if resource is None or not caller.person or caller.operator:
        return  # Handlers say what a tenant may.
    action = ACTIONS.get((request.method, resource.canonical))
    if action is None:
        raise forbidden(Ruling(False, Reason.ROLE_TOO_LOW, "only an operator may do this"))
    if RIGHTS[action].own is None:
        return
    ruling = may(action, caller.highest, own=True)
    if not ruling:
        raise forbidden(ruling)


def _http_error(request: web.Request, error: web.HTTPException) -> dict[str, Any]:
    match error.status:
        case 404:
            reason, text = "not-found", f"there is no {request.path} here"
        case 405:
            reason, text = "method-not-allowed", f"{request.method} is not for {request.path}"
        case 413:
            reason, text = Reason.TOO_LARGE.value, TEXT[Reason.TOO_LARGE]
        case _:
            reason, text = str(error.status), error.reason
    return {"error": {"reason": reason, "text": text, "problems": []}}
