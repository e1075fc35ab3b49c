"""`python -m skep_services.compose.check`: exit 0 if the process of this container is well.

A service is asked over the bus, under its own name, so its loop, its connection and the bus are
all in the answer. A bus server (`--nats`) is asked on its own loopback; through the door (`--door`)
a bus server must answer. Standard library only, and the few words of the bus's protocol are spelt
out: it runs every few seconds in every container, and loading the client library would cost more
than the service it asks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 3.0
MONITOR = ("127.0.0.1", 8222)
ANSWER_BYTES_MAX = 1 << 20


def main(arguments: list[str], environment: Mapping[str, str] = os.environ) -> int:
    """Return the exit code (0 or 1); what is wrong goes to standard error."""
    try:
        match arguments:
            case ["--nats"]:
                said = nats_health()
            case ["--door"]:
                said = door_health(int(environment["SKEP_LISTEN"].rpartition(":")[2]))
            case _:
                said = service_health(environment)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"not well: {type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(said)
    return 0


def nats_health() -> str:
    """Return what the server says of itself.

    Raises:
        OSError: It is not well, or does not answer.
    """
    with socket.create_connection(MONITOR, TIMEOUT_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise OSError(body.decode("utf-8", "replace"))
    return body.decode("utf-8", "replace")


def door_health(port: int) -> str:
    """Return what a bus server says through the door on this machine.

    Raises:
        OSError: No bus server answers through the door.
    """
    with (
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection,
        connection.makefile("rb") as file,
    ):
        said = file.readline(4096).decode("utf-8", "replace")
    if not said.startswith("INFO "):
        text = "no bus server answers through the door"
        raise OSError(text)
    return said


def service_health(environment: Mapping[str, str]) -> str:
    """Return what the service answers on the bus.

    Raises:
        OSError: No bus server has an answer, or the password cannot be read.
    """
    identity = environment["SKEP_NATS_USER"]
    password = Path(environment["SKEP_NATS_PASSWORD_FILE"]).read_text(encoding="utf-8").strip()
    trouble = "no bus server is named"
    for url in environment["SKEP_NATS_URL"].split(","):
        host, _, port = url.rpartition("://")[2].partition(":")
        try:
            return _ask(host, int(port), identity, password)
        except OSError as error:
            trouble = f"{host}: {error}"
    raise OSError(trouble)


def _ask(host: str, port: int, identity: str, password: str) -> str:
    login = {
        "user": identity,
        "pass": password,
        "verbose": False,
        "headers": True,
        "no_responders": True,
        "name": f"{identity}-check",
    }
    inbox = f"_INBOX.{identity}.check"
    with (
        socket.create_connection((host, port), TIMEOUT_S) as connection,
        connection.makefile("rb") as file,
    ):
        file.readline()
        connection.sendall(
            f"CONNECT {json.dumps(login)}\r\nSUB {inbox} 1\r\n"
            f"PUB skep.v1.health.{identity} {inbox} 0\r\n\r\n".encode()
        )
        while True:
            words = file.readline(4096).split()
            if words[:1] == [b"MSG"] and int(words[-1]) <= ANSWER_BYTES_MAX:
                return file.read(int(words[-1])).decode("utf-8", "replace")
            if not words or words[0] in {b"HMSG", b"-ERR"}:
                raise OSError(b" ".join(words).decode("utf-8", "replace") or "no answer")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
