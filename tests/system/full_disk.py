"""What a cluster does while the disk of a node is full: `python -m tests.system.full_disk`.

The node's state (journal, the runner's record, logs of jobs) is on a small tmpfs, which is filled
while one job runs and another one comes, and freed again. Every accepted job must reach its end,
and one line must say what is lacking. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from skep_services.launcher import kernel
from tests.support.embedded import Embedded, until

SIZE = "16m"
FULL_S = 4.0
"""How long the disk stays full: long enough for an agent to end and be started again."""
LINES_SHOWN = 4


def fill(place: Path) -> None:
    """Leave no byte free."""
    with open(place / "ballast", "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue  # It is full, for pieces of this size.


def spec(command: str) -> bytes:
    """Return a job of one GPU."""
    return json.dumps({"name": "test", "vc": "nlp", "command": ["sh", "-c", command]}).encode()


def accepted(cluster: Embedded, command: str) -> str:
    """Submit a job; return its id."""
    reply = cluster.ask("POST", "/v1/jobs", spec(command), who="vc-nlp")
    assert reply.status in {200, 201, 202}, reply
    job: str = reply.body["job"]
    return job


def trial(home: Path, seconds: float) -> bool:
    """Play it; return whether every job ended well."""
    place, gate = home / "node-1", home / "gate"
    place.mkdir(parents=True)
    kernel.mount("none", str(place), "tmpfs", 0, f"size={SIZE},mode=700")
    cluster = Embedded(home)
    try:
        cluster.up("--nodes", "1", "--gpus", "4", "--vc", "nlp=4", "--port", "0")
        wait = f"until [ -e {gate} ]; do echo $(date) || true; sleep 0.1; done; echo over"
        runs = accepted(cluster, wait)
        cluster.started(runs)
        logs = [home / "supervisor.log", place / "service.log"]
        before = {log: log.stat().st_size for log in logs}
        fill(place)
        print(f"{place} is full ({os.statvfs(place).f_bfree} blocks free)", flush=True)
        comes = accepted(cluster, "echo came")
        # tidy: allow sleep because nothing tells that a disk has been full for long enough
        time.sleep(seconds)
        states = {job: cluster.get(f"/v1/jobs/{job}")["state"] for job in (runs, comes)}
        print(f"meanwhile: {states}", flush=True)
        full = [
            f"{log.name}: {line}"
            for log in logs
            for line in log.read_bytes()[before[log] :].decode(errors="replace").splitlines()
            if "No space" in line
        ]
        about = json.dumps(cluster.get(f"/v1/jobs/{comes}"), indent=1)
        full += [f"{comes}:{line}" for line in about.splitlines() if "No space" in line]
        print(*dict.fromkeys(full[:LINES_SHOWN]), sep="\n", flush=True)
        (place / "ballast").unlink()
        print("space is back", flush=True)
        gate.touch()
        ends = {job: cluster.ended(job)["state"] for job in (runs, comes)}
        print(f"in the end: {ends}", flush=True)
        until(lambda: cluster.pids()["node-1"]["state"] == "ready", "the agent is back")
        return set(ends.values()) == {"succeeded"} and bool(full)
    finally:
        cluster.down()
        kernel.unmount(str(place))


def main() -> int:
    """Run it in a folder of its own; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.full_disk", description=__doc__)
    parser.add_argument("--seconds", type=float, default=FULL_S, help="how long the disk is full")
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("it needs root", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="skep-full-") as folder:
        return 0 if trial(Path(folder) / "home", given.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
