"""What a job of one person tries on a node with a launcher, and how each attempt is refused.

Mallory's jobs and Ada's run at the same time, as the accounts that the launcher gave them. The last
part is a taken-over agent: it may ask the launcher for anything. `-s` shows every refusal.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import socket
import textwrap
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from skep_services.adapters.launcher_runtime import LauncherRuntime
from skep_services.agent import runner
from skep_services.launcher.policy import DYNAMIC_FIRST
from skep_services.ports import NodeRuntime, RunExited, RunStarted
from tests.launcher_kit import LauncherNode, LauncherUnderTest, launcher
from tests.node_runtimes import alive, started, until

pytestmark = [pytest.mark.needs("root"), pytest.mark.adapters]

POLICY = """
[accounts]
mode = "dynamic"
[limits]
memory = "256M"
pids = 64
scratch = "8M"
shared_memory = "16M"
copies = "8M"
[devices]
nodes = ["/dev/fuse"]
"""
KEYCTL, ADD_KEY = (250, 248) if platform.machine() == "x86_64" else (219, 217)
SAY = """
import ctypes, errno, glob, os, resource, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, call, *arguments):
    try:
        found = call(*arguments)
    except OSError as error:
        print(f"{what}: refused: {error.strerror}", flush=True)
    else:
        print(f"{what}: DONE {str(found)[:200]!r}", flush=True)
def system(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def read(path):
    with open(path, "rb") as file: return file.read(100)
def write(path, text="x"):
    with open(path, "w") as file: file.write(text)
"""


class Attack:
    """The node with both persons' runs; the victim sleeps in it."""

    def __init__(self, one: LauncherUnderTest) -> None:
        self.launcher = one
        self.node = LauncherNode(one, "mallory")
        self.runtime: NodeRuntime
        self.victim: RunStarted
        self.count = 0

    async def begin(self) -> None:
        self.runtime = await self.node.open()
        self.node.owner = "ada"
        script = "import os, time; os.umask(0); open('/tmp/mine', 'w').write('secret of ada')\n"
        script += "open(os.environ['SKEP_CHECKPOINTS'] + '/one', 'w').write('weights of ada')\n"
        script += "print('log of ada', flush=True); time.sleep(1000)"
        plan = self.plan("ada-job", script, {"SKEP_RANK_SECRET": "secret of ada"})
        self.victim = await started(self.runtime, plan)
        await self.node.words("ada-job")
        self.node.owner = "mallory"

    def plan(self, token: str, script: str, env: dict[str, str] | None = None) -> Any:
        import msgspec

        checkpoints = str(self.launcher.jobs / "checkpoints" / token)
        made = self.node.python(token, script)
        told = {**made.env, "SKEP_CHECKPOINTS": checkpoints, **(env or {})}
        return msgspec.structs.replace(made, env=told, checkpoints=checkpoints)

    async def tries(self, script: str, **fields: Any) -> list[str]:
        """Return what a run of Mallory says of its attempts, and show it."""
        import msgspec

        self.count += 1
        token = f"{self.node.owner}-{self.count}"
        plan = self.plan(token, SAY + textwrap.dedent(script))
        await started(self.runtime, msgspec.structs.replace(plan, **fields))
        self.end: RunExited = await self.node.end_of(token)
        lines = self.node.log(token).splitlines()
        print(*lines, sep="\n")
        assert alive(self.victim.pid), "the victim goes on"
        return lines

    async def refused(self, script: str, **fields: Any) -> list[str]:
        """Return the lines of attempts, each of which is refused."""
        lines = await self.tries(script, **fields)
        assert lines
        assert not [line for line in lines if "refused" not in line], lines
        return lines

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the launcher's answer to a request of a taken-over agent."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(20)
            one.connect(str(self.launcher.socket))
            text = json.dumps({"id": 1, **request}).encode()
            one.sendall(runner.LENGTH.pack(len(text)) + text)
            (length,) = runner.LENGTH.unpack(one.recv(4, socket.MSG_WAITALL))
            answer: dict[str, Any] = json.loads(one.recv(length, socket.MSG_WAITALL))
        print(answer.get("not_started") or answer.get("error") or answer)
        return answer

    def start(self, **fields: Any) -> str:
        """Return why the launcher does not start a run."""
        answer = self.ask(do="start", plan={**self.evil(), **fields})
        assert "started" not in answer, answer
        return str(answer["not_started"])

    def evil(self) -> dict[str, Any]:
        """Return the plan of a run of Mallory's."""
        return {
            "token": "evil",
            "job": "evil",
            "owner": "mallory",
            "vc": "nlp",
            "argv": ["/bin/sh", "-c", "id"],
            "env": {},
            "workdir": "/",
            "script": "",
            "log_path": str(self.launcher.jobs / "logs" / "evil" / "rank0.log"),
            "log_bytes_max": 1 << 20,
            "device_nodes": [],
            "checkpoints": "",
        }


@pytest.fixture(scope="module")
def served() -> Iterator[LauncherUnderTest]:
    libc = ctypes.CDLL(None)
    libc.syscall(KEYCTL, 1, None)  # What begins from now on has one session's keyring.
    libc.syscall(ADD_KEY, b"user", b"launcher", b"secret", 6, -3)
    with launcher(POLICY) as one:
        yield one


@pytest_asyncio.fixture
async def attack(served: LauncherUnderTest) -> AsyncIterator[Attack]:
    shutil.rmtree(served.folder / "work", ignore_errors=True)
    one = Attack(served)
    await one.begin()
    try:
        yield one
    finally:
        await one.runtime.stop("ada-job", 0.0)
        await one.node.end_of("ada-job")
        for run in await one.runtime.runs():
            await one.runtime.forget(run.token)
        await one.runtime.close()
        for place in list((served.jobs / "logs").iterdir()):
            place.unlink() if place.is_symlink() else shutil.rmtree(place)


@pytest.mark.asyncio
async def test_files_of_others(attack: Attack) -> None:
    one = attack.launcher
    secret = attack.node.folder / "state" / "credentials"
    secret.parent.mkdir(mode=0o700, exist_ok=True)
    secret.write_text("token of the agent")
    secret.chmod(0o600)
    jobs = one.jobs
    await attack.refused(f"""
        attempt("the agent's credentials", read, {str(secret)!r})
        attempt("the launcher's state", os.listdir, {str(one.state)!r})
        attempt("the table of accounts", write, "{one.state}/uids.json")
        attempt("the log of another person", read, "{jobs}/logs/ada-job/rank0.log")
        attempt("the logs' folder", write, "{jobs}/logs/ada-job/fake.log")
        attempt("the checkpoints of another person", os.listdir, "{jobs}/checkpoints/ada-job")
        attempt("a checkpoint of another person", read, "{jobs}/checkpoints/ada-job/one")
        attempt("the scratch of another person", read, "{jobs}/scratch/ada-job/tmp/mine")
        attempt("the agent's place for its socket", os.mknod, "{jobs}/sock/fake")
        attempt("what jobs import", write, "{jobs}/lib/evil.py")
        attempt("the policy", write, {str(one.config)!r})
    """)
    own = await attack.tries("""
        attempt("its own log", read, "/proc/self/fd/1")
        attempt("its own checkpoints", write, os.environ["SKEP_CHECKPOINTS"] + "/x")
        attempt("its own /tmp", write, "/tmp/mine")
        print(sorted(os.listdir("/tmp")), os.stat("/tmp").st_uid, os.getuid())
    """)
    uid = DYNAMIC_FIRST + 1
    assert own[-1] == f"['mine'] {uid} {uid}"
    assert [line for line in own[:3] if "refused" in line] == []


@pytest.mark.asyncio
async def test_processes_of_others(attack: Attack) -> None:
    assert attack.launcher.process is not None
    root = attack.launcher.process.pid
    lines = await attack.refused(f"""
        victim = {attack.victim.pid}
        attempt("the environment of another's process", read, f"/proc/{{victim}}/environ")
        attempt("the command line of another's process", read, f"/proc/{{victim}}/cmdline")
        attempt("the memory of another's process", read, f"/proc/{{victim}}/mem")
        attempt("a signal to another's job", os.kill, victim, signal.SIGKILL)
        attempt("tracing another's job", system, "ptrace", 16, victim, 0, 0)
        attempt("a signal to the launcher", os.kill, {root}, signal.SIGTERM)
        attempt("more priority", os.nice, -5)
        attempt("a limit raised", system, "prlimit", victim, 7, 0, 0)
    """)
    assert len(lines) == 8
    seen = await attack.tries("""
        print(sum(name.isdecimal() and os.stat("/proc/" + name).st_uid != os.getuid()
                  for name in os.listdir("/proc")))
        attempt("a signal to all", os.kill, -1, signal.SIGKILL)
    """)
    assert seen == ["0", "a signal to all: refused: No such process"]
    assert attack.end.code == 0, "a signal to all reaches nobody but its sender's own"


@pytest.mark.asyncio
async def test_another_job_of_the_same_account(attack: Attack) -> None:
    """Accounts do not keep two jobs of a person apart: their PID namespaces do."""
    attack.node.owner = "ada"
    script = """
        victim = {victim}
        attempt("the environment of a person's other job", read, f"/proc/{{victim}}/environ")
        attempt("a signal to a person's other job", os.kill, victim, signal.SIGKILL)
        attempt("tracing a person's other job", system, "ptrace", 16, victim, 0, 0)
        attempt("a signal to all", os.kill, -1, signal.SIGKILL)
        attempt("the init of the namespace", read, "/proc/1/environ")
        attempt("an end of the namespace", os.kill, 1, signal.SIGKILL)
        attempt("the namespace of the machine", os.open, "/proc/1/ns/pid", os.O_RDONLY)
    """
    lines = await attack.refused(script.format(victim=attack.victim.pid))
    assert len(lines) == 7
    seen = await attack.tries("""
        print(*(name for name in os.listdir("/proc") if name.isdecimal()), os.getpid())
    """)
    assert len(set(seen[0].split())) == 1, "a job sees itself only"


@pytest.mark.asyncio
async def test_ways_to_root(attack: Attack) -> None:
    program = attack.node.folder / "id-as-root"
    shutil.copyfile("/usr/bin/id", program)
    program.chmod(0o4755)
    lines = await attack.tries(f"""
        attempt("becoming root", os.setuid, 0)
        attempt("another group", os.setgroups, [0])
        attempt("a mount", system, "mount", b"none", b"/mnt", b"tmpfs", 0, None)
        attempt("taking the own /tmp away", system, "umount2", b"/tmp", 2)
        attempt("a device", os.mknod, "/tmp/disk", 0o060666, os.makedev(254, 0))
        attempt("another root", os.chroot, "/tmp")
        attempt("the launcher's mounts", system, "setns", 0, 0)
        attempt("a module of the kernel", system, "syscall", 175, 0, 0, b"")
        for what, place in (("the container engine", "/run/docker.sock"),
                            ("the launcher's socket", {str(attack.launcher.socket)!r})):
            attempt(what, socket.socket(socket.AF_UNIX).connect, place)
        attempt("a raw socket", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
        said = subprocess.run([{str(program)!r}, "-u"], capture_output=True, text=True)
        print("a setuid program: refused: it runs as", said.stdout.strip())
        status = open("/proc/self/status").read()
        print("capabilities: refused:", *[each.split()[1] for each in status.splitlines()
              if each.startswith(("Cap", "NoNewPrivs"))])
        print("groups: refused:", os.getgroups(), os.getgid())
    """)
    assert not [line for line in lines if "refused" not in line], lines
    uid = DYNAMIC_FIRST + 1
    assert lines[-3].endswith(f"runs as {uid}")
    assert lines[-2].endswith(" ".join(["0" * 16] * 5 + ["1"])), "nothing is left, nothing comes"
    assert lines[-1].endswith(f"[] {uid}")


@pytest.mark.asyncio
async def test_a_user_namespace_takes_nothing_of_its_view_away(attack: Attack) -> None:
    lines = await attack.tries(f"""
        attempt("a user namespace", system, "unshare", 0x10000000 | 0x20000)
        for place in (b"/proc", b"/tmp", b"/dev/shm", {str(attack.launcher.state)!r}.encode()):
            attempt("a mount taken away " + place.decode(), system, "umount2", place, 2)
        attempt("the launcher's state", os.listdir, {str(attack.launcher.state)!r})
        attempt("another's log", read, "{attack.launcher.jobs}/logs/ada-job/rank0.log")
        attempt("another's environment", read, "/proc/{attack.victim.pid}/environ")
    """)
    assert not [line for line in lines[1:] if "refused" not in line], lines


@pytest.mark.asyncio
async def test_keys_of_others(attack: Attack) -> None:
    """A launcher has a keyring, as each service of systemd has; no job has the launcher's."""
    keys = """
        def keyctl(number, *arguments):
            found = libc.syscall(number, *arguments)
            if found < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            return found
    """
    attack.node.owner, attack.count = "ada", 100  # A job has one owner.
    lines = await attack.tries(
        f"""{keys}
        print("kept:", keyctl({ADD_KEY}, b"user", b"mine", b"secret of ada", 13, -3))
        print("found:", keyctl({KEYCTL}, 10, -3, b"user", b"mine", 0))
        """
    )
    assert len(lines) == 2, lines
    assert lines[0].split()[1] == lines[1].split()[1], "its own it finds"
    attack.node.owner = "mallory"
    await attack.refused(f"""{keys}
        attempt("a key of Ada's", keyctl, {KEYCTL}, 10, -3, b"user", b"mine", 0)
        attempt("the launcher's key", keyctl, {KEYCTL}, 10, -3, b"user", b"launcher", 0)
    """)


@pytest.mark.asyncio
async def test_devices(attack: Attack) -> None:
    await attack.refused("""
        attempt("another's device", lambda: os.open("/dev/fuse", os.O_RDWR))
        attempt("the kernel's messages", lambda: os.open("/dev/kmsg", os.O_RDONLY))
        for disk in glob.glob("/dev/[sv]d*")[:1]:
            attempt("a disk", lambda: os.open(disk, os.O_RDONLY))
    """)
    lines = await attack.tries(
        """
        attempt("its own device", lambda: os.close(os.open("/dev/fuse", os.O_RDWR)))
        for usual in ("null", "zero", "full", "random", "urandom", "ptmx"):
            attempt(usual, lambda: os.close(os.open("/dev/" + usual, os.O_RDWR | os.O_NOCTTY)))
        """,
        device_nodes=("/dev/fuse",),
    )
    assert not [line for line in lines if "DONE" not in line], lines
    assert "bad-device" in attack.start(device_nodes=["/dev/kmsg"])
    assert "bad-device" in attack.start(device_nodes=["/dev/../dev/fuse"])


@pytest.mark.asyncio
async def test_control_groups(attack: Attack) -> None:
    await attack.refused("""
        own = {}
        for line in open("/proc/self/cgroup"):
            number, names, path = line.strip().split(":", 2)
            own[names] = path
        for place in glob.glob("/sys/fs/cgroup/*/cgroup.procs") + ["/sys/fs/cgroup/cgroup.procs"]:
            attempt("leaving for " + place, write, place, "0")
        for place in glob.glob("/sys/fs/cgroup/*" + own.get("pids", "")):
            for name in ("pids.max", "memory.limit_in_bytes", "memory.max", "cgroup.procs"):
                attempt("a limit raised " + name, write, place + "/" + name, "0")
    """)


@pytest.mark.asyncio
async def test_a_fork_bomb_ends_at_its_bound(attack: Attack) -> None:
    (line, *_) = await attack.tries("""
        count = 0
        try:
            while count < 10_000:
                if os.fork() == 0: time.sleep(1000)
                count += 1
        except OSError as error:
            print(f"process {count + 2}: refused: {error.strerror}", flush=True)
    """)
    assert line == "process 65: refused: Resource temporarily unavailable"
    assert attack.end.leftovers == 63


@pytest.mark.asyncio
async def test_a_memory_hog_dies_alone(attack: Attack) -> None:
    lines = await attack.tries("""
        held = []
        while True: held.append(b"x" * (8 << 20))
    """)
    assert attack.end.code == -9
    assert lines[-1].startswith("[skep] memory-exceeded: the job outgrew its 268435456 bytes")
    assert attack.end.exceeded.startswith("memory-exceeded: ")


@pytest.mark.asyncio
async def test_shared_memory_and_scratch_are_bounded(attack: Attack) -> None:
    await attack.refused("""
        attempt("too much shared memory", write, "/dev/shm/x", "x" * (32 << 20))
    """)
    lines = await attack.tries("""
        with open("/tmp/x", "wb") as file:
            file.write(b"x" * (16 << 20))
        time.sleep(1000)
    """)
    assert "scratch-exceeded: /tmp holds more than 8388608 bytes" in lines[-1]
    assert attack.end.exceeded == "scratch-exceeded: /tmp holds more than 8388608 bytes"
    assert (attack.end.code, attack.end.asked) == (-15, False), "it is the job's own fault"
    scratch = attack.launcher.jobs / "scratch"
    await until(lambda: [each.name for each in scratch.iterdir()] == ["ada-job"])


@pytest.mark.asyncio
async def test_copies_in_memory_of_others(attack: Attack) -> None:
    place = attack.launcher.jobs / "copies"
    attack.node.owner = "ada"
    own = f"write('{place}/ada-1/one', 'state of ada'); os.chmod('{place}/ada-1/one', 0o777)"
    assert await attack.tries(own, copies=True) == []
    found = (place / "ada-1").stat()
    assert found.st_dev != attack.launcher.jobs.stat().st_dev, "it is in memory"
    assert (found.st_mode & 0o777, found.st_uid) == (0o700, DYNAMIC_FIRST)
    attack.node.owner = "mallory"
    await attack.refused(
        f"""
        copies = "{place}"
        attempt("to list jobs with copies", os.listdir, copies)
        attempt("a copy of ada's", read, copies + "/ada-1/one")
        attempt("a file in place of it", write, copies + "/ada-1/one")
        attempt("a folder of another job", os.mkdir, copies + "/j9")
        attempt("ada's folder away", os.rename, copies + "/ada-1", copies + "/mallory-2/x")
        attempt("more than all jobs may have", write, copies + "/mallory-2/x", "x" * (16 << 20))
        """,
        copies=True,
    )
    assert isinstance(attack.runtime, LauncherRuntime)
    assert sorted(await attack.runtime.copies()) == ["ada-1", "mallory-2"]
    tries = f"attempt('copies of the job before', os.listdir, '{place}/ada-1')"
    await attack.refused(tries, copies=True, job="ada-1", checkpoints="")
    assert "mallory-3 keeps no copies in memory" in attack.launcher.said()
    for job in ("../logs", "ada-1/one", ""):
        attack.ask(do="remove", job=job, kind="copies")
    assert (place / "ada-1" / "one").exists()
    assert "copies is neither" in attack.start(copies="yes")
    await attack.runtime.remove_copies("ada-1")
    await until(lambda: sorted(os.listdir(place)) == ["mallory-2"])


@pytest.mark.asyncio
async def test_what_a_process_begins_with(attack: Attack) -> None:
    lines = await attack.tries("""
        print(sorted(os.listdir("/proc/self/fd"))[:3], oct(os.umask(0)),
              os.getsid(0) == os.getpid())
        print(resource.getrlimit(resource.RLIMIT_CORE), os.environ["HOME"], os.environ["USER"])
        print([each for each in os.environ if "LAUNCHER" in each or "NOTIFY" in each],
              open("/proc/self/oom_score_adj").read().strip(), os.getpriority(0, 0))
    """)
    assert lines == [
        "['0', '1', '2'] 0o77 True",
        f"(0, 0) /tmp skep-{DYNAMIC_FIRST + 1}",
        f"[] 200 {os.getpriority(os.PRIO_PROCESS, 0)}",
    ]


# --- an agent that was taken over -----------------------------------------------------------------


@pytest.mark.asyncio
async def test_plans_that_no_agent_makes(attack: Attack) -> None:
    jobs = attack.launcher.jobs
    assert attack.start(uid=0).startswith("bad-plan: it says 'uid'")
    assert attack.start(owner="../root").startswith("bad-plan: owner '../root' is no name")
    assert attack.start(owner="root\0").startswith("bad-plan")
    assert attack.start(job="..").startswith("bad-plan: job '..' is no name")
    assert attack.start(token="../../x").startswith("bad-plan: token")
    assert attack.start(files={"A/../B": ""}).startswith("bad-plan: file 'A/../B' is none")
    assert attack.start(files={"A": "?"}).startswith("bad-plan: file A cannot be decoded")
    assert attack.start(argv=[]).startswith("bad-plan: argv is no command")
    assert attack.start(argv="/bin/sh").startswith("bad-plan: argv is no command")
    assert attack.start(env={"A": 1}).startswith("bad-plan: env")
    assert attack.start(log_bytes_max=-1).startswith("bad-plan: log_bytes_max")
    assert attack.start(workdir="relative").startswith("bad-plan: workdir")
    where = f"cannot be written: it is not in {jobs}/logs"
    for path in (
        "/etc/passwd",
        f"{jobs}/logs/../../state/uids.json",
        f"{jobs}/logs/./x",
        f"{jobs}/logs//x",
        f"{jobs}/checkpoints/x",
    ):
        assert where in attack.start(log_path=path)


@pytest.mark.asyncio
async def test_links_in_the_way_of_a_log(attack: Attack) -> None:
    logs = attack.launcher.jobs / "logs"
    target = attack.launcher.folder / "target"
    target.mkdir(mode=0o700)
    (logs / "linked").symlink_to(target)
    assert "cannot be written" in attack.start(log_path=str(logs / "linked" / "rank0.log"))
    assert list(target.iterdir()) == []
    (logs / "evil").mkdir()
    (logs / "evil" / "rank0.log").symlink_to(target / "new")
    assert "cannot be written" in attack.start()
    assert list(target.iterdir()) == []
    (logs / "evil" / "rank0.log").unlink()
    os.link(attack.launcher.config, logs / "evil" / "rank0.log")
    assert "it is of another account" in attack.start()


@pytest.mark.asyncio
async def test_the_job_of_another_person(attack: Attack) -> None:
    """A plan that names Ada's job, and Mallory as its owner, gets none of Ada's folders."""
    checkpoints = str(attack.launcher.jobs / "checkpoints" / "ada-job")
    said = attack.start(job="ada-job", checkpoints=checkpoints)
    assert said == (
        f"job ada-job has folders of account {DYNAMIC_FIRST} on this node, and this run is of "
        f"account {DYNAMIC_FIRST + 1}"
    )


@pytest.mark.asyncio
async def test_checkpoints_that_another_person_made_before(attack: Attack) -> None:
    """Where all may make folders: the name of the next job can be guessed."""
    shared = attack.launcher.folder / "shared"
    shared.mkdir(exist_ok=True)
    shared.chmod(0o1777)
    theirs, linked = shared / "j18", shared / "j19"
    lines = await attack.tries(f"""
        os.mkdir({str(theirs)!r}); os.chmod({str(theirs)!r}, 0o777)
        os.symlink({str(theirs)!r}, {str(linked)!r})
        print("made")
    """)
    assert lines == ["made"]
    plan = {"owner": "ada", "argv": ["/bin/true"], "workdir": "/"}
    for path in (theirs, linked):
        why = f"checkpoints {path} are of another account ({DYNAMIC_FIRST + 1}): remove them"
        assert attack.start(**plan, checkpoints=str(path)) == why
        request = {**attack.evil(), **plan, "checkpoints": str(path)}
        assert attack.ask(do="prepare", plan=request)["not_started"] == why, "of a container"


@pytest.mark.asyncio
async def test_messages_without_sense_or_measure(attack: Attack) -> None:
    assert "no request 'root'" in attack.ask(do="root")["error"]
    assert "KeyError" in attack.ask(do="start")["error"]
    assert "bad-plan" in attack.ask(do="start", plan={"token": "x"})["not_started"]
    for size in (64 << 20, 2**32 - 1):
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(20)
            one.connect(str(attack.launcher.socket))
            one.sendall(runner.LENGTH.pack(size) + b"{")
            assert one.recv(1) == b"", "it is hung up on"
        assert f"a message of {size} bytes: at most 8388608 are read" in attack.launcher.said()
    assert attack.ask(do="ping")["live"] == 1


@pytest.mark.asyncio
async def test_another_account_than_the_agents(attack: Attack) -> None:
    """Even if it could open the socket."""
    attack.launcher.socket.chmod(0o666)
    try:
        await attack.tries(f"""
            one = socket.socket(socket.AF_UNIX)
            one.connect({str(attack.launcher.socket)!r})
            print("the launcher's socket: refused:", one.recv(1))
        """)
    finally:
        attack.launcher.socket.chmod(0o600)
    assert f"of user {DYNAMIC_FIRST + 1}" in attack.launcher.said()
    assert "launcher.sock: refused: process" in attack.launcher.said()


@pytest.mark.asyncio
async def test_a_number_is_never_another_persons(attack: Attack) -> None:
    """The launcher that comes after this one gives each person the number that they had."""
    table = attack.launcher.state / "uids.json"
    given = json.loads(table.read_text())
    assert given["ada"] == DYNAMIC_FIRST
    attack.launcher.end()
    del given["mallory"]  # As if an administrator had removed the person.
    table.write_text(json.dumps({**given, "last": DYNAMIC_FIRST + 5}))
    attack.launcher.begin()
    plan = attack.plan("later", "import os; print(os.getuid())")
    run = await started(attack.runtime, plan)
    assert run.uid == DYNAMIC_FIRST + 6
    await attack.node.end_of("later")
    assert alive(attack.victim.pid), "a launcher that ends leaves the jobs alone"
    table.write_text(json.dumps({**given, "mallory": DYNAMIC_FIRST + 1}))
