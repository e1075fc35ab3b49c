"""What a tenant waits for an acknowledgement while others flood the bus.

    python -m benchmarks flood [--tenants 20] [--seconds 20] [--direct]

So many tenants write submissions into their connections as fast as these take them, and never read
an answer. One more submits one after the other, five in a second, and measures. First it does so
alone. `--direct` floods the server itself, for comparison: tenants otherwise go through the door.
The machine's load is told as well: a busy machine adds its own waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._sample import percentiles
from skep.wire import subjects
from skep_services.adapters.nats_access import (
    BOOTSTRAP,
    DOOR,
    accounts,
    behind_door,
    new_passwords,
    vc_identity,
)
from skep_services.adapters.nats_api import PubAck, StreamInfo, ask, publish_once
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.adapters.nats_server import Server, free_port
from skep_services.adapters.nats_streams import bootstrap_streams
from skep_services.supervisor.table import BUS_NICENESS

QUIET = "quiet"
PAUSE_S = 0.2
PAYLOAD = 512
WRITTEN_TOGETHER = 100
PATIENCE_S = 10.0
HOST = "127.0.0.1"


def flood(port: int, logins: list[tuple[str, str]], seconds: float) -> int:
    """Write submissions of all logins until the time is up; return the bytes that were taken."""
    rest: dict[socket.socket, bytes] = {}
    whole: dict[socket.socket, bytes] = {}
    for user, password in logins:
        one = socket.create_connection((HOST, port))
        one.recv(4096)
        login = {"user": user, "pass": password, "verbose": False, "headers": True}
        one.sendall(b"CONNECT " + json.dumps(login).encode() + b"\r\nPING\r\n")
        subject = subjects.submit(user.removeprefix("vc-"))
        line = f"PUB {subject} _INBOX.{user}.x {PAYLOAD}\r\n".encode()
        whole[one] = (line + b"x" * PAYLOAD + b"\r\n") * WRITTEN_TOGETHER
        rest[one] = b""
        one.setblocking(False)
    taken, ends_at = 0, time.monotonic() + seconds
    while rest and time.monotonic() < ends_at:
        readable, writable, _ = select.select(list(rest), list(rest), [], 0.2)
        for one in (*readable, *writable):
            try:
                if one in readable:
                    one.recv(1 << 16)
                sent = one.send(rest[one] or whole[one])
            except BlockingIOError:
                continue
            except OSError:
                rest.pop(one, None)  # The server has cut it off.
                continue
            rest[one] = (rest[one] or whole[one])[sent:]
            taken += sent
    return taken


async def acknowledged(link: Link, seconds: float) -> list[float]:
    """Submit again and again; return the ms after which each was acknowledged."""
    took, ends_at, subject = [], time.monotonic() + seconds, subjects.submit(QUIET)
    while time.monotonic() < ends_at:
        began = time.monotonic()
        headers = {"Nats-Msg-Id": f"{began}"}
        answer = await publish_once(link, subject, b"{}" * 200, headers, PATIENCE_S)
        good = isinstance(answer, PubAck) and answer.error is None
        took.append((time.monotonic() - began) * 1000 if good else PATIENCE_S * 1000)
        await asyncio.sleep(PAUSE_S)
    return took


async def measure(folder: Path, tenants: int, seconds: float, *, direct: bool) -> dict[str, Any]:
    """Start a bus with its door, measure alone and under the flood; return the figures."""
    vcs = [f"flood-{number}" for number in range(tenants)] + [QUIET]
    passwords = new_passwords((), vcs)
    server = Server(
        folder / "nats", accounts(passwords if direct else behind_door(passwords, vcs), (), vcs)
    )
    # As `skep up` starts both, where that is permitted.
    _prefer(BUS_NICENESS)
    await server.start()
    await server.wait_healthy(BOOTSTRAP)
    boot = await NatsBus.connect(_options(server.url, BOOTSTRAP, passwords), _raise)
    await bootstrap_streams(boot, folder / "streams.json")
    port = free_port()
    environment = {
        **os.environ,
        "SKEP_NATS_URL": server.url,
        "SKEP_NATS_USER": DOOR,
        "SKEP_NATS_PASSWORD": passwords[DOOR],
        "SKEP_STATE": str(folder / "door"),
        "SKEP_LISTEN": f"{HOST}:{port}",
    }
    door = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "skep_services.door", env=environment, stderr=subprocess.PIPE
    )
    _prefer(0)
    try:
        assert door.stderr is not None
        await door.stderr.readline()
        at = server.port if direct else port
        link = await Link.connect(
            _options(f"nats://{HOST}:{at}", vc_identity(QUIET), passwords), _raise
        )
        alone = await acknowledged(link, seconds / 2)
        logins = [(vc_identity(vc), passwords[vc_identity(vc)]) for vc in vcs[:-1]]
        child = os.fork()
        if not child:
            flood(at, logins, seconds)
            os._exit(0)
        flooded = await acknowledged(link, seconds)
        await asyncio.to_thread(os.waitpid, child, 0)
        info = await ask(boot.link, f"STREAM.INFO.{subjects.SUBMIT}", None, StreamInfo)
        await link.close()
    finally:
        door.terminate()
        await door.wait()
        await boot.close()
        await server.kill()
    return {
        "unit": "ms",
        "alone": percentiles(alone),
        "flooded": percentiles(flooded),
        "stored_per_s": round(info.state.messages / seconds),
    }


def _prefer(niceness: int) -> None:
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)


def _options(url: str, identity: str, passwords: dict[str, str]) -> LinkOptions:
    return LinkOptions(servers=(url,), identity=identity, password=passwords[identity])


def _raise(error: Exception) -> None:
    raise error


def options(parser: argparse.ArgumentParser) -> None:
    """Add what may be chosen."""
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--direct", action="store_true", help="without the door")


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Return the waits of one tenant, alone and while the others flood."""
    with tempfile.TemporaryDirectory(prefix="skep-flood-") as folder:
        return asyncio.run(measure(Path(folder), given.tenants, given.seconds, direct=given.direct))
