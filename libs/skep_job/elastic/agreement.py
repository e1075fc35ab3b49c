"""One change of a gang's size, as its members agree on it in a store that belongs to none of them.

    gathering --old members at the step, newcomers loaded--> commit --all are in--> done
        |                                                      |
        `--refused, or not all in time--> as before            `--one failed--> back

Two ballots, each decided by the first vote that the store sees (compare-and-set), so that all
members read the same result whatever they knew when they voted: the first says whether the old gang
may be left, the second whether the new one stands. Until the first is decided nothing has been
touched; between the two the survivors still have all the state, and every old member still exists.
Where the ranks gather their state together, a ballot between the two says whether they all could:
the old group is left behind that one only.

What a member waits for has a deadline here, and a member that gives up waiting votes before it
leaves. A store that is lost raises `StoreLost`: no later vote will be seen by anyone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

CONNECT_S = 5.0
"""How long a store may take to accept: it has nothing else to do."""

CLOCK_SLACK_S = 0.1
"""By how much the store's client may think a deadline earlier than this process does."""

COMMIT, DONE = "commit", "done"
LAYOUT, VERDICT, OUTCOME, STEP = "layout", "verdict", "outcome", "step"
GIVEN = "given"
NOTHING = "-"
TEXT_MAX = 500
"""Characters of a reason: it is a sentence."""

Answer = TypeVar("Answer")


class StoreLost(Exception):  # noqa: N818  a name for what happened
    """The store is gone or does not answer; what the others decided cannot be known."""


class Plan(NamedTuple):
    """One `rescale` of the agent, for one process."""

    order: int
    generation: int
    world: int
    rank: int  # -1: this process leaves
    host: str
    port: int
    step: int  # 0: after the mini-batch in progress
    agrees: bool = False  # the step is agreed on in the store, once everybody is there

    @property
    def leaves(self) -> bool:
        """Whether this process has no place in the new gang."""
        return self.rank < 0


def read_plan(message: dict[str, object]) -> Plan:
    """Return the plan in a `rescale` message.

    Raises:
        ValueError: A number is none, or the plan makes no sense.
    """
    leaves = message.get("leaves", False)
    numbers = {
        name: message.get(name, 0) for name in ("order", "generation", "world", "port", "step")
    }
    numbers["rank"] = -1 if leaves else message.get("rank", -1)
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool):
            reason = f"{name} is {value!r}, expected a whole number"
            raise ValueError(reason)
    plan = Plan(
        host=str(message.get("host", "")),
        agrees=bool(message.get("agree", False)),
        **numbers,  # type: ignore[arg-type]
    )
    if plan.generation < 1 or plan.world < 1 or not 0 <= plan.port < 2**16 or plan.step < 0:
        reason = f"no such gang: {plan}"
        raise ValueError(reason)
    if not leaves and not 0 <= plan.rank < plan.world:
        reason = f"rank is {plan.rank}, expected 0 to {plan.world - 1}, or `leaves`"
        raise ValueError(reason)
    return plan


def folder(job: str, attempt: int, generation: int) -> str:
    """Return the prefix of everything that one generation of a gang has in a store."""
    return f"skep/{job}/{attempt}/{generation}"


class Round:
    """This process's part in one change. Not for two threads at once: each opens its own."""

    def __init__(self, plan: Plan, prefix: str, patience_s: float) -> None:
        """Connect to the store that the plan names.

        Args:
            plan: The change, as this process was told of it.
            prefix: The beginning of the keys of the new generation (`folder`).
            patience_s: How long this process waits for the others (seconds).

        Raises:
            StoreLost: The store does not answer.
        """
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        self.plan = plan
        self._patience_s = patience_s
        connect = timedelta(seconds=min(CONNECT_S, patience_s))
        server = _try(
            lambda: TCPStore(
                plan.host, plan.port, is_master=False, timeout=connect, wait_for_workers=False
            )
        )
        self.store: Any = PrefixStore(prefix, server)

    # --- before the commit ----------------------------------------------------------------------

    def take_seat(self, old_rank: int) -> None:
        """Say early that this member of the old gang stays, and where it will sit.

        Args:
            old_rank: Its rank in the old gang.
        """
        if not self.plan.leaves:
            self._agree(f"seat/{self.plan.rank}", f"old {old_rank}")

    def publish(self, layout: str) -> None:
        """Tell newcomers early how large the state is, so that they have the memory ready.

        Args:
            layout: The layout of its tensors, as JSON.
        """
        self._vote(LAYOUT, layout)

    def layout(self, wait_s: float) -> str:
        """Wait for what `publish` says.

        Args:
            wait_s: How long (seconds).

        Returns:
            Empty if no member has said it in time, or the change is refused.
        """
        text = self._await(LAYOUT, wait_s, NOTHING)
        return "" if text == NOTHING else text

    def match(self, key: str, mine: str) -> bool:
        """Refuse the change unless all members say the same; return whether this one may go on.

        Args:
            key: About what.
            mine: What this member says.
        """
        return self._agree(key, mine)

    def offer(self, old_rank: int, address: str) -> None:
        """Say where this member of the old gang gives its part of the state.

        Args:
            old_rank: Its rank in the old gang.
            address: What `Offer.address` returned, as JSON.
        """
        self._vote(f"offer/{old_rank}", address)

    def offers(self) -> list[dict[str, object]]:
        """Return where the parts of the state are, by old rank. Only after the commit.

        Raises:
            StoreLost: The store is gone or does not answer.
        """
        old_world = int(self._get("old-world"))
        return [json.loads(self._get(f"offer/{rank}")) for rank in range(old_world)]

    def knock(self, door: dict[str, object]) -> bool:
        """Say where this newcomer takes the state; return whether its seat is its own.

        Args:
            door: What `Door.address` returns.

        Returns:
            False if the seat is another's, or the change is refused.
        """
        self._agree("world", str(self.plan.world))
        return self._agree(f"seat/{self.plan.rank}", json.dumps(door))

    def arrive(self, old_rank: int, old_world: int) -> dict[int, dict[str, object]]:
        """Say that this member of the old gang stands at the step. Votes if it is the last.

        Args:
            old_rank: Its rank in the old gang.
            old_world: How many ranks the old gang has.

        Returns:
            The doors, by new rank, to which this member is the one that brings the state: they are
            dealt out evenly among those that stay. Empty if it has none, it leaves, or the change
            is refused.
        """
        self._agree("world", str(self.plan.world))
        self._agree("old-world", str(old_world))
        self._agree(f"old/{old_rank}", str(self.plan.rank))
        self.take_seat(old_rank)
        self._count("old")
        self._close()
        if self.plan.leaves:
            return {}
        keys = [f"seat/{rank}" for rank in range(self.plan.world)]
        if not self._wait(keys, self._patience_s):
            self.refuse(self._late())
            return {}
        seats = {rank: self._get(key) for rank, key in enumerate(keys)}
        stay = [rank for rank, seat in seats.items() if seat.startswith("old ")]
        doors = [(rank, json.loads(s)) for rank, s in seats.items() if s.startswith("{")]
        mine = stay.index(self.plan.rank) if self.plan.rank in stay else 0
        return dict(doors[mine :: max(len(stay), 1)])

    def join(self) -> None:
        """Say that this newcomer has the state. Votes if it is the last."""
        self._count("new")
        self._close()

    def refuse(self, why: str) -> str:
        """Vote against leaving the old gang; return the verdict, which may be COMMIT already."""
        verdict = self._vote(VERDICT, why)
        for key in (LAYOUT, *(f"seat/{rank}" for rank in range(self.plan.world))):
            self._vote(key, NOTHING)  # Wakes who waits for these.
        return verdict

    def verdict(self, wait_s: float | None = None) -> str:
        """Wait for the verdict: COMMIT, or why the old gang goes on.

        Args:
            wait_s: How long until this member votes against (seconds); None: its patience.
        """
        wait_s = self._patience_s if wait_s is None else wait_s
        return self._await(VERDICT, wait_s, self._late(wait_s))

    def refused(self) -> str:
        """Return why the change is refused, if it is by now; does not wait.

        Returns:
            Empty if there is no verdict yet, or it is COMMIT.
        """
        if not _try(lambda: self.store.check([VERDICT])):
            return ""
        verdict = self._get(VERDICT)
        return verdict if verdict != COMMIT else ""

    def everybody(self, wait_s: float) -> bool:
        """Wait until every seat of the new gang is taken; return whether that is so.

        Args:
            wait_s: How long (seconds).
        """
        return self._wait([f"seat/{rank}" for rank in range(self.plan.world)], wait_s)

    def tell_step(self, old_rank: int, counted: int, margin: int) -> None:
        """Say how far this member is.

        Args:
            old_rank: Its rank in the old gang.
            counted: The mini-batches that it has made.
            margin: How many more it needs to hear of the step.
        """
        self._vote(f"at/{old_rank}", f"{counted} {margin}")

    def common_step(self, old_world: int, wait_s: float) -> int:
        """Return the mini-batch after which all change, once every old member has told.

        Args:
            old_world: How many ranks the old gang has.
            wait_s: How long to wait for them (seconds).

        Returns:
            0 if not every member has told in time.
        """
        keys = [f"at/{rank}" for rank in range(old_world)]
        if not self._wait(keys, wait_s):
            return 0
        told = [tuple(map(int, self._get(key).split())) for key in keys]
        step = max(counted for counted, _ in told) + max(margin for _, margin in told)
        return int(self._vote(STEP, str(step)))

    # --- after the commit -----------------------------------------------------------------------

    def give(self, why: str, old_world: int, wait_s: float) -> str:
        """Say whether this member of the old gang has its state at hand. The last one votes.

        Only where all of them gather it together, which begins behind the commit (`gathers`).

        Args:
            why: Why it has none; empty: it has.
            old_world: How many ranks the old gang has.
            wait_s: How long it waits for the others (seconds).

        Returns:
            COMMIT if all have, or why the old gang goes on, which nobody has left.
        """
        if why:
            self._vote(GIVEN, why)
        elif self._count("gave") == old_world:
            self._vote(GIVEN, COMMIT)
        return self.given(wait_s)

    def given(self, wait_s: float) -> str:
        """Wait for the result of `give`.

        Args:
            wait_s: How long until this member votes against (seconds).
        """
        return self._await(GIVEN, wait_s, f"the state was not gathered within {wait_s:g} s")

    def enter(self) -> None:
        """Say that this member is in the new gang. Votes if it is the last."""
        if self._count("in") == self.plan.world:
            self._vote(OUTCOME, DONE)

    def withdraw(self, why: str) -> str:
        """Vote for going back to the old gang; return the outcome, which may be DONE already."""
        return self._vote(OUTCOME, why)

    def outcome(self) -> str:
        """Wait for the outcome: DONE, or why the old gang is formed again."""
        late = f"not every member was in the new gang within {self._patience_s:g} s"
        return self._await(OUTCOME, self._patience_s, late)

    # --- the store ------------------------------------------------------------------------------

    def _agree(self, key: str, mine: str) -> bool:
        """Claim `key`; refuse the change if it is another's. Return whether it is mine."""
        theirs = self._vote(key, mine)
        if theirs != mine:
            self.refuse(f"members disagree about {key}: {theirs[:80]} and {mine[:80]}")
        return theirs == mine

    def _close(self) -> None:
        """Vote for the commit if all are here. The store orders the counts: the last sees all."""
        new, old = self._count("new", 0), self._count("old", 0)
        if not old:
            return
        old_world = int(self._get("old-world"))
        if old < old_world:
            return
        stay = sum(int(self._get(f"old/{rank}")) >= 0 for rank in range(old_world))
        if stay + new == self.plan.world:
            self._vote(VERDICT, COMMIT)

    def _vote(self, key: str, text: str) -> str:
        text = text[:TEXT_MAX] if key != LAYOUT else text
        return str(_try(lambda: self.store.compare_set(key, "", text)).decode())

    def _count(self, key: str, by: int = 1) -> int:
        return int(_try(lambda: self.store.add(key, by)))

    def _get(self, key: str) -> str:
        # Only for what is known to be there: a store's `get` waits for what is not.
        return str(_try(lambda: self.store.get(key)).decode())

    def _late(self, wait_s: float | None = None) -> str:
        wait_s = self._patience_s if wait_s is None else wait_s
        return f"not every member was there within {wait_s:g} s"

    def _await(self, key: str, wait_s: float, otherwise: str) -> str:
        """Wait for `key`; after `wait_s`, vote `otherwise`. Return what holds."""
        self._wait([key], wait_s)
        return self._vote(key, otherwise)

    def _wait(self, keys: list[str], wait_s: float) -> bool:
        """Wait for keys; return whether all were there in time.

        Args:
            keys: The keys.
            wait_s: How long (seconds).

        Raises:
            StoreLost: The store is gone or does not answer.
        """
        from torch.distributed import DistNetworkError, DistStoreError

        until = time.monotonic() + wait_s
        try:
            self.store.wait(keys, timedelta(seconds=wait_s))
        except DistNetworkError as error:
            raise StoreLost(_first_line(error)) from error
        except DistStoreError as error:
            if time.monotonic() < until - CLOCK_SLACK_S:  # It was not the deadline.
                raise StoreLost(_first_line(error)) from error
            return False
        return True


def _try(ask: Callable[[], Answer]) -> Answer:
    from torch.distributed import DistError

    try:
        return ask()
    except DistError as error:
        raise StoreLost(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:TEXT_MAX]
