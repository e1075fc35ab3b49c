"""An embedded cluster for scripts and tests: `skep up` in a folder, and what can be done to it.

The cluster is taken down when this process ends, however it ends: a guard process holds the other
end of a pipe and runs `skep down` once that closes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from skep.units import Instant
from skep.wire import codec, subjects
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_read import read_stream
from skep_services.ports import Delivery
from skep_services.supervisor import home as folder
from tests.support.bare_client import address

SKEP = (sys.executable, "-m", "skep_services")
"""The command, also where only the source is (`PYTHONPATH`) and nothing is installed."""
GUARD = """
import subprocess, sys
sys.stdin.read()
sys.exit(subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL))
"""
DEADLINE_S = 60.0
"""Nothing here takes long unless something is wrong, or the machine is far too busy."""
LOOK_EVERY_S = 0.02
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The gateway is on this machine: a proxy in the environment is not for it."""

T = TypeVar("T")


class Reply(NamedTuple):
    """An answer of the gateway."""

    status: int
    body: Any


def until(look: Callable[[], T | None], what: str, within_s: float = DEADLINE_S) -> T:
    """Return the first true value of `look`; raises TimeoutError that says what did not happen."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > deadline:
            text = f"not within {within_s:.0f} s: {what}"
            raise TimeoutError(text)
        # tidy: allow sleep because it looks at a condition until a deadline
        time.sleep(LOOK_EVERY_S)
    return found


class Embedded:
    """The cluster in `home`; `environment` is added to what its processes inherit."""

    ports: ClassVar[str] = ""
    """Where gangs meet (FIRST-LAST), if not wherever `skep up` has them: whoever runs clusters side
    by side gives each its own, as a port is free for a moment between two looks at it."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        """Prepare; nothing is started yet."""
        self.home = home
        own = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
        ports = {"SKEP_PORTS": self.ports} if self.ports else {}
        self.environment = {**own, **ports, "SKEP_HOME": str(home), **(environment or {})}
        self._guard: subprocess.Popen[bytes] | None = None

    def up(self, *options: str) -> float:
        """Run `skep up`; return how many seconds it took. Raises RuntimeError with its words."""
        if self._guard is None:
            down = [*SKEP, "down", "--now", "--home", str(self.home)]
            command = [sys.executable, "-c", GUARD, *down]
            self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        began = time.monotonic()
        self.skep("up", *options)
        return time.monotonic() - began

    def down(self) -> None:
        """Have the guard take the cluster down; raises RuntimeError if anything is left of it."""
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        code = self._guard.wait(timeout=2 * DEADLINE_S)
        self._guard = None
        left = self.processes()
        if code or left:
            text = f"`skep down` of {self.home} returned {code}; still there: {left}"
            raise RuntimeError(text)

    def skep(self, *words: str) -> str:
        """Run the `skep` command; return what it printed. Raises RuntimeError."""
        done = subprocess.run(
            [*SKEP, *words], env=self.environment, check=False, text=True, capture_output=True
        )
        if done.returncode:
            text = (
                f"`skep {' '.join(words)}` returned {done.returncode}: {done.stderr or done.stdout}"
            )
            raise RuntimeError(text)
        return done.stdout

    # --- what is asked -------------------------------------------------------------------------

    @property
    def about(self) -> Any:
        """Return the content of `cluster.json`: addresses change when the cluster starts again."""
        return json.loads((self.home / "cluster.json").read_text())

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        who: str = "operator",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return the gateway's answer, whatever its status; raises OSError if there is none."""
        gateway = self.about["gateway"]
        request = urllib.request.Request(gateway["url"] + path, data=body, method=method)
        request.add_header("Authorization", f"Bearer {gateway['tokens'][who]}")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with DIRECT.open(request, timeout=DEADLINE_S) as answer:
                return _reply(answer.status, answer)
        except urllib.error.HTTPError as error:
            with error:
                return _reply(error.code, error)

    def get(self, path: str) -> Any:
        """Return a document, waiting for a gateway that is away."""

        def look() -> Reply | None:
            try:
                reply = self.ask("GET", path)
            except (OSError, HTTPException):
                return None
            return reply if reply.status < 500 else None

        reply = until(look, f"an answer to GET {path}")
        if reply.status != 200:
            text = f"GET {path}: {reply}"
            raise RuntimeError(text)
        return reply.body

    def ended(self, job: str, within_s: float = DEADLINE_S) -> Any:
        """Return everything about a job once it has ended."""
        return self._when(job, "ended", within_s)

    def started(self, job: str, within_s: float = DEADLINE_S) -> Any:
        """Return everything about a job once it has started (or ended)."""
        return self._when(job, "started", within_s)

    def _when(self, job: str, what: str, within_s: float) -> Any:
        over = {"succeeded", "failed", "cancelled", "refused"}
        wanted = over if what == "ended" else {"running", "stopping", *over}
        deadline = time.monotonic() + within_s

        def look() -> Any:
            # A gateway that has just come back may not know the job yet: that is not an answer.
            left_s = max(1, min(30, int(deadline - time.monotonic())))
            try:
                reply = self.ask("GET", f"/v1/jobs/{job}?wait={what}&timeout_s={left_s}")
            except (OSError, HTTPException):
                return None
            return reply.body if reply.status == 200 and reply.body["state"] in wanted else None

        return until(look, f"{job} {what}", within_s)

    def log(self, job: str, rank: int = 0) -> str:
        """Return what a rank of the latest attempt printed."""
        text = self.ask("GET", f"/v1/jobs/{job}/logs?rank={rank}").body
        assert isinstance(text, str), text
        return text

    # --- its processes -------------------------------------------------------------------------

    def pids(self) -> dict[str, Any]:
        """Return what the supervisor says of the processes it keeps up."""
        known: dict[str, Any] = folder.read_json(folder.pids_path(str(self.home))) or {}
        return known

    def entry(self, name: str) -> dict[str, Any]:
        """Return pid and start of a process, or of the supervisor itself."""
        entry: dict[str, Any] = (
            self.about["supervisor"] if name == "supervisor" else self.pids()[name]
        )
        return entry

    def kill(self, name: str) -> int:
        """SIGKILL a process; return when (wall-clock ns)."""
        entry = self.entry(name)
        assert folder.is_alive(entry), f"{name} is not running: {entry}"
        at = time.time_ns()
        os.kill(entry["pid"], signal.SIGKILL)
        return at

    def wait_back(self, name: str, pid: int, within_s: float = DEADLINE_S) -> int:
        """Return when (wall-clock ns) a process other than `pid` was seen to be ready."""

        def look() -> bool:
            entry = self.pids().get(name, {})
            return entry.get("state") == "ready" and entry.get("pid") not in {0, pid}

        until(look, f"{name} is back", within_s)
        return time.time_ns()

    def processes(self) -> dict[int, str]:
        """Return the living processes of this cluster, jobs included: pid to command."""
        mark = f"={self.home}".encode()
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdecimal() or int(name) == os.getpid():
                continue
            try:
                environ = Path("/proc", name, "environ").read_bytes()
                command = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            values = environ.split(b"\0")
            if any(value.endswith(mark) or mark + b"/" in value for value in values):
                found[int(name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    # --- the truth -----------------------------------------------------------------------------

    async def records(self, stream: str) -> list[Delivery]:
        """Return every message of a stream."""
        bus = await self.bus("operator")
        try:
            return await read_stream(bus, stream)
        finally:
            await bus.close()

    async def facts(self, stream: str) -> list[tuple[Instant, Any]]:
        """Return every fact of a service's log, in order, each with its record's time (ns)."""
        assert stream in {subjects.ADMISSION, subjects.ALLOC}, stream
        found = []
        for one in await self.records(stream):
            record = codec.read(one.subject, one.payload, one.headers, one.sequence, one.at)
            assert isinstance(record, codec.Facts), record
            found += [(record.at, fact) for fact in record.facts]
        return found

    async def bus(self, identity: str) -> NatsBus:
        """Return a connection of an identity; the caller closes it."""
        return await open_bus(self.about, identity)


async def open_bus(about: Any, identity: str) -> NatsBus:
    """Return a connection of an identity of any cluster; the caller closes it."""
    nats = about["nats"]
    options = LinkOptions(
        servers=tuple(address(nats, identity).split(",")),
        identity=identity,
        password=nats["users"][identity],
    )
    return await NatsBus.connect(options, _give_up)


def _give_up(error: Exception) -> None:
    text = f"the bus is lost: {error}"
    raise RuntimeError(text)


def _reply(status: int, answer: Any) -> Reply:
    """Return a JSON document decoded, anything else as text."""
    data = answer.read()
    is_json = answer.headers.get_content_type() == "application/json"
    return Reply(status, json.loads(data) if is_json else data.decode(errors="replace"))
