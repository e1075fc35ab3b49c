"""`python -m tests.system.deployment.units`: the units under a real systemd, timed.

    --servers 1 --nodes 2    how many machines; each is a container with systemd (1 or 3 servers)
    --base IMAGE             what the machines' image is built on
    --image IMAGE            a machine that has Skep in /opt/skep already: nothing is installed
    --keep-image NAME        keep such an image

It types what docs/how-to/servers.md says, and prints each command with what it printed and when.
Then it kills, stops, hangs and reboots what the units run, and takes everything away again.
Exit code 1 if anything did not come as it should, 77 if such machines cannot be made here.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.system.deployment import containers
from tests.system.deployment.containers import Containers, Machine
from tests.system.deployment.story import ANY, Story
from tools import engine, image

MEET = Path(__file__).with_name("meet.py")
SKIPPED = 77
SLOTS = 4
PERSON, VC = "ada", "vision"
SCRIPT, CA = "/srv/meet.py", "/srv/ca.pem"
SERVER, NODE, LAUNCHER = "skep-server", "skep-node", "skep-launcher"
SLEEP_S = 86_411
"""How long the job sleeps that nothing may stop; by it its process is found."""
SLOW_S = 180.0
"""A machine that starts with many others has little of the processors."""
WATCHDOG_SEEN_S = 90.0
"""30 s of silence, then the unit's stop and start."""


class Cast(NamedTuple):
    """The machines by what they are."""

    servers: list[Machine]
    nodes: list[Machine]

    @property
    def head(self) -> Machine:
        """Return the server that commands are typed on."""
        return self.servers[0]

    @property
    def every(self) -> list[Machine]:
        """Return all machines."""
        return [*self.servers, *self.nodes]


def main(arguments: Sequence[str]) -> int:
    """Tell the story; return the exit code."""
    parser = argparse.ArgumentParser(description="The units under a real systemd, timed.")
    parser.add_argument("--servers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--base", default=engine.BASE)
    parser.add_argument("--image", default="")
    parser.add_argument("--keep-image", default="")
    given = parser.parse_args(arguments)
    if why := containers.missing():
        print(f"skipped: {why}")
        return SKIPPED
    story = Story()
    try:
        made = given.image or _installed(story, given.base, given.keep_image)
        servers = ["head", "head2", "head3"][: given.servers]
        nodes = [f"gpu-{number}" for number in range(1, given.nodes + 1)]
        with Containers([*servers, *nodes], made) as bed:
            for machine in bed.machines.values():
                machine.start()
            story.say(f"{len(bed.machines)} machines are up")
            every = bed.machines
            tell(story, Cast([every[one] for one in servers], [every[one] for one in nodes]))
    except engine.EngineError as error:
        story.failed.append(str(error))
    story.say("ok" if not story.failed else f"FAILED: {'; '.join(story.failed)}")
    return 1 if story.failed else 0


def _installed(story: Story, base: str, name: str) -> str:
    """Install Skep as the how-to says; return the image of a machine that has it."""
    made = containers.make_image(base)
    image.gather("", image.PYTHON)
    name = name or "skep-installed:units"
    with Containers(["disk"], made) as bed:
        machine = bed.machines["disk"]
        machine.start()
        machine.put("/etc/pip.conf", "[global]\nno-index = true\nfind-links = /wheels\n")
        for line in (
            "python3 -m venv /opt/skep",
            "/opt/skep/bin/pip install --quiet /wheels/skep-*.whl",
            "ln -s /opt/skep/bin/skep /usr/local/bin/skep",
        ):
            story.do(machine, "sh", "-c", line, shown=line)
        containers.docker("commit", machine.container, name)
    return name


def tell(story: Story, cast: Cast) -> None:
    """Follow the how-to; then do what happens to machines."""
    make_servers(story, cast)
    make_nodes(story, cast)
    env = make_person(story, cast)
    run_gang(story, cast, env)
    look_at_ports(story, cast)
    look_at_rights(story, cast)
    job = start_job(story, cast, env)
    leave_the_job_alone(story, cast, job)
    hang(story, cast, job)
    look_at_journals(story, cast)
    reboot(story, cast, job)
    for machine in (cast.head, cast.nodes[0]):
        home = () if machine is cast.head else ("--home", "/var/lib/skep-node")
        story.do(machine, "skep", "doctor", *home, code=ANY)
    uninstall(story, cast, job)


# --- as the how-to says ---------------------------------------------------------------------------


def make_servers(story: Story, cast: Cast) -> None:
    """Make the servers."""
    size = len(cast.servers)
    story.do(cast.head, "skep", "server", "init", "--name", "lab", "--servers", str(size),
             "--vc", f"{VC}={SLOTS * len(cast.nodes)}")  # fmt: skip
    story.do(cast.head, "skep", "server", "install", "--start")
    for other in cast.servers[1:]:
        token = story.do(cast.head, "skep", "server", "token").out.split()[-1]
        story.do(other, "skep", "server", "join", token)
        story.do(other, "skep", "server", "install", "--start")
    story.until("all servers are up", functools.partial(_servers_up, story, cast), SLOW_S)
    story.do(cast.head, "skep", "server", "status")


def _servers_up(story: Story, cast: Cast) -> bool:
    rows = story.json(cast.head, "skep", "server", "status").get("servers", [])
    up = [row for row in rows if row["gateway"] == row["bus"] == "ok"]
    return len(up) == len(cast.servers)


def make_nodes(story: Story, cast: Cast) -> None:
    """Have all nodes join."""
    tokens = story.do(cast.head, "skep", "node", "token", "--count", str(len(cast.nodes)))
    for line, node in zip(tokens.out.splitlines(), cast.nodes, strict=True):
        # The accounts of people are on the nodes, as the how-to about jobs kept apart says.
        story.do(node, "useradd", "--create-home", PERSON)
        story.do(node, *line.split(), "--device", "cpu", "--gpus", str(SLOTS))
        story.do(node, "skep", "node", "install", "--launcher", "--start")
        node.put(SCRIPT, MEET.read_text(encoding="utf-8"))
    story.until("all nodes are up", functools.partial(_nodes_up, story, cast), SLOW_S)
    story.do(cast.head, "skep", "node", "ls")


def _nodes_up(story: Story, cast: Cast) -> bool:
    rows = story.json(cast.head, "skep", "node", "ls").get("nodes", [])
    return len([row for row in rows if row["state"] == "up"]) == len(cast.nodes)


def make_person(story: Story, cast: Cast) -> dict[str, str]:
    """Make a person; return its environment."""
    story.do(cast.head, "skep", "user", "add", PERSON)
    story.do(cast.head, "skep", "role", "grant", PERSON, "submitter", "--vc", VC)
    made = story.json(cast.head, "skep", "token", "create", "laptop", "--person", PERSON)
    story.say(f"{cast.head.name}$ skep token create laptop --person {PERSON}")
    cast.head.put(CA, cast.head.do("cat", "/var/lib/skep/tls/ca.pem").out)
    urls = ",".join(f"https://{one.name}:8470" for one in cast.servers)
    return {"SKEP_API": urls, "SKEP_TOKEN": str(made.get("text", "")), "SKEP_CA": CA}


def run_gang(story: Story, cast: Cast, env: Mapping[str, str]) -> None:
    """Run a gang over all nodes as the person's account."""
    workers = SLOTS * len(cast.nodes)
    done = story.do(
        cast.head, "skep", "run", "--vc", VC, "--workers", str(workers), "--gpus", "1",
        "--rank", "all", "--", "sh", "-c", f"id -un; exec python3 {SCRIPT}",
        env=env, shown=f"skep run --vc {VC} --workers {workers} -- ... meet.py    (as {PERSON})",
    )  # fmt: skip
    names = re.findall(rf"\b{PERSON}$", done.out, re.MULTILINE)
    story.check(f"{workers} ranks are the account {PERSON}'s and met", holds=(
        len(names) == workers and f"rank 0 of {workers} met" in done.out
    ), found=f"{len(names)} of them")  # fmt: skip


# --- what can be seen -----------------------------------------------------------------------------


def look_at_ports(story: Story, cast: Cast) -> None:
    """Compare what listens with what `skep server ports` says."""
    told = story.do(cast.head, "skep", "server", "ports", "--json").out
    rows = json.loads(told)["ports"]
    for machine in (cast.head, cast.nodes[0]):
        listing = story.do(machine, "ss", "-ltnpH").out
        found = sorted(set(_open_ports(listing)))
        kind = "server" if machine is cast.head else "node"
        ranges = [row["ports"] for row in rows if row["machine"] == kind]
        single = sorted(int(one) for one in ranges if "-" not in one)
        story.check(f"{machine.name} listens to others on {found} only, as documented",
                    holds=found == single, found=f"documented: {single}")  # fmt: skip


def _open_ports(listing: str) -> list[int]:
    places = [line.split()[3] for line in listing.splitlines() if line]
    open_ = [one for one in places if not one.startswith(("127.", "[::1]"))]
    return [int(one.rpartition(":")[2]) for one in open_]


def look_at_rights(story: Story, cast: Cast) -> None:
    """Print how exposed the units are, and look whether the agent may use GPUs."""
    for machine, unit in (
        (cast.head, SERVER), (cast.nodes[0], NODE), (cast.nodes[0], LAUNCHER),
    ):  # fmt: skip
        done = machine.do("systemd-analyze", "security", "--no-pager", unit)
        story.say(f"{machine.name}: {done.out.strip().splitlines()[-1].lstrip('→ ')}")
    node = cast.nodes[0]
    pid = _main_pid(node, NODE)
    # In the unit's control group; the device has no driver: "No such device" is a yes.
    probe = (
        "for group in $(sed -n 's/^[0-9]*:devices:/\\/sys\\/fs\\/cgroup\\/devices/p' "
        f"/proc/{pid}/cgroup); do echo $$ >$group/cgroup.procs; done; cat /dev/nvidia0"
    )
    told = node.do("sh", "-c", probe).error.strip()
    story.check("the agent's unit lets it use GPUs", holds="No such device" in told, found=told)


def look_at_journals(story: Story, cast: Cast) -> None:
    """Look whether each unit's journal says what happened."""
    for machine, unit in (
        (cast.head, SERVER), (cast.nodes[0], NODE), (cast.nodes[0], LAUNCHER),
    ):  # fmt: skip
        lines = machine.do("journalctl", "--unit", unit, "--output", "cat").out.splitlines()
        own = [one for one in lines if "skep" in one and "systemd" not in one]
        story.check(f"{machine.name}: the journal of {unit} has {len(own)} lines of its own",
                    holds=len(own) > 0)  # fmt: skip


# --- what happens to machines ---------------------------------------------------------------------


class Job(NamedTuple):
    """A job that sleeps, the person's environment, and its node."""

    id: str
    env: Mapping[str, str]
    node: Machine


def start_job(story: Story, cast: Cast, env: Mapping[str, str]) -> Job:
    """Start a job that nothing may stop; return it."""
    done = story.do(
        cast.head, "skep", "run", "--vc", VC, "--detach", "--", "sleep", str(SLEEP_S), env=env
    )
    job = next(iter(re.findall(r"\bj\d+\b", done.out + done.error)), "")
    story.until(f"{job} sleeps", lambda: any(_pid_of_job(one) for one in cast.nodes), SLOW_S)
    node = next((one for one in cast.nodes if _pid_of_job(one)), cast.nodes[0])
    account = node.do("ps", "-o", "user=", "-p", _pid_of_job(node) or "1").out.strip()
    story.check(f"{job} runs on {node.name} as {account}", holds=account == PERSON)
    return Job(job, env, node)


def leave_the_job_alone(story: Story, cast: Cast, job: Job) -> None:
    """Stop, start, reload, kill and restart each unit; the job goes on in the same process."""
    node, pid = job.node, _pid_of_job(job.node)

    def goes_on(after: str) -> None:
        story.check(f"{job.id} goes on after {after}", holds=_pid_of_job(node) == pid != "")

    story.do(node, "systemctl", "stop", NODE)
    goes_on(f"systemctl stop {NODE}")
    story.do(node, "systemctl", "start", NODE)
    goes_on(f"systemctl start {NODE}")
    before = _main_pid(node, LAUNCHER)
    story.do(node, "systemctl", "reload", LAUNCHER)
    goes_on(f"systemctl reload {LAUNCHER}")
    story.check("the launcher is the same process", holds=before == _main_pid(node, LAUNCHER))
    for machine, unit in ((node, NODE), (node, LAUNCHER), (cast.head, SERVER)):
        before = _main_pid(machine, unit)
        story.do(machine, "kill", "-9", before, shown=f"kill -9 (main process of {unit})")
        story.until(
            f"systemd has started {unit} again",
            functools.partial(_is_another, machine, unit, before),
            SLOW_S,
        )
        goes_on(f"kill -9 of {unit}")
    story.do(cast.head, "systemctl", "restart", SERVER)
    goes_on(f"systemctl restart {SERVER}")
    story.until("all servers are up", functools.partial(_servers_up, story, cast), SLOW_S)
    story.until("all nodes are up", functools.partial(_nodes_up, story, cast), SLOW_S)
    runs(story, cast, job, attempts=1)


def runs(story: Story, cast: Cast, job: Job, attempts: int) -> None:
    """Look whether the cluster knows the job as running in its attempt of this number."""
    told: dict[str, Any] = {}

    def known() -> bool:
        told.update(story.json(cast.head, "skep", "show", job.id))
        return told.get("state") == "running"

    story.until(f"{job.id} is running, by the cluster", known, SLOW_S)
    found = told.get("attempt", told.get("gen"))
    story.check(f"it is attempt {found}", holds=found == attempts, found=f"{told}"[:300])


def hang(story: Story, cast: Cast, job: Job) -> None:
    """Stop the main process of each unit for good: the watchdog starts it again."""
    pid = _pid_of_job(job.node)
    places = ((job.node, NODE), (job.node, LAUNCHER), (cast.head, SERVER))
    before = [_main_pid(*place) for place in places]
    for (machine, unit), main_pid in zip(places, before, strict=True):
        story.do(machine, "kill", "-STOP", main_pid, shown=f"kill -STOP (main process of {unit})")
    for (machine, unit), main_pid in zip(places, before, strict=True):
        story.until(
            f"the watchdog has started {unit} again",
            functools.partial(_is_another, machine, unit, main_pid),
            WATCHDOG_SEEN_S + SLOW_S,
        )
    story.check(f"{job.id} goes on", holds=_pid_of_job(job.node) == pid != "")
    story.until("all servers are up", functools.partial(_servers_up, story, cast), SLOW_S)
    story.until("all nodes are up", functools.partial(_nodes_up, story, cast), SLOW_S)
    runs(story, cast, job, attempts=1)


def reboot(story: Story, cast: Cast, job: Job) -> None:
    """Reboot a server, then the job's node: all is back, and the job has another attempt."""
    pid = _pid_of_job(job.node)
    story.say(f"{cast.head.name}: reboot")
    cast.head.reboot()
    story.until("all servers are up", functools.partial(_servers_up, story, cast), SLOW_S)
    story.check(f"{job.id} goes on", holds=_pid_of_job(job.node) == pid != "")
    story.say(f"{job.node.name}: reboot")
    job.node.reboot()
    story.until("all nodes are up", functools.partial(_nodes_up, story, cast), SLOW_S)
    story.until(
        f"{job.id} sleeps again", lambda: any(_pid_of_job(one) for one in cast.nodes), SLOW_S
    )
    runs(story, cast, job, attempts=2)


def uninstall(story: Story, cast: Cast, job: Job) -> None:
    """Take a node and then a server away, as the how-to says; nothing of them is left."""
    node = next((one for one in cast.nodes if _pid_of_job(one)), job.node)
    story.do(cast.head, "skep", "node", "drain", node.name)
    story.do(cast.head, "skep", "cancel", job.id, env=job.env)
    story.until(f"{job.id} has ended", lambda: not _pid_of_job(node), SLOW_S)
    story.do(cast.head, "skep", "node", "remove", node.name)
    for machine, units, rest in (
        (node, f"{NODE} {LAUNCHER}", "/etc/skep /var/lib/skep-node /var/lib/skep-launcher"),
        (cast.head, SERVER, "/var/lib/skep"),
    ):
        files = " ".join(f"/etc/systemd/system/{one}.service" for one in units.split())
        story.do(machine, "systemctl", "disable", "--now", *units.split())
        for line in (f"rm -r {files} {rest} /opt/skep /usr/local/bin/skep",
                     "systemctl daemon-reload"):  # fmt: skip
            story.do(machine, "sh", "-c", line, shown=line)
        left = machine.do("pgrep", "-af", "skep").out.strip()
        story.check(f"no process is left on {machine.name}", holds=not left, found=left)
        ports = machine.do("ss", "-ltnpH").out
        story.check(f"nothing listens on {machine.name}", holds=not _open_ports(ports), found=ports)


def _main_pid(machine: Machine, unit: str) -> str:
    return machine.do("systemctl", "show", "--property", "MainPID", "--value", unit).out.strip()


def _is_another(machine: Machine, unit: str, before: str) -> bool:
    state = machine.do("systemctl", "is-active", unit).out.strip()
    return state == "active" and _main_pid(machine, unit) not in ("0", before)


def _pid_of_job(machine: Machine) -> str:
    return machine.do("pgrep", "-fx", f"sleep {SLEEP_S}").out.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
