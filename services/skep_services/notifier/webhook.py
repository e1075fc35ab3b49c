"""Posts a message to the URL that a job names: to a public address, as it was looked up, only.

The addresses that are connected to are those that were checked: a name that is looked up a second
time could be another's by then. No redirect is followed, and no proxy is used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from skep_services.notifier.addresses import Address, Network, parse, trouble_of

WITHIN_S = 15.0
ANSWER_BYTES_MAX = 4096
AGAIN = (408, 425, 429)
"""Refusals that may be otherwise later; servers' own errors (500 and above) may be too."""


class NotAllowedError(OSError):
    """A host is at an address that webhooks may not be at."""


class Checked(AbstractResolver):
    """Looks names up, and leaves out addresses that webhooks may not be at."""

    def __init__(self, allowed: Sequence[Network], denied: Collection[Address]) -> None:
        self._allowed, self._denied = allowed, denied

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host that are allowed.

        Raises:
            NotAllowedError: None is.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
        )
        good: list[ResolveResult] = []
        why = f"{host} has no address"
        for kind, _, proto, _, where in found:
            address = parse(str(where[0]))
            trouble = trouble_of(address, self._allowed, self._denied) if address else "no address"
            if trouble:
                why = f"{host}: {trouble}"
                continue
            good.append(
                ResolveResult(
                    hostname=host,
                    host=str(where[0]),
                    port=int(where[1]),
                    family=kind,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST,
                )
            )
        if not good:
            raise NotAllowedError(why)
        return good

    async def close(self) -> None:
        """Do nothing: nothing is held."""


async def post(
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    allowed: Sequence[Network],
    denied: Callable[[], Collection[Address]],
) -> tuple[str, bool]:
    """Post a message as JSON.

    Args:
        url: Where to.
        body: The message.
        headers: Further headers.
        allowed: The networks that are allowed beside public addresses.
        denied: Returns the addresses that are not allowed though they may be public.

    Returns:
        Why it was not taken (empty: it was), and whether that is final.
    """
    never = denied()
    literal = parse(urlsplit(url).hostname or "")
    if literal is not None and (why := trouble_of(literal, allowed, never)):
        return why, True
    connector = aiohttp.TCPConnector(resolver=Checked(allowed, never), use_dns_cache=False)
    timeout = aiohttp.ClientTimeout(total=WITHIN_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.post(url, json=body, headers=headers, allow_redirects=False) as answer,
        ):
            await answer.content.read(ANSWER_BYTES_MAX)
            return _judged(answer.status)
    except TimeoutError:
        return f"no answer within {WITHIN_S:.0f} s", False
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = _refusal(error)
        return (str(cause), True) if cause is not None else (_shown(error), False)


def _judged(status: int) -> tuple[str, bool]:
    if 200 <= status < 300:
        return "", False
    if 300 <= status < 400:
        return f"it answers {status}: redirects are not followed", True
    return f"it answers {status}", status < 500 and status not in AGAIN


def _refusal(error: BaseException | None) -> NotAllowedError | None:
    """Return the refusal that an error comes from, or None."""
    while error is not None:
        if isinstance(error, NotAllowedError):
            return error
        inner = getattr(error, "os_error", None)
        error = inner if isinstance(inner, NotAllowedError) else error.__cause__
    return None


def _shown(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
