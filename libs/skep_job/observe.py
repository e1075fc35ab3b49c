"""Turns observation on for this process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import NamedTuple

from skep_job import accelerator
from skep_job.control import Control
from skep_job.memory import memory_bytes
from skep_job.reporter import Reporter
from skep_job.settings import Settings, Unobserved, read
from skep_job.suspend import Suspender
from skep_job.tally import Tally
from skep_job.torch_hooks import TorchHooks


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
    global _active  # noqa: PLW0603  a process is observed once
    if _active is not None:
        return _active
    settings = read(environ)
    if isinstance(settings, Unobserved):
        return settings
    tally = Tally()
    control = Control(tally.reached)
    reporter = Reporter(settings, tally, memory_bytes, control)
    tally.wake = reporter.wake
    control.wake = reporter.wake_to_send
    suspender = Suspender(tally, control, settings.host_bytes)
    suspender.install()
    hooks = TorchHooks(tally, control, suspender.can)
    _active = Observation(tally, hooks, reporter, control, settings)
    hooks.install()
    try:
        accelerator.attach(environ)
    except (OSError, ValueError, accelerator.OutOfMemoryError) as error:
        # What a script would say that finds its GPU full, or broken.
        msg = f"skep_job: {error}"
        raise SystemExit(msg) from error
    os.register_at_fork(after_in_child=reporter.abandon)
    os.register_at_fork(after_in_child=control.abandon)
    atexit.register(reporter.close)  # First in, last out: the script's own handlers run before.
    reporter.start()
    return _active


def current() -> Observation | None:
    """Return what observes this process, or None outside Skep and in a fork."""
    return _active if _active is not None and _active.reporter.is_own() else None
