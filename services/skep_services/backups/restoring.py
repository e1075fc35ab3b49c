"""Makes a cluster from a backup: verifies all of it, then makes files and streams in a new home."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from skep.wire.bounds import UNDECODABLE
from skep_services import durable
from skep_services.adapters.nats_bus import NatsBus
from skep_services.backups import streams
from skep_services.backups.aside import bus_aside
from skep_services.backups.container import BackupError, Entry, Reader
from skep_services.backups.taking import ABOUT, CUTS, FILES, STREAMS, About

Told = Callable[[str, float], None]
"""Is told what is being done, and which part of the file was read, 0 to 1."""
SMALL_BYTES_MAX = 1024 * 1024
BUS_FOLDER = "nats"
"""Where the bus server of an embedded cluster is, if the backup does not say."""


class Verified(msgspec.Struct, kw_only=True):
    """What a backup holds. Every hash in it was right."""

    about: About
    streams: dict[str, streams.Taken] = {}
    files: dict[str, int] = {}
    """By name: permissions."""
    bytes: int = 0


class TargetError(Exception):
    """The target of a restore cannot be used; the text says why."""


def verify(path: Path, passphrase: str = "", told: Told = lambda _what, _part: None) -> Verified:
    """Return what a backup holds, having read all of it.

    Args:
        path: The file.
        passphrase: Of an encrypted one.
        told: Is told how far it is.

    Raises:
        BackupError: It is no backup, or not a good one.
        _unfit: A BackupError: an entry is not what it should be.
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    reader = Reader(path, passphrase)
    small: dict[str, bytes] = {}
    found = Verified(about=About(skep="", made_at=0, home=""))  # type: ignore[arg-type]
    try:
        for entry, data in reader.entries():
            if entry.name in (ABOUT, CUTS):
                small[entry.name] = _whole(data)
            elif entry.name.startswith(STREAMS):
                taken = _taken(path, entry)
                found.streams[taken.stream] = taken
            else:
                found.files[_safe(path, entry)] = _mode(path, entry)
            for _ in data:
                told("verifying", reader.read_bytes / max(size, 1))
    finally:
        reader.close()
    try:
        found.about = msgspec.json.decode(small[ABOUT], type=About)
        cuts = msgspec.json.decode(small[CUTS], type=dict[str, int])
    except (KeyError, *UNDECODABLE):
        raise _unfit(path, "what it is of") from None
    if found.about.store and not _is_below(found.about.store):
        msg = "where its streams belong"
        raise _unfit(path, msg)
    found.streams = {
        name: msgspec.structs.replace(taken, cut=cuts.get(name, taken.last))
        for name, taken in found.streams.items()
    }
    found.bytes = size
    return found


async def restore_streams(
    bus: NatsBus,
    path: Path,
    verified: Verified,
    *,
    passphrase: str = "",
    replicas: int = 1,
    told: Told = lambda _what, _part: None,
) -> None:
    """Make the streams of a backup on a bus that has none of them.

    Args:
        bus: The connection, of an identity that may do this.
        path: The backup.
        verified: What `verify` said of it.
        passphrase: Of an encrypted one.
        replicas: How many servers keep each stream.
        told: Is told how far it is.

    Raises:
        TargetError: The bus has one of the streams.
        RefusedError: The bus does not take one.
        BackupError: The file was changed since it was verified.
    """
    there = await streams.existing(bus.link, list(verified.streams))
    if there:
        text = (
            f"the bus has streams already ({', '.join(there)}): a backup is restored where there "
            f"is nothing"
        )
        raise TargetError(text)
    reader = Reader(path, passphrase)
    try:
        for entry, data in reader.entries():
            if not entry.name.startswith(STREAMS):
                continue
            name = entry.name.removeprefix(STREAMS)

            async def tell(_sent: int, name: str = name) -> None:
                told(name, reader.read_bytes / max(verified.bytes, 1))

            await streams.restore(
                bus.link, verified.streams[name], _awaited(data), replicas, told=tell
            )
    finally:
        reader.close()


async def restore(
    path: Path, home: Path, *, passphrase: str = "", told: Told = lambda _what, _part: None
) -> Verified:
    """Make a state folder from a backup. Nothing is left behind if it fails.

    Args:
        path: The backup.
        home: The state folder: there is none, or it is empty.
        passphrase: Of an encrypted backup.
        told: Is told how far it is.

    Raises:
        TargetError: The folder is not empty, or cannot be made.
        BackupError: The backup is not a good one.
        RefusedError: The bus does not take a stream.
        RuntimeError: The bus server does not start.
        OSError: A file cannot be written.
    """
    refuse_unless_empty(home)
    verified = verify(path, passphrase, told)
    draft = home.with_name(f".{home.name}.restoring")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)
    try:
        write_files(path, draft, passphrase, told)
        _forget_processes(draft)
        store = verified.about.store or f"{BUS_FOLDER}/store"
        if verified.streams:
            async with bus_aside(
                draft / PurePosixPath(store).parent, verified.about.account
            ) as bus:
                await restore_streams(bus, path, verified, passphrase=passphrase, told=told)
        _tidy(draft / PurePosixPath(store).parent)
        _move(draft, home)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return verified


def refuse_unless_empty(home: Path) -> None:
    """Return if a restore may make this folder.

    Raises:
        TargetError: It has something in it, or is no folder.
    """
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        text = (
            f"{home} is not empty: a backup is restored into a new folder; name another one "
            f"(--home DIR), or move this one away"
        )
        raise TargetError(text)


def _move(draft: Path, home: Path) -> None:
    if home.exists():
        home.rmdir()
    os.rename(draft, home)
    durable.sync_folder(str(home.parent))


def write_files(path: Path, draft: Path, passphrase: str, told: Told, *, below: str = "") -> None:
    """Write the files of a backup into a folder.

    Args:
        path: The backup.
        draft: The folder.
        passphrase: Of an encrypted backup.
        told: Is told how far it is.
        below: Only those of this folder of the home; empty: all.

    Raises:
        BackupError: The file was changed since it was verified.
        OSError: A file cannot be written.
    """
    wanted = FILES + (f"{below}/" if below else "")
    size = max(path.stat().st_size, 1)
    reader = Reader(path, passphrase)
    try:
        for entry, data in reader.entries():
            if not entry.name.startswith(wanted):
                continue
            target = draft / PurePosixPath(_safe(path, entry))
            for folder in reversed(target.relative_to(draft).parents[:-1]):
                (draft / folder).mkdir(mode=0o700, exist_ok=True)
            mode = _mode(path, entry)
            with os.fdopen(
                os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as out:
                for part in data:
                    out.write(part)
                    told("files", reader.read_bytes / size)
                out.flush()
                os.fsync(out.fileno())
            os.chmod(target, mode & 0o777)
    finally:
        reader.close()


def _forget_processes(draft: Path) -> None:
    """Have `cluster.json` name no process: those of the other machine are not here."""
    path = draft / "cluster.json"
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(tree, dict) and "supervisor" in tree:
        tree["supervisor"] = {"pid": 0, "start_ticks": 0, "state": "stopped", "error": ""}
        durable.write(str(path), (json.dumps(tree, indent=1) + "\n").encode(), 0o600)


def _tidy(folder: Path) -> None:
    """Remove what the server aside wrote beside the streams."""
    for name in ("nats-server.conf", "nats-server.log"):
        (folder / name).unlink(missing_ok=True)
    for ports in folder.glob("*.ports"):
        ports.unlink(missing_ok=True)


def _safe(path: Path, entry: Entry) -> str:
    """Return the name of a file's entry below the state folder.

    Raises:
        _unfit: A BackupError: it would lie outside.
    """
    name = entry.name.removeprefix(FILES)
    if not entry.name.startswith(FILES) or not _is_below(name):
        raise _unfit(path, f"the name {entry.name!r}")
    return name


def _is_below(name: str) -> bool:
    """Return whether a path leads from a folder to what is in it."""
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0][0] != "/" and ".." not in parts and "\0" not in name


def _mode(path: Path, entry: Entry) -> int:
    """Return the permissions of a file's entry.

    Raises:
        _unfit: A BackupError: they are none.
    """
    mode = entry.about.get("mode", 0o600)
    if not isinstance(mode, int) or not 0 <= mode <= 0o7777:
        raise _unfit(path, f"the permissions of {entry.name!r}")
    return mode


def _taken(path: Path, entry: Entry) -> streams.Taken:
    """Return what a stream's entry is of.

    Raises:
        _unfit: A BackupError: it does not say so.
    """
    name = entry.name.removeprefix(STREAMS)
    config, state = entry.about.get("config"), entry.about.get("state")
    if not isinstance(config, dict) or not isinstance(state, dict) or config.get("name") != name:
        raise _unfit(path, f"what {entry.name} is")
    return streams.Taken(stream=name, config=config, state=state)


def _whole(data: Iterator[bytes]) -> bytes:
    found = bytearray()
    for part in data:  # To the end, for its hash; what is too large is not kept.
        if len(found) <= SMALL_BYTES_MAX:
            found += part
    return bytes(found) if len(found) <= SMALL_BYTES_MAX else b""


async def _awaited(data: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in data:
        yield part


def _unfit(path: Path, what: str) -> BackupError:
    text = f"{path} is damaged: it does not say {what}; use another copy or an earlier backup"
    return BackupError("backup-damaged", text)
