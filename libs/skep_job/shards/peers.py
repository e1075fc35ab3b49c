"""Parts of a state between the ranks of two gangs: the one that was, and the one that is formed.

    a rank of the gang that was             a rank of the next one
    magic, nonces, proofs of the token  <-> as for any transfer of state
    plain values, layout                -->
                                        <-- which blocks it wants
    the blocks, a sum per chunk         -->

A rank of the gang that was answers until the change is decided, so that its memory is the one place
where its part is until then.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Sequence

from skep_job.link.orders import describe
from skep_job.observe.reporter import complain
from skep_job.shards.fill import Block
from skep_job.shards.pieces import block
from skep_job.shards.templates import pieces_of
from skep_job.state.snapshot import Snapshot, layout_of, version_of
from skep_job.state.transfer import CONNECT_S, Broken, Wire, frame, is_ours

BLOCKS_MAX = 1_000_000
"""Blocks in one request: far more than a state has tensors."""


class Offer:
    """Gives blocks of a state to any process that knows the token, until it is closed."""

    def __init__(self, state: Snapshot) -> None:
        """`state` is what this rank has; its tensors must stay as they are."""
        self.state = state
        self._token = secrets.token_hex(16)
        self._first = b""
        self._listener = socket.create_server(("", 0))
        threading.Thread(target=self._serve, name="skep-offer", daemon=True).start()

    def address(self, towards: tuple[str, int]) -> dict[str, object]:
        """Return host, port and token for the others.

        Args:
            towards: A host and a port; the address is that of the interface facing them.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(towards)  # Sends nothing: it asks the routing table.
            host = probe.getsockname()[0]
        port = self._listener.getsockname()[1]
        return {"host": host, "port": port, "token": self._token}

    def close(self) -> None:
        """Give nothing any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # Else `accept` would keep the state alive.
        self._listener.close()

    def _serve(self) -> None:
        # Made once and now: nobody asks before the change is decided.
        plain, layout = self.state.plain, layout_of(self.state.tensors)
        self._first = frame(
            {"version": version_of(plain), "about": {}, "plain": plain, "layout": layout}
        )
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._give_one, args=(peer,), name="skep-give", daemon=True
            ).start()

    def _give_one(self, peer: socket.socket) -> None:
        with peer:
            try:
                self._give(Wire(peer))
            except (
                Exception
            ) as error:  # The rank that takes it reports it, and the change is undone.
                complain(f"a part of the state did not leave: {describe(error)}")

    def _give(self, wire: Wire) -> None:
        state = self.state
        wire.prove(self._token, "source", "successor")
        wire.send_frame(self._first)
        wants = wire.receive().get("want")
        if not isinstance(wants, list) or len(wants) > BLOCKS_MAX:
            reason = "a request that is no list of blocks"
            raise Broken(reason)
        blocks = [block(state.tensors[name], at, lengths) for name, at, lengths in wants]
        wire.send_tensors({str(number): each for number, each in enumerate(blocks)})


class Peer:
    """A rank of the earlier gang, as seen by a rank that takes parts of its state."""

    def __init__(self, address: dict[str, object]) -> None:
        """Connect.

        Args:
            address: What `Offer.address` returned there.

        Raises:
            Broken: It is not the rank that is meant.
            OSError: It cannot be reached.
        """
        where = (str(address["host"]), int(str(address["port"])))
        self._socket = socket.create_connection(where, CONNECT_S)
        self._wire = Wire(self._socket)
        self._wire.prove(str(address["token"]), "successor", "source")
        header = self._wire.receive()
        why = is_ours(header)
        if why:
            raise Broken(why)
        self.plain, self.layout = header["plain"], header["layout"]
        self.pieces = pieces_of(self.plain, self.layout)
        self.moved = 0
        """Bytes that came from there."""

    def give(self, blocks: Sequence[Block]) -> None:
        """Fill blocks.

        Args:
            blocks: What to fill.

        Raises:
            Broken: The rank is gone, or bytes were damaged on their way.
            OSError: The connection failed.
        """
        import torch

        wants = [[each.name, list(each.offsets), list(each.lengths)] for each in blocks]
        self._wire.send({"want": wants})
        direct = [each.into.is_contiguous() and each.into.device.type == "cpu" for each in blocks]
        into = {
            str(number): each.into if direct[number] else torch.empty_like(each.into, device="cpu")
            for number, each in enumerate(blocks)
        }
        into = {number: each.contiguous() for number, each in into.items()}
        self.moved += self._wire.receive_tensors(into)
        with torch.no_grad():
            for number, each in enumerate(blocks):
                if not direct[number]:
                    each.into.copy_(into[str(number)])

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Own:
    """What this rank had in the gang that was."""

    def __init__(self, state: Snapshot) -> None:
        self._tensors = state.tensors
        self.plain, self.layout = state.plain, layout_of(state.tensors)
        self.pieces = pieces_of(self.plain, self.layout)

    def give(self, blocks: Sequence[Block]) -> None:
        """Fill blocks; nothing leaves the process."""
        import torch

        with torch.no_grad():
            for each in blocks:
                each.into.copy_(block(self._tensors[each.name], each.offsets, each.lengths))
