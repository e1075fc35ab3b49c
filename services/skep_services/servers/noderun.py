"""`skep node run`: keeps a node's agent up, and its certificate and identity valid.

The jobs of the node are not this process's: they outlive the agent, and an agent that comes back
finds them. So stopping ends the agent alone, and what a killed process left is stopped before the
agent is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from skep_services.servers import files, notify, plan
from skep_services.servers.serving import EXIT_CONFIGURATION, EXIT_OK, beat, refused, take_lock
from skep_services.supervisor import survivors
from skep_services.supervisor.children import FINAL_CODES, Child, bound_log
from skep_services.supervisor.run import LOG_CHECK_EVERY_S, say

Renew = Callable[[str], object]
"""Has a node's certificate and identity signed anew, if it has to be."""

RENEW_EVERY_S = 3600.0
"""A certificate is renewed weeks before its end; a node that was off for long is so in time."""
RENEWED_WITHIN_S = 15.0
"""How long the agent waits at a start for what has to be signed: it may do without mostly."""
LOOK_EVERY_S = 0.1


def run(home: str, renew: Renew) -> int:
    """Run a node until it is asked to stop; return the exit code.

    Args:
        home: The state folder.
        renew: Has what expires signed anew.

    Raises:
        FilesError: There is no node in it, or another process runs it.
    """
    file = files.read_node(home)
    lock = take_lock(home)
    try:
        if refused(home, file.gateways.split(","), f"node {file.name}"):
            return EXIT_CONFIGURATION
        agent = plan.node_plan(file, home)
        survivors.stop(survivors.find(home, [agent]).values())
        return asyncio.run(_run(home, Child(agent, say, lambda: None), renew))
    finally:
        os.close(lock)


async def _run(home: str, agent: Child, renew: Renew) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    signed = asyncio.Event()
    beside = [
        asyncio.create_task(work)
        for work in (beat(), _renew(home, renew, signed), _bound(agent.plan.log_path))
    ]
    # The bus refuses an agent whose identity is of an earlier version: a new one comes first.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(signed.wait(), RENEWED_WITHIN_S)
    agent.start()
    telling = asyncio.create_task(_tell(agent))
    ended = asyncio.create_task(_given_up(agent))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
    notify.tell(notify.STOPPING)
    for task in (*beside, telling, ended, stopping):
        task.cancel()
    code = agent.exit_code if agent.state == "stopped" else EXIT_OK
    await agent.stop()
    return code or EXIT_OK


async def _tell(agent: Child) -> None:
    """Tell systemd once the agent is ready: it has reached the bus, and joined."""
    if await agent.wait_ready():
        say("node ready", pid=agent.pid)
        notify.tell(notify.READY, notify.status("the agent is up"))


async def _given_up(agent: Child) -> None:
    """Return once the agent is not started again, because a person has to look."""
    while agent.state != "stopped":  # noqa: ASYNC110 - a child tells no event
        await asyncio.sleep(LOOK_EVERY_S)
    say("agent given up", code=agent.exit_code, why=FINAL_CODES.get(agent.exit_code or 0, ""))


async def _renew(home: str, renew: Renew, done: asyncio.Event) -> None:
    """Renew what has to be, again and again; set `done` when it was tried once."""
    while True:
        try:
            await asyncio.to_thread(renew, home)
        except Exception as error:
            # It is valid for weeks more, and a gateway may be away: the next time does it.
            say("certificate not renewed", error=str(error))
        done.set()
        await asyncio.sleep(RENEW_EVERY_S)


async def _bound(path: str) -> None:
    while True:
        await asyncio.to_thread(bound_log, path)
        await asyncio.sleep(LOG_CHECK_EVERY_S)
