"""Rows of tables with the version of their last change: what is there, and what changed since.

    put, drop ──commit──> version 7       since(5) ──> rows of versions 6 and 7, keys that are gone

Pure. A row says itself what of it callers see, by the virtual clusters they see.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from skep_services.gateway.callers import Only, covers

GONE_MAX = 20_000
"""Keys of rows that are gone, some 3 MB: the ends of two hours at three jobs a second."""


class Shows(Protocol):
    """A row of a table, encoded. Two that are equal show the same."""

    def shown(self, only: Only) -> bytes | None:
        """Return the row as callers see it that see these VCs; None: they do not see it."""
        ...


class Open(NamedTuple):
    """A row that everyone sees."""

    doc: bytes

    def shown(self, only: Only) -> bytes | None:
        """Return the row."""
        del only
        return self.doc


class Owned(NamedTuple):
    """A row of a virtual cluster; of none (an empty text): operators alone see it."""

    vc: str
    doc: bytes

    def shown(self, only: Only) -> bytes | None:
        """Return the row to those that see its VC."""
        return self.doc if covers(only, self.vc) else None


class Veiled(NamedTuple):
    """A row that everyone sees, but `doc` only those that see its VC; the others see `bare`."""

    vc: str
    doc: bytes
    bare: bytes

    def shown(self, only: Only) -> bytes | None:
        """Return the row."""
        return self.doc if covers(only, self.vc) else self.bare


class Told(NamedTuple):
    """A row about several VCs: operators see `doc`, those that see any of the VCs see `bare`."""

    vcs: tuple[str, ...]
    doc: bytes
    bare: bytes

    def shown(self, only: Only) -> bytes | None:
        """Return the row."""
        if only == "":
            return self.doc
        return self.bare if any(covers(only, vc) for vc in self.vcs) else None


class Listing(NamedTuple):
    """A row whose last column is a list, of which callers see the parts of their VCs."""

    head: bytes
    """The row without its end."""
    parts: tuple[tuple[str, bytes], ...]

    def shown(self, only: Only) -> bytes | None:
        """Return the row."""
        seen = b",".join(doc for vc, doc in self.parts if covers(only, vc))
        return b"%b,[%b]]" % (self.head[:-1], seen)


class Entry(NamedTuple):
    """A row, and the version in which it changed last."""

    version: int
    row: Shows


class Gone(NamedTuple):
    """A row that is gone since a version."""

    version: int
    table: str
    key: str
    row: Shows


class Changed(NamedTuple):
    """What changed in one table, as some callers see it."""

    table: str
    rows: list[bytes]
    gone: list[str]


class Versions:
    """The tables. Nothing is seen of a change before `commit`."""

    def __init__(self, tables: Iterable[str]) -> None:
        """Begin with empty tables."""
        self.version = 0
        self.floor = 0
        """Of what changed after this version everything is known."""
        self._tables: dict[str, dict[str, Entry]] = {name: {} for name in tables}
        """Rows by key, in the order of their latest change."""
        self._changed_at: dict[str, int] = dict.fromkeys(self._tables, 0)
        self._gone: deque[Gone] = deque()
        self._waiting = False

    def put(self, table: str, key: str, row: Shows) -> bool:
        """Set a row; return whether that changes anything."""
        rows = self._tables[table]
        known = rows.get(key)
        if known is not None:
            if known.row == row:
                return False
            if _seen_by(known.row) != _seen_by(row):
                self._leave(table, key, known.row)  # Some callers see it no more.
            del rows[key]
        rows[key] = Entry(self.version + 1, row)
        self._note(table)
        return True

    def drop(self, table: str, key: str) -> bool:
        """Remove a row; return whether there was one."""
        known = self._tables[table].pop(key, None)
        if known is None:
            return False
        self._leave(table, key, known.row)
        self._note(table)
        return True

    def keys(self, table: str) -> list[str]:
        """Return the keys of a table."""
        return list(self._tables[table])

    def row(self, table: str, key: str) -> Shows | None:
        """Return a row; None: there is none."""
        entry = self._tables[table].get(key)
        return entry.row if entry is not None else None

    def commit(self) -> bool:
        """Make what was put and dropped the next version; return False if there was nothing."""
        if not self._waiting:
            return False
        self.version, self._waiting = self.version + 1, False
        return True

    def changed_at(self, table: str) -> int:
        """Return the version in which a table changed last."""
        return self._changed_at[table]

    def listed(self, table: str, only: Only) -> list[bytes]:
        """Return the rows of a table that callers see."""
        shown = (entry.row.shown(only) for entry in self._tables[table].values())
        return [row for row in shown if row is not None]

    def since(self, version: int, only: Only, tables: Sequence[str]) -> list[Changed] | None:
        """Return what changed since a version, as callers see it.

        Args:
            version: The version that they have.
            only: The VCs they see.
            tables: The tables they want.

        Returns:
            The tables in which something changed; None: that is not known any more, or the version
            is not one of these.
        """
        if not self.floor <= version <= self.version:
            return None
        left = self._left(version, only)
        found = []
        for table in tables:
            rows = list(self._since(version, only, table))
            gone = left.get(table, [])
            if rows or gone:
                found.append(Changed(table, rows[::-1], gone))
        return found

    def check(self) -> None:
        """Check what holds between two changes."""
        assert self.floor <= self.version + 1
        assert len(self._gone) <= GONE_MAX
        for rows in self._tables.values():
            versions = [entry.version for entry in rows.values()]
            assert versions == sorted(versions), "rows are in the order of their latest change"

    # --- inside ----------------------------------------------------------------------------------

    def _since(self, version: int, only: Only, table: str) -> Iterator[bytes]:
        """Yield rows that changed since a version, the latest first."""
        for entry in reversed(self._tables[table].values()):
            if entry.version <= version:
                return
            row = entry.row.shown(only)
            if row is not None:
                yield row

    def _left(self, version: int, only: Only) -> dict[str, list[str]]:
        """Return by table the keys of rows that callers saw at a version and see no more."""
        left: dict[str, dict[str, None]] = {}
        for gone in reversed(self._gone):
            if gone.version <= version:
                break
            now = self._tables[gone.table].get(gone.key)
            again = now is not None and now.row.shown(only) is not None
            if not again and gone.row.shown(only) is not None:
                left.setdefault(gone.table, {})[gone.key] = None
        return {table: list(keys) for table, keys in left.items()}

    def _leave(self, table: str, key: str, row: Shows) -> None:
        self._gone.append(Gone(self.version + 1, table, key, row))
        while len(self._gone) > GONE_MAX:
            self.floor = self._gone.popleft().version

    def _note(self, table: str) -> None:
        self._changed_at[table] = self.version + 1
        self._waiting = True


def _seen_by(row: Shows) -> tuple[type, object]:
    """Return what decides which callers see a row."""
    return type(row), getattr(row, "vc", getattr(row, "vcs", ""))
