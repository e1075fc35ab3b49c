"""An embedded cluster under attack: the processes of `skep up`, in namespaces of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from skep_services.ports import Delivery
from tests.support.embedded import Embedded
from tests.system.chaos.clock import NO_COMPILER, Clock
from tests.system.chaos.network import KINDS, Loopback, Network
from tests.system.chaos.stores import make_stores
from tests.system.chaos.target import (
    GPUS,
    NODES,
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

SERVICES = ("door", "admission", "allocator", "introspector", "advisor", "searches", "gateway")


class Processes:
    """An embedded cluster of two nodes with four slots each, in `base`."""

    def __init__(self, base: Path, *, clock: bool) -> None:
        """Make stores, network and folders, and start the cluster."""
        self.home, self.notes = base / "home", base / "notes"
        self.notes.mkdir(parents=True)
        loopback = Loopback()
        self.network: Network = loopback
        self.home.mkdir(mode=0o700)
        sizes = {"nats": STORE_MIB["bus"], **dict.fromkeys(NODES, STORE_MIB["agent"])}
        self.stores = make_stores(self.home, base / "stores", sizes)
        self._clock = Clock(base / "clock")
        trains = importlib.util.find_spec("torch") is not None
        self.jobs = Jobs(sys.executable, str(WORK), str(self.notes), trains)
        self.cannot = {"kill-bus": "there is one bus server: `kill` does it"}
        self.cannot |= dict.fromkeys(("freeze", "freeze-long"), "processes have no container")
        if not loopback.works:
            self.cannot |= dict.fromkeys(KINDS, "no net_cls control group or packet filter")
        if not self._clock.works:
            self.cannot["clock"] = NO_COMPILER
        environment = self._clock.environment(self._clock.folder) if clock else {}
        self.cluster = Embedded(self.home, environment)
        self._paused, self._lock = Paused(), threading.Lock()
        nodes = ("--nodes", str(len(NODES)), "--gpus", str(GPUS))
        vcs = [word for vc, gpus in VCS.items() for word in ("--vc", f"{vc}={gpus}")]
        self.cluster.up(*nodes, *vcs, "--port", "0")

    def components(self) -> dict[str, str]:
        roles = dict.fromkeys(SERVICES, "service")
        roles |= dict.fromkeys(NODES, "agent") | {f"{node}/runner": "runner" for node in NODES}
        return {**roles, "nats": "bus", "supervisor": "supervisor"}

    def pid(self, name: str) -> int:
        return pid_of(self._entry(name))

    def kill(self, name: str) -> bool:
        return send(self._entry(name), signal.SIGKILL)

    def kill_everything(self, *, jobs: bool) -> None:
        # The supervisor first, so that it starts nothing again.
        runners = [f"{node}/runner" for node in NODES] if jobs else []
        for name in ("supervisor", *NODES, *runners, *SERVICES, "nats"):
            self.kill(name)
        while jobs and (left := job_processes(self.jobs.notes)):
            for pid in left:
                send(entry_of(pid), signal.SIGKILL)

    def pause(self, name: str) -> bool:
        with self._lock:
            return self._paused.stop(name, self._entry(name))

    def resume(self, name: str) -> None:
        with self._lock:
            self._paused.wake(name)

    def freeze(self, name: str) -> bool:
        raise NotImplementedError(name)

    def unfreeze(self, name: str) -> None:
        pass  # Nothing is.

    def set_clock(self, offset_s: int) -> None:
        self._clock.set(offset_s)

    def is_kept_up(self) -> bool:
        return bool(self.pid("supervisor"))

    def restart(self) -> None:
        self.cluster.up()

    def about(self) -> Any:
        return self.cluster.about

    async def records(self, stream: str) -> list[Delivery]:
        return await self.cluster.records(stream)

    def states(self) -> dict[str, dict[str, Any]]:
        return self.cluster.pids()

    def words(self, name: str) -> str:
        return (self.home / name / "service.log").read_text()

    def job_processes(self) -> list[str]:
        return [f"pid {pid}: {text}" for pid, text in job_processes(self.jobs.notes).items()]

    def stop(self) -> list[str]:
        try:
            self.cluster.down()
        except RuntimeError as error:
            return [str(error)]
        finally:
            self.network.close()
        return []

    def unmount(self) -> None:
        for store in self.stores.values():
            store.unmount()

    def _entry(self, name: str) -> dict[str, Any]:
        node, _, part = name.partition("/")
        if part != "runner":
            try:
                return self.cluster.entry(name)
            except (KeyError, ValueError):
                return {}
        state = os.fsencode(os.path.realpath(self.home / node))
        for pid in pids():
            words = words_of(pid)
            if state in words and any(word.endswith(RUNNER) for word in words):
                return entry_of(pid)
        return {}
