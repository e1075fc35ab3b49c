"""What breaks an invariant."""

from __future__ import annotations

Key = tuple[str, int]
"""A job and an attempt; or a machine's identity and a device."""


class ViolationError(Exception):
    """Something happened that must not."""

    def __init__(self, invariant: str, text: str) -> None:
        """Say which invariant broke, and how."""
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


def require(holds: bool, invariant: str, text: str) -> None:
    """Raise ViolationError unless `holds`."""
    if not holds:
        raise ViolationError(invariant, text)
