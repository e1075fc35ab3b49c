"""How hard a test tries in the quick tier, and in the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

WHOLE = 60
"""Examples of a property that says nothing, in `make test-all` (`tests/conftest.py`)."""


def examples(whole: int) -> int:
    """Return how many examples to try where `make test-all` tries `whole` of them.

    The chosen profile scales it: `make test` tries fewer, `HYPOTHESIS_PROFILE=nightly` many more.
    """
    return max(5, whole * settings().max_examples // WHOLE)


def stride(whole: int) -> int:
    """Return by how many to step through moments that `make test-all` steps through by `whole`."""
    return max(1, whole * WHOLE // settings().max_examples)


def slow_after(quick: int, values: Sequence[Any]) -> list[Any]:
    """Return the values of a parameter; tests with others than the first `quick` ones are slow."""
    slow = [pytest.param(value, marks=pytest.mark.slow) for value in values[quick:]]
    return [*values[:quick], *slow]
