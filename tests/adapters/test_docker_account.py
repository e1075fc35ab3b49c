"""Containers of a node with a launcher: of a person's account, and confined."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from skep_services.adapters.docker_runtime import DockerRuntime
from skep_services.adapters.launcher_runtime import LauncherRuntime
from skep_services.launcher.policy import DYNAMIC_FIRST
from skep_services.ports import RunNotStarted
from tests.launcher_kit import LauncherNode, launcher
from tests.node_runtimes import Node, engine_of, image_of_engine, name_owner, started

pytestmark = [pytest.mark.docker, pytest.mark.needs("root"), pytest.mark.adapters]

POLICY = """
[accounts]
mode = "dynamic"
[limits]
pids = 64
memory = "256M"
[view]
workdirs = ["{work}"]
"""
LOOK = """
import json, os, subprocess
def tried(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.strerror
    return "DONE"
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines()
              if ":\\t" in line)
print(json.dumps({
    "uid": [os.getuid(), os.getgid(), os.getgroups()],
    "capabilities": {status[each].strip() for each in ("CapEff", "CapPrm", "CapInh", "CapBnd")}
                    == {"0" * 16},
    "no_new_privs": status["NoNewPrivs"].strip(),
    "root": tried(open, "/x", "w"),
    "tmp": tried(open, "/tmp/x", "w"),
    "workdir": tried(open, "mine", "w"),
    "socket": os.path.exists("/run/docker.sock") or os.path.exists("/var/run/docker.sock"),
    "state": tried(os.listdir, STATE),
    "disk": tried(os.mknod, "/tmp/disk", 0o060600, os.makedev(254, 0)),
    "mount": subprocess.run(["mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True).returncode,
    "others": [each for each in os.listdir("/proc") if each.isdecimal()
               and os.stat("/proc/" + each).st_uid != os.getuid()],
}))
pids = []
try:
    while len(pids) < 1000:
        pid = os.fork()
        if pid == 0:
            import time
            time.sleep(1000)
        pids.append(pid)
except OSError as error:
    print(error.strerror)
for pid in pids: os.kill(pid, 9)
"""


@pytest_asyncio.fixture
async def node() -> AsyncIterator[LauncherNode]:
    image = image_of_engine()
    with launcher() as one:
        made = LauncherNode(one)
        one.end()
        one.policy = POLICY.format(work=made.folder)
        one.begin()
        name_owner(made.state)
        processes = LauncherRuntime(made.state, one.socket)
        await processes.open(made.told)
        made.image = image
        made._make = lambda state: DockerRuntime(
            state, [one.folder / "launcher"], processes.prepare
        )
        yield made
        for runtime in made.opened:
            await runtime.close()
        await processes.close()
        engine = engine_of(made)
        for token in engine.tokens():
            engine.remove(token)
        engine.close()


@pytest.mark.asyncio
async def test_a_container_is_its_persons_and_confined(node: LauncherNode) -> None:
    runtime = await node.open()
    script = LOOK.replace("STATE", repr(str(node.launcher.state)))
    plan = Node.python(node, "a", script)
    plan = msgspec.structs.replace(plan, meets=False)
    run = await started(runtime, plan)
    assert run.uid == DYNAMIC_FIRST
    assert (await node.end_of("a")).code == 0, node.log("a")
    first, second = node.log("a").splitlines()
    print(first, second)
    assert json.loads(first) == {
        "uid": [DYNAMIC_FIRST, DYNAMIC_FIRST, [DYNAMIC_FIRST]],
        "capabilities": True,
        "no_new_privs": "1",
        "root": "Read-only file system",
        "tmp": "DONE",
        "workdir": "DONE",
        "socket": False,
        "state": "No such file or directory",
        "disk": "Operation not permitted",
        "mount": 32,
        "others": [],
    }
    assert second == "Resource temporarily unavailable"


def is_there(path: str) -> bool:
    return os.path.exists(path)


@pytest.mark.asyncio
async def test_files_of_secrets_are_in_memory_and_for_the_account_alone(node: LauncherNode) -> None:
    runtime = await node.open()
    script = "import os; path = os.environ['KEY']; print(open(path).read(), path, os.stat(path))\n"
    script += "try: open(path, 'w')\nexcept OSError as error: print(error.strerror)"
    plan = msgspec.structs.replace(Node.python(node, "a", script), files={"KEY": b"of ada"})
    await started(runtime, plan)
    assert (await node.end_of("a")).code == 0, node.log("a")
    first, second = node.log("a").splitlines()
    value, ada, path, mode = first.split()[:4]
    assert (value, ada, second) == ("of", "ada", "Read-only file system")
    assert "33024" in mode, "for its owner to read, and for nobody else"
    assert f"st_uid={DYNAMIC_FIRST}," in first
    launched = LauncherRuntime(node.state, node.launcher.socket)
    await launched.open(node.told)
    try:
        await launched.keep_files(["a"])
        assert is_there(path)
        await launched.remove_files("a")
        assert not is_there(path)
    finally:
        await launched.close()


@pytest.mark.asyncio
async def test_a_workdir_is_one_that_the_policy_names(node: LauncherNode, tmp_path: Path) -> None:
    runtime = await node.open()
    link = node.folder / "link"
    link.symlink_to("/etc")
    private = node.folder / "private"
    private.mkdir(mode=0o700)
    for workdir, why in (
        (Path("/usr"), "workdir /usr is in none of "),
        (link, "workdir /etc is in none of "),
        (private, f"workdir {private} may not be entered by skep-{DYNAMIC_FIRST}"),
    ):
        answer = await runtime.start(node.plan("a", "true", workdir=workdir))
        assert isinstance(answer, RunNotStarted)
        print(answer.detail)
        assert answer.detail.startswith(why)
