"""Nodes in allocations of a real Slurm: they grow and shrink, and a job outlives its allocation.

    SLURM_CONF=... python -m tests.system.on_slurm --partition gpu

Slurm has to run already, with two machines at least that are this machine (`--address`). Prints
JSON, and returns 1 if something was not as it should be. It takes some six minutes, because a time
limit of Slurm's is whole minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.embedded import SKEP
from tests.support.ports import free_port

STEPS, STEP_S = 700, 0.25
WITHIN_S = 420.0
LOOK_EVERY_S = 0.5
SCRIPT = f"""
import time
import skep_job
run = skep_job.init(checkpoint_every="1h")
run.state["sum"] = run.state.get("sum", 0)
while run.steps < {STEPS}:
    time.sleep({STEP_S})
    run.state["sum"] += run.steps
    run.step()
print("sum", run.state["sum"], flush=True)
"""


class Lab:
    """A cluster of one server in a folder, and its command."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SKEP_")
        }
        self.environment["SKEP_HOME"] = str(home)

    def skep(self, *words: str) -> str:
        """Run the command; return what it printed. Raises RuntimeError."""
        done = subprocess.run(
            [*SKEP, *words],
            env=self.environment,
            cwd=self.home.parent,
            check=False,
            text=True,
            capture_output=True,
        )
        if done.returncode:
            raise RuntimeError(f"{words}: {done.stderr}")
        return done.stdout

    def json(self, *words: str) -> Any:
        """Return what the command says as JSON."""
        return json.loads(self.skep(*words, "--json"))

    @contextmanager
    def keeping(
        self, log: Path, *words: str, environment: dict[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command that stays, until the end of the block; then ask it to end, and wait."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*SKEP, *words],
                env=environment or self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)


def write_long_job(folder: Path) -> None:
    """Write `long.py`, which counts mini-batches and goes on where it was."""
    (folder / "long.py").write_text(SCRIPT)


def until(look: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `look`."""
    deadline = time.monotonic() + WITHIN_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(LOOK_EVERY_S)
    return found


def main() -> int:
    """Run it all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--partition", default="")
    parser.add_argument("--address", default="127.0.0.1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Lab(Path(folder, "home")), Path(folder), options)
    print(json.dumps(found))
    return 0 if all(found["held"].values()) else 1


def run(lab: Lab, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what was seen, and which promises held."""
    write_long_job(folder)
    parts = ("gateway", "bus", "door", "routes", "servers")
    ports = [word for part in parts for word in ("--ports", f"{part}={free_port()}")]
    here = ["--host", "127.0.0.1", "--listen", "127.0.0.1", "--vc", "team=8"]
    lab.skep("server", "init", "--name", "lab", *here, *ports)
    pool = ["up", "--on", "slurm", "--nodes", "2", "--nodes-min", "1", "--gpus", "4"]
    pool += ["--device", "cpu", "--time", "2", "--margin", "75s", "--idle", "30s"]
    pool += ["--address", options.address]
    pool += ["--partition", options.partition] if options.partition else []

    def nodes() -> list[dict[str, Any]]:
        try:
            listed: list[dict[str, Any]] = lab.json("node", "ls")["nodes"]
        except RuntimeError:
            return []  # The gateway is not up yet.
        return [node for node in listed if node["state"] == "up"]

    with lab.keeping(folder / "server.log", "server", "run"):
        until(lambda: is_up(lab), "the server is up")
        with lab.keeping(folder / "pool.log", *pool) as keeper:
            until(nodes, "a node has joined")
            wishes = ("run", "-d", "--vc", "team", "--gpus", "4")
            short = [lab.skep(*wishes, "--", "sleep", "20").strip() for _ in range(2)]
            grown = until(lambda: len(found := nodes()) > 1 and found, "a second node has joined")
            lab.skep("wait", "-q", *short)
            shrunk = until(lambda: len(found := nodes()) == 1 and found, "one is handed back")
            job = lab.skep(*wishes, "--name", "long", "--", "long.py").strip()
            lab.skep("wait", "-q", job)
            shown = lab.json("show", job)
            alive = keeper.poll() is None
        told = (folder / "pool.log").read_text().splitlines()
        left = until(lambda: not _queued() and [True], "Slurm has nothing of it")
    attempts = shown["attempts"]
    return {
        "grown_to": len(grown),
        "shrunk_to": len(shrunk),
        "attempts": [(each["place"], each["outcome"], each["steps"]) for each in attempts],
        "told": told,
        "held": {
            "the job ended well": shown["state"] == "succeeded",
            "it outlived an allocation": len({each["place"] for each in attempts}) > 1,
            "it did no mini-batch twice": attempts[-1]["steps"] == STEPS,
            "the keeper stayed": alive,
            "everything was handed back": bool(left),
        },
    }


def is_up(lab: Lab) -> bool:
    """Return whether the gateway answers."""
    try:
        lab.skep("node", "ls")
    except RuntimeError:
        return False
    return True


def _queued() -> str:
    asked = ["squeue", "-h", "--me", "-o", "%j"]
    told = subprocess.run(asked, check=True, text=True, capture_output=True).stdout
    return "".join(line for line in told.splitlines() if line.startswith("skep-"))


if __name__ == "__main__":
    sys.exit(main())
