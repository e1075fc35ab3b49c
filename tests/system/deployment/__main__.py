"""`python -m tests.system.deployment`: from nothing to a cluster of machines, timed.

    --servers 3 --nodes 4        how many machines; each is a network namespace
    --folder DIR                 where their files are (default: a temporary one)
    --short                      only what no test on loopback shows: without wrong input, renewal
                                 and removal, and with fewer people
    --keep                       leave the files there
    --restore                    instead: a backup, restored on other machines

It types what docs/how-to/servers.md says, and prints each command with what it printed and when.
Exit code 1 if anything did not come as it should, 77 if machines cannot be made here.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.system.deployment.bed import Bed, Machine, missing
from tests.system.deployment.story import WITHIN_S
from tests.system.deployment.story import Story as Typed

GANG = Path(__file__).with_name("meet.py")
SKIPPED = 77
GANG_MAX, NODE_GPUS = 8, 4
PEOPLE = (
    ("ada", "vision", "manager"),
    ("ben", "vision", "submitter"),
    ("cleo", "vision", "viewer"),
    ("dan", "speech", "manager"),
    ("eve", "speech", "submitter"),
)
SHORT = {"ben", "cleo"}
"""Those who type commands."""


class Story(Typed):
    """The story of machines that are network namespaces.

    Args:
        bed: The machines.
        within_s: How long is waited for what has to come (seconds).
    """

    def __init__(self, bed: Bed, within_s: float = WITHIN_S) -> None:
        super().__init__(within_s)
        self.bed = bed


def main(arguments: Sequence[str]) -> int:
    """Tell the story; return the exit code."""
    parser = argparse.ArgumentParser(description="A cluster of machines, from nothing, timed.")
    parser.add_argument("--servers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--restore", action="store_true")
    given = parser.parse_args(arguments)
    from tests.system.deployment import restoring  # It types with what is here.

    if why := missing():
        print(f"skipped: {why}")
        return SKIPPED
    folder = given.folder or Path(tempfile.mkdtemp(prefix="skep-deployment-"))
    servers = [f"server-{number}" for number in range(1, given.servers + 1)]
    nodes = [f"gpu-{number}" for number in range(1, given.nodes + 1)]
    names = restoring.NAMES if given.restore else (*servers, *nodes)
    try:
        with Bed(folder, names) as bed:
            story = Story(bed)
            if given.restore:
                restoring.tell(story, folder)
            else:
                tell(story, servers, nodes, short=given.short)
            story.say("ok" if not story.failed else f"FAILED: {'; '.join(story.failed)}")
            return 1 if story.failed else 0
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)


def tell(story: Story, servers: Sequence[str], nodes: Sequence[str], *, short: bool) -> None:
    """Make servers, nodes and people; run a gang; then lose a server and a node."""
    first = story.bed.machines[servers[0]]
    # More of one VC than a node has: its gang is on several nodes, however few there are.
    speech = len(nodes)
    vision = len(nodes) * NODE_GPUS - speech
    make_servers(story, servers, {"vision": vision, "speech": speech})
    make_nodes(story, first, nodes)
    story.do(first, "skep", "node", "ls")
    people = [one for one in PEOPLE if not short or one[0] in SHORT]
    tokens = make_people(story, first, people)
    run_gang(story, first, tokens, min(GANG_MAX, vision))
    if not short:
        bad_input(story, first, nodes)
        rotate(story, first, nodes)
    if len(servers) > 1:
        lose_server(story, servers)
        replace_server(story, servers)
    story.do(first if len(servers) == 1 else story.bed.machines[servers[1]], "skep", "doctor")


def make_servers(story: Story, servers: Sequence[str], vcs: Mapping[str, int]) -> None:
    """Make the servers, and virtual clusters of so many GPUs."""
    first = story.bed.machines[servers[0]]
    story.do(
        first,
        "skep",
        "server",
        "init",
        "--name",
        "lab",
        "--servers",
        str(len(servers)),
        "--host",
        first.name,
        "--host",
        first.address,
        "--host",
        first.address6,
        *(word for vc, gpus in vcs.items() for word in ("--vc", f"{vc}={gpus}")),
    )
    first.start("server", "skep", "server", "run")
    story.say(f"{first.name}$ systemctl start skep-server    (here: skep server run &)")
    if len(servers) > 1:
        story.until(f"{first.name} can be joined", lambda: _meets(story, first))
    for name in servers[1:]:
        other = story.bed.machines[name]
        token = story.do(first, "skep", "server", "token").out.split()[-1]
        story.do(
            other,
            "skep",
            "server",
            "join",
            token,
            "--host",
            name,
            "--host",
            other.address,
            "--host",
            other.address6,
        )
        other.start("server", "skep", "server", "run")
        story.say(f"{name}$ systemctl start skep-server    (here: skep server run &)")
    _until_all_up(story, first)
    story.do(first, "skep", "server", "status")


def _meets(story: Story, machine: Machine) -> bool:
    rows = story.json(machine, "skep", "server", "status").get("servers", [])
    return any(row["meets"] == "ok" for row in rows)


def make_nodes(story: Story, first: Machine, nodes: Sequence[str]) -> None:
    """Have all nodes join; tell how long each takes to be ready."""
    for number, name in enumerate(nodes):
        machine = story.bed.machines[name]
        token = story.do(first, "skep", "node", "token").out.split()[-1]
        if number == 1:  # One of them knows the server by its address of IPv6 only.
            token = f"{token.rpartition('@')[0]}@[{first.address6}]"
        began = time.monotonic()
        story.do(machine, "skep", "node", "join", token, "--gpus", str(NODE_GPUS))
        machine.start("node", "skep", "node", "run")
        story.until(f"{name} is ready", functools.partial(_is_up, story, first, name))
        story.say(f"{name}: from `join` to ready {time.monotonic() - began:.1f} s")


def _is_up(story: Story, machine: Machine, node: str) -> bool:
    rows = story.json(machine, "skep", "node", "ls").get("nodes", [])
    return any(row["node"] == node and row["state"] == "up" for row in rows)


def make_people(
    story: Story, first: Machine, people: Sequence[tuple[str, str, str]]
) -> dict[str, str]:
    """Make people, each with a role in a VC; return their tokens."""
    tokens = {}
    for person, vc, role in people:
        story.do(first, "skep", "user", "add", person)
        story.do(first, "skep", "role", "grant", person, role, "--vc", vc)
        made = story.json(first, "skep", "token", "create", "laptop", "--person", person)
        tokens[person] = str(made.get("text", ""))
        story.say(f"{first.name}$ skep token create laptop --person {person}")
    return tokens


def as_person(story: Story, first: Machine, token: str) -> dict[str, str]:
    """Return the environment of a person: the gateways, its token, the authority."""
    home = first.folder / "home"
    gateway = json.loads((home / "cluster.json").read_text())["gateway"]
    return {"SKEP_API": gateway["url"], "SKEP_TOKEN": token, "SKEP_CA": gateway["ca"]}


def run_gang(story: Story, first: Machine, tokens: Mapping[str, str], workers: int) -> None:
    """Run a gang over nodes for one person; have others try what they may not."""
    env = as_person(story, first, tokens.get("ben", ""))
    story.do(
        first,
        "skep",
        "run",
        "--vc",
        "vision",
        "--workers",
        str(workers),
        "--gpus",
        "1",
        "--",
        sys.executable,
        str(GANG),
        env=env,
        shown=f"skep run --vc vision --workers {workers} --gpus 1 -- python meet.py    (as ben)",
    )
    story.do(
        first,
        "skep",
        "run",
        "--vc",
        "vision",
        "--",
        "true",
        code=1,
        env=as_person(story, first, tokens.get("cleo", "")),
        shown="skep run --vc vision -- true    (as cleo, a viewer)",
    )
    story.do(first, "skep", "ps", "-a", env=env)


def bad_input(story: Story, first: Machine, nodes: Sequence[str]) -> None:
    """Type what is wrong; each answer is one line."""
    machine = story.bed.machines[nodes[0]]
    elsewhere = {"SKEP_HOME": str(machine.folder / "elsewhere")}
    good = story.json(first, "skep", "node", "token")
    token, place = good["tokens"][0], good["place"]
    story.do(
        machine,
        "skep",
        "node",
        "join",
        f"{token}@{place}",
        "--name",
        nodes[0],
        env=elsewhere,
        code=1,
        shown="skep node join TOKEN (a name that is taken)",
    )
    wrong = token[:-4] + ("0000" if token[-4:] != "0000" else "1111")
    story.do(
        machine,
        "skep",
        "node",
        "join",
        f"{wrong}@{place}",
        env=elsewhere,
        code=1,
        shown="skep node join TOKEN (of another cluster: wrong CA)",
    )
    story.do(
        machine,
        "skep",
        "node",
        "join",
        f"{token}@10.77.0.99",
        env=elsewhere,
        code=4,
        shown="skep node join TOKEN@10.77.0.99 (no such host)",
    )
    expired = story.json(first, "skep", "node", "token", "--valid", "0.01")
    time.sleep(1.0)
    if expired.get("tokens"):
        story.do(
            machine,
            "skep",
            "node",
            "join",
            f"{expired['tokens'][0]}@{place}",
            "--name",
            "late",
            env=elsewhere,
            code=1,
            shown="skep node join TOKEN (that expired)",
        )


def rotate(story: Story, first: Machine, nodes: Sequence[str]) -> None:
    """Rotate certificates of a server and a node without a stop, and revoke the last node."""
    story.do(first, "skep", "server", "rotate-certs")
    story.do(story.bed.machines[nodes[0]], "skep", "node", "renew")
    gone = nodes[-1]
    story.do(first, "skep", "node", "remove", gone)
    log = story.bed.machines[gone].folder / "home" / "agent" / "service.log"
    story.until(
        f"{gone} is cut off the bus", lambda: '"stopped"' in log.read_text(errors="replace"), 10.0
    )
    story.bed.machines[gone].stop("node")


def lose_server(story: Story, servers: Sequence[str]) -> None:
    """Power the first server off; go on by the others; bring it back."""
    first, second = (story.bed.machines[name] for name in servers[:2])
    first.power_off()
    story.say(f"{first.name}: power off")
    story.until(
        "a job runs again",
        lambda: second.do("skep", "run", "--vc", "speech", "--", "true").code == 0,
    )
    story.do(second, "skep", "run", "--vc", "speech", "--", "echo", "still here")
    story.do(second, "skep", "server", "status")
    first.start("server", "skep", "server", "run")
    story.say(f"{first.name}: power on")
    _until_all_up(story, second)


def replace_server(story: Story, servers: Sequence[str]) -> None:
    """Lose the last server with its disk; have a new machine take its place."""
    second, last = story.bed.machines[servers[1]], story.bed.machines[servers[-1]]
    last.power_off()
    shutil.rmtree(last.folder / "home")
    story.say(f"{last.name}: the machine is gone, with its disk")
    token = story.do(second, "skep", "server", "token").out.split()[-1]
    story.do(last, "skep", "server", "join", token, "--replace", last.name, "--host", last.name,
             "--host", last.address, "--host", last.address6)  # fmt: skip
    last.start("server", "skep", "server", "run")
    _until_all_up(story, second)
    story.do(second, "skep", "run", "--vc", "speech", "--", "echo", "all of it is there")
    story.do(last, "skep", "ps", "-a")


def _until_all_up(story: Story, machine: Machine) -> None:
    def all_up() -> bool:
        rows = story.json(machine, "skep", "server", "status").get("servers", [])
        return bool(rows) and all(row["gateway"] == "ok" for row in rows)

    story.until("all servers are up", all_up)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
