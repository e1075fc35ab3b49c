"""A node of a pool, on a machine that is taken away again: it joins, runs, and ends its jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from skep_services.servers import nodejoin, noderun
from skep_services.servers.address import AddressError, parse_invitation
from skep_services.servers.files import FilesError
from skep_services.servers.joining import JoinError
from skep_services.supervisor import boot

EXIT_FAILED = 1


class EndedError(Exception):
    """The machine is taken away before it is a node; the text is one line."""


def run(home: str, wanted: nodejoin.Wanted, token: Callable[[], str]) -> int:
    """Be a node until SIGTERM; then end the jobs that are left, which store themselves if they can.

    Args:
        home: The state folder.
        wanted: What the node is to be.
        token: Returns what was given to join with, or raises an EndedError.

    Returns:
        The exit code.
    """
    signal.signal(signal.SIGTERM, _end)
    try:
        nodejoin.join(home, parse_invitation(token(), 0), wanted)
        return noderun.run(home, nodejoin.renew)
    except (AddressError, FilesError, JoinError, EndedError) as error:
        sys.stderr.write(f"{wanted.name}: {error}\n")
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            asyncio.run(boot.stop_jobs([agent_folder(home)]))
        except boot.JobsStayError as error:
            sys.stderr.write(f"{wanted.name}: {error}\n")


def agent_folder(home: str) -> str:
    """Return where the agent of a node keeps its state."""
    return os.path.join(home, "agent")


def _end(number: int, frame: FrameType | None) -> None:
    msg = f"ended by signal {number}"
    raise EndedError(msg)
