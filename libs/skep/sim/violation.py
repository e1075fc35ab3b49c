"""What breaks an invariant."""

from __future__ import annotations

Key = tuple[str, int]
"""A job and an attempt; or a machine's identity and a device."""


class ViolationError(Exception):
    """Something happened that must not."""

    def __init__(self, invariant: str, text: str) -> None:
        """Say which invariant broke, and how."""
        # Both are arguments, so that one is the same after it has crossed to another process.
        super().__init__(invariant, text)
        self.invariant = invariant

    def __str__(self) -> str:
        return ": ".join(self.args)


def require(holds: bool, invariant: str, text: str) -> None:
    """Check an invariant.

    Args:
        holds: Whether it holds.
        invariant: Its name, such as `I2`.
        text: What is the matter.

    Raises:
        ViolationError: It does not hold.
    """
    if not holds:
        raise ViolationError(invariant, text)
