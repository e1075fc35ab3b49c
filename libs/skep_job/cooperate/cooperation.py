"""A run under an agent: checkpoints, moves, and what a later process begins with.

    start    the newest checkpoint that can be read, or, for a successor, what its source sends
    boundary what the agent asked for, then a checkpoint if one is due or the job is told to end

Everything that goes wrong here is told to the reader of the job's log and to the agent, and the
training goes on; with one exception: state that was read and does not fit ends the job, because
training on half of it would be worse.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from skep_job.cooperate.gang_barrier import Together
from skep_job.cooperate.successor import Successor, Whose
from skep_job.cooperate.warm_up import make_state, warm_up
from skep_job.link.orders import SIGNALS_S, Lost, Message, describe
from skep_job.observe.metrics import Metrics
from skep_job.observe.reporter import complain
from skep_job.process.rank_part import ranks_here
from skep_job.replicas.memory import Key, available
from skep_job.replicas.replicas import Replicas, Where
from skep_job.shards import stored as stored_shards
from skep_job.shards.gradients import has_own_gradients
from skep_job.shards.later import Done, Later
from skep_job.shards.pieces import NotThere
from skep_job.state import random_state, snapshot, transfer
from skep_job.state.checkpoint_file import Stored, Unreadable, read_tensors
from skep_job.state.checkpoint_folder import KEEP, Checkpoints, Entry, Superseded
from skep_job.state.piece import is_shard, learn
from skep_job.state.snapshot import Snapshot
from skep_job.warm import recording

if TYPE_CHECKING:
    from skep_job.cooperate.run import Run
    from skep_job.observe.observation import Observation


WITH_MOMENTS = 4
"""How often the bytes of the parameters a copy of the state takes, at most as a rule."""


class Options(NamedTuple):
    """What the script and the environment say about checkpoints and moves."""

    every_s: float | None = None  # between automatic checkpoints
    keep: int = KEEP
    warm_up: Callable[[], object] | None = None
    folder: Path | None = None  # SKEP_CHECKPOINTS
    awaits: str = ""  # SKEP_AWAITS: this is a successor
    host: str = ""  # SKEP_HOST: the address to listen on
    elastic: Elastic | None = None
    replicas_every: float | str | None = None  # seconds, or "auto"
    memory: Where | None = None  # SKEP_REPLICAS
    incremental: bool = False  # whether checkpoints refer to older ones for what did not change


class Elastic(Protocol):
    """What is different for a rank of a gang whose ranks all have the same state."""

    def regroup(self, leave: Callable[[], None], begin: Callable[[], None]) -> None:
        """Have `leave` called before every change of the gang, and `begin` after it."""
        ...

    def joins(self) -> bool:
        """Return whether this process is a newcomer, which gets its state from the gang."""
        ...

    def join(self) -> dict[str, Any]:
        """Wait for a place and the state; return the place in the training."""
        ...

    def writes(self) -> bool:
        """Return whether this rank is the one that writes checkpoints."""
        ...

    def attends(self) -> bool:
        """Return whether all ranks take part in what the one that writes reads."""
        ...

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes that the gang can have; none: all that its rules allow."""
        ...

    def world(self) -> int:
        """Return how many ranks the gang has now."""
        ...

    def is_whole(self) -> bool:
        """Return whether every rank has the same gradients, so that one can speak for all."""
        ...

    def rank(self) -> int:
        """Return the rank in the gang of now."""
        ...

    def is_split(self) -> bool:
        """Return whether each rank has a part of the state, and not all of it."""
        ...


class Cooperation:
    """What `skep_job.cooperate.run.Under` asks for, done for one process of a job."""

    active = True

    def __init__(self, observation: Observation, options: Options) -> None:
        self._tally, self._control = observation.tally, observation.control
        self._hooks, self._settings = observation.hooks, observation.settings
        self._options = options
        self._metrics = Metrics(self._control.say)
        self._reports = 0
        atexit.register(self._metrics.send)  # What the rate limit holds back leaves at the end.
        self._together = Together(self._control)
        self._shields = 0
        self._run: Run | None = None
        self._pid = os.getpid()
        self._next_at: float | None = None
        self._told_to_end = False
        self._owns = False  # The state: a successor has yet to get it, a source has sent it away.
        self._successor: Successor | None = None  # While this process is one, and does not train.
        settings = self._settings
        self._checkpoints = self._open(options.folder)
        self._whose = Whose(settings.job, settings.attempt, settings.process, settings.processes)
        self._elastic = options.elastic
        self._split = False
        """Whether this rank has a part of the state."""
        self._later = Later()
        self._said: dict[str, list[Any]] = {}
        every = options.replicas_every
        self._replicas = Replicas(
            options.memory,
            settings.job,
            settings.attempt,
            every if isinstance(every, float) else None,
            auto=every == "auto",
        )

    # --- what a run calls ---------------------------------------------------------------------

    def start(self, run: Run) -> dict[str, Any] | None:
        self._run = run
        control = self._control
        self._hooks.hand_over()
        for part in run.tracked.values():
            if hasattr(part, "param_groups"):
                self._hooks.fingerprint.see_optimizer(part)
        control.cooperative = True
        control.move_clock()
        control.on("checkpoint", self._on_checkpoint)
        control.on("move", self._on_move)
        control.at_once("suspend", self._is_the_job)
        self._together.begin()
        if self._elastic is not None:
            self._elastic.regroup(self._together.leave, self._regroup)
        self._split = _is_split(run.tracked, self._elastic)
        if self._split:
            self._check_versions()
            learn(_parameters(run.tracked))
        self._meet()
        self.tell_can()
        recording.record()
        self._catch_sigterm()
        place: dict[str, Any] | None
        if self._elastic is not None and self._elastic.joins():
            place = self._elastic.join()
        elif self._options.awaits:
            place = self._succeed(run, self._options.awaits)
        else:
            place = self._continue(run)
            self._raise_fence()
        self._owns = True
        if self._options.every_s is not None:
            self._next_at = time.monotonic() + self._options.every_s
        return place

    def tell_can(self) -> None:
        """Tell the agent what the job can do, and which sizes it can have, if that is news."""
        assert self._run is not None
        sizes = () if self._elastic is None else self._elastic.sizes()
        said = {"can": self._can(self._run)} | ({"sizes": list(sizes)} if sizes else {})
        if said != self._said:
            self._said = said
            self._control.say("can", tier="cooperative", **said)

    def arrive(self, state: random_state.State) -> None:
        random_state.restore(state)

    def see(self, batch: object) -> None:
        # A share of an elastic gang's batch changes with its size, and a fingerprint does not.
        if self._elastic is None:
            self._hooks.fingerprint.see_batch(batch, self._tally.steps + 1)

    def count(self) -> None:
        self._tally.tick()

    def boundary(self) -> None:
        if self._shields or os.getpid() != self._pid:
            return
        if self._control.due:
            self._later.settle()  # What is to be suspended or moved must not be read beside it.
            self._control.boundary(self._tally.steps, cooperative=True)
        if self._elastic is not None and not self._elastic.is_whole():
            return  # On every rank alike.
        due = self._next_at is not None and time.monotonic() >= self._next_at
        if self._together.alone:
            if (held := self._together.left_over()) is not None:
                self._control.perform(held, self._tally.steps)
            if self._told_to_end:
                self._end()
            if due:
                self._checkpoint_on_time()
            return
        copy, copied = self._replicas.say(self._later.busy)
        agreed = self._together.boundary(
            checkpoint=due,
            end=self._told_to_end,
            copy=copy,
            copied=copied,
            own_gradients=self._has_own_gradients,
        )
        self._replicas.heard(agreed.copied)
        if agreed.end:
            self._end()
        if agreed.order is not None:
            self._later.settle()
            self._control.perform(agreed.order, self._tally.steps)
        if agreed.checkpoint:
            self._checkpoint_on_time()
        elif agreed.copy:
            self._copy_to_memory()

    def report(self, values: dict[str, Any]) -> None:
        self._reports += 1
        try:
            self._metrics.take(values, self._step_of_report())
        except Exception as error:
            complain(f"a report was left out: {describe(error)}")

    def sums(self) -> dict[str, float]:
        return self._metrics.sums

    def go_on_from(self, sums: dict[str, float]) -> None:
        self._metrics.go_on_from(sums)

    def shield(self, on: bool) -> None:
        self._shields += 1 if on else -1

    def notice(self, text: str) -> None:
        complain(text)

    # --- checkpoints ------------------------------------------------------------------------------

    def _on_checkpoint(self, message: Message) -> None:
        path = message.get("path")
        folder = Path(path) if isinstance(path, str) and path else None
        since_ns = time.monotonic_ns()
        if self._writes_beside():
            self._save_later(folder, functools.partial(self._on_saved, message, self._steps()))
            self._pause(since_ns)
            return
        file, size = self._save(folder)
        self._control.say(
            "checkpointed",
            order=message["order"],
            step=self._steps(),
            bytes=size,
            path=str(file),
            pause_ns=self._pause(since_ns),
        )

    def _on_saved(self, message: Message, step: int, outcome: Any, stood_ns: int) -> None:
        """Answer the order to store, on the thread that has written."""
        if isinstance(outcome, BaseException):
            self._control.fail(message, outcome)
            return
        file, size = outcome
        self._control.say(
            "checkpointed",
            order=message["order"],
            step=step,
            bytes=size,
            path=str(file),
            pause_ns=stood_ns,
        )

    def _on_saved_in_time(self, step: int, outcome: Any, stood_ns: int) -> None:
        if isinstance(outcome, BaseException):
            complain(f"no checkpoint after mini-batch {step}: {describe(outcome)}")
            if isinstance(outcome, Superseded):
                self._next_at = None

    def _writes_beside(self) -> bool:
        """Return whether checkpoints are written while the training goes on.

        State that is not split is, if it is on GPUs and half of the host's free memory holds that
        of all ranks of the node.
        """
        if self._split:
            return True
        if self._elastic is not None or self._run is None:
            return False
        on_gpus: int = sum(
            parameter.numel() * parameter.element_size()
            for parameter in _parameters(self._run.tracked)
            if parameter.device.type != "cpu"
        )
        return 0 < on_gpus * WITH_MOMENTS * ranks_here(os.environ) < available() // 2

    def _save_later(self, folder: Path | None, done: Done) -> None:
        """Begin to write a checkpoint beside the training. Raises what `_save` raises."""
        since_ns = time.monotonic_ns()
        checkpoints = self._may_save(folder)
        state, step = self._snapshot(), self._steps()
        self._require_memory(state)
        assert self._run is not None
        copies = self._replicas.active and not self._replicas.failing
        copy = self._replicas.copying(step) if copies else None
        alone = folder is None and self._together.alone  # A part among others is not all of it.

        def write(state: Snapshot) -> Any:
            if copy is not None:
                self._copy_first(copy, state, step)
            saved = checkpoints.save(state, step, folder)
            if alone:
                self._replicas.on_disk()
            return saved

        self._later.begin(state, self._run.tracked, write, done, since_ns, at_once=not self._split)

    def _copy_first(self, copy: Callable[[Snapshot], float], state: Snapshot, step: int) -> None:
        """Keep a copy of what is about to be written, before the slower write."""
        try:
            outcome: object = copy(state)
        except Exception as error:
            outcome = error
        self._replicas.finished(step, outcome, 0)

    def _copy_to_memory(self) -> None:
        """Begin to copy the state to the memory of the gang's nodes; on all ranks alike."""
        assert self._run is not None
        since_ns = time.monotonic_ns()
        step = self._steps()
        try:
            state = self._snapshot()
            self._require_memory(state)
            self._later.begin(
                state,
                self._run.tracked,
                self._replicas.copying(step),
                functools.partial(self._replicas.finished, step),
                since_ns,
                lasts=False,
            )
        except Exception as error:
            self._replicas.finished(step, error, 0)
        self._pause(since_ns)

    def _checkpoint_on_time(self) -> None:
        assert self._options.every_s is not None
        since_ns = time.monotonic_ns()
        try:
            if self._writes_beside():
                self._save_later(None, functools.partial(self._on_saved_in_time, self._steps()))
            else:
                self._save(None)
        except Exception as error:
            complain(f"no checkpoint after mini-batch {self._steps()}: {describe(error)}")
            if isinstance(error, Superseded):
                self._next_at = None
                return
        self._pause(since_ns)
        self._next_at = time.monotonic() + self._options.every_s

    def _save(self, folder: Path | None) -> tuple[Path, int]:
        """Write a checkpoint.

        Args:
            folder: The folder to write to; None: that of the job.

        Returns:
            The file and its bytes; the folder and 0 on a rank that writes none.

        Raises:
            Unsaveable: Something tracked has a value that cannot be saved.
            Superseded: A later attempt of the job has trained.
            Broken: Each rank has gradients of its own, or the job's memory is released.
            OSError: There is no folder for checkpoints, or it cannot be written to.
        """
        self._later.settle()
        checkpoints = self._may_save(folder)
        if self._elastic is not None and not self._elastic.writes():
            if self._elastic.attends():
                self._snapshot()
            return checkpoints.folder, 0
        state = self._snapshot()
        self._require_memory(state)
        return checkpoints.save(state, self._steps(), folder)

    def _may_save(self, folder: Path | None) -> Checkpoints:
        """Return the folder of checkpoints.

        Args:
            folder: The folder to write to; None: that of the job.

        Raises:
            Broken: Each rank has gradients of its own.
            OSError: There is no folder for checkpoints.
        """
        checkpoints = self._checkpoints or self._open(folder)
        if checkpoints is None:
            reason = "there is no folder for checkpoints: SKEP_CHECKPOINTS is not set"
            raise OSError(reason)
        whole = self._elastic is None or self._elastic.is_whole()
        if not whole or self._has_own_gradients():
            reason = "each rank has gradients of its own within no_sync(): it is tried again later"
            raise transfer.Broken(reason)
        return checkpoints.of_part(*self._seat()) if self._split else checkpoints

    def _has_own_gradients(self) -> bool:
        """Return whether this rank has gradients that FSDP2 has not reduced yet."""
        assert self._run is not None
        return self._split and has_own_gradients(self._run.tracked)

    def _seat(self) -> tuple[int, int]:
        if self._elastic is not None:
            return self._elastic.rank(), self._elastic.world()
        return self._settings.process, self._settings.processes

    def _regroup(self) -> None:
        """Find the ranks of the gang that the elastic one has become."""
        self._together.begin()
        self._meet()
        if self._run is not None:
            self.tell_can()  # One that has grown may have copies from here on.

    def _meet(self) -> None:
        """Find out which nodes can keep copies of the state; on all ranks alike."""
        chosen = self._options.replicas_every not in (None, "auto")
        fits = self._split or (chosen and self._elastic is None)
        if fits and self._replicas.wanted and not self._together.alone:
            self._replicas.meet(self._together, *self._seat())
        else:
            self._replicas.part()

    def _check_versions(self) -> None:
        """Check that the ranks can exchange parts of their state.

        Raises:
            UsageError: They have different versions of PyTorch.
        """
        import torch

        from skep_job.cooperate.run import UsageError

        theirs = self._together.of_all(_version_number(torch.__version__))
        if any(each != theirs[0] for each in theirs):
            named = ", ".join(f"rank {n}: {'.'.join(map(str, v))}" for n, v in enumerate(theirs))
            reason = (
                f"the ranks have different versions of PyTorch ({named}), and each has a part of "
                "the state: give every node the same environment"
            )
            raise UsageError(reason)

    def _snapshot(self) -> Snapshot:
        assert self._run is not None
        arrived = self._arrived()
        place = arrived or self._run.place() | {"chance": random_state.capture()}
        return snapshot.take(self._run.tracked, place)

    def _require_memory(self, state: Snapshot) -> None:
        if state.peek is None and snapshot.is_released(state.tensors):
            reason = "the job's memory is released: resume it first"
            raise transfer.Broken(reason)

    def _open(self, folder: Path | None) -> Checkpoints | None:
        if folder is None:
            return None
        whose = self._settings
        # What one rank of an elastic gang has written, any rank of any later size can read.
        rank, world = (whose.process, whose.processes) if self._options.elastic is None else (0, 1)
        options = self._options
        return Checkpoints(
            folder,
            whose.job,
            whose.attempt,
            rank,
            world,
            options.keep,
            incremental=options.incremental,
        )

    # --- beginning where an earlier process was ---------------------------------------------------

    def _continue(self, run: Run) -> dict[str, Any] | None:
        """Load the newest state that is whole, in memory or on disk; None if there is none.

        Raises:
            UsageError: It is the state of another optimizer.
        """
        if self._checkpoints is None:
            return None
        found = self._newest(run, self._checkpoints)
        if found is None:
            return None
        entry, stored, tensors = found
        snapshot.load(run.tracked, stored.plain, tensors)
        complain(f"going on after mini-batch {entry.step}, from {entry.path}")
        return snapshot.place_of(stored.plain, tensors)

    def _newest(self, run: Run, all_: Checkpoints) -> tuple[Entry, Stored, Any] | None:
        try:
            if self._split and self._elastic is not None:
                entries = [files[0] for files in all_.wholes(complain=complain)]
            else:
                entries = all_.steps(complain)
        except OSError as error:
            complain(f"the checkpoints cannot be listed: {describe(error)}")
            entries = []
        on_disk = list(self._together.common(entries, all_))
        for entry in itertools.takewhile(lambda each: each not in on_disk, entries):
            complain(f"{entry.path.name} is passed over: not every rank has a file of it")
        in_memory = [key for key in self._replicas.found() if self._can_read(key)]
        while in_memory or on_disk:
            newest = on_disk[0][:2] if on_disk else (0, 0)
            if in_memory and in_memory[0][:2] >= newest:
                key = in_memory.pop(0)
                fetched = self._replicas.fetch(key, self._together)
                if fetched is not None and (loaded := self._loaded(run, *fetched)) is not None:
                    self._replicas.went_on_from(key)
                    return loaded
                continue
            if (loaded := self._loaded(run, all_, on_disk.pop(0))) is not None:
                for key in in_memory:
                    complain(f"{key} is passed over: that on disk is newer")
                return loaded
        return None

    def _can_read(self, key: Key) -> bool:
        return self._elastic is not None or key.world == self._seat()[1]

    def _loaded(
        self, run: Run, folder: Checkpoints, entry: Entry
    ) -> tuple[Entry, Stored, Any] | None:
        """Return a state that all ranks can read, or None; on all ranks alike."""
        loaded = _read(run, folder, entry, self._seat() if self._split else None)
        well = not isinstance(loaded, str)
        if self._together.all_well(well) and not isinstance(loaded, str):
            return entry, *loaded
        why = loaded if isinstance(loaded, str) else "another rank cannot read its own"
        complain(f"{entry.path.name} is passed over: {why}")
        return None

    def _succeed(self, run: Run, token: str) -> dict[str, Any]:
        if self._split and self._options.warm_up is None:
            make_state(run.tracked)  # Ranks that guess would wait for one another in the model.
        else:
            warm_up(run.tracked, self._options.warm_up)
        successor = Successor(self._control, self._whose, token, run.tracked, self._options.host)
        self._successor = successor
        place, message, pause_ns = successor.wait()
        self._successor = None
        self._raise_fence()
        step, about = place["steps"], successor.about
        self._tally.go_on_from(about.get("counted") or 0)
        self._metrics.go_on_from(about.get("sums") or {})
        self._control.say("resumed", order=message["order"], step=step, pause_ns=pause_ns)
        complain(f"going on after mini-batch {step}, from the process before this one")
        return place

    def _is_the_job(self, _message: Message) -> object:
        """Take it that a successor which is suspended has taken over; on the reporter's thread."""
        if self._successor is not None and self._successor.place is not None:
            self._owns = True
        return False  # The suspension itself is done where the training stands.

    def _raise_fence(self) -> None:
        if self._checkpoints is None:
            return
        try:
            self._checkpoints.raise_fence()
        except Superseded as error:
            complain(f"this attempt is over: {error}")
            raise SystemExit(1) from None
        except OSError as error:
            complain(f"checkpoints may not work: {describe(error)}")

    # --- moving -----------------------------------------------------------------------------------

    def _on_move(self, message: Message) -> None:
        since_ns, stopped_at = time.monotonic_ns(), time.time_ns()
        # What was given back is in the host's memory, and goes from there.
        state = self._snapshot()._replace(peek=self._control.peek)
        self._require_memory(state)
        about = {
            "job": self._whose.job,
            "attempt": self._whose.attempt,
            "rank": self._whose.rank,
            "world": self._whose.world if self._elastic is None else self._elastic.world(),
            "step": self._steps(),
            **self._counts(),
            "stopped_at": stopped_at,
        }
        if self._split and self._seat() != (self._whose.rank, about["world"]):
            reason = "this rank of the gang has had another number: a move needs it as it began"
            raise transfer.Broken(reason)
        host, port, token = message.get("host"), message.get("port"), message.get("token")
        if not isinstance(host, str) or not isinstance(port, int) or not isinstance(token, str):
            reason = "a move needs host, port and token"
            raise transfer.Broken(reason)
        moved = transfer.send((host, port), token, state, about)
        del state
        self._owns = False
        self._control.say("sent", order=message["order"], step=self._steps(), bytes=moved)
        self._stay_until_resumed(since_ns)

    def _stay_until_resumed(self, since_ns: int) -> None:
        while True:
            try:
                message = self._control.wait("resume", "suspend")
            except Lost:
                # Whether the successor trains is not known here, so this process must not.
                complain("the agent cannot be heard any more; the successor has the state")
                _stay()
            try:
                if self._checkpoints is not None:
                    self._checkpoints.check_fence()
            except Superseded as error:
                self._control.fail(message, error)
                continue
            if message["type"] == "resume" or self._control.stands_already:
                break  # Whoever suspended the job before goes on, or says that it stands.
            # The move came to nothing, and the job is to stand all the same.
            self._owns = True
            self._control.say("suspended", order=message["order"], step=self._control.step)
        self._owns = True
        if not self._control.stands_already:  # Else whoever suspended the job goes on, and says so.
            step, pause_ns = self._control.step, self._pause(since_ns)
            self._control.say("resumed", order=message["order"], step=step, pause_ns=pause_ns)

    # --- being told to end ------------------------------------------------------------------------

    def _catch_sigterm(self) -> None:
        """Have SIGTERM end the job at a boundary, with a checkpoint, unless the script has it."""
        if threading.current_thread() is not threading.main_thread() or self._checkpoints is None:
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid or not self._owns or self._told_to_end:
            _die()
        self._told_to_end = True
        if self._control.stands and self._run is not None and self._together.alone:
            self._end()  # It is at a boundary already, suspended, with its state at hand.

    def _end(self) -> None:
        try:
            path, _ = self._save(None)
        except Exception as error:
            complain(f"told to end, and no checkpoint was written: {describe(error)}")
        else:
            complain(f"told to end; the state after mini-batch {self._steps()} is in {path}")
        _die()

    # --- small things -----------------------------------------------------------------------------

    def _can(self, run: Run) -> list[str]:
        if self._elastic is None and "torch" in sys.modules and not (run.tracked or run.state):
            complain("nothing is tracked, so the job is neither stored nor moved: see run.track()")
            return self._hooks.can()
        able = [*self._hooks.can(), "checkpoint"]
        if self._replicas.active:  # Its next attempt is placed where they are.
            able.append("copies")
        if self._settings.parts > 1:  # Where each would have to listen, nobody could be told.
            return able
        fixed = self._elastic is None or len(self._elastic.sizes()) == 1
        return [*able, "migrate"] if fixed else [*able, "migrate", "resize"]

    def _arrived(self) -> dict[str, Any] | None:
        """Return the place of a successor that has its state, and has not trained yet."""
        return self._successor.place if self._successor is not None else None

    def _counts(self) -> dict[str, Any]:
        """Return what the tenant has been told of, which goes on in a successor."""
        if self._successor is not None:
            return {name: self._successor.about.get(name) for name in ("counted", "sums")}
        return {"counted": self._tally.reached(), "sums": self._metrics.sums}

    def _steps(self) -> int:
        assert self._run is not None
        arrived = self._arrived()
        return self._run.done if arrived is None else int(arrived["steps"])

    def _step_of_report(self) -> int:
        """Return the mini-batch that a report is about.

        A script that uses no loop of the run is counted by the hooks, and one that shows them
        nothing (no PyTorch, for example) by its reports.
        """
        if self._run is not None:
            return self._run.reported
        return self._tally.reached() or self._reports

    def _pause(self, since_ns: int) -> int:
        """Return how long training stood still, and keep that out of mini-batches' durations."""
        pause_ns = time.monotonic_ns() - since_ns
        self._tally.pass_over(pause_ns)
        return pause_ns


def _is_split(tracked: dict[str, Any], elastic: Elastic | None) -> bool:
    """Return whether this rank has a part of the state, and not all of it."""
    if elastic is not None:
        return elastic.is_split()
    return any(is_shard(parameter) for parameter in _parameters(tracked))


def _parameters(tracked: dict[str, Any]) -> Iterator[Any]:
    for part in tracked.values():
        if callable(getattr(part, "parameters", None)):
            yield from part.parameters()


def _version_number(text: str) -> list[int]:
    """Return a version without what names its build."""
    numbers = [int(each) for each in re.findall(r"\d+", text.partition("+")[0])]
    return [*numbers, 0, 0, 0][:3]


def _read(
    run: Run, checkpoints: Checkpoints, entry: Entry, seat: tuple[int, int] | None
) -> tuple[Stored, Any] | str:
    """Return a checkpoint's header and tensors, or why it cannot be used.

    Args:
        run: The run.
        checkpoints: The folder.
        entry: A file of the checkpoint.
        seat: The rank and how many there are, if each has a part; None: this one has all.

    Raises:
        UsageError: It is the state of another optimizer.
    """
    try:
        if seat is not None:
            return stored_shards.read(run.tracked, checkpoints, entry, *seat)
        stored = checkpoints.read(entry)
        why = snapshot.why_unfit(run.tracked, stored.plain, stored.layout)
        snapshot.require_optimizers(run.tracked, stored.plain)
        return why or (stored, read_tensors(entry.path, stored))
    except (Unreadable, NotThere, OSError) as error:
        return str(error)
    except snapshot.Another as error:
        # Of no use to pass it over: older ones are the same, and go once newer ones are written.
        from skep_job.cooperate.run import UsageError

        reason = f"{error}: track the one that wrote {entry.path}, or remove this checkpoint"
        raise UsageError(reason) from None
    except Exception as error:  # Whatever the file says: an older one may do.
        return describe(error)


def _stay() -> NoReturn:
    """Stand here for ever, but see signals."""
    while True:
        threading.Event().wait(SIGNALS_S)


def _die() -> None:
    """End as SIGTERM would have ended the process, which is how its agent expects it to end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
