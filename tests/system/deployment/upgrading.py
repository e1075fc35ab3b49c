"""An upgrade of a whole deployment under load: servers, then nodes, by one command each.

Machines begin with the code of an earlier commit, as release OLD, and go on with this tree, as
release NEW; trees that call themselves two releases older and newer are refused. Jobs count all the
time and a tenant submits. At the end no job may be lost, repeated or begun twice, each counter is
without a gap, and the logs are whole.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from tests.system.deployment.__main__ import Story, make_nodes, make_servers
from tests.system.deployment.bed import ROOT, Bed, Machine, missing
from tests.system.deployment.remote import Remote
from tests.system.upgrade import COUNTED_MIN, COUNTER, AbsentError, unpack

SERVERS = ("server-1", "server-2", "server-3")
NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
STRANGER = "gpu-9"
"""A machine that is no node yet."""
COUNTERS = {"alone-1": ("speech", 1), "alone-2": ("speech", 1), "gang": ("vision", 6)}
"""The VC and the workers of each; no node has room for the gang alone."""
BEFORE, OLD, NEW, AFTER = "0.1.0", "0.2.0", "0.3.0", "0.5.0"
VERSION = re.compile(r'^__version__ = ".*"$', re.MULTILINE)
SERVERS_AT = Path("services/skep_services/servers")
SKIPPED = 77


def run(tag: str, folder: Path) -> int:
    """Upgrade a deployment; return the exit code.

    Args:
        tag: What the machines begin with: a tag or a commit that has servers.
        folder: Where everything is; it is the caller's to remove.

    Raises:
        AbsentError: There is no such tag, or it has no servers.
    """
    if why := missing():
        print(f"skipped: {why}")
        return SKIPPED
    trees = make_trees(tag, folder)
    with Bed(folder / "machines", [*SERVERS, *NODES, STRANGER]) as bed:
        story = Story(bed)
        remote = Remote(bed.machines, trees, folder / "ssh")
        try:
            for name in bed.machines:
                remote.install(name, OLD)
            upgrade(story, remote, folder / "out")
        finally:
            remote.close()
        story.say("ok" if not story.failed else f"FAILED: {'; '.join(story.failed)}")
        return 1 if story.failed else 0


def make_trees(tag: str, folder: Path) -> dict[str, Path]:
    """Return the code of each release.

    Raises:
        AbsentError: There is no such tag, or it has no servers.
    """
    old = unpack(tag, folder / OLD)
    if not (old / SERVERS_AT).is_dir():
        text = f"{tag} has no `skep server`: name a later tag or commit (--tag)"
        raise AbsentError(text)
    name_version(old, OLD)
    trees = {OLD: old}
    for version in (BEFORE, NEW, AFTER):
        tree = trees[version] = folder / version
        for part in ("libs", "services"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, tree / part, ignore=ignored)
        name_version(tree, version)
    return trees


def name_version(tree: Path, version: str) -> None:
    """Have a tree call itself a version."""
    path = tree / "libs" / "skep" / "__init__.py"
    path.write_text(VERSION.sub(f'__version__ = "{version}"', path.read_text()))


def upgrade(story: Story, remote: Remote, out: Path) -> None:
    """Upgrade servers and nodes while jobs run."""
    first, last = (story.bed.machines[name] for name in (SERVERS[0], SERVERS[-1]))
    make_servers(story, SERVERS, {"vision": 8, "speech": 8})
    make_nodes(story, first, NODES)
    out.mkdir()
    jobs = {name: begin(story, first, name, out) for name in COUNTERS}
    counted_on(story, out, "before the upgrade")
    # The command is the one of the new release, beside the old one: so it knows its own version.
    operator = {"PYTHONPATH": f"{ROOT}/libs:{ROOT}/services:{ROOT}"}
    load = Load(story, last)
    try:
        story.do(first, "skep", "server", "upgrade", "--to", NEW, "--check", env=operator, code=1)
        for words in (("server", "--via", "{server}"), ("node", "--batch", "2", "--via", "{node}")):
            part, *options, place = words
            via = f"{remote.via} {place} {{version}}"
            story.do(
                first,
                *("skep", part, "upgrade", "--to", NEW, *options, via),
                env=operator,
                shown=f"skep {part} upgrade --to {NEW} {' '.join(options)} "
                f"\"ssh root@{place} 'install {{version}}; restart'\"",
            )
            counted_on(story, out, f"after the {part}s")
        if [len(remote.asked), *remote.asked[:3]] != [7, "server-3", "server-2", "server-1"]:
            story.failed.append(f"upgraded in another order: {remote.asked}")
        story.do(first, "skep", "server", "status")
        story.do(first, "skep", "node", "upgrade", "--check")
    finally:
        load.stop()
    account(story, first, jobs, load, out)
    refuse(story, remote, first)


def begin(story: Story, first: Machine, name: str, out: Path) -> str:
    """Submit a job that counts; return it once it runs."""
    vc, workers = COUNTERS[name]
    spec = {
        "name": name,
        "vc": vc,
        "command": [sys.executable, "-c", COUNTER, str(out), name],
        "resources": {"gpus": 1, "workers": workers},
    }
    job = submit(first, spec, f"counter-{name}")
    running = functools.partial(_state_is, story, first, job, "running")
    story.until(f"{name} ({job}) runs with {workers} workers", running)
    return job


def submit(machine: Machine, spec: dict[str, Any], key: str) -> str:
    """Submit a job; return it, or an empty text if the cluster did not answer."""
    done = machine.do(
        "skep", "submit", "--no-check", "--key", key, "-q", "-", text=json.dumps(spec)
    )
    return done.out.strip() if done.code == 0 else ""


def _state_is(story: Story, machine: Machine, job: str, state: str) -> bool:
    return bool(story.json(machine, "skep", "show", job).get("state") == state)


class Load:
    """A tenant that submits short jobs, each with a key of its own, until `stop`."""

    def __init__(self, story: Story, machine: Machine) -> None:
        self._story, self._machine = story, machine
        self.jobs: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            key = f"short-{number}"
            spec = {"name": key, "vc": "speech", "command": ["true"]}
            while not (job := submit(self._machine, spec, key)) and not self._over.is_set():
                self._story.say(f"{key} is submitted again")
            if job:
                self.jobs[key] = job

    def stop(self) -> None:
        """Submit no more."""
        self._over.set()
        self._thread.join()


def counted(out: Path) -> dict[str, list[int]]:
    """Return what each worker has counted."""
    return {
        path.name: [int(line) for line in path.read_text().split()]
        for path in sorted(out.glob("*-*-*"))
    }


def counted_on(story: Story, out: Path, when: str) -> None:
    """Return once each counter has counted on."""
    before = {name: len(found) for name, found in counted(out).items()}

    def look() -> bool:
        now = counted(out)
        return len(now) >= sum(workers for _, workers in COUNTERS.values()) and all(
            len(found) >= before.get(name, 0) + COUNTED_MIN for name, found in now.items()
        )

    story.until(f"all count on {when}", look)


def refuse(story: Story, remote: Remote, first: Machine) -> None:
    """Have machines of other releases than the next be refused, in one line each."""
    stranger = story.bed.machines[STRANGER]
    token = story.json(first, "skep", "node", "token")
    place = f"{token['tokens'][0]}@{token['place']}"
    for version in (BEFORE, AFTER):
        remote.install(STRANGER, version)
        story.say(f"{STRANGER} has skep {version}")
        done = story.do(stranger, "skep", "node", "join", place, code=1)
        _one_line(story, done.error, "versions that cannot meet")
    for name, unit in ((NODES[0], "node"), (SERVERS[-1], "server")):
        machine = story.bed.machines[name]
        machine.stop(unit)
        remote.install(name, AFTER)
        story.say(f"{name} has skep {AFTER}, and its unit is started")
        done = story.do(machine, "skep", unit, "run", code=64)
        _one_line(story, done.error, "versions that cannot meet")
        remote.install(name, NEW)
        machine.start(unit, "skep", unit, "run")
    for part in ("server", "node"):
        done = story.do(first, "skep", part, "upgrade", "--to", AFTER, code=1)
        _one_line(story, done.error, "more than one release away" if part == "server" else "first")


def _one_line(story: Story, text: str, wanted: str) -> None:
    if len(text.splitlines()) != 1 or wanted not in text:
        story.failed.append(f"not one line with {wanted!r}: {text}")


def account(story: Story, first: Machine, jobs: dict[str, str], load: Load, out: Path) -> None:
    """End the counters, and say what became of every job."""
    (out / "over").touch()
    every = {**jobs, **load.jobs}
    # The client turns to the gateways that are up.
    waited = story.do(first, "skep", "wait", *every.values(), shown="skep wait (every job)")
    if waited.code:
        story.failed.append("a job did not succeed")
    found = counted(out)
    if len(found) != sum(workers for _, workers in COUNTERS.values()):
        story.failed.append(f"a counter was begun again: {sorted(found)}")
    for name, numbers in found.items():
        if numbers != list(range(1, len(numbers) + 1)):
            story.failed.append(f"{name} counted with a gap")
    for name, job in jobs.items():
        attempts = story.json(first, "skep", "show", job).get("attempts", [])
        if len(attempts) != 1:
            story.failed.append(f"{name} was begun {len(attempts)} times")
    if len(set(every.values())) != len(every):
        story.failed.append("a job has two keys")
    steps = sum(len(numbers) for numbers in found.values())
    story.say(
        f"{len(jobs)} jobs of {len(found)} workers counted {steps} steps without a gap, each begun "
        f"once; {len(load.jobs)} short jobs were submitted meanwhile, and none is lost"
    )
    story.do(first, "skep", "log", "check")
