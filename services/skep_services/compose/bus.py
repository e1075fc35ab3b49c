"""`python -m skep_services.compose.bus CONFIG`: run a bus server; end it if it stores nothing.

The first process of a bus server's container. A server whose write failed, as on a full disk, gives
up to store until it is started anew, and an engine starts anew only what has ended: the health
check of a container is looked at and nothing else. So this asks the server as the supervisor of
`skep up` does, and kills it once there is room again. What was acknowledged is synced, and the
others of the cluster have it too.

A server older than the one that opened the store before is not started (`nats_version`).

Signals are passed on. What has the server read its configuration again is sent twice: it connects
a new tenant's account with the others only the second time (nats-server 2.15.1).

The exit code is the server's, 75 if it was ended here, or 64 if it is not to be started.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from pathlib import Path

from skep_services.adapters.nats_server import binary
from skep_services.adapters.nats_version import ServerVersionError, accept
from skep_services.compose.check import MONITOR
from skep_services.supervisor import bus_watch
from skep_services.supervisor.run import BUS_CHECK_EVERY_S, say

FOLDER = "/var/lib/skep"
"""Where the image keeps what lasts: the volume with the server's store."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What nats-server understands: to end (at once, or once its clients have moved), to read its
configuration again, and to open its log again."""
AGAIN_AFTER_S = 1.0
"""A server reads its configuration in milliseconds, and two signals at once are one."""
EXIT_FAILED = 1
EXIT_CONFIGURATION = 64
EXIT_ANEW = 75
EXIT_SIGNALLED = 128


def main(arguments: Sequence[str]) -> int:
    """Run a bus server until it ends.

    Args:
        arguments: The command line, without the program's name.

    Returns:
        The exit code: the server's (128 and more: the signal that ended it); 75: it was ended here;
        64: its version is not to be run; 1: its version cannot be noted beside the store.
    """
    parser = argparse.ArgumentParser(description="Run a bus server; end it if it stores nothing.")
    parser.add_argument("config")
    parser.add_argument("--monitor", default=f"http://{MONITOR[0]}:{MONITOR[1]}")
    parser.add_argument("--folder", default=FOLDER, help="of the store")
    given = parser.parse_args(arguments)
    server = binary()
    try:
        accept(server, Path(given.folder))
    except ServerVersionError as error:
        say("bus not started", service="bus", error=str(error))
        return EXIT_CONFIGURATION
    except OSError as error:
        say("bus not started", service="bus", error=f"{error.filename}: {error.strerror}")
        return EXIT_FAILED
    argv = (str(server), "-c", given.config)
    return asyncio.run(_run(argv, given.monitor, given.folder))


async def _run(argv: Sequence[str], monitor: str, folder: str) -> int:
    loop = asyncio.get_running_loop()
    asked: list[signal.Signals] = []
    server: Process | None = None

    def take(number: signal.Signals) -> None:
        asked.append(number)
        if server is not None:
            _send(server, number)
            if number == signal.SIGHUP:
                loop.call_later(AGAIN_AFTER_S, _send, server, number)

    # Before there is a server: the first process of a container hears no signal it has no ear for.
    for number in PASSED_ON:
        loop.add_signal_handler(number, take, number)
    server = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL)
    for number in asked:
        _send(server, number)
    end = asyncio.create_task(server.wait())
    while not end.done():
        await asyncio.wait((end,), timeout=BUS_CHECK_EVERY_S)
        trouble = await asyncio.to_thread(bus_watch.trouble_at, monitor)
        # One that was asked to end stops storing first, and hands its streams over meanwhile.
        ending = end.done() or signal.SIGTERM in asked or signal.SIGUSR2 in asked
        if trouble and not ending and bus_watch.has_room(folder):
            say("bus started anew: it stores nothing", service="bus", error=trouble)
            _send(server, signal.SIGKILL)
            await end
            return EXIT_ANEW
    code = await end
    return code if code >= 0 else EXIT_SIGNALLED - code


def _send(server: Process, number: signal.Signals) -> None:
    try:
        server.send_signal(number)
    except ProcessLookupError:
        pass  # It has just ended by itself.


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
