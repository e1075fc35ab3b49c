"""Keeps what a process has loaded from being changed before its training goes on.

A process that goes on in the middle of an epoch runs the script's code before the inner loop once
more, which ran for that epoch already: `schedule.step()`, `run.state["sum"] = 0`, a learning rate
that is halved. `Landing` notes the state as it was loaded, and puts back what has changed when the
training arrives where it was. What the code left alone is not touched.
"""

from __future__ import annotations

from typing import Any

from skep_job.shards.pieces import as_split
from skep_job.state.snapshot import load_part, state_of
from skep_job.state.state_tree import Encoder, Tensors, decode

COPIED_NUMBERS_MAX = 1024
"""Elements of a tensor of which a copy is kept: learning rates and counters, not weights."""


class Landing:
    """The state as it was loaded, until the training has arrived."""

    def __init__(self, tracked: dict[str, Any], state: dict[str, Any]) -> None:
        """`state` are the script's own values, which are in it already."""
        self._tracked, self._state = tracked, state
        self._parts = {name: _Note(state_of(part), name) for name, part in tracked.items()}
        self._values = {key: _Note(value, f"state.{key}") for key, value in state.items()}

    def arrive(self) -> list[str]:
        """Put back what has changed; return the names of what has and cannot be put back."""
        lost: list[str] = []
        for name, note in self._parts.items():
            part = self._tracked[name]
            now = _Note(state_of(part), name)
            if note.differs(now):
                load_part(part, decode(note.node, note.tensors_to_load()))
                lost += note.overwritten(now)
        for key, note in self._values.items():
            if key not in self._state or note.differs(_Note(self._state[key], f"state.{key}")):
                self._state[key] = decode(note.node, note.tensors_to_load())
        return lost


class _Note:
    """A state at one moment: its plain values, and its tensors with the number of their changes."""

    def __init__(self, state: Any, path: str) -> None:
        encoder = Encoder()
        self.node = encoder.encode(state, path)
        self.tensors: Tensors = encoder.tensors
        self._shards = encoder.shards
        self._versions = {name: _version(each) for name, each in self.tensors.items()}
        self._copies = {
            name: each.clone()
            for name, each in self.tensors.items()
            if each.numel() <= COPIED_NUMBERS_MAX
        }

    def differs(self, now: _Note) -> bool:
        """Return whether the state is another one now."""
        return bool(self.node != now.node or any(self._changed(name, now) for name in self.tensors))

    def overwritten(self, now: _Note) -> list[str]:
        """Return the tensors whose earlier content is nowhere any more."""
        return [
            name
            for name in self.tensors
            if name not in self._copies and self._is_same(name, now) and self._changed(name, now)
        ]

    def tensors_to_load(self) -> Tensors:
        """Return the tensors with the content they had, where that is known."""
        whole = self.tensors | self._copies
        return whole | {name: as_split(each, whole[name]) for name, each in self._shards.items()}

    def _is_same(self, name: str, now: _Note) -> bool:
        other = now.tensors.get(name)
        return other is not None and bool(other.data_ptr() == self.tensors[name].data_ptr())

    def _changed(self, name: str, now: _Note) -> bool:
        other = now.tensors.get(name)
        if other is None:
            return True
        if self._is_same(name, now):
            return self._versions[name] != now._versions[name]
        import torch

        before = (self.tensors | self._copies)[name]
        return not (before.shape == other.shape and torch.equal(before, other.to(before.device)))


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)
