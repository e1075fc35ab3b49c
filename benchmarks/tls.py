"""What encryption costs: accepted submissions per second with TLS and without.

    python -m benchmarks tls [--rounds 40] [--seconds 0.5] [--paths bus,door,gateway]

Two clusters run at the same time, one in plain text and one with mutual TLS on the bus, TLS at the
door and HTTPS at the gateway: each has a bus server that syncs every write, a door, a gateway and
an admission, as processes of their own. Rounds alternate between them, and which is first
alternates too, so what else the machine does meets both alike. Paths:

- `bus`      a service publishes submissions, 256 under way;
- `door`     a tenant publishes them through the door, 256 under way;
- `serial`   a tenant publishes one after the other through the door;
- `gateway`  32 connections post jobs and wait for their verdicts.

`ratio` is submissions per second with TLS over those without, of pairs of rounds, and of all rounds
together (`of_all`, in which one that the machine stalled counts as it was). `cpu_us` is what all
processes took for a submission, `cluster_cpu_us` without the client, which is this process.
`within_limit` is whether the medians of `ratio` are 0.9 or more for `bus`, `door` and `gateway`.
Rounds are short so that a pair meets the same machine. Handshakes are measured apart: connections
that are made and closed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._sample import extremes, say
from skep.wire import codec, subjects
from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep_services.adapters.nats_access import (
    ADMISSION_SERVICE,
    BOOTSTRAP,
    DOOR,
    GATEWAY,
    OPERATOR,
    accounts,
    behind_door,
    new_passwords,
    vc_identity,
)
from skep_services.adapters.nats_api import PubAck, publish_once
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.adapters.nats_server import Server, free_port
from skep_services.adapters.nats_streams import bootstrap_streams
from skep_services.pki.authority import Authority
from skep_services.pki.files import TlsFiles, client_context

HOST = "127.0.0.1"
VC = "bench"
PATHS = ("bus", "door", "serial", "gateway")
JUDGED = ("bus", "door", "gateway")
RATIO_MIN = 0.9
"""TLS may cost a tenth of the submissions per second."""
WINDOW = 256
POSTERS = 32
PATIENCE_S = 10.0
TICKS = os.sysconf("SC_CLK_TCK")
SPEC = {"name": "hello", "vc": VC, "command": ["hostname"], "env": {"MODEL": "resnet50"}}
OPERATOR_TOKEN = "bench"  # noqa: S105 - of a cluster that lives for a minute


class Side:
    """A cluster, encrypted or not."""

    def __init__(self, folder: Path, *, encrypted: bool) -> None:
        folder.mkdir()
        self.folder = folder
        self.files = _certificates(folder) if encrypted else None
        self.passwords = new_passwords((), (VC,))
        every = accounts(behind_door(self.passwords, (VC,)), (), (VC,))
        self.server = Server(folder / "nats", every, tls=self.files)
        self.door_port, self.gateway_port = free_port(), free_port()
        self._processes: list[asyncio.subprocess.Process] = []
        self.connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._keys = itertools.count()

    async def start(self, stack: AsyncExitStack) -> None:
        """Start all processes; `stack` stops them."""
        stack.push_async_callback(self.server.kill)
        await self.server.start()
        await self.server.wait_healthy(BOOTSTRAP)
        boot = await self._bus(BOOTSTRAP, stack)
        await bootstrap_streams(boot, self.folder / "streams.json")
        operator = await self._bus(OPERATOR, stack)
        asked = codec.encode(SetVcs(vcs={VC: VirtualCluster(gpus=8)}))
        await operator.publish(subjects.admin("vcs"), asked, "vcs", {})
        tokens = self.folder / "tokens.json"
        tokens.write_text(json.dumps({OPERATOR_TOKEN: OPERATOR}))
        more = {
            ADMISSION_SERVICE: {},
            DOOR: {"SKEP_LISTEN": f"{HOST}:{self.door_port}"},
            GATEWAY: {"SKEP_LISTEN": f"{HOST}:{self.gateway_port}", "SKEP_TOKENS": str(tokens)},
        }
        for service, variables in more.items():
            await self._service(service, variables, stack)
        self.direct = (await self._bus(GATEWAY, stack)).link
        scheme = "tls" if self.files else "nats"
        url = f"{scheme}://{HOST}:{self.door_port}"
        trust = TlsFiles(ca=self.files.ca) if self.files else None
        tenant = await NatsBus.connect(self._options(vc_identity(VC), url, trust), _raise)
        stack.push_async_callback(tenant.close)
        self.tenant = tenant.link

    async def _service(self, name: str, more: dict[str, str], stack: AsyncExitStack) -> None:
        files = self.files or TlsFiles()
        named = zip(("CA", "CERT", "KEY"), (files.ca, files.certificate, files.key), strict=True)
        environment = {
            **os.environ,
            "SKEP_NATS_URL": self.server.url,
            "SKEP_NATS_USER": name,
            "SKEP_NATS_PASSWORD": self.passwords[name],
            "SKEP_STATE": str(self.folder / name),
            **{f"SKEP_TLS_{what}": str(path) for what, path in named if path},
            **more,
        }
        log_path = self.folder / f"{name}.log"
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"skep_services.{name}", env=environment, stderr=log
            )
        self._processes.append(process)
        stack.push_async_callback(process.wait)
        stack.callback(process.terminate)
        async with asyncio.timeout(60):
            while b'"ready"' not in log_path.read_bytes():
                assert process.returncode is None, log_path.read_text()
                await asyncio.sleep(0.05)

    async def _bus(self, identity: str, stack: AsyncExitStack) -> NatsBus:
        bus = await NatsBus.connect(self._options(identity, self.server.url, self.files), _raise)
        stack.push_async_callback(bus.close)
        return bus

    def _options(self, identity: str, url: str, tls: TlsFiles | None) -> LinkOptions:
        return LinkOptions(
            servers=(url,), identity=identity, password=self.passwords[identity], tls=tls
        )

    def hang_up(self) -> None:
        """Close the connections to the gateway."""
        for _, writer in self.connections:
            writer.close()

    def context(self) -> ssl.SSLContext | None:
        """Return what a client of the gateway encrypts with."""
        return client_context(self.files.ca) if self.files else None

    def key(self) -> str:
        """Return another idempotency key."""
        return f"key-{next(self._keys)}"

    def cpu_s(self) -> tuple[float, float]:
        """Return the processor seconds of the cluster's processes, and of this one."""
        pids = [self.server.pid, *(process.pid for process in self._processes)]
        return sum(map(_cpu_s, pids)), time.process_time()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _certificates(folder: Path) -> TlsFiles:
    authority = Authority.create(folder / "pki", "bench")
    files = TlsFiles(ca=folder / "ca.pem", certificate=folder / "c.pem", key=folder / "k.pem")
    authority.issue("bench", [HOST]).write(folder / "c.pem", folder / "k.pem")
    (folder / "ca.pem").write_bytes(authority.trust)
    return files


async def published(side: Side, link: Link, seconds: float, window: int) -> int:
    """Publish submissions until the time is up; return how many were accepted."""
    payload, subject = json.dumps(SPEC).encode(), subjects.submit(VC)
    ends_at, count = time.monotonic() + seconds, 0

    async def publish() -> None:
        nonlocal count
        while time.monotonic() < ends_at:
            headers = {"Nats-Msg-Id": side.key()}
            answer = await publish_once(link, subject, payload, headers, PATIENCE_S)
            assert isinstance(answer, PubAck), answer
            assert answer.error is None, answer
            count += 1

    await asyncio.gather(*(publish() for _ in range(window)))
    return count


async def posted(side: Side, _: Link, seconds: float, posters: int) -> int:
    """Post jobs until the time is up; return how many had a verdict."""
    body = json.dumps(SPEC).encode()
    context, count = side.context(), 0
    while len(side.connections) < posters:  # Once; handshakes are measured apart.
        connection = await asyncio.open_connection(HOST, side.gateway_port, ssl=context)
        side.connections.append(connection)
    ends_at = time.monotonic() + seconds

    async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while time.monotonic() < ends_at:
            head = (
                f"POST /v1/jobs HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {OPERATOR_TOKEN}\r\nIdempotency-Key: {side.key()}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            said = await reader.readexactly(int(length))
            assert answer.split()[1] == b"201", said
            count += 1

    await asyncio.gather(*(post(*connection) for connection in side.connections))
    return count


def ways(side: Side) -> dict[str, tuple[Callable[..., Awaitable[int]], Link, int]]:
    """Return how each path is gone."""
    return {
        "bus": (published, side.direct, WINDOW),
        "door": (published, side.tenant, WINDOW),
        "serial": (published, side.tenant, 1),
        "gateway": (posted, side.tenant, POSTERS),
    }


async def measure(
    folder: Path, rounds: int, seconds: float, paths: tuple[str, ...]
) -> dict[str, Any]:
    """Start both clusters, go each path on both in turn; return the figures."""
    async with AsyncExitStack() as stack:
        sides = {"plain": Side(folder / "plain", encrypted=False)}
        sides["tls"] = Side(folder / "tls", encrypted=True)
        for side in sides.values():
            await side.start(stack)
            stack.callback(side.hang_up)
        figures: dict[str, Any] = {}
        for path in paths:
            figures[path] = await _path(sides, path, rounds, seconds)
            say(f"{path}: {figures[path]}")
        figures["handshake_ms"] = await _handshakes(sides)
    ratios = {path: figures[path]["ratio"]["median"] for path in paths if path in JUDGED}
    figures["cost_percent"] = {path: round(100 * (1 - each), 1) for path, each in ratios.items()}
    figures["within_limit"] = all(each >= RATIO_MIN for each in ratios.values())
    return figures


class Rounds(NamedTuple):
    """What rounds on one side came to, one entry each."""

    counts: list[int]
    took_s: list[float]
    cluster_s: list[float]
    client_s: list[float]

    def figures(self) -> dict[str, Any]:
        """Return submissions per second, and what one costs."""
        count = sum(self.counts)
        cluster_us, client_us = (1e6 * sum(each) / count for each in self[2:])
        return {
            "n": count,
            "per_s": round(self.per_s(), 1),
            "round_per_s": extremes(self.rates(), 0),
            "cpu_us": round(cluster_us + client_us, 1),
            "cluster_cpu_us": round(cluster_us, 1),
        }

    def per_s(self) -> float:
        """Return submissions per second over all rounds."""
        return sum(self.counts) / sum(self.took_s)

    def rates(self) -> list[float]:
        """Return submissions per second in each round."""
        return [count / took for count, took in zip(self.counts, self.took_s, strict=True)]


async def _path(sides: dict[str, Side], path: str, rounds: int, seconds: float) -> dict[str, Any]:
    found = {name: Rounds([], [], [], []) for name in sides}
    for round_ in range(-2, rounds):
        for name in _order(tuple(sides), round_):
            side = sides[name]
            go, link, window = ways(side)[path]
            before, began = side.cpu_s(), time.monotonic()
            count = await go(side, link, seconds, window)
            took, after = time.monotonic() - began, side.cpu_s()
            if round_ >= 0:  # The first pairs warm up.
                spent = [later - earlier for later, earlier in zip(after, before, strict=True)]
                each_ = found[name]
                each_.counts.append(count)
                each_.took_s.append(took)
                each_.cluster_s.append(spent[0])
                each_.client_s.append(spent[1])
    plain, tls = found["plain"], found["tls"]
    pairs = [one / other for one, other in zip(tls.rates(), plain.rates(), strict=True)]
    figures = {name: each.figures() for name, each in found.items()}
    cpu = {
        f"{what}_ratio": round(figures["tls"][f"{what}_us"] / figures["plain"][f"{what}_us"], 3)
        for what in ("cpu", "cluster_cpu")
    }
    ratio = {"of_all": round(tls.per_s() / plain.per_s(), 3), **extremes(pairs, 3)}
    return {**figures, "ratio": ratio, **cpu}


def _order(names: tuple[str, ...], round_: int) -> Iterator[str]:
    return iter(names if round_ % 2 else names[::-1])


async def _handshakes(sides: dict[str, Side], count: int = 40) -> dict[str, Any]:
    """Return what a new connection to the gateway costs, until its first answer."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(count):
        for name, side in sides.items():
            began = time.monotonic()
            reader, writer = await asyncio.open_connection(
                HOST, side.gateway_port, ssl=side.context()
            )
            writer.write(f"GET /v1/vcs HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            took[name].append((time.monotonic() - began) * 1000)
            writer.close()
    return {name: round(statistics.median(values), 2) for name, values in took.items()}


def _raise(error: Exception) -> None:
    raise error


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--paths", default=",".join(PATHS), help="with commas")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return submissions per second with TLS and without, and their ratios."""
    with tempfile.TemporaryDirectory(prefix="skep-tls-") as folder:
        paths = tuple(given.paths.split(","))
        return asyncio.run(measure(Path(folder), given.rounds, given.seconds, paths))
