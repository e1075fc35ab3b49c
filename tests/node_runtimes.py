"""Node runtimes under test: one node's state folder, whose agent may be opened and dropped."""

import asyncio
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from skep_services.adapters.docker_engine import Engine
from skep_services.adapters.docker_runtime import DockerRuntime
from skep_services.adapters.process_runtime import INTERPRETER, ProcessRuntime
from skep_services.ports import NodeRuntime, RunExited, RunNotStarted, RunPlan, RunStarted
from tests import needs

DEADLINE_SECONDS = 120.0
"""Far more than anything here takes, even on a machine that is busy with other things."""

LOG_CHARS_MAX = 4 << 20
"""Characters of a log that a test reads. The loop that reads also cuts the log: a flood grows by
gigabytes during a longer read."""

PATH = os.environ["PATH"]

NODE_VARIABLE = "NODE_UNDER_TEST"


def interpreter() -> tuple[str, ...]:
    """Return how to start the runner: under coverage it needs site-packages, to be measured."""
    measured = "COVERAGE_PROCESS_CONFIG" in os.environ or "COVERAGE_PROCESS_START" in os.environ
    return tuple(word for word in INTERPRETER if word != "-S") if measured else INTERPRETER


def process_runtime(state: Path, idle_s: float = 10.0) -> ProcessRuntime:
    """Return a runtime of plain processes, not opened."""
    return ProcessRuntime(state, idle_s, interpreter())


class Node:
    """One node: its state folder, and the agent (a runtime and what it was told).

    With an `image` every plan is a container of it.
    """

    def __init__(self, folder: Path, make: Callable[[Path], NodeRuntime], image: str = "") -> None:
        self.folder = folder
        self.state = folder / "state"
        self.image = image
        self.number = 10**9 + uuid.uuid4().int % 10**9
        self.ends: dict[str, list[RunExited]] = {}
        self._make = make
        self._told = asyncio.Condition()
        self.opened: list[NodeRuntime] = []

    async def open(self) -> NodeRuntime:
        """Return another runtime on the same node, opened."""
        runtime = self._make(self.state)
        await runtime.open(self.told)
        self.opened.append(runtime)
        return runtime

    async def told(self, end: RunExited) -> None:
        """Take the end of a run."""
        async with self._told:
            self.ends.setdefault(end.token, []).append(end)
            self._told.notify_all()

    async def end_of(self, token: str) -> RunExited:
        """Return the end of a run as it was told first, waiting for it."""
        async with asyncio.timeout(DEADLINE_SECONDS), self._told:
            await self._told.wait_for(lambda: token in self.ends)
        return self.ends[token][0]

    def plan(
        self,
        token: str,
        *argv: str,
        env: dict[str, str] | None = None,
        workdir: Path | None = None,
        log_bytes_max: int = 1 << 20,
    ) -> RunPlan:
        """Return a plan whose log is at `log_path(token)`."""
        return RunPlan(
            token=token,
            argv=argv,
            env={"PATH": PATH, NODE_VARIABLE: str(self.number)} if env is None else env,
            workdir=str(workdir or self.folder),
            log_path=str(self.log_path(token)),
            log_bytes_max=log_bytes_max,
            image=self.image,
        )

    def shell(self, token: str, script: str) -> RunPlan:
        """Return a plan that runs a shell script."""
        return self.plan(token, "sh", "-c", script)

    def python(self, token: str, script: str) -> RunPlan:
        """Return a plan that runs a Python script."""
        # Not that of an environment below /tmp, of which a job sees one of its own.
        program = "python3" if self.image else os.path.realpath(sys.executable)
        return self.plan(token, program, "-I", "-S", "-c", script)

    def leftovers(self, count: int) -> int:
        """Return how many leftovers are told where there are `count`."""
        return 0 if self.image else count

    def sleeper(self, name: int) -> str:
        """Return a command that sleeps, told from all others by its arguments."""
        return f"sleep 1000 {self.number}{name}"

    def sleeps(self, name: int) -> bool:
        """Tell whether the sleeper of that name is there, in whatever namespace."""
        word = f"{self.number}{name}".encode()
        return any(word in words for _, words in _proc("cmdline"))

    def marked_with(self, token: str) -> list[int]:
        """Return the living processes that carry a run's token and this node's mark."""
        marks = {f"SKEP_RUN={token}".encode(), f"{NODE_VARIABLE}={self.number}".encode()}
        return [pid for pid, words in _proc("environ") if marks <= words]

    def log_path(self, token: str) -> Path:
        """Return where a run's log is."""
        return self.folder / "logs" / f"{token}.log"

    def write_log(self, token: str, text: str) -> None:
        """Make the log of a run that is still to start."""
        self.log_path(token).parent.mkdir()
        self.log_path(token).write_text(text)

    def log(self, token: str) -> str:
        """Return what a run has written so far, of a flood the beginning."""
        path = self.log_path(token)
        if not path.exists():
            return ""
        with path.open(errors="replace") as file:
            return file.read(LOG_CHARS_MAX)

    async def words(self, token: str, count: int = 1) -> list[str]:
        """Return the first words of a run's log, waiting for `count` whole lines."""
        await until(lambda: self.log(token).count("\n") >= count)
        return self.log(token).split()


@asynccontextmanager
async def process_node(folder: Path) -> AsyncIterator[Node]:
    """A node of plain processes; whatever is left of it is killed in the end."""
    node = Node(folder, process_runtime)
    try:
        yield node
    finally:
        for runtime in node.opened:
            await runtime.close()
        last = process_runtime(node.state)
        await last.open(node.told)
        await last.shutdown(0.0)
        await last.close()
        # A runner that ends removes its socket itself.
        shutil.rmtree(node.state, ignore_errors=True)


def image_of_engine() -> str:
    """Return an image to test with; skip the test where there is no engine or none of them."""
    needs.require("engine")
    with closing(Engine("test")) as engine:
        return next(name for name in needs.IMAGES if engine.has_image(name))


def name_owner(state: Path) -> None:
    """Have the names of a folder's containers begin with `skep-test`."""
    owner = state / "containers" / "owner"
    owner.parent.mkdir(mode=0o700, parents=True)
    owner.write_text(f"test-{uuid.uuid4().hex}")


@asynccontextmanager
async def docker_node(folder: Path) -> AsyncIterator[Node]:
    """A node of containers; whatever is left of it is removed in the end."""
    node = Node(folder, DockerRuntime, image_of_engine())
    name_owner(node.state)
    try:
        yield node
    finally:
        for runtime in node.opened:
            await runtime.close()
        engine = engine_of(node)
        for token in engine.tokens():
            engine.remove(token)
        engine.close()
        shutil.rmtree(node.state)


def engine_of(node: Node) -> Engine:
    """Return the engine as a node's runtime uses it."""
    return Engine((node.state / "containers" / "owner").read_text())


async def started(runtime: NodeRuntime, plan: RunPlan) -> RunStarted:
    """Start a run that must start."""
    answer = await runtime.start(plan)
    assert isinstance(answer, RunStarted), answer
    return answer


async def refused(runtime: NodeRuntime, plan: RunPlan) -> str:
    """Start a run that must not start, and return why."""
    answer = await runtime.start(plan)
    assert isinstance(answer, RunNotStarted), answer
    assert answer.token == plan.token
    return answer.detail


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; for files and processes, which tell nobody."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        # tidy: allow sleep because files and processes of others have no event to wait on
        await asyncio.sleep(0.005)


def _proc(name: str) -> Iterator[tuple[int, set[bytes]]]:
    """Yield the words of a file of every process there is."""
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        try:
            yield int(path.parent.name), set(path.read_bytes().split(b"\0"))
        except OSError:
            continue


def suspended(pid: int) -> bool:
    """Tell whether a process, or a child of it, is stopped by a signal."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    stats = [Path(f"/proc/{one}/stat").read_text() for one in (pid, *children)]
    return any(") T " in stat for stat in stats)


def alive(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def kill(pid: int) -> None:
    """Kill one process the hard way."""
    os.kill(pid, signal.SIGKILL)
