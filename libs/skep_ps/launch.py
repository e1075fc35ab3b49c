"""Runs a training script on parameter servers in a gang that Skep, or torchrun, has started.

    python -m skep_ps.launch --servers 2 train.py --epochs 10

Of N ranks the first two are servers then, the others are workers, with RANK from 0 and a WORLD_SIZE
of N - 2. With --beside all ranks are workers, and rank 0 starts the servers next to itself. Rank 0
keeps the coordinator at MASTER_ADDR:MASTER_PORT, and starts it again if it is killed. Every rank
needs the same SKEP_PS_TOKEN, a secret of the job.

Skep runs the script of a job whose spec says `ps` in this way, with --beside, and sets the token;
SKEP_PS_SERVERS then says how many servers. Such a job is resized by `scaling`.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from skep_job.launch import main as run_script
from skep_job.link.orders import SIGNALS_S
from skep_job.link.settings import Unobserved
from skep_job.observe.observation import boot
from skep_job.process import ending
from skep_ps import scaling
from skep_ps.errors import ParameterServerError
from skep_ps.wire import Settings, settings

EXIT_USAGE = 2
RESTARTS_MAX = 10
END_S = 20.0
"""How long coordinator and servers may take to see that every worker is done."""


class Children(scaling.Servers):
    """Processes of this rank. They end with it."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._codes: dict[str, int] = {}
        self._told: list[str] = []
        # Held while a process is started or all are ended. Reentrant, because a signal's handler
        # ends them, and may run on the main thread while that starts one.
        self._changing = threading.RLock()
        self._ending = False
        self._starting = False
        self._afterwards: Callable[[], None] | None = None
        self._servers: list[str] = []

    def start(self) -> None:
        """Start a server."""
        self._servers.append(f"server {len(self._servers)}")
        self._keep(self._servers[-1], ["server", "--exit-on-term"], again=None)

    def alive(self) -> int:
        """Return how many servers run."""
        return sum(self._processes[name].poll() is None for name in self._servers)

    def failed(self) -> str:
        """Return which servers ended otherwise than asked to, once.

        Returns:
            A sentence about them; empty if there are none that were not told of before.
        """
        ended = [(name, self._processes[name].poll()) for name in self._servers]
        failed = [name for name, code in ended if code and name not in self._told]
        self._told += failed
        return f"{', '.join(failed)} could not join: see the log of rank 0" if failed else ""

    def coordinator(self, servers: int, workers: int) -> None:
        """Start the coordinator, and again whenever a signal kills it."""
        command = ["coordinator", "--servers", str(servers), "--workers", str(workers)]
        self._keep("coordinator", command, again="--recover")

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the ends of all of them.

        The coordinator ends once every worker has: others may go on for longer than this one.

        Args:
            seconds: How long to wait for each other process after the end of the first, which is
                the coordinator where there is one; None: as long as it takes. What runs then still
                is ended.

        Returns:
            The first code that is not 0; 1 if some had to be ended; else 0.
        """
        for number, thread in enumerate(self._threads):
            _join(thread, seconds if number else None)
        if any(thread.is_alive() for thread in self._threads):
            self.end()
            return 1
        return next((abs(code) for code in self._codes.values() if code), 0)

    def end(self, afterwards: Callable[[], None] | None = None) -> None:
        """End all of them, and do `afterwards`.

        A signal's handler may come into the start of a process that is not known yet. Then that one
        is ended, and `afterwards` done, as soon as it is known.

        Args:
            afterwards: It is called once; None: nothing is to be done.
        """
        with self._changing:
            self._ending = True
            for process in list(self._processes.values()):
                process.terminate()
            if self._starting:
                self._afterwards = afterwards
            elif afterwards is not None:
                afterwards()

    def _keep(self, name: str, command: list[str], *, again: str | None) -> None:
        with self._changing:
            self._start(name, command)
        thread = threading.Thread(target=self._watch, args=(name, command, again), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _start(self, name: str, command: list[str]) -> None:
        module = f"skep_ps.{command[0]}"
        # Without the agent's socket: what these do is not the training that is observed.
        environ = {key: text for key, text in os.environ.items() if key != "SKEP_SOCK"}
        argv = [sys.executable, "-m", module, *command[1:]]
        self._starting = True
        try:
            self._processes[name] = subprocess.Popen(argv, env=environ)
        finally:
            self._starting = False
            if self._ending:
                afterwards, self._afterwards = self._afterwards, None
                self.end(afterwards)

    def _watch(self, name: str, command: list[str], again: str | None) -> None:
        for _ in range(RESTARTS_MAX):
            code = self._processes[name].wait()
            command = [*command, again] if again and again not in command else command
            with self._changing:  # Whatever is started is there to be ended.
                if again is None or code >= 0 or self._ending:
                    break
                self._start(name, command)
        self._codes[name] = self._processes[name].wait()


def _join(thread: threading.Thread, seconds: float | None) -> None:
    """Wait for a thread's end, for `seconds` at most, but see signals."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    while thread.is_alive() and (left := until - time.monotonic()) > 0:
        thread.join(min(left, SIGNALS_S))


def main() -> None:
    """Be a server or a worker, as the rank says.

    Whatever the script raises passes through.

    Raises:
        SystemExit: The command line or the environment is wrong, or this rank was a server, whose
            exit code is the status.
    """
    ending.arm()
    parser = argparse.ArgumentParser(
        prog="python -m skep_ps.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count = os.environ.get("SKEP_PS_SERVERS", "")
    parser.add_argument(
        "--servers",
        type=int,
        required=not count,
        default=int(count) if count.isdecimal() else 0,
        help="how many the job begins with",
    )
    parser.add_argument("--beside", action="store_true", help="servers beside rank 0, no ranks")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    beside = options.beside or bool(count)
    first = 0 if beside else options.servers
    if options.servers < 1 or world <= first:
        parser.error(f"{options.servers} servers leave no worker of {world} ranks")
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    os.environ["SKEP_PS"] = f"{address}:{os.environ.get('MASTER_PORT', '')}"
    try:
        where = settings(dict(os.environ))
    except ParameterServerError as error:
        print(f"skep ps: {error}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None

    children = Children()
    scales = None
    if rank >= first:  # With the rank that Skep knows; the script has one among the workers.
        scales = _scaling(where, children if rank == 0 else None, options.servers, beside=beside)
    signal.signal(signal.SIGTERM, lambda number, _: _stop(children, number))
    if rank == 0:
        children.coordinator(options.servers, world - first)
        for _ in range(options.servers if beside else 0):
            children.start()
    if rank < first:
        children.start()
        raise SystemExit(children.wait())
    os.environ["RANK"] = str(rank - first)
    os.environ["WORLD_SIZE"] = str(world - first)
    try:
        run_script([options.script, *options.arguments])
    finally:
        _leave_optimizers()
        if scales is not None:
            scales.finish()
        children.wait(END_S)


def _scaling(
    where: Settings, children: Children | None, servers: int, *, beside: bool
) -> scaling.Scaling | None:
    """Be observed, and resized if all ranks are workers; None if there is no agent."""
    observation = boot(os.environ)
    if isinstance(observation, Unobserved) or not beside:
        return None
    observation.hooks.more = ("resize",)
    scales = scaling.Scaling(
        observation.control, where, observation.tally.reached, children, servers
    )
    scales.install(joins=bool(os.environ.get("SKEP_AWAITS")))
    return scales


def _stop(children: Children, number: int) -> None:
    def follow() -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    children.end(follow)


def _leave_optimizers() -> None:
    """Say that this worker is done, which it otherwise does when the interpreter ends."""
    optimizer = sys.modules.get("skep_ps.optimizer")
    if optimizer is not None:
        optimizer.close_all()


if __name__ == "__main__":
    # The script gets `__main__` for itself: what is still to be run afterwards must live elsewhere.
    from skep_ps.launch import main as main_elsewhere

    main_elsewhere()
