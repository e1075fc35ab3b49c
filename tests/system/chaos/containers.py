"""A deployment with compose under attack: three bus servers, standbys, two agents.

What compose/compose.yaml deploys, in a project of its own, with disks that can be attacked in
place of volumes, fixed addresses, a clock of its own, and a folder for the jobs' notes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from skep.units import MIB
from skep_services.adapters.nats_read import read_stream
from skep_services.ports import Delivery
from tests.support.embedded import open_bus
from tests.system.chaos.clock import NO_COMPILER, Clock
from tests.system.chaos.namespaces import Namespaces
from tests.system.chaos.network import Network
from tests.system.chaos.stores import Store
from tests.system.chaos.target import (
    GPUS,
    RUNNER,
    STORE_MIB,
    VCS,
    WORK,
    Jobs,
    Paused,
    entry_of,
    job_processes,
    pid_of,
    pids,
    send,
    words_of,
)
from tools.compose import Deployment

PROJECT = "skep-chaos"
NATS_PORT, GATEWAY_PORT = 24222, 28470
SUBNET = "10.213.77"
ADDRESS_FIRST = 20
"""Below it are the engine's own, and what runs aside."""
USER = 10001
"""Who the containers run as."""
HERE = Path("/chaos")
"""Where containers see what is ours."""
STATE = "/var/lib/skep"
BUS = ("nats-1", "nats-2", "nats-3")
AGENTS = {"agent-1": "node-1", "agent-2": "node-2"}
DECIDERS = ("admission", "allocator", "introspector", "advisor", "searches")
SERVICES = ("door", *(f"{name}-{number}" for name in DECIDERS for number in (1, 2)), "gateway")
NAMES = (*BUS, *SERVICES, *AGENTS)
GONE_WITHIN_S = 30.0
NO_SUPERVISOR = "what keeps containers up is the machine's own engine"


class Containers:
    """A deployment of `image` with two agents of four slots each; its folders are in `base`."""

    def __init__(self, base: Path, image: str, *, clock: bool) -> None:
        """Make stores and folders, and deploy. Raises RuntimeError."""
        self.notes = base / "notes"
        self.notes.mkdir(parents=True)
        self.notes.chmod(0o777)
        self._logs = base / "logs"
        self._logs.mkdir()
        self._clock = Clock(base / "clock")
        self.jobs = Jobs("python", str(HERE / "jobs" / WORK.name), str(HERE / "notes"), False)
        self.cannot = {"kill-supervisor": NO_SUPERVISOR}
        if not self._clock.works:
            self.cannot["clock"] = NO_COMPILER
        addresses = {name: f"{SUBNET}.{ADDRESS_FIRST + i}" for i, name in enumerate(NAMES)}
        self.network: Network = Namespaces(addresses)
        self.stores = self._make_stores(base)
        changes = base / "compose.json"
        preload = self._clock.environment(HERE / "clock") if clock else {}
        changes.write_text(json.dumps(self._changes(addresses, preload)))
        self.deployment = Deployment(
            PROJECT, base / "secrets", image, NATS_PORT, GATEWAY_PORT, changes=changes
        )
        self._engine = docker.APIClient(version="auto")
        self._paused, self._lock = Paused(), threading.Lock()
        self._frozen: set[str] = set()
        self._pool = ThreadPoolExecutor(len(NAMES))
        vcs = [word for vc, gpus in VCS.items() for word in ("--vc", f"{vc}={gpus}")]
        try:
            self.deployment.init("--gpus", str(GPUS), *vcs)
            self.deployment.down(wipe=True)
            self.deployment.up()
        except BaseException:
            self.deployment.down(wipe=True)
            self.unmount()
            raise
        self._ids = {name: str(one["Id"]) for name, one in self.deployment.containers().items()}

    def _make_stores(self, base: Path) -> dict[str, Store]:
        (base / "stores").mkdir()
        stores = {}
        for name in (*BUS, *AGENTS):
            size = STORE_MIB["bus" if name in BUS else "agent"] * MIB
            store = Store(base / "disks" / name, base / "stores" / f"{name}.img", size)
            os.chown(store.folder, USER, USER)
            store.folder.chmod(0o700)
            stores[name] = store
        return stores

    def _changes(self, addresses: dict[str, str], preload: dict[str, str]) -> dict[str, Any]:
        """Return what differs from compose.yaml, as compose merges it."""
        services: dict[str, Any] = {
            name: {
                "networks": {"bus": {"ipv4_address": address}},
                "environment": dict(preload),
                "volumes": [f"{self._clock.folder}:{HERE / 'clock'}:ro"],
            }
            for name, address in addresses.items()
        }
        for name in BUS:
            services[name]["volumes"].append(f"{self.stores[name].folder}:{STATE}")
        for name, node in AGENTS.items():
            services[name]["environment"]["SKEP_STATE"] = f"{STATE}/{node}"
            services[name]["volumes"] += [
                f"{self.stores[name].folder}:{STATE}/{node}",
                f"{WORK.parent}:{HERE / 'jobs'}:ro",
                f"{self.notes}:{HERE / 'notes'}",
            ]
        pool = {"config": [{"subnet": f"{SUBNET}.0/24"}]}
        return {"services": services, "networks": {"bus": {"ipam": pool}}}

    def components(self) -> dict[str, str]:
        runners = {f"{agent}/runner": "runner" for agent in AGENTS}
        return (
            dict.fromkeys(SERVICES, "service")
            | dict.fromkeys(AGENTS, "agent")
            | runners
            | dict.fromkeys(BUS, "bus")
        )

    def pid(self, name: str) -> int:
        return pid_of(self._entry(name))

    def kill(self, name: str) -> bool:
        # A container ends with its first process, and everything in it.
        whole = "/" not in name
        return send(self._first(name) if whole else self._entry(name), signal.SIGKILL)

    def kill_everything(self, *, jobs: bool) -> None:
        if not jobs:
            # The engine starts again what ends without its doing.
            for entry in [self._first(name) for name in NAMES]:
                send(entry, signal.SIGKILL)
            return
        list(self._pool.map(self._end, NAMES))
        deadline = time.monotonic() + GONE_WITHIN_S
        while any(self._state(name)["Running"] for name in NAMES):
            if time.monotonic() > deadline:
                message = f"containers do not end within {GONE_WITHIN_S:.0f} s"
                raise RuntimeError(message)
            time.sleep(0.02)

    def _end(self, name: str) -> None:
        """End a container for good, also one that the engine is about to start again."""
        try:
            self._engine.stop(self._ids[name], timeout=0)
        except APIError as error:
            message = f"stopping {name}: {error}"
            raise RuntimeError(message) from error

    def pause(self, name: str) -> bool:
        with self._lock:
            return self._paused.stop(name, self._entry(name))

    def resume(self, name: str) -> None:
        with self._lock:
            self._paused.wake(name)

    def freeze(self, name: str) -> bool:
        if name in self._frozen:
            return False
        self._frozen.add(name)
        try:
            self._engine.pause(self._ids[name])
        except APIError:
            self._frozen.discard(name)
            return False  # It does not run, or a frozen disk has it.
        return True

    def unfreeze(self, name: str) -> None:
        if name in self._frozen:
            with contextlib.suppress(APIError):
                self._engine.unpause(self._ids[name])
            self._frozen.discard(name)

    def set_clock(self, offset_s: int) -> None:
        self._clock.set(offset_s)

    def is_kept_up(self) -> bool:
        states = [self._state(name) for name in NAMES]
        return all(state["Running"] or state["Restarting"] for state in states)

    def restart(self) -> None:
        def start(name: str) -> None:
            try:
                self._engine.start(self._ids[name])
            except APIError as error:
                message = f"starting {name}: {error}"
                raise RuntimeError(message) from error

        list(self._pool.map(start, NAMES))

    def about(self) -> Any:
        return self.deployment.about

    async def records(self, stream: str) -> list[Delivery]:
        bus = await open_bus(self.about(), "operator")
        try:
            return await read_stream(bus, stream)
        finally:
            await bus.close()

    def states(self) -> dict[str, dict[str, Any]]:
        found = {}
        for name, one in self.deployment.containers().items():
            if name in NAMES:
                state = one["State"]
                health = state.get("Health", {}).get("Status", "")
                ready = state["Running"] and health != "unhealthy"
                found[name] = {
                    "state": "ready" if ready else state["Status"],
                    "exit": state["ExitCode"],
                    "restarts": one["RestartCount"],
                    "detail": health,
                }
        return found

    def words(self, name: str) -> str:
        return self.deployment.logs(name)

    def job_processes(self) -> list[str]:
        return [f"pid {pid}: {text}" for pid, text in job_processes(self.jobs.notes).items()]

    def stop(self) -> list[str]:
        self.network.close()
        self._pool.shutdown()
        for name in NAMES:
            (self._logs / f"{name}.log").write_text(self.words(name))
        self.deployment.down(wipe=True)
        self._engine.close()
        return [f"pid {pid}: {text}" for pid, text in job_processes(self.jobs.notes).items()]

    def unmount(self) -> None:
        for store in self.stores.values():
            store.unmount()

    def _state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = self._engine.inspect_container(self._ids[name])["State"]
        return state

    def _first(self, name: str) -> dict[str, Any]:
        """Return a container's first process; empty if it does not run."""
        pid = int(self._state(name.partition("/")[0])["Pid"])
        entry = entry_of(pid)
        try:
            # The number may be another's by now.
            ours = self._ids[name.partition("/")[0]] in Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            return {}
        return entry if ours else {}

    def _entry(self, name: str) -> dict[str, Any]:
        """Return a component's own process, not what passes signals on to it as the first one."""
        container, _, part = name.partition("/")
        first = self._first(container)
        if not first:
            return {}
        if part == "runner":
            inside = _namespace(first["pid"])
            for pid in pids():
                if (
                    any(word.endswith(RUNNER) for word in words_of(pid))
                    and _namespace(pid) == inside
                ):
                    return entry_of(pid)
            return {}
        try:
            children = Path(f"/proc/{first['pid']}/task/{first['pid']}/children").read_text()
        except OSError:
            return {}
        # What the first process adopts comes behind what it started.
        return entry_of(int(children.split()[0])) if children.split() else {}


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
