"""`python -m skep_services.slurm_nodes.inside`: a node of Skep in an allocation of Slurm's.

It waits for its token in the folder that it shares with the keeper, joins, and runs the agent. When
Slurm ends it, or the keeper hands it back, it ends the jobs that are left, which store themselves
if they can, and removes what it made.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

from skep.slurm.allocations import PREFIX
from skep_services.servers import nodejoin, noderun
from skep_services.servers.address import AddressError, parse_invitation
from skep_services.servers.files import FilesError
from skep_services.servers.joining import JoinError
from skep_services.supervisor import boot

TOKEN_WITHIN_S = 300.0
"""The keeper looks every few seconds; it may be away for a restart."""
LOOK_EVERY_S = 0.5
PORT_FIRST, PORTS, SLICES = 20_000, 400, 25
"""Gangs of two nodes on one machine, which only virtual nodes are, meet at other ports."""
EXIT_FAILED = 1


class EndedError(Exception):
    """The allocation ends before the node is one."""


def main() -> int:
    """Be a node until the allocation ends; return the exit code."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu", "fake"), required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--gpu-type", default="")
    parser.add_argument("--address", default="")
    given = parser.parse_args()
    number = os.environ.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        sys.stderr.write("this runs in an allocation of Slurm's alone\n")
        return EXIT_FAILED
    signal.signal(signal.SIGTERM, _end)
    home = tempfile.mkdtemp(prefix=f"skep-{PREFIX}{number}-")
    try:
        invitation = parse_invitation(_token(given.folder / f"{number}.token"), 0)
        first = PORT_FIRST + int(number) % SLICES * PORTS
        wanted = nodejoin.Wanted(
            name=f"{PREFIX}{number}",
            address=given.address,
            device=given.device,
            gpus=given.gpus,
            gpu_type=given.gpu_type,
            ports=(first, first + PORTS - 1),
            checkpoints=str(given.folder / "checkpoints"),
        )
        nodejoin.join(home, invitation, wanted)
        return noderun.run(home, nodejoin.renew)
    except (AddressError, FilesError, JoinError, EndedError) as error:
        sys.stderr.write(f"{PREFIX}{number}: {error}\n")
        return EXIT_FAILED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            asyncio.run(boot.stop_jobs([os.path.join(home, "agent")]))
        finally:
            shutil.rmtree(home, ignore_errors=True)


def _token(path: Path) -> str:
    """Wait for the token, and take it away.

    Raises:
        EndedError: It does not come.
    """
    deadline = time.monotonic() + TOKEN_WITHIN_S
    while time.monotonic() < deadline:
        try:
            text = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            time.sleep(LOOK_EVERY_S)
            continue
        path.unlink()
        return text
    msg = f"no token came within {TOKEN_WITHIN_S:.0f} s: does `skep up --on slurm` run?"
    raise EndedError(msg)


def _end(number: int, frame: object) -> None:
    msg = f"ended by signal {number}"
    raise EndedError(msg)


if __name__ == "__main__":
    sys.exit(main())
