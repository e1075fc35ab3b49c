"""`python -m skep_services.pools.slurm_node`: a node of Skep in an allocation of Slurm's.

It waits for its token in the folder that it shares with the keeper, joins, and runs the agent. When
Slurm ends it, or the keeper hands it back, it ends the jobs that are left, which store themselves
if they can, and removes what it made.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

from skep_services.pools import node
from skep_services.pools.slurm import PREFIX
from skep_services.servers import nodejoin

TOKEN_WITHIN_S = 300.0
"""The keeper looks every few seconds; it may be away for a restart."""
LOOK_EVERY_S = 0.5
PORT_FIRST, PORTS, SLICES = 20_000, 400, 25
"""Gangs of two nodes on one machine, which only virtual nodes are, meet at other ports."""


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
        return node.EXIT_FAILED
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
    home = tempfile.mkdtemp(prefix=f"skep-{PREFIX}{number}-")
    try:
        return node.run(home, wanted, lambda: _token(given.folder / f"{number}.token"))
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
    raise node.EndedError(msg)


if __name__ == "__main__":
    sys.exit(main())
