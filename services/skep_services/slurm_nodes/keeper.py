"""Keeps a cluster's nodes in allocations of Slurm's: as many as the jobs need, until it is stopped.

Leaving a node: it takes no further work; jobs that can move go elsewhere, others that can store
their state do; then the allocation is handed back, and what was stored goes on on other nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skep.slurm.allocations import Allocation, Limits, Node, decide
from skep_services.cli import exits
from skep_services.cli.changes import outcome_of
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.slurm_nodes.queue import Queue, SlurmError

LOOK_EVERY_S = 2.0
TOKEN_MINUTES = 10.0
STORE_WITHIN_S = 60.0
"""For one change of one job; the margin is for all of an allocation."""
WAITS = "queued"
Say = Callable[[str], None]


class Keeper:
    """Decides every few seconds, and does what was decided.

    Args:
        client: The gateway, as its operator.
        queue: Slurm's queue.
        folder: What it shares with the allocations.
        limits: What to hold to.
        say: Told of all that is done, a line each.
    """

    def __init__(
        self, client: Client, queue: Queue, folder: Path, limits: Limits, say: Say
    ) -> None:
        self._client = client
        self._queue = queue
        self._folder = folder
        self._limits = limits
        self._say = say
        self._busy_at: dict[str, float] = {}
        self._invited: dict[str, float] = {}
        self._removed: set[str] = set()
        self._trouble = ""

    def run(self) -> None:
        """Keep nodes until interrupted; trouble is told once, and looked past the next time."""
        while True:
            try:
                self.look()
                self._trouble = ""
            except (SlurmError, CommandError, OSError) as error:
                text = str(error).splitlines()[0]
                if text != self._trouble:
                    self._say(f"not now: {text}")
                self._trouble = text
            time.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Look once, and do what is to be done.

        Raises:
            SlurmError: Slurm cannot be asked, or refuses.
        """
        allocations = self._queue.allocations()
        jobs = self._client.get("/v1/jobs?state=active&limit=20000")["jobs"]
        waiting = sum(int(job["gpus"]) for job in jobs if job["state"] == WAITS)
        nodes = self._nodes()
        do = decide(allocations, nodes, waiting, self._limits)
        by_number = {each.number: each for each in allocations}
        for name in do.remove:
            if name not in self._removed:
                self._remove(name)
        for number in do.invite:
            self._invite(number)
        if do.give_up:
            self._queue.end(*do.give_up)
            self._say(f"handed back before they began: {' '.join(do.give_up)}")
        for _ in range(do.ask):
            self._say(f"asked for allocation {self._queue.ask()}: {waiting} GPUs are waited for")
        for number in do.leave:
            allocation = by_number[number]
            why = "idle" if not nodes[allocation.node].jobs else f"{allocation.left_s} s are left"
            self.leave(allocation, nodes[allocation.node], why)

    def leave(self, allocation: Allocation, node: Node, why: str) -> None:
        """Have the jobs of a node go elsewhere, or store themselves, and hand it back."""
        self._client.post("/v1/admin/drain", {"node": node.name, "drain": True})
        # A job may have come between the look and the drain.
        jobs = self._nodes().get(node.name, node).jobs
        told = [self._move(job) for job in jobs]
        self._queue.end(allocation.number)
        self._say(f"handed back {allocation.number} ({why}): {', '.join(told) or 'no jobs'}")
        self._remove(node.name)

    def hand_back(self) -> None:
        """Leave every node, and give up what has not begun.

        Raises:
            SlurmError: Slurm cannot be asked.
        """
        nodes = self._nodes()
        allocations = self._queue.allocations()
        self._queue.end(*(each.number for each in allocations if each.node not in nodes))
        for name in nodes:
            # Before any job moves: it would move from one of them to the next.
            self._client.post("/v1/admin/drain", {"node": name, "drain": True})
        for each in allocations:
            if each.node in nodes:
                self.leave(each, nodes[each.node], "stopped")

    def _nodes(self) -> dict[str, Node]:
        now, found = time.monotonic(), {}
        for one in self._client.get("/v1/nodes")["nodes"]:
            name, jobs = str(one["node"]), tuple(one["jobs"])
            if one["state"] == "lost":
                continue
            if jobs or name not in self._busy_at:
                self._busy_at[name] = now
            found[name] = Node(name, jobs, now - self._busy_at[name])
        return found

    def _invite(self, number: str) -> None:
        """Give an allocation that has begun its token, once."""
        now = time.monotonic()
        if now - self._invited.get(number, -float("inf")) < TOKEN_MINUTES * 60:
            return
        wish = {"kind": "node", "node": f"slurm-{number}", "minutes": TOKEN_MINUTES}
        token = self._client.post("/v1/join-tokens", wish)["text"]
        place = self._client.target.url.split(",")[0].rpartition("://")[2].partition("/")[0]
        path = self._folder / f"{number}.token"
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}@{place}\n")
        part.rename(path)
        self._invited[number] = now
        self._say(f"allocation {number} runs and is invited")

    def _move(self, job: str) -> str:
        """Have a job go elsewhere, or else store itself; return what became of it."""
        row = self._client.get(f"/v1/jobs/{quote(job)}")
        for ask, done in (("migrate", "moved"), ("checkpoint", "stored")):
            if ask not in row["can"]:
                continue
            try:
                answer: dict[str, Any] = self._client.post(f"/v1/jobs/{quote(job)}/{ask}", {})
                deadline = time.monotonic() + STORE_WITHIN_S
                if outcome_of(self._client, job, answer, deadline)[1] == exits.OK:
                    return f"{job} {done}"
            except CommandError as error:
                self._say(f"{job}: {ask}: {error.text.splitlines()[0]}")
        return f"{job} begins again elsewhere"

    def _remove(self, name: str) -> None:
        """Have the cluster forget a node; one that is forgotten already is no trouble.

        Raises:
            CommandError: The cluster cannot be reached.
        """
        try:
            self._client.post("/v1/admin/drain", {"node": name, "drain": True})
            self._client.post(f"/v1/members/node/{name}/remove", {})
        except CommandError as error:
            if error.code == exits.UNREACHABLE:
                raise
        self._removed.add(name)
