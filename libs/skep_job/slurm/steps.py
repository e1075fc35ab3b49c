"""Steps: what `srun` asks for inside a job, dealt out to the workers, and how it ended.

The leader is the batch process on the first worker. The others connect to it and prove by the job's
key that they belong to it, as it does to them. Then it sends them what to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import Any

from skep_job.slurm import frames
from skep_job.slurm.frames import LINE_BYTES_MAX, FrameError
from skep_job.slurm.plan import repeated, spread
from skep_job.slurm.tasks import Send, Tasks, warn

MEET_WITHIN_S = 300.0
"""A gang starts as a whole; five minutes are for a node whose disk is busy."""
PROVE_WITHIN_S = 10.0
RETRY_EVERY_S = 0.2
STEPS_MAX = 100_000
LOST = 255


class Worker:
    """One worker as the leader sees it: its name, and how it is told what to do."""

    def __init__(self, name: str, writer: asyncio.StreamWriter | None = None) -> None:
        self.name = name
        self.writer = writer


class Step:
    """One step that runs: which tasks have ended, and who hears of them."""

    def __init__(self, number: int, tell: Send, tasks: int, *, kill: bool) -> None:
        self.number = number
        self.tell = tell
        self.kill = kill
        self.codes: dict[int, int] = {}
        self.left = tasks
        self.ended = asyncio.Event()
        self.nodes: dict[int, set[int]] = {}

    def end(self, task: int, code: int) -> None:
        """Note how a task ended."""
        if task not in self.codes:
            self.codes[task] = code
            self.left -= 1
        if self.left <= 0:
            self.ended.set()

    def code(self) -> int:
        """Return the exit code of the step: the highest of its tasks, as in Slurm."""
        return max((128 - code if code < 0 else code for code in self.codes.values()), default=0)


class Leader:
    """Deals out the steps of a job.

    Args:
        plan: The job's plan.
        address: Where the other workers find it; None: there are none.
    """

    def __init__(self, plan: dict[str, Any], address: tuple[str, int] | None) -> None:
        self._plan = plan
        self._address = address
        self.workers: list[Worker | None] = [None] * plan["nodes"]
        first = Worker(address[0] if address else socket.gethostname())
        self.workers[0] = first
        self._met = asyncio.Event()
        self._steps: dict[int, Step] = {}
        self._made = 0
        self._tasks = Tasks(0, first.name)
        self._servers: list[asyncio.AbstractServer] = []
        self._serving: set[asyncio.Task[None] | None] = set()
        self._over = False

    async def open(self, path: str) -> None:
        """Listen for `srun` at a path, and wait for the other workers.

        Raises:
            FrameError: Not all of them came.
        """
        limit = {"limit": LINE_BYTES_MAX}
        self._servers.append(await asyncio.start_unix_server(self._asked, path, **limit))
        if self._address is None:
            return
        host, port = self._address
        self._servers.append(await asyncio.start_server(self._joined, host, port, **limit))
        try:
            await asyncio.wait_for(self._met.wait(), MEET_WITHIN_S)
        except asyncio.TimeoutError:
            missing = [str(at) for at, worker in enumerate(self.workers) if worker is None]
            text = f"workers {', '.join(missing)} did not come within {MEET_WITHIN_S:.0f} s"
            raise FrameError(text) from None

    @property
    def names(self) -> list[str]:
        """Return the names of all workers' machines."""
        return [worker.name if worker else "" for worker in self.workers]

    async def run(self, request: dict[str, Any], tell: Send) -> int:
        """Run a step and return its exit code.

        Args:
            request: What `srun` asks for.
            tell: Hears of output and ends.
        """
        dealt = self._deal(request)
        if isinstance(dealt, str):
            await tell({"error": dealt})
            return 1
        self._made += 1
        tasks = sum(len(each) for each in dealt.values())
        step = Step(self._made - 1, tell, tasks, kill=bool(request.get("kill")))
        self._steps[step.number] = step
        order = self._order(request, step.number, tasks, dealt)
        try:
            for node, mine in dealt.items():
                step.nodes[node] = set(mine)
                await self._send(node, {"run": {**order, "tasks": list(mine)}})
            await step.ended.wait()
        finally:
            del self._steps[step.number]
            if step.left > 0:
                await self.stop(step)
        return step.code()

    async def stop(self, step: Step | None) -> None:
        """End a step, or all."""
        number = None if step is None else step.number
        for node in range(len(self.workers)):
            if step is None or node in step.nodes:
                await self._send(node, {"stop": number})

    async def signal(self, number: int, step: int | None = None) -> None:
        """Send a signal to the tasks of a step, or of all."""
        for node in range(len(self.workers)):
            await self._send(node, {"signal": number, "step": step})

    async def close(self) -> None:
        """Tell the workers that the job is over, and wait until they are gone."""
        self._over = True
        for worker in self.workers:
            if worker is not None and worker.writer is not None:
                with contextlib.suppress(ConnectionError):
                    await frames.send(worker.writer, {"over": True})
        for server in self._servers:
            server.close()
        if serving := [task for task in self._serving if task is not None]:
            await asyncio.wait(serving, timeout=PROVE_WITHIN_S)

    def _deal(self, request: dict[str, Any]) -> dict[int, range] | str:
        """Return the tasks of each node, or why there are none."""
        plan, names = self._plan, request.get("nodelist") or []
        chosen = list(range(plan["nodes"]))
        if names:
            unknown = [name for name in names if name not in self.names]
            if unknown:
                return f"node {unknown[0]!r} is not in this job: {','.join(self.names)}"
            chosen = [self.names.index(name) for name in dict.fromkeys(names)]
        nodes = request.get("nodes") or 0
        tasks = request.get("tasks") or 0
        per_node = request.get("tasks_per_node") or 0
        if nodes > len(chosen):
            return f"it asks for {nodes} nodes of {len(chosen)}"
        whole = not (nodes or tasks or names)
        nodes = nodes or (min(len(chosen), tasks) if tasks else len(chosen))
        if not tasks:
            tasks = per_node * nodes if per_node else plan["tasks"] if whole else nodes
        nodes = min(nodes, tasks)
        return dict(zip(chosen[:nodes], spread(tasks, nodes), strict=True))

    def _order(
        self, request: dict[str, Any], number: int, tasks: int, dealt: dict[int, range]
    ) -> dict[str, Any]:
        names = [self.names[node] for node in dealt]
        env = {
            **request["env"],
            "SLURM_STEP_ID": str(number),
            "SLURM_STEPID": str(number),
            "SLURM_STEP_NUM_TASKS": str(tasks),
            "SLURM_STEP_NUM_NODES": str(len(dealt)),
            "SLURM_STEP_NODELIST": ",".join(names),
            "SLURM_STEP_TASKS_PER_NODE": repeated([len(each) for each in dealt.values()]),
            "SLURM_TASKS_PER_NODE": repeated([len(each) for each in dealt.values()]),
            "SLURM_NTASKS": str(tasks),
            "SLURM_NPROCS": str(tasks),
            "SLURM_NNODES": str(len(dealt)),
            "SLURM_LAUNCH_NODE_IPADDR": self.names[0],
        }
        return {
            "step": number,
            "argv": request["argv"],
            "env": env,
            "folder": request["folder"],
            "gpus_per_task": request.get("gpus_per_task") or 0,
        }

    async def _send(self, node: int, message: dict[str, Any]) -> None:
        worker = self.workers[node]
        if worker is None or (node and worker.writer is None):
            self._lost(node)
        elif worker.writer is None:
            obey(self._tasks, message, self._heard)
        else:
            try:
                await frames.send(worker.writer, message)
            except ConnectionError:
                self._lost(node)

    async def _heard(self, message: dict[str, Any]) -> None:
        """Take what a worker tells of a task."""
        step = self._steps.get(message.get("step", -1))
        if step is None:
            return
        with contextlib.suppress(ConnectionError):
            await step.tell(message)
        if "code" in message:
            step.end(message["task"], message["code"])
            if step.kill and message["code"] and step.left > 0:
                await self.stop(step)

    def _lost(self, node: int) -> None:
        for step in list(self._steps.values()):
            for task in step.nodes.get(node, ()):
                step.end(task, LOST)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one of the other workers."""
        node, served = 0, asyncio.current_task()
        self._serving.add(served)
        try:
            node = await asyncio.wait_for(self._know(reader, writer), PROVE_WITHIN_S)
            while node and (message := await frames.receive(reader)) is not None:
                await self._heard(message)
        except (FrameError, asyncio.TimeoutError, ConnectionError) as error:
            warn(f"slurm: a connection is refused: {error}")
        finally:
            if node and not self._over:
                warn(f"slurm: worker {node} is gone")
                self.workers[node] = Worker(self.names[node])
                self._lost(node)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._serving.discard(served)

    async def _know(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """Return the number of the worker at the other end.

        Raises:
            FrameError: It is none of this job's, or there is one already.
        """
        key, made_up = self._plan.get("key", ""), frames.nonce()
        await frames.send(writer, {"nonce": made_up})
        message = await frames.receive(reader)
        if not key or not frames.proves(message, key, "worker", made_up):
            msg = "it does not know the key of this job"
            raise FrameError(msg)
        assert message is not None
        node = message.get("node")
        if not isinstance(node, int) or not 0 < node < len(self.workers) or self.workers[node]:
            msg = f"there is no place for a worker {node!r}"
            raise FrameError(msg)
        shown = frames.proof(key, "leader", str(message.get("nonce")))
        await frames.send(writer, {"proof": shown})
        self.workers[node] = Worker(writer.get_extra_info("peername")[0], writer)
        if all(self.workers):
            self._met.set()
        return node

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one `srun`: what it asks for, and its signals; when it is gone, its step ends."""

        async def tell(message: dict[str, Any]) -> None:
            await frames.send(writer, message)

        try:
            request = await frames.receive(reader)
            if request is None:
                return
            running = asyncio.ensure_future(self.run(request, tell))
            hearing = asyncio.ensure_future(self._hear_signals(reader))
            await asyncio.wait((running, hearing), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                hearing.cancel()
                await tell({"end": running.result()})
            else:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        except (FrameError, ConnectionError, KeyError) as error:
            warn(f"srun: {error}")
        finally:
            writer.close()

    async def _hear_signals(self, reader: asyncio.StreamReader) -> None:
        while (message := await frames.receive(reader)) is not None:
            if isinstance(number := message.get("signal"), int):
                await self.signal(number, self._made - 1)


def obey(tasks: Tasks, message: dict[str, Any], send: Send) -> None:
    """Do what the leader says on one worker."""
    if "run" in message:
        keep(tasks.run(message["run"], send))
    elif "stop" in message:
        keep(tasks.stop(message["stop"]))
    elif "signal" in message:
        tasks.signal(message.get("step"), signal.Signals(message["signal"]))


KEPT: set[asyncio.Future[Any]] = set()
"""Tasks that run; asyncio itself forgets them."""


def keep(making: Any) -> None:
    """Have something run by itself."""
    future = asyncio.ensure_future(making)
    KEPT.add(future)
    future.add_done_callback(KEPT.discard)


async def follow(plan: dict[str, Any], node: int, address: tuple[str, int]) -> int:
    """Do what the leader says until the job is over; return the exit code of this worker.

    Args:
        plan: The job's plan.
        node: The number of this worker.
        address: Where the leader is.

    Raises:
        FrameError: The leader does not know the key, or is none.
    """
    reader, writer = await _reach(address)
    tasks = Tasks(node, writer.get_extra_info("sockname")[0])
    try:
        await _prove(plan.get("key", ""), node, reader, writer)
        await _obey_all(tasks, reader, writer)
    finally:
        await tasks.stop(None)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return 0


async def _prove(
    key: str, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Show the leader that this is a worker of its job, and have it show as much.

    Raises:
        FrameError: The leader does not.
    """
    made_up = frames.nonce()
    greeting = await frames.receive(reader) or {}
    shown = frames.proof(key, "worker", str(greeting.get("nonce")))
    await frames.send(writer, {"proof": shown, "nonce": made_up, "node": node})
    if not frames.proves(await frames.receive(reader), key, "leader", made_up):
        msg = "the leader does not know the key of this job"
        raise FrameError(msg)


async def _obey_all(
    tasks: Tasks, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Do what the leader says until it says that the job is over.

    Raises:
        FrameError: The leader is gone before that.
    """
    lock = asyncio.Lock()

    async def send(message: dict[str, Any]) -> None:
        async with lock:
            await frames.send(writer, message)

    while (message := await frames.receive(reader)) is not None:
        if message.get("over"):
            return
        obey(tasks, message, send)
    msg = "the first worker is gone"
    raise FrameError(msg)


async def _reach(address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MEET_WITHIN_S
    while True:
        try:
            return await asyncio.open_connection(*address, limit=LINE_BYTES_MAX)
        except OSError as error:
            if loop.time() > deadline:
                msg = f"the first worker cannot be reached: {error}"
                raise FrameError(msg) from None
            await asyncio.sleep(RETRY_EVERY_S)
