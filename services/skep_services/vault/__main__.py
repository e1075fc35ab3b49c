"""Run the vault.

Every process of it can answer: it decides nothing that lasts, and reads what it needs from the
allocator's log and the stream of secrets.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import msgspec

import skep
from skep.ledger import fold
from skep.ledger.state import ClusterState
from skep.vault.secrets import Refusal, Secrets
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.facts import AllocatorFact
from skep.wire.reasons import Reason
from skep.wire.vault import AskSecrets, SecretsGiven, VaultKey
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.wiring import connect
from skep_services.links import Followed, ForeignSeen
from skep_services.ports import Bus, Delivery
from skep_services.service import Fatal, Settings, run
from skep_services.vault import boxes

KEY_FILE = "key"
SLICE = 64
"""Records folded before others may run."""

_ASKS = msgspec.json.Decoder(AskSecrets)


class Vault:
    """What the vault knows, and how it answers.

    Args:
        bus: Where answers go.
        key: The vault's private key.
        log: The service's logger (structlog's).
    """

    def __init__(self, bus: Bus, key: Any, log: Any) -> None:
        self.secrets = Secrets()
        self._bus, self._key, self._log = bus, key, log
        self._state = ClusterState()

    async def take_record(self, delivery: Delivery) -> None:
        """Fold a record of the allocator's log."""
        event = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        if isinstance(event, codec.Facts):
            for fact in event.facts:
                fold.apply(self._state, cast("AllocatorFact", fact))
        if delivery.sequence % SLICE == 0:
            await asyncio.sleep(0)

    async def take_secret(self, delivery: Delivery) -> None:
        """Take over a secret that was set or taken back."""
        if not self.secrets.heard(delivery.subject, delivery.payload):
            self._log.error("a message among the secrets was passed over", on=delivery.subject)

    async def answer(self, asked: Delivery) -> None:
        """Hand an agent the secrets of a job that its node is to run, or say why not."""
        if asked.reply:
            await self._bus.send(asked.reply, codec.encode(self._given(asked)), {})

    def _given(self, asked: Delivery) -> SecretsGiven:
        try:
            ask = _ASKS.decode(asked.payload)
        except UNDECODABLE as error:
            return SecretsGiven(refused=Reason.BAD_VALUE, text=str(error)[:200])
        if asked.subject != subjects.vault(ask.node):
            text = f"{ask.node} is not the node that asks"
            return SecretsGiven(refused=Reason.NOT_BOUND_HERE, text=text)
        granted = self.secrets.grant(ask, self._state.jobs.get(ask.job))
        if isinstance(granted, Refusal):
            self._log.warning(
                "secrets refused",
                node=ask.node,
                job=ask.job,
                reason=granted.reason,
                names=ask.names,
            )
            return SecretsGiven(refused=granted.reason, text=granted.text)
        self._log.info("secrets given", node=ask.node, job=ask.job, names=ask.names)
        sealed = {}
        for name, (whose, kept) in granted.items():
            try:
                value = boxes.opened_in_place(kept.sealed, self._key, whose)
            except boxes.OtherPlaceError as error:
                self._log.error("a secret's box is another's", node=ask.node, job=ask.job, at=whose)
                text = f"{name} of {whose.scope} {whose.owner}: {error}: skep secret set {name}"
                return SecretsGiven(refused=Reason.OTHER_PLACE, text=text)
            except boxes.BoxError:
                text = f"{name} is sealed to an earlier key of the vault: skep secret set {name}"
                return SecretsGiven(refused=Reason.OTHER_VAULT_KEY, text=text)
            try:
                sealed[name] = boxes.seal(value, ask.key)
            except boxes.BoxError as error:
                return SecretsGiven(refused=Reason.BAD_VALUE, text=str(error))
        return SecretsGiven(sealed=sealed)


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled.

    Raises:
        ConfigurationError: The key's file cannot be used.
    """
    key = boxes.key_in(
        Path(chosen.environment.get("SKEP_VAULT_KEY", "") or chosen.state / KEY_FILE)
    )
    fatal = Fatal()
    bus = await connect(chosen, fatal)
    vault = Vault(bus, key, log)
    followed = Followed(subjects.ALLOC, 0, ForeignSeen(log.error))

    async def take_record(delivery: Delivery) -> None:
        if followed.takes(delivery.payload, delivery.sequence):
            await vault.take_record(delivery)

    await bus.follow(subjects.SECRETS, 0, vault.take_secret)
    await bus.follow(subjects.ALLOC, 0, take_record)
    if vault.secrets.key != bytes(key.public_key) or not vault.secrets.places:
        await _say_key(bus, bytes(key.public_key))
    await bus.listen(subjects.vault("*"), vault.answer)

    async def healthy(asked: Delivery) -> None:
        if asked.reply:
            health = {
                "service": "vault",
                "identity": chosen.identity,
                "pid": os.getpid(),
                "version": skep.__version__,
            }
            await bus.send(asked.reply, codec.encode(health), {})

    await bus.listen(subjects.health(chosen.identity), healthy)
    log.info("ready", pid=os.getpid())
    await fatal.guard(_for_ever())


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def _say_key(bus: NatsBus, key: bytes) -> None:
    await bus.publish(subjects.VAULT_KEY, codec.encode(VaultKey(key=key, places=True)), "", {})


if __name__ == "__main__":
    run("vault", main)
