"""What sizes a job's spec allows it."""

from __future__ import annotations

from skep.wire.changes import AskResize
from skep.wire.reasons import Reason
from skep.wire.spec import Elastic, ParameterServers, Problem


def size_problem(ask: AskResize, allowed: Elastic | None) -> Problem | None:
    """Return why a job's spec does not allow a size, or None."""
    if ask.workers is None:
        return None
    if allowed is None:
        return Problem(
            path="$.job",
            reason=Reason.CANNOT,
            text=f"the spec of {ask.job} does not say that it is elastic",
            suggestion="submit it with `elastic: {min: 1, max: 4}`",
        )
    if allowed.min <= ask.workers <= allowed.max:
        return None
    return Problem(
        path="$.workers",
        reason=Reason.BAD_VALUE,
        text=f"{ask.job} may have {allowed.min} to {allowed.max} workers",
        suggestion=f"use {min(max(ask.workers, allowed.min), allowed.max)}",
    )


def servers_problem(ask: AskResize, allowed: ParameterServers | None) -> Problem | None:
    """Return why a job's spec does not allow so many parameter servers, or None."""
    if ask.servers is None:
        return None
    if allowed is None:
        return Problem(
            path="$.servers",
            reason=Reason.CANNOT,
            text=f"the spec of {ask.job} does not say that it has parameter servers",
            suggestion="submit it with `ps: {servers: 1, min: 1, max: 4}`",
        )
    if allowed.min <= ask.servers <= allowed.max:
        return None
    return Problem(
        path="$.servers",
        reason=Reason.BAD_VALUE,
        text=f"{ask.job} may have {allowed.min} to {allowed.max} parameter servers",
        suggestion=f"use {min(max(ask.servers, allowed.min), allowed.max)}",
    )
