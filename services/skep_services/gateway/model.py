"""The read model on disk: SQLite, deletable at any time, rebuilt from the streams.

Rows and the stream positions they come from are written in one transaction, so after a crash the
gateway goes on exactly where the file ends. A file of another schema version, or one that SQLite
cannot read, is deleted and rebuilt. Only spans and findings live nowhere else; they are lost then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skep.ledger.blame import kept as blame_kept
from skep.ledger.history import POINTS_MAX, STEP, Point
from skep.ledger.snapshot import Kept
from skep.wire.bounds import LogDecoder
from skep.wire.template_facts import TemplateSet
from skep_services.gateway.callers import Only
from skep_services.gateway.ledger import TRIALS_KEPT, Tried
from skep_services.gateway.rows import Heard, Job

SCHEMA_VERSION = 7
"""Raised with every change of a table or of a stored document."""
MIGRATIONS = {
    5: "ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    6: "ALTER TABLE jobs ADD COLUMN task TEXT NOT NULL DEFAULT ''",
}
"""What makes a file of a version one of the next. The streams may lack what it has: it is kept."""

EVENTS_KEPT = 1_000_000
"""Some ten events a job: the stories of the latest 100,000 jobs, about 300 MB."""
SPANS_KEPT = 2_000_000
"""Some twenty spans a job: the waterfalls of the latest 100,000 jobs, about 1 GB."""
BLAMED_KEPT = 100_000
"""Some kilobyte a job: where the time of the latest went, about 100 MB."""
TRACE_SPANS_MAX = 10_000
"""Spans shown of one trace; a gang of a thousand nodes makes a few thousand."""
WAL_PAGES = 4_000
"""16 MB between checkpoints, the only moments at which the disk is waited for."""
BUSY_TIMEOUT_S = 5.0

PHASE_ACTIVE, PHASE_ENDED, PHASE_HIDDEN = 0, 1, 2

SCHEMA = f"""
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), doc BLOB NOT NULL);
CREATE TABLE jobs (sequence INTEGER PRIMARY KEY, phase INTEGER NOT NULL, vc TEXT NOT NULL,
                   state TEXT NOT NULL, name TEXT NOT NULL, line BLOB NOT NULL, doc BLOB NOT NULL,
                   owner TEXT NOT NULL DEFAULT '', task TEXT NOT NULL DEFAULT '');
CREATE INDEX jobs_by_phase ON jobs (phase, vc);
CREATE TABLE specs (sequence INTEGER PRIMARY KEY, spec BLOB NOT NULL);
CREATE TABLE nodes (node TEXT PRIMARY KEY, doc BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE events (seq INTEGER PRIMARY KEY, job TEXT NOT NULL, vc TEXT NOT NULL,
                     doc BLOB NOT NULL);
CREATE INDEX events_by_job ON events (job) WHERE job != '';
CREATE TABLE trials (trial INTEGER PRIMARY KEY, doc BLOB NOT NULL);
CREATE TABLE spans (number INTEGER PRIMARY KEY, trace TEXT NOT NULL, start_ns INTEGER NOT NULL,
                    doc BLOB NOT NULL);
CREATE INDEX spans_by_trace ON spans (trace);
PRAGMA user_version = {SCHEMA_VERSION};
"""
KEPT = "CREATE TABLE IF NOT EXISTS kept (number INTEGER PRIMARY KEY, doc BLOB NOT NULL)"
"""The ledger's state, piece by piece. Files of earlier versions lack it."""
BLAME_KEPT = "CREATE TABLE IF NOT EXISTS blame_kept (number INTEGER PRIMARY KEY, doc BLOB NOT NULL)"
BLAMED = "CREATE TABLE IF NOT EXISTS blamed (sequence INTEGER PRIMARY KEY, doc BLOB NOT NULL)"
"""Where time went: of unfinished jobs in pieces, of ended ones each. Likewise."""
HISTORY = "CREATE TABLE IF NOT EXISTS history (at INTEGER PRIMARY KEY, doc BLOB NOT NULL)"
"""The points of the cluster's history. Likewise."""
TEMPLATES = (
    "CREATE TABLE IF NOT EXISTS templates "
    "(vc TEXT, name TEXT, doc BLOB NOT NULL, PRIMARY KEY (vc, name))"
)
"""The templates of managers. Likewise."""
BY_TASK = "CREATE INDEX IF NOT EXISTS jobs_by_task ON jobs (task) WHERE task != ''"
"""The jobs that are tasks of arrays. Likewise."""

PUT_JOB = """
INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sequence) DO UPDATE SET
phase = excluded.phase, vc = excluded.vc, state = excluded.state, name = excluded.name,
line = excluded.line, doc = excluded.doc, owner = excluded.owner,
task = excluded.task
"""

REBUILD_ON = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)
"""Not a database, a damaged one, or one without our tables. A full or failing disk is none of
these: deleting the file would not mend it."""

UNFIT = (
    OverflowError,
    UnicodeError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
)
"""What a row raises that SQLite cannot hold, such as an integer of more than 64 bits."""

_JOBS: LogDecoder[Job] = LogDecoder(Job)
_HEARD: LogDecoder[Heard] = LogDecoder(Heard)
_KEPT: LogDecoder[Kept] = LogDecoder(Kept)
_BLAME: LogDecoder[blame_kept.Kept] = LogDecoder(blame_kept.Kept)
_POINTS: LogDecoder[Point] = LogDecoder(Point)
_TRIALS: LogDecoder[Tried] = LogDecoder(Tried)
_TEMPLATES: LogDecoder[TemplateSet] = LogDecoder(TemplateSet)


class Saved(msgspec.Struct, frozen=True):
    """How far the file reaches: the last sequence folded of each stream, and counters.

    The kept state of the ledger is older than the rows: `kept_at` is its place in ALLOC, and
    `alarms_raised` the count of that time.
    """

    positions: dict[str, int] = {}
    facts: int = 0
    event_seq: int = 0
    kept_at: int = 0
    alarms_raised: int = 0
    promises: dict[str, tuple[int, int, int]] = {}
    """By VC: promises that were made, kept and broken."""
    broken: dict[str, dict[str, int]] = {}
    """By VC and cause."""
    history_at: int = 0
    """Until when the points of the history tell."""


_SAVED = msgspec.json.Decoder(Saved)


class Start(NamedTuple):
    """What the fold begins with. `newest` is the highest sequence of a stored job."""

    saved: Saved
    jobs: list[Job]
    heard: list[Heard]
    newest: int
    trials: list[Tried]
    kept: list[Kept]
    blame: list[blame_kept.Kept]
    points: list[Point]
    templates: list[TemplateSet]


JobRow = tuple[int, int, str, str, str, bytes, bytes, str, str]
"""A row of the table of jobs."""


class Batch(NamedTuple):
    """Rows for one transaction, encoded, because what they come from goes on changing.

    `kept` is empty unless the ledger's state is kept: of a large cluster it fills megabytes.
    """

    jobs: list[JobRow]
    specs: list[tuple[int, bytes]]
    heard: list[tuple[str, bytes]]
    events: list[tuple[int, str, str, bytes]]
    spans: list[tuple[str, int, bytes]]
    saved: bytes
    trials: list[tuple[int, bytes]]
    kept: Sequence[tuple[int, bytes]] = ()
    blame: Sequence[tuple[int, bytes]] = ()
    blamed: Sequence[tuple[int, bytes]] = ()
    points: Sequence[tuple[int, bytes]] = ()
    templates: Sequence[tuple[str, str, bytes]] = ()
    """By VC and name; empty: it is removed."""


class JobQuery(NamedTuple):
    """Which ended jobs to list, as conditions of SQL with their values: `Choice` makes them."""

    limit: int
    conditions: Sequence[tuple[str, Sequence[Any]]] = ()
    order: str = "sequence DESC"


class EventQuery(NamedTuple):
    """Which events to list: the first after `since`, or (None) the newest. Empty texts: all."""

    limit: int
    since: int | None = None
    job: str = ""
    vc: Only = ""


class Listed(NamedTuple):
    """Ended jobs in the order of the query, as JSON lines, and how many match in all."""

    lines: list[tuple[int, bytes]]
    total: int


class OutdatedError(Exception):
    """The file has another schema version."""


class Model:
    """The file, and a connection for each thread that uses it.

    `write` belongs to one thread, `ended`, `events` and `spans` to another, `job` and `spec` to
    the one that made the model. Raises sqlite3.Error when the disk fails.
    """

    def __init__(self, path: Path) -> None:
        self.rebuilt = ""
        """Why an existing file was begun anew; empty if it was not."""
        self.left_out = 0
        """Rows that SQLite could not hold."""
        self.left_out_why = ""
        """Why the latest of them could not be stored."""
        self._connections: list[sqlite3.Connection] = []
        self._last_span = 0
        try:
            self.start = self._open(path)
        except (sqlite3.DatabaseError, msgspec.MsgspecError, OutdatedError) as error:
            self.close()
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) not in REBUILD_ON:
                raise
            self.rebuilt = str(error)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self.start = self._open(path)

    def close(self) -> None:
        """Close the connections; what was written stays."""
        for connection in self._connections:
            connection.close()
        self._connections = []

    def write(self, batch: Batch) -> None:
        """Store a batch whole or not at all, and drop what is beyond the bounds."""
        run = self._put
        self._writer.execute("BEGIN")
        try:
            run(PUT_JOB, batch.jobs)
            run("INSERT OR REPLACE INTO specs VALUES (?, ?)", batch.specs)
            run("INSERT OR REPLACE INTO nodes VALUES (?, ?)", batch.heard)
            run("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?)", batch.events)
            run("INSERT INTO spans (trace, start_ns, doc) VALUES (?, ?, ?)", batch.spans)
            self._writer.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (batch.saved,))
            run("INSERT OR REPLACE INTO trials VALUES (?, ?)", batch.trials)
            if batch.kept:
                self._writer.execute("DELETE FROM kept")
                run("INSERT INTO kept VALUES (?, ?)", batch.kept)
                self._writer.execute("DELETE FROM blame_kept")
                run("INSERT INTO blame_kept VALUES (?, ?)", batch.blame)
            run("INSERT OR REPLACE INTO blamed VALUES (?, ?)", batch.blamed)
            run("INSERT OR REPLACE INTO history VALUES (?, ?)", batch.points)
            run("INSERT OR REPLACE INTO templates VALUES (?, ?, ?)", batch.templates)
            if batch.templates:
                self._writer.execute("DELETE FROM templates WHERE doc = x''")
            self._trim(batch)
            self._writer.execute("COMMIT")
        except BaseException:
            self._writer.execute("ROLLBACK")
            raise
        self._last_span += len(batch.spans)

    def _put(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Store rows; those that SQLite cannot hold are left out and counted."""
        self._writer.execute("SAVEPOINT rows")
        try:
            self._writer.executemany(statement, rows)
        except UNFIT:
            self._writer.execute("ROLLBACK TO rows")
            for row in rows:
                try:
                    self._writer.execute(statement, row)
                except UNFIT as error:
                    self.left_out += 1
                    self.left_out_why = f"{type(error).__name__}: {error}"
        self._writer.execute("RELEASE rows")

    def job(self, sequence: int) -> Job | None:
        """Return a stored job, or None."""
        found = self._looker.execute("SELECT doc FROM jobs WHERE sequence = ?", (sequence,))
        row = found.fetchone()
        return _JOBS.decode(row[0]) if row is not None else None

    def spec(self, sequence: int) -> bytes | None:
        """Return a job's admitted spec as JSON, or what was published, or None."""
        found = self._looker.execute("SELECT spec FROM specs WHERE sequence = ?", (sequence,))
        row = found.fetchone()
        return bytes(row[0]) if row is not None else None

    def task(self, task: str) -> int | None:
        """Return the sequence of the latest job of an array's task, or None if there is none."""
        found = self._looker.execute("SELECT max(sequence) FROM jobs WHERE task = ?", (task,))
        sequence = found.fetchone()[0]
        return None if sequence is None else int(sequence)

    def blamed(self, sequence: int) -> bytes | None:
        """Return where the time of an ended job went as JSON, or None."""
        found = self._looker.execute("SELECT doc FROM blamed WHERE sequence = ?", (sequence,))
        row = found.fetchone()
        return bytes(row[0]) if row is not None else None

    def ended(self, query: JobQuery) -> Listed:
        """Return the first ended jobs that match."""
        words = ["phase = ?", *(text for text, _ in query.conditions)]
        values = [PHASE_ENDED, *(value for _, each in query.conditions for value in each)]
        # The conditions are made of our own words; what a client says goes in as a value.
        table = f"FROM jobs WHERE {' AND '.join(words)}"
        total = self._reader.execute(f"SELECT count(*) {table}", values).fetchone()[0]
        lines = f"SELECT sequence, line {table} ORDER BY {query.order} LIMIT ?"
        return Listed(self._reader.execute(lines, [*values, query.limit]).fetchall(), total)

    def events(self, query: EventQuery) -> list[tuple[int, bytes]]:
        """Return events in order, each with its number."""
        forward = query.since is not None
        where, values = _where(
            {"seq > ?": query.since or 0, "job = ?": query.job, "vc = ?": query.vc}
        )
        order = "ASC" if forward else "DESC"
        table = f"FROM events WHERE {where}"
        text = f"SELECT seq, doc {table} ORDER BY seq {order} LIMIT ?"
        rows = self._reader.execute(text, [*values, query.limit]).fetchall()
        return rows if forward else rows[::-1]

    def spans(self, trace: str) -> list[bytes]:
        """Return the spans of a trace by their start."""
        rows = self._reader.execute(
            "SELECT doc FROM spans WHERE trace = ? ORDER BY start_ns, number LIMIT ?",
            (trace, TRACE_SPANS_MAX),
        )
        return [row[0] for row in rows]

    def _open(self, path: Path) -> Start:
        # Each connection stays with one thread; sqlite3 would only check that it is the maker's.
        self._connections = [
            sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            for _ in range(3)
        ]
        self._writer, self._reader, self._looker = self._connections
        # A power cut may cost the latest transactions, never the file: they are folded again.
        self._writer.execute("PRAGMA synchronous = NORMAL")
        self._writer.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        version = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not self._writer.execute("SELECT 1 FROM sqlite_master").fetchone():
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.executescript(SCHEMA)
            version = SCHEMA_VERSION
        while version in MIGRATIONS:
            version = self._migrate(version)
        if version != SCHEMA_VERSION:
            text = f"schema version {version}, this program writes {SCHEMA_VERSION}"
            raise OutdatedError(text)
        for table in (KEPT, BLAME_KEPT, BLAMED, TEMPLATES, BY_TASK, HISTORY):
            self._writer.execute(table)
        return self._read_start()

    def _migrate(self, version: int) -> int:
        """Make the file one of the next version, which is returned: whole or not at all."""
        self._writer.execute("BEGIN")
        self._writer.execute(MIGRATIONS[version])
        self._writer.execute(f"PRAGMA user_version = {version + 1}")
        self._writer.execute("COMMIT")
        return version + 1

    def _read_start(self) -> Start:
        one = self._looker.execute
        doc = one("SELECT doc FROM state").fetchone()
        jobs = one("SELECT doc FROM jobs WHERE phase = ?", (PHASE_ACTIVE,))
        heard = one("SELECT doc FROM nodes")
        trials = one("SELECT doc FROM trials ORDER BY trial")
        self._last_span = one("SELECT coalesce(max(number), 0) FROM spans").fetchone()[0]
        saved = _SAVED.decode(doc[0]) if doc is not None else Saved()
        kept, blame = self._read_kept(saved.kept_at)
        if not kept:
            saved = msgspec.structs.replace(saved, kept_at=0, alarms_raised=0)
        return Start(
            saved,
            [_JOBS.decode(row[0]) for row in jobs],
            [_HEARD.decode(row[0]) for row in heard],
            one("SELECT coalesce(max(sequence), 0) FROM jobs").fetchone()[0],
            [_TRIALS.decode(row[0]) for row in trials],
            kept,
            blame,
            [_POINTS.decode(row[0]) for row in one("SELECT doc FROM history ORDER BY at")],
            [_TEMPLATES.decode(row[0]) for row in one("SELECT doc FROM templates")],
        )

    def _read_kept(self, position: int) -> tuple[list[Kept], list[blame_kept.Kept]]:
        """Return the kept state of the ledger, and of blame, of one position in ALLOC.

        Without both that can be read the log says them: an earlier version keeps only the first.
        """
        ask = self._looker.execute
        rows = ask("SELECT doc FROM kept ORDER BY number").fetchall()
        parts = ask("SELECT doc FROM blame_kept ORDER BY number").fetchall()
        try:
            kept = [_KEPT.decode(row[0]) for row in rows]
            blame = [_BLAME.decode(row[0]) for row in parts]
        except msgspec.MsgspecError:
            return [], []
        first = blame[0] if blame else None
        fits = (
            isinstance(first, blame_kept.BlameKept) and first.position == position and first.usage
        )
        return (kept, blame) if fits else ([], [])

    def _trim(self, batch: Batch) -> None:
        if batch.events:
            oldest = batch.events[-1][0] - EVENTS_KEPT
            self._writer.execute("DELETE FROM events WHERE seq <= ?", (oldest,))
        if batch.blamed:
            oldest = max(sequence for sequence, _ in batch.blamed) - BLAMED_KEPT
            self._writer.execute("DELETE FROM blamed WHERE sequence <= ?", (oldest,))
        if batch.points:
            oldest = max(at for at, _ in batch.points) - POINTS_MAX * STEP
            self._writer.execute("DELETE FROM history WHERE at <= ?", (oldest,))
        if batch.trials:
            oldest = max(trial for trial, _ in batch.trials) - TRIALS_KEPT
            self._writer.execute("DELETE FROM trials WHERE trial <= ?", (oldest,))
        if batch.spans:
            oldest = self._last_span + len(batch.spans) - SPANS_KEPT
            self._writer.execute("DELETE FROM spans WHERE number <= ?", (oldest,))


def _where(conditions: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return an SQL condition and its values: "" filters nothing, a tuple is a choice."""
    words: list[str] = []
    values: list[Any] = []
    for text, value in conditions.items():
        if isinstance(value, tuple):
            words.append(text.replace("= ?", f"IN ({', '.join('?' * len(value))})"))
            values += value
        elif value != "":
            words.append(text)
            values.append(value)
    return " AND ".join(words), values
