"""Bodies of requests that change people and nodes: bounded, decoded, and refused with a reason."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from skep.units import KIB
from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.reasons import Reason
from skep.wire.spec import Problem
from skep_services.gateway.api import ApiError

SMALL_BYTES_MAX = 64 * KIB
"""A join request has a certificate request and some names; an ID token with many groups 16 KiB."""
BODY_S = 10.0
"""How long a small body may take: one that knows no token must not hold a connection for ever."""

Kind = TypeVar("Kind", bound=msgspec.Struct)


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body; unknown keys are refused."""


async def read(request: web.Request, kind: type[Kind]) -> Kind:
    """Return a small JSON body.

    Raises:
        ApiError: It is too large (413), slow (408), no JSON (400), or has wrong keys (422).
    """
    raw = await _raw(request)
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        text = one_line(error)
        problem = Problem(path="$", reason=Reason.BAD_VALUE, text=text)
        raise ApiError(422, Reason.BAD_VALUE, text, (problem,)) from None
    except UNDECODABLE as error:
        raise ApiError(400, Reason.NOT_JSON, f"not JSON: {one_line(error)}") from None


async def _raw(request: web.Request) -> bytes:
    too_large = ApiError(413, Reason.TOO_LARGE, f"a body here has at most {SMALL_BYTES_MAX} bytes")
    if (request.content_length or 0) > SMALL_BYTES_MAX:
        raise too_large
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.content.iter_chunked(SMALL_BYTES_MAX):
                found += piece
                if len(found) > SMALL_BYTES_MAX:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, "slow", f"the body did not come within {BODY_S:.0f} s") from None
    return bytes(found)


def plain(value: Any) -> Any:
    """Return a struct as JSON's own types."""
    return msgspec.to_builtins(value)
