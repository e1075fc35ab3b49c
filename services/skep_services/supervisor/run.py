"""The supervisor: brings a cluster up in order, keeps it up, and takes it down in order.

    bus -> (first time: streams) -> virtual clusters -> services and agents at the same time
    agents -> the jobs they run -> services -> bus

It is the only process of the cluster that is not watched. If it is killed, everything else goes on;
the next `skep up` stops what it left and begins again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from skep_services.supervisor import bus_watch
from skep_services.supervisor import home as folder
from skep_services.supervisor.children import Child, bound_log, stop_all
from skep_services.supervisor.table import ClusterPlan

Step = Callable[[], Awaitable[object]]

Admit = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]

LOG_CHECK_EVERY_S = 10.0
"""A service that writes 100 lines of 500 bytes a millisecond is at most half a gigabyte over."""

BUS_CHECK_EVERY_S = 2.0
"""The bus is asked how it is: soon enough that clients that repeat for half a minute succeed."""

EXIT_OK = 0
EXIT_FAILED = 1


class Supervisor:
    """One cluster in one state folder.

    Args:
        home: The state folder.
        plan: The processes.
        prepare: Runs each time the bus is first up, before the services start: it makes the streams
            and publishes the virtual clusters.
        stop_jobs: Runs once the agents are gone.
        admit: Runs once the services start, and makes users of those of virtual clusters that are
            new; it is given how to have the bus take them in.
    """

    def __init__(
        self, home: str, plan: ClusterPlan, prepare: Step, stop_jobs: Step, admit: Admit
    ) -> None:
        self._home = home
        self._prepare = prepare
        self._admit = admit
        self._stop_jobs = stop_jobs
        self._admitting: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._bus = self._child(plan.bus)
        self._services = [self._child(one) for one in plan.services]
        self._agents = [self._child(one) for one in plan.agents]

    async def run(self) -> int:
        """Bring the cluster up and keep it up until SIGTERM or SIGINT; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        # A terminal that is closed does not take the cluster with it.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        write_state(self._home, "starting")
        say("supervisor started", pid=os.getpid(), home=self._home)
        logs = asyncio.create_task(self._bound_logs())
        watch = asyncio.create_task(self._watch_bus())
        up = asyncio.create_task(self._up())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((up, stop), return_when=asyncio.FIRST_COMPLETED)
        failure = up.exception() if up.done() and not up.cancelled() else None
        if failure is not None:
            # The bus stays up for those that come to look; nothing decides anything meanwhile.
            text = f"{type(failure).__name__}: {failure}"
            say("cluster not started", error=text)
            write_state(self._home, "failed", text)
        await stop
        tasks = [task for task in (up, logs, watch, self._admitting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._down()
        return EXIT_OK if failure is None else EXIT_FAILED

    async def _up(self) -> None:
        self._bus.start()
        if not await self._bus.wait_ready():
            message = f"the bus server does not start: {self._bus.detail}"
            raise RuntimeError(message)
        await self._prepare()
        for child in (*self._services, *self._agents):
            child.start()
        write_state(self._home, "running")
        self._admitting = asyncio.create_task(self._admit(self._bus.reload))

    async def _watch_bus(self) -> None:
        """Start a bus anew that has given up to store, as soon as there is room again."""
        state = self._bus.plan.state
        seen, since = 0, 0.0
        while True:
            await asyncio.sleep(BUS_CHECK_EVERY_S)
            pid, now = self._bus.pid, time.monotonic()
            if pid != seen:
                seen, since = pid, now
            if not pid:
                continue
            trouble = await asyncio.to_thread(bus_watch.write_trouble, state, pid, now - since)
            if trouble and pid == self._bus.pid and bus_watch.has_room(state):
                say("bus started anew: it stores nothing", error=trouble)
                bus_watch.forget_ports(state)
                self._bus.kill()

    async def _bound_logs(self) -> None:
        children = (self._bus, *self._services, *self._agents)
        paths = [child.plan.log_path for child in children]
        while True:
            for path in (*paths, folder.supervisor_log_path(self._home)):
                await asyncio.to_thread(bound_log, path)
            await asyncio.sleep(LOG_CHECK_EVERY_S)

    async def _down(self) -> None:
        write_state(self._home, "stopping")
        say("stopping")
        await stop_all(self._agents)
        try:
            stopped = await self._stop_jobs()
            say("jobs stopped", nodes=stopped)
        except Exception as error:
            # Whatever a runner's trouble is, the rest of the cluster has to be stopped.
            say("jobs not stopped", error=f"{type(error).__name__}: {error}")
        await stop_all(self._services)
        await self._bus.stop()
        write_state(self._home, "stopped")
        say("stopped")

    def _child(self, plan: Any) -> Child:
        return Child(plan, say, self._write_pids)

    def _write_pids(self) -> None:
        children = (self._bus, *self._services, *self._agents)
        entries = {child.plan.name: child.facts() for child in children}
        try:
            folder.write_json(folder.pids_path(self._home), entries, durable=False)
        except OSError as error:
            # A full disk stops the bus already; the supervisor has to survive it.
            say("pids.json not written", error=str(error))


def write_state(home: str, state: str, error: str = "") -> None:
    """Write into `cluster.json` which process the supervisor is, and how far it got.

    Args:
        home: The state folder.
        state: `starting`, `running`, `stopping`, `stopped` or `failed`.
        error: Why it failed; empty: it did not.
    """
    try:
        cluster = folder.read_cluster(home)
        if cluster is None:
            return
        pid = os.getpid()
        cluster["supervisor"] = {
            "pid": pid,
            "start_ticks": folder.start_ticks(pid),
            "state": state,
            "error": error,
        }
        folder.write_json(folder.cluster_path(home), cluster, durable=False)
    except (OSError, ValueError) as trouble:
        say("cluster.json not written", error=str(trouble))


def say(event: str, **facts: Any) -> None:
    """Write one JSON line to standard error, as the services do."""
    at_s = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
    line = {"service": "supervisor", **facts, "event": event}
    line["timestamp"] = f"{stamp}.{int(at_s % 1 * 1_000_000):06d}Z"
    try:
        sys.stderr.write(json.dumps(line, default=str) + "\n")
        sys.stderr.flush()
    except OSError:
        pass  # A full disk, or a terminal that is gone: keeping processes up matters more.
