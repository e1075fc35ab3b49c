"""Run an embedded cluster under load for a while, disturb it, and export its log for `skep replay`.

    python -m tests.system.live_hour --out LOG.jsonl.gz [--minutes 62] [--seed 1] [--every 11]

Four nodes of four fake GPUs, three virtual clusters: jobs of one to eight GPUs, gangs,
opportunistic ones and a few real trainings arrive at random and take their time by the clock. On
the way agents and the allocator are killed, a node is drained, one is silent for so long that it
counts as lost, and people suspend, resume and cancel. At the end everything is waited for, and the
streams are written to `--out`. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from skep_services.adapters import exported
from skep_services.adapters.nats_read import read_stream
from tests.support.embedded import Embedded
from tests.system.live.jobs import Arrival, arrivals

OPTIONS = ("--nodes", "4", "--gpus", "4", "--device", "fake", "--port", "0")
VCS = {"vision": 8, "nlp": 4, "speech": 4}
SHARES = {"vision": 0.5, "nlp": 0.3, "speech": 0.2}
LEFT_S = 900.0
"""How long the last jobs may take."""
LOST_S = 50.0
"""Longer than the allocator waits for a node."""


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"live-hour: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class LiveRun:
    """One run; `disturbances` counts what was done to it."""

    def __init__(self, cluster: Embedded, rng: Random, duration_s: float) -> None:
        """Prepare."""
        self.cluster, self.rng, self.duration_s = cluster, rng, duration_s
        self.jobs: list[str] = []
        self.disturbances: dict[str, int] = {}

    def run(self, every_s: float) -> None:
        """Hand in and disturb until the time is over; then wait for the last job."""
        plan: list[tuple[float, Callable[[], None]]] = [
            (one.at_s, lambda one=one: self.submit(one))  # type: ignore[misc]
            for one in arrivals(self.rng, SHARES, self.duration_s, every_s)
        ]
        plan += self._disturbances()
        began = time.monotonic()
        for at_s, do in sorted(plan, key=lambda each: each[0]):
            time.sleep(max(0.0, began + at_s - time.monotonic()))
            try:
                do()
            except (OSError, RuntimeError, TimeoutError, AssertionError) as error:
                say(f"{error}")  # A gateway that was just killed; the run goes on.
        self.calm()

    def _disturbances(self) -> list[tuple[float, Callable[[], None]]]:
        long, rng = self.duration_s, self.rng
        made: list[tuple[float, Callable[[], None]]] = [
            (long * share, lambda: self.kill("allocator")) for share in (0.2, 0.45, 0.7)
        ]
        for share, node in ((0.15, "node-2"), (0.55, "node-3"), (0.8, "node-1")):
            made.append((long * share, lambda node=node: self.kill(node)))  # type: ignore[misc]
        made.append((long * 0.5, lambda: self.kill("admission")))
        made.append((long * 0.3, lambda: self.node("drain", "node-4")))
        made.append((long * 0.4, lambda: self.node("undrain", "node-4")))
        if long > 4 * LOST_S:
            made.append((long * 0.6, lambda: self.silence("node-2", signal.SIGSTOP)))
            made.append((long * 0.6 + LOST_S, lambda: self.silence("node-2", signal.SIGCONT)))
        for minute in range(1, int(long / 60)):
            what = rng.choice(("suspend", "release", "resume", "resume", "cancel"))
            made.append((60.0 * minute, lambda what=what: self.change(what)))  # type: ignore[misc]
        return made

    def count(self, what: str) -> None:
        """Note that something was done."""
        self.disturbances[what] = self.disturbances.get(what, 0) + 1
        say(f"{what} ({len(self.jobs)} jobs so far)")

    def submit(self, arrival: Arrival) -> None:
        """Hand in a job."""
        body = json.dumps(arrival.spec).encode()
        reply = self.cluster.ask(
            "POST", "/v1/jobs", body, headers={"Content-Type": "application/json"}
        )
        if reply.status >= 300:
            say(f"{reply.status}: {reply.body}")
            return
        self.jobs.append(reply.body["job"])

    def kill(self, name: str) -> None:
        """SIGKILL a process; the supervisor starts it again."""
        self.cluster.kill(name)
        self.count(f"kill {name}")

    def node(self, verb: str, name: str) -> None:
        """Drain a node, or open it again."""
        self.cluster.skep("node", verb, name)
        self.count(f"{verb} {name}")

    def silence(self, name: str, sign: signal.Signals) -> None:
        """Stop an agent's process where it is, or let it go on."""
        os.kill(self.cluster.entry(name)["pid"], sign)
        self.count(f"{sign.name} {name}")

    def change(self, what: str) -> None:
        """Have some running job suspended, resumed or cancelled."""
        listed = json.loads(self.cluster.skep("ps", "--json"))
        rows = listed["jobs"] if isinstance(listed, dict) else listed
        wanted = {"suspended"} if what == "resume" else {"running"}
        jobs = [row["job"] for row in rows if row["state"] in wanted]
        if not jobs:
            return
        words = ["suspend", "--release"] if what == "release" else [what]
        try:
            self.cluster.skep(*words, self.rng.choice(jobs))
        finally:
            self.count(what)

    def calm(self) -> None:
        """Resume whatever a person suspended, and wait for the last end."""
        deadline = time.monotonic() + LEFT_S
        while time.monotonic() < deadline:
            listed = json.loads(self.cluster.skep("ps", "--json"))
            rows = listed["jobs"] if isinstance(listed, dict) else listed
            if not rows:
                return
            for row in rows:
                if row["state"] == "suspended":
                    try:
                        self.cluster.skep("resume", row["job"])
                    except RuntimeError as error:
                        say(str(error))
            time.sleep(5)
        say("not everything has ended")


async def export(cluster: Embedded, path: Path) -> dict[str, int]:
    """Write the streams to a file; return how many messages of each."""
    bus = await cluster.bus("operator")
    try:
        found = {stream: await read_stream(bus, stream) for stream in exported.STREAMS}
    finally:
        await bus.close()
    exported.write(path, found)
    return {stream: len(messages) for stream, messages in found.items()}


def main() -> None:
    """Run and print what it was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=62.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=11.0, help="seconds between jobs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skep-live-") as folder:
        cluster = Embedded(Path(folder))
        cluster.up(
            *OPTIONS, *(word for vc, gpus in VCS.items() for word in ("--vc", f"{vc}={gpus}"))
        )
        began = time.time()
        try:
            live = LiveRun(cluster, Random(arguments.seed), arguments.minutes * 60)
            live.run(arguments.every)
        finally:
            messages = asyncio.run(export(cluster, arguments.out))
            cluster.down()
    result: dict[str, Any] = {
        "seed": arguments.seed,
        "minutes": round((time.time() - began) / 60, 1),
        "jobs": len(live.jobs),
        "done": live.disturbances,
        "messages": messages,
        "bytes": arguments.out.stat().st_size,
        "load": os.getloadavg(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
