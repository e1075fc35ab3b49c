"""What numbers, texts and lists in messages may be: every bound of the wire has its name here.

A message from outside is decoded against the bounds of its fields, and one that violates any of
them is refused as a whole: nothing is decided on it. The generated schemas say the same bounds.

Logs are read differently (`LogDecoder`): what was recorded stays readable, whatever the bounds are
today. So a bound may be made tighter without making a stored log unreadable.
"""

from __future__ import annotations

import functools
import operator
from types import UnionType
from typing import Annotated, Any, Generic, NewType, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from skep.units import Duration, Instant

INSTANT_MAX = 2**62
"""The year 2116 in nanoseconds. The sum of two instants still fits a signed integer of 64 bits."""
COUNT_MAX = 2**53
"""Counts beyond this are not exact in every JSON reader."""
BYTES_MAX = 2**62
"""A total of bytes: 2,048 processes that each say PROCESS_BYTES_MAX stay below it."""
PROCESS_BYTES_MAX = 2**50
"""What one process may say of its memory: a petabyte."""
ATTEMPT_MAX = 10**9
"""A job would have to be started once a second for 30 years."""
INCARNATION_MAX = 2**31 - 1
"""An agent counts its joins: one a second for 68 years."""
RANKS_MAX = 100_000
"""Ranks of one gang, far above what a spec may ask for."""
DEVICE_MAX = 1023
"""The highest index of a device, so a node has at most 1,024."""
DEVICES_MAX = DEVICE_MAX + 1
PORT_MAX = 65_535
COPIES_MAX = 64
"""Jobs that a node names at once for having copies of their state in its memory."""
LISTED_MAX = 100_000
"""Entries of a list that has no bound of its own; a message's bytes bound it as well."""
NODES_MAX = 65_536
"""Nodes that one message may list: those of the largest chain."""
MESSAGE_BYTES_MAX = 1024 * 1024
"""What the bus takes as one message."""
SHORT_MAX = 256
"""Characters of names and addresses."""
TEXT_MAX = 65_536
"""Characters of what is told to people. Agents cut theirs much shorter (DETAIL_MAX)."""
DETAIL_MAX = 4096
"""Characters of the details that agents write."""
NAMES_MAX = 64
TEMPLATES_MAX = 32
"""Templates of a virtual cluster: all of them are in every record of the cluster."""
"""Abilities, values and leftovers that one message may name."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$(?!\n)"
"""One token of a subject (`ids.TOKEN`); `$` alone would let a line end follow."""
JOB_PATTERN = r"^j[1-9][0-9]{0,17}$(?!\n)"
"""A job id whose number fits a signed integer of 64 bits, as databases have them."""
SEARCH_PATTERN = r"^s[1-9][0-9]{0,17}$(?!\n)"
SERVICE_PATTERN = r"^v[1-9][0-9]{0,17}$(?!\n)"
NUMBER_MAX = 1.7976931348623157e308
"""The largest finite number."""

Moment = Annotated[Instant, Meta(ge=0, le=INSTANT_MAX)]
Length = Annotated[Duration, Meta(ge=0, le=INSTANT_MAX)]
Nanoseconds = Annotated[int, Meta(ge=0, le=INSTANT_MAX)]
MaybeNanoseconds = Annotated[int, Meta(ge=-INSTANT_MAX, le=INSTANT_MAX)]
"""A time on a clock that may begin anywhere, such as a host's monotonic clock."""
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Whole = Annotated[int, Meta(ge=-COUNT_MAX, le=COUNT_MAX)]
"""A number that is judged where it is used, with a better text than a decoder has."""
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Any integer of 64 bits."""
Positive = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Gain = Annotated[int, Meta(ge=-INSTANT_MAX, le=INSTANT_MAX)]
"""Thousandths that may be negative."""
Milli = Annotated[int, Meta(ge=0, le=INSTANT_MAX)]
"""Thousandths."""
Bytes = Annotated[int, Meta(ge=0, le=BYTES_MAX)]
MaybeBytes = Annotated[int, Meta(ge=-1, le=BYTES_MAX)]
"""Bytes, or -1 where they are not known."""
ProcessBytes = Annotated[int, Meta(ge=0, le=PROCESS_BYTES_MAX)]
MaybeProcessBytes = Annotated[int, Meta(ge=-1, le=PROCESS_BYTES_MAX)]
Attempt = Annotated[int, Meta(ge=0, le=ATTEMPT_MAX)]
Incarnation = Annotated[int, Meta(ge=0, le=INCARNATION_MAX)]
Rank = Annotated[int, Meta(ge=0, le=RANKS_MAX - 1)]
World = Annotated[int, Meta(ge=0, le=RANKS_MAX)]
Device = Annotated[int, Meta(ge=0, le=DEVICE_MAX)]
Port = Annotated[int, Meta(ge=0, le=PORT_MAX)]
Status = Annotated[int, Meta(ge=-(2**31), le=2**32)]
"""An exit status, or minus the number of a signal; some systems' statuses have 32 bits."""

Number = Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
"""Any finite number."""
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]

Token = Annotated[str, Meta(pattern=NAME_PATTERN)]
JobName = Annotated[str, Meta(pattern=JOB_PATTERN)]
SearchName = Annotated[str, Meta(pattern=SEARCH_PATTERN)]
ServiceName = Annotated[str, Meta(pattern=SERVICE_PATTERN)]
Short = Annotated[str, Meta(max_length=SHORT_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Words = Annotated[str, Meta(max_length=MESSAGE_BYTES_MAX)]
"""A text of a message whose bytes are bounded as a whole, by a clearer refusal."""
Scalar = Short | Integer | Number | bool
"""What a parameter of a search may be."""
Abilities = Annotated[tuple[Short, ...], Meta(max_length=NAMES_MAX)]
Sizes = Annotated[tuple[Annotated[int, Meta(ge=1, le=RANKS_MAX)], ...], Meta(max_length=NAMES_MAX)]
"""Numbers of ranks that a job can have."""
Devices = Annotated[tuple[Device, ...], Meta(max_length=DEVICES_MAX)]
Values = Annotated[dict[Short, Number], Meta(max_length=NAMES_MAX)]

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding bytes from outside raises: no JSON, wrong types or bounds, bad UTF-8, too deep."""

REFUSAL_CHARS_MAX = 300
"""What is told of a message that cannot be read: decoders quote it, and it may be a megabyte."""

Kind = TypeVar("Kind")


class LogDecoder(Generic[Kind]):
    """Reads JSON that was recorded: within today's bounds or not."""

    def __init__(self, kind: Any) -> None:
        """Read values of the type `kind`."""
        self._kind = kind
        self._bounded: msgspec.json.Decoder[Kind] = msgspec.json.Decoder(kind)
        self._unbounded: msgspec.json.Decoder[Any] | None = None

    def decode(self, raw: Any) -> Kind:
        """Return the value in `raw`.

        A value that is out of bounds is returned all the same.

        Args:
            raw: JSON, as bytes or text.

        Raises:
            msgspec.DecodeError: It is not JSON.
            msgspec.ValidationError: A key or a type is wrong.
            UnicodeDecodeError: Its text is not UTF-8.
            RecursionError: It is nested too deeply.
        """
        try:
            return self._bounded.decode(raw)
        except msgspec.ValidationError:
            if self._unbounded is None:
                self._unbounded = msgspec.json.Decoder(without_bounds(self._kind, {}))
            made: Kind = _original(self._unbounded.decode(raw))
            return made


def one_line(error: Exception) -> str:
    """Return what an error says as one short line, fit for a log and a terminal."""
    text = str(error)[:REFUSAL_CHARS_MAX]
    return "".join(each if each.isprintable() else "?" for each in text)


def convert_unbounded(tree: Any, kind: type[Kind]) -> Kind:
    """Return a decoded JSON value as a `kind`, whose bounds are not looked at.

    Args:
        tree: The value.
        kind: A class of messages.

    Raises:
        msgspec.ValidationError: A key or a type is wrong.
    """
    twin = _TWINS.get(kind)
    if twin is None:
        twin = _TWINS[kind] = without_bounds(kind, {})
    made: Kind = _original(msgspec.convert(tree, twin))
    return made


_TWINS: dict[type[Any], Any] = {}


def without_bounds(kind: Any, made: dict[type[Any], Any]) -> Any:
    """Return a type that accepts what `kind` does, and whatever is out of its bounds.

    Structs are replaced by twins.

    Args:
        kind: Any type that a field may have.
        made: The twins that were made before, by what they stand for; those that are made are
            added.
    """
    if isinstance(kind, NewType):
        return without_bounds(kind.__supertype__, made)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind not in made:
            made[kind] = _twin(kind, made)
        return made[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return without_bounds(inner[0], made)
    if origin in (Union, UnionType):
        options = [without_bounds(each, made) for each in inner]
        return functools.reduce(operator.or_, options)
    if origin in (tuple, list, dict):
        return origin[
            tuple(each if each is Ellipsis else without_bounds(each, made) for each in inner)
        ]
    return kind


def _twin(kind: type[msgspec.Struct], made: dict[type[Any], Any]) -> type[msgspec.Struct]:
    settings = kind.__struct_config__
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        given: dict[str, Any] = {"name": field.encode_name}
        if field.default is not msgspec.NODEFAULT:
            given["default"] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            given["default_factory"] = field.default_factory
        fields.append((field.name, without_bounds(field.type, made), msgspec.field(**given)))
    return msgspec.defstruct(
        kind.__name__,
        fields,
        namespace={"__twin_of__": kind},
        kw_only=True,
        frozen=True,
        tag=settings.tag,
        tag_field=settings.tag_field,
        forbid_unknown_fields=settings.forbid_unknown_fields,
        array_like=settings.array_like,
    )


def _original(value: Any) -> Any:
    """Return what a twin stands for, with everything in it."""
    if isinstance(value, msgspec.Struct):
        kind = getattr(value, "__twin_of__", None)
        if kind is None:
            return value
        return kind(**{name: _original(getattr(value, name)) for name in value.__struct_fields__})
    if isinstance(value, tuple | list):
        return type(value)(_original(each) for each in value)
    if isinstance(value, dict):
        return {key: _original(each) for key, each in value.items()}
    return value
