"""A cluster of machines as what is attacked: its components, its power, its logs.

What systemd does on a machine is done here: a unit that ended with an error is started again after
two seconds, but for the exit codes that its file names as final.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from skep_services.adapters import nats_access
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_read import read_stream
from skep_services.ports import Delivery
from skep_services.servers import files
from skep_services.servers.meeting import own_tls
from tests.system.chaos.network import Network
from tests.system.chaos.stores import Store
from tests.system.chaos.target import (
    RUNNER,
    WORK,
    Jobs,
    Paused,
    entry_of,
    job_processes,
    pid_of,
    send,
    words_of,
)
from tests.system.deployment.bed import Bed, Machine
from tests.system.deployment.chaos import plan
from tests.system.deployment.chaos.cables import Cables

RESTART_AFTER_S = 2.0
FINAL_CODES = (0, 64, 72, 73)
"""What a unit is not started again after, as its file says it."""
CONNECT_WITHIN_S = 5.0
BUS_PORT, DOOR_PORT, GATEWAY_PORT = 4222, 4223, 8470
AGENT_MODULE = b"skep_services.agent"


class Machines:
    """The cluster on a bed's machines."""

    def __init__(self, bed: Bed, servers: list[str], nodes: list[str]) -> None:
        self.bed, self.servers, self.nodes = bed, servers, nodes
        self.notes = bed.folder / "notes"
        self.notes.mkdir()
        self.jobs = Jobs(sys.executable, str(WORK), str(self.notes), False)
        self.stores: dict[str, Store] = {}
        self.network: Network = Cables(bed.machines)
        self.cannot: dict[str, str] = {}
        self.exits: list[str] = []
        """Units that ended by themselves: with a final code they stay down."""
        self._units = dict.fromkeys(servers, "server")
        self._ended: dict[str, float] = {}
        self._paused, self._lock = Paused(), threading.RLock()

    # --- machines and their units -----------------------------------------------------------------

    def add_node(self, name: str) -> None:
        """Start the unit of a node that has joined."""
        with self._lock:
            self._units[name] = "node"
            self._start(name)

    def retire(self, name: str) -> None:
        """Switch a machine off for good."""
        with self._lock:
            self._units.pop(name, None)
            self.machine(name).power_off()

    def machine(self, name: str) -> Machine:
        """Return the machine that a component is on."""
        return self.bed.machines[name.partition("/")[0]]

    def wanted(self) -> list[str]:
        """Return the machines whose unit should run."""
        return list(self._units)

    def is_on(self, name: str) -> bool:
        """Return whether a machine's unit runs."""
        process = self.machine(name).running.get(self._units.get(name, ""))
        return process is not None and process.poll() is None

    def power_off(self, name: str) -> bool:
        """Take a machine's power away; False if it had none."""
        with self._lock:
            if name not in self._units or not self.machine(name).running:
                return False
            self.machine(name).power_off()
            return True

    def power_on(self, name: str) -> None:
        """Give a machine its power back."""
        with self._lock:
            if name in self._units and not self.machine(name).running:
                self._start(name)

    def keep_up(self) -> None:
        """Start again what ended with an error, where there is power."""
        with self._lock:
            now = time.monotonic()
            for name, unit in self._units.items():
                process = self.machine(name).running.get(unit)
                if process is None or (code := process.poll()) is None:
                    continue
                if name not in self._ended:
                    self._ended[name] = now
                    self.exits.append(f"{name}: {code}")
                elif code not in FINAL_CODES and now - self._ended[name] > RESTART_AFTER_S:
                    self._start(name)

    def _start(self, name: str) -> None:
        self._ended.pop(name, None)
        unit = self._units[name]
        self.machine(name).start(unit, "skep", unit, "run")

    # --- what the faults know ---------------------------------------------------------------------

    def components(self) -> dict[str, str]:
        return plan.components(self.servers, self.nodes)

    def pid(self, name: str) -> int:
        return pid_of(self._entry(name))

    def kill(self, name: str) -> bool:
        return send(self._entry(name), signal.SIGKILL)

    def kill_everything(self, *, jobs: bool) -> None:
        del jobs  # Machines lose their power with everything on them.
        for name in self._units:
            self.power_off(name)

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
        pass  # It is the machine's that runs this.

    def is_kept_up(self) -> bool:
        return all(self.machine(name).running for name in self.wanted())

    def restart(self) -> None:
        for name in self._units:
            self.power_on(name)

    def _entry(self, name: str) -> dict[str, Any]:
        whole, _, part = name.partition("/")
        machine = self.machine(name)
        process = machine.running.get(self._units.get(whole, ""))
        if process is None or process.poll() is not None:
            return {}
        if part in ("", plan.UNIT):
            return entry_of(process.pid)
        if whole in self.servers:
            return dict(self._children(whole).get(part, {}))
        for pid in machine.pids():
            words = words_of(pid)
            if part == plan.AGENT and words[-2:-1] == [AGENT_MODULE]:
                return entry_of(pid)
            if part == plan.RUNNER and any(word.endswith(RUNNER) for word in words):
                return entry_of(pid)
        return {}

    def _children(self, server: str) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads((self.home(server) / "pids.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    # --- what is read -----------------------------------------------------------------------------

    def home(self, name: str) -> Path:
        """Return the state folder of a machine."""
        return self.machine(name).folder / "home"

    def urls(self, scheme: str, port: int) -> list[str]:
        """Return where the servers' ports are; whoever asks knows no names."""
        return [f"{scheme}://{self.machine(one).address}:{port}" for one in self.servers]

    def about(self) -> Any:
        return json.loads((self.home(self.servers[0]) / "cluster.json").read_text())

    async def records(self, stream: str) -> list[Delivery]:
        bus = await NatsBus.connect(
            self.login(self.servers[0], nats_access.OPERATOR, self.urls("tls", BUS_PORT)), _lost
        )
        try:
            return await read_stream(bus, stream)
        finally:
            await bus.close()

    def login(self, name: str, identity: str, servers: list[str]) -> LinkOptions:
        """Return how an identity whose credentials are on a machine logs in to bus servers."""
        home = str(self.home(name))
        return LinkOptions(
            servers=tuple(servers),
            identity=identity,
            connect_within_s=CONNECT_WITHIN_S,
            credentials=Path(files.creds_path(home, identity)),
            tls=own_tls(home),
        )

    def states(self) -> dict[str, dict[str, Any]]:
        return {
            f"{server}/{child}": state
            for server in self.servers
            for child, state in self._children(server).items()
        }

    def words(self, name: str) -> str:
        whole, _, part = name.partition("/")
        return (self.home(whole) / part / "service.log").read_text(errors="replace")

    def job_processes(self) -> list[str]:
        return [f"pid {pid}: {text}" for pid, text in job_processes(self.jobs.notes).items()]

    def stop(self) -> list[str]:
        self.network.close()
        self.bed.close()
        return self.job_processes()

    def unmount(self) -> None:
        pass  # Nothing is mounted.

    def forget(self) -> None:
        """Remove the folder of the machines."""
        shutil.rmtree(self.bed.folder, ignore_errors=True)


def _lost(error: Exception) -> None:
    """Take why a connection ended: whoever reads sees it too."""
    del error
