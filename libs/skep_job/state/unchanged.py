"""Finds tensors whose bytes an older checkpoint of the same rank has already.

    samples of a tensor differ from those in the older file     it is written, nothing else is read
    they are equal, and there is no digest to compare with yet  it is written, with its digest
    the digest is the same too                                  the new file says where they are

So what is trained costs a few small reads, and what is frozen a digest. A file refers to those that
have the bytes themselves, never to one that refers on, and to ORIGINS_MAX of them at most.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

LEAST_BYTES = 1024 * 1024
"""Smaller tensors are written again."""
SAMPLES, SAMPLE_BYTES = 64, 64
ORIGINS_MAX = 2
"""Older files that one refers to: each of them stays on the disk as a whole."""
FILE = re.compile(r"a(\d{5,18})-s(\d{12,18})-r(\d{1,6})of(\d{1,6})\.safetensors", re.ASCII)
"""Names of checkpoints: attempt, mini-batches, rank, ranks. Ranks agree on numbers of 63 bits."""


class Place(NamedTuple):
    """Where the bytes of a tensor are."""

    file: str  # its name, in the same folder
    at: int
    bytes: int
    crc: str
    digest: str


class Known(NamedTuple):
    """What the older checkpoint says about a tensor."""

    dtype: str
    shape: list[int]
    place: Place  # without a digest where there is none yet


class Unchanged(NamedTuple):
    """What is not to be written, and the digests of what may not change."""

    elsewhere: dict[str, Place]
    digests: dict[str, str]


def compare(
    folder: Path, known: dict[str, Known], tensors: dict[str, tuple[Any, Any]]
) -> Unchanged:
    """Return which tensors need not be written.

    Args:
        folder: Where the files are.
        known: What the older checkpoint has, by name.
        tensors: For each name what `layout_of` says of it, and a function that returns its bytes.
    """
    found: dict[str, Place] = {}
    digests: dict[str, str] = {}
    files: dict[str, int] = {}
    try:
        for name, (about, bytes_of) in tensors.items():
            there = known.get(name)
            same = there is not None and (there.dtype, there.shape) == (
                about["dtype"],
                about["shape"],
            )
            if there is None or not same or about["bytes"] < LEAST_BYTES:
                continue
            data, keep = bytes_of()
            if _alike(folder, files, there.place, data):
                digests[name] = hashlib.blake2b(data, digest_size=16).hexdigest()
                if digests[name] == there.place.digest:
                    found[name] = there.place
            del data, keep
    finally:
        for descriptor in files.values():
            os.close(descriptor)
    saved: dict[str, int] = {}
    for place in found.values():
        saved[place.file] = saved.get(place.file, 0) + place.bytes
    origins = sorted(saved, key=lambda file: (-saved[file], file))[:ORIGINS_MAX]
    kept = {name: place for name, place in found.items() if place.file in origins}
    return Unchanged(kept, digests)


def _alike(folder: Path, files: dict[str, int], place: Place, data: memoryview) -> bool:
    """Return whether samples of some bytes are those of a place; False where it cannot be read."""
    if len(data) != place.bytes or not FILE.fullmatch(place.file):
        return False
    step = max((len(data) - SAMPLE_BYTES) // (SAMPLES - 1), 1)
    try:
        if place.file not in files:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            files[place.file] = os.open(folder / place.file, flags)
        for number in range(SAMPLES):
            at = min(number * step, len(data) - SAMPLE_BYTES)
            there = os.pread(files[place.file], SAMPLE_BYTES, place.at + at)
            if there != data[at : at + SAMPLE_BYTES]:
                return False
    except OSError:
        return False
    return True
