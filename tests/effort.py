"""How hard properties are tried that need another number of examples than all others."""

from __future__ import annotations

from hypothesis import settings

WHOLE = 60
"""Examples of a property that says nothing, in `make test-all` (`tests/conftest.py`)."""


def examples(whole: int) -> int:
    """Return how many examples to try where `make test-all` tries `whole` of them.

    The chosen profile scales it: `make test` tries fewer, `HYPOTHESIS_PROFILE=nightly` many more.
    """
    return max(5, whole * settings().max_examples // WHOLE)
