"""What a node keeps of environments that it built, as gateways ask for it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

ENVIRONMENTS_MAX = 1000
"""Environments in one answer, of 400 bytes: a node has some dozens."""
KEY = r"^[0-9a-f]{32}$(?!\n)"

Key = Annotated[str, Meta(pattern=KEY)]


class AskCaches(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway asks a node which environments it keeps, or has it remove one by its key."""

    remove: Key | None = None


class KeptEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment on a node. Times are seconds since 1970.

    It is of jobs of the person `owner` in `vc` (empty: of the VC's own), made of the file `path`
    (`kind` says what installs it) of the snapshot `files` within `took_s`. `jobs` may run in it.
    With `building` it is not whole yet.
    """

    key: str
    vc: str
    owner: str
    kind: str
    path: str
    files: str
    bytes: int
    took_s: float
    used_at: float
    building: bool = False
    jobs: tuple[str, ...] = ()


class KeptHere(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer. `bytes_max` is what it keeps at most; `refused`: why it did not remove."""

    environments: tuple[KeptEnvironment, ...] = ()
    bytes_max: int = 0
    refused: str = ""
