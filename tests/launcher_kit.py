"""A launcher under test: its folder, its policy, the process, and runtimes that are its clients."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from skep_services.adapters.launcher_runtime import LauncherRuntime
from skep_services.agent import proc
from skep_services.launcher import launcher_process, unit
from skep_services.launcher.policy import DYNAMIC_FIRST
from skep_services.launcher.secret_files import SecretFiles
from skep_services.ports import RunPlan
from tests import needs
from tests.node_runtimes import Node, interpreter

PLACE = "/var/lib"
"""Not below /tmp, of which jobs have one of their own."""

AGENT = "nobody"
PYTHON = str(Path(sys.prefix).resolve() / "bin" / "python")
READY_S = 20.0
POLICY = """
agent = "{agent}"
folder = "{folder}/launcher"
socket = "{folder}/run/launcher.sock"
"""
DYNAMIC = '[accounts]\nmode = "dynamic"\n'


class LauncherUnderTest:
    """One launcher, in a folder of its own; its policy is `policy` below the places of files."""

    def __init__(self, folder: Path, policy: str = DYNAMIC, agent: str = AGENT) -> None:
        self.folder, self.policy, self.agent = folder, policy, agent
        self.socket = folder / "run" / "launcher.sock"
        self.jobs = folder / "launcher" / "jobs"
        self.state = folder / "launcher" / "state"
        self.words = folder / "launcher.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.folder / "launcher.toml"

    def command(self, *more: str) -> list[str]:
        program = launcher_process.__file__
        return [*confined(), *interpreter(), program, "--config", str(self.config), *more]

    def write(self) -> None:
        top, _, rest = self.policy.partition("[")
        places = POLICY.format(folder=self.folder, agent=self.agent)
        self.config.write_text(places + top + (f"[{rest}" if rest else ""))
        self.config.chmod(0o644)

    def begin(self) -> None:
        self.write()
        with self.words.open("ab") as words:
            begin = words.tell()
            self.process = subprocess.Popen(self.command(), stderr=words, start_new_session=True)
        deadline = time.monotonic() + READY_S
        while b": serves " not in self.words.read_bytes()[begin:]:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            # tidy: allow sleep because the launcher tells only its service manager
            time.sleep(0.01)

    def said(self) -> str:
        return self.words.read_text(errors="replace")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(READY_S)
            self.process = None


def confined() -> list[str]:
    """Return what gives a process the rights of the launcher's unit, and no other."""
    if shutil.which("setpriv") is None:
        return []
    have = int(Path("/proc/self/status").read_text().partition("CapBnd:\t")[2].split()[0], 16)
    names = [name.removeprefix("CAP_").lower() for name in unit.CAPABILITIES]
    kept = [f"+{name}" for name in names if name != "sys_resource" or have >> 24 & 1]
    sets = ",".join(["-all", *kept])
    return ["setpriv", f"--bounding-set={sets}", "--inh-caps=-all", "--no-new-privs"]


@contextmanager
def launcher(policy: str = DYNAMIC, agent: str = AGENT) -> Iterator[LauncherUnderTest]:
    """Yield a launcher that serves; all that it holds is ended afterwards."""
    needs.require("root")
    folder = Path(tempfile.mkdtemp(prefix="skep-test-", dir=PLACE))
    folder.chmod(0o755)
    one = LauncherUnderTest(folder, policy, agent)
    try:
        one.begin()
        lacking = [line for line in one.said().splitlines() if ": refused: " in line]
        if lacking:
            needs.skip(f"jobs cannot be kept apart here ({lacking[0].rpartition(': ')[2]})")
        yield one
    finally:
        clear(one)


def clear(one: LauncherUnderTest) -> None:
    """End a launcher, every process of its jobs, and what it made."""
    if one.process is not None and one.process.poll() is None:
        one.end()
    for above in _groups(one):
        for path in above.glob("*/cgroup.procs"):
            for pid in path.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
    for init in inits(one):
        with contextlib.suppress(ProcessLookupError):
            os.kill(init, signal.SIGKILL)
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        place = mount.split()[1]
        if place.startswith(str(one.folder)):
            subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(SecretFiles(str(one.jobs)).folder, ignore_errors=True)
    shutil.rmtree(one.folder, ignore_errors=True)
    _remove_groups(one)


def inits(one: LauncherUnderTest) -> set[int]:
    """Return the first processes of the PID namespaces that jobs still have."""
    found: set[int] = set()
    record = one.state / "runner.jsonl"
    for line in record.read_text().splitlines() if record.exists() else ():
        pid, ticks = json.loads(line).get("about", {}).get("init", (0, 0))
        process = proc.process(pid)
        if process is not None and process.ticks == ticks:
            found.add(pid)
    return found


def _groups(one: LauncherUnderTest) -> list[Path]:
    """Return the groups that hold those of the jobs: one below each hierarchy's root."""
    name = hashlib.sha256(str(one.folder / "launcher").encode()).hexdigest()[:8]
    root = Path("/sys/fs/cgroup")
    # Not every folder below: those of others vanish while they are looked for.
    places = [root, *(each for each in root.iterdir() if each.is_dir())]
    return [found for each in places if (found := each / f"skep-jobs-{name}").exists()]


def _remove_groups(one: LauncherUnderTest) -> None:
    deadline = time.monotonic() + READY_S
    for above in _groups(one):
        for folder in [*(each for each in above.iterdir() if each.is_dir()), above]:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    assert time.monotonic() < deadline, folder
                    # tidy: allow sleep because a group tells nobody that it is empty
                    time.sleep(0.01)


class LauncherNode(Node):
    """A node whose runs a launcher starts, as the account of `owner`."""

    def __init__(self, one: LauncherUnderTest, owner: str = "ada") -> None:
        work = one.folder / "work"
        work.mkdir(mode=0o777)
        work.chmod(0o777)
        self.launcher, self.owner = one, owner
        super().__init__(work, lambda state: LauncherRuntime(state, one.socket))

    def log_path(self, token: str) -> Path:
        return self.launcher.jobs / "logs" / token / "rank0.log"

    def write_log(self, token: str, text: str) -> None:
        super().write_log(token, text)
        os.chown(self.log_path(token), DYNAMIC_FIRST, -1)

    def python(self, token: str, script: str) -> RunPlan:
        return self.plan(token, PYTHON, "-I", "-S", "-c", script)

    def plan(self, token: str, *argv: str, **given: object) -> RunPlan:
        made = super().plan(token, *argv, **given)  # type: ignore[arg-type]
        return msgspec.structs.replace(made, job=token, owner=self.owner, vc="nlp")


@asynccontextmanager
async def launcher_node(folder: Path) -> AsyncIterator[Node]:
    """A node of runs that a launcher starts; whatever is left of it is killed in the end."""
    with launcher() as one:
        node = LauncherNode(one)
        try:
            yield node
        finally:
            for runtime in node.opened:
                await runtime.close()


def account_names() -> set[str]:
    """Return the accounts of this machine."""
    return {each.pw_name for each in pwd.getpwall()}


assert sys.platform == "linux"
