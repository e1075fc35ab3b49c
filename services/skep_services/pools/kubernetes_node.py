"""`python -m skep_services.pools.kubernetes_node`: a node of Skep in a pod.

It joins with the token that the keeper put into the pod's secret, and runs the agent. With
`--until-idle` it is what Kubernetes runs in the pod before it tells the pod to end: it returns when
no job is left, or after some time, so that jobs can leave while the agent still runs.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from skep_services.pools import node
from skep_services.servers import nodejoin
from skep_services.supervisor import boot

LOOK_EVERY_S = 0.5
TOKEN_BYTES_MAX = 4096


def main() -> int:
    """Be a node until the pod ends; return the exit code."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--home", required=True)
    parser.add_argument("--until-idle", type=float, metavar="SECONDS")
    parser.add_argument("--name", default="")
    parser.add_argument("--token", type=Path, default=Path())
    parser.add_argument("--device", choices=("cuda", "cpu", "fake"), default="cuda")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--gpu-type", default="")
    parser.add_argument("--checkpoints", default="")
    parser.add_argument("--address", default="")
    given = parser.parse_args()
    if given.until_idle is not None:
        return until_idle(given.home, given.until_idle)
    os.makedirs(given.home, mode=0o700, exist_ok=True)
    wanted = nodejoin.Wanted(
        name=given.name,
        address=given.address,
        device=given.device,
        gpus=given.gpus,
        gpu_type=given.gpu_type,
        checkpoints=given.checkpoints,
    )
    return node.run(given.home, wanted, lambda: _token(given.token))


def until_idle(home: str, within_s: float) -> int:
    """Return once no run is left, or after some time; the exit code is 0."""
    deadline = time.monotonic() + within_s
    while boot.has_runs(node.agent_folder(home)) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
    return 0


def _token(path: Path) -> str:
    """Return the text of the token.

    Raises:
        EndedError: It cannot be read.
    """
    try:
        with path.open(encoding="ascii") as file:
            return file.read(TOKEN_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"the token cannot be read: {path}: {error}"
        raise node.EndedError(msg) from None


if __name__ == "__main__":
    sys.exit(main())
