"""A slow link: packets wait in a queue of the kernel's packet filter for a verdict that comes late.

    python delay.py NUMBER SEED      (serves queue NUMBER of its network namespace)

Each packet waits for a time of its own, so that they also come in another order. This stands in for
the kernel's network emulation, which many kernels are built without. Standard library only: it runs
inside the namespace of the component whose packets are late.
"""

from __future__ import annotations

import heapq
import itertools
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

NETLINK_NETFILTER = 12
QUEUE = 3 << 8
PACKET, VERDICT, CONFIG = QUEUE | 0, QUEUE | 1, QUEUE | 2
COMMAND_ATTRIBUTE, MODE_ATTRIBUTE, LENGTH_ATTRIBUTE = 1, 2, 3
PACKET_ATTRIBUTE, VERDICT_ATTRIBUTE = 1, 2
BIND, COPY_HEADER_ONLY, ACCEPT = 1, 1, 1
REQUEST, ACKNOWLEDGE = 1, 4
ERROR_TYPE = 2
LENGTH_MAX = 4096
"""Packets that wait at once; more are lost, as by a full router."""
BASE_MS = 5, 300
JITTER_PARTS = 0.5, 1.5
BUFFER_BYTES = 4 << 20


class Delay:
    """The queue of one slow link, served by a process of its own."""

    numbers = itertools.count(1)

    def __init__(self, seed: int, enter: Sequence[str] = ()) -> None:
        """Serve a queue in the namespace that the words `enter` lead to. Raises OSError."""
        number = next(Delay.numbers) % 65536
        # Without its server the queue lets everything pass.
        self.verdict = ["-j", "NFQUEUE", "--queue-num", str(number), "--queue-bypass"]
        command = [*enter, sys.executable, "-S", "-E", __file__, str(number), str(seed)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            _, words = self._server.communicate()
            text = f"no queue for delayed packets: {words.decode(errors='replace')[-300:]}"
            raise OSError(text)

    def stop(self) -> None:
        """End it; what still waits is lost, and said again by its sender."""
        self._server.kill()
        self._server.communicate()


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _message(kind: int, number: int, body: bytes, flags: int = REQUEST) -> bytes:
    whole = struct.pack(">BBH", 0, 0, number) + body
    return struct.pack("=IHHII", 16 + len(whole), kind, flags, 0, 0) + whole


def _configure(link: socket.socket, number: int, attribute: bytes) -> None:
    link.send(_message(CONFIG, number, attribute, REQUEST | ACKNOWLEDGE))
    answer = link.recv(8192)
    (code,) = struct.unpack_from("=i", answer, 16)
    if struct.unpack_from("=H", answer, 4)[0] == ERROR_TYPE and code:
        raise OSError(-code, "the packet filter has no such queue")


def _packet_ids(data: bytes) -> list[int]:
    """Return the ids of the packets that a reading of the link brought."""
    found, at = [], 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        inner = at + 20
        while kind == PACKET and inner + 4 <= at + length:
            size, attribute = struct.unpack_from("=HH", data, inner)
            if attribute & 0x3FFF == PACKET_ATTRIBUTE:
                found.append(struct.unpack_from(">I", data, inner + 4)[0])
            inner += max(4, size + -size % 4)
        at += max(16, length + -length % 4)
    return found


def main(number: int, seed: int) -> None:
    """Serve until killed."""
    rng = random.Random(seed)
    base_s = rng.uniform(*BASE_MS) / 1000
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    link.bind((0, 0))
    _configure(link, number, _attribute(COMMAND_ATTRIBUTE, struct.pack(">BBH", BIND, 0, 0)))
    _configure(link, number, _attribute(MODE_ATTRIBUTE, struct.pack(">IB", 0, COPY_HEADER_ONLY)))
    _configure(link, number, _attribute(LENGTH_ATTRIBUTE, struct.pack(">I", LENGTH_MAX)))
    link.setblocking(False)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    waiting: list[tuple[float, int]] = []
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, packet = heapq.heappop(waiting)
            verdict = _attribute(VERDICT_ATTRIBUTE, struct.pack(">II", ACCEPT, packet))
            link.send(_message(VERDICT, number, verdict))
        timeout = max(0.0, waiting[0][0] - now) if waiting else None
        if not select.select([link], [], [], timeout)[0]:
            continue
        try:
            data = link.recv(1 << 16)
        except OSError:
            continue  # More came than fits into the buffer: those are lost.
        for packet in _packet_ids(data):
            due = time.monotonic() + base_s * rng.uniform(*JITTER_PARTS)
            heapq.heappush(waiting, (due, packet))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
