"""The signer that the access service calls: the port, what calls it, and one in memory for tests.

A server deployment brings its own: it has the authority's key and those of the bus's accounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from skep.machines.access.calls import NotRevoked, NotSigned, Revoke, Revoked, Sign, Signed
from skep.units import Instant
from skep.wire.access import Credentials
from skep.wire.bounds import one_line

CALL_S = 15.0
"""A call that takes longer has failed, and is repeated: the bus answers in milliseconds."""

Answer = Callable[[Any], Awaitable[None]]


class SignError(Exception):
    """What was sent can never be signed; the text says why, for the one that joins."""


class Signer(Protocol):
    """Makes certificates and rights on the bus, and takes them away."""

    async def sign(self, wanted: Sign) -> Credentials:
        """Return what a key may be used with. Signing twice gives two that are as good.

        Raises:
            SignError: It can never be signed.
            OSError: It cannot be signed now.
        """
        ...

    async def revoke(self, wanted: Revoke) -> None:
        """Have the bus refuse a key from now on, and cut its connections. Idempotent.

        Raises:
            OSError: The bus cannot be told now.
        """
        ...


class SignerCalls:
    """The Calls port of the access service. `close` it after use."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, command: Any, answer: Answer) -> None:
        """Begin a call; what comes of it goes to `answer`.

        Raises:
            AssertionError: A bug: the machine calls for what no signer does.
        """
        match command:
            case Sign():
                work = self._sign(command, answer)
            case Revoke():
                work = self._revoke(command, answer)
            case _:
                raise AssertionError(command)
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up the calls under way: the next process repeats them."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _sign(self, wanted: Sign, answer: Answer) -> None:
        try:
            async with asyncio.timeout(CALL_S):
                given = await self._signer.sign(wanted)
        except SignError as error:
            told = NotSigned(
                key=wanted.key, request=wanted.request, text=one_line(error), final=True
            )
            await answer(told)
        except Exception as error:
            # A signer that fails must not end the service: it is called again.
            text = one_line(error) or type(error).__name__
            await answer(NotSigned(key=wanted.key, request=wanted.request, text=text))
        else:
            await answer(Signed(key=wanted.key, request=wanted.request, credentials=given))

    async def _revoke(self, wanted: Revoke, answer: Answer) -> None:
        try:
            async with asyncio.timeout(CALL_S):
                await self._signer.revoke(wanted)
        except Exception as error:
            text = one_line(error) or type(error).__name__
            await answer(NotRevoked(key=wanted.key, text=text))
        else:
            await answer(Revoked(key=wanted.key))


class NoSigner:
    """For a cluster without keys of its own on the bus: people and tokens work, nothing joins."""

    async def sign(self, wanted: Sign) -> Credentials:
        """Refuse.

        Raises:
            SignError: Always.
        """
        text = f"this cluster has no signer: {wanted.name} needs a server deployment"
        raise SignError(text)

    async def revoke(self, wanted: Revoke) -> None:
        """Do nothing: nothing was signed."""


class MemorySigner:
    """A signer that only says what it was asked: the reference of the port, for tests."""

    def __init__(self) -> None:
        self.signed: list[Sign] = []
        self.revoked: dict[str, None] = {}
        self.fails = ""
        """Why each call fails; empty: none does."""
        self.refuses = ""
        """Why nothing can ever be signed; empty: it can."""

    async def sign(self, wanted: Sign) -> Credentials:
        """Return credentials that name the key.

        Raises:
            SignError: It was set to refuse.
            ConnectionError: It was set to fail.
        """
        if self.refuses:
            raise SignError(self.refuses)
        if self.fails:
            raise ConnectionError(self.fails)
        self.signed.append(wanted)
        return Credentials(
            certificate=f"certificate of {wanted.kind} {wanted.name}",
            authority="authority",
            jwt=f"jwt of {wanted.key}",
            bus=("tls://127.0.0.1:4222",),
            until=Instant(0),
        )

    async def revoke(self, wanted: Revoke) -> None:
        """Note the key.

        Raises:
            ConnectionError: It was set to fail.
        """
        if self.fails:
            raise ConnectionError(self.fails)
        self.revoked[wanted.key] = None
