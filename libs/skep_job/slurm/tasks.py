"""The tasks of a step on one worker: their processes, their output, and how they ended."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from skep_job.slurm.frames import PIECE_BYTES

Send = Callable[[dict[str, Any]], Awaitable[None]]
NOT_FOUND, NOT_EXECUTABLE = 127, 126
KILL_AFTER_S = 5.0


class Tasks:
    """Runs what the batch process is told to run, and tells of it by `send`."""

    def __init__(self, node: int, name: str) -> None:
        self._node = node
        self._name = name
        self._steps: dict[int, list[asyncio.subprocess.Process]] = {}

    async def run(self, order: dict[str, Any], send: Send) -> None:
        """Run the tasks of a step; return when all have ended and all has been told."""
        step = order["step"]
        self._steps[step] = []
        try:
            await asyncio.gather(*(self._task(order, task, send) for task in order["tasks"]))
        finally:
            del self._steps[step]

    def signal(self, step: int | None, number: int) -> None:
        """Send a signal to the processes of a step, or of all steps."""
        for each, processes in self._steps.items():
            if step in (None, each):
                for process in processes:
                    if process.returncode is None:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(process.pid, number)

    async def stop(self, step: int | None) -> None:
        """End a step, by force if it takes too long."""
        self.signal(step, signal.SIGTERM)
        living = [
            process.wait()
            for each, processes in self._steps.items()
            if step in (None, each)
            for process in processes
        ]
        if living:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.gather(*living), KILL_AFTER_S)
        self.signal(step, signal.SIGKILL)

    async def _task(self, order: dict[str, Any], task: int, send: Send) -> None:
        step, pipe = order["step"], asyncio.subprocess.PIPE
        head = {"step": step, "task": task, "node": self._node}
        env = self._environment(order, task)
        try:
            process = await asyncio.create_subprocess_exec(
                *order["argv"],
                env=env,
                cwd=order["folder"],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                preexec_fn=os.setpgrp,
            )
        except OSError as error:
            text = f"srun: error: {error.filename or order['argv'][0]}: {error.strerror}\n"
            await send({**head, "err": base64.b64encode(text.encode()).decode()})
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            await send({**head, "code": code})
            return
        self._steps[step].append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(
            self._pump(process.stdout, head, "out", send),
            self._pump(process.stderr, head, "err", send),
        )
        await send({**head, "code": await process.wait()})

    async def _pump(
        self, pipe: asyncio.StreamReader, head: dict[str, Any], name: str, send: Send
    ) -> None:
        while piece := await pipe.read(PIECE_BYTES):
            await send({**head, name: base64.b64encode(piece).decode()})

    def _environment(self, order: dict[str, Any], task: int) -> dict[str, str]:
        local = order["tasks"].index(task)
        env = dict(order["env"])
        mine = {name: value for name, value in os.environ.items() if name.startswith("SKEP_")}
        # What is the worker's own, of all that the script's worker has set.
        for name in ("CUDA_VISIBLE_DEVICES", "SKEP_RANK", "SKEP_RUN", "SKEP_RANK_SECRET"):
            env.pop(name, None)
        env |= {name: value for name, value in mine.items() if not name.startswith("SKEP_SLURM_")}
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        if devices is not None:
            env["CUDA_VISIBLE_DEVICES"] = _share(devices, order.get("gpus_per_task", 0), local)
        env |= {
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(self._node),
            "SLURM_GTIDS": ",".join(map(str, order["tasks"])),
            "SLURMD_NODENAME": self._name,
        }
        return env


def _share(devices: str, of_each: int, local: int) -> str:
    """Return the GPUs of one task: all of the worker's, or its own where it asks for some."""
    if not of_each or not devices:
        return devices
    return ",".join(devices.split(",")[local * of_each : (local + 1) * of_each])


def write(stream: int, piece: bytes) -> None:
    """Write all of a piece to a descriptor."""
    view = memoryview(piece)
    while view:
        view = view[os.write(stream, view) :]


def warn(text: str) -> None:
    """Tell something in the job's log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
