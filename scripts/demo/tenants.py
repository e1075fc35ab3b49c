"""The demo's second act: one tenant floods the cluster, the other's gang starts all the same.

Every GPU runs an opportunistic job of `nlp` when `vision` submits a gang of four. `vision` owns a
node's worth of cells, so the gang gets one: four of the eight jobs are stopped for it, and come
back once it has ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scripts.demo.run import Demo

GPUS = 8
GANG = 4
FULL_WITHIN_S = 30.0
LOOK_S = 0.1

FLOOD: dict[str, Any] = {
    "name": "flood",
    "vc": "nlp",
    "command": ["sleep", "600"],
    "service_class": "opportunistic",
}
MUST: dict[str, Any] = {
    "name": "gang-of-4",
    "vc": "vision",
    "command": ["sleep", "1"],
    "resources": {"workers": GANG, "gpus": 1, "topology": {"within": "node", "hard": True}},
}


def flood(demo: Demo) -> list[str]:
    """Flood the cluster, start the gang, and return what was not as expected."""
    demo.say(f"\nnlp floods the cluster: {GPUS} opportunistic jobs on {GPUS} slots")
    names = [f"flood-{number}" for number in range(1, GPUS + 1)]
    for name in names:
        demo.publish(name, {**FLOOD, "name": name})
    _until_running(demo, names)
    demo.say(f"every slot is taken; vision, which owns a node, submits a gang of {GANG}")
    demo.publish("gang-of-4", MUST)
    gang = demo.get(f"/v1/jobs/{demo.jobs['gang-of-4']}?wait=ended&timeout_s=30")
    demo.skep("vc", "tree", "--out", str(demo.out / "cells.svg"))
    first = gang["attempts"][0] if gang["attempts"] else None
    problems = []
    if gang["state"] != "succeeded" or first is None or not first["started_at"]:
        problems.append(f"the gang of {GANG} is {gang['state']} ({gang['why']})")
    else:
        wait_ms = (first["started_at"] - gang["submitted_at"]) / 1e6
        demo.waits["gang-of-4"] = wait_ms
        demo.say(
            f"the gang ran {wait_ms:.0f} ms after it was submitted: "
            f"{GANG} jobs of nlp made room, in vision's own cells"
        )
    stopped = [
        job
        for name in names
        if len((job := demo.get(f"/v1/jobs/{demo.jobs[name]}"))["attempts"]) > 1
        or job["state"] == "queued"
    ]
    if len(stopped) != GANG:
        problems.append(f"{len(stopped)} jobs of nlp made room, expected {GANG}")
    for name in names:
        demo.skep("cancel", demo.jobs[name])
    return problems


def _until_running(demo: Demo, names: list[str]) -> None:
    deadline, rows = time.monotonic() + FULL_WITHIN_S, {}
    while time.monotonic() < deadline:
        rows = {row["name"]: row["state"] for row in demo.get("/v1/jobs?state=all")["jobs"]}
        if all(rows.get(name) == "running" for name in names):
            return
        time.sleep(LOOK_S)
    message = f"demo: the flood does not run: {rows}"
    raise SystemExit(message)
