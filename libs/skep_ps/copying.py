"""Copies what moves from one server to the others, one thread for each of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from skep_ps.assign import Move
from skep_ps.errors import Broken, Refused, RequestFailed
from skep_ps.peers import Peers
from skep_ps.placement import Placement
from skep_ps.store import Store
from skep_ps.wire import Late, Message


def copy_out(
    store: Store, peers: Peers, placement: Placement, moves: Sequence[Move], stand: Message
) -> tuple[int, str]:
    """Return the bytes that the targets of `moves` have stored, and what went wrong, if anything.

    Args:
        store: What this server keeps.
        peers: Its connections to other servers.
        placement: The placement after the change.
        moves: Those whose source is this server.
        stand: What the source says of itself; a target that keeps nothing else goes on from there.

    Returns:
        The bytes; and a text, empty if nothing went wrong.
    """
    counts: list[int] = []
    wrong: list[str] = []

    def copy(target: int) -> None:
        chunks = [move.chunk for move in moves if move.target == target]
        parts = [part for chunk in chunks for part in store.kept[chunk].parts(state=True)]
        header = {
            "type": "chunks",
            "generation": placement.generation,
            "chunks": chunks,
            "updates": [store.kept[chunk].updates for chunk in chunks],
            **stand,
        }
        try:
            peers.ask(target, placement, header, parts, [])
        except (Broken, Refused, Late, RequestFailed) as error:
            wrong.append(f"copying to server {target}: {error}")
        else:
            counts.append(sum(part.nbytes for part in parts))

    targets = list(dict.fromkeys(move.target for move in moves))
    threads = [threading.Thread(target=copy, args=(target,)) for target in targets[1:]]
    for thread in threads:
        thread.start()
    for target in targets[:1]:
        copy(target)
    for thread in threads:
        thread.join()
    return sum(counts), "; ".join(wrong)
