"""A rank of a gang on parameter servers that is told by its agent to be of another size.

    rescale --each rank looks at the coordinator until all is as wanted--> rescaled | failed
    resume  --withdrawn: the first rank brings the servers back to what was agreed last

The first rank keeps the servers, and has them come and go one after the other. Newcomers join by
themselves, as their optimizer does. What grows comes first, then servers go, and workers last:
until then nothing is lost that could not be had again. A worker that is to leave asks for it, and
ends with its script. No step is agreed on: the coordinator's clock is one (`machine`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from skep_job.link.orders import AtOnce, Control, describe
from skep_job.link.orders import Message as Order
from skep_job.process import ending
from skep_ps.ask import ask
from skep_ps.errors import Broken, Refused
from skep_ps.wire import Late, Message, Settings

if TYPE_CHECKING:
    from skep_ps.optimizer import SGD

LOOK_S = 0.1
"""Between two looks at the coordinator, while a change is under way."""


class Wanted(NamedTuple):
    """The size that the agent wants."""

    servers: int
    workers: int = 0  # 0: whatever there is
    leaves: bool = False  # this rank does


Step = Literal["start", "remove", "leave", "wait", "done"]


class Servers(Protocol):
    """The servers of a first rank: what `launch.Children` does."""

    def start(self) -> None:
        """Start one more."""

    def alive(self) -> int:
        """Return how many run."""

    def failed(self) -> str:
        """Return what a server that could not join ended with; an empty text if none did."""


def following(status: Message, wanted: Wanted, alive: int | None) -> Step:
    """Return what a rank does next.

    Args:
        status: The coordinator's answer to `status`.
        wanted: The size that is wanted.
        alive: How many server processes this rank runs; None: it is not the one that keeps them.
    """
    servers, workers = len(status["servers"]), len(status["workers"])
    changing = bool(status["scaling"]) or status["queued"] > 0
    if status["state"] != "running":
        return "wait"
    if alive is not None and alive < wanted.servers:
        return "start"
    if changing or servers < wanted.servers or workers < wanted.workers:
        return "wait"
    if servers > wanted.servers:
        return "wait" if alive is None else "remove"
    if wanted.workers and workers > wanted.workers:
        return "leave" if wanted.leaves else "wait"
    return "done"


class Scaling:
    """Does the agent's `rescale` for one rank, on a thread of its own."""

    def __init__(
        self,
        control: Control,
        where: Settings,
        reached: Callable[[], int],
        servers: Servers | None = None,
        count: int = 0,
    ) -> None:
        """Take no order yet.

        Args:
            control: The orders of the agent.
            where: Where the coordinator is, and what lets us in.
            reached: It returns the mini-batches that are done, on any thread.
            servers: The servers of the rank that keeps them; None: this is another rank.
            count: How many servers there are at first.
        """
        self._control, self._where, self._reached = control, where, reached
        self._servers = servers
        self._agreed = count
        self._changed = threading.Condition()
        self._order: Order | None = None
        self._since: dict[int, int] = {}  # pauses that optimizers had before, by id
        self._restores = False
        self._resume: AtOnce | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="skep-ps-scaling")

    def install(self, *, joins: bool) -> None:
        """Take orders from here on.

        Args:
            joins: Whether this rank is a newcomer, which says that it is there.
        """
        self._control.at_once("rescale", self._ordered)
        self._resume = self._control.seen_by("resume")
        self._control.at_once("resume", self._withdrawn)
        self._thread.start()
        if joins:
            self._control.say("ready", port=0)

    def finish(self) -> None:
        """Say that this rank has left, if it was to."""
        with self._changed:
            if self._order is not None and self._order.get("leaves"):
                self._say_done(self._order)
                ending.leave()

    # --- on the reporter's thread -----------------------------------------------------------------

    def _ordered(self, message: Order) -> object:
        with self._changed:
            self._order, self._restores = message, False
            self._since = {id(each): len(each.pauses) for each in _optimizers()}
            self._changed.notify_all()
        return True

    def _withdrawn(self, message: Order) -> object:
        with self._changed:
            self._restores = self._restores or self._order is not None
            self._order = None
            self._changed.notify_all()
        return self._resume(message) if self._resume is not None else False

    # --- on its own -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._order is None and not (self._restores and self._servers is not None):
                    self._restores = False
                    self._changed.wait()
                order = self._order
            try:
                self._look(order)
            except (Broken, Late, OSError):
                pass  # The coordinator is away, or not there yet.
            except Refused as error:
                self._give_up(order, error)
            with self._changed:
                if self._order is order:
                    self._changed.wait(LOOK_S)

    def _look(self, order: Order | None) -> None:
        """Do one step of what is wanted now."""
        wanted = self._wanted(order)
        status = ask(self._where, {"type": "status"})
        servers = self._servers
        wrong = servers.failed() if servers is not None and order is not None else ""
        if wrong:
            self._give_up(order, wrong)
            return
        step = following(status, wanted, servers.alive() if servers is not None else None)
        if step == "start" and servers is not None:
            servers.start()
        elif step == "remove":
            ask(self._where, {"type": "remove", "role": "server", "id": max(status["servers"])})
        elif step == "leave":
            for optimizer in _optimizers():
                optimizer.leave()
        elif step == "done":
            with self._changed:
                if order is None:
                    self._restores = False
                elif order is self._order:
                    self._say_done(order)

    def _wanted(self, order: Order | None) -> Wanted:
        if order is None:
            return Wanted(self._agreed)
        servers, world = order["servers"], order["world"]
        assert isinstance(servers, int)
        assert isinstance(world, int)
        return Wanted(servers, world, bool(order.get("leaves")))

    def _say_done(self, order: Order) -> None:
        """Say that all is as wanted; locked."""
        wanted = self._wanted(order)
        self._order, self._agreed = None, wanted.servers
        pauses = [
            pause.ns
            for each in _optimizers()
            for pause in each.pauses[self._since.get(id(each), 0) :]
        ]
        self._control.say(
            "rescaled",
            order=order["order"],
            generation=order["generation"],
            step=self._reached(),
            pause_ns=max(pauses, default=0),
        )

    def _give_up(self, order: Order | None, why: object) -> None:
        with self._changed:
            if order is not None and order is self._order:
                self._order, self._restores = None, True
                self._control.fail(order, describe(why))


def _optimizers() -> list[SGD]:
    """Return this process's optimizers; none before the script has made one."""
    module = sys.modules.get("skep_ps.optimizer")
    return module.joined() if module is not None else []
