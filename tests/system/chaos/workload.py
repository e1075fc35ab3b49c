"""What tenants do meanwhile: jobs of every kind, cancels, and the same key again.

A submission is repeated with its key until it is acknowledged, and until its verdict has come: both
as any client without patience would. `Workload` has plain NATS clients.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from tests.system.chaos.evidence import Ack, Told
from tests.system.chaos.links import PAUSE_S, Links, fresh_key
from tests.system.chaos.target import Jobs

VERDICT_WITHIN_S = 3.0
CANCELLED_AFTER_S = 1.0, 8.0
AGAIN_AFTER_S = 0.0, 30.0
AGAIN_SHARE = 0.1
ENDLESS = -1

KINDS = {
    "trivial": 50,
    "steps": 18,
    "gang": 10,
    "idle": 5,
    "retried": 5,
    "fails": 3,
    "endless": 5,
    "wrong": 3,
    "real": 1,
}
"""Kinds of jobs, and how often each is drawn."""


@dataclass
class Wish:
    """One submission to come. Seconds are from the run's beginning; 0 means never."""

    at_s: float
    told: Told
    spec: dict[str, Any]
    cancel_after_s: float = 0.0
    again_after_s: float = 0.0


def plan(
    rng: random.Random, count: int, seconds: float, vcs: dict[str, int], jobs: Jobs
) -> list[Wish]:
    """Return `count` submissions, spread over the run's time."""
    kinds = {kind: weight for kind, weight in KINDS.items() if jobs.trains or kind != "real"}
    wishes = []
    for number in range(count):
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        vc = rng.choice(sorted(vcs))
        told = Told(key=f"{number}-{rng.randbytes(6).hex()}", vc=vc, kind=kind)
        cancels = kind == "endless" or (kind in {"steps", "gang"} and rng.random() < 0.2)
        wishes.append(
            Wish(
                at_s=rng.uniform(0, seconds),
                told=told,
                spec=_spec(rng, number, kind, vc, vcs[vc], jobs),
                cancel_after_s=rng.uniform(*CANCELLED_AFTER_S) if cancels else 0.0,
                again_after_s=rng.uniform(*AGAIN_AFTER_S) if rng.random() < AGAIN_SHARE else 0.0,
            )
        )
    return sorted(wishes, key=lambda wish: wish.at_s)


def _spec(
    rng: random.Random, number: int, kind: str, vc: str, gpus: int, jobs: Jobs
) -> dict[str, Any]:
    env = {"NOTES": jobs.notes}
    spec: dict[str, Any] = {
        "name": f"{kind}-{number}",
        "vc": vc,
        "env": env,
        "command": [jobs.python, "-S", "-E", jobs.work],
    }
    match kind:
        case "steps":
            env |= {"STEPS": str(rng.randint(10, 60)), "PAUSE_MS": "100"}
            spec["resources"] = {"gpus": rng.randint(1, 3)}
        case "gang":
            env |= {"STEPS": str(rng.randint(5, 30)), "PAUSE_MS": "100"}
            spec["resources"] = {"workers": rng.randint(2, gpus), "gpus": 1}
        case "idle":
            env |= {"STEPS": str(rng.randint(20, 60)), "PAUSE_MS": "100"}
            spec["resources"] = {"gpus": rng.randint(1, 4)}
            spec["service_class"] = "opportunistic"
        case "retried":
            env |= {"STEPS": "10", "PAUSE_MS": "50", "FAILS": "1"}
            spec["limits"] = {"retries": 2}
        case "fails":
            env |= {"STEPS": "4", "PAUSE_MS": "50", "FAILS": "1000"}
            spec["limits"] = {"retries": 1}
        case "endless":
            env |= {"STEPS": str(ENDLESS), "PAUSE_MS": "100"}
        case "real":
            env |= {"STEPS": "60", "PAUSE_MS": "50", "TRAIN": "1"}
            del spec["command"]
            spec["script"] = jobs.work
        case "wrong":
            spec["resources"] = rng.choice([{"gpus": 1000}, {"gpus": -1}, {"gpu": 1}])
        case _:
            pass
    return spec


class Clients(ABC):
    """Carry wishes out, and keep in them what the clients were told."""

    def __init__(self, wishes: Sequence[Wish]) -> None:
        """Begin nothing yet."""
        self.wishes = wishes
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, begin: float) -> None:
        """Begin every wish at its time (`begin` is monotonic s); they may take longer than this."""
        for wish in self.wishes:
            await asyncio.sleep(max(0.0, begin + wish.at_s - time.monotonic()))
            self._tasks.append(asyncio.create_task(self._carry_out(wish)))
            if wish.again_after_s:
                self._tasks.append(asyncio.create_task(self._again(wish)))

    async def settle(self, within_s: float) -> list[str]:
        """Return what has no answer in time after all."""
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=within_s)
            for task in pending:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return [
            f"{wish.told.key} ({wish.told.kind}) was "
            + ("never acknowledged" if not wish.told.acks else "acknowledged without a verdict")
            for wish in self.wishes
            if not wish.told.verdicts
        ]

    async def _carry_out(self, wish: Wish) -> None:
        told = wish.told
        await self.submit(wish)
        if not wish.cancel_after_s:
            return
        await asyncio.sleep(wish.cancel_after_s)
        told.cancel_sent = True
        await self.cancel(told)

    async def _again(self, wish: Wish) -> None:
        """Submit the same key once more, as a client does that forgot it had."""
        await asyncio.sleep(wish.again_after_s)
        wish.told.sent_at = wish.told.sent_at or time.monotonic_ns()
        await self.repeat(wish)

    @abstractmethod
    async def submit(self, wish: Wish) -> None:
        """Submit a wish, again and again, until its verdict is there."""

    @abstractmethod
    async def cancel(self, told: Told) -> None:
        """Cancel a job, again and again, until the verdict on that is there."""

    @abstractmethod
    async def repeat(self, wish: Wish) -> None:
        """Submit a wish until it is acknowledged, and wait for no verdict."""


class Workload(Clients):
    """Plain NATS clients: one of each virtual cluster, or one person of it.

    Args:
        links: Their connections.
        wishes: What they want.
        people: The person by VC who speaks for it; a VC without one speaks by itself.
    """

    def __init__(
        self, links: Links, wishes: Sequence[Wish], people: Mapping[str, str] = {}
    ) -> None:
        super().__init__(wishes)
        self.links, self._people = links, people
        self._came: dict[str, asyncio.Event] = {}
        self._told: dict[str, list[dict[str, Any]]] = {}
        for vc in sorted({wish.told.vc for wish in wishes}):
            user = self._name("vc-", vc)
            links.listen(user, f"_INBOX.{user}.chaos.*", self._hear)

    def _name(self, prefix: str, vc: str) -> str:
        """Return what speaks for a VC: its user on the bus, or the end of its subjects."""
        person = self._people.get(vc)
        return f"{prefix}{vc}.{person}" if person else f"{prefix}{vc}"

    async def _hear(self, message: Msg) -> None:
        """Keep a verdict."""
        if message.subject in self._told:
            self._told[message.subject].append(json.loads(message.data))
            self._came[message.subject].set()

    async def submit(self, wish: Wish) -> None:
        told = wish.told
        await self._until_told(told, "submit", json.dumps(wish.spec).encode(), told.key)

    async def cancel(self, told: Told) -> None:
        await self._until_told(told, "cancel", json.dumps({"job": told.job}).encode(), "")

    async def _until_told(self, told: Told, verb: str, payload: bytes, key: str) -> None:
        """Publish, again and again, until the verdict is there; an empty key is fresh each time."""
        user = self._name("vc-", told.vc)
        inbox = f"_INBOX.{user}.chaos.{verb}-{told.key}"
        self._told[inbox] = told.verdicts if key else told.cancels
        came = self._came[inbox] = asyncio.Event()
        while not came.is_set():
            sent_at = time.monotonic_ns()
            if key and not told.sent_at:
                told.sent_at = sent_at
            headers = {"Nats-Msg-Id": key or fresh_key(), "Skep-Reply": inbox}
            subject = self._name(f"skep.v1.{verb}.", told.vc)
            answer = await self.links.publish(user, subject, payload, headers)
            if answer is None:
                await asyncio.sleep(PAUSE_S)
                continue
            if key:
                self._acknowledged(told, answer)
            try:
                async with asyncio.timeout(VERDICT_WITHIN_S):
                    await came.wait()
            except TimeoutError:
                pass  # The verdict is lost or late: the same key again asks for it.

    async def repeat(self, wish: Wish) -> None:
        told = wish.told
        headers = {"Nats-Msg-Id": told.key}
        payload = json.dumps(wish.spec).encode()
        user, subject = self._name("vc-", told.vc), self._name("skep.v1.submit.", told.vc)
        while True:
            answer = await self.links.publish(user, subject, payload, headers)
            if answer is not None:
                self._acknowledged(told, answer)
                return
            await asyncio.sleep(PAUSE_S)

    @staticmethod
    def _acknowledged(told: Told, answer: dict[str, Any]) -> None:
        told.acks.append(Ack(answer["seq"], answer.get("duplicate", False), time.monotonic_ns()))
