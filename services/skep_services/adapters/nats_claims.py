"""Telling the bus servers of accounts, and of who is revoked, while they run.

Each server keeps the accounts' tokens in a folder of its own. A token that is pushed goes to all of
them, each says that it has it, and what it changes counts from then on: a connection whose user is
revoked is cut before the answer comes. A server that is away meanwhile asks the others for what it
missed when it is back, and several times a second from then on.

Of two tokens of one account servers keep the one that was issued later. So a token has to be issued
after the one before it, whatever clocks say: `push` takes care of that.

What a server deletes, another one that was away brings back. Therefore whoever may no longer be
there is *revoked*, which stays; `delete` only tidies up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from skep_services.adapters.nats_access import Account
from skep_services.adapters.nats_client import Msg
from skep_services.adapters.nats_jwt import EVERYBODY, TokenError, claims_of
from skep_services.adapters.nats_keys import BusKeys
from skep_services.adapters.nats_link import Link
from skep_services.ports import RefusedError

PUSHED_WITHIN_S = 10.0
"""What servers may take to answer: a busy one some hundred milliseconds, one that is away never."""
REPEAT_S = 1.0
LOOKED_UP_WITHIN_S = 2.0
GRACE_S = 0.25
"""What the other servers have once one has answered what accounts there are. One that is away must
not hold up a revocation."""
CLOCKS_APART_S = 300
"""How far the clocks of those that issue users' tokens may be apart. A revocation counts for tokens
that were issued up to so much later, because a server whose clock is ahead may have issued one."""

_UPDATE = "$SYS.REQ.CLAIMS.UPDATE"
_DELETE = "$SYS.REQ.CLAIMS.DELETE"
_LIST = "$SYS.REQ.CLAIMS.LIST"


class _Server(msgspec.Struct, frozen=True):
    name: str = ""
    id: str = ""


class _Done(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""
    description: str = ""


class _Answer(msgspec.Struct, frozen=True):
    server: _Server = _Server()
    data: _Done | list[str] | None = None
    error: _Done | None = None


class Resolver:
    """The servers' knowledge of accounts.

    Args:
        link: A connection as `nats_access.CLAIMS`.
        keys: The keys of the cluster.
        servers: How many servers the cluster has.
        now_s: Returns seconds since 1970.
    """

    def __init__(self, link: Link, keys: BusKeys, servers: int, now_s: Callable[[], int]) -> None:
        self._link, self._keys, self._servers, self._now_s = link, keys, servers, now_s

    async def push(
        self,
        account: Account,
        revoked: Mapping[str, int] | None = None,
        within_s: float = PUSHED_WITHIN_S,
    ) -> frozenset[str]:
        """Have all servers know an account as it is here, and return the names of those that do.

        Pushing the same again changes nothing. Servers whose names are missing were not reached
        in time; they ask the others when they are back.

        Args:
            account: The account, from `nats_access`.
            revoked: Who of it is revoked, as `nats_jwt.account_token` has it; None: whoever is.
            within_s: How long is waited for all servers (seconds).

        Raises:
            RefusedError: A server does not take it.
            ConnectionError: No server has answered.
        """
        present = await self.token(account.name)
        issued_at_s = self._now_s()
        if present:
            there = claims_of(present)
            issued_at_s = max(issued_at_s, there.iat + 1)
            if revoked is None:
                revoked = _revoked(there.nats)
        token = self._keys.account_token(account, issued_at_s, revoked or {})
        return await self._tell(_UPDATE, token.encode(), account.name, within_s)

    async def revoke(
        self,
        account: Account,
        user: str = EVERYBODY,
        up_to_s: int = 0,
        within_s: float = PUSHED_WITHIN_S,
    ) -> frozenset[str]:
        """Cut a user off, on all servers, and refuse its tokens from here on.

        Args:
            account: Its account.
            user: Its public key; EVERYBODY: all users of the account.
            up_to_s: The second up to which its tokens were issued that count no more; 0: now, and
                what clocks may be apart. A later token needs to be issued after it.
            within_s: How long is waited for all servers (seconds).

        Returns:
            The names of the servers that know it.

        Raises:
            RefusedError: A server does not take it.
            ConnectionError: No server has answered.
        """
        revoked = dict(await self.revoked(account.name))
        until_s = up_to_s or self._now_s() + CLOCKS_APART_S
        revoked[user] = max(until_s, revoked.get(user, 0))
        return await self.push(account, revoked, within_s)

    async def revoked(self, account: str) -> Mapping[str, int]:
        """Return who of the account of a name is revoked, and up to which second."""
        present = await self.token(account)
        return _revoked(claims_of(present).nats) if present else {}

    async def issue_after_s(self, account: str, user: str) -> int:
        """Return the second in which to issue a user's token so that no revocation counts for it."""
        revoked = await self.revoked(account)
        return max(self._now_s(), 1 + max(revoked.get(user, 0), revoked.get(EVERYBODY, 0)))

    async def token(self, account: str) -> str:
        """Return the token by which servers know the account of a name; empty: they do not.

        Raises:
            ConnectionError: No server has answered.
        """
        subject = f"$SYS.REQ.ACCOUNT.{self._keys.public(account)}.CLAIMS.LOOKUP"
        latest, tokens = "", await self._ask(subject, b"", LOOKED_UP_WITHIN_S)
        for answer in tokens:
            token = answer.data.decode(errors="replace")
            with contextlib.suppress(TokenError):
                if not latest or claims_of(token).iat > claims_of(latest).iat:
                    latest = token
        return latest

    async def accounts(self) -> frozenset[str]:
        """Return the public keys of all accounts that a server knows.

        Raises:
            ConnectionError: No server has answered.
        """
        found: set[str] = set()
        for message in await self._ask(_LIST, b"", LOOKED_UP_WITHIN_S):
            answer = _read(message)
            if answer is not None and isinstance(answer.data, list):
                found.update(answer.data)
        return frozenset(found)

    async def delete(self, accounts: tuple[str, ...]) -> frozenset[str]:
        """Have all servers forget accounts of these names, and return the servers that did.

        Raises:
            RefusedError: A server does not do it.
            ConnectionError: No server has answered.
        """
        order = self._keys.deletion_token(accounts, self._now_s())
        return await self._tell(_DELETE, order.encode(), ", ".join(accounts), PUSHED_WITHIN_S)

    async def _tell(
        self, subject: str, payload: bytes, what: str, within_s: float
    ) -> frozenset[str]:
        """Have all servers do something, and return the names of those that have.

        Raises:
            RefusedError: A server does not do it.
            ConnectionError: No server has answered.
        """
        done: set[str] = set()
        for message in await self._ask(subject, payload, within_s, within_s):
            answer = _read(message)
            if answer is None:
                continue
            if answer.error is not None:
                text = answer.error.description or answer.error.message
                reason = f"bus server {answer.server.name} does not take account {what}: {text}"
                raise RefusedError(reason)
            done.add(answer.server.name)
        if not done:
            message = f"no bus server says that it knows account {what}"
            raise ConnectionError(message)
        return frozenset(done)

    async def _ask(
        self, subject: str, payload: bytes, within_s: float, grace_s: float = GRACE_S
    ) -> list[Msg]:
        """Return the answers of all servers, or those that came in time.

        Asks again every REPEAT_S. Once one has answered, the others have `grace_s`.

        Raises:
            ConnectionError: No server has answered.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        answers: list[Msg] = []
        while len(answers) < self._servers:
            left_s = (grace_s if answers else within_s) - (loop.time() - began)
            if left_s <= 0:
                break
            later = await self._ask_once(subject, payload, min(REPEAT_S, left_s), grace_s)
            answers = max(answers, later, key=len)
        if not answers:
            message = f"no bus server has answered on {subject} within {within_s} s"
            raise ConnectionError(message)
        return answers

    async def _ask_once(
        self, subject: str, payload: bytes, within_s: float, grace_s: float
    ) -> list[Msg]:
        answers: list[Msg] = []
        some, complete = asyncio.Event(), asyncio.Event()

        def receive(message: Msg) -> None:
            answers.append(message)
            some.set()
            if len(answers) >= self._servers:
                complete.set()

        inbox = self._link.new_inbox()
        raw = await self._link.subscribe(inbox, receive)
        try:
            await self._link.send(subject, payload, {}, inbox)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await some.wait()
                    await asyncio.wait_for(complete.wait(), grace_s)
        finally:
            await self._link.unsubscribe(raw)
        return answers


def _revoked(nats: Mapping[str, Any]) -> dict[str, int]:
    return {str(user): int(second) for user, second in dict(nats.get("revocations", {})).items()}


def _read(message: Msg) -> _Answer | None:
    try:
        return msgspec.json.decode(message.data, type=_Answer)
    except msgspec.MsgspecError:
        return None
