"""Snapshots of code: what a folder was when a job was submitted, by the digest of its contents.

A snapshot is a list of chunks. Put together they are its index (JSON), and then the contents of its
files in the index's order. Each chunk is known by the SHA-256 of its bytes, the snapshot by that of
its own encoding. So equal contents are sent and kept once, and every byte is verified where it is
used. Nothing is compressed: no snapshot can grow while it is unpacked.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from skep.units import GIB, KIB, MIB
from skep.wire.bounds import UNDECODABLE, Attempt, Count, JobName, Short, Token

CHUNK_BYTES_MAX = 512 * KIB
"""One message of the bus, which takes a mebibyte, also where it is read back as base64."""
CHUNKS_MAX = 4096
"""Those of the largest snapshot, and of 50,000 small files in some thousand folders."""
FILES_MAX = 50_000
BYTES_MAX = 512 * MIB
"""Code, and what small data lies beside it. Data sets belong on storage that nodes share."""
INDEX_BYTES_MAX = 16 * MIB
"""50,000 paths of 300 characters."""
VC_BYTES_MAX = GIB
"""Snapshots of one virtual cluster, each chunk counted once; four such VCs fill the store."""
DIGEST = r"^[0-9a-f]{64}$(?!\n)"
OUTPUTS_MAX = 32
"""Paths that one job may name as its outputs."""
OUTPUT_PIECE_BYTES_MAX = 512 * KIB
LISTED_FILES_MAX = 2000
"""Files of one answer to what a job left: 2,000 paths of 250 characters fit a message."""

Digest = Annotated[str, Meta(pattern=DIGEST)]


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a snapshot: the SHA-256 of its bytes, and how many they are."""

    digest: Digest
    size: Annotated[int, Meta(ge=1, le=CHUNK_BYTES_MAX)]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a folder held: `index_bytes` of the chunks' bytes say which files, the others are them.

    `files` counts entries of the index, `bytes` is the size of all contents.
    """

    v: Annotated[int, Meta(ge=1, le=1)] = 1
    index_bytes: Annotated[int, Meta(ge=2, le=INDEX_BYTES_MAX)]
    files: Annotated[int, Meta(ge=0, le=FILES_MAX)]
    bytes: Annotated[int, Meta(ge=0, le=BYTES_MAX)]
    chunks: Annotated[tuple[Chunk, ...], Meta(max_length=CHUNKS_MAX)]


class AskCode(msgspec.Struct, frozen=True, kw_only=True):
    """An agent asks for a snapshot of a job that its node is to run: its list, or one chunk of it.

    `chunk` is the digest of the chunk; empty: the snapshot itself.
    """

    node: Token
    job: JobName
    attempt: Attempt
    code: Digest
    chunk: Short = ""


class AskOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway asks a node for the files that an attempt left, or for a piece of one.

    `path` is relative to the job's folder; empty: which files there are is asked. `token` is what
    the piece before it said of the file: a file that changed since is refused. With `digest` the
    SHA-256 of the whole file is asked for.
    """

    job: JobName
    attempt: Attempt
    path: Annotated[str, Meta(max_length=4096)] = ""
    offset: Count = 0
    token: Short = ""
    digest: bool = False


_DECODER = msgspec.json.Decoder(Snapshot)
_ENCODER = msgspec.json.Encoder()


def digest_of(data: bytes) -> str:
    """Return what a chunk or an encoded snapshot is known by."""
    return hashlib.sha256(data).hexdigest()


def encode(snapshot: Snapshot) -> bytes:
    """Return the one encoding of a snapshot, whose digest is its name."""
    return _ENCODER.encode(snapshot)


def decode(raw: bytes) -> Snapshot | str:
    """Return the snapshot in `raw`, or why it is none, as one line."""
    try:
        found = _DECODER.decode(raw)
    except UNDECODABLE as error:
        return f"no snapshot: {str(error)[:200]}"
    total = sum(chunk.size for chunk in found.chunks)
    if total != found.index_bytes + found.bytes:
        return (
            f"no snapshot: its chunks have {total} bytes, and it says {found.index_bytes} of index "
            f"and {found.bytes} of files"
        )
    if encode(found) != raw:
        return "no snapshot: it is not in the one encoding that its digest is of"
    return found


def is_digest(text: str) -> bool:
    """Return whether a text can name a snapshot or a chunk."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def unsafe(path: str) -> str:
    """Return why a path does not lead from a folder to something in it; empty if it does."""
    if not path or "\0" in path:
        return "it is empty, or has a NUL"
    if path.startswith("/"):
        return "it begins with `/`"
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return "it has an empty part, `.` or `..`"
    if len(path) > 4096 or any(
        len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts
    ):
        return "it is longer than Linux takes"
    return ""
