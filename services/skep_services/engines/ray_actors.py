"""Tasks in the actors of a Ray cluster (extra `ray`): one actor for each processor asked for.

Nothing is sent but names of functions and bytes: every node needs the same Skep for its own Python.
What is not there is said, as the class of the actors travels by value and imports nothing of Skep
until it is asked which it has.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from skep_services.engines.deal import Ear, Gone, Output, Part, Ready, Word, deal
from skep_services.engines.stop import Stop
from skep_services.engines.task import About, EngineError, Task, UnreachableError, UnusableError

CLIENT = "ray://"
AUTO = "auto"
ADDRESS = re.compile(r"(?:ray://)?(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
CONNECT_S = 5.0
"""To a port of a cluster. Ray itself waits for minutes for one that never answers."""
PART_EVERY_S = 1.0
"""Between two questions how far a task is."""
WAITS_S = 5.0
"""Without any worker for so long, a person is told."""
WORKERS_MAX = 1024
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Ray reports its use to its makers unless it is told not to."""
AGAIN = "Starting Ray client server failed"
"""What a head of Ray says if a process of its client, which it forks, died as it began."""
SAID_MAX = 300
"""Characters of what Ray says of an error."""


class OnRay(NamedTuple):
    """A Ray cluster: `auto`, `HOST:PORT`, or `ray://HOST:PORT` from outside of it.

    `workers`: how many tasks run at a time; 0: as many as the cluster has processors.
    """

    address: str
    workers: int = 0

    def run(self, tasks: Sequence[Task], ear: Ear, stop: Stop) -> None:
        """Run tasks; see `deal.Engine`.

        Raises:
            UnusableError: Ray is not installed here, or the address is none.
            UnreachableError: No cluster of this Ray answers there.
        """
        ray = connect(self.address)
        try:
            there = int(ray.cluster_resources().get("CPU", 0))
            crew = _Crew(ray, ear.say, f"{there} processors of the Ray cluster")
            deal(crew, tasks, min(self.workers or max(there, 1), WORKERS_MAX), ear, stop)
        finally:
            ray.shutdown()


def connect(address: str) -> Any:
    """Return the module `ray`, connected to a cluster that runs.

    Args:
        address: `auto`, HOST:PORT or ray://HOST:PORT.

    Raises:
        UnusableError: Ray is not installed here, or the address is none.
        UnreachableError: No cluster of this Ray answers there.
    """
    match = ADDRESS.fullmatch(address)
    if address != AUTO and match is None:
        text = f"--on {address}: write ray://HOST:PORT (10001 by itself), HOST:PORT or auto"
        raise UnusableError(text)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        text = f"--on {address}: Ray is not installed here; pip install 'skep[ray]'"
        raise UnusableError(text) from None
    if match is not None:
        _look(address, match["host"].strip("[]"), int(match["port"]))
    for tries_left in (1, 0):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # Said again by the exception.
                ray.init(address, log_to_driver=False, logging_level="FATAL")
            break
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            if not (tries_left and AGAIN in str(error)):
                raise UnreachableError(_refused(address, error)) from None
    return ray


def _look(address: str, host: str, port: int) -> None:
    """Look whether anything that speaks Ray's protocol is at an address.

    Raises:
        UnreachableError: Nothing is.
    """
    which = "the client's port of its head" if address.startswith(CLIENT) else "the head's port"
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        text = f"--on {address}: no Ray answers there ({error}); is it {which}?"
        raise UnreachableError(text) from None
    if address.startswith(CLIENT):
        return  # A head forks while it greets a client: a second connection then may end the fork.
    grpc: Any = importlib.import_module("grpc")  # ray[client] needs it, and so installs it.
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
        except grpc.FutureTimeoutError:
            text = f"--on {address}: what answers there is not Ray; is it {which}?"
            raise UnreachableError(text) from None


def _refused(address: str, error: Exception) -> str:
    said = " ".join(str(error).rpartition("Error: ")[2].split())[:SAID_MAX]
    if address == AUTO:
        hint = "start one (ray start --head) or name one: --on ray://HOST:10001"
        return f"--on ray: no Ray cluster runs on this machine; {hint}"
    if "timeout" in said:
        return f"--on {address}: what answers there is not the client's port of a Ray cluster"
    return f"--on {address}: {said}"


def _actor_class() -> type:
    """Return the class of actors. It is local to a function, so that Ray sends its code."""

    class Worker:
        def __init__(self) -> None:
            self.part = 0.0
            self.goes_on = True

        def about(self) -> tuple[str, int, tuple[str, str, str]]:
            import os  # noqa: PLC0415
            import platform  # noqa: PLC0415

            try:
                from skep_services.engines.task import about  # noqa: PLC0415

                mine = about()
                found = (mine.python, mine.skep, mine.program)
            except ImportError:
                found = (platform.python_version(), "", "")
            return platform.node(), os.getpid(), found

        def run(self, label: str, work: str, *inputs: bytes) -> bytes:
            from skep_services.engines.task import Task, outcome  # noqa: PLC0415

            self.part, self.goes_on = 0.0, True

            def watch(part: float) -> bool:
                self.part = part
                return self.goes_on

            return outcome(Task(label, work, inputs), watch)

        def how_far(self) -> float:
            return self.part

        def stop(self) -> None:
            self.goes_on = False

    return Worker


class _Hired:
    """An actor, what is asked of it, and what it was last asked how far it is."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.name = "a worker of the Ray cluster"
        self.busy = False
        self.asked_at = 0.0


class _Crew:
    def __init__(self, ray: Any, say: Callable[[str], None], what: str) -> None:
        self.ray, self.say, self.what = ray, say, what
        self.kind = ray.remote(_actor_class())
        self.hired: dict[int, _Hired] = {}
        self.asked: dict[Any, tuple[int, str]] = {}
        """What actors were asked, by where the answer will be: which actor, and what."""
        self.stored: dict[int, Any] = {}
        """Where inputs are in the cluster, by their identity here: seeds share a trace."""
        self.began = time.monotonic()
        self.seen = False

    def hire(self, worker: int) -> None:
        # Two threads: one for the task, one for what is asked of it meanwhile.
        options = {"num_cpus": 1, "max_restarts": 0, "max_concurrency": 2}
        actor = self.kind.options(scheduling_strategy="SPREAD", **options).remote()
        self.hired[worker] = _Hired(actor)
        self.asked[actor.about.remote()] = worker, "about"

    def give(self, worker: int, task: Task) -> None:
        hired = self.hired[worker]
        places = []
        for each in task.inputs:
            if id(each) not in self.stored:
                self.stored[id(each)] = self.ray.put(each)
            places.append(self.stored[id(each)])
        self.asked[hired.actor.run.remote(task.label, task.work, *places)] = worker, "run"
        hired.busy, hired.asked_at = True, time.monotonic()

    def hear(self, within_s: float) -> list[Word]:
        self._ask()
        words: list[Word] = []
        if not self.asked:
            return words
        try:
            self.ray.wait(list(self.asked), num_returns=1, timeout=within_s)
            over, _ = self.ray.wait(list(self.asked), num_returns=len(self.asked), timeout=0)
        except ConnectionError as error:
            text = f"the connection to the Ray cluster was lost: {error}"
            raise EngineError(text) from None
        for where in over:
            worker, what = self.asked.pop(where)
            if worker in self.hired and (word := self._answer(worker, what, where)) is not None:
                words.append(word)
        self._tell_waits()
        return words

    def _ask(self) -> None:
        """Ask actors how far their tasks are, every so often."""
        now = time.monotonic()
        for worker, hired in self.hired.items():
            if hired.busy and now - hired.asked_at >= PART_EVERY_S:
                hired.asked_at = now + PART_EVERY_S  # Until it is answered.
                self.asked[hired.actor.how_far.remote()] = worker, "part"

    def _answer(self, worker: int, what: str, where: Any) -> Word | None:
        hired = self.hired[worker]
        try:
            found = self.ray.get(where)
        except self.ray.exceptions.RayError as error:
            del self.hired[worker]
            return Gone(worker, hired.name, f"died ({_why(error)})")
        if what == "about":
            self.seen = True
            node, pid, (python, skep, program) = found
            hired.name = f"process {pid} of Ray on {node}"
            return Ready(worker, hired.name, About(python, skep, program))
        if what == "run":
            hired.busy = False
            return Output(worker, found)
        if what == "part":
            hired.asked_at = time.monotonic()
            return Part(worker, found)
        return None

    def _tell_waits(self) -> None:
        if not self.seen and time.monotonic() - self.began > WAITS_S:
            self.seen = True
            self.say(f"waiting for one of {self.what}")

    def stop(self, worker: int) -> None:
        self.asked[self.hired[worker].actor.stop.remote()] = worker, "stop"

    def close(self, *, kill: bool) -> None:
        for hired in self.hired.values():
            self.ray.kill(hired.actor)


def _why(error: Exception) -> str:
    """Return in a few words what Ray tells at length of a death."""
    kind, said = type(error).__name__, str(error).partition("Some common causes")[0].lower()
    if "OutOfMemory" in kind or "memory pressure" in said:
        return "out of memory"
    if "NodeDied" in kind or "node died" in said or "node has died" in said:
        return "its node is gone"
    return "its process was killed or crashed"
