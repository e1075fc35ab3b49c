"""Run a node's agent."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from pathlib import Path
from typing import Any

from skep.ids import is_token
from skep.machines.agent import AgentMachine, DevicesSeen, DeviceUse
from skep.units import MIB, NS_PER_SECOND, Instant
from skep.wire import subjects
from skep.wire.bounds import TEXT_MAX
from skep.wire.facts import AgentFact
from skep.wire.node import TAKE_OVER_AFTER, NodeJoined
from skep_services import durable
from skep_services.adapters.clock import SystemClock
from skep_services.adapters.devices import DeviceError, Devices, NvmlGpus, host_memory, open_devices
from skep_services.adapters.docker_runtime import DockerRuntime
from skep_services.adapters.driver_checkpoint import open_checkpoint
from skep_services.adapters.journal import JournalFactLog
from skep_services.adapters.launcher_runtime import VARIABLE as LAUNCHER
from skep_services.adapters.launcher_runtime import Launcher, LauncherRuntime
from skep_services.adapters.launcher_runtime import find as find_launcher
from skep_services.adapters.node_runtimes import NodeRuntimes
from skep_services.adapters.process_checkpoint import VARIABLE as PROCESS_CHECKPOINTS
from skep_services.adapters.process_checkpoint import ProcessCheckpoints, open_process_checkpoints
from skep_services.adapters.process_runtime import ProcessRuntime
from skep_services.adapters.wiring import connect, drive
from skep_services.agent import old_logs, warm
from skep_services.agent.caches import Caches
from skep_services.agent.calls import AgentCalls
from skep_services.agent.checkpoints import checkpoints_dir
from skep_services.agent.environment import (
    container_folders,
    log_bytes_max,
    terminal_programs,
    terminal_programs_in_images,
)
from skep_services.agent.jobs import JobSocket
from skep_services.agent.log_times import LogTimes
from skep_services.agent.logs import LogPieces
from skep_services.agent.memory import host_budget
from skep_services.agent.outputs import JobOutputs
from skep_services.agent.replicas import replica_bytes
from skep_services.agent.terminals import Terminals
from skep_services.ports import LogRecord
from skep_services.service import BeginAnewError, ConfigurationError, Fatal, Settings, run

IDENTITY = re.compile("[0-9a-f]{32}")
LOOK_EVERY_S = 1.0
"""How often the devices are asked: as often as their use is reported."""
SILENCE_S = TAKE_OVER_AFTER / NS_PER_SECOND + 1.0
"""How long an agent that begins anew says nothing under its name; then the next may have it."""
COMPACT_ABOVE = 4 * MIB
"""A journal of some thousand jobs: replayed in well under a second."""


IMAGES_WORK = "yes"
"""How `NodeJoined` says that images of processes are stored here."""


class AgentJournal(JournalFactLog):
    """The agent's journal, compacted to what its machine still needs when the agent starts."""

    def __init__(self, path: Path, machine: AgentMachine) -> None:
        """Keep `machine`'s facts in `path`."""
        super().__init__(path, AgentFact)
        self._machine = machine

    async def begin_epoch(self, owner: str, at: Instant) -> LogRecord:
        """Begin the epoch; replayed facts and machine agree here, so here they can be compacted."""
        record = await super().begin_epoch(owner, at)
        if self.size > COMPACT_ABOVE:
            await self.compact(self._machine.snapshot())
        return record


def inventory(chosen: Settings, devices: Devices, *, images: str = "") -> NodeJoined:
    """Return what this node has to offer.

    Args:
        chosen: The agent's settings.
        devices: The node's devices.
        images: Whether images of processes are stored here: see `NodeJoined`.

    Raises:
        ConfigurationError: SKEP_NODE is no name, or SKEP_PORTS is no range.
    """
    env = chosen.environment
    node = env.get("SKEP_NODE", "")
    if not is_token(node):
        text = f"SKEP_NODE is {node!r}: it must be a name of letters, digits, `_` and `-`"
        raise ConfigurationError(text)
    return NodeJoined(
        node=node,
        identity=_identity(chosen.state),
        incarnation=0,
        address=env.get("SKEP_ADDRESS", "127.0.0.1"),
        ports=_ports(env.get("SKEP_PORTS", "20000-20499")),
        gpus=devices.gpus(),
        cpus=os.cpu_count() or 1,
        memory=host_memory(),
        images=images,
    )


def _ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65535:
        return int(first), int(last)
    message = f"SKEP_PORTS is {text!r}: it must be a range such as 20000-20499"
    raise ConfigurationError(message)


def _identity(state: Path) -> str:
    """Return the name this state folder has for ever; two folders never share one.

    Where it got lost, a fresh one is safe: the allocator then takes this for another machine and
    has it end whatever runs here.
    """
    path = state / "identity"
    try:
        known = path.read_text().strip()
    except FileNotFoundError:
        known = ""
    if not IDENTITY.fullmatch(known):
        known = uuid.uuid4().hex
        durable.write(str(path), known.encode())
    return known


def _forget(state: Path) -> None:
    """Remove what this agent knows of its node: the next one begins under another identity.

    The identity goes first. What is left by a crash then is removed by the next agent.
    """
    for name in ("identity", "journal.lock", "journal"):
        (state / name).unlink(missing_ok=True)


async def watch_devices(devices: Devices, shell: Any, log: Any) -> None:
    """Tell the machine about the devices for ever; returns at once where they cannot tell.

    Args:
        devices: The devices.
        shell: The shell of the agent's machine.
        log: Told of each trouble of a device when it is new.
    """
    known: dict[int, tuple[str, ...]] = {}
    while True:
        seen = await asyncio.to_thread(devices.look)
        if not seen:
            return
        for each in seen:
            if each.trouble and each.trouble != known.get(each.index):
                log.warning("a device is in trouble", device=each.index, trouble=each.trouble)
            known[each.index] = each.trouble
        used = tuple(DeviceUse(each.index, each.utilisation, each.trouble) for each in seen)
        await shell.put(DevicesSeen(used))
        await asyncio.sleep(LOOK_EVERY_S)


async def _launcher(chosen: Settings, log: Any) -> Launcher | None:
    """Return the launcher that starts this node's jobs; None: they run as the agent's own user.

    Raises:
        ConfigurationError: One is named and does not answer, or cannot go with other settings.
    """
    named = chosen.environment.get(LAUNCHER, "")
    if not named:
        return None
    if chosen.environment.get("SKEP_DEVICE") == "fake":
        text = f"SKEP_DEVICE is 'fake': accounts share no fake device; unset {LAUNCHER}"
        raise ConfigurationError(text)
    found = await find_launcher(Path(named))
    for feature, why in found.lacks.items():
        log.warning("jobs are not kept apart in every way", feature=feature, why=why)
    return found


async def _images_of_processes(
    chosen: Settings, devices: Devices, *, accounts: bool
) -> tuple[ProcessCheckpoints | None, str]:
    """Return what stores processes of jobs here; or None and why not, empty if it is not allowed.

    Raises:
        ConfigurationError: SKEP_PROCESS_CHECKPOINTS has a value that means nothing.
    """
    if chosen.environment.get(PROCESS_CHECKPOINTS) and accounts:
        return None, "jobs have accounts of their own, and CRIU serves the agent's only"
    gpu = devices.visible((0,)) if isinstance(devices, NvmlGpus) else None
    return await open_process_checkpoints(chosen.environment, chosen.state, gpu)


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled; the jobs go on without the agent.

    Raises:
        ConfigurationError: A setting is wrong, or the devices cannot be used.
        BeginAnewError: The cluster was restored: what the agent knew is removed.
    """
    try:
        devices = open_devices(chosen.environment, chosen.state)
    except DeviceError as error:
        raise ConfigurationError(str(error)) from error
    log_days = old_logs.days_kept(chosen.environment)
    warm.bounds(chosen.environment)
    log_bytes_max(chosen.environment)  # A wrong setting stops the agent, not its first job.
    launcher = await _launcher(chosen, log)
    shown = launcher.folder if launcher else chosen.state
    images, why = await _images_of_processes(chosen, devices, accounts=launcher is not None)
    if why:
        log.warning("images of processes are not offered", why=why)
    told = IMAGES_WORK if images is not None else why[:TEXT_MAX]
    machine = AgentMachine(inventory(chosen, devices, images=told))
    machine.changes.abilities.dumps = images is not None
    machine.host_budget = host_budget(chosen.environment, machine.joined.memory)
    replica_bytes(chosen.environment, machine.joined.memory)
    shared = checkpoints_dir(chosen.environment)
    container_folders(chosen.environment)
    driver, why = await open_checkpoint(chosen.environment, chosen.state, devices)
    if launcher and driver is not None:
        driver, why = None, "jobs have accounts of their own, and the driver serves its own only"
    if why:
        log.warning("the driver's checkpoint is not offered", why=why)
    machine.changes.abilities.evicts = driver is not None
    node = machine.joined.node
    fatal = Fatal()
    bus = await connect(chosen, fatal)
    home = chosen.environment.get("SKEP_HOME")  # It has the credentials, and the other nodes.
    hidden = [*([Path(home)] if home else []), *([shared] if shared else [])]
    processes = LauncherRuntime(chosen.state, launcher.socket) if launcher else None
    if launcher:
        hidden.append(launcher.folder.parent)
    containers = DockerRuntime(chosen.state, hidden, processes.prepare if processes else None)
    runtime = NodeRuntimes(processes or ProcessRuntime(chosen.state), containers)
    calls = AgentCalls(
        bus,
        runtime,
        devices,
        chosen.state,
        chosen.environment,
        fatal,
        launcher=processes,
        shared=shown,
        copies=launcher.copies if launcher else 0,
    )
    calls.driver, calls.images_of_processes = driver, images
    journal = AgentJournal(chosen.state / "journal", machine)

    def lives(job: str, attempt: int) -> bool:
        part = machine.parts.get((job, attempt))
        return part is not None and part.over is None

    def job_lives(job: str) -> bool:
        return any(key[0] == job and part.over is None for key, part in machine.parts.items())

    calls.environments.lives = lives
    watching: list[asyncio.Task[None]] = []
    times = LogTimes(shown, chosen.state / "log-times")
    await bus.listen(subjects.logs(node), LogPieces(bus, shown, lives, times).answer)
    outputs = JobOutputs(bus, calls.code, shown)
    await bus.listen(subjects.outputs(node), outputs.answer)
    await bus.listen(subjects.caches(node), Caches(bus, calls.environments).answer)

    def contained(job: str, attempt: int) -> bool:
        part = machine.parts.get((job, attempt))
        return part is not None and part.command is not None and bool(part.command.image)

    programs = (terminal_programs(), terminal_programs_in_images(shown))
    terminals = Terminals(bus, node, runtime.enter, programs, lives, contained)

    def living() -> list[tuple[str, int]]:
        return [key for key, part in machine.parts.items() if part.over is None]

    async def serve_jobs(shell: Any) -> None:
        await calls.open(shell.put)
        watching.append(asyncio.create_task(watch_devices(devices, shell, log)))
        watching.append(asyncio.create_task(times.watch(living)))
        watching.append(asyncio.create_task(old_logs.watch(shown, log_days, lives, log)))
        watching.append(asyncio.create_task(calls.code.watch(lives, log)))
        watching.append(asyncio.create_task(calls.environments.watch()))
        watching.append(asyncio.create_task(calls.replicas.watch(job_lives)))
        jobs = JobSocket(shown, SystemClock(), shell.hear, calls.access)
        calls.have_apart = jobs.have_apart
        calls.tell, calls.is_heard, calls.heard_out = jobs.tell, jobs.is_heard, jobs.heard_out
        await jobs.open()
        await bus.listen(subjects.terminal(node), terminals.deliver)
        calls.sweep_checkpoints(job_lives)

    try:
        await drive(
            chosen,
            log,
            machine,
            bus,
            fatal,
            facts=journal,
            calls=calls,
            listen=(subjects.command(node),),
            prepare=serve_jobs,
        )
    except BeginAnewError:
        _forget(chosen.state)
        # The allocator would refuse the next identity while this one was heard of lately.
        await asyncio.sleep(SILENCE_S)
        raise
    finally:
        for task in watching:
            task.cancel()
        await outputs.close()
        await terminals.close()
        await calls.close()
        journal.close()


if __name__ == "__main__":
    run("agent", main)
