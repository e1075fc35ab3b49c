"""A job of a gang over several nodes: every rank tells rank 0 its number, over the network."""

from __future__ import annotations

import os
import socket
import time

WITHIN_S = 30.0


def main() -> None:
    """Meet the others; print how many there are."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank:
        with _connected(place) as link:
            link.sendall(bytes([rank]))
            print(f"rank {rank} of {world} was told: {link.recv(64).decode()}")
        return
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    with socket.create_server(place, family=family) as server:
        server.settimeout(WITHIN_S)
        links = [server.accept()[0] for _ in range(world - 1)]
        heard = sorted(link.recv(1)[0] for link in links)
        for link in links:
            link.sendall(b"all are here")
            link.close()
    print(f"rank 0 of {world} met {heard} at {place[0]}")


def _connected(place: tuple[str, int]) -> socket.socket:
    until = time.monotonic() + WITHIN_S
    while True:
        try:
            return socket.create_connection(place, WITHIN_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main()
