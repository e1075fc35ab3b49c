"""Brings a gang's state to a newcomer: straight from a member's memory into the newcomer's.

The connection is that of `transfer`. What is different is that the newcomer has the memory ready
before the gang stops: its own tensors where it has them, and memory made after the layout that a
member told early, every page touched. Collectives of the gang are not used: gloo moves such a state
at a tenth of the speed, and the old gang must stay as it is until the newcomers have everything.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from skep_job.link.orders import describe
from skep_job.state import snapshot, transfer
from skep_job.state.snapshot import Snapshot
from skep_job.state.state_tree import Tensors

LOOK_S = 0.2
"""How often a newcomer that waits for the state asks whether it will ever come."""


class CopyFailed(Exception):  # noqa: N818  a name for what happened
    """The state did not get across; both sides are as they were, but for the newcomer's tensors."""


class Door:
    """Where a newcomer takes the state."""

    def __init__(self, tracked: dict[str, Any]) -> None:
        self._tracked = tracked
        self._listener = socket.create_server(("", 0))
        self.port: int = self._listener.getsockname()[1]
        self._token = secrets.token_hex(16)
        self._ready: Tensors = {}

    def address(self, towards: tuple[str, int]) -> dict[str, object]:
        """Return what a member needs to bring the state: host, port and token.

        Args:
            towards: A host and a port; the address is that of the interface facing them.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(towards)  # Sends nothing: it asks the routing table.
            host = probe.getsockname()[0]
        return {"host": host, "port": self.port, "token": self._token}

    def prepare(self, layout: dict[str, Any]) -> None:
        """Have memory ready for every tensor of `layout`, each page touched."""
        self._ready = snapshot.destinations(self._tracked, layout)
        for tensor in self._ready.values():
            tensor.zero_()

    def take(self, wait_s: float, is_off: Callable[[], bool]) -> tuple[dict[str, Any], int]:
        """Wait for the state and load it; return the place in the training, and the bytes.

        Args:
            wait_s: How long to wait for a member to connect (seconds).
            is_off: It is asked every LOOK_S whether to give up waiting.

        Raises:
            CopyFailed: The state does not come, does not fit, or cannot be loaded.
        """
        with self._accept(time.monotonic() + wait_s, is_off) as wire, _told("taking the state"):
            header = wire.receive()
            plain, layout = header["plain"], header["layout"]
            why = transfer.is_ours(header) or snapshot.why_unfit(self._tracked, plain, layout)
            if why:
                raise CopyFailed(why)
            tensors = self._tensors(layout)
            moved = wire.receive_tensors(tensors)
            snapshot.load(self._tracked, plain, tensors)
            wire.send({"loaded": True})
            wire.receive()  # taken
            return snapshot.place_of(plain, tensors), moved

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _tensors(self, layout: dict[str, Any]) -> Tensors:
        """Return what was prepared, if the state is as it was told, else memory made now."""
        ready, self._ready = self._ready, {}
        same = snapshot.layout_of(ready) == layout
        return ready if same else snapshot.destinations(self._tracked, layout)

    @contextlib.contextmanager
    def _accept(self, until: float, is_off: Callable[[], bool]) -> Iterator[transfer.Wire]:
        """Yield the first connection that knows the token.

        Args:
            until: When to give up (monotonic seconds).
            is_off: It is asked every LOOK_S whether to give up.

        Raises:
            CopyFailed: There is none.
        """
        while time.monotonic() < until and not is_off():
            self._listener.settimeout(LOOK_S)
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            with peer:
                wire = transfer.Wire(peer)
                try:
                    wire.prove(self._token, "successor", "source")
                except (OSError, transfer.Broken):
                    continue
                yield wire
                return
        reason = "no rank brought the state"
        raise CopyFailed(reason)


def bring(state: Snapshot, door: dict[str, object]) -> int:
    """Send a state to a newcomer; return its bytes once it has loaded it.

    Args:
        state: The state.
        door: What `Door.address` returned there.

    Raises:
        CopyFailed: The newcomer is gone, or could not load the state.
    """
    host, port = str(door["host"]), int(str(door["port"]))
    with _told(f"bringing the state to {host}:{port}"):
        return transfer.send((host, port), str(door["token"]), state, {})


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, transfer.Broken, ValueError, KeyError, RuntimeError) as error:
        reason = f"{what}: {describe(error)}"
        raise CopyFailed(reason) from error
