"""A fact log damaged on the disk while its service is down: the service must stop, not go on wrong.

A bit is flipped in the middle of a log, or its last records are cut off, in the bus's own store.
The log's counter and hash chain, and what the other logs remember of it, must end the service with
the exit code that means so and a message that says where.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from skep.wire import subjects
from skep_services.service import EXIT_LOG
from tests.system.chaos.evidence import Told
from tests.system.chaos.links import Links
from tests.system.chaos.target import VCS, Target
from tests.system.chaos.workload import Workload, plan

JOBS, SECONDS = 60, 8.0
STOPPED_WITHIN_S = 40.0
OWNERS = {subjects.ADMISSION: "admission", subjects.ALLOC: "allocator"}
DAMAGES = ("flip", "truncate")


def damage(path: Path, how: str, rng: random.Random) -> str:
    """Flip one bit, or cut the end off; return what was done."""
    data = bytearray(path.read_bytes())
    if how == "truncate":
        at = rng.randint(len(data) * 6 // 10, len(data) * 9 // 10)
        del data[at:]
        text = f"cut off behind byte {at}"
    else:
        at = rng.randint(len(data) // 4, len(data) * 3 // 4)
        bit = rng.randrange(8)
        data[at] ^= 1 << bit
        text = f"bit {bit} of byte {at} flipped"
    path.write_bytes(data)
    return text


async def run(target: Target, seed: int) -> dict[str, Any]:
    """Fill the logs, damage one with the cluster down, start it, and see its service stop."""
    rng = random.Random(seed)
    stream, how = rng.choice(sorted(OWNERS)), rng.choice(DAMAGES)
    owner = OWNERS[stream]
    links = Links(target.about)
    wishes = plan(rng, JOBS, SECONDS, VCS, target.jobs._replace(trains=False))
    for wish in wishes:
        wish.cancel_after_s = wish.cancel_after_s and 1.0
    work = Workload(links, wishes)
    await work.run(time.monotonic())
    await work.settle(30.0)
    await links.close()
    target.kill_everything(jobs=False)
    (block,) = sorted(target.stores["nats"].folder.rglob(f"streams/{stream}/msgs/*.blk"))
    done = damage(block, how, rng)
    problems = []
    try:
        await asyncio.to_thread(target.restart)
    except RuntimeError as error:
        # `skep up` says that a service does not get ready: that is how it should be.
        problems.append(str(error))
    state = await _stopped(target, owner)
    words = _last_words(target.words(owner))
    told: list[Told] = [wish.told for wish in wishes]
    violations = []
    if state.get("exit") != EXIT_LOG or state.get("state") != "stopped":
        violations.append(
            {
                "promise": "corrupt",
                "text": f"{owner} went on over a damaged {stream} ({done}): {state}",
            }
        )
    return {
        "seed": seed,
        "stream": stream,
        "damage": done,
        "file": block.name,
        "owner": owner,
        "state": state.get("state"),
        "exit": state.get("exit"),
        "detail": state.get("detail"),
        "message": words,
        "skep_up_said": problems,
        "acknowledged": sum(1 for each in told if each.acks),
        "violations": violations,
    }


async def _stopped(target: Target, owner: str) -> dict[str, Any]:
    deadline = time.monotonic() + STOPPED_WITHIN_S
    while True:
        state = target.states().get(owner, {})
        if state.get("state") == "stopped" or time.monotonic() > deadline:
            return state
        await asyncio.sleep(0.1)


def _last_words(log: str) -> str:
    lines = [line for line in log.splitlines() if '"error"' in line]
    return lines[-1] if lines else ""


def table(report: dict[str, Any]) -> str:
    """Return the report as people read it."""
    lines = [
        f"seed {report['seed']}: {report['stream']}: {report['damage']}",
        f"{report['owner']}: {report['state']}, exit {report['exit']}: {report['detail']}",
        f"its words: {report['message']}",
        *(f"skep up: {text}" for text in report["skep_up_said"]),
        *(f"violation: {each['text']}" for each in report["violations"]),
        "stopped as it must" if not report["violations"] else "went on wrong",
    ]
    return "\n".join(lines)
