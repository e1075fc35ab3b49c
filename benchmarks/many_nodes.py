"""What a thousand agents cost the services that hear them.

    python -m benchmarks many_nodes [--nodes 1000] [--gpus 8] [--jobs 1000] [--seconds 30]

The bus and the services are real and are processes of their own. The agents are the production
agent's machine, each with a connection, an identity and an account of its own; the processes of
jobs are not there, and what they would say of their mini-batches is made up. Every agent says each
second that it lives and what its jobs did. Measured, while the jobs run: the processor time of each
process, and how long the gateway takes for what `skep ps` and `skep node ls` ask.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._sample import percentiles, say
from skep.machines.agent import (
    AgentMachine,
    ForgetRun,
    ListRuns,
    Published,
    PublishEvent,
    RankStats,
    RunsListed,
    StartRank,
    StopRun,
)
from skep.machines.base import Call, Record, Restarted, Send, Tick
from skep.units import MIB, Instant
from skep.wire import codec, subjects
from skep.wire.node import Gpu, NodeJoined
from skep.wire.reports import RankProgress
from skep.wire.runs import RunExited, RunStarted
from skep_services.adapters import nats_access, nats_server
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.ports import Delivery
from skep_services.supervisor import boot, ports
from skep_services.supervisor import home as folder
from skep_services.supervisor.config import HOST, Cluster, NodeConfig, Wishes, settle
from skep_services.supervisor.table import ChildPlan, cluster_plan
from tests.support.embedded import DIRECT, SKEP

VC = "default"
STEP_S = 0.03
STATS_EVERY_S = 1.0
JOINED_AT_ONCE = 50
ASKED = 20
"""Times that the gateway is asked for each view."""
WITHIN_S = 300.0


class Agent:
    """One node: the production machine, and processes that are made up."""

    def __init__(self, name: str, gpus: int, bus: NatsBus) -> None:
        """Prepare a node that has not joined."""
        self.bus = bus
        self.runs: dict[str, tuple[StartRank, RunStarted]] = {}
        self.ready = False
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._machine = AgentMachine(
            NodeJoined(
                node=name,
                identity=secrets.token_hex(16),
                incarnation=0,
                address=HOST,
                ports=(20_000, 20_499),
                gpus=tuple(
                    Gpu(index=at, uuid=f"{name}-{at}", type="cpu", memory=80_000 * MIB)
                    for at in range(gpus)
                ),
                cpus=64,
                memory=1_000_000 * MIB,
            )
        )

    async def join(self) -> None:
        """Take commands, and say what is there."""
        await self.bus.listen(subjects.command(self._name), self._heard)
        self.take(Restarted(epoch=1))

    def take(self, event: Any) -> None:
        """Have the machine decide, and carry out what it asks for."""
        now = Instant(time.time_ns())
        for effect in self._machine.decide(event, now):
            match effect:
                case Record():
                    pass  # Nothing here has to outlive this process.
                case Send():
                    self._spawn(self._send(effect))
                case Call():
                    self._loop.call_soon(self._call, effect.command)
        if self._timer is not None:
            self._timer.cancel()
        wake = self._machine.wake_at()
        if wake is not None:
            after_s = max(0.0, (wake - time.time_ns()) / 1e9)
            self._timer = self._loop.call_later(after_s, self.take, Tick())

    async def leave(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._sending:
            task.cancel()
        await self.bus.close()

    def tell_progress(self) -> None:
        """Say for each process how far its training is."""
        now = time.time_ns()
        for start, started in list(self.runs.values()):
            steps = int((now - started.at) / 1e9 / STEP_S)
            progress = RankProgress(
                rank=start.plan.rank,
                steps=steps,
                step_ns=int(STEP_S * 1e9),
                last_step_at=Instant(now),
                utilisation=913,
                memory=3000 * MIB,
            )
            self.take(RankStats(start.command.job, start.command.attempt, progress))

    async def _heard(self, delivery: Delivery) -> None:
        event = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        self.take(event)

    def _call(self, command: Any) -> None:
        match command:
            case ListRuns():
                self.take(RunsListed(()))
                self.ready = True
            case StartRank():
                started = RunStarted(
                    command.token, 1000 + len(self.runs), 1, Instant(time.time_ns())
                )
                self.runs[command.token] = command, started
                self.take(started)
            case StopRun():
                if self.runs.pop(command.token, None) is not None:
                    at = Instant(time.time_ns())
                    self.take(RunExited(command.token, 0, at, asked=True))
            case PublishEvent():
                self._spawn(self._publish(command))
            case ForgetRun():
                pass
            case _:
                text = f"the bench does not know what {command!r} is"
                raise AssertionError(text)

    async def _publish(self, event: PublishEvent) -> None:
        await self.bus.publish(event.subject, codec.encode(event.message), event.key, {})
        self.take(Published(event.event))

    async def _send(self, effect: Send) -> None:
        await self.bus.send(effect.subject, codec.encode(effect.message), dict(effect.headers))

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


class Services:
    """The bus and the services of a cluster, without agents."""

    def __init__(self, home: Path, nodes: int, gpus: int) -> None:
        """Prepare a cluster in `home`."""
        self.home = str(home)
        self.cluster = _cluster(self.home, nodes, gpus)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    async def start(self) -> None:
        """Start everything, and wait until the gateway answers."""
        folder.write_json(folder.cluster_path(self.home), msgspec.to_builtins(self.cluster))
        boot.write_files(self.home, self.cluster)
        plan = cluster_plan(self.cluster, self.home, str(nats_server.binary()))
        self._begin(plan.bus)
        await asyncio.to_thread(_until_listening, plan.bus.port)
        await boot.prepare(self.home, self.cluster)
        for child in plan.services:
            self._begin(child)
        await asyncio.to_thread(_until, lambda: self.ask("/v1/nodes") is not None)

    def stop(self) -> None:
        """Stop everything."""
        for child in reversed(self._children.values()):
            child.send_signal(signal.SIGTERM)
        for child in self._children.values():
            child.wait(timeout=WITHIN_S)

    def processor_s(self) -> dict[str, float]:
        """Return the processor seconds that each process has used."""
        ticks = os.sysconf("SC_CLK_TCK")
        found = {}
        for name, child in self._children.items():
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / ticks
        return found

    def resident_mb(self) -> dict[str, float]:
        """Return the memory of each process."""
        page = os.sysconf("SC_PAGE_SIZE")
        found = {}
        for name, child in self._children.items():
            pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
            found[name] = round(pages * page / 1e6, 1)
        return found

    def ask(self, path: str) -> Any:
        """Return an answer of the gateway, or None while there is none."""
        gateway = self.cluster.gateway
        request = urllib.request.Request(gateway.url + path)  # noqa: S310 - it is this bench's own
        request.add_header("Authorization", f"Bearer {gateway.tokens['operator']}")
        try:
            with DIRECT.open(request, timeout=30) as answer:
                return json.loads(answer.read())
        except OSError:
            return None

    async def bus(self, identity: str) -> NatsBus:
        """Return a connection of an identity."""
        nats = self.cluster.nats
        url = nats.tenants if identity.startswith("vc-") else nats.url
        options = LinkOptions(
            servers=(url,), identity=identity, password=nats.users[identity], connect_within_s=60.0
        )
        return await NatsBus.connect(options, _lost)

    def _begin(self, child: ChildPlan) -> None:
        os.makedirs(child.state, mode=0o700, exist_ok=True)
        with open(child.log_path, "ab") as log:
            self._children[child.name] = subprocess.Popen(
                child.argv, env=child.env, stdout=log, stderr=log, cwd=child.state
            )


def _cluster(home: str, nodes: int, gpus: int) -> Cluster:
    """Return a cluster of so many nodes, each with its user on the bus."""
    cluster = settle(None, Wishes(nodes=1, gpus=gpus, port=0), home)
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    cluster.nodes = [NodeConfig(name=name, gpus=gpus, ports=(20_000, 20_499)) for name in names]
    cluster.vcs = {VC: msgspec.structs.replace(cluster.vcs[VC], gpus=nodes * gpus)}
    cluster.nats.url = f"nats://{HOST}:{ports.free_port()}"
    cluster.nats.tenants = f"nats://{HOST}:{ports.free_port()}"
    cluster.gateway.url = f"http://{HOST}:{ports.free_port()}"
    cluster.nats.users = nats_access.new_passwords(names, [VC])
    return cluster


def _until_listening(port: int) -> None:
    _until(lambda: not ports.is_free(port))


def _until(look: Any) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not look():
        if time.monotonic() > deadline:
            text = f"not within {WITHIN_S:.0f} s"
            raise TimeoutError(text)
        # tidy: allow sleep because it looks at a condition until a deadline
        time.sleep(0.05)


def _lost(error: Exception) -> None:
    text = f"the bus is lost: {error}"
    raise RuntimeError(text)


async def _join_all(services: Services, names: Sequence[str], gpus: int) -> list[Agent]:
    """Return every agent, once each has joined."""
    agents: list[Agent] = []
    for at in range(0, len(names), JOINED_AT_ONCE):
        part = names[at : at + JOINED_AT_ONCE]
        buses = await asyncio.gather(*(services.bus(f"node-{name}") for name in part))
        for name, bus in zip(part, buses, strict=True):
            agent = Agent(name, gpus, bus)
            agents.append(agent)
            await agent.join()
    return agents


async def _submit(services: Services, jobs: int) -> None:
    tenant = await services.bus(nats_access.vc_identity(VC))
    spec = {"name": "many", "vc": VC, "command": ["train"], "resources": {"gpus": 1}}
    payload = json.dumps(spec).encode()
    try:
        for at in range(jobs):
            await tenant.publish(subjects.submit(VC), payload, f"many-{at}", {})
    finally:
        await tenant.close()


async def _until_running(agents: Sequence[Agent], jobs: int) -> float:
    """Return after how many seconds all jobs run."""
    began = time.monotonic()
    while sum(len(agent.runs) for agent in agents) < jobs:
        if time.monotonic() - began > WITHIN_S:
            running = sum(len(agent.runs) for agent in agents)
            text = f"{running} of {jobs} jobs run after {WITHIN_S:.0f} s"
            raise TimeoutError(text)
        # tidy: allow sleep because it looks at a condition until a deadline
        await asyncio.sleep(0.2)
    return time.monotonic() - began


async def _stats(agents: Sequence[Agent]) -> None:
    """Have the jobs say how far they are, spread over each second."""
    parts = 20
    while True:
        for part in range(parts):
            # tidy: allow sleep because jobs say it in real time
            await asyncio.sleep(STATS_EVERY_S / parts)
            for agent in agents[part::parts]:
                agent.tell_progress()


async def _ask_often(services: Services, path: str) -> dict[str, float]:
    took = []
    for _ in range(ASKED):
        began = time.perf_counter()
        answer = await asyncio.to_thread(services.ask, path)
        took.append((time.perf_counter() - began) * 1000)
        assert answer is not None, path
    return percentiles(took)


def _ps_command(services: Services) -> dict[str, float]:
    """Return how long the `skep ps` command takes as a process, in ms."""
    took = []
    environment: Mapping[str, str] = {**os.environ, "SKEP_HOME": services.home}
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([*SKEP, "ps"], env=environment, check=True, capture_output=True)
        took.append((time.perf_counter() - began) * 1000)
    return percentiles(took)


async def measure(nodes: int, gpus: int, jobs: int, seconds: float) -> dict[str, Any]:
    """Return what each process used while so many agents spoke, and how quick the gateway was."""
    with tempfile.TemporaryDirectory(prefix="skep-many-") as home:
        services = Services(Path(home), nodes, gpus)
        try:
            await services.start()
            say(f"{nodes} agents join")
            began = time.monotonic()
            names = [node.name for node in services.cluster.nodes]
            agents = await _join_all(services, names, gpus)
            joined_s = time.monotonic() - began
            telling = asyncio.create_task(_stats(agents))
            say(f"joined in {joined_s:.1f} s; {jobs} jobs are submitted")
            await _submit(services, jobs)
            running_s = await _until_running(agents, jobs)
            say(f"all run after {running_s:.1f} s; measuring for {seconds:.0f} s")
            before, began = services.processor_s(), time.monotonic()
            own = time.process_time()
            # tidy: allow sleep because what passes in real time is measured
            await asyncio.sleep(seconds)
            own_s = time.process_time() - own
            wall_s = time.monotonic() - began
            after = services.processor_s()
            views = {path: await _ask_often(services, path) for path in ("/v1/jobs", "/v1/nodes")}
            command = await asyncio.to_thread(_ps_command, services)
            memory = services.resident_mb()
            telling.cancel()
            await asyncio.gather(*(agent.leave() for agent in agents))
        finally:
            await asyncio.to_thread(services.stop)
    used = {name: round((after[name] - before[name]) / wall_s * 100, 1) for name in after}
    return {
        "nodes": nodes,
        "jobs": jobs,
        "joined_s": round(joined_s, 1),
        "running_s": round(running_s, 1),
        "percent_of_a_core": used,
        "agents_percent_of_a_core": round(own_s / wall_s * 100, 1),
        "memory_mb": memory,
        "answer_ms": views,
        "ps_command_ms": command,
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return what so many agents cost."""
    return asyncio.run(measure(given.nodes, given.gpus, given.jobs, given.seconds))
