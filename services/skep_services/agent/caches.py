"""Answers which environments a node keeps, and removes one when an owner asks for it."""

from __future__ import annotations

import msgspec

from skep.wire import codec
from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.caches import ENVIRONMENTS_MAX, AskCaches, KeptEnvironment, KeptHere
from skep_services.agent.builds import Environments
from skep_services.ports import Bus, Delivery

_ASKS = msgspec.json.Decoder(AskCaches)


class Caches:
    """Serves `skep.v1.caches.<node>`."""

    def __init__(self, bus: Bus, environments: Environments) -> None:
        self._bus, self._environments = bus, environments

    async def answer(self, asked: Delivery) -> None:
        """Answer one request."""
        if not asked.reply:
            return
        try:
            ask = _ASKS.decode(asked.payload)
            refused = await self._environments.discard(ask.remove) if ask.remove else ""
        except UNDECODABLE as error:
            refused = one_line(error)
        except OSError as error:
            refused = f"it cannot be removed: {error.strerror}"
        await self._bus.send(asked.reply, codec.encode(self._kept(refused)), {})

    def _kept(self, refused: str) -> KeptHere:
        return KeptHere(
            environments=tuple(
                KeptEnvironment(
                    key=one.key,
                    vc=one.vc,
                    owner=one.owner,
                    kind=one.kind,
                    path=one.path,
                    files=one.files,
                    bytes=one.bytes,
                    took_s=one.took_s,
                    used_at=one.used_at,
                    building=not one.built,
                    jobs=self._environments.jobs_in(one),
                )
                for one in self._environments.kept()[:ENVIRONMENTS_MAX]
            ),
            bytes_max=self._environments.bytes_max,
            refused=refused,
        )
