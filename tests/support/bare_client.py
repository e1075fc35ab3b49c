"""A tenant that knows the bus and nothing of Skep: plain NATS messages and JSON.

Everything here is what a program in any language could do with a NATS client and the credentials
of its virtual cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, NoRespondersError, TimeoutError  # noqa: A004
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

AWAY = (
    TimeoutError,
    NoRespondersError,
    NoStreamResponseError,
    ServiceUnavailableError,
    ConnectionClosedError,
)
"""What a publish raises while the bus is away: repeating it with the same key is harmless."""
IN_PROCESS = 10158
"""JetStream's error for a repetition that overtakes the storing of its original: not a refusal."""
PATIENCE_S = 30.0
ACKNOWLEDGED_WITHIN_S = 0.5
"""Many times a synced write; a message that went down with its connection is repeated."""
WINDOW = 256
"""Publishes in flight: the window at which a synced stream reaches its full rate."""


class Answer(NamedTuple):
    """What became of a message: the stream's acknowledgement, and admission's verdict."""

    sequence: int
    duplicate: bool
    verdict: dict[str, Any]

    @property
    def submission(self) -> str:
        """Return the id of the message itself."""
        return f"j{self.sequence}"

    @property
    def job(self) -> str:
        """Return the job it is: for a repetition the original."""
        return str(self.verdict.get("job", self.submission))


class BareClient:
    """One connection. `violations` collects what the server refused for want of permission."""

    def __init__(self, client: Client, user: str, violations: list[str]) -> None:
        """Speak over `client` as `user`."""
        self.client, self.user, self.violations = client, user, violations
        self._asked, self._token = 0, uuid.uuid4().hex

    async def publish(
        self, subject: str, payload: bytes, key: str = "", headers: Mapping[str, str] | None = None
    ) -> Any:
        """Return JetStream's acknowledgement; repeats with the same key while the bus is away.

        An empty `key` stands for one of its own.
        """
        return (await self._publish(subject, payload, key, headers or {}))[0]

    async def _publish(
        self, subject: str, payload: bytes, key: str, headers: Mapping[str, str]
    ) -> tuple[Any, bool]:
        """Publish; return the acknowledgement, and whether it was sent more than once."""
        sent = {"Nats-Msg-Id": key or uuid.uuid4().hex, **headers}
        stream = self.client.jetstream()
        repeated = False
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    acknowledged = await stream.publish(
                        subject, payload, headers=sent, timeout=ACKNOWLEDGED_WITHIN_S
                    )
                except (*AWAY, APIError) as error:
                    if not isinstance(error, AWAY) and error.err_code != IN_PROCESS:
                        raise
                    repeated = True
                    # tidy: allow sleep because it asks again until it is answered
                    await asyncio.sleep(0.05)
                else:
                    return acknowledged, repeated

    async def settle(self) -> None:
        """Return once the server has taken everything said so far, and refused what it refuses."""
        # The client library may send the first ping ahead of what it has yet to write.
        await self.client.flush()
        await self.client.flush()

    async def ask(self, subject: str, payload: bytes, key: str = "") -> Answer:
        """Publish, and return the acknowledgement together with the verdict."""
        self._asked += 1
        asker = f"{self.user}-{self._token}.{self._asked}"
        vc = subject.split(".")[3]
        # A tenant may listen in its own inbox; whoever asks for it, on its reply subjects.
        own = self.user.startswith("vc-")
        inbox = f"_INBOX.{self.user}.{asker}" if own else f"skep.v1.reply.{vc}.{asker}"
        verdicts = await self.client.subscribe(inbox)
        headers = {"Skep-Reply": inbox}
        acknowledged, repeated = await self._publish(subject, payload, key, headers)
        if acknowledged.duplicate and not repeated:
            # The stream kept an earlier one only: nobody reads this one, that has its verdict.
            await verdicts.unsubscribe()
            return Answer(acknowledged.seq, True, {})
        verdict: Msg = await verdicts.next_msg(timeout=PATIENCE_S)
        await verdicts.unsubscribe()
        return Answer(acknowledged.seq, False, json.loads(verdict.data))

    async def submit(self, spec: Mapping[str, Any], key: str = "") -> Answer:
        """Submit a spec to the virtual cluster it names."""
        return await self.ask(f"skep.v1.submit.{spec['vc']}", json.dumps(spec).encode(), key)

    async def cancel(self, vc: str, job: str) -> Answer:
        """Ask for a job's end."""
        return await self.ask(f"skep.v1.cancel.{vc}", json.dumps({"job": job}).encode())

    async def submit_many(self, specs: list[dict[str, Any]]) -> list[str]:
        """Submit with WINDOW publishes in flight; return the job ids once all are acknowledged."""
        gate = asyncio.Semaphore(WINDOW)

        async def one(spec: dict[str, Any]) -> str:
            async with gate:
                payload = json.dumps(spec).encode()
                acknowledged = await self.publish(f"skep.v1.submit.{spec['vc']}", payload)
                return f"j{acknowledged.seq}"

        return await asyncio.gather(*(one(spec) for spec in specs))


def address(bus: Mapping[str, Any], user: str) -> str:
    """Return where a user reaches the bus; `bus` is what `cluster.json` says of it."""
    url: str = bus.get("tenants") or bus["url"] if user.startswith("vc-") else bus["url"]
    return url


@contextlib.asynccontextmanager
async def bare_client(about: Mapping[str, Any], user: str) -> AsyncIterator[BareClient]:
    """Connect as `user`; `about` is the content of the cluster's `cluster.json`."""
    violations: list[str] = []

    async def note(error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            violations.append(str(error))

    client = await nats.connect(
        address(about["nats"], user).split(","),
        user=user,
        password=about["nats"]["users"][user],
        inbox_prefix=f"_INBOX.{user}".encode(),
        error_cb=note,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
    )
    try:
        yield BareClient(client, user, violations)
    finally:
        await client.close()
