"""Takes a backup: the files of a state folder, then the streams, then the cut of each log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

import skep
from skep.units import Instant
from skep_services.adapters.nats_bus import NatsBus
from skep_services.backups import streams
from skep_services.backups.container import FRAME_BYTES_MAX, Writer
from skep_services.backups.files import Kind, account_of, files

ABOUT, CUTS = "about.json", "cuts.json"
FILES, STREAMS = "files/", "streams/"

Told = Callable[[str, int], None]
"""Is told what is being taken, and the bytes so far."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is of. `store` and `account` say where its streams belong in the home."""

    skep: str
    made_at: Instant
    home: str
    store: str = ""
    account: str = ""
    kinds: tuple[Kind, ...] = ()


class Counted(msgspec.Struct, kw_only=True):
    """What was taken."""

    files: int = 0
    streams: dict[str, int] = {}
    """By stream: its messages."""
    left: dict[str, int] = {}
    """By log: records at its end that do not count, as they refer to what came later."""
    bytes: int = 0


class ChangedError(Exception):
    """What was to be taken was taken out meanwhile; trying again helps."""


async def take(
    bus: NatsBus,
    home: Path | None,
    writer: Writer,
    *,
    kinds: frozenset[Kind],
    now: Instant,
    told: Told = lambda _name, _size: None,
) -> Counted:
    """Write a whole cluster into a backup. The caller closes the writer.

    Args:
        bus: The connection, of an identity that may take snapshots.
        home: The state folder; None: only the streams are taken.
        writer: Takes the entries.
        kinds: Which files are taken.
        now: The time (wall-clock ns).
        told: Is told how far it is.

    Raises:
        ChangedError: Messages were taken out meanwhile.
        RefusedError: The bus does not give a stream.
        TimeoutError: The bus does not answer.
        OSError: A file cannot be read or written.
    """
    store, account = account_of(home) if home is not None else ("", "")
    about = About(
        skep=skep.__version__,
        made_at=now,
        home=str(home or ""),
        store=store,
        account=account,
        kinds=tuple(sorted(kinds)),
    )
    counted = Counted()
    writer.add(ABOUT, msgspec.json.encode(about))
    for name, path, mode in files(home, kinds) if home is not None else ():
        told(name, counted.bytes)
        counted.bytes += _take_file(writer, name, path, mode)
        counted.files += 1
    taken: dict[str, streams.Taken] = {}
    for name in streams.order():
        one = await _take_stream(bus, name, writer, counted, told)
        if one is not None:
            taken[name] = one
            counted.streams[name] = int(one.state.get("messages", 0))
    try:
        cuts = await streams.cuts(bus.link, taken)
    except ValueError as error:
        text = f"the cluster changed while it was taken: {error}"
        raise ChangedError(text) from None
    counted.left = {name: taken[name].last - cut for name, cut in cuts.items()}
    writer.add(CUTS, msgspec.json.encode(cuts))
    return counted


def _take_file(writer: Writer, name: str, path: Path, mode: int) -> int:
    size = 0
    with path.open("rb") as file:
        writer.begin(FILES + name, mode=mode)
        while data := file.read(FRAME_BYTES_MAX):
            writer.write(data)
            size += len(data)
        writer.end()
    return size


async def _take_stream(
    bus: NatsBus, name: str, writer: Writer, counted: Counted, told: Told
) -> streams.Taken | None:
    snapshot = streams.Snapshot(bus.link, name)
    taken = await snapshot.begin()
    if taken is None:
        return None
    writer.begin(STREAMS + name, config=taken.config, state=taken.state)
    async for chunk in snapshot.chunks():
        writer.write(chunk)
        counted.bytes += len(chunk)
        told(name, counted.bytes)
    writer.end()
    return taken
