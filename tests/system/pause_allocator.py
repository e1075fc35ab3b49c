"""Stop the active allocator for a minute while its standby works, wake it: is it fenced?

    python -m tests.system.pause_allocator [--image skep:local] [--pauses 60 60] [--out FILE]

Deploys with compose, and a bare client submits all the time. The active allocator's process gets
SIGSTOP with a backlog in its hands, its standby takes over, and after longer than every timeout it
gets SIGCONT. What it then publishes is heard by an operator's connection. None of its records may
be stored, it must exit with 71, and no agent's journal may hold a command of its epoch from then
on. A command of the old epoch, for an attempt and with an order that nobody saw, is also published
under its identity: it must be ignored, and the same one with the epoch of the day must not be, so
that nothing but the epoch decides.

A process that wakes up may hear of its successor before it writes, and then needs no fence. So
there is another pause, at the end of which the successor is silent for a moment: now the woken
process must have tried to write, and been refused. Prints one JSON report; exits 1 if a check
failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skep_services.adapters.journal import FRAME, MAGIC
from tests.support.bare_client import BareClient, bare_client
from tests.system.compose import BURST_JOB_S, RECOVERY_WITHIN_S, VC, Run, attempt, read_stream
from tools.compose import Deployment, service_process, until

PROJECT = "skep-pause"
NATS_PORT, GATEWAY_PORT = 15222, 19470
PAUSES_S = (60.0, 60.0)
"""Longer than every timeout: a node is given up after 40 s, a bus connection after 60 s."""
SILENT_S = 2.0
"""How long the successor is silent in the end: less than what makes it another's turn."""
BACKLOG = 128
"""Submissions at once: some are on their way through the allocator whenever it is stopped."""
SUPERSEDED = 71
PLANTED_ATTEMPT = 99
ORDERS_AHEAD = 100_000
JUDGED_AFTER_S = 3.0
"""How long an agent has for a command; it takes one within milliseconds."""
NODES = ("1", "2")


class Heard(NamedTuple):
    """A message of an allocator's, as it passed on the bus."""

    at: int
    subject: str
    epoch: int
    body: Mapping[str, Any]


class PauseRun(Run):
    """One run; `report` gathers what is printed."""

    def __init__(self, deployment: Deployment, pauses_s: Sequence[float]) -> None:
        super().__init__(deployment, rolling=False, out=sys.stderr)
        self.pauses_s = pauses_s
        self.rows: list[dict[str, Any]] = []
        self.report: dict[str, Any] = {"pauses": self.rows}
        self.heard: list[Heard] = []
        self.planted = 0

    async def run(self) -> None:
        """Do everything but the deployment itself."""
        about = self.deployment.about
        async with (
            bare_client(about, f"vc-{VC}") as tenant,
            bare_client(about, "operator") as operator,
        ):
            await self.listen(operator)
            for subject in ("skep.v1.fact.allocator", "skep.v1.cmd.>"):
                await operator.client.subscribe(subject, cb=self._note)
            submitting = asyncio.ensure_future(self.submit_all_the_time(tenant))
            try:
                await self.wait_bound_after(time.monotonic_ns())
                for pause_s in self.pauses_s:
                    self.rows.append({"paused_s": pause_s})
                    await self.stop_and_wake(tenant, operator, pause_s)
            finally:
                self._stop.set()
                await submitting
            await self.account(operator)
            self.report["submitted"] = len(self.sent)
            self.report["longest_acknowledgement_s"] = round(
                self.longest_wait_s(list(self.sent)), 2
            )
            tried = [row["writes_tried_after_cont"] for row in self.rows[1:]]
            self.check(
                all(tried), f"{tried} writes were tried where nothing but the fence was left"
            )
            self.report["planted_with_new_epoch_obeyed"] = await self.plant(self.row["epoch_after"])
            self.check(
                self.report["planted_with_new_epoch_obeyed"],
                "the planted command is taken under the new epoch",
            )

    @property
    def row(self) -> dict[str, Any]:
        """Return what is told of the latest pause."""
        return self.rows[-1]

    async def _note(self, message: Any) -> None:
        """Remember what an allocator publishes, also what the stream then refuses."""
        body = json.loads(message.data)
        self.heard.append(Heard(time.monotonic_ns(), message.subject, body["epoch"], body))

    def since(self, at: int, epoch: int) -> list[Heard]:
        """Return what was heard of an epoch after `at` (monotonic ns)."""
        return [one for one in self.heard if one.at > at and one.epoch == epoch]

    async def stop_and_wake(self, tenant: BareClient, operator: BareClient, pause_s: float) -> None:
        """SIGSTOP, takeover, SIGCONT, exit."""
        name = await self.active("allocator")
        standby = f"allocator-{2 if name.endswith('1') else 1}"
        await asyncio.to_thread(
            until,
            lambda: self.deployment.answers(standby),
            f"{standby} stands by",
            RECOVERY_WITHIN_S,
        )
        container = self.deployment.containers()[name]
        process = service_process(container)
        backlog = [
            self._hand_in(tenant, f"backlog-{len(self.rows)}-{number}", BURST_JOB_S)
            for number in range(BACKLOG)
        ]
        await asyncio.gather(*backlog)
        await self.wait_bound_of(f"backlog-{len(self.rows)}-", BACKLOG // 4)
        epoch = self.heard[-1].epoch
        os.kill(process, signal.SIGSTOP)
        stopped_at = time.monotonic_ns()
        try:
            bound_at = await self.wait_bound_after(stopped_at)
            await asyncio.sleep(pause_s - (time.monotonic_ns() - stopped_at) / 1e9)
        except BaseException:
            os.kill(process, signal.SIGCONT)
            raise
        woken_at, wall_ns = await self.wake(process, standby)
        taken = [one for one in self.heard if one.at > stopped_at and one.epoch > epoch]
        self.rows[-1] |= {
            "stopped": name,
            "epoch_before": epoch,
            "epoch_after": max(one.epoch for one in taken),
            "stop_to_takeover_s": seconds(stopped_at, taken[0].at),
            "stop_to_first_binding_s": seconds(stopped_at, first_binding(taken)),
            "stop_to_binding_of_a_later_submission_s": seconds(stopped_at, bound_at),
            "bound_by_standby_while_stopped": sum(
                stopped_at < at < woken_at for at in self.bound.values()
            ),
        }
        self.check(self.row["epoch_after"] == epoch + 1, f"{standby} took over, once")
        await asyncio.to_thread(self.deployment.wait_again, name, container["State"]["StartedAt"])
        await self.judge_exit(name, container["Id"], wall_ns)
        await asyncio.to_thread(
            until,
            lambda: self.deployment.answers(name),
            f"{name} stands by again",
            RECOVERY_WITHIN_S,
        )
        self.row["cont_to_standing_by_s"] = seconds(woken_at, time.monotonic_ns())
        await self.judge_fence(operator, epoch, woken_at)
        self.row["planted_with_old_epoch_obeyed"] = await self.plant(epoch)
        self.check(
            not self.row["planted_with_old_epoch_obeyed"],
            "the planted command is not taken under the old epoch",
        )
        await self.judge_agents(epoch, wall_ns)

    async def wake(self, process: int, successor: str) -> tuple[int, int]:
        """SIGCONT; return when that was, by the monotonic clock and the wall's (ns).

        Except for the first time, the successor is stopped for the first moments after it.
        """
        silent = service_process(self.deployment.containers()[successor])
        self.row["successor_silent_s"] = SILENT_S if len(self.rows) > 1 else 0.0
        if self.row["successor_silent_s"]:
            os.kill(silent, signal.SIGSTOP)
        woken_at, wall_ns = time.monotonic_ns(), time.time_ns()
        try:
            os.kill(process, signal.SIGCONT)
            await asyncio.sleep(self.row["successor_silent_s"])
        finally:
            os.kill(silent, signal.SIGCONT)
        return woken_at, wall_ns

    async def wait_bound_of(self, prefix: str, count: int) -> None:
        """Return once so many jobs whose name begins with `prefix` are bound."""
        async with asyncio.timeout(RECOVERY_WITHIN_S):
            while True:
                if sum(name.startswith(prefix) for name in self.bound) >= count:
                    return
                await asyncio.sleep(0.01)

    async def judge_exit(self, name: str, container: str, woken_ns: int) -> None:
        """See from the engine how the process ended; from its log, why (wall-clock ns)."""
        died = await asyncio.to_thread(self.deployment.deaths, container, woken_ns)
        self.row["exit_code"], at = died[0]
        self.row["cont_to_exit_s"] = seconds(woken_ns, at)
        self.check(self.row["exit_code"] == SUPERSEDED, f"{name} exited with 71", str(died))
        lines = (await asyncio.to_thread(self.deployment.logs, name)).splitlines()
        words = [json.loads(line) for line in lines if '"superseded' in line]
        self.row["said"] = words[-1]["error"] if words else ""

    async def judge_fence(self, operator: BareClient, epoch: int, woken_at: int) -> None:
        """See that nothing of the old epoch is stored behind the new one."""
        tried = [one for one in self.since(woken_at, epoch) if ".fact." in one.subject]
        records = await read_stream(operator, "ALLOC")
        began = next(number for number, one in enumerate(records) if one["epoch"] > epoch)
        stored = [one for one in records[began:] if one["epoch"] <= epoch]
        self.row["writes_tried_after_cont"] = len(tried)
        self.row["writes_stored_after_takeover"] = len(stored)
        self.check(not stored, f"{len(tried)} writes tried after SIGCONT, none was stored")
        commands = [one for one in self.since(woken_at, epoch) if ".cmd." in one.subject]
        self.row["commands_published_after_cont"] = len(commands)

    async def judge_agents(self, epoch: int, woken_ns: int) -> None:
        """See that no agent took a command of the old epoch after SIGCONT (wall-clock ns)."""
        taken = [
            fact
            for number in NODES
            for at, fact in await self.journal(number)
            if at > woken_ns and command_epoch(fact) in range(1, epoch + 1)
        ]
        self.row["commands_obeyed_after_cont"] = len(taken)
        self.check(not taken, "no agent's journal has a command of the old epoch", str(taken[:2]))

    async def plant(self, epoch: int) -> bool:
        """Publish a command that differs from a good one in its epoch only; was it taken?"""
        known = [one for one in self.heard if one.body.get("type") == "bind-job"]
        self.check(any(one.epoch == epoch for one in known), f"commands of epoch {epoch} were seen")
        self.planted += 1
        planted = {
            **known[-1].body,
            "epoch": epoch,
            "attempt": PLANTED_ATTEMPT + self.planted,
            "argv": ["true"],
            "order": known[-1].body["order"] + ORDERS_AHEAD,
        }
        node = known[-1].body["node"].rpartition("-")[2]
        async with bare_client(self.deployment.about, self.row["stopped"]) as allocator:
            await allocator.client.publish(known[-1].subject, json.dumps(planted).encode())
            await allocator.settle()
        await asyncio.sleep(JUDGED_AFTER_S)
        return any(
            fact.get("command", {}).get("attempt") == planted["attempt"]
            for _, fact in await self.journal(node)
        )

    async def journal(self, node: str) -> list[tuple[int, Any]]:
        """Return the facts of an agent's journal, each with its record's time (wall-clock ns)."""
        data = await asyncio.to_thread(
            self.deployment.read_bytes, f"agent-{node}", "/var/lib/skep/journal"
        )
        return [(record["at"], fact) for record in frames(data) for fact in record["facts"]]


def first_binding(heard: Sequence[Heard]) -> int:
    """Return when the first record with a binding passed."""
    return next(
        one.at
        for one in heard
        if any(fact["type"] == "job-bound" for fact in one.body.get("facts", ()))
    )


def frames(data: bytes) -> Iterator[Any]:
    """Yield the records of a journal; one that is just being written is left out."""
    assert data.startswith(MAGIC), f"no journal: it begins with {data[:16]!r}"
    at = len(MAGIC)
    while at + FRAME.size <= len(data):
        length, _ = FRAME.unpack_from(data, at)
        at += FRAME.size
        if at + length > len(data):
            return
        yield json.loads(data[at : at + length])
        at += length


def command_epoch(fact: Mapping[str, Any]) -> int:
    """Return the epoch of the command that a fact of an agent says was taken, 0 if none."""
    if fact["type"] == "bind-taken":
        return int(fact["command"]["epoch"])
    return int(fact["epoch"]) if fact["type"] == "stop-taken" else 0


def seconds(began: int, ended: int) -> float:
    """Return the time between two instants in ns."""
    return round((ended - began) / 1e9, 2)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Stop the active allocator, and wake it.")
    parser.add_argument("--image", default="skep:local")
    parser.add_argument(
        "--pauses",
        type=float,
        nargs="+",
        default=PAUSES_S,
        metavar="SECONDS",
        help="the successor is silent after every one but the first",
    )
    parser.add_argument("--out", type=Path, help="write the report to a file as well")
    given = parser.parse_args()
    run = attempt(
        lambda deployment: PauseRun(deployment, given.pauses),
        PROJECT,
        given.image,
        (NATS_PORT, GATEWAY_PORT),
    )
    if run is None:
        return 1
    run.report["failed_checks"] = run.failures
    text = json.dumps(run.report, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
