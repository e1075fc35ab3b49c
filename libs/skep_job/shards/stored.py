"""Reads this rank's part of a checkpoint that any number of ranks has written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from skep_job.shards.fill import Block, Holder, fill, rewrite
from skep_job.shards.pieces import block
from skep_job.shards.templates import pieces_of, split_otherwise
from skep_job.state import checkpoint_file, random_state, snapshot
from skep_job.state.checkpoint_file import Stored, Unreadable
from skep_job.state.checkpoint_folder import Checkpoints, Entry
from skep_job.state.piece import local_of
from skep_job.state.state_tree import Encoder, Tensors


def read(
    tracked: dict[str, Any], checkpoints: Checkpoints, entry: Entry, rank: int, world: int
) -> tuple[Stored, Tensors]:
    """Return the header of a checkpoint and the tensors that this rank has of it.

    The tree of the header says what this rank has here, not what was written.

    Args:
        tracked: The tracked things by name.
        checkpoints: The folder.
        entry: A file of the checkpoint.
        rank: This rank.
        world: How many ranks there are now.

    Raises:
        Another: It is the state of another optimizer.
        Unreadable: A file is not there or damaged, or the state is not that of the tracked things.
        NotThere: The state cannot be split as it is here.
        OSError: A file cannot be read.
    """
    files = checkpoints.files_of(entry)
    mine = files.get(rank) or files.get(0)
    if mine is None:
        reason = f"the file of rank {rank} of {entry.world} is not there"
        raise Unreadable(reason)
    stored = _header(checkpoints, mine)
    why = snapshot.why_unfit(tracked, stored.plain, stored.layout)
    if why:
        raise Unreadable(why)
    snapshot.require_optimizers(tracked, stored.plain)
    same = entry.world == world and mine.rank == rank
    if same and not split_otherwise(tracked, stored.plain, stored.layout):
        with _named(mine):
            return stored, checkpoint_file.read_tensors(mine.path, stored)
    missing = [number for number in range(entry.world) if number not in files]
    if missing:
        numbers = ", ".join(map(str, missing))
        reason = f"the file of rank {numbers} of {entry.world} is not there, and has a part of it"
        raise Unreadable(reason)
    holders: list[Holder] = [_File(mine, stored)]  # First: what each rank has whole is its own.
    holders += [
        _File(each, _header(checkpoints, each)) for each in files.values() if each.rank != mine.rank
    ]
    tensors = fill(tracked, stored.plain, stored.layout, holders, fresh=True)
    plain = rewrite(stored.plain, tensors)
    if mine.rank != rank:
        # Two ranks with the same numbers would draw the same dropout.
        plain["place"] = _with_chance(plain["place"])
    return stored._replace(plain=plain), {name: local_of(each) for name, each in tensors.items()}


def _header(checkpoints: Checkpoints, entry: Entry) -> Stored:
    """Return a file's header. Raises what `Checkpoints.read` raises, with the rank named."""
    with _named(entry):
        return checkpoints.read(entry)


@contextlib.contextmanager
def _named(entry: Entry) -> Iterator[None]:
    """Have what cannot be read say of which rank it is: the message names another file.

    Raises:
        Unreadable: What was raised, with the rank named.
    """
    try:
        yield
    except Unreadable as error:
        reason = f"in the file of rank {entry.rank}, {error}"
        raise Unreadable(reason) from error


def _with_chance(place: Any) -> Any:
    """Return a place with the random state of this process."""
    chance = Encoder().encode(random_state.capture(), "chance")
    return {
        kind: [[key, chance if key == "chance" else value] for key, value in items]
        for kind, items in place.items()
    }


class _File:
    """One rank's file, as something that has pieces."""

    def __init__(self, entry: Entry, stored: Stored) -> None:
        self._entry, self._stored = entry, stored
        self.pieces = pieces_of(stored.plain, stored.layout)

    def give(self, blocks: Sequence[Block]) -> None:
        import torch

        name, tensor = "", torch.empty(0)
        with torch.no_grad():
            for each in blocks:
                if each.name != name:  # The sum is over all of a tensor, so that all is read.
                    name = each.name
                    with _named(self._entry):
                        tensor = checkpoint_file.read_tensor(self._entry.path, self._stored, name)
                each.into.copy_(block(tensor, each.offsets, each.lengths))
