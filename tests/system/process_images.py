"""Observed jobs that go on from images: `python -m tests.system.process_images`.

A script of plain PyTorch runs once as it is, and then as jobs of a live cluster of two nodes whose
checkpoints are in one folder. Each is stored while it trains and then loses its processes: by a
kill, by another kill in its second attempt, by a window of maintenance. It must go on from the
image, and every loss must be that of the run that was not interrupted, to the bit. Needs a CRIU
that works here (SKEP_CRIU names one). Prints one JSON list.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from tests.support.embedded import SKEP, Embedded, until

SCRIPT = Path(__file__).parent / "image_jobs" / "train.py"
STEPS, PAUSE_S = 400, 0.02
STORED_FROM = 60
DEADLINE_S = 120.0
WAYS = ("killed", "twice", "window")


def environment() -> dict[str, str]:
    """Return what agents need to store processes."""
    named = {"SKEP_CRIU": os.environ["SKEP_CRIU"]} if os.environ.get("SKEP_CRIU") else {}
    return {"SKEP_PROCESS_CHECKPOINTS": "allow", **named}


def plain(base: Path) -> str:
    """Return the losses of the script outside Skep."""
    losses = base / "plain.losses"
    env = {**os.environ, "LOSSES": str(losses), "GO": "/", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, SCRIPT, str(STEPS), "0"], env=env, check=True, stdout=subprocess.DEVNULL
    )
    return losses.read_text()


def submit(cluster: Embedded, base: Path, name: str) -> tuple[str, Path]:
    """Submit the script; return the job's id and where its losses go."""
    losses = base / f"{name}.losses"
    spec = {
        "name": name,
        "script": str(SCRIPT),
        "args": [str(STEPS), str(PAUSE_S)],
        "env": {"LOSSES": str(losses), "GO": str(base / f"{name}.go")},
        "limits": {"retries": 2},
        "resources": {"gpus": 1},
    }
    file = base / f"{name}.yaml"
    file.write_text(yaml.safe_dump(spec))
    words = [*SKEP, "submit", "-q", str(file)]
    done = subprocess.run(
        words, env=cluster.environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.strip(), losses


def lines(path: Path) -> int:
    """Return how many losses a script has written."""
    return path.read_text().count("\n") if path.exists() else 0


def trial(cluster: Embedded, base: Path, how: str) -> dict[str, Any]:
    """Run the script, store it, have it lose its processes; return what came of it."""
    job, losses = submit(cluster, base, how)
    said = [_store(cluster, job, losses, STORED_FROM)]
    node = cluster.get(f"/v1/jobs/{job}")["attempts"][-1]["members"][0]["node"]
    window = ""
    if how == "window":
        words = ("--nodes", node, "--from", "now", "--for", "1h", "--maintenance", "--json")
        window = json.loads(cluster.skep("reserve", "create", *words))["name"]
    else:
        _kill(cluster, losses)
    if how == "twice":
        until(lambda: _began(cluster, job, 2), f"{job} goes on", DEADLINE_S)
        said.append(_store(cluster, job, losses, STORED_FROM))
        _kill(cluster, losses)
    (base / f"{how}.go").touch()
    lost_at = time.monotonic()
    ended = cluster.ended(job, DEADLINE_S)
    if window:
        cluster.skep("reserve", "cancel", window)
    return {
        "how": how,
        "stored": said,
        "state": ended["state"],
        "attempts": len(ended["attempts"]),
        "nodes": [one["members"][0]["node"] for one in ended["attempts"]],
        "ended_s": round(time.monotonic() - lost_at, 2),
        "asks": ended["asks"],
        "log": [line for line in cluster.log(job).splitlines() if "[skep]" in line],
        "losses": losses.read_text(),
    }


def _store(cluster: Embedded, job: str, losses: Path, at: int) -> str:
    """Have the job stored once it has come so far, and go on; return what the command said."""
    until(lambda: lines(losses) >= at, f"{job} trains", DEADLINE_S)
    until(lambda: "checkpoint" in cluster.get(f"/v1/jobs/{job}")["can"], f"{job} is known")
    said = cluster.skep("checkpoint", job, "--wait").strip()
    stored = lines(losses)
    until(
        lambda: lines(losses) >= min(stored + 20, STEPS - 1), f"{job} goes on after it was stored"
    )
    return said


def _kill(cluster: Embedded, losses: Path) -> None:
    for pid, command in cluster.processes().items():
        if str(losses) in _environ(pid) and str(SCRIPT) in command:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _began(cluster: Embedded, job: str, attempt: int) -> bool:
    last = cluster.get(f"/v1/jobs/{job}")["attempts"][-1]
    return last["attempt"] >= attempt and bool(last["started_at"])


def _environ(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def main() -> int:
    """Run every trial."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.process_images")
    parser.add_argument("--only", default="", help="one of killed, twice, window")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        wanted = plain(base)
        cluster = Embedded(base / "home", environment())
        results = []
        try:
            cluster.up("--nodes", "2", "--gpus", "1", "--vc", "v=2", "--port", "0")
            for how in WAYS:
                if not arguments.only or arguments.only == how:
                    result = trial(cluster, base, how)
                    result["equal"] = result.pop("losses") == wanted
                    results.append(result)
        finally:
            cluster.down()
    print(json.dumps(results, indent=2))
    return 0 if all(one["equal"] and one["state"] == "succeeded" for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
