"""Gangs that hang on a live cluster of two nodes: `python -m tests.system.hung --python PYTHON`.

For each way to hang: `skep why` has to name the rank and the collective, and with `restart_hung`
the job is begun again, goes on from its newest checkpoint, and ends well. Prints a JSON object for
each, and returns 1 if one was not so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.embedded import Embedded, until

SCRIPT = Path(__file__).parent / "library_jobs" / "hangs.py"
WITHIN_S = 300.0


class Way(NamedTuple):
    """A way to hang, and what has to be said of it."""

    how: str
    workers: int
    says: tuple[str, ...]


WAYS = (
    Way("behind", 2, ("rank 1", "hangs.py", "in load", "gloo:")),
    Way("mute", 2, ("rank 1",)),
    Way("waits", 2, ("gloo:broadcast",)),
    Way("stands", 1, ("hangs.py", "in load")),
)


def play(cluster: Embedded, base: Path, way: Way, python: str) -> dict[str, Any]:
    """Have a gang hang; return what was said of it, and what became of it."""
    spec = {
        "name": way.how,
        "command": [python, str(SCRIPT), way.how],
        "distributed": True,
        "resources": {"workers": way.workers, "gpus": 1},
        "restart_hung": "1m",
        "env": {"OMP_NUM_THREADS": "1"},
    }
    file = base / f"{way.how}.json"
    file.write_text(json.dumps(spec))
    job = cluster.skep("submit", "-q", str(file)).strip()

    def told() -> str | None:
        row = cluster.get(f"/v1/jobs/{job}")
        if row["attempt"] > 1 or row["state"] == "failed":
            return "nothing before it was begun again"
        reasons = cluster.get(f"/v1/jobs/{job}/why")["reasons"]
        if not all(any(part in str(each) for each in reasons) for part in way.says):
            return None
        said = " ".join(cluster.skep("why", job).split())
        return said if all(part in said for part in way.says) else None

    began = time.monotonic()
    said = until(told, f"`skep why` to say {way.says} of {job}", WITHIN_S)
    told_s = time.monotonic() - began
    ended = cluster.ended(job, WITHIN_S)
    log = cluster.log(job)
    first = ended["attempts"][0]
    return {
        "hangs": way.how,
        "why": said,
        "told_s": round(told_s, 1),
        "attempts": [[each["outcome"], each["ended_why"]] for each in ended["attempts"]],
        "blamed": first["detail"],
        "goes_on": [line for line in log.splitlines() if "going on after" in line][:1],
        "state": ended["state"],
    }


def well(row: dict[str, Any]) -> bool:
    """Return whether a hang was told and mended."""
    return bool(
        row["state"] == "succeeded"
        and len(row["attempts"]) == 2
        and row["goes_on"]
        and "nothing before" not in row["why"]
    )


def main() -> int:
    """Play every way; return 1 if one is not told or not mended."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.hung")
    parser.add_argument("--python", required=True, help="has torch")
    parser.add_argument("--only", default="", help="one way to hang")
    options = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder) / "home")
        cluster.up("--nodes", "2", "--gpus", "1", "--vc", "nlp=2", "--port", "0")
        try:
            for way in WAYS:
                if options.only not in way.how:
                    continue
                row = play(cluster, Path(folder), way, options.python)
                print(json.dumps(row), flush=True)
                if not well(row):
                    failed.append(way.how)
        finally:
            cluster.down()
    print(json.dumps({"failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
