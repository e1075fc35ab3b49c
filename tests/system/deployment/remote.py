"""What stands for ssh and systemd on machines of a test: a command there restarts their units.

    python -m tests.system.deployment.remote SOCKET MACHINE VERSION

asks the test's process, over a Unix socket, to install a version on a machine and to restart what
runs there, and ends when that is done, as `ssh root@MACHINE 'pip install ... && systemctl restart
...'` would. The code of a machine is a link to a tree: it is replaced, as a package manager would.
"""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.system.deployment.bed import STOP_WITHIN_S, Machine

REQUEST_BYTES_MAX = 256
UNITS: Mapping[str, tuple[str, ...]] = {
    "server": ("skep", "server", "run"),
    "node": ("skep", "node", "run"),
}


class Remote:
    """The machines' side, in the process of the test. `close` it after use.

    Args:
        machines: By name.
        trees: The code of each version.
        path: Where the socket is made.
    """

    def __init__(
        self, machines: Mapping[str, Machine], trees: Mapping[str, Path], path: Path
    ) -> None:
        self._machines, self._trees, self.path = machines, trees, path
        self.asked: list[str] = []
        remote = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                name, version = self.rfile.readline(REQUEST_BYTES_MAX).decode().split()
                remote.asked.append(name)
                remote.install(name, version)
                remote.restart(name)
                self.wfile.write(b"done\n")

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self._server = Server(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def via(self) -> str:
        """Return the start of a command that asks; machine and version follow."""
        return f"{sys.executable} -m tests.system.deployment.remote {self.path}"

    def install(self, name: str, version: str) -> None:
        """Have what starts on a machine from now on be of a version."""
        machine = self._machines[name]
        link = machine.folder / "code"
        draft = machine.folder / "code.next"
        draft.symlink_to(self._trees[version])
        os.replace(draft, link)
        machine.code = link

    def restart(self, name: str) -> None:
        """Restart the units of a machine: only their main processes end (`KillMode=process`)."""
        machine = self._machines[name]
        for unit in list(machine.running):
            process = machine.running.pop(unit)
            os.kill(process.pid, signal.SIGTERM)
            process.wait(STOP_WITHIN_S)
            machine.start(unit, *UNITS[unit])

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def main(words: Sequence[str]) -> int:
    """Ask; return the exit code."""
    path, name, version = words
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        link.sendall(f"{name} {version}\n".encode())
        with link.makefile("rb") as answer:
            return 0 if answer.readline() == b"done\n" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
