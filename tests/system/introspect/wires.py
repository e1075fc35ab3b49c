"""Nodes with a network of their own: a namespace each, a bridge between them, and links of a speed.

An agent enters the namespace of its node when it begins (`sitecustomize`, in a folder that goes
before others in PYTHONPATH), so its runner, its jobs and what these listen on are in there too:
what two nodes say to one another passes the links, what stays on a node does not. The bus is
reached by a relay past the links, at the address that the agent was told. Needs root, `ip`, `tc`.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

NEWNET = 0x40000000
INSIDE = "eth0"
BRIDGE = "switch"
NET = "10.213.7"
ENTER = """
import ctypes, json, os
_node = os.environ.get("SKEP_NODE")
_table = json.loads(os.environ.get("SKEP_WIRES", "{}"))
if _node in _table:
    os.environ["SKEP_ADDRESS"] = _table[_node]["address"]
    with open(_table[_node]["namespace"]) as _file:
        if ctypes.CDLL(None, use_errno=True).setns(_file.fileno(), 0x40000000):
            raise OSError(ctypes.get_errno(), "the node's network namespace cannot be entered")
"""


class Wires:
    """The network of these nodes; `mbit` is the speed of each one's link, both ways."""

    def __init__(self, nodes: Sequence[str], mbit: float, folder: Path) -> None:
        """Prepare; nothing is made yet."""
        self._mbit, self._folder = mbit, folder
        mark = f"{os.getpid() % 100_000:05}"
        self._switch = f"sks{mark}"
        self._made = {
            node: (f"skn{mark}-{number}", f"skv{mark}-{number}", f"{NET}.{number + 10}")
            for number, node in enumerate(nodes)
        }
        self._relays: list[Relay] = []

    def __enter__(self) -> Wires:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for relay in self._relays:
            relay.close()
        for namespace in (self._switch, *(made[0] for made in self._made.values())):
            _ip("netns", "del", namespace, check=False)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return what has agents enter their namespaces."""
        hook = self._folder / "enter"
        hook.mkdir(exist_ok=True)
        (hook / "sitecustomize.py").write_text(ENTER)
        table = {
            node: {"namespace": f"/run/netns/{namespace}", "address": address}
            for node, (namespace, _, address) in self._made.items()
        }
        before = os.environ.get("PYTHONPATH", "")
        return {
            "SKEP_WIRES": json.dumps(table),
            "PYTHONPATH": f"{hook}:{before}" if before else str(hook),
        }

    def relay(self, port: int) -> None:
        """Have what listens on a port of this machine's loopback be there for every node."""
        self._relays += [Relay(namespace, port) for namespace, _, _ in self._made.values()]

    def _make(self) -> None:
        # The bridge has a namespace, too: there no packet filter of this machine is in its way.
        switch = ("netns", "exec", self._switch, "ip")
        _ip("netns", "add", self._switch)
        _ip(*switch, "link", "add", BRIDGE, "type", "bridge")
        _ip(*switch, "link", "set", BRIDGE, "up")
        for namespace, link, address in self._made.values():
            inside = ("netns", "exec", namespace, "ip")
            _ip("netns", "add", namespace)
            _ip(
                *inside,
                "link",
                "add",
                INSIDE,
                "type",
                "veth",
                "peer",
                "name",
                link,
                "netns",
                self._switch,
            )
            _ip(*switch, "link", "set", link, "master", BRIDGE, "up")
            _ip(*inside, "addr", "add", f"{address}/24", "dev", INSIDE)
            _ip(*inside, "link", "set", INSIDE, "up")
            _ip(*inside, "link", "set", "lo", "up")
            self._shape(self._switch, link)
            self._shape(namespace, INSIDE)

    def _shape(self, namespace: str, link: str) -> None:
        _ip(
            "netns",
            "exec",
            namespace,
            "tc",
            "qdisc",
            "add",
            "dev",
            link,
            "root",
            "tbf",
            "rate",
            f"{self._mbit:g}mbit",
            "burst",
            "32kb",
            "latency",
            "100ms",
        )


class Relay:
    """Listens on a port of a namespace's loopback, and passes on to the same port here."""

    def __init__(self, namespace: str, port: int) -> None:
        self._port = port
        self._listener = _listen(namespace, port)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more; what is open stays so until an end closes it."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                there, _ = self._listener.accept()
                here = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            for pair in ((there, here), (here, there)):
                threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _listen(namespace: str, port: int) -> socket.socket:
    """Return a socket that listens in another namespace: a thread of its own goes there for it."""
    made: list[socket.socket | OSError] = []

    def go() -> None:
        try:
            with open(f"/run/netns/{namespace}") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), NEWNET):
                    raise OSError(ctypes.get_errno(), namespace)
            made.append(socket.create_server(("127.0.0.1", port)))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass  # The other direction's end closed both.
    for each in (source, target):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if check and done.returncode:
        text = f"`ip {' '.join(words)}` returned {done.returncode}: {done.stderr.strip()}"
        raise RuntimeError(text)
