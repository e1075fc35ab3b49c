"""What can be wrong with what a person hands in: one line each, and a word for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path


class Why(StrEnum):
    """What is wrong; these words are stable."""

    NO_MODEL = "no-model"
    AMBIGUOUS = "ambiguous-model"
    DAMAGED_MODEL = "damaged-model"
    OTHER_SCHEMA = "other-schema"
    WRONG_STATE = "wrong-state"
    NO_LEARNER = "no-learner"
    NO_FIGURES = "no-figures"
    WRONG_SETTING = "wrong-setting"
    NO_EXTRA = "needs-extra"
    NO_RUN = "no-run"
    OTHER_RUN = "other-run"
    DAMAGED_RUN = "damaged-run"
    CANNOT_WRITE = "cannot-write"
    LACKS_FACTS = "lacks-facts"
    UNFIT = "unfit-input"
    DAMAGED_PAIRS = "damaged-pairs"
    NOT_OFFERED = "not-offered"


NOT_FOUND = frozenset({Why.NO_MODEL, Why.NO_LEARNER, Why.NO_FIGURES, Why.NO_RUN})
"""What a person names is not there."""
USAGE = frozenset({Why.AMBIGUOUS, Why.WRONG_SETTING, Why.NOT_OFFERED, Why.NO_EXTRA})
"""The command line is wrong."""


class LearningError(Exception):
    """Something cannot be done: one line that says what, where, and what to do.

    Args:
        why: What programs know it by.
        text: The line.
    """

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why
        self.text = text


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say of what goes wrong that a folder cannot be written.

    Args:
        folder: What is written to.

    Raises:
        LearningError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror or error}"
        raise LearningError(Why.CANNOT_WRITE, text) from error
