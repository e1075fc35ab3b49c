"""What goes wrong, as exceptions: each has a stable code and one clear line."""

from __future__ import annotations

import msgspec

from skep_services.gateway.answers import ErrorAnswer, ErrorTold, Wrong

BAD_VALUE = "bad-value"
UNREACHABLE = "unreachable"
NOT_BELIEVED = "not-believed"
BAD_ANSWER = "bad-answer"
TIMEOUT = "timeout"
"""The codes that are the client's own."""


class SkepError(Exception):
    """Something went wrong.

    Args:
        reason: The stable code: one of the reasons of docs/reference/reasons.md, or of the client.
        text: What is wrong, where, and what to do, in one line.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(" ".join(text.split()))
        self.reason = reason

    @property
    def text(self) -> str:
        """Return the line."""
        return str(self.args[0])


class BadCallError(SkepError, ValueError):
    """A call has an argument that no gateway can be asked with. Nothing was sent."""

    def __init__(self, text: str) -> None:
        super().__init__(BAD_VALUE, text)


class NoClusterError(SkepError):
    """There is no cluster to talk to: no address, no login and no state folder."""


class UnreachableError(SkepError):
    """The gateway is away, does not answer in time, or is not believed."""


class BadAnswerError(SkepError):
    """What answered is no gateway, or one of another version."""


class NotInTimeError(SkepError, TimeoutError):
    """What was waited for did not come within the time given. The job goes on."""

    def __init__(self, text: str) -> None:
        super().__init__(TIMEOUT, text)


class ChangeFailedError(SkepError):
    """A change of a running job was not done; the job is as it was, or has ended."""


class SessionError(SkepError):
    """A command in a job was not run, or the session was lost and the command is ended."""


class RefusedError(SkepError):
    """The gateway refused a request.

    Args:
        status: The status of HTTP.
        told: What the gateway said.
    """

    def __init__(self, status: int, told: ErrorAnswer) -> None:
        super().__init__(told.error.reason, told.error.text)
        self.status = status
        self.problems: tuple[Wrong, ...] = told.error.problems
        self.job = told.job
        """The job that it is about, if there is one."""
        self.retry_after_s = told.retry_after_s


class InvalidError(RefusedError):
    """What was sent is wrong (400, 413, 422); `problems` has every place."""


class UnauthorizedError(RefusedError):
    """The token is not known, or no longer good (401)."""


class ForbiddenError(RefusedError):
    """The caller has no right to it (403)."""


class NotFoundError(RefusedError):
    """There is no such job, search or node, or the caller may not know of it (404)."""


class ConflictError(RefusedError):
    """It cannot be done as things are (409): a job has ended, a name means several jobs."""


class TooManyError(RefusedError):
    """The tenant asks too much at once (429); `retry_after_s` says when to ask again."""


class UnavailableError(RefusedError):
    """The gateway or the bus cannot do it now (5xx). It may be repeated with the same key."""


_BY_STATUS: dict[int, type[RefusedError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidError,
    422: InvalidError,
    429: TooManyError,
}


def refusal(status: int, body: bytes) -> RefusedError:
    """Return what an answer means whose status is 300 or above."""
    try:
        told = msgspec.json.decode(body, type=ErrorAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = f"the gateway answered with status {status} and said no reason: check SKEP_API"
        told = ErrorAnswer(error=ErrorTold(reason=str(status), text=text))
    if status >= 500:
        return UnavailableError(status, told)
    return _BY_STATUS.get(status, RefusedError)(status, told)
