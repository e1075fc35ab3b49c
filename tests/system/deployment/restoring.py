"""A cluster that is restored from a backup on other machines: one server, and then three.

The servers of before are gone, with their disks, names and addresses. Every job has to be there,
people's tokens hold, nodes meet the cluster again, and what ran there comes to an end. The nodes
have run jobs that the backup knows nothing of: their ids are given again.
"""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.system.deployment.__main__ import Story, as_person, make_nodes
from tests.system.deployment.bed import Machine
from tests.system.deployment.upgrading import submit

BEFORE, NODES, AFTER = "old-1", ("gpu-1", "gpu-2"), ("head-1", "head-2", "head-3")
NAMES = (BEFORE, *NODES, *AFTER)
JOBS = 5
WAIT = """
import os, sys, time
with open(sys.argv[1] + ".begun", "a") as file:
    file.write("once\\n")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""


def tell(story: Story, folder: Path) -> None:
    """Take a backup, lose the server, and restore it twice."""
    old = story.bed.machines[BEFORE]
    story.do(old, "skep", "server", "init", "--name", "lab", "--host", old.name, "--host",
             old.address, "--host", old.address6, "--vc", "vision=4",
             "--vc", "speech=4")  # fmt: skip
    old.start("server", "skep", "server", "run")
    _until_ok(story, old)
    make_nodes(story, old, NODES)
    story.do(old, "skep", "user", "add", "ben")
    story.do(old, "skep", "role", "grant", "ben", "submitter", "--vc", "vision")
    token = str(story.json(old, "skep", "token", "create", "laptop", "--person", "ben")["text"])
    for number in range(JOBS):
        story.do(old, "skep", "run", "--vc", "speech", "--", "echo", f"job {number}")
    over = folder / "over"
    long = begin(story, old, over)
    secret, backup = folder / "passphrase", folder / "one.backup"
    secret.write_text("correct horse\n")
    sealed = ("--passphrase-file", str(secret))
    story.do(old, "skep", "backup", str(backup), "--encrypt", *sealed)
    before = jobs(story, old)
    story.do(old, "skep", "backup", "--check", str(backup), *sealed)
    _unknown(story, old)
    old.power_off()
    shutil.rmtree(old.folder / "home")
    story.say(f"{BEFORE}: the machine is gone, with its disk, its name and its address")

    first = story.bed.machines[AFTER[0]]
    story.do(first, "skep", "restore", str(backup), *sealed, "--host", first.name)
    first.start("server", "skep", "server", "run")
    _until_ok(story, first)
    look(story, first, before, token)
    meet_again(story, first)
    story.until(f"{long} runs again", functools.partial(_runs, story, first, long))
    story.do(first, "skep", "why", long)
    begun = over.with_name("over.begun").read_text().count("once")
    story.say(f"{long} was begun {begun} times")
    _unknown(story, first)
    first.power_off()
    shutil.rmtree(first.folder / "home")
    story.say(f"{first.name}: this machine is gone, too")

    restore_three(story, backup, sealed)
    second = story.bed.machines[AFTER[1]]
    look(story, second, before, token)
    meet_again(story, second)
    story.until(f"{long} runs again", functools.partial(_runs, story, second, long))
    _unknown(story, second)
    story.do(second, "skep", "server", "status")
    over.touch()
    story.do(second, "skep", "wait", long)
    story.do(second, "skep", "log", "check")
    story.do(second, "skep", "doctor", code=0)


def begin(story: Story, machine: Machine, over: Path) -> str:
    """Begin a job that runs until there is a file; return it."""
    command = [sys.executable, "-c", WAIT, str(over)]
    job = submit(machine, {"name": "long", "vc": "vision", "command": command}, "long")
    story.until(f"{job} runs", functools.partial(_runs, story, machine, job))
    return job


def _unknown(story: Story, machine: Machine) -> None:
    """Have jobs run that the backup knows nothing of."""
    for number in range(JOBS):
        word = f"later {number}"
        done = story.do(machine, "skep", "run", "--vc", "speech", "--", "echo", word)
        if done.out.strip() != word:
            story.failed.append(f"{word}: it has printed {done.out!r}")


def _runs(story: Story, machine: Machine, job: str) -> bool:
    return bool(story.json(machine, "skep", "show", job).get("state") == "running")


def _until_ok(story: Story, machine: Machine) -> None:
    story.until("all is ok", lambda: machine.do("skep", "server", "status").code == 0, 180.0)


def jobs(story: Story, machine: Machine) -> list[str]:
    """Return the jobs that a cluster knows."""
    return sorted(one["job"] for one in story.json(machine, "skep", "ps", "-a").get("jobs", []))


def look(story: Story, machine: Machine, before: Sequence[str], token: str) -> None:
    """See that every job, every log and every person is there."""
    found = jobs(story, machine)
    if not before or found != list(before):
        story.failed.append(f"other jobs than before: {found}, not {before}")
    story.say(f"{len(found)} of {len(before)} jobs are there")
    story.do(machine, "skep", "ps", "-a")
    story.do(machine, "skep", "log", "check")
    env = as_person(story, machine, token)
    story.do(machine, "skep", "whoami", env=env, shown="skep whoami    (as ben, by its old token)")


def meet_again(story: Story, server: Machine) -> None:
    """Have the nodes know where the servers are now."""
    for name in NODES:
        node = story.bed.machines[name]
        story.do(node, "skep", "node", "renew", "--at", server.name)
        node.stop("node")
        node.start("node", "skep", "node", "run")
        story.say(f"{name}$ systemctl restart skep-node")
    for name in NODES:
        up = functools.partial(_is_up, story, server, name)
        story.until(f"{name} is up", up)


def _is_up(story: Story, machine: Machine, node: str) -> bool:
    rows = story.json(machine, "skep", "node", "ls").get("nodes", [])
    return any(row["node"] == node and row["state"] == "up" for row in rows)


def restore_three(story: Story, backup: Path, sealed: Sequence[str]) -> None:
    """Make three servers of the backup of one."""
    second, *others = (story.bed.machines[name] for name in (AFTER[1], AFTER[2], AFTER[0]))
    story.do(
        second, "skep", "restore", str(backup), *sealed, "--servers", "3", "--host", second.name
    )
    second.start("server", "skep", "server", "run")
    for other in others:
        token = story.do(second, "skep", "server", "token").out.split()[-1]
        story.do(other, "skep", "server", "join", token, "--host", other.name)
        other.start("server", "skep", "server", "run")

    def awaits() -> bool:
        state = str(story.json(second, "skep", "server", "status").get("state", ""))
        return "skep restore FILE --bus" in state

    story.until("the servers wait for the streams", awaits, 300.0)
    story.do(second, "skep", "server", "status", code=1)
    story.do(second, "skep", "restore", str(backup), "--bus", *sealed)
    _until_ok(story, second)
    story.until("all servers are ok", functools.partial(_all_ok, story, second), 180.0)
    done = story.do(second, "skep", "restore", str(backup), "--bus", *sealed, code=1)
    if len(done.error.splitlines()) != 1:
        story.failed.append(f"not one line: {done.error}")


def _all_ok(story: Story, machine: Machine) -> bool:
    rows = story.json(machine, "skep", "server", "status").get("servers", [])
    return len(rows) == 3 and all(row["gateway"] == "ok" for row in rows)
