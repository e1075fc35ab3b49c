"""The standard input of `skep run`, kept with the job: rank 0 reads it whenever it starts.

It is read to its end before the job is submitted, and goes to the cluster as a file of a snapshot
(`skep_services.cli.code`). So a job that waits, is repeated or is moved reads the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import tempfile
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from skep.units import MIB
from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import say

BYTES_MAX = 64 * MIB
"""An eighth of what a snapshot may have: an input, and no data set."""
NAME = ".skep-stdin"
READ_BYTES = 1024 * 1024
TELL_AFTER_S = 1.0
"""Whoever forgot that an input never ends learns after this time what is waited for."""
NAMES = frozenset({"-", "/dev/stdin"})
"""Words of a command that mean its standard input."""


def options_stdin(parser: ArgumentParser) -> None:
    """Add what says whether standard input goes to the job."""
    parser.add_argument(
        "--stdin",
        action=BooleanOptionalAction,
        help="keep what is piped in here with the job, as the standard input of rank 0 (default: if"
        " the command has the word - or /dev/stdin)",
    )


@contextlib.contextmanager
def kept(tree: dict[str, Any], arguments: Namespace) -> Iterator[None]:
    """Have a spec name this process's standard input, if that is wanted.

    Until this is left, the input is in a temporary file, which `code.send` reads.

    Args:
        tree: The spec; it is changed.
        arguments: The command line; it keeps what is taken, for `code.settle` and `code.send`.

    Raises:
        CommandError: There is no input, or it is too large.
    """
    if not wanted(arguments.stdin, arguments.command):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="skep-stdin-") as folder:
        path = os.path.join(folder, NAME)
        _spool(path)
        tree["stdin"] = NAME
        if tree.get("code") or arguments.code:
            from skep_services.cli.snapshots import file_at

            arguments.beside = (file_at(path, NAME),)
        else:
            _alone(tree, folder, arguments)
        yield


def wanted(said: bool | None, words: Sequence[str]) -> bool:
    """Return whether standard input goes to the job.

    Args:
        said: What the command line says; None: nothing.
        words: The command.

    Raises:
        CommandError: It is to, and is a terminal, or not there.
    """
    mode = _mode()
    if said is None:
        piped = stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
        return piped and not NAMES.isdisjoint(words)
    if said and not mode:
        raise CommandError(exits.USAGE, "--stdin: this command has no standard input")
    if said and sys.stdin.isatty():
        text = "--stdin: standard input is a terminal: pipe something in, or use `skep shell`"
        raise CommandError(exits.USAGE, text)
    return bool(said)


def _mode() -> int:
    """Return what standard input is, as `stat` says it; 0: there is none."""
    if sys.stdin is None:
        return 0
    try:
        return os.fstat(0).st_mode
    except OSError:
        return 0


def _spool(path: str) -> None:
    """Write standard input to a file.

    Raises:
        CommandError: It cannot be read, or is too large.
    """
    size = 0
    told = False
    with open(path, "xb") as file:
        while True:
            if not told and not select.select([0], [], [], TELL_AFTER_S)[0]:
                say("reading standard input to its end (--no-stdin leaves it alone)")
                told = True
            try:
                data = os.read(0, READ_BYTES)
            except OSError as error:
                text = f"standard input cannot be read: {error.strerror}"
                raise CommandError(exits.FAILED, text) from None
            if not data:
                return
            size += len(data)
            if size > BYTES_MAX:
                text = (
                    f"standard input has more than {BYTES_MAX // MIB} MiB, which is the most that "
                    "is kept with a job: put it into a file that the nodes see, and name that"
                )
                raise CommandError(exits.FAILED, text, "too-large")
            file.write(data)


def _alone(tree: dict[str, Any], folder: str, arguments: Namespace) -> None:
    """Have the job's code be its input and nothing else."""
    from skep_services.cli.snapshots import take

    taken = take(folder, cache="")
    tree["code"] = taken.digest
    arguments.snapshots = {folder: taken}
