"""The base of every message."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Frozen, keyword-only, tagged by its subclasses; grows only at the end, with defaults.

    Readers skip fields they do not know, so an older service reads a newer message.
    """
