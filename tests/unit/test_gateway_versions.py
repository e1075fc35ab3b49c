"""Rows with versions: whoever applies what changed has what is there, whatever it sees."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from skep_services.gateway import versions as module
from skep_services.gateway.callers import Only
from skep_services.gateway.versions import Listing, Open, Owned, Shows, Told, Veiled, Versions

TABLE = "jobs"
CLASSES: tuple[Only, ...] = ("", "a", ("a", "b"), ("b",))


def row(key: str, kind: int, vc: str, value: int) -> Shows:
    def doc(*more: object) -> bytes:
        return msgspec.json.encode([key, value, *more])

    match kind:
        case 0:
            return Open(doc())
        case 1:
            return Owned(vc, doc())
        case 2:
            return Veiled(vc, doc(vc), doc())
        case 3:
            return Told((vc, "c"), doc(vc), doc())
        case _:
            return Listing(doc(), ((vc, b'"one"'), ("b", b'"two"')))


class Reader:
    """What a client knows that applies what it is told."""

    def __init__(self, only: Only) -> None:
        self.only, self.version = only, 0
        self.rows: dict[str, object] = {}

    def read(self, tables: Versions) -> None:
        changed = tables.since(self.version, self.only, (TABLE,))
        if changed is None:
            self.rows = {}
            listed = tables.listed(TABLE, self.only)
        else:
            listed = [each for one in changed for each in one.rows]
            for key in (key for one in changed for key in one.gone):
                self.rows.pop(key, None)
        for each in map(msgspec.json.decode, listed):
            self.rows[each[0]] = each
        self.version = tables.version


CHANGE = st.tuples(
    st.sampled_from(("put", "put", "put", "drop", "commit", "read")),
    st.sampled_from("xyz"),
    st.integers(0, 4),
    st.sampled_from("ab"),
    st.integers(0, 2),
)


@given(st.lists(CHANGE, max_size=60), st.integers(1, 3))
def test_what_changed_leads_to_what_is_there(
    changes: list[tuple[str, str, int, str, int]], kept: int
) -> None:
    tables, before = Versions((TABLE,)), module.GONE_MAX
    module.GONE_MAX = kept
    try:
        readers = [Reader(only) for only in CLASSES]
        for number, (what, key, kind, vc, value) in enumerate(changes):
            if what == "put":
                tables.put(TABLE, key, row(key, kind, vc, value))
            elif what == "drop":
                tables.drop(TABLE, key)
            else:
                tables.commit()
                tables.check()
            if what == "read":  # One of them keeps up, the others fall behind.
                readers[number % len(readers)].read(tables)
        tables.commit()
        for reader in readers:
            reader.read(tables)
            shown = [msgspec.json.decode(each) for each in tables.listed(TABLE, reader.only)]
            assert reader.rows == {each[0]: each for each in shown}
    finally:
        module.GONE_MAX = before


def test_a_version_is_made_only_by_a_change() -> None:
    tables = Versions((TABLE,))
    assert tables.put(TABLE, "x", Open(b"[1]"))
    assert not tables.put(TABLE, "x", Open(b"[1]"))
    assert not tables.drop(TABLE, "y")
    assert tables.commit()
    assert not tables.commit()
    assert tables.since(1, "", (TABLE,)) == []
    assert tables.since(2, "", (TABLE,)) is None
    assert tables.changed_at(TABLE) == tables.version == 1
