"""Sessions in jobs: how soon a prompt is there, and what 100 terminals cost the gateway.

    python -m benchmarks terminals [--sessions 100] [--seconds 10] [--keys 5] [--prompts 20]

An embedded cluster with jobs that sleep. `prompt_ms` is the time from a client's request for a
session (`skep exec`) until the first output of the command in the job; `command_ms` is that of the
whole command `skep exec JOB -- true`, with the start of Python. Then so many terminals are attached
at once, in each a person presses `keys` keys a second, and each key is echoed by a program in the
job: `echo_ms` is until it is seen again. `gateway_cores` is the processor time of the gateway for a
second of that. `within_limit`: the median prompt takes 300 ms at most, and the gateway one core.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks._sample import say
from skep.wire import codec, terminal
from skep.wire.terminal import Frame, Kind, Open
from tests.support.embedded import Embedded

PER_JOB = 25
"""Sessions in each job; a process of a job takes 32."""
PROMPT_MS_MAX = 300.0
CORES_MAX = 1.0
WITHIN_S = 60.0
ECHO = ("sh", "-c", "stty -echo; echo ready; exec cat")


def options(parser: argparse.ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--keys", type=int, default=5, help="a second, in each session")
    parser.add_argument("--prompts", type=int, default=20)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Embedded(Path(folder) / "home")
        jobs = -(-given.sessions // PER_JOB)
        try:
            cluster.up("--nodes", "1", "--gpus", str(jobs), "--port", "0")
            names = [cluster.skep("run", "-d", "--", "sleep", "3600").strip() for _ in range(jobs)]
            for name in names:
                cluster.started(name)
            say("prompts")
            commands = [_command(cluster, names[0]) for _ in range(given.prompts)]
            return asyncio.run(_measured(cluster, names, commands, given))
        finally:
            cluster.down()


def _command(cluster: Embedded, job: str) -> float:
    began = time.perf_counter()
    words = (sys.executable, "-m", "skep_services", "exec", job, "--", "true")
    subprocess.run(words, env=cluster.environment, check=True, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


class Person:
    """One session, and the times that its keys took."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.echoes: list[float] = []
        self._used = 0

    async def say(self, kind: Kind, body: bytes = b"") -> None:
        await self._socket.send_bytes(terminal.pack(Frame(kind, body)))

    async def close(self) -> None:
        await self._socket.close()

    async def output(self) -> bytes:
        """Return the next output, having said that it was used."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                message = await self._socket.receive()
                frame = terminal.unpack(message.data)
                assert frame is not None
                assert frame.kind is not Kind.OVER, frame.body
                if frame.kind is Kind.OUTPUT:
                    self._used += terminal.cost(frame.body)
                    await self.say(Kind.USED_UP, terminal.USED.pack(self._used))
                    return frame.body

    async def begin(self) -> None:
        wanted = Open(argv=ECHO, terminal=True)
        await self.say(Kind.OPEN, codec.encode(wanted))
        said = b""
        while b"ready" not in said:
            said += await self.output()

    async def type(self, seconds: float, keys: int, position: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time() + position / keys
        for number in range(int(seconds * keys)):
            await asyncio.sleep(max(0.0, begun + number / keys - loop.time()))
            pressed = time.perf_counter()
            await self.say(Kind.INPUT, b"x\n")
            said = b""
            while b"x" not in said:
                said += await self.output()
            self.echoes.append((time.perf_counter() - pressed) * 1000)
            await self.say(Kind.ALIVE)


async def _measured(
    cluster: Embedded, jobs: list[str], commands: list[float], given: argparse.Namespace
) -> dict[str, Any]:
    gateway = cluster.about["gateway"]
    url, tokens = gateway["url"], gateway["tokens"]
    headers = {"Authorization": f"Bearer {tokens['operator']}"}
    pid = cluster.entry("gateway")["pid"]
    async with aiohttp.ClientSession(headers=headers) as session:

        async def opened(job: str) -> Person:
            socket = await session.ws_connect(f"{url}/v1/jobs/{job}/terminal")
            return Person(socket)

        prompts = []
        for _ in range(given.prompts):
            began = time.perf_counter()
            person = await opened(jobs[0])
            await person.begin()
            prompts.append((time.perf_counter() - began) * 1000)
            await person.close()
        say(f"{given.sessions} terminals")
        people = [await opened(jobs[number // PER_JOB]) for number in range(given.sessions)]
        for each in people:
            await each.begin()
        before, began = _cpu_s(pid), time.perf_counter()
        count = len(people)
        async with asyncio.TaskGroup() as group:
            for number, each in enumerate(people):
                group.create_task(each.type(given.seconds, given.keys, number / count))
        cores = (_cpu_s(pid) - before) / (time.perf_counter() - began)
        for each in people:
            await each.close()
    echoes = sorted(echo for each in people for echo in each.echoes)
    prompt = _percentile(sorted(prompts), 50)
    return {
        "sessions": given.sessions,
        "prompt_ms": {"median": prompt, "p99": _percentile(sorted(prompts), 99)},
        "command_ms": {"median": _percentile(sorted(commands), 50)},
        "echo_ms": {"median": _percentile(echoes, 50), "p99": _percentile(echoes, 99)},
        "keys_count": len(echoes),
        "gateway_cores": cores,
        "within_limit": prompt <= PROMPT_MS_MAX and cores <= CORES_MAX,
    }


def _percentile(values: list[float], percent: int) -> float:
    return values[min(len(values) - 1, len(values) * percent // 100)]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
