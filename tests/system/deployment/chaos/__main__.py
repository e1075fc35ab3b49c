"""`python -m tests.system.deployment.chaos`: attack a cluster of machines, then judge it.

    --seed N --minutes M     the same seed draws the same faults, jobs and clients
    --json PATH              writes the report
    --keep DIR               where the machines' files are, and stay

Three servers and four nodes are set up by the commands of docs/how-to/servers.md; two people submit
to all gateways, and at the doors. Meanwhile certificates are changed, a node is removed and another
one joins. When all is healed, everything has to end within --settle seconds. The files stay where a
promise was broken. Exits 1 if one was, 2 if the cluster did not come up, 77 if machines cannot be
made here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.system.chaos import gather, workload
from tests.system.chaos.checker import Checker, Violation
from tests.system.chaos.evidence import NS, Evidence
from tests.system.chaos.links import Links
from tests.system.chaos.replay import Replayer
from tests.system.deployment.__main__ import SKIPPED, Story, make_servers
from tests.system.deployment.bed import Bed, missing
from tests.system.deployment.chaos import plan, verdict
from tests.system.deployment.chaos.injector import MachineInjector
from tests.system.deployment.chaos.operator import Operator
from tests.system.deployment.chaos.people import (
    PEOPLE,
    ROLE,
    HttpClients,
    PersonLinks,
    Web,
    take_keys,
)
from tests.system.deployment.chaos.target import DOOR_PORT, GATEWAY_PORT, Machines

SERVERS = ("server-1", "server-2", "server-3")
NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
LATE, DESK = "gpu-5", "desk"
"""The node that joins; and the machine that people and the operator's eyes are on."""
VCS = {"vision": 8, "speech": 8}
UP_WITHIN_S = 240.0
SETTLE_S = 180.0
"""After healing: every timeout of Skep (a lost node's 40 s), servers that start, the work left."""
GONE_WITHIN_S = 15.0
KEEP_EVERY_S = 0.25
SHOWN_MAX = 40
AT_DOORS = 4
"""Every fourth submission is published at a door, the others are posted to a gateway."""
NEW_NETWORK = 0x40000000


class Chaos:
    """One run against one cluster.

    Args:
        chosen: The command line.
        target: The cluster.
        tokens: The people's tokens by VC, and the operator's as `operator`.
        say: Prints a line.
    """

    def __init__(
        self, chosen: argparse.Namespace, target: Machines, tokens: dict[str, str], say: Any
    ) -> None:
        self.chosen, self.target, self._tokens, self._say = chosen, target, tokens, say
        seconds = chosen.minutes * 60
        rng = random.Random(chosen.seed)
        count = round(chosen.faults * chosen.minutes)
        self.faults = plan.faults(rng, count, seconds, SERVERS, NODES, LATE)
        self.changes = plan.changes(seconds, SERVERS, NODES, LATE)
        jobs = round(chosen.jobs * chosen.minutes)
        self.wishes = workload.plan(rng, jobs, seconds, VCS, target.jobs)
        self._turns = random.Random(rng.random())
        self.injector = MachineInjector(target, Replayer(Links(target.about)))
        self.operator = Operator(target, say)
        self.evidence = Evidence(told=[wish.told for wish in self.wishes], cuts=self.injector.cuts)
        self.begin = self.healed = 0
        self.wrong: list[Violation] = []

    async def run(self) -> dict[str, Any]:
        """Do it all; return the report."""
        ca = self.target.home(SERVERS[0]) / "tls" / "ca.pem"
        web = Web(self.target.urls("https", GATEWAY_PORT), ca)
        folder = self.target.machine(DESK).folder
        await take_keys(web, self._tokens, folder)
        doors = self.target.urls("tls", DOOR_PORT)
        links = PersonLinks(doors, folder, web.tls)
        at_doors = [wish for number, wish in enumerate(self.wishes) if number % AT_DOORS == 0]
        others = [wish for number, wish in enumerate(self.wishes) if number % AT_DOORS]
        posted = HttpClients(web, others, self._tokens, self._turns)
        clients = (posted, workload.Workload(links, at_doors, PEOPLE))
        begin = time.monotonic()
        self.begin = time.monotonic_ns()
        beside = [asyncio.create_task(self._live(begin)), asyncio.create_task(self._keep_up())]
        try:
            await asyncio.gather(
                *(one.run(begin) for one in clients),
                self.injector.run(self.faults, begin),
                self.operator.run(self.changes, begin),
            )
            await self.injector.heal()
            self.healed = time.monotonic_ns()
            self._say("healed")
            return await self._judge(web, clients, posted.odd)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await links.close()
            await web.close()

    async def _judge(
        self, web: Web, clients: Sequence[workload.Clients], odd: list[str]
    ) -> dict[str, Any]:
        settle_s = self.chosen.settle
        ended_s = await gather.until_ended(self.target, self.evidence, settle_s)
        self._say(f"all ended after {ended_s:.1f} s: {self.evidence.unfinished[:3]}")
        for one in clients:
            self.evidence.unfinished += await one.settle(max(20.0, settle_s - ended_s))
        missed = list(self.evidence.unfinished)
        # A client that asked again meanwhile may have made the log longer.
        await gather.until_ended(self.target, self.evidence, max(20.0, settle_s - ended_s))
        self.evidence.unfinished = [*dict.fromkeys([*missed, *self.evidence.unfinished])]
        operator = self._tokens["operator"]
        self.wrong += await verdict.until_whole(self.target, web, operator)
        self.wrong += await verdict.same_views(web, operator)
        self.wrong += await verdict.revoked(self.operator)
        self.wrong += await asyncio.to_thread(verdict.rotated, self.target)
        self.wrong += await verdict.other_logs(self.target)
        self.wrong += [Violation("answer", text) for text in odd]
        self.wrong += self.operator.violations
        self.evidence.alive = await self._alive()
        gather.read_runs(self.target, self.evidence)
        return self._report(ended_s)

    async def _alive(self) -> list[str]:
        deadline = time.monotonic() + GONE_WITHIN_S
        while True:
            left = self.target.job_processes()
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(0.1)

    async def _keep_up(self) -> None:
        """Start again what ended, as systemd does."""
        while True:
            await asyncio.to_thread(self.target.keep_up)
            await asyncio.sleep(KEEP_EVERY_S)

    async def _live(self, begin: float) -> None:
        told = self.evidence.told
        while True:
            sent = sum(1 for each in told if each.sent_at)
            acked = sum(1 for each in told if each.acks)
            answered = sum(1 for each in told if each.verdicts)
            now = [
                f"{each.kind} {each.component}" for each in self.injector.injected if not each.ended
            ]
            self._say(
                f"{time.monotonic() - begin:4.0f} s: {sent} sent, {acked} acknowledged, "
                f"{answered} answered, {len(self.injector.injected)} of {len(self.faults)} "
                f"faults; now: {', '.join(now) or '-'}"
            )
            await asyncio.sleep(15)

    def _report(self, ended_s: float) -> dict[str, Any]:
        evidence, injector = self.evidence, self.injector
        violations = [*Checker(evidence).check(), *self.wrong]
        done = Counter(each.kind for each in injector.injected if each.done)
        seen = gather.availability(evidence, self.begin, self.healed)
        attempts = {(run.job, run.attempt) for run in evidence.runs if run.attempt > 1}
        return {
            "seed": self.chosen.seed,
            "minutes": self.chosen.minutes,
            "jobs": {
                "submitted": len(evidence.told),
                "acknowledged": sum(1 for told in evidence.told if told.acks),
                "by_kind": dict(Counter(told.kind for told in evidence.told)),
                "processes": len(evidence.runs),
                "attempts_beyond_first": len(attempts),
            },
            "faults": {
                "planned": len(self.faults),
                "done": sum(done.values()),
                "by_class": dict(done.most_common()),
            },
            "changes": self.operator.done,
            "availability": {**seen, "all_ended_s": round(ended_s, 1)},
            "units_that_ended": self.target.exits,
            "problems": injector.problems,
            "violations": [violation._asdict() for violation in violations],
            "history": [
                vars(each)
                | {"began": (each.began - self.begin) / NS, "ended": (each.ended - self.begin) / NS}
                for each in injector.injected
            ],
        }


def table(report: dict[str, Any]) -> str:
    """Return the report as people read it."""
    jobs, hit, seen = report["jobs"], report["faults"], report["availability"]
    return "\n".join(
        [
            f"seed {report['seed']}: {jobs['acknowledged']} of {jobs['submitted']} submissions "
            f"acknowledged, {jobs['processes']} processes, "
            f"{jobs['attempts_beyond_first']} later attempts",
            f"faults: {hit['done']} of {hit['planned']} done: "
            + ", ".join(f"{kind} {count}" for kind, count in hit["by_class"].items()),
            *(
                f"{one['do']} {one['machine']} at {one['at_s']} s: {one['told']}"
                for one in report["changes"]
            ),
            f"longest wait for an acknowledgement {seen['ack_wait_s_max']} s (median "
            f"{seen['ack_wait_s_median']} s), longest time without a job starting "
            f"{seen['without_a_start_s_max']} s, all ended {seen['all_ended_s']} s after healing",
            *(f"problem: {text}" for text in report["problems"]),
            f"violations: {len(report['violations'])}",
            *(f"  {each['promise']}: {each['text']}" for each in report["violations"][:SHOWN_MAX]),
        ]
    )


def set_up(story: Story, target: Machines) -> dict[str, str]:
    """Bring the cluster up; return the tokens of people by VC, and the operator's.

    Raises:
        RuntimeError: It does not come up.
    """
    make_servers(story, SERVERS, VCS)
    first = target.machine(SERVERS[0])
    made = story.json(first, "skep", "node", "token", "--count", str(len(NODES)))

    def join(name: str, token: str) -> None:
        place = f"{token}@{made['place']}"
        story.do(target.machine(name), "skep", "node", "join", place, "--gpus", "4")
        target.add_node(name)

    def add(vc: str, person: str) -> tuple[str, str]:
        story.do(first, "skep", "user", "add", person)
        story.do(first, "skep", "role", "grant", person, ROLE, "--vc", vc)
        token = story.json(first, "skep", "token", "create", "laptop", "--person", person)
        return vc, str(token.get("text", ""))

    with ThreadPoolExecutor() as pool:
        joined = pool.map(join, NODES, made.get("tokens", []))
        tokens = dict(pool.map(lambda one: add(*one), PEOPLE.items()))
        list(joined)

    def all_up() -> bool:
        rows = story.json(first, "skep", "node", "ls").get("nodes", [])
        return len(rows) == len(NODES) and all(row["state"] == "up" for row in rows)

    story.until("all nodes are up", all_up, UP_WITHIN_S)
    if story.failed or not all(tokens.values()):
        text = f"the cluster did not come up: {'; '.join(story.failed)}"
        raise RuntimeError(text)
    return {**tokens, "operator": target.about()["gateway"]["tokens"]["operator"]}


def stand_at(space: str) -> None:
    """Have this process, and the threads it begins from now on, be in a machine's network.

    Raises:
        OSError: That is not possible.
    """
    with open(f"/run/netns/{space}", "rb") as file:
        library = ctypes.CDLL(None, use_errno=True)
        if library.setns(file.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the network of {space}")


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what the command line says."""
    assert __doc__ is not None
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tests.system.deployment.chaos", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--seed", type=int, default=1, help="draws faults and jobs (default 1)")
    parser.add_argument("--minutes", type=float, default=4, help="how long (default 4)")
    parser.add_argument("--jobs", type=float, default=30, help="submissions a minute (default 30)")
    parser.add_argument("--faults", type=float, default=7, help="faults a minute (default 7)")
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds for all to end in")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the report")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the machines' files")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Set the cluster up, attack and judge it; return the exit code."""
    chosen = options(arguments)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # What it says of TLS is nobody's fault.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if why := missing():
        print(f"skipped: {why}")
        return SKIPPED
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="skep-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    bed = Bed(folder.resolve(), [*SERVERS, *NODES, LATE, DESK])
    report: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(bed)
        target = Machines(bed, list(SERVERS), list(NODES))
        story = Story(bed, UP_WITHIN_S)
        try:
            tokens = set_up(story, target)
        except RuntimeError as error:
            print(f"error: {error}; the machines' files are in {folder}", file=sys.stderr)
            return 2
        stand_at(bed.machines[DESK].space)
        report = asyncio.run(Chaos(chosen, target, tokens, story.say).run())
        left = target.stop()
    report["violations"] += [Violation("orphan", text)._asdict() for text in left]
    print(table(report))
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    if report["violations"]:
        print(f"the machines' files are in {folder}")
    elif not chosen.keep:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"again with: python -m tests.system.deployment.chaos --seed {chosen.seed} "
        f"--minutes {chosen.minutes:g} --jobs {chosen.jobs:g} --faults {chosen.faults:g}"
    )
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
