"""Carries out what the agent's machine calls for: processes by a runtime, events to the bus."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skep.ids import attempt_of_run
from skep.machines import agent as machine
from skep.wire import codec, subjects
from skep.wire.bounds import SHORT_MAX
from skep.wire.commands import BindJob
from skep.wire.node import MemberExited, Outcome
from skep.wire.reports import Building
from skep.wire.runs import RunExited, RunNotStarted, RunPlan, RunStarted
from skep.wire.talk import CheckpointRank, GoApart, ReleaseRank, ResumeRank, Told
from skep_services.adapters.devices import Devices, host_memory
from skep_services.adapters.docker_images import Images, PullError, login_of
from skep_services.adapters.driver_checkpoint import ALLOWED, DriverCheckpoint, noted
from skep_services.adapters.driver_checkpoint import VARIABLE as DRIVER_CHECKPOINT
from skep_services.adapters.launcher_runtime import LauncherRuntime
from skep_services.adapters.process_checkpoint import (
    IDENTITY,
    Dumped,
    OnGpus,
    ProcessCheckpoints,
    identify,
)
from skep_services.adapters.process_checkpoint import VARIABLE as PROCESS_CHECKPOINTS
from skep_services.agent import proc, vacant
from skep_services.agent.builds import STOPPED, Environments, builds
from skep_services.agent.checkpoints import KEEP_SECONDS, Checkpoints
from skep_services.agent.code import JobCode, unpacks
from skep_services.agent.environment import log_path, provide_job_library, run_plan, socket_path
from skep_services.agent.memory import host_bytes_free
from skep_services.agent.mps import Mps
from skep_services.agent.rank_access import SECRET_VARIABLE, RankAccess, node_key
from skep_services.agent.replicas import AccountReplicas, Replicas, replica_bytes
from skep_services.agent.runner_launch import not_written
from skep_services.agent.secrets import JobSecrets, SecretsRefusedError
from skep_services.agent.stores import Stores
from skep_services.agent.sweep import leaks
from skep_services.agent.volumes import Volumes
from skep_services.ports import Bus, NodeRuntime
from skep_services.service import BeginAnewError, NameTakenError
from skep_services.tracing import trace_of

log = logging.getLogger(__name__)

Answer = Callable[[Any], Awaitable[None]]
ASK_S = 5.0
"""How long the end of an agent waits to hear what goes on without it."""
DUMPS_OFF = f"images of processes are off on this node: see {PROCESS_CHECKPOINTS}"
STAYS_CONNECTED = (
    "its processes keep their connections to the agent: their skep_job is an older one, or they "
    "do not read"
)
APART_MS = 600_000
"""After so long processes connect again without being told as what."""
DRIVER_OFF = f"the driver's checkpoint is off: {DRIVER_CHECKPOINT} is not `{ALLOWED}`, or it fails"
NODE_FAULT_PAUSE_S = 3.0
"""How long it takes to say that this node cannot start a rank. If a job can run nowhere else, the
20 attempts that it may lose then give the node a minute to recover."""
OUTBOX_MAX = 100_000
"""Events waiting for the stream: a day without a bus at one job a second. They are journalled, so
beyond this the agent rather ends, and tells them after its restart."""


class AgentCalls:
    """The Calls port of an agent. `open` before use, `close` after."""

    def __init__(
        self,
        bus: Bus,
        runtime: NodeRuntime,
        devices: Devices,
        state: Path,
        inherited: Mapping[str, str],
        fatal: Callable[[Exception], None],
        *,
        launcher: LauncherRuntime | None = None,
        shared: Path | None = None,
        copies: int = 0,
    ) -> None:
        """Take the ports.

        Args:
            bus: Where events go.
            runtime: What executes processes and containers.
            devices: The node's devices.
            state: The agent's state folder.
            inherited: The agent's environment.
            fatal: Takes last words: the agent has to end.
            launcher: What executes processes as accounts of their own; it keeps their checkpoints.
            shared: The folder that the agent shares with jobs then; else they see `state`.
            copies: Bytes that copies of their state may take in the node's memory then.
        """
        self._launcher, self.shared = launcher, shared or state
        self._filed: dict[str, bool] = {}  # runs for which the launcher may have files of secrets
        self._bus, self._runtime, self._devices = bus, runtime, devices
        self._state, self._inherited, self._fatal = state, inherited, fatal
        self._outbox: asyncio.Queue[tuple[machine.PublishEvent, Answer]] = asyncio.Queue(OUTBOX_MAX)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sender: asyncio.Task[None] | None = None
        self._answer: Answer | None = None
        self._checkpoints = Checkpoints(self.shared, inherited)
        most = replica_bytes(inherited, host_memory())
        self.replicas = Replicas(state, most)
        """The copies of jobs' state in this node's memory."""
        if launcher is not None:
            self.replicas = AccountReplicas(launcher, self.shared, min(most, copies))
        self.replicas.tell = self._tell_copies
        self._stores = Stores()
        self._mps = Mps(state, inherited, accounts=launcher is not None)
        self._secrets = JobSecrets(bus, state)
        self._volumes = Volumes(state, accounts=launcher is not None)
        remove = launcher.remove_work if launcher is not None else None
        self.code = JobCode(bus, runtime, state, self.shared, remove)
        """The folders of jobs that brought their code."""
        self.environments = Environments(self.code, runtime, state, self.shared, inherited, remove)
        """What the jobs here have installed."""
        self.environments.tell = self._tell_builds
        self._built: tuple[Building, ...] = ()
        self._dropping: set[str] = set()
        self.images = Images()
        """Fetches the images of jobs that want that."""
        self.images.changed = self._tell_preparing
        self.access = RankAccess(node_key(state))
        """Which processes may speak for the ranks that this starts and finds."""
        self.access.any_account = launcher is not None
        self.driver: DriverCheckpoint | None = None
        """What evicts runs that know no boundary, where an operator allowed it."""
        self.images_of_processes: ProcessCheckpoints | None = None
        """What stores the processes of jobs, where an operator allowed it and it works."""
        self.have_apart: Callable[[str, GoApart], Awaitable[bool]] = _has_none
        """Has a run's processes give their connections up; set by what listens to ranks."""
        self.tell: Callable[[Told], bool] = _to_nobody
        """Says something to a rank; set by what listens to ranks."""
        self.is_heard: Callable[[str], bool] = _never
        self.heard_out: Callable[[str], Awaitable[None]] = _at_once
        """Whether more may come from a run's processes, and a wait for it; set likewise."""

    async def open(self, answer: Answer) -> None:
        """Connect to the runtime; ends of runs go to `answer`."""
        self._answer = answer
        await self._mps.open()
        await self._runtime.open(self._exited)
        self._sender = self._spawn(self._publish_in_order())

    def sweep_checkpoints(self, lives: Callable[[str], bool]) -> None:
        """Remove what no job wrote to for long.

        Args:
            lives: Says whether a job has processes here; what such a job has stored stays.
        """
        if self._launcher is not None:
            self._spawn(self._sweep_as_root(self._launcher))
            return
        self._checkpoints.sweep(lives)

    async def close(self) -> None:
        """Stop working; the runs go on."""
        for task in list(self._tasks.values()):
            task.cancel()
        self.images.close()
        await self._stores.close()
        if self._mps.wanted:
            await self._mps.close(busy=await self._busy())
        await self._runtime.close()

    def start(self, command: Any, answer: Answer) -> None:
        """Begin a call.

        Args:
            command: What the agent's machine calls for.
            answer: Takes what comes of it, later.

        Raises:
            AssertionError: A bug: the machine calls for what no agent can do.
        """
        match command:
            case machine.PublishEvent():
                self._publish(command, answer)
            case machine.StartRank():
                self.environments.starting(command.token)
                self._spawn(self._start(command, answer))
            case machine.StopRun():
                self.environments.cancel(command.token)
                self.images.cancel(command.token)
                self._spawn(self._runtime.stop(command.token, command.grace_s))
            case machine.ForgetRun():
                self._forget(command)
            case machine.ListRuns():
                self._spawn(self._list(answer))
            case machine.FreezeRun():
                self._spawn(self._freeze(command, answer))
            case machine.ThawRun():
                self._spawn(self._thaw(command, answer))
            case machine.EvictRun():
                self._spawn(self._evict(command, answer))
            case machine.RestoreRun():
                self._spawn(self._restore(command, answer))
            case machine.DumpRun() | machine.SignalRun():
                self._spawn(self._for_run(command, answer))
            case machine.TellRank():
                self.tell(self._completed(command))
            case machine.OpenStore():
                self._spawn(self._open_store(command, answer))
            case machine.SweepDevices() | machine.RemoveCopies():
                self._spawn(self._clean(command))
            case machine.ExitProcess():
                error = BeginAnewError if command.anew else NameTakenError
                self._fatal(error(command.text))
            case _:
                text = f"an agent cannot {command!r}"
                raise AssertionError(text)

    def _publish(self, command: machine.PublishEvent, answer: Answer) -> None:
        try:
            self._outbox.put_nowait((command, answer))
        except asyncio.QueueFull:
            self._fatal(ConnectionError("the bus took no event for too long"))

    def _forget(self, command: machine.ForgetRun) -> None:
        self.access.gone(command.token)
        self._forget_secrets(command.token)
        self._spawn(self._runtime.forget(command.token))
        if self.driver is not None:
            self.driver.forget(command.token)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks[id(task)] = task
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[id(task)]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    async def _busy(self) -> bool:
        """Return whether runs go on without this agent, or may."""
        try:
            runs = await asyncio.wait_for(self._runtime.runs(), ASK_S)
        except (TimeoutError, OSError):
            return True
        return any(isinstance(run, RunStarted) for run in runs)

    async def _exited(self, run: RunExited) -> None:
        if unpacks(run.token):
            await self.code.ended(run)
            return
        if builds(run.token):
            await self.environments.ended(run)
            return
        self._forget_secrets(run.token)
        assert self._answer is not None
        if self.is_heard(run.token):
            # Other runs' ends do not wait for it.
            self._spawn(self._exited_later(run, self._answer))
        else:
            await self._answer(run)

    async def _exited_later(self, run: RunExited, answer: Answer) -> None:
        await self.heard_out(run.token)
        await answer(run)

    def _forget_secrets(self, token: str) -> None:
        self._secrets.forget(token)
        if self._filed.pop(token, False) and self._launcher is not None:
            self._spawn(self._launcher.remove_files(token))

    async def _list(self, answer: Answer) -> None:
        listed = await self._runtime.runs()
        for run in filter(lambda one: builds(one.token), listed):
            await self.environments.listed(run)
        runs = tuple(run for run in listed if not (unpacks(run.token) or builds(run.token)))
        self._secrets.keep_only(run.token for run in runs if isinstance(run, RunStarted))
        if self._launcher is not None:
            living = [run.token for run in runs if isinstance(run, RunStarted)]
            self._filed.update(dict.fromkeys(living, True))
            self._spawn(self._launcher.keep_files(living))
        self.access.listed(run for run in runs if isinstance(run, RunStarted))
        await answer(machine.RunsListed(runs))

    async def _freeze(self, command: machine.FreezeRun, answer: Answer) -> None:
        await answer(machine.RunFrozen(command.token, await self._runtime.freeze(command.token)))

    async def _thaw(self, command: machine.ThawRun, answer: Answer) -> None:
        await answer(machine.RunThawed(command.token, await self._runtime.thaw(command.token)))

    async def _for_run(self, command: machine.DumpRun | machine.SignalRun, answer: Answer) -> None:
        if isinstance(command, machine.DumpRun):
            await self._dump(command, answer)
        else:
            await self._signal(command, answer)

    async def _signal(self, command: machine.SignalRun, answer: Answer) -> None:
        trouble = await self._runtime.signal(command.token, command.signal, command.order)
        text = f"{command.token}: {trouble}" if trouble else ""
        await answer(machine.RunSignalled(command.token, text))

    async def _dump(self, command: machine.DumpRun, answer: Answer) -> None:
        """Store the processes of a run. They give up their connections to this agent for it."""
        token, made = command.token, self.images_of_processes
        if made is None:
            await answer(machine.RunDumped(token, trouble=DUMPS_OFF))
            return
        pid, dumped = self.access.pid_of(token), Dumped(trouble="its process has ended")
        if pid:
            dumped = await self._dump_apart(made, pid, command)
        if dumped.trouble:
            log.warning("%s is not stored: %s", token, dumped.trouble)
        await answer(machine.RunDumped(token, *dumped))

    async def _dump_apart(
        self, made: ProcessCheckpoints, pid: int, command: machine.DumpRun
    ) -> Dumped:
        job, attempt, rank = command.job, command.attempt, command.rank
        folder = self._checkpoints.path(job)
        identity = folder / IDENTITY
        try:
            identity.unlink(missing_ok=True)
            apart = GoApart(
                job=job, attempt=attempt, rank=rank, path=str(identity), within_ms=APART_MS
            )
            if not await self.have_apart(command.token, apart):
                return Dumped(trouble=STAYS_CONNECTED)
            output = str(log_path(self.shared, job, attempt, rank))
            gpus = await asyncio.to_thread(self._on_gpus, pid, command.devices)
            return await made.dump(pid, folder, job, attempt, output, gpus)
        except OSError as error:
            return Dumped(trouble=f"{folder}: {error.strerror}")
        finally:
            with contextlib.suppress(OSError):  # Else they come back by themselves, later.
                path = str(socket_path(self.shared))
                identify(folder, job, attempt, self.access.secret(command.token), path)

    def _on_gpus(self, pid: int, devices: Sequence[int]) -> OnGpus:
        """Return which GPUs a run has, and how much its processes hold there."""
        own = proc.tree(proc.processes(), [pid])
        held = sum(
            max(process.memory, 0)
            for state in self._devices.look()
            if state.index in devices
            for process in state.processes
            if process.pid in own
        )
        return OnGpus(self._devices.names(devices), held)

    async def _evict(self, command: machine.EvictRun, answer: Answer) -> None:
        moved, trouble = 0, DRIVER_OFF
        if self.driver is not None:
            # Not even what the budget allows, if others have filled the memory meanwhile.
            most = min(command.max_bytes, host_bytes_free())
            moved, trouble = await self.driver.evict(command.token, command.devices, most)
        else:
            # Without the driver's help only a run that has nothing on its devices leaves them.
            has = await asyncio.to_thread(
                vacant.trouble_of, self._devices, command.devices, command.token
            )
            trouble = f"{has}, and {trouble}" if has else ""
        await answer(machine.RunEvicted(command.token, moved, trouble))

    async def _restore(self, command: machine.RestoreRun, answer: Answer) -> None:
        trouble = ""
        if self.driver is not None:
            trouble = await self.driver.restore(command.token)
        elif noted(self._state, command.token):
            trouble = DRIVER_OFF
        await answer(machine.RunRestored(command.token, trouble))

    def _completed(self, command: machine.TellRank) -> Told:
        """Return what a rank is told, with what only this machine knows filled in."""
        message = command.message
        match message:
            case CheckpointRank():
                path = str(self._checkpoints.path(message.job))
                return msgspec.structs.replace(message, path=path)
            case ReleaseRank():
                # Not even what the budget allows, if others have filled the memory meanwhile.
                share = max(host_bytes_free() // command.among, 1)
                most = min(message.max_bytes or share, share)
                return msgspec.structs.replace(message, max_bytes=most)
            case ResumeRank():
                return msgspec.structs.replace(message, cpus=self._devices.cpus(message.devices))
            case _:
                return message

    async def _open_store(self, command: machine.OpenStore, answer: Answer) -> None:
        trouble = await self._stores.open(command.address, command.port)
        await answer(machine.StoreOpened(command.job, command.attempt, trouble))

    async def _clean(self, command: machine.SweepDevices | machine.RemoveCopies) -> None:
        if isinstance(command, machine.RemoveCopies):
            if command.job not in self._dropping:  # It is asked again until they are gone.
                self._dropping.add(command.job)
                try:
                    await self.replicas.drop(command.job)
                finally:
                    self._dropping.discard(command.job)
        else:
            await self._sweep(command)

    async def _sweep(self, command: machine.SweepDevices) -> None:
        """Name the processes that still hold memory of devices that a part has left."""
        seen = await asyncio.to_thread(self._devices.look)
        whose = command.job, command.attempt
        for text in leaks(seen, command.devices, *whose, command.shared, state=self._state):
            log.warning("after %s attempt %d: %s", command.job, command.attempt, text)

    async def _start(self, command: machine.StartRank, answer: Answer) -> None:
        outcome = await self._started(command)
        self.environments.settled(command.token)
        if isinstance(outcome, RunNotStarted) and outcome.of_node:
            log.warning(
                "%s not started, by a fault of this node: %s", outcome.token, outcome.detail
            )
            await asyncio.sleep(NODE_FAULT_PAUSE_S)
        await answer(outcome)

    async def _tell_builds(self, building: tuple[Building, ...]) -> None:
        self._built = building
        await self._tell_preparing()

    async def _tell_preparing(self) -> None:
        """Tell the machine which environments are built, and which images fetched."""
        fetched = {
            attempt_of_run(token): (since, text)
            for token, (since, text) in self.images.pulling().items()
        }
        pulls = tuple(
            Building(job=job, attempt=attempt, since=since, text=text[:SHORT_MAX])
            for (job, attempt), (since, text) in sorted(fetched.items())
        )
        if self._answer is not None:
            await self._answer(machine.BuildsSeen((*self._built, *pulls)))

    async def _tell_copies(self, jobs: tuple[str, ...]) -> None:
        if self._answer is not None:
            await self._answer(machine.CopiesSeen(jobs))

    async def _fetch_image(self, command: BindJob, token: str) -> RunNotStarted | None:
        """Have the image of a job here; return why that is not possible, else None."""
        try:
            if await self.images.has(command.image):
                return None
            login = None
            if command.login:
                login = login_of(await self._secrets.value(command, command.login))
                if login is None:
                    text = f"secret {command.login} is no login: it must be `user:password`"
                    return RunNotStarted(token, text)
            if self.environments.is_cancelled(token):
                return RunNotStarted(token, STOPPED)
            await self.images.pull(command.image, login, token)
        except PullError as error:
            return RunNotStarted(token, str(error))
        except SecretsRefusedError as error:
            return RunNotStarted(token, str(error), of_node=error.of_node)
        return None

    async def _started(self, command: machine.StartRank) -> RunStarted | RunNotStarted:
        if command.command.environment is not None:
            python = await self.environments.provide(command.command, command.token)
            if isinstance(python, RunNotStarted):
                return python
            bound = msgspec.structs.replace(command.command, python=python)
            command = msgspec.structs.replace(command, command=bound)
        if command.command.pull:
            trouble = await self._fetch_image(command.command, command.token)
            if trouble is not None:
                return trouble
        accounts = self._launcher is not None
        plan = run_plan(
            command,
            self.shared,
            self._devices,
            self._inherited,
            accounts=accounts,
            earlier=self.code.attempts(command.command.job) if command.command.resume else (),
        )
        secret = {SECRET_VARIABLE: self.access.secret(command.token)}
        more = self._mps.variables(command.command)
        fresh = plan.fresh and command.command.attempt == 1
        memory = await self.replicas.prepare(command.command, fresh=fresh)
        copies = self._replica_variables(command.command) if memory else {}
        plan = msgspec.structs.replace(
            plan,
            env={**plan.env, **more, **secret, **copies},
            folders=(*plan.folders, *self._mps.folders(command.command), *memory),
            copies=accounts and bool(memory),
        )
        meets_here = command.plan.rank == 0 and command.command.world > 1
        if meets_here:
            await self._stores.free(command.command.master_port)
        if meets_here and port_is_taken(command.command.master_port):
            text = f"{machine.PORT_BUSY}port {command.command.master_port} is taken"
            return RunNotStarted(command.token, text)
        try:
            whole = command.command.nodes == 1
            self._checkpoints.provide(
                command.command.job, whole=whole, make=not accounts, fresh=fresh
            )
            if plan.image or command.command.python or command.command.resume is not None:
                provide_job_library(self.shared)
        except OSError as error:
            return RunNotStarted(
                command.token, *not_written(str(error.filename or self._state), error)
            )
        lacks = await self._volumes.trouble(command.command)
        if lacks is not None:
            return RunNotStarted(command.token, *lacks)
        trouble = await self.code.provide(command.command, command.token)
        if trouble is not None:
            return trouble
        # With a launcher, the process makes the files itself, with the rights of its account.
        files: dict[str, bytes] | None = {} if accounts else None
        secrets = await self._secrets.provide(command.command, command.token, files)
        if isinstance(secrets, RunNotStarted):
            return secrets
        if files and plan.image:
            self._filed[command.token] = True
        # Last: a value is in no plan that is looked at, only in that which the process gets.
        plan = msgspec.structs.replace(plan, env={**plan.env, **secrets}, files=files or {})
        plan = self._from_image(plan, command)
        self.access.starting(command.token)
        outcome = await self._runtime.start(plan)
        if isinstance(outcome, RunStarted):
            self.access.began(outcome)
        else:
            self.access.gone(command.token)
            self._forget_secrets(command.token)
        return outcome

    def _replica_variables(self, command: BindJob) -> dict[str, str]:
        return self.replicas.variables(command, self._inherited.get("SKEP_ADDRESS", "127.0.0.1"))

    def _from_image(self, plan: RunPlan, command: machine.StartRank) -> RunPlan:
        """Return how a rank begins where an image of its processes may be stored."""
        if self.images_of_processes is None:
            return plan
        folder = self._checkpoints.path(command.command.job)
        secret = self.access.secret(command.token)
        gpus = self._devices.names(command.plan.devices)
        plan, unused = self.images_of_processes.restored(
            plan, command.command, folder, secret, gpus
        )
        if unused:
            log.warning("%s begins from the start: %s", command.token, unused)
        return plan

    async def _publish_in_order(self) -> None:
        """Publish one event after the other: followers see what happened in the order it did."""
        while True:
            event, answer = await self._outbox.get()
            trace = trace_of(event.message)
            headers = {subjects.TRACE_HEADER: trace} if trace else {}
            payload = codec.encode(event.message)
            await self._bus.publish(event.subject, payload, event.key, headers)
            ended = event.message
            if isinstance(ended, MemberExited):
                if ended.outcome is Outcome.SUCCEEDED:
                    await self._drop_checkpoints(ended.job)
                    await self.replicas.drop(ended.job)
                await self.code.over(ended.job, ended.attempt)
            await answer(machine.Published(event.event))

    async def _drop_checkpoints(self, job: str) -> None:
        if self._launcher is None:
            await asyncio.to_thread(self._checkpoints.succeeded, job)
        elif self._checkpoints.forget(job):
            await self._launcher.remove_checkpoints(job)

    async def _sweep_as_root(self, launcher: LauncherRuntime) -> None:
        for job in await launcher.sweep_checkpoints(KEEP_SECONDS):
            log.info("checkpoints of %s are removed: none was written for long", job)


def _to_nobody(message: Told) -> bool:
    return False


def _never(token: str) -> bool:
    return False


async def _has_none(token: str, message: GoApart) -> bool:
    return True


async def _at_once(token: str) -> None:
    pass


def port_is_taken(port: int) -> bool:
    """Return whether another program listens on a TCP port of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
