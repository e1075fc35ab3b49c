"""Keeps a pool: as many nodes as the jobs need, on machines that another system owns.

Leaving a node: it takes no further work; jobs that can move go elsewhere, others that can store
their state do; then the allocation is handed back, and what was stored goes on on other nodes.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from skep.pools import Allocation, Limits, Node, decide
from skep_services.cli import exits
from skep_services.cli.changes import outcome_of
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.pools.source import Say, Source, SourceError

LOOK_EVERY_S = 2.0
STORE_WITHIN_S = 60.0
"""For one change of one job; the margin is for all of an allocation."""
AGAIN_FIRST_S, AGAIN_MAX_S = 10.0, 300.0
"""An allocation that ends before it is a node will mostly do so again: it is asked for later."""
WAITS = "queued"


class Token(NamedTuple):
    """A token that was made, and perhaps not given yet."""

    id: str
    text: str
    made_at: float


class Keeper:
    """Decides every few seconds, and does what was decided.

    Args:
        client: The gateway, as its operator.
        source: What has the machines.
        limits: What to hold to.
        say: Told of all that is done, a line each.
    """

    def __init__(self, client: Client, source: Source, limits: Limits, say: Say) -> None:
        self._client = client
        self._source = source
        self._limits = limits
        self._say = say
        self._busy_at: dict[str, float] = {}
        self._seen_at: dict[str, float] = {}
        self._tokens: dict[str, Token] = {}
        self._unproven: dict[str, None] = {}
        self._again_s = AGAIN_FIRST_S
        self._ask_at = 0.0
        self._left: dict[str, None] = {}
        self._lost: list[str] = []
        self._removed: set[str] = set()
        self._trouble = ""

    def run(self) -> None:
        """Keep nodes until interrupted; trouble is told once, and looked past the next time."""
        while True:
            try:
                self.look()
                self._trouble = ""
            except (SourceError, CommandError, OSError) as error:
                text = str(error).splitlines()[0]
                if text != self._trouble:
                    self._say(f"not now: {text}")
                self._trouble = text
            self._source.wait(LOOK_EVERY_S)

    def look(self) -> None:
        """Look once, and do what is to be done.

        Raises:
            SourceError: The machines' owner cannot be asked, or refuses.
            CommandError: The cluster cannot be asked, or refuses.
        """
        for text in self._source.news():
            self._say(text)
        allocations = self._source.allocations()
        jobs = self._client.get("/v1/jobs?state=active&limit=20000")["jobs"]
        waiting = sum(int(job["gpus"]) for job in jobs if job["state"] == WAITS)
        nodes = self._nodes()
        do = decide(allocations, nodes, waiting, self._limits)
        by_number = {each.number: each for each in allocations}
        known = {each.node for each in allocations}
        for name in (*do.remove, *(each for each in self._lost if each not in known)):
            if name not in self._removed:
                self._remove(name)
        for number in do.invite:
            self._invite(by_number[number])
        for number in [each for each in self._tokens if each not in by_number]:
            self._revoke(self._tokens.pop(number))
        self._judge(by_number, nodes)
        if do.give_up:
            self._end(*do.give_up)
            self._say(f"handed back before they were nodes: {' '.join(do.give_up)}")
        if time.monotonic() >= self._ask_at:
            for _ in range(do.ask):
                self._ask(waiting)
        for number in do.leave:
            allocation = by_number[number]
            left_s = allocation.left_s or 0
            why = "idle" if not nodes[allocation.node].jobs else f"{left_s:.0f} s are left"
            self.leave(allocation, nodes[allocation.node], why)

    def leave(self, allocation: Allocation, node: Node, why: str) -> None:
        """Have the jobs of a node go elsewhere, or store themselves, and hand it back."""
        self._client.post("/v1/admin/drain", {"node": node.name, "drain": True})
        # A job may have come between the look and the drain.
        jobs = self._nodes().get(node.name, node).jobs
        told = [self._move(job) for job in jobs]
        self._end(allocation.number)
        self._say(f"handed back {allocation.number} ({why}): {', '.join(told) or 'no jobs'}")
        self._remove(node.name)
        # The cluster lists it, and its jobs, until it counts as lost.
        self._left[node.name] = None

    def hand_back(self) -> None:
        """Leave every node, and give up what has not begun.

        Raises:
            SourceError: The machines' owner cannot be asked.
        """
        nodes = self._nodes()
        allocations = self._source.allocations()
        self._source.end(*(each.number for each in allocations if each.node not in nodes))
        for name in nodes:
            # Before any job moves: it would move from one of them to the next.
            self._client.post("/v1/admin/drain", {"node": name, "drain": True})
        for each in allocations:
            if each.node in nodes:
                self.leave(each, nodes[each.node], "stopped")
        known = {each.node for each in allocations}
        for name in (*nodes, *self._lost):
            if name not in known:
                self._remove(name)

    def _nodes(self) -> dict[str, Node]:
        now, found = time.monotonic(), {}
        self._lost.clear()
        for one in self._client.get("/v1/nodes")["nodes"]:
            name, jobs = str(one["node"]), tuple(one["jobs"])
            if name in self._left or not self._source.owns(name):
                continue
            if one["state"] == "lost":
                self._lost.append(name)
                continue
            if jobs or name not in self._busy_at:
                self._busy_at[name] = now
            self._seen_at[name] = now
            found[name] = Node(name, jobs, now - self._busy_at[name])
        return found

    def _ask(self, waiting: int) -> None:
        number = self._source.ask()
        self._unproven[number] = None
        why = f": {waiting} GPUs are waited for" if waiting else ""
        self._say(f"asked for {self._source.noun} {number}{why}")

    def _judge(self, there: dict[str, Allocation], nodes: dict[str, Node]) -> None:
        """Ask for nothing more for a while when what was asked for ended before it was a node."""
        for number in list(self._unproven):
            if number not in there:
                self._ask_at = time.monotonic() + self._again_s
                text = f"{number} ended before it was a node: the next is asked for in"
                self._say(f"{self._source.noun} {text} {self._again_s:.0f} s")
                self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
            elif there[number].node in nodes:
                self._again_s = AGAIN_FIRST_S
            else:
                continue
            del self._unproven[number]

    def _end(self, *numbers: str) -> None:
        self._source.end(*numbers)
        for number in numbers:
            self._unproven.pop(number, None)

    def _invite(self, allocation: Allocation) -> None:
        """Give an allocation that runs its token, once; give up one that does nothing with it."""
        now, minutes = time.monotonic(), self._source.token_minutes
        before = self._seen_at.get(allocation.node)
        if before is not None and now - before < minutes * 60:
            return
        number = allocation.number
        kept = self._tokens.get(number)
        is_new = kept is None or now - kept.made_at >= minutes * 60
        if kept is None or is_new:
            wish = {"kind": "node", "node": allocation.node, "minutes": minutes}
            made = self._client.post("/v1/join-tokens", wish)
            kept = self._tokens[number] = Token(made["token"], made["text"], now)
        place = self._client.target.url.split(",")[0].rpartition("://")[2].partition("/")[0]
        # If this fails, the same token is given the next time: it may have got there all the same.
        given = self._source.invite(number, f"{kept.text}@{place}")
        del self._tokens[number]
        if not given and is_new:
            self._revoke(kept)
        self._seen_at[allocation.node] = now
        if given:
            self._say(f"{self._source.noun} {number} runs and is invited")
        elif before is not None:
            self._end(number)
            self._say(f"handed back {number}: it was no node for {minutes:.0f} minutes")

    def _revoke(self, token: Token) -> None:
        self._client.post(f"/v1/join-tokens/{quote(token.id)}/revoke", {})

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
