"""A gang whose loop a library owns, and how it changes its size: the loop begins anew at a place.

at the step    all vote; only once all are known to be there, the library writes its checkpoint on
               every rank, and the first one gets all the files
formed         everybody gets the files that it has not, from those that stayed
done           the library's loop is left by `Regrouped`, and begun anew from the files
failed         the old gang is formed again, and its loops begin anew from the same files

No survivor restarts: the process, what it has imported and its data stay. A newcomer has its
library believe that it is alone until it has a seat (`library_group`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from skep_job.elastic.gang import COPY_BYTES_PER_S_MIN, Gang
from skep_job.elastic.parts import Clock, Rules, Seat
from skep_job.elastic.rank_files import of_all_ranks
from skep_job.observe.step_counter import Tally
from skep_job.state import random_state, snapshot
from skep_job.state.state_tree import decode

if TYPE_CHECKING:
    from skep_job.elastic.agreement import Plan, Round
    from skep_job.state.snapshot import Snapshot


class Regrouped(BaseException):
    """Ends the library's loop, to begin it anew: the process group is another one.

    No `except Exception` of a script or a library is to stop it.
    """


class Owner(Protocol):
    """The run whose gang this is (`cooperate.library_run`)."""

    files: Any
    """The tracked thing: `found` has the bytes of files by their paths, and `group` is the process
    group of gloo's in which the ranks exchange them; None: there are no others."""

    @property
    def tracked(self) -> dict[str, Any]: ...

    @property
    def done(self) -> int:
        """The mini-batches so far."""
        ...

    def place(self) -> dict[str, Any]:
        """Return where the training is."""
        ...

    def sums(self) -> dict[str, float]:
        """Return the sums that were reported."""
        ...

    def go_on_from(self, sums: dict[str, float]) -> None:
        """Count on from the sums of another rank."""
        ...

    def put(self, files: dict[str, Any], near: int) -> None:
        """Put files where the library will read them; `near` ranks of this host do so at once."""
        ...

    def drop(self) -> None:
        """Remove what was put, if the library has not read it."""
        ...


class LibraryGang:
    """What a run asks of the gang that it is a rank of. For the training thread."""

    def __init__(self, run: Owner, rules: Rules) -> None:
        """Not for scripts: `skep_job.cooperate.begin` makes it."""
        self._run = run
        self._tally: Tally | None = None
        self.gang = Gang(rules, self._tallied, _State(self))
        self.gang.regroup = self.parts = _Parts(run, rules.patience_s)
        self.gang.tells_later = True
        self.place_of_newcomer: dict[str, Any] = {}

    def open(self) -> None:
        """Join the gang as the environment says, or be ready to. The library forms the group.

        Raises:
            ValueError: The rules do not allow a gang of this size.
        """
        from skep_job.observe.observation import current

        observation = current()
        control = None
        if observation is not None:
            self._tally = tally = observation.tally
            self.gang.step_ns = lambda: tally.count().step_ns
            control = observation.control
        self.gang.open(os.environ, control, forms=False)

    def offer(self, sizes: tuple[int, ...], backend: str) -> None:
        """Take it that the gang can have these sizes only.

        Args:
            sizes: Numbers of ranks with which the global batch stays as it is.
            backend: The backend of the process group.
        """
        self.gang.rules = self.gang.rules._replace(offered=sizes, backend=backend)

    def boundary(self) -> None:
        """Do what is due.

        Raises:
            Regrouped: The process group is another one.
            Left: The process has no place in the gang any more.
        """
        self.gang.tell()
        if self.gang.due and self.gang.boundary():
            raise Regrouped

    def look(self) -> None:
        """See what is due, where nothing can be done."""
        self.gang.tell()
        if self.gang.due:
            self.gang.look()

    # --- what `cooperate` asks --------------------------------------------------------------------

    def regroup(self, leave: Callable[[], None], begin: Callable[[], None]) -> None:
        self.gang.follow(_Follower(leave, begin))
        self.gang.follow(_Follower(self._leave_group, self._find_group))
        self._find_group()

    def joins(self) -> bool:
        return not self.gang.is_member

    def join(self) -> dict[str, Any]:
        self.gang.settle()
        return self.place_of_newcomer

    def attends(self) -> bool:
        return True  # The library's own collectives.

    def sizes(self) -> tuple[int, ...]:
        return self.gang.rules.offered

    def world(self) -> int:
        return self.gang.seat.world

    def is_whole(self) -> bool:
        return True  # A boundary is behind a step of the optimizer.

    def writes(self) -> bool:
        return self.gang.seat.rank == 0

    def rank(self) -> int:
        return self.gang.seat.rank

    def is_split(self) -> bool:
        return False

    # --- inside -----------------------------------------------------------------------------------

    def _find_group(self) -> None:
        """Make the one group for files that a generation has. Called by all ranks of it."""
        from torch import distributed

        if distributed.is_initialized() and distributed.get_world_size() > 1:
            self._run.files.group = distributed.new_group(backend="gloo")

    def _leave_group(self) -> None:
        self._run.files.group = None

    def _tallied(self) -> int:
        return self._tally.reached() if self._tally is not None else self._run.done

    def counts(self) -> dict[str, Any]:
        """Return what a newcomer goes on counting from."""
        return {"counted": self._tallied(), "sums": self._run.sums()}

    def go_on_from(self, place: dict[str, Any]) -> None:
        """Be at the place of the others, with a chance of this process's own."""
        self.place_of_newcomer = {**place, "chance": random_state.capture()}
        self._run.go_on_from(place.get("sums", {}))
        if self._tally is not None:
            self._tally.steps = place["counted"]  # The agent sees it where the others are.


class _State:
    """What the gang asks of the state, of which each rank has some files."""

    def __init__(self, gang: LibraryGang) -> None:
        self._gang = gang

    @property
    def tracked(self) -> dict[str, Any]:
        return self._gang._run.tracked

    def place(self) -> dict[str, Any]:
        return {**self._gang._run.place(), "chance": {}, **self._gang.counts()}

    def go_to(self, place: dict[str, Any]) -> None:
        self._gang.go_on_from(place)

    def warm_up(self) -> None:
        """Nothing can be done without a batch."""


class _Parts:
    """The files of the ranks, and how everybody gets them all."""

    splits = False
    gathers = True

    def __init__(self, run: Owner, patience_s: float) -> None:
        self._run = run
        self._patience_s = patience_s
        self._place: dict[str, Any] | None = None
        self._shared: dict[str, Any] | None = None
        """The place, once this rank has put all files, until the run goes on from there."""

    @property
    def _files(self) -> Any:
        return self._run.files

    def offer(self, round_: Round, plan: Plan, rank: int, state: Snapshot) -> None:
        """Keep what the library has written on this rank."""
        self._files.found = dict(decode(state.plain["tracked"]["library"], state.tensors))
        self._place = snapshot.place_of(state.plain, state.tensors)

    def take(self, round_: Round, seat: Seat, clock: Clock) -> tuple[dict[str, Any] | None, int]:
        """Take the files that are missing here; return a newcomer's place, and the bytes.

        Raises:
            RuntimeError: Another rank is gone, or took too long.
        """
        newcomer = self._place is None
        place, moved = self._share(seat)
        clock.part("files")
        return (place if newcomer else None), moved

    def back(self, seat: Seat) -> None:
        """Take the files that are missing here from the old gang, which is formed again."""
        self._share(seat)

    def close(self) -> None:
        """Drop what was kept: what was taken is in files."""
        self._place = self._files.found = None

    def undo(self) -> None:
        """Drop what came too: this process did not become a member."""
        self.close()
        self._shared = None
        self._run.drop()

    def taken(self) -> dict[str, Any]:
        """Return, once, the place that the files are of.

        Raises:
            AssertionError: A bug: the gang was not changed.
        """
        place, self._shared = self._shared, None
        assert place is not None, "nothing was offered or taken"
        return place

    def _share(self, seat: Seat) -> tuple[dict[str, Any], int]:
        """Give every rank of the new group all files, and the first one's place.

        They are put where the library will read them: what cannot be put undoes the change.

        Raises:
            RuntimeError: Another rank is gone, or took too long.
            OSError: There is no room for them.
        """
        before = self._files.found or {}
        here = {name: data.numel() for name, data in before.items()}
        place, whole, near = self._place, dict(before), 1
        if seat.world > 1:
            from torch import distributed

            # Whoever is gone is missed here, soon; the files may take longer.
            group = _group(self._patience_s)
            given = [place, sum(here.values())]
            distributed.broadcast_object_list(given, 0, group=group)
            place, size = given
            group = _group(self._patience_s + size / COPY_BYTES_PER_S_MIN)
            host, hosts = socket.gethostname(), [""] * seat.world
            distributed.all_gather_object(hosts, host, group=group)
            near = hosts.count(host)
            whole = of_all_ranks(before, group)
        assert place is not None, "the first rank has no place: it always stays"
        self._run.put(whole, near)
        self._shared = place
        return place, sum(data.numel() for name, data in whole.items() if name not in here)


class _Follower:
    """What has a group of its own."""

    def __init__(self, leave: Callable[[], None], begin: Callable[[], None]) -> None:
        self._leave, self._begin = leave, begin

    def release(self) -> None:
        self._leave()

    def rebuild(self, seat: Seat, *, first: bool) -> None:
        self._begin()


def _group(wait_s: float) -> Any:
    """Return a new process group of all ranks, for files.

    Args:
        wait_s: How long a rank waits for others in it (seconds).
    """
    from torch import distributed

    return distributed.new_group(backend="gloo", timeout=timedelta(seconds=wait_s))
