"""Sessions in running jobs: what client, gateway and agent say while a command runs for a person.

    client --(WebSocket of the gateway)--> gateway --(core subjects of the bus)--> agent of the node

Both ways carry the same frames: one byte says the kind, the rest is its body. On the bus a head
goes before that, with the session and the number of the frame, as core messages may be lost and a
terminal must not go on with a hole in it.

**Flow control is from end to end.** Client and agent each send at most `WINDOW_BYTES` more than the
other one says it has used (`used`), so that nothing in between has to keep more: a person may stop
reading for an hour, and the command waits.

A frame never says what happened before the session: a session whose agent or gateway has gone is
over, and `skep attach` begins another one.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from skep.units import KIB
from skep.wire.bounds import UNDECODABLE, Attempt, Port, Rank, Short, Text
from skep.wire.snapshot import unsafe

WINDOW_BYTES = 256 * KIB
"""What may be under way in one direction: 5 MB/s at a round trip of 50 ms, and 128 MiB in a gateway
with as many sessions as it takes, all of whose clients read nothing."""
DATA_BYTES_MAX = 32 * KIB
"""What one frame carries: eight fit into a window, so that both ends work at the same time."""
FRAME_COST = 64
"""What a frame counts for beside its body: a window of single bytes is a bounded number of them."""
WORDS_MAX = 1_024
"""Words of a command; what is longer belongs into a file."""
WORDS_BYTES_MAX = 64 * KIB
CELLS_MAX = 4_096
"""Rows or columns of a terminal. The largest screens have some 500."""
ALIVE_EVERY_S = 5.0
SILENT_S = 20.0
"""How long a session goes on without a word of the other end: three words may be late."""
OPEN_WITHIN_S = 10.0
"""How long an agent may take to begin a command: milliseconds, but on a node that is overloaded."""

SESSION_PATTERN = r"^[0-9a-f]{32}$(?!\n)"
HEAD = struct.Struct(">16sI")
USED = struct.Struct(">Q")
SIZE = struct.Struct(">HH")
ASKER_PATTERN = r"^[A-Za-z0-9_-]{1,64}$(?!\n)"

assert 2 * (DATA_BYTES_MAX + FRAME_COST) <= WINDOW_BYTES
assert 3 * ALIVE_EVERY_S < SILENT_S

Words = Annotated[
    tuple[Annotated[str, Meta(max_length=WORDS_BYTES_MAX)], ...], Meta(max_length=WORDS_MAX)
]
Cells = Annotated[int, Meta(ge=1, le=CELLS_MAX)]


class Kind(StrEnum):
    """What a frame is. One character each, which is its first byte."""

    OPEN = "o"
    """To the agent, once: what is to run (`Open`)."""
    INPUT = "i"
    """To the agent: bytes for standard input."""
    END_OF_INPUT = "e"
    RESIZE = "r"
    """To the agent: rows and columns."""
    CLOSE = "c"
    """To the agent: the person has gone; the command is hung up on."""
    OPENED = "b"
    """To the client, once: the command runs."""
    OUTPUT = "1"
    ERRORS = "2"
    """To the client: bytes of standard output, or of standard error where they are apart."""
    OVER = "x"
    """To the client, the last one: how it ended (`Over`)."""
    USED_UP = "u"
    """Both ways: how many bytes of the other direction have been used since the beginning."""
    ALIVE = "a"
    """Both ways, every `ALIVE_EVERY_S`."""


TO_AGENT = frozenset(
    {Kind.OPEN, Kind.INPUT, Kind.END_OF_INPUT, Kind.RESIZE, Kind.CLOSE, Kind.USED_UP, Kind.ALIVE}
)
TO_CLIENT = frozenset({Kind.OPENED, Kind.OUTPUT, Kind.ERRORS, Kind.OVER, Kind.USED_UP, Kind.ALIVE})
CARRY = frozenset({Kind.INPUT, Kind.OUTPUT, Kind.ERRORS})
"""The kinds whose bodies count against a window."""
KINDS = {kind.value.encode(): kind for kind in Kind}
What = Literal["exec", "attach", "forward", "copy"]


class Open(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to run. The client says all of it but the job, the attempt, and where answers go.

    `exec`: the command `argv`. `attach`: the terminal of a job that is a shell. `forward`: one
    connection to the TCP port `port`, as a process of the job opens it. `copy`: files into the
    job's folder (`argv` is `put`, a place there, a name, and `file` or `folder`), or out of it
    (`get` and a path). With a `terminal` of this
    many rows and columns, of the type `term`, standard error is part of standard output. `fresh`:
    the shell to attach to has been started just now, and may need a moment.
    """

    what: What = "exec"
    argv: Words = ()
    rank: Rank = 0
    terminal: bool = False
    rows: Cells = 24
    columns: Cells = 80
    term: Short = ""
    port: Port = 0
    job: Short = ""
    attempt: Attempt = 0
    asker: Annotated[str, Meta(pattern=ASKER_PATTERN)] = "gateway"
    fresh: bool = False


class Over(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a session ended: the command's exit `code` (minus the signal's number), or why not.

    Without a code `reason` is one of `wire.reasons`, and `text` one line for a person. `returns`:
    the job was suspended because it did nothing, and was asked to return.
    """

    code: int | None = None
    reason: Short = ""
    text: Text = ""
    returns: bool = False


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ALIVE to an agent: who asks, so that one that was started anew can answer."""

    asker: Annotated[str, Meta(pattern=ASKER_PATTERN)] = "gateway"


class Frame(NamedTuple):
    """One frame. On the bus it has a session and a number, from 1 in each direction."""

    kind: Kind
    body: bytes = b""
    session: str = ""
    number: int = 0


def pack(frame: Frame) -> bytes:
    """Return a frame as the WebSocket carries it."""
    return frame.kind.value.encode() + frame.body


def unpack(data: bytes) -> Frame | None:
    """Return the frame in a message of the WebSocket; None: it is none."""
    kind = KINDS.get(data[:1])
    if kind is None or len(data) > 1 + _most(kind):
        return None
    return Frame(kind, data[1:])


def pack_for_bus(frame: Frame) -> bytes:
    """Return a frame as the bus carries it."""
    return HEAD.pack(bytes.fromhex(frame.session), frame.number) + pack(frame)


def unpack_from_bus(data: bytes) -> Frame | None:
    """Return the frame in a message of the bus; None: it is none."""
    if len(data) <= HEAD.size:
        return None
    session, number = HEAD.unpack_from(data)
    frame = unpack(data[HEAD.size :])
    return None if frame is None else frame._replace(session=session.hex(), number=number)


def _most(kind: Kind) -> int:
    return 2 * WORDS_BYTES_MAX if kind is Kind.OPEN else DATA_BYTES_MAX


OPEN = msgspec.json.Decoder(Open)
OVER = msgspec.json.Decoder(Over)
ALIVE = msgspec.json.Decoder(Alive)


def read_open(body: bytes) -> Open | str:
    """Return what is to run, or in one line what is wrong with it."""
    try:
        wanted = OPEN.decode(body)
    except UNDECODABLE as error:
        return f"what is to run cannot be read: {error}"
    if sum(len(word.encode("utf-8", "surrogatepass")) for word in wanted.argv) > WORDS_BYTES_MAX:
        return f"the command is longer than {WORDS_BYTES_MAX} bytes: put it into a file"
    if any("\0" in word for word in wanted.argv) or "\0" in wanted.term:
        return "the command has a NUL character, which no program can be given"
    match wanted.what:
        case "exec" if not wanted.argv or not wanted.argv[0]:
            return "there is no command to run"
        case "forward" if not wanted.port:
            return "there is no port to connect to: a number from 1 to 65535"
        case "copy":
            return copy_problem(wanted.argv) or wanted
        case _:
            return wanted


def copy_problem(argv: tuple[str, ...]) -> str:
    """Return why these words do not say what is to be copied, or an empty text."""
    match argv:
        case ("put", place, name, "file" | "folder"):
            why = unsafe(name)
        case ("get", place):
            why = ""
        case _:
            return "what is to be copied is said by `put PLACE NAME KIND`, or by `get PATH`"
    inside = place.removesuffix("/")
    if why or (inside not in {"", "."} and unsafe(inside)) or place.startswith("/"):
        return f"{place[:200]!r} is no path in the job's folder: {why or unsafe(place) or 'its /'}"
    return ""


def read_over(body: bytes) -> Over:
    """Return how a session ended, as far as that can be read."""
    try:
        return OVER.decode(body)
    except UNDECODABLE:
        return Over(reason="bad-value", text="the agent said something that cannot be read")


def cost(body: bytes) -> int:
    """Return what a frame with this body counts against a window."""
    return len(body) + FRAME_COST


class Window:
    """What one end may still send, and has used of what it got. All numbers are costs of frames."""

    def __init__(self) -> None:
        """Begin with nothing under way."""
        self.sent = 0
        """What was sent since the beginning."""
        self.confirmed = 0
        """How much of it the other end has used."""
        self.received = 0
        self.used = 0
        self.told = 0
        """How much of `used` the other end knows."""

    @property
    def room(self) -> int:
        """How many bytes the next frame may carry; 0: none may be sent now."""
        left = WINDOW_BYTES - (self.sent - self.confirmed) - FRAME_COST
        return min(max(left, 0), DATA_BYTES_MAX)

    def send(self, body: bytes) -> None:
        """Note a frame that is sent."""
        assert len(body) <= self.room, "the other end would hang up"
        self.sent += cost(body)

    def confirm(self, body: bytes) -> bool:
        """Take what the other end says it has used; return whether that can be."""
        used = read_used(body)
        if not self.confirmed <= used <= self.sent:
            return False
        self.confirmed = used
        return True

    def receive(self, body: bytes) -> bool:
        """Note a frame that came; return whether the other end kept to the window."""
        self.received += cost(body)
        return self.received - self.told <= WINDOW_BYTES

    def use(self, body: bytes) -> None:
        """Note that the body of a frame was used."""
        self.used += cost(body)

    def due(self) -> bytes | None:
        """Return the body of the USED_UP frame that is due; None: none is.

        It is due when all was used, and now and then while more comes than is used.
        """
        fresh = self.used - self.told
        if fresh == 0 or (fresh < DATA_BYTES_MAX and self.used != self.received):
            return None
        self.told = self.used
        return USED.pack(self.used)

    def check(self) -> None:
        """Assert what always holds."""
        assert 0 <= self.confirmed <= self.sent
        assert 0 <= self.told <= self.used <= self.received


def read_used(body: bytes) -> int:
    """Return how much was used, by the body of a USED_UP; -1: it says nothing."""
    return int(USED.unpack(body)[0]) if len(body) == USED.size else -1
