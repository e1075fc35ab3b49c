"""What takes several requests, told once for both clients: each step is asked for by a generator.

A generator yields a step and is sent what came of it. `Client` does the steps one after another in
the caller's thread, `AsyncClient` in its event loop. Nothing is sent or waited for here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

import msgspec

from skep.wire.changes import Result as ChangeResult
from skep.wire.reasons import Reason
from skep.wire.service import ServiceSpec
from skep_client import calls
from skep_client.calls import POLL_S, Call, JobLike, Spec
from skep_client.errors import (
    BAD_ANSWER,
    UNREACHABLE,
    BadAnswerError,
    BadCallError,
    ChangeFailedError,
    NotInTimeError,
    UnreachableError,
)
from skep_services.cli.client import EventParser, query, quote
from skep_services.gateway.answers import (
    ChangeTaken,
    JobDetail,
    Plan,
    SearchDetail,
    ServiceDetail,
    VcList,
)
from skep_services.gateway.rows import ENDED, Asked, Event, State

Result = TypeVar("Result")

LINE_BYTES_MAX = 64 * 1024
"""A line of a log that is longer comes in pieces: a progress bar may never end its line."""
EVENT_BYTES_MAX = 1024 * 1024
"""An event is some hundred bytes. What never ends one is no gateway."""
BETWEEN_ATTEMPTS_S = 1
"""After the log of an attempt ended: how long to wait for the job's end before the next look."""


STARTED = (State.RUNNING, State.SUSPENDED, State.STOPPING, *ENDED)


class Open(msgspec.Struct, frozen=True):
    """Begin to read an answer that goes on, in place of the one before.

    `silent_s`: how long it may say nothing (seconds); None: for ever.
    """

    path: str
    silent_s: float | None


class Next(msgspec.Struct, frozen=True):
    """Read on. What comes of it: bytes, none of them at the end; None: the connection was lost."""


class Pause(msgspec.Struct, frozen=True):
    """Wait a moment before the next try."""


class Do(msgspec.Struct, frozen=True):
    """Do what may take a while on this machine, such as reading a folder; its result comes back."""

    work: Callable[[], Any]


class Out(msgspec.Struct, frozen=True):
    """Give something to the caller."""

    value: Any


Steps = Generator[Call[Any] | Do, Any, Result]
"""Requests whose answers lead to a result."""
Stream = Generator[Call[Any] | Do | Open | Next | Pause | Out, Any, None]
"""Requests and readings that give the caller one thing after the other."""


def planned(spec: Spec | None, more: Mapping[str, Any], vc: str | None) -> Steps[Plan]:
    """Ask what would become of a spec, which is made up as for a submission."""
    whole = yield from whole_of(spec, more, vc)
    answer: Plan = yield calls.plan(whole)
    return answer


def whole_of(
    spec: Spec | ServiceSpec | None, more: Mapping[str, Any], vc: str | None
) -> Steps[dict[str, Any]]:
    """Return the spec, or what the keywords `more` say; in `vc`, or the only VC, if it names none.

    Raises:
        BadCallError: The spec is none, or names no VC where there are several.
    """
    if spec is None:
        tree: Any = {}
    else:
        try:
            tree = msgspec.to_builtins(spec)
        except (TypeError, ValueError, RecursionError) as error:
            text = f"the spec cannot be sent as JSON: {error}"
            raise BadCallError(text) from None
    if not isinstance(tree, dict):
        text = f"a spec is a JobSpec or a dict, not {type(spec).__name__}"
        raise BadCallError(text)
    if not tree and not more:
        text = "there is no spec: give a JobSpec or a dict, or keywords such as name="
        raise BadCallError(text)
    whole = {**tree, **{name: value for name, value in more.items() if value is not None}}
    if whole.get("vc") is None:
        whole["vc"] = vc or _only((yield calls.vcs()))
    return whole


def _only(known: VcList) -> str:
    names = [one.vc for one in known.vcs]
    if len(names) == 1:
        return names[0]
    if "default" in names:
        return "default"
    listed = ", ".join(names) or "there is none"
    text = f"which virtual cluster? say vc= or SKEP_VC; there are: {listed}"
    raise BadCallError(text)


# --- waiting -------------------------------------------------------------------------------------


class _Deadline:
    """Says how long the next request may wait."""

    def __init__(self, timeout_s: float | None, what: str) -> None:
        if timeout_s is not None and not timeout_s >= 0:
            text = f"timeout_s is {timeout_s!r}: it is a number of seconds, 0 or more, or None"
            raise BadCallError(text)
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        self._timeout_s, self._what = timeout_s, what

    def poll_s(self) -> int:
        """Return how long a request may wait at the gateway (whole seconds).

        Raises:
            NotInTimeError: The time is over.
        """
        if self._until is None:
            return POLL_S
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            text = f"{self._what} within {self._timeout_s:g} s"
            raise NotInTimeError(text)
        return max(1, min(POLL_S, int(left_s)))


def waited(job: JobLike, until: str, timeout_s: float | None) -> Steps[JobDetail]:
    """Wait until a job has started or ended.

    Raises:
        BadCallError: `until` is something else.
        NotInTimeError: The time is over.
    """
    if until not in ("started", "ended"):
        text = f"until={until!r:.80}: wait until 'started' or 'ended'"
        raise BadCallError(text)
    row: JobDetail = yield calls.job(job)  # A name may mean another job by the next request.
    deadline = _Deadline(timeout_s, f"{row.job} has not {until}")
    reached = STARTED if until == "started" else ENDED
    while row.state not in reached:
        row = yield calls.job_once(row.job, until, deadline.poll_s())
    return row


def changed(given: Any, timeout_s: float | None) -> Steps[Asked]:
    """Wait for the end of a change.

    Args:
        given: What asking for it returned.
        timeout_s: At most so long (seconds); None: for ever.

    Raises:
        BadCallError: It is no change.
        ChangeFailedError: It was refused or undone, or the job ended first.
        NotInTimeError: The time is over. The change goes on.
    """
    if not isinstance(given, ChangeTaken):
        text = f"not a change: {given!r:.80} (give what suspend, resume, ... returned)"
        raise BadCallError(text)
    taken = given
    deadline = _Deadline(timeout_s, f"{taken.job}: {taken.ask} has not ended")
    while True:
        row: JobDetail = yield calls.job_once(taken.job, "asked", deadline.poll_s(), taken.number)
        for one in row.asks:
            if one.number == taken.number and one.result is not None:
                return _done(one, row.job)
        if row.state in ENDED:
            text = f"{row.job} has ended before its {taken.ask}: {row.state}"
            raise ChangeFailedError(Reason.ALREADY_ENDED, text)


def _done(one: Asked, job: str) -> Asked:
    if one.result == ChangeResult.DONE:
        return one
    about = f": {one.detail}" if one.detail else ""
    text = f"{job}: {one.ask} is {one.result}{f' ({one.why})' if one.why else ''}{about}"
    raise ChangeFailedError(one.why or one.result or "", text)


def search_over(search: str, timeout_s: float | None) -> Steps[SearchDetail]:
    """Wait for the end of a search.

    Raises:
        NotInTimeError: The time is over.
    """
    deadline = _Deadline(timeout_s, f"{search} is not over")
    found: SearchDetail = yield calls.search(search)
    while found.state != "over":
        found = yield calls.search(search, deadline.poll_s())
    return found


def service_reached(service: str, until: str, timeout_s: float | None) -> Steps[ServiceDetail]:
    """Wait until a service has its replicas ready, all as its spec says, or is over.

    Raises:
        BadCallError: `until` is something else.
        ChangeFailedError: The service is over before it is ready.
        NotInTimeError: The time is over.
    """
    if until not in ("ready", "over"):
        text = f"until={until!r:.80}: wait until 'ready' or 'over'"
        raise BadCallError(text)
    deadline = _Deadline(timeout_s, f"{service} is not {until}")
    found: ServiceDetail = yield calls.service(service)
    while not (_whole(found) if until == "ready" else found.state == "over"):
        if found.state == "over":
            text = f"{found.service} is over: {found.why}"
            raise ChangeFailedError(Reason.ALREADY_ENDED, text)
        found = yield calls.service(found.service, until, deadline.poll_s())
    return found


def _whole(found: ServiceDetail) -> bool:
    as_said = not found.updating and found.ready == found.wanted
    return found.state == "active" and as_said and found.replicas == found.wanted


def service_watched(service: str) -> Stream:
    """Give a service as it is, and as it is after every change, until it is over."""
    found: ServiceDetail = yield calls.service(service)
    while True:
        yield Out(found)
        seen = found.seq
        while found.seq == seen:
            if found.state == "over":
                return
            found = yield calls.service(found.service, "change", POLL_S, seen)


# --- reading on ----------------------------------------------------------------------------------


def watched(job: JobLike | None, vc: str | None, since: int | None, silent_s: float) -> Stream:
    """Give every event from now on, or after the event `since`, once and in order.

    Raises:
        BadAnswerError: What answers sends no events.
    """
    about = {"job": None if job is None else calls.job_name(job), "vc": vc}
    if since is None:
        # Without a number to go on from, what happens while a lost connection is made again
        # would be passed over.
        latest = yield calls.events(limit=1, **about)
        since = latest.events[-1].seq if latest.events else 0
    while True:
        parser, pending = EventParser(), 0
        yield Open(query("/v1/events", follow=1, since=since, **about), silent_s)
        while piece := (yield Next()):
            pending += len(piece)
            for identity, data in parser.feed(piece):
                pending = 0
                since = int(identity) if identity.isdecimal() else since
                yield Out(_event(data))
            if pending > EVENT_BYTES_MAX and not piece.endswith(b"\n"):
                text = "what answers sends no events: is it a gateway?"
                raise BadAnswerError(BAD_ANSWER, text)
            pending = 0 if piece.endswith(b"\n\n") else pending
        yield Pause()


def _event(data: str) -> Event:
    try:
        return msgspec.json.decode(data, type=Event)
    except msgspec.MsgspecError as error:
        text = f"an event cannot be read: {error}; is the gateway of another version?"
        raise BadAnswerError(BAD_ANSWER, text) from None


def log_lines(
    job: JobLike,
    rank: int,
    attempt: int | None,
    *,
    follow: bool,
    tail: int | None = None,
    since_s: int | None = None,
) -> Stream:
    """Give the lines of a rank's output: those there are, or all until the job has ended.

    Raises:
        BadCallError: There is no such rank or attempt, or what is followed is to be cut.
    """
    if follow and not (tail is None and since_s is None):
        text = "tail= and since_s= are for what there is: a log that is followed comes whole"
        raise BadCallError(text)
    if not isinstance(rank, int) or rank < 0:
        text = f"rank={rank!r}: a whole number, 0 or more"
        raise BadCallError(text)
    if attempt is not None and (not isinstance(attempt, int) or attempt < 1):
        text = f"attempt={attempt!r}: a whole number, 1 or more, or None for the latest"
        raise BadCallError(text)
    if follow:
        yield from _followed(job, rank, attempt)
        return
    row: JobDetail = yield calls.job(job)
    if not row.attempt and not row.attempts:
        return  # It was never started.
    cut = {"tail": tail, "since_s": since_s}
    yield from _attempt(row.job, rank, attempt or "latest", follow=False, **cut)


def _followed(job: JobLike, rank: int, only: int | None) -> Stream:
    row = yield from waited(job, "started", None)
    number = only or max(row.attempt, 1)
    while row.attempt:
        if number > row.attempt and row.state in ENDED:
            return
        if number <= row.attempt:
            yield from _attempt(row.job, rank, number, follow=True)
            if only:
                return
            number += 1
        row = yield calls.job_once(row.job, "ended", BETWEEN_ATTEMPTS_S)


def _attempt(job: str, rank: int, attempt: int | str, *, follow: bool, **cut: int | None) -> Stream:
    """Give the lines of one attempt. After a lost connection it goes on at the same byte.

    What is `cut` begins elsewhere than at byte 0, and is not gone on with.

    Raises:
        UnreachableError: The connection was lost amid what is cut.
    """
    is_cut = any(value is not None for value in cut.values())
    offset, rest = 0, b""
    path = f"/v1/jobs/{quote(job)}/logs"
    while True:
        more = offset or None
        asked = {"rank": rank, "attempt": attempt, "follow": int(follow), "offset": more, **cut}
        yield Open(query(path, **asked), None)
        while piece := (yield Next()):
            offset += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield Out(_text(line))
            while len(rest) > LINE_BYTES_MAX:
                yield Out(_text(rest[:LINE_BYTES_MAX]))
                rest = rest[LINE_BYTES_MAX:]
        if piece is not None:
            if rest:
                yield Out(_text(rest))
            return
        if is_cut and offset:
            raise UnreachableError(UNREACHABLE, f"the log of {job} was cut off: ask again")
        yield Pause()


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
