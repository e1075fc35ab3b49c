"""Turns observation on for this process."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from skep_job.devices import fake_gpus
from skep_job.devices.memory_share import MemoryShare
from skep_job.devices.suspender import Suspender
from skep_job.elastic import library_group
from skep_job.link.orders import Control
from skep_job.link.settings import Settings, Unobserved, read
from skep_job.observe import board_folders, library_resume
from skep_job.observe.reporter import Reporter
from skep_job.observe.step_counter import Tally
from skep_job.observe.torch_hooks import TorchHooks
from skep_job.process.memory import memory_bytes
from skep_job.process.rank_part import parts


class Observation(NamedTuple):
    """The parts at work in an observed process."""

    tally: Tally
    hooks: TorchHooks
    reporter: Reporter
    control: Control
    settings: Settings


_active: Observation | None = None


def boot(environ: Mapping[str, str]) -> Observation | Unobserved:
    """Start to count and to report as `environ` says; return what is at work, or why nothing is.

    Idempotent: a second call, in this process or in a fork of it, returns what the first started.
    """
    if _active is not None:
        return _active
    settings = read(environ)
    if isinstance(settings, Unobserved):
        return settings
    waiting = _Waiting.latest
    if waiting is None:
        waiting = _Waiting(environ)
        waiting.hooks.install()
    return waiting.begin(settings)


def boot_at_first_step(environ: Mapping[str, str]) -> Unobserved | None:
    """Start to count; report from the first mini-batch on, in the process or fork that makes it.

    Idempotent.

    Returns:
        Why nothing will be reported; None if it will, or is already.
    """
    if _active is not None or _Waiting.latest is not None:
        return None
    settings = read(environ)
    if isinstance(settings, Unobserved):
        return settings
    waiting = _Waiting.latest = _Waiting(environ)
    waiting.tally.wake = waiting.begin_once
    waiting.hooks.install()
    return None


class _Waiting:
    """All that observes a process but the reporter, which is made once its rank is known."""

    latest: _Waiting | None = None
    """The one whose hooks are in place before anything is reported."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.tally = Tally()
        self.control = Control(self.tally.reached)
        self._suspender: Suspender | None = None
        self.hooks = TorchHooks(self.tally, self.control, self._can)
        board_folders.watch()
        library_resume.watch(environ)
        library_group.watch(environ)
        try:
            fake = fake_gpus.attach(environ)
        except ValueError as error:
            sys.exit(f"skep_job: {error}")
        self._share = MemoryShare(environ, fake)

    def begin_once(self) -> None:
        """Begin to report. Called at the first mini-batch."""
        self.tally.wake = _nothing
        settings = read(self._environ)  # A launcher's child has set its own rank by now.
        if not isinstance(settings, Unobserved):
            self.begin(settings)

    def begin(self, settings: Settings) -> Observation:
        """Start to report and to take orders, beside the other processes of this rank."""
        global _active  # noqa: PLW0603  a process is observed once
        part, count = parts(self._environ)
        settings = settings._replace(part=part, parts=count)
        tally, control = self.tally, self.control
        control.adopt()
        reporter = Reporter(settings, tally, memory_bytes, control, self.hooks.fingerprint)
        tally.wake = reporter.wake
        control.wake = reporter.wake_to_send
        room = None if settings.host_bytes is None else settings.host_bytes // count
        self._suspender = Suspender(tally, control, room, share=self._share)
        self._suspender.install()
        self._share.divide(count)
        self._share.install(control)
        _active = Observation(tally, self.hooks, reporter, control, settings)
        os.register_at_fork(after_in_child=reporter.abandon)
        os.register_at_fork(after_in_child=control.abandon)
        # First in, last out: the script's own handlers run before.
        atexit.register(reporter.close)
        reporter.start()
        return _active

    def _can(self) -> list[str]:
        if self._suspender is None:
            return []
        return [*self._suspender.can(), *self._share.can()]


def current() -> Observation | None:
    """Return what observes this process, or None outside Skep and in a fork."""
    return _active if _active is not None and _active.reporter.is_own() else None


def _nothing() -> None:
    pass
