"""The file of a backup: entries with their hashes, behind a line that says what the file is.

    {"skep-backup":1,"encryption":{...}}  and a new line
    frame*          length (4 bytes), then kind (1 byte) and content

An entry is a frame BEGIN (its name and what is known of it, as JSON), frames DATA, and a frame END
with its size and SHA-256. The last frame, LAST, has the number of entries and a hash of the first
line and all their hashes: without it the file was cut short. Encrypted, each frame is a message of
libsodium's secretstream (XChaCha20-Poly1305), whose key is argon2id of the passphrase: frames can
neither be changed, left out nor moved.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec
from nacl import bindings, exceptions, pwhash, utils

from skep.wire.bounds import UNDECODABLE

VERSION: Final = 1
HEAD_BYTES_MAX: Final = 4096
FRAME_BYTES_MAX: Final = 1024 * 1024
NAMES_LENGTH_MAX: Final = 128 * 1024 * 1024
"""All names together, which are kept in memory: a million files with long paths."""
ENTRY_COST: Final = 64
"""What an entry counts for beside its name."""
OPERATIONS_MAX: Final = 64
MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
"""What a file may have argon2id cost: far above what `Writer` asks for."""
BEGIN, DATA, END, LAST = b"B", b"D", b"E", b"L"
LENGTH: Final = 4


class BackupError(Exception):
    """A file is no good backup; the text is a sentence for a person.

    `reason` is a stable code: `no-backup`, `backup-newer`, `backup-damaged`, `backup-cut-short`,
    `needs-passphrase`, `wrong-passphrase`.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Encryption(msgspec.Struct, frozen=True):
    """How the key is made of the passphrase, and how the stream begins; bytes are base64."""

    salt: bytes
    operations: int
    memory: int
    header: bytes


class Head(msgspec.Struct, frozen=True, rename={"version": "skep-backup"}):
    """The first line."""

    version: int
    encryption: Encryption | None = None


class Entry(NamedTuple):
    """One thing in a backup: a name such as `files/cluster.json`, and what is known of it."""

    name: str
    about: dict[str, Any]


class _End(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class _Last(msgspec.Struct, frozen=True):
    entries: int
    sha256: str


class Writer:
    """Writes a backup entry by entry. The file is there once it is complete, or not at all."""

    def __init__(self, path: Path, passphrase: str = "") -> None:
        """Begin.

        Args:
            path: The file; an earlier one is replaced at the end.
            passphrase: What the key is made of; empty: the file is not encrypted.

        Raises:
            OSError: The file cannot be written.
        """
        self.path = path
        self._draft = path.with_name(f".{path.name}.draft")
        self._file = os.fdopen(
            os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
        )
        self._state: Any = None
        self._entries, self._all = 0, hashlib.sha256()
        self._size, self._hash = 0, hashlib.sha256()
        encryption = None
        if passphrase:
            salt = utils.random(pwhash.argon2id.SALTBYTES)
            limits = pwhash.argon2id.OPSLIMIT_INTERACTIVE, pwhash.argon2id.MEMLIMIT_INTERACTIVE
            self._state = bindings.crypto_secretstream_xchacha20poly1305_state()
            header = bindings.crypto_secretstream_xchacha20poly1305_init_push(
                self._state, _key(passphrase, salt, *limits)
            )
            encryption = Encryption(salt, *limits, header)
        line = msgspec.json.encode(Head(VERSION, encryption)) + b"\n"
        self._all.update(line)
        self._file.write(line)

    def begin(self, name: str, **about: Any) -> None:
        """Begin an entry."""
        self._size, self._hash = 0, hashlib.sha256()
        self._frame(BEGIN, json.dumps({"name": name, "about": about}).encode())

    def write(self, data: bytes) -> None:
        """Add data to the entry."""
        for first in range(0, len(data), FRAME_BYTES_MAX):
            part = data[first : first + FRAME_BYTES_MAX]
            self._hash.update(part)
            self._size += len(part)
            self._frame(DATA, part)

    def end(self) -> None:
        """End the entry."""
        digest = self._hash.hexdigest()
        self._all.update(digest.encode())
        self._entries += 1
        self._frame(END, msgspec.json.encode(_End(self._size, digest)))

    def add(self, name: str, data: bytes, **about: Any) -> None:
        """Add a whole entry."""
        self.begin(name, **about)
        self.write(data)
        self.end()

    def close(self) -> int:
        """End the file, make it durable, and return its size."""
        self._frame(LAST, msgspec.json.encode(_Last(self._entries, self._all.hexdigest())))
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        os.replace(self._draft, self.path)
        return size

    def drop(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._draft.unlink(missing_ok=True)

    def _frame(self, kind: bytes, content: bytes) -> None:
        data = kind + content
        if self._state is not None:
            final = kind == LAST
            data = bindings.crypto_secretstream_xchacha20poly1305_push(
                self._state,
                data,
                tag=bindings.crypto_secretstream_xchacha20poly1305_TAG_FINAL
                if final
                else bindings.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE,
            )
        self._file.write(len(data).to_bytes(LENGTH, "big") + data)


class Reader:
    """Reads a backup from its beginning to its end. What it yields is verified as it goes."""

    def __init__(self, path: Path, passphrase: str = "") -> None:
        """Open it, and read its first line.

        Raises:
            BackupError: It is no backup, is of a later version, or needs a passphrase.
            OSError: It cannot be read.
        """
        self.path = path
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - closed by `close`
        try:
            self.head = self._head()
            self._state = self._opened(passphrase)
        except BaseException:
            self._file.close()
            raise
        self.read_bytes = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def entries(self) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Yield each entry and its data. The data of one is read before the next comes.

        Raises:
            BackupError: The file is damaged, cut short, or of another passphrase.
        """
        count, every, name = 0, hashlib.sha256(self._line), "its beginning"
        names = 0
        while True:
            kind, content = self._frame(name, first=not count)
            if kind == LAST:
                self._check_last(content, count, every.hexdigest())
                return
            entry = self._entry(kind, content, name)
            name = entry.name
            names += len(name) + ENTRY_COST
            if names > NAMES_LENGTH_MAX:
                msg = "more entries than a cluster has"
                raise self._bad(msg)
            ended: list[str] = []
            data = self._data(name, ended)
            yield entry, data
            for _ in data:
                pass
            every.update(ended[0].encode())
            count += 1

    def _data(self, name: str, ended: list[str]) -> Iterator[bytes]:
        digest, size = hashlib.sha256(), 0
        while True:
            kind, content = self._frame(name)
            if kind == DATA:
                digest.update(content)
                size += len(content)
                yield content
            elif kind == END:
                break
            else:
                raise self._bad(name)
        try:
            end = msgspec.json.decode(content, type=_End)
        except UNDECODABLE:
            raise self._bad(name) from None
        if (end.size, end.sha256) != (size, digest.hexdigest()):
            raise self._bad(name)
        ended.append(end.sha256)

    def _entry(self, kind: bytes, content: bytes, before: str) -> Entry:
        try:
            tree = json.loads(content) if kind == BEGIN else None
            return Entry(str(tree["name"]), dict(tree["about"]))  # type: ignore[index]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise self._bad(before) from None

    def _check_last(self, content: bytes, count: int, digest: str) -> None:
        try:
            last = msgspec.json.decode(content, type=_Last)
        except UNDECODABLE:
            msg = "its end"
            raise self._bad(msg) from None
        if (last.entries, last.sha256) != (count, digest):
            msg = "its list of entries"
            raise self._bad(msg)
        if self._file.read(1):
            msg = "something behind its end"
            raise self._bad(msg)

    def _frame(self, where: str, *, first: bool = False) -> tuple[bytes, bytes]:
        """Return the kind and the content of the next frame.

        Raises:
            BackupError: The file ends, or its passphrase is another one.
            _bad: A BackupError: the frame is damaged.
        """
        head = self._file.read(LENGTH)
        length = int.from_bytes(head, "big")
        if len(head) == LENGTH and not 0 < length <= 2 * FRAME_BYTES_MAX:
            raise self._bad(where)
        data = self._file.read(length)
        self.read_bytes += len(head) + len(data)
        if len(head) < LENGTH or len(data) < length:
            text = (
                f"{self.path} is cut short in {where}: it was copied or written in part; copy it "
                f"again or use another backup"
            )
            msg = "backup-cut-short"
            raise BackupError(msg, text)
        if self._state is not None:
            try:
                data, _ = bindings.crypto_secretstream_xchacha20poly1305_pull(self._state, data)
            except (exceptions.CryptoError, RuntimeError):
                if first:
                    text = f"{self.path}: the passphrase is another one (or the file is damaged)"
                    msg = "wrong-passphrase"
                    raise BackupError(msg, text) from None
                raise self._bad(where) from None
        return data[:1], data[1:]

    def _bad(self, where: str) -> BackupError:
        text = f"{self.path} is damaged in {where}: use another copy or an earlier backup"
        return BackupError("backup-damaged", text)

    def _head(self) -> Head:
        self._line = self._file.readline(HEAD_BYTES_MAX)
        try:
            head = msgspec.json.decode(self._line, type=Head)
        except UNDECODABLE:
            text = f"{self.path} is no backup of `skep backup`: it does not begin as one"
            msg = "no-backup"
            raise BackupError(msg, text) from None
        if head.version > VERSION:
            text = (
                f"{self.path} is of version {head.version} of backups, this program reads up to "
                f"{VERSION}: use the version of Skep that made it, or a later one"
            )
            msg = "backup-newer"
            raise BackupError(msg, text)
        return head

    def _opened(self, passphrase: str) -> Any:
        how = self.head.encryption
        if how is None:
            return None
        if not passphrase:
            text = f"{self.path} is encrypted: give its passphrase (--passphrase-file FILE)"
            msg = "needs-passphrase"
            raise BackupError(msg, text)
        state = bindings.crypto_secretstream_xchacha20poly1305_state()
        if how.operations > OPERATIONS_MAX or how.memory > MEMORY_BYTES_MAX:
            msg = "its first line"
            raise self._bad(msg)
        try:
            key = _key(passphrase, how.salt, how.operations, how.memory)
            bindings.crypto_secretstream_xchacha20poly1305_init_pull(state, how.header, key)
        except (exceptions.CryptoError, ValueError, TypeError):
            msg = "its first line"
            raise self._bad(msg) from None
        return state


def _key(passphrase: str, salt: bytes, operations: int, memory: int) -> bytes:
    size = bindings.crypto_secretstream_xchacha20poly1305_KEYBYTES
    key: bytes = pwhash.argon2id.kdf(
        size, passphrase.encode(), salt, opslimit=operations, memlimit=memory
    )
    return key
