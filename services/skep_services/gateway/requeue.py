"""An ended job submitted again: what its spec becomes, and why one cannot be."""

from __future__ import annotations

from typing import Any

import msgspec

from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError
from skep_services.gateway.rows import ENDED, Row, State

LEFT_OUT = ("after", "begin", "hold", "promise")
"""What a job waited for has come, or was not to come: it is not waited for again."""


class Requeue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request to submit a job again may say."""

    hold: bool = False


def check_ended(row: Row) -> None:
    """Stop at a job that is not over, or never was one.

    Raises:
        ApiError: It has not ended, or was refused (409).
    """
    if row.state is State.REFUSED:
        text = f"{row.job} was refused: mend its spec, and submit that"
        raise ApiError(409, Reason.UNKNOWN_JOB, text, job=row.job)
    if row.state not in ENDED:
        text = f"{row.job} has not ended, it is {row.state}: cancel it first, or wait for its end"
        raise ApiError(409, Reason.NOT_ENDED, text, job=row.job)


def spec_again(row: Row, raw: bytes | None, *, hold: bool) -> bytes:
    """Return the spec with which an ended job is submitted again.

    Args:
        row: The job.
        raw: Its spec as it was admitted; None: it is not stored any more.
        hold: Whether the new job waits for `skep release`.

    Raises:
        ApiError: It is a trial of a search, or its spec is not stored (409).
    """
    if raw is None:
        text = f"the spec of {row.job} is not stored any more: submit its file again"
        raise ApiError(409, Reason.UNKNOWN_JOB, text, job=row.job)
    tree: dict[str, Any] = msgspec.json.decode(raw)
    if tree.get("search"):
        text = f"{row.job} is a trial of search {tree['search']}, which makes its trials itself"
        raise ApiError(409, Reason.BAD_VALUE, text, job=row.job)
    kept = {key: value for key, value in tree.items() if key not in LEFT_OUT}
    return msgspec.json.encode({**kept, "hold": True} if hold else kept)
