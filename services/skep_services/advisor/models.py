"""The learned models of a folder: each file is named by the SHA-256 of its content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from skep.learn.modelfile import BYTES_MAX, Model, ModelError, load
from skep.learn.seat import ModelSeat
from skep_services.learning.registry import NAME, STATES, State, file_of, read_registry

KEPT_MAX = 32
"""Models that are in memory at a time: 2 MB each at most."""


class ModelFolder:
    """Reads models when a VC names them; what cannot be read is said once, in one line."""

    def __init__(self, folder: Path, log: Any) -> None:
        """Begin with none read.

        Args:
            folder: Where the files are.
            log: The logger of the service.
        """
        self._folder, self._log = folder, log
        self._read: dict[str, Model] = {}
        self._said: dict[str, str] = {}
        self._states: os.stat_result | None = None
        """Of the file of states, when it was read last."""
        self._retired: frozenset[str] = frozenset()

    def offers(self, model: str) -> bool:
        """Return whether a model may advise: whether it was not retired."""
        try:
            states = os.stat(self._folder / STATES)
        except OSError:
            states = None
        known = self._states
        same = (states is None) is (known is None)
        if states is not None and known is not None:
            same = (states.st_mtime_ns, states.st_size) == (known.st_mtime_ns, known.st_size)
        if not same:
            try:
                entries = read_registry(self._folder).values()
            except OSError as error:
                self._log.error("the states of learned models cannot be read", why=str(error))
                return model not in self._retired
            self._states = states
            self._retired = frozenset(each.model for each in entries if each.state is State.RETIRED)
        return model not in self._retired

    def seat(self, model: str) -> ModelSeat | None:
        """Return a new seat of a model; None: there is no such file, or it is no such model."""
        try:
            known = self._read.get(model) or self._load(model)
        except (ModelError, OSError) as error:
            text = str(error)
            if self._said.get(model) != text:
                self._said[model] = text
                self._log.error("a learned model cannot be used", model=model[:12], why=text)
            return None
        self._said.pop(model, None)
        return ModelSeat(known)

    def _load(self, model: str) -> Model:
        """Read a model's file.

        Raises:
            OSError: The file cannot be read.
            ModelError: It is no model, not the one of this name, or was retired.
        """
        if not NAME.fullmatch(model):
            text = f"{model[:80]!r} is not the SHA-256 of a file"
            raise ModelError(text)
        entry = read_registry(self._folder).get(model)
        if entry is not None and entry.state is State.RETIRED:
            text = f"it was retired: {entry.why or 'no reason is given'}"
            raise ModelError(text)
        with file_of(self._folder, model).open("rb") as file:
            made = load(file.read(BYTES_MAX + 1))
        if made.name != model:
            text = f"the file is damaged: its content is that of {made.name[:12]}"
            raise ModelError(text)
        while len(self._read) >= KEPT_MAX:
            del self._read[next(iter(self._read))]
        self._read[model] = made
        return made
