"""Checkpoints of libraries that own the training loop, written by these themselves, when Skep asks.

The library knows best what its state is, and begins again from its own files. What is added: the
agent's order and SIGTERM are carried to the library's next step end, what it wrote is made durable
and marked as whole, and `newest` finds it for the next attempt. The hooks of the observed tier
count and suspend as ever. Such a job is not moved while it runs: it is ended and begun again.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from skep_job.cooperate.gang_barrier import Together
from skep_job.link.orders import Message, describe
from skep_job.observe.metrics import Metrics
from skep_job.observe.observation import boot, current
from skep_job.observe.reporter import complain
from skep_job.state.checkpoint_folder import Checkpoints, Superseded

MARK = "skep.json"
"""In a checkpoint's folder, or beside its file: it is whole, and who wrote it."""


class Keeper:
    """Carries what Skep wants to a library's callback. Outside Skep it wants nothing."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        folder = environ.get("SKEP_CHECKPOINTS", "")
        self.folder = Path(folder).absolute() if folder else None
        """Where checkpoints belong, or None."""
        self.ends = False
        """Whether the training has to end once it has saved."""
        self._order: Message | None = None
        self._since_ns = 0
        self._told = False
        boot(environ)
        self._observation = current()

    def begin(self) -> None:
        """Take orders from here on. Called by every rank at the beginning of the training.

        Raises:
            SystemExit: A later attempt of the job has trained; the status is 1.
        """
        observation = self._observation
        if observation is None:
            return
        control, settings = observation.control, observation.settings
        self._together = Together(control)
        self._metrics = Metrics(control.say)
        self._fence: Checkpoints | None = None
        if self.folder is None:
            return
        control.on("checkpoint", self._take)
        self._together.begin()
        self._fence = Checkpoints(
            self.folder, settings.job, settings.attempt, settings.process, settings.processes
        )
        try:
            self._fence.raise_fence()
        except Superseded as error:
            complain(f"this attempt is over: {error}")
            raise SystemExit(1) from None
        except OSError as error:
            complain(f"checkpoints may not work: {describe(error)}")
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def wants(self) -> bool:
        """Return whether the library is to save at this step's end, the same on every rank."""
        observation = self._observation
        if observation is None or self.folder is None or self._fence is None:
            return False
        if not self._told:  # After the hooks, which at the first step say what they can.
            self._told = True
            can = [*observation.hooks.can(), "checkpoint"]
            observation.control.say("can", tier="cooperative", can=can)
        if self._together.alone:
            wanted = self._order is not None or self.ends
        else:
            agreed = self._together.boundary(checkpoint=False, end=self.ends)
            self._order = agreed.order or self._order
            self.ends = agreed.end
            wanted = agreed.order is not None or agreed.end
        if not wanted:
            return False
        try:
            self._fence.check_fence()
        except Superseded as error:
            self._fail(error)
            return False
        self._since_ns = time.monotonic_ns()
        return True

    def saved(self, path: Path, step: int) -> None:
        """Make what the library wrote durable, mark it as whole, say so; end if that was asked.

        Args:
            path: A file or a folder.
            step: The library's count of steps at the checkpoint.
        """
        observation = self._observation
        if observation is None or not self._since_ns:
            return
        try:
            size = _sync(path)
            _mark(path, observation.settings.attempt, step)
        except OSError as error:
            self._fail(error)
        else:
            pause_ns = time.monotonic_ns() - self._since_ns
            if self._order is not None:
                observation.control.say(
                    "checkpointed",
                    order=self._order["order"],
                    step=step,
                    bytes=size,
                    path=str(path),
                    pause_ns=pause_ns,
                )
        self._order, self._since_ns = None, 0
        if self.ends:
            complain(f"told to end; the state after step {step} is in {path}")
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def newest(self) -> Path | None:
        """Return the newest checkpoint that is whole, or None."""
        if self.folder is None:
            return None
        found: list[tuple[int, int, Path]] = []
        for mark in (*self.folder.glob(f"*/{MARK}"), *self.folder.glob(f"*.{MARK}")):
            try:
                told = json.loads(mark.read_text(encoding="utf-8"))
                path = self.folder / told["name"]
                if path.exists():
                    found.append((told["attempt"], told["step"], path))
            except (OSError, ValueError, KeyError, TypeError) as error:
                complain(f"{mark} is passed over: {describe(error)}")
        return max(found)[2] if found else None

    def report(self, values: Mapping[str, Any], step: int) -> None:
        """Tell Skep what of `values` is a number.

        Args:
            values: By name; what is no number is left out.
            step: The step that they are about.
        """
        if self._observation is None:
            return
        numbers = {name: v for name, v in values.items() if hasattr(v, "__float__")}
        try:
            self._metrics.take(numbers, step)
        except Exception as error:
            complain(f"a report was left out: {describe(error)}")

    def _take(self, message: Message) -> None:
        self._order = message  # The library saves at the end of its step, not within it.

    def _fail(self, error: Exception) -> None:
        if self._order is not None and self._observation is not None:
            self._observation.control.fail(self._order, error)
        complain(f"no checkpoint was written: {describe(error)}")
        self._order, self._since_ns = None, 0

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self.ends = True


def _sync(path: Path) -> int:
    """Have the disk hold every file under `path`; return their bytes."""
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    size = 0
    for each in [*files, path, path.parent]:
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            size += os.fstat(descriptor).st_size if each in files else 0
        finally:
            os.close(descriptor)
    return size


def _mark(path: Path, attempt: int, step: int) -> None:
    mark = path / MARK if path.is_dir() else path.with_name(f"{path.name}.{MARK}")
    part = mark.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump({"name": path.name, "attempt": attempt, "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(mark)
