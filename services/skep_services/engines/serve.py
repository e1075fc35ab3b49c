"""What a worker at the end of a connection does: one task after the other, until it is told to end.

python -m skep_services.engines.serve HOST PORT WORKER        in a job; key in SKEP_ENGINE_KEY
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

import msgspec

from skep_services.engines.task import About, AloneError, Task, about, outcome

KEY = "SKEP_ENGINE_KEY"
"""The variable with the key, in hexadecimal, by which a worker and its command know one another."""
ATTEMPT = "SKEP_GEN"
CONNECT_S = 20.0
TOLD_EVERY_S = 0.2
"""Between two words about a task's progress."""
END, STOP = b"end", b"stop"
"""What a worker is told beside tasks: that there are no more, and to end the one it has early."""


class Hello(msgspec.Struct, frozen=True):
    """The first word of a worker that runs elsewhere."""

    worker: int
    attempt: int
    about: About


def serve(pipe: Connection) -> None:
    """Run the tasks that come, and send what comes of them.

    Args:
        pipe: The other end is the command's; if that is gone, the worker ends.
    """
    threading.Thread(target=_guard, args=(pipe.fileno(),), daemon=True).start()
    try:
        while (word := pipe.recv_bytes()) != END:
            if word != STOP:  # It came when the task was over.
                task = msgspec.msgpack.decode(word, type=Task)
                pipe.send_bytes(outcome(task, _Watch(pipe)))
    except (AloneError, EOFError, ConnectionError):
        return


def _guard(number: int) -> None:
    """End this process when the other end of a socket is gone, also in the middle of a task."""
    look = select.poll()
    look.register(number, select.POLLRDHUP)
    look.poll()
    os._exit(0)


def stay_alive(link: socket.socket) -> None:
    """Have a connection end within two minutes if the machine at its other end is gone."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 60),
        (socket.TCP_KEEPINTVL, 15),
        (socket.TCP_KEEPCNT, 4),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)


class _Watch:
    """Tells the command how far a task is, and hears whether to go on."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.told_at = 0.0
        self.goes_on = True

    def __call__(self, part: float) -> bool:
        now = time.monotonic()
        if now - self.told_at >= TOLD_EVERY_S:
            self.told_at = now
            try:
                self.pipe.send_bytes(b"p" + msgspec.msgpack.encode(part))
                if self.pipe.poll():
                    self.goes_on = self.pipe.recv_bytes() not in (STOP, END)
            except (EOFError, ConnectionError) as error:
                raise AloneError from error
        return self.goes_on


def main(arguments: list[str]) -> int:
    """Join the command at an address; return the exit code."""
    host, port, worker = arguments
    try:
        link = socket.create_connection((host, int(port)), CONNECT_S)
        link.settimeout(None)
        stay_alive(link)
        with Connection(link.detach()) as pipe:
            key = bytes.fromhex(os.environ[KEY])
            answer_challenge(pipe, key)
            deliver_challenge(pipe, key)
            pipe.send_bytes(
                msgspec.msgpack.encode(
                    Hello(int(worker), int(os.environ.get(ATTEMPT, "1")), about())
                )
            )
            serve(pipe)
    except (OSError, EOFError) as error:
        text = f"the command at {host}:{port} cannot be reached from here: {error}"
        sys.stderr.write(f"{text}; --listen names an address that nodes can reach\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
