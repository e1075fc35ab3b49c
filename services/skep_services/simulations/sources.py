"""Jobs and clusters: of files, of generators, and of the cluster that runs here."""

from __future__ import annotations

import asyncio
import os
from functools import cache

from skep_lab.live_log.live_run import Lived, NothingError, lived
from skep_lab.traces.job import Trace
from skep_services import replaying, trace_files
from skep_services.adapters import exported
from skep_services.ports import CorruptLogError, MissingStreamError
from skep_services.simulations.inputs import Place, WrongError

LIVE = replaying.LIVE


class LiveError(Exception):
    """The log of the cluster here cannot be used; `UnreachableError` if there is none."""


def by_seed(text: str) -> bool:
    """Return whether another seed makes another trace: not of a file, nor of what has been.

    Args:
        text: The file, the generator, or `live`.
    """
    return text != LIVE and trace_files.is_generated(text)


def load(
    text: str, *, form: str | None, seed: int, lenient: bool, home: str | None = None
) -> Trace:
    """Return the trace of a file or generator, or of the jobs that ran here.

    A file may also be what `skep replay --export` wrote. Of live jobs those that have not ended
    are among the problems, and never an error.

    Args:
        text: The file, the generator, or `live`.
        form: The file's format; None: as its first line tells.
        seed: The generator's seed.
        lenient: Rows that cannot be used are left out; else they are an error.
        home: The state folder of the cluster here; None: the usual one.

    Raises:
        WrongError: There is no such file or generator, or the export cannot be used.
        BadTraceError: There are rows that cannot be used.
        LiveError: The log of the cluster here cannot be used.
        UnreachableError: There is no cluster here.
    """
    if text == LIVE:
        return live(home).trace
    if _is_export(text):
        return _exported(text)
    try:
        return trace_files.load(text, form=form, seed=seed, lenient=lenient)
    except trace_files.NoTraceError as error:
        reason = f"--trace {error}"
        raise WrongError(reason) from None


def _is_export(text: str) -> bool:
    try:
        return os.path.isfile(text) and exported.is_export(text)
    except OSError:
        return False  # Whoever reads it as a trace says why it cannot be read.


def _exported(text: str) -> Trace:
    try:
        return lived(replaying.records(replaying.read_from(text, None), "allocator")).trace
    except (*replaying.UNREADABLE, NothingError) as error:
        reason = f"--trace {text}: {error}"
        raise WrongError(reason) from None


def live_place(home: str | None) -> Place:
    """Return the cluster that runs here.

    Args:
        home: The state folder; None: the usual one.

    Raises:
        LiveError: The log of the cluster cannot be used.
        UnreachableError: There is no cluster.
    """
    return Place(LIVE, live(home).cluster, pooled=False)


@cache
def live(home: str | None) -> Lived:
    """Return what the log of the cluster here says. It is read once.

    Args:
        home: The state folder; None: the usual one.

    Raises:
        LiveError: The log of the cluster cannot be used.
        UnreachableError: There is no cluster.
    """
    streams = asyncio.run(replaying.read_live(home))
    try:
        return lived(replaying.records(streams, "allocator"))
    except (NothingError, CorruptLogError, MissingStreamError) as error:
        raise LiveError(str(error)) from None
