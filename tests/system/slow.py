"""Gangs with a slow rank on a live cluster of two nodes: `python -m tests.system.slow --python P`.

    forward, load, forward   jobs of two virtual clusters, one after the other: `skep why` names the
                             rank, the node and the cause; the third has the node blamed
    none                     a gang without a slow rank beside a process that uses a CPU now and
                             then: nothing is said for `--calm-s`

Prints a JSON object for each, and returns 1 if one was not so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.embedded import Embedded, until

SCRIPT = Path(__file__).parent / "library_jobs" / "slows.py"
WITHIN_S = 240.0
NOISE = """
import time
while True:
    end = time.monotonic() + 3
    while time.monotonic() < end:
        pass
    time.sleep(3)
"""
WAYS = (
    ("forward", "nlp", "rank-slow"),
    ("load", "cv", "loader-slow"),
    ("forward", "nlp", "rank-slow"),
)


def submit(cluster: Embedded, base: Path, how: str, vc: str, python: str) -> str:
    """Submit a gang of two ranks on two nodes; return its name."""
    spec = {
        "name": how,
        "vc": vc,
        "command": [python, str(SCRIPT), how, "1000000"],
        "distributed": True,
        "resources": {"workers": 2, "gpus": 1},
        "service_class": "opportunistic",
        "env": {"OMP_NUM_THREADS": "1"},
    }
    file = base / f"{how}.json"
    file.write_text(json.dumps(spec))
    return cluster.skep("submit", "-q", str(file)).strip()


def slow(cluster: Embedded, base: Path, way: tuple[str, str, str], python: str) -> dict[str, Any]:
    """Have a gang with a slow rank run until that is said; return what was."""
    how, vc, code = way
    job = submit(cluster, base, how, vc, python)
    cluster.started(job, WITHIN_S)
    began = time.monotonic()

    def held() -> Any:
        return cluster.get(f"/v1/jobs/{job}")["held_up"]

    (found,) = until(held, f"a slow rank of {job} ({how})", WITHIN_S)
    told_s = time.monotonic() - began
    why = cluster.get(f"/v1/jobs/{job}/why")["reasons"]
    said = " ".join(cluster.skep("why", job).split())
    shown = cluster.skep("show", job)
    events = cluster.skep("events", "--job", job)
    cluster.skep("cancel", job)
    cluster.ended(job, WITHIN_S)
    return {
        "slow": how,
        "vc": vc,
        "told_s": round(told_s, 1),
        "held_up": found,
        "well": found["node"] == "node-2"
        and found["why"] == code
        and any(each["reason"] == code for each in why)
        and found["text"] in said
        and "held up" in shown
        and "x slower" in events,
    }


def blame(cluster: Embedded) -> dict[str, Any]:
    """Return which places are blamed once what was found has settled, as an operator sees it."""

    def blamed() -> Any:
        return [each for each in cluster.get("/v1/gpus")["gpus"] if each["blamed"]]

    gpus = until(blamed, "a GPU that is blamed", WITHIN_S)
    alerts = [
        each
        for each in json.loads(cluster.skep("alerts", "--json"))["alerts"]
        if each["code"] == "place-blamed"
    ]
    return {
        "blamed": [each["blamed"] for each in gpus],
        "alerts": [each["text"] for each in alerts],
        "quarantined": [each["node"] for each in gpus if each["quarantined"]],
        "well": len(gpus) == len(alerts) == 1 and "blamed" in cluster.skep("gpu", "ls"),
    }


def calm(cluster: Embedded, base: Path, python: str, calm_s: float) -> dict[str, Any]:
    """Run a gang without a slow rank beside a process that is busy now and then."""
    job = submit(cluster, base, "none", "nlp", python)
    cluster.started(job, WITHIN_S)
    noise = subprocess.Popen([sys.executable, "-c", NOISE])
    try:
        # tidy: allow sleep because it is to be seen that nothing is said for so long
        time.sleep(calm_s)
        row = cluster.get(f"/v1/jobs/{job}")
        events = cluster.skep("events", "--job", job)
    finally:
        noise.kill()
        noise.wait()
    cluster.skep("cancel", job)
    cluster.ended(job, WITHIN_S)
    return {
        "slow": "none",
        "for_s": calm_s,
        "steps": row["steps"],
        "rate_milli": row["rate_milli"],
        "well": row["steps"] > 0 and not row["held_up"] and "slower" not in events,
    }


def main() -> int:
    """Play; return 1 if something is not said, or said for nothing."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.slow")
    parser.add_argument("--python", required=True, help="has torch")
    parser.add_argument("--only", default="", choices=("", "slow", "calm"), help="one of the two")
    parser.add_argument("--calm-s", type=float, default=180.0, help="how long nothing may be said")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        cluster = Embedded(base / "home")
        vcs = ("--vc", "nlp=1", "--vc", "cv=1")
        cluster.up("--nodes", "2", "--gpus", "1", *vcs, "--port", "0")
        try:
            for way in WAYS if options.only != "calm" else ():
                rows.append(slow(cluster, base, way, options.python))
                print(json.dumps(rows[-1]), flush=True)
            if options.only != "calm":
                rows.append(blame(cluster))
                print(json.dumps(rows[-1]), flush=True)
            if options.only != "slow":
                rows.append(calm(cluster, base, options.python, options.calm_s))
                print(json.dumps(rows[-1]), flush=True)
        finally:
            cluster.down()
    failed = [row for row in rows if not row["well"]]
    print(json.dumps({"failed": len(failed)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
