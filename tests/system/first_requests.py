"""Requests that begin a replica of a service: `python -m tests.system.first_requests`.

A live cluster has a service with `replicas: 0`. Again and again nothing is asked until it has no
replica, and then several requests at once, all of which have to be answered. Prints a JSON object
for each time, and one of all; returns 1 if a request was not answered.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.embedded import Embedded, until

SCRIPT = Path(__file__).parents[1] / "e2e" / "jobs" / "serving.py"
CALL = "/v1/services/nlp.llm/http/x"


def ask(cluster: Embedded) -> tuple[int, float]:
    """Return the status of a request's answer, and how long it took (s)."""
    began = time.monotonic()
    status = cluster.ask("GET", CALL, who="vc-nlp").status
    return status, time.monotonic() - began


def play(cluster: Embedded, service: str, requests: int) -> dict[str, Any]:
    """Ask once there is no replica; return what came of it."""
    until(
        lambda: cluster.get(f"/v1/services/{service}")["replicas"] == 0, "a service without replica"
    )
    with ThreadPoolExecutor(requests) as pool:
        answers = list(pool.map(lambda _: ask(cluster), range(requests)))
    lengths = [length for _, length in answers]
    return {
        "answered": sum(status == 200 for status, _ in answers),
        "first_s": round(min(lengths), 3),
        "last_s": round(max(lengths), 3),
        "next_s": round(ask(cluster)[1], 4),
    }


def main() -> int:
    """Play; return 1 if a request was not answered."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.first_requests")
    parser.add_argument("--times", type=int, default=5, help="how often")
    parser.add_argument(
        "--requests", type=int, default=5, help="at once: http.server has a backlog of 5"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder) / "home")
        cluster.up("--nodes", "1", "--gpus", "1", "--vc", "nlp=1", "--port", "0")
        try:
            spec = {
                "name": "llm",
                "vc": "nlp",
                "job": {"command": [sys.executable, str(SCRIPT), "one"]},
                "health": "/health",
                "replicas": 0,
                "replicas_max": 1,
                "requests_per_s": 1000,
                "idle": 1,
                "drain": 1,
            }
            begun = cluster.ask("POST", "/v1/services", json.dumps(spec).encode(), who="vc-nlp")
            rows = []
            for _ in range(options.times):
                rows.append(play(cluster, begun.body["service"], options.requests))
                print(json.dumps(rows[-1]), flush=True)
        finally:
            cluster.down()
    lost = options.times * options.requests - sum(row["answered"] for row in rows)
    median = statistics.median(row["first_s"] for row in rows)
    print(json.dumps({"lost": lost, "first_s_median": median}))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
