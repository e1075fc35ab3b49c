"""Types of fields as people read them, and tables of the fields of structs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

from tools.reference.markdown import code, table

NAMES: dict[type[inspect.Type], str] = {
    inspect.AnyType: "anything",
    inspect.NoneType: "none",
    inspect.BoolType: "true or false",
    inspect.RawType: "JSON",
}
TIME = "skep.units."
"""Where the types of instants and durations are, which are integers to `inspect`."""
ENDLESS = 2**53
"""A bound from here on is one of the format of messages, and not of the field."""


def fields(kind: type[msgspec.Struct]) -> str:
    """Return the table of the fields of a struct, or a sentence if there are none."""
    rows = []
    for field in msgspec.structs.fields(kind):
        text = describe(inspect.type_info(field.type))
        if TIME in str(field.type):
            text += ", ns"
        rows.append([code(field.encode_name), text, default(field)])
    return table(["key", "type", "default"], rows) if rows else "No fields."


def default(field: msgspec.structs.FieldInfo) -> str:
    """Return the default of a field as JSON, or that there is none."""
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    text = msgspec.json.encode(value).decode()
    return code(json.dumps(json.loads(text), ensure_ascii=False))


def describe(info: inspect.Type) -> str:
    """Return a type in words."""
    match info:
        case inspect.Metadata(type=inside):
            return describe(inside)
        case inspect.IntType() | inspect.FloatType():
            return ("integer" if isinstance(info, inspect.IntType) else "number") + _range(info)
        case inspect.StrType():
            limit = info.max_length or ENDLESS
            return "text" if limit >= 65_536 else f"text of {limit:,} characters at most"
        case inspect.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case inspect.EnumType(cls=cls):
            return _listed(cls)
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(code(value) for value in values)
        case inspect.UnionType(types=types):
            return " or ".join(describe(one) for one in sorted(types, key=_weight))
        case inspect.DictType(key_type=key, value_type=value):
            return f"map of {describe(key)} to {describe(value)}"
        case inspect.TupleType(item_types=items):
            return "list of " + ", ".join(describe(one) for one in items)
        case inspect.CollectionType(item_type=item):
            return f"list of {describe(item)}"
        case _:
            return NAMES.get(type(info), type(info).__name__)


def inside(kinds: Iterable[type[msgspec.Struct]]) -> list[type[msgspec.Struct]]:
    """Return the structs that fields of these structs name, those of their fields too, by name."""
    waiting = [info for kind in kinds for info in _field_types(kind)]
    found: dict[str, type[msgspec.Struct]] = {}
    while waiting:
        info = waiting.pop()
        if isinstance(info, inspect.StructType) and info.cls.__name__ not in found:
            found[info.cls.__name__] = info.cls
            waiting += _field_types(info.cls)
        waiting += _parts(info)
    return [found[name] for name in sorted(found)]


def _field_types(kind: type[msgspec.Struct]) -> list[inspect.Type]:
    return [inspect.type_info(field.type) for field in msgspec.structs.fields(kind)]


def _parts(info: inspect.Type) -> list[inspect.Type]:
    match info:
        case inspect.Metadata(type=inside):
            return [inside]
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            return list(types)
        case inspect.DictType(key_type=key, value_type=value):
            return [key, value]
        case inspect.CollectionType(item_type=item):
            return [item]
        case _:
            return []


def _weight(info: inspect.Type) -> int:
    """Return where a type stands in a union: simple ones first, none last."""
    if isinstance(info, inspect.NoneType):
        return 2
    return int(isinstance(info, inspect.CollectionType))


def _range(info: Any) -> str:
    low, high = info.ge, info.le
    if high is not None and high >= ENDLESS:
        high = None
    if low is not None and low <= -ENDLESS:
        low = None
    if low is None and info.gt is not None:
        return f" above {info.gt:,}" + ("" if high is None else f", {high:,} at most")
    if low is None or high is None:
        return "" if low is None else f" from {low:,}"
    return f" from {low:,} to {high:,}"


def _listed(cls: type[Enum]) -> str:
    if len(cls) > 20:
        return f"a code of {cls.__name__}"
    return "one of " + ", ".join(code(member.value) for member in cls)
