"""Makes the run of this process: under its agent if there is one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from skep_job.cooperate.run import Run, Under, UsageError
from skep_job.link.orders import describe
from skep_job.observe.reporter import complain

if TYPE_CHECKING:
    from skep_job.cooperate.cooperation import Elastic
    from skep_job.cooperate.library_run import LibraryRun
    from skep_job.elastic.parts import Rules as GangRules

KEEP_MAX = 1_000
UNCOUNTED = sys.maxsize
"""The samples of a global batch where a library counts them."""
AUTO = "auto"
"""The word for a time that Skep chooses."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}

_run: Run | None = None


def begin(
    checkpoint_every: float | str | None,
    keep: int,
    warm_up: Callable[[], object] | None,
    gang: GangRules | None = None,
    replicas_every: float | str | None = None,
    *,
    incremental: bool = False,
) -> Run:
    """Do `skep_job.init`: make the run of this process.

    Args:
        checkpoint_every: The time between two checkpoints that the run writes by itself: seconds,
            or text such as "90s". None: it writes none by itself.
        keep: How many checkpoints stay.
        warm_up: Does one step of training in a successor; None: a step is guessed.
        gang: The rules of a job that may change its size; None: the size is fixed.
        replicas_every: The time between two copies of the state in other nodes' memory: as for
            `checkpoint_every`, or "auto". None: there are none.
        incremental: Whether a checkpoint refers to an older one for tensors that did not change.

    Raises:
        UsageError: The run of this process was made before.
        TypeError: `checkpoint_every` or `replicas_every` is neither a number nor text.
        ValueError: One of these is no duration, `keep` is out of range, or the environment
            names a gang that the rules do not allow.
    """
    global _run  # noqa: PLW0603  a process has one run
    if _run is not None:
        message = "init() was called before; keep what it returned"
        raise UsageError(message)
    every_s = None if checkpoint_every is None else seconds(checkpoint_every)
    copies = replicas_every
    if copies is not None and copies != AUTO:
        copies = seconds(copies)
    _check_keep(keep)
    if gang is None:
        under = _under_agent(every_s, keep, warm_up, replicas_every=copies, incremental=incremental)
        _run = Run(under)
        return _run
    from skep_job.elastic.run import ElasticRun

    run = _run = ElasticRun(gang, warm_up)
    run.join(
        _under_agent(
            every_s, keep, warm_up, run.membership, replicas_every=copies, incremental=incremental
        )
    )
    return run


def begin_library(
    checkpoint_every: float | str | None, keep: int, elastic: tuple[int, int] | None = None
) -> LibraryRun:
    """Return the run of this process for a library's callback, which drives it.

    Args:
        checkpoint_every: As for `begin`.
        keep: As for `begin`.
        elastic: The smallest and the largest number of ranks of a job that may change its size;
            None: the size is fixed.

    Raises:
        UsageError: The script made a run of its own, or one whose size is fixed.
        TypeError: `checkpoint_every` is neither a number nor text.
        ValueError: `checkpoint_every` is no duration, `keep` is out of range, or `elastic` does not
            allow the size that the job has.
    """
    global _run  # noqa: PLW0603  a process has one run
    from skep_job.cooperate.library_run import LibraryRun

    every_s = None if checkpoint_every is None else seconds(checkpoint_every)
    _check_keep(keep)
    if isinstance(_run, LibraryRun):
        if elastic is not None and _run.active and _run.gang is None:
            message = "elastic: a callback before this one is without it, and a process has one run"
            raise UsageError(message)
        return _run  # A second training.
    if _run is not None:
        message = "the callback is of no use beside init(): the script drives its training itself"
        raise UsageError(message)
    if elastic is None:
        run = _run = LibraryRun(_under_agent(every_s, keep, _nothing))
        return run
    from skep_job.elastic.library import LibraryGang
    from skep_job.elastic.parts import rules

    run = _run = LibraryRun()
    gang = LibraryGang(run, rules(elastic, UNCOUNTED))
    run.join(gang, _under_agent(every_s, keep, _nothing, gang))
    return run


def made() -> Run | None:
    """Return the run of this process, if there is one."""
    return _run


def seconds(duration: float | str) -> float:
    """Return a duration in seconds.

    Args:
        duration: Seconds, or text with the unit s, m or h, such as "90s" or "1.5h".

    Raises:
        TypeError: It is neither a number nor text.
        ValueError: It is no duration, not above 0, or not finite.
    """
    if isinstance(duration, str):
        match = _DURATION.fullmatch(duration.strip())
        value = float(match[1]) * _SECONDS[match[2]] if match is not None else 0.0
    else:
        value = float(duration)
    if not 0 < value < float("inf"):
        message = f'{duration!r} is no duration; give seconds, or text such as "90s", "10m", "2h"'
        raise ValueError(message)
    return value


def _check_keep(keep: int) -> None:
    if not isinstance(keep, int) or not 1 <= keep <= KEEP_MAX:
        message = f"keep={keep!r}: expected how many checkpoints to keep, 1 to {KEEP_MAX}"
        raise ValueError(message)


def _nothing() -> None:
    """Do what a successor has to do of a library's step: nothing can be done without a batch."""


def _under_agent(
    every_s: float | None,
    keep: int,
    warm_up: Callable[[], object] | None,
    elastic: Elastic | None = None,
    *,
    replicas_every: float | str | None = None,
    incremental: bool = False,
) -> Under | None:
    """Return the agent's side of a run, if the environment names an agent."""
    environ = os.environ
    if not environ.get("SKEP_SOCK"):
        return None
    try:
        from skep_job.cooperate.cooperation import Cooperation, Options
        from skep_job.link.settings import Unobserved
        from skep_job.observe.observation import boot, current
        from skep_job.replicas.replicas import where

        booted = boot(environ)
        observation = current()
        if isinstance(booted, Unobserved) or observation is None:
            why = booted.why if isinstance(booted, Unobserved) else "a fork of another process"
            complain(f"not under an agent: {why}")
            return None
        folder = environ.get("SKEP_CHECKPOINTS", "")
        if every_s is not None and not folder:
            complain("no checkpoints are written: SKEP_CHECKPOINTS names no folder")
            every_s = None
        options = Options(
            every_s=every_s,
            keep=keep,
            warm_up=warm_up,
            folder=Path(folder).absolute() if folder else None,
            awaits=environ.get("SKEP_AWAITS", ""),
            host=environ.get("SKEP_HOST", ""),
            elastic=elastic,
            replicas_every=replicas_every,
            memory=where(environ.get),
            incremental=incremental,
        )
        return Cooperation(observation, options)
    except Exception as error:  # Skep's own failure is not the script's.
        complain(f"not under an agent: {describe(error)}")
        return None
