"""Kill the bus server that leads a stream, again and again: how long until work goes on? JSON.

    python -m tests.system.failover [--image skep:local] [--rounds 4] [--out FILE]

Deploys with compose. A bare client submits four jobs a second, fewer than the slots take, so that
what is measured is no queue; each is repeated with its key until it is acknowledged. In each round
the server that leads SUBMIT, then the one that leads ALLOC, gets SIGKILL. After either, it is
waited for the first job submitted after the kill to be acknowledged and bound, then for all copies
to be current again and the queue to be empty. At the end every acknowledged job must have ended
once. Exits 1 if not, or if a time is above the aim.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.bare_client import BareClient, bare_client
from tests.system.compose import RECOVERY_WITHIN_S, VC, Run, ask, attempt
from tools.compose import Deployment, until

PROJECT = "skep-failover"
NATS_PORT, GATEWAY_PORT = 16222, 20470
SLOTS = 8
ROUNDS = 4
PACE_S = 0.25
JOB_S = 0.01
AIM_S = 12.0
STREAMS = ("SUBMIT", "ALLOC")
STEPS = ("acknowledged", "bound")


class FailoverRun(Run):
    """One run; `seconds` gathers the times by what was killed."""

    def __init__(self, deployment: Deployment, rounds: int) -> None:
        super().__init__(
            deployment,
            rolling=False,
            pace_s=PACE_S,
            job_s=JOB_S,
            gang_every=sys.maxsize,
            out=sys.stderr,
        )
        self.rounds = rounds
        self.seconds: dict[str, dict[str, list[float]]] = {
            stream: {step: [] for step in STEPS} for stream in STREAMS
        }

    async def attack(self, operator: BareClient) -> None:
        """Kill the leaders in turn."""
        for _ in range(self.rounds):
            for stream in STREAMS:
                await self.wait_copies(operator)
                await self.wait_idle()
                leader = (await ask(operator, f"STREAM.INFO.{stream}", None))["cluster"]["leader"]
                started, at = await asyncio.to_thread(self.deployment.crash, leader)
                took = {
                    step: (when - at) / 1e9 for step, when in (await self.next_after(at)).items()
                }
                for step, seconds in took.items():
                    self.seconds[stream][step].append(seconds)
                told = ", ".join(f"{step} after {seconds:.1f} s" for step, seconds in took.items())
                self.check(took["bound"] <= AIM_S, f"{leader}, leader of {stream}: {told}")
                await asyncio.to_thread(self.deployment.wait_again, leader, started)
                await asyncio.to_thread(
                    until, self.deployment.is_well, "all is well", RECOVERY_WITHIN_S
                )

    async def wait_idle(self) -> None:
        """Return once hardly a job waits: what a kill held up is no part of the next one's time."""
        async with asyncio.timeout(RECOVERY_WITHIN_S):
            while True:
                if len(self.acknowledged) - len(self.ended) <= SLOTS:
                    return
                await asyncio.sleep(0.05)

    async def next_after(self, at: int) -> dict[str, int]:
        """Return when a job submitted after `at` first came to each step (ns)."""
        seen = dict(zip(STEPS, (self.acknowledged, self.bound), strict=True))
        async with asyncio.timeout(RECOVERY_WITHIN_S):
            while True:
                later = [name for name, sent in list(self.sent.items()) if sent > at]
                times = {
                    step: [whens[name] for name in later if name in whens]
                    for step, whens in seen.items()
                }
                if all(times.values()):
                    return {step: min(whens) for step, whens in times.items()}
                await asyncio.sleep(0.01)

    async def run(self) -> None:
        """Do everything but the deployment itself."""
        about = self.deployment.about
        async with (
            bare_client(about, f"vc-{VC}") as tenant,
            bare_client(about, "operator") as operator,
        ):
            await self.listen(operator)
            submitting = asyncio.ensure_future(self.submit_all_the_time(tenant))
            try:
                await self.wait_bound_after(time.monotonic_ns())
                await self.attack(operator)
            finally:
                self._stop.set()
                await submitting
            await self.account(operator)

    def report(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "kills": self.rounds * len(STREAMS),
            **{
                f"leader_of_{stream}_killed": {
                    f"to_next_job_{what}_s": spread(values) for what, values in times.items()
                }
                for stream, times in self.seconds.items()
            },
            "submitted": len(self.sent),
            "longest_acknowledgement_s": round(self.longest_wait_s(list(self.sent)), 2),
            "aim": f"<= {AIM_S:.0f} s; the servers' own election takes 4 to 9 s",
            "failed_checks": self.failures,
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, worst and count."""
    return {
        "median": round(statistics.median(values), 2),
        "worst": round(max(values), 2),
        "n": len(values),
    }


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Kill the leaders of streams, again and again.")
    parser.add_argument("--image", default="skep:local")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="write the report to a file as well")
    given = parser.parse_args()
    run = attempt(
        lambda deployment: FailoverRun(deployment, given.rounds),
        PROJECT,
        given.image,
        (NATS_PORT, GATEWAY_PORT),
    )
    if run is None:
        return 1
    text = json.dumps(run.report(), indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
