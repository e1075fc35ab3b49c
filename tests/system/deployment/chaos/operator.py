"""What the operator does meanwhile, by the commands of the how-to, and whether it takes effect."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from skep_services.adapters import nats_access
from skep_services.adapters.nats_link import TOO_MANY_CONNECTIONS, Link
from skep_services.ports import RefusedError
from tests.system.chaos.checker import Violation
from tests.system.deployment.bed import Done
from tests.system.deployment.chaos.plan import Change
from tests.system.deployment.chaos.target import BUS_PORT, Machines

DONE_WITHIN_S = 180.0
"""Repeated until it is done: everybody whose server is away turns to the next one."""
PAUSE_S = 0.5
REFUSED_WITHIN_S = 2.0
KNOCK_EVERY_S = 0.1
KNOCK_WITHIN_S = 1.5
TAKES, REFUSES, AWAY = "takes it", "refuses it", "away"
CUT_WITHIN_S = 15.0
OFF_AFTER_S = 8.0
"""When a removed node is switched off, so that nothing that runs on it is left."""
STOPPED = b'"event":"stopped"'


class Operator:
    """Does the changes of a plan; `done` tells of them.

    Args:
        target: The cluster.
        say: Prints a line.
    """

    def __init__(self, target: Machines, say: Callable[[str], None]) -> None:
        self.target, self._say = target, say
        self.done: list[dict[str, Any]] = []
        self.violations: list[Violation] = []
        self.removed = ""

    async def run(self, changes: Sequence[Change], begin: float) -> None:
        """Do them all, one after the other (`begin` is monotonic s)."""
        acts: dict[str, Callable[[str], Awaitable[str]]] = {
            "rotate": self._rotate,
            "renew": self._renew,
            "remove": self._remove,
            "join": self._join,
        }
        for change in changes:
            await asyncio.sleep(max(0.0, begin + change.at_s - time.monotonic()))
            act = acts[change.do]
            await asyncio.gather(*(self._do(change, act, one, begin) for one in change.machines))

    async def _do(
        self, change: Change, act: Callable[[str], Awaitable[str]], machine: str, begin: float
    ) -> None:
        at = time.monotonic()
        told = await act(machine)
        took_s = time.monotonic() - at
        self._say(f"{change.do} {machine}: {told} (after {took_s:.1f} s)")
        self.done.append(
            {
                "do": change.do,
                "machine": machine,
                "at_s": round(at - begin, 1),
                "took_s": round(took_s, 1),
                "told": told,
            }
        )

    async def _rotate(self, server: str) -> str:
        await self._until_done([server], "skep", "server", "rotate-certs", "--json")
        return "its certificate is new"

    async def _renew(self, node: str) -> str:
        await self._until_done([node], "skep", "node", "renew", "--json")
        return "its certificate and identity are new"

    async def _remove(self, node: str) -> str:
        """Remove a node: every bus server that answers refuses it within two seconds."""
        log = self.target.home(node) / "agent" / "service.log"
        before = log.read_bytes().count(STOPPED)
        await self._until_done(self.target.servers, "skep", "node", "remove", node, "--json")
        removed, self.removed = time.monotonic(), node
        knocks = await self._refused(node, removed)
        while log.read_bytes().count(STOPPED) == before:
            if time.monotonic() - removed > CUT_WITHIN_S:
                text = f"{node} was removed, and its agent has not ended after {CUT_WITHIN_S:.0f} s"
                self.violations.append(Violation("revoked", text))
                break
            await asyncio.sleep(KNOCK_EVERY_S)
        ended_s = time.monotonic() - removed
        await asyncio.sleep(max(0.0, OFF_AFTER_S - ended_s))
        await asyncio.to_thread(self.target.retire, node)
        return f"refused within {knocks:.2f} s, its agent ended within {ended_s:.2f} s"

    async def _refused(self, node: str, removed: float) -> float:
        """Return how long some bus server still took a node that was removed (seconds)."""
        while True:
            answers = await self.knock(node)
            took_s = time.monotonic() - removed
            takes = [name for name, answer in answers.items() if answer == TAKES]
            if not takes:
                return took_s
            if took_s > REFUSED_WITHIN_S:
                text = f"{node} was removed; {took_s:.1f} s later {takes} still took it"
                self.violations.append(Violation("revoked", text))
                return took_s
            await asyncio.sleep(KNOCK_EVERY_S)

    async def knock(self, node: str) -> dict[str, str]:
        """Return what each bus server says to the login of a node now."""
        urls = self.target.urls("tls", BUS_PORT)
        answers = await asyncio.gather(*(self._knock(node, url) for url in urls))
        return dict(zip(self.target.servers, answers, strict=True))

    async def _knock(self, node: str, url: str) -> str:
        options = self.target.login(node, nats_access.node_identity(node), [url])
        options = msgspec.structs.replace(options, connect_within_s=KNOCK_WITHIN_S)
        try:
            link = await Link.connect(options, on_fatal=_lost)
        except RefusedError as error:
            # One that has as many connections as it may is not revoked.
            return AWAY if TOO_MANY_CONNECTIONS in str(error).lower() else REFUSES
        except ConnectionError:
            return AWAY
        await link.close()
        return TAKES

    async def _join(self, node: str) -> str:
        made = await self._until_done(self.target.servers, "skep", "node", "token", "--json")
        told = json.loads(made.out.splitlines()[-1])
        begin = time.monotonic()
        text = f"{told['tokens'][0]}@{told['place']}"
        places = [f"{told['tokens'][0]}@{one}" for one in self.target.servers]
        for place in [text, *places] * 10:
            if (await self._type(node, "skep", "node", "join", place, "--gpus", "4")).code == 0:
                break
            await asyncio.sleep(PAUSE_S)
        else:
            self.violations.append(Violation("join", f"{node} could not join"))
            return "could not join"
        await asyncio.to_thread(self.target.add_node, node)
        return f"joined within {time.monotonic() - begin:.1f} s"

    async def _until_done(self, machines: Sequence[str], *words: str) -> Done:
        """Type a command on the first machine that is on, again on the next one if it fails."""
        deadline, latest, turn = time.monotonic() + DONE_WITHIN_S, "", 0
        while time.monotonic() < deadline:
            name = machines[turn % len(machines)]
            turn += 1
            if self.target.is_on(name):
                done = await self._type(name, *words)
                if done.code == 0:
                    return done
                latest = f"{name}: exit code {done.code}: {done.error.strip()[-200:]}"
            await asyncio.sleep(PAUSE_S)
        text = f"{' '.join(words)} is not done after {DONE_WITHIN_S:.0f} s: {latest}"
        raise TimeoutError(text)

    async def _type(self, name: str, *words: str) -> Done:
        return await asyncio.to_thread(self.target.machine(name).do, *words)


def _lost(error: Exception) -> None:
    """Take why a connection ended: it was only made to see whether it may."""
    del error
