"""The launcher as a service: real accounts, its own restarts, and what it does not start."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import pwd
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from skep_services.adapters.launcher_runtime import LauncherRuntime, find
from skep_services.agent import runner
from skep_services.ports import RunNotStarted
from tests.launcher_kit import LauncherNode, LauncherUnderTest, inits, launcher
from tests.node_runtimes import alive, started, until

pytestmark = [pytest.mark.needs("root"), pytest.mark.adapters]

PEOPLE = ("skep-test-ada", "skep-test-bob")
NAMED = """
[accounts]
mode = "names"
persons = {ada = "skep-test-ada", bob = "skep-test-bob", eve = "daemon", mallory = "nobody"}
vcs = {nlp = "skep-test-bob"}
"""


@pytest_asyncio.fixture
async def node() -> AsyncIterator[LauncherNode]:
    with launcher() as one:
        made = LauncherNode(one)
        yield made
        for runtime in made.opened:
            await runtime.close()


# --- accounts -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people() -> Iterator[tuple[str, ...]]:
    """Yield two accounts of this machine, made for the time of a test."""
    groups = {each.gr_name for each in grp.getgrall()}
    made = [name for name in ("docker", "skep-test-lab") if name not in groups]
    for name in PEOPLE:
        subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)
        subprocess.run(["useradd", "--create-home", name], check=True, capture_output=True)
    for name in made:
        subprocess.run(["groupadd", name], check=True)
    subprocess.run(["usermod", "--groups", "docker,skep-test-lab", PEOPLE[0]], check=True)
    yield PEOPLE
    for name in PEOPLE:
        subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)
    for name in made:
        subprocess.run(["groupdel", name], check=True)


@pytest.mark.asyncio
@pytest.mark.needs("useradd")
async def test_jobs_are_their_persons(people: tuple[str, ...]) -> None:
    with launcher(NAMED) as one:
        node = LauncherNode(one, "ada")
        runtime = await node.open()
        script = "id -un; id -Gn; pwd; echo $HOME $USER; umask; touch mine; exit 3"
        plan = node.shell("a", script)
        plan = msgspec.structs.replace(plan, workdir="", env={"PATH": "/usr/bin:/bin"})
        run = await started(runtime, plan)
        assert (await node.end_of("a")).code == 3
        assert run.uid == pwd.getpwnam(people[0]).pw_uid
        assert node.log("a").splitlines() == [
            people[0],
            f"{people[0]} skep-test-lab",  # Not docker, whose members are root by another way.
            f"/home/{people[0]}",
            f"/home/{people[0]} {people[0]}",
            "0077",
        ]
        assert os.stat(f"/home/{people[0]}/mine").st_uid == run.uid
        found = node.log_path("a").stat()
        agent = pwd.getpwnam("nobody")
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (
            run.uid,
            agent.pw_gid,
            0o640,
        ), "the agent reads logs, and nobody else but their account does"
        node.owner = ""
        of_vc = await started(runtime, node.shell("b", "true"))
        assert of_vc.uid == pwd.getpwnam(people[1]).pw_uid
        for owner, vc, why in (
            ("carol", "nlp", "no-account: person carol has no account carol on this node: make"),
            ("root", "nlp", "system-account: person root has the account root (uid 0), which is"),
            ("eve", "nlp", "system-account: person eve has the account daemon (uid 1), which is"),
            ("mallory", "nlp", "system-account: person mallory has the account nobody, which is"),
            ("", "vision", "no-account: a job of VC vision has no owner, and [accounts.vcs]"),
        ):
            plan = msgspec.structs.replace(node.shell("c", "id"), owner=owner, vc=vc)
            answer = await runtime.start(plan)
            assert isinstance(answer, RunNotStarted)
            assert answer.detail.startswith(why)
            assert "\n" not in answer.detail
            assert answer.of_node, "another node may know the person"
        await runtime.close()


@pytest.mark.asyncio
async def test_a_folder_and_a_script_are_opened_with_the_jobs_rights(node: LauncherNode) -> None:
    runtime = await node.open()
    private = node.folder / "private"
    private.mkdir(mode=0o700)
    (private / "script.py").touch()
    plan = node.plan("a", "/bin/true", workdir=private)
    answer = await runtime.start(plan)
    assert isinstance(answer, RunNotStarted)
    assert answer.detail == f"workdir {private} may not be entered by skep-200000"
    plan = msgspec.structs.replace(
        node.plan("b", "/bin/true"),
        script=str(private / "script.py"),
        checkpoints=str(private / "x"),
    )
    answer = await runtime.start(plan)
    assert isinstance(answer, RunNotStarted)
    assert answer.detail == f"checkpoints {private}/x cannot be made: Permission denied"
    assert list(private.iterdir()) == [private / "script.py"]


@pytest.mark.asyncio
async def test_what_is_behind_the_jobs_own_tmp_is_named(node: LauncherNode, tmp_path: Path) -> None:
    """A job would fail strangely: its environment, folder or script is there, but not for it."""
    runtime = await node.open()
    hides = f"; a job has a /tmp of its own and does not see {tmp_path}"
    for argv, fields, why in (
        ([f"{tmp_path}/bin/python"], {}, f"executable {tmp_path}/bin/python does not exist"),
        (["true"], {"workdir": tmp_path}, f"workdir {tmp_path} does not exist on this node"),
    ):
        answer = await runtime.start(node.plan("a", *argv, **fields))
        assert isinstance(answer, RunNotStarted)
        assert answer.detail.startswith(why)
        assert hides in answer.detail
    plan = node.shell("a", "true")
    plan = msgspec.structs.replace(plan, env={**plan.env, "PYTHONPATH": f"/opt:{tmp_path}/lib"})
    await started(runtime, plan)
    await node.end_of("a")
    assert node.log("a").startswith(f"[skep] PYTHONPATH:{hides[1:]}/lib: put it elsewhere")


@pytest.mark.asyncio
async def test_ranks_of_a_job_share_tmp_until_the_last_has_ended(node: LauncherNode) -> None:
    runtime = await node.open()
    wait = "echo one >/tmp/x; echo ready; until [ -e /tmp/y ]; do sleep 0.01; done"
    first = msgspec.structs.replace(node.shell("j1.1.0", wait), job="j1")
    await started(runtime, first)
    await node.words("j1.1.0")
    second = msgspec.structs.replace(
        node.shell("j1.1.1", "cat /tmp/x; touch /tmp/y /dev/shm/z; ls /tmp"), job="j1"
    )
    await started(runtime, second)
    assert (await node.end_of("j1.1.0")).code == 0
    await node.end_of("j1.1.1")
    assert node.log("j1.1.1").split() == ["one", "x", "y"]
    again = msgspec.structs.replace(node.shell("j1.2.0", "ls /tmp /dev/shm"), job="j1")
    await started(runtime, again)
    await node.end_of("j1.2.0")
    assert node.log("j1.2.0").split() == ["/dev/shm:", "/tmp:"], "the next attempt begins anew"


@pytest.mark.asyncio
async def test_a_tmp_in_memory_is_bounded_by_the_kernel(node: LauncherNode) -> None:
    node.launcher.end()
    more = '[view]\ntmp_in = "memory"\n[limits]\nscratch = "1M"\nscratch_files = 8\n'
    node.launcher.policy += more
    node.launcher.begin()
    runtime = await node.open()
    writes = "head -c 500000 /dev/zero >/tmp/x && echo fits; head -c 2000000 /dev/zero >/var/tmp/y"
    await started(runtime, node.shell("a", f"{writes}; touch $(seq -f /tmp/%g 9)"))
    assert (await node.end_of("a")).code == 1
    lines = node.log("a").splitlines()
    assert lines[0] == "fits"
    assert lines[1].endswith("No space left on device"), "it has 1 MiB"
    assert lines[-1].endswith("No space left on device"), "it has 8 files"
    scratch = node.launcher.jobs / "scratch"
    await until(lambda: list(scratch.iterdir()) == [])


@pytest.mark.asyncio
async def test_files_of_secrets_are_the_accounts_and_go_with_the_job(node: LauncherNode) -> None:
    runtime = await node.open()
    look = "stat -c '%a %u' $KEY; cat $KEY; echo; echo $KEY"
    plan = msgspec.structs.replace(node.shell("a", look), files={"KEY": b"\0of ada\xff"})
    run = await started(runtime, plan)
    assert (await node.end_of("a")).code == 0
    lines = node.log_path("a").read_bytes().splitlines()
    assert lines == [f"400 {run.uid}".encode(), b"\0of ada\xff", b"/dev/shm/.skep/a/KEY"]
    assert not any(b"of ada" in path.read_bytes() for path in node.launcher.state.iterdir())
    scratch = node.launcher.jobs / "scratch"
    await until(lambda: list(scratch.iterdir()) == [])


# --- its own end and beginning --------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_upgrade_in_place_loses_no_exit_code(node: LauncherNode) -> None:
    """At SIGHUP the launcher executes itself: its children, frozen ones too, are still its."""
    runtime = await node.open()
    assert isinstance(runtime, LauncherRuntime)
    go = node.folder / "go"
    await started(runtime, node.shell("a", f"until [ -e {go} ]; do sleep 0.01; done; exit 7"))
    cold = await started(runtime, node.shell("cold", "exit 8"))
    await node.end_of("cold")
    ends = f"until [ -e {go} ]; do sleep 0.01; done; exit 9"
    frozen = await started(runtime, node.shell("frozen", ends))
    assert await runtime.freeze("frozen") == ""
    before = await runtime.ping()
    node.launcher.policy = '[accounts]\nmode = "dynamic"\n[limits]\npids = 100\n'
    node.launcher.write()
    os.kill(before, signal.SIGHUP)
    go.touch()
    assert (await node.end_of("a")).code == 7
    assert await runtime.ping() == before, "it is the same process"
    assert alive(frozen.pid)
    assert await runtime.thaw("frozen") == ""
    assert (await node.end_of("frozen")).code == 9
    assert cold.uid == frozen.uid == 200_000
    await started(
        runtime,
        node.shell("b", "cat /sys/fs/cgroup/*$(sed -n 's/.*pids://p' /proc/self/cgroup)/pids.max"),
    )
    await node.end_of("b")
    assert "100" in node.log("b"), "the policy is the new one"


@pytest.mark.asyncio
async def test_runs_outlive_a_launcher_that_is_killed(node: LauncherNode) -> None:
    runtime = await node.open()
    assert isinstance(runtime, LauncherRuntime)
    run = await started(runtime, node.shell("a", f"{node.sleeper(1)} & {node.sleeper(2)}"))
    ended = node.folder / "ended"
    await started(runtime, node.shell("b", f"until [ -e {ended} ]; do sleep 0.01; done"))
    node.launcher.end(signal.SIGKILL)
    assert alive(run.pid)
    ended.touch()
    node.launcher.begin()
    assert (await node.end_of("b")).code is None, "nobody saw its end"
    assert alive(run.pid)
    await runtime.stop("a", 0.0)
    await node.end_of("a")
    assert not node.sleeps(1)
    assert not node.sleeps(2)


@pytest.mark.asyncio
async def test_ranks_of_a_job_share_a_pid_namespace_whatever_becomes_of_launchers(
    node: LauncherNode,
) -> None:
    runtime = await node.open()
    assert isinstance(runtime, LauncherRuntime)
    tells = "readlink /proc/self/ns/pid; exec sleep 1000"
    pids = []
    for rank, ends in enumerate((signal.SIGHUP, signal.SIGKILL, None)):
        token = f"j1.1.{rank}"
        plan = msgspec.structs.replace(node.shell(token, tells), job="j1")
        pids.append((await started(runtime, plan)).pid)
        await node.words(token)
        if ends is signal.SIGHUP:
            os.kill(await runtime.ping(), ends)
        elif ends is signal.SIGKILL:
            node.launcher.end(ends)
            node.launcher.begin()
    assert len({node.log(f"j1.1.{rank}") for rank in range(3)}) == 1
    assert os.readlink("/proc/self/ns/pid") not in node.log("j1.1.0")
    (init,) = inits(node.launcher)
    for rank, pid in enumerate(pids):
        assert alive(init), "it lives as long as a rank does"
        await runtime.stop(f"j1.1.{rank}", 0.0)
        await node.end_of(f"j1.1.{rank}")
        assert not alive(pid)
    await until(lambda: not alive(init))


@pytest.mark.asyncio
async def test_a_process_that_says_it_is_anothers_is_not_believed(node: LauncherNode) -> None:
    """After a launcher's death, runs are told apart by control groups and not by variables."""
    runtime = await node.open()
    victim = await started(runtime, node.shell("victim", node.sleeper(1)))
    forged = {"SKEP_RUN": "victim", "SKEP_NODE_STATE": str(node.launcher.state), "PATH": "/bin"}
    wears = msgspec.structs.replace(
        node.plan("liar", "env", *(f"{k}={v}" for k, v in forged.items()), "sleep", "1000"),
        owner="mallory",
    )
    liar = await started(runtime, wears)
    node.launcher.end(signal.SIGKILL)
    node.launcher.begin()
    await runtime.stop("victim", 0.0)
    await node.end_of("victim")
    assert not alive(victim.pid)
    assert alive(liar.pid)
    await runtime.stop("liar", 0.0)
    await node.end_of("liar")


# --- what it refuses to be ------------------------------------------------------------------------


@pytest.fixture
def idle(node: LauncherNode) -> LauncherUnderTest:
    node.launcher.end()
    return node.launcher


def said(one: LauncherUnderTest, *more: str) -> tuple[int, str]:
    """Return the exit status of a launcher, and its last words."""
    done = subprocess.run(one.command(*more), capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip().splitlines()[-1] if done.stderr else ""


@pytest.mark.asyncio
async def test_policies_that_it_does_not_go_by(idle: LauncherUnderTest) -> None:
    idle.config.chmod(0o666)
    code, words = said(idle)
    assert code == 78
    assert "must be root's, and no one else may write to it" in words
    idle.config.chmod(0o644)
    for agent, why in (("root", "which is root: the agent needs no rights"), ("x-y", "no account")):
        idle.agent = agent
        idle.write()
        code, words = said(idle)
        assert (code, why in words) == (78, True), words
    idle.agent = "nobody"
    idle.policy = "[acounts]\n"
    idle.write()
    assert said(idle) == (78, f"skep-launcher: {idle.config}: acounts: not known; is it misspelt?")
    os.chown(idle.folder, 65534, -1)
    assert "must be root's" in said(idle)[1]
    os.chown(idle.folder, 0, -1)


@pytest.mark.asyncio
async def test_what_is_required_and_missing_is_refused(node: LauncherNode) -> None:
    node.launcher.end()
    node.launcher.policy = (
        'require = ["tmp"]\n[accounts]\nmode = "dynamic"\n[view]\nprivate_tmp = false\n'
    )
    node.launcher.begin()
    assert said(node.launcher, "--check")[0] == 1
    runtime = await node.open()
    answer = await runtime.start(node.shell("a", "true"))
    assert isinstance(answer, RunNotStarted)
    assert answer.of_node
    assert answer.detail.startswith("cannot-isolate: this node cannot keep jobs apart: no mount")
    node.launcher.end()
    node.launcher.policy = node.launcher.policy.replace('["tmp"]', "[]")
    node.launcher.begin()
    await started(runtime, node.shell("a", "true"))
    assert "warning: tmp: no mount namespace" in node.launcher.said()
    found = await find(node.launcher.socket)
    assert "tmp" in found.lacks


@pytest.mark.asyncio
async def test_a_launcher_is_found_while_runs_end(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = {"id": 1, "folder": "/jobs", "mode": "names", "lacks": {}}
        for message in ({"exited": {"token": "a-1", "code": 0}}, found):
            text = json.dumps(message).encode()
            writer.write(runner.LENGTH.pack(len(text)) + text)
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    gone = asyncio.Event()
    path = tmp_path / "launcher.sock"
    server = await asyncio.start_unix_server(answer, path)
    assert (await find(path)).folder == Path("/jobs")
    await gone.wait()
    server.close()
    await server.wait_closed()


@pytest.mark.asyncio
async def test_an_agent_without_its_launcher_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="no launcher answers there"):
        await find(tmp_path / "launcher.sock")
