"""Measure accepted submissions per second on three bus servers against one.

    python -m benchmarks bus [--jobs 12000] [--window 256] [--runs 3] [--alone]

The servers are processes on loopback with the configuration that containers get, synced at every
write; on three of them every stream has three copies. A bare client publishes specs with `--window`
in flight and counts JetStream's acknowledgements; of `--runs` fresh clusters the middle one counts.
The services run as they do in containers, each that decides with its standby, but there are no
agents, so every job waits; `--alone` leaves the services out. All processes share this machine's
cores, and each copy is written to the same disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._sample import say
from skep_services.adapters import nats_access, nats_server
from skep_services.adapters.nats_streams import DriftedStreamError
from skep_services.compose import init
from skep_services.ports import MissingStreamError, RefusedError
from skep_services.supervisor import boot
from skep_services.supervisor.config import Cluster, Wishes, parse_vc
from tests.support.bare_client import BareClient, bare_client

VC = "bench"
HOST = "127.0.0.1"
JOBS, WINDOW, RUNS = 12_000, 256, 3
UP_WITHIN_S = 60.0
ADMITTED_WITHIN_S = 180.0
LOOK_S = 0.2
STOP_WITHIN_S = 20.0
TICKS = os.sysconf("SC_CLK_TCK")

Figures = dict[str, Any]


class Processes:
    """What was started here, by a name that several may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, argv: Sequence[str], environment: dict[str, str]) -> None:
        """Start a process; its output goes to a file."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("SKEP_")}
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                argv, env={**own, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._started.append((name.partition("-")[0], process))

    def cpu(self) -> dict[str, float]:
        """Return the CPU time so far by name, in s; raises RuntimeError if a process ended."""
        own = os.times()
        found = {"client": own.user + own.system}
        for name, process in self._started:
            if process.poll() is not None:
                message = f"{name} ended with {process.returncode}: {self.words(name)}"
                raise RuntimeError(message)
            words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = found.get(name, 0.0) + (int(words[11]) + int(words[12])) / TICKS
        return found

    def words(self, name: str) -> str:
        """Return the last line of each log of processes of a name."""
        logs = sorted(self._folder.glob(f"{name}*.log"))
        return " | ".join(log.read_text(errors="replace")[-300:] for log in logs)

    def stop(self) -> None:
        """End everything, the servers last."""
        for _, process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
        for _, process in reversed(self._started):
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_servers(processes: Processes, cluster: Cluster, folder: Path, count: int) -> None:
    """Start so many bus servers that know one another; the cluster's address becomes theirs."""
    nodes, vcs = [node.name for node in cluster.nodes], list(cluster.vcs)
    accounts = nats_access.accounts(cluster.nats.users, nodes, vcs, init.REPLICAS)
    clients = [nats_server.free_port() for _ in range(count)]
    routes = [nats_server.free_port() for _ in range(count)]
    for index, (client, route) in enumerate(zip(clients, routes, strict=True)):
        name = f"nats-{index + 1}"
        text = nats_server.config_text(
            port=client, store_dir=folder / name, accounts=accounts, server_name=name
        )
        if count > 1:
            known = json.dumps([f"nats-route://{HOST}:{one}" for one in routes])
            text += f'cluster {{ name: bench, listen: "{HOST}:{route}", routes: {known} }}\n'
        config = folder / f"{name}.conf"
        config.touch(mode=0o600)
        config.write_text(text)
        processes.start(name, (str(nats_server.binary()), "-c", str(config)), {})
    cluster.nats.url = ",".join(f"nats://{HOST}:{port}" for port in clients)


def start_services(processes: Processes, cluster: Cluster, folder: Path) -> None:
    """Start every service, each that decides with its standby."""
    for service in nats_access.SERVICES:
        known = nats_access.replica_identities(service, init.REPLICAS)
        for identity in known:
            more = {"SKEP_PEERS": ",".join(one for one in known if one != identity)}
            if service == nats_access.GATEWAY:
                more = {
                    "SKEP_LISTEN": f"{HOST}:{nats_server.free_port()}",
                    "SKEP_TOKENS": str(folder / "secrets" / "tokens.json"),
                }
            environment = {
                "SKEP_NATS_URL": cluster.nats.url,
                "SKEP_NATS_USER": identity,
                "SKEP_NATS_PASSWORD": cluster.nats.users[identity],
                "SKEP_STATE": str(folder / f"state-{identity}"),
                **more,
            }
            argv = (sys.executable, "-m", f"skep_services.{service}")
            processes.start(identity, argv, environment)


async def prepare(cluster: Cluster, folder: Path, replicas: int) -> None:
    """Make the streams, once the servers have found one another."""
    state = folder / "bootstrap"
    boot.marker_path(str(state)).parent.mkdir(parents=True)
    async with asyncio.timeout(UP_WITHIN_S):
        while True:
            try:
                await boot.prepare(str(state), cluster, replicas=replicas)
            except (MissingStreamError, DriftedStreamError, RefusedError, ConnectionError):
                await asyncio.sleep(LOOK_S)
            else:
                return


@contextlib.contextmanager
def running(servers: int, *, alone: bool) -> Iterator[tuple[Cluster, Processes]]:
    """Run a cluster with so many bus servers in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="skep-bench-bus-") as name:
        folder = Path(name)
        wishes = Wishes(nodes=2, gpus=8, vcs=dict([parse_vc(f"{VC}=16")]))
        cluster = init.write(folder / "secrets", wishes, init.CLIENT_PORT)
        processes = Processes(folder)
        try:
            start_servers(processes, cluster, folder, servers)
            asyncio.run(prepare(cluster, folder, servers))
            if not alone:
                start_services(processes, cluster, folder)
            yield cluster, processes
        finally:
            processes.stop()


@contextlib.asynccontextmanager
async def clients(cluster: Cluster) -> AsyncIterator[tuple[BareClient, BareClient]]:
    """Connect a tenant and an operator."""
    about = {"nats": {"url": cluster.nats.url, "users": cluster.nats.users}}
    async with bare_client(about, f"vc-{VC}") as tenant, bare_client(about, "operator") as operator:
        yield tenant, operator


async def queued(operator: BareClient, jobs: int) -> None:
    """Return once the active allocator has queued so many jobs, each of which is a fact."""
    async with asyncio.timeout(ADMITTED_WITHIN_S):
        while True:
            if await facts_of(operator, "allocator") >= jobs:
                return
            await asyncio.sleep(LOOK_S)


async def facts_of(operator: BareClient, service: str) -> int:
    """Return how many facts the active process of a service says there are, -1 without one."""
    try:
        answer = await operator.client.request(f"skep.v1.health.{service}", b"", timeout=1.0)
    except Exception:
        return -1
    return int(json.loads(answer.data)["facts"])


async def submit(cluster: Cluster, processes: Processes, given: argparse.Namespace) -> Figures:
    """Publish all specs; return acknowledgements per second and the CPU time of each."""
    async with clients(cluster) as (tenant, operator):
        if not given.alone:
            await queued(operator, 0)
        gate = asyncio.Semaphore(given.window)
        spec = {"name": "bench", "vc": VC, "command": ["true"]}
        payload = json.dumps(spec).encode()
        waited_ms = []

        async def one() -> None:
            async with gate:
                began = time.perf_counter()
                await tenant.publish(f"skep.v1.submit.{VC}", payload)
                waited_ms.append((time.perf_counter() - began) * 1000)

        before, began = processes.cpu(), time.perf_counter()
        await asyncio.gather(*(one() for _ in range(given.jobs)))
        took_s = time.perf_counter() - began
        spent = {name: cpu - before[name] for name, cpu in processes.cpu().items()}
        info = await operator.client.request("$JS.API.STREAM.INFO.SUBMIT", b"", timeout=5.0)
        figures: Figures = {
            "copies": json.loads(info.data)["config"]["num_replicas"],
            "accepted_per_second": round(given.jobs / took_s),
            "took_s": round(took_s, 2),
            "wait_ms_p50": round(sorted(waited_ms)[len(waited_ms) // 2], 1),
            "wait_ms_max": round(max(waited_ms), 1),
            "cores_busy": round(sum(spent.values()) / took_s, 2),
            "cpu_us_each": {name: round(s * 1e6 / given.jobs) for name, s in spent.items()},
        }
        if not given.alone:
            await queued(operator, given.jobs)
            figures["queued_per_second"] = round(given.jobs / (time.perf_counter() - began))
        return figures


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--window", type=int, default=WINDOW, help="publishes in flight")
    parser.add_argument("--runs", type=int, default=RUNS, help="fresh clusters of each size")
    parser.add_argument("--alone", action="store_true", help="the bus without services")


def run(given: argparse.Namespace) -> Figures:
    """Return the rate of every run, and of each size the middle one."""
    found: Figures = {}
    for servers, name in ((1, "one_server"), (3, "three_servers")):
        say(f"{servers} bus servers")
        runs = []
        for _ in range(given.runs):
            with running(servers, alone=given.alone) as (cluster, processes):
                runs.append(asyncio.run(submit(cluster, processes, given)))
        rates = [run["accepted_per_second"] for run in runs]
        found[name] = {"accepted_per_second": round(statistics.median(rates)), "runs": runs}
    return found
