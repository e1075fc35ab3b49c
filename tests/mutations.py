"""Messages that somebody could publish instead of the right ones: valid examples, changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

INTEGERS = (
    -(2**80),
    -(2**63),
    -(2**31),
    -1,
    0,
    1,
    2,
    7,
    999,
    1023,
    1024,
    65_535,
    65_536,
    10**6,
    10**9,
    2**31 - 1,
    2**31,
    2**53,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
)
FLOATS = (-1.0, -0.0, 0.5, 1e-300, 1e300, 1.7976931348623157e308)
TEXTS = (
    "",
    " ",
    "\0",
    "x",
    "x" * 300,
    "x" * 70_000,
    "n1.>",
    "*",
    "../..",
    "j1",
    "j2",
    "j0",
    "j01",
    "j9223372036854775808",
    "j99999999999999999999",
    "s1",
    "nlp",
    "vision",
    "node-1",
    "node-2",
    "\u202e",
    "\U0001f4a9" * 20,
    "line\nline",
    "1e5",
    "-1",
    "true",
    "cpu",
    "🐍",
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, {"type": "x"})
TOKENS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b'"\\ud800"',
    b"[" * 5000,
    b"{",
    b"-",
    b"0x10",
    b"01",
)
"""What stands in the place of a value without being JSON, or only just."""
DEPTH = 2000
CHANGES_MAX = 3
LONG = 5000
SMALL = 100
"""Characters of what may be repeated LONG times."""

Place = tuple[Any, Any]
"""A dict or list, and the key of one of its entries."""


class Mutator:
    """Changes messages by chance.

    Args:
        rng: Where the chance comes from.
        examples: Valid payloads; values are also taken from one into another.
    """

    def __init__(self, rng: random.Random, examples: Sequence[bytes]) -> None:
        self.rng = rng
        self._repeated = False
        self._trees = [json.loads(each) for each in examples]
        self._values: dict[str, list[Any]] = {}
        for tree in self._trees:
            for holder, key in places(tree):
                if isinstance(key, str):
                    self._values.setdefault(key, []).append(holder[key])

    def payload(self, given: bytes | None = None) -> bytes:
        """Return a changed message: of a `given` one, or of any example."""
        rng = self.rng
        if rng.random() < 0.05:
            return rng.randbytes(rng.randrange(200))
        self._repeated = False
        tree = copy.deepcopy(rng.choice(self._trees) if given is None else json.loads(given))
        for _ in range(rng.randint(1, CHANGES_MAX)):
            tree = self._changed(tree)
        raw = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        return self._damaged(raw) if rng.random() < 0.25 else raw

    def headers(self) -> dict[str, str]:
        """Return headers that a client might send: right, wrong and strange ones."""
        rng = self.rng
        names = (
            "Nats-Msg-Id",
            "Skep-Reply",
            "traceparent",
            "Nats-Expected-Stream",
            "Nats-TTL",
            "Nats-Rollup",
            "Nats-Expected-Last-Sequence",
            "Nats-Schedule",
            "X-Odd",
        )
        values = (
            *("", "x", "sub", "all", "NOPE", "-1", "1", ">", "y" * 900, f"key-{rng.randrange(5)}"),
            *("skep.v1.fact.allocator", "_INBOX.vc-nlp.1", "_INBOX.gateway.1", "$JS.API.INFO"),
            "00-" + "0" * 52,
        )
        return {name: rng.choice(values) for name in names if rng.random() < 0.15}

    def _changed(self, tree: Any) -> Any:
        rng = self.rng
        there = list(places(tree))
        if not there or rng.random() < 0.02:
            return self._value("")
        holder, key = rng.choice(there)
        change = rng.choice(CHANGES)
        change(self, holder, key)
        return tree

    def _value(self, key: Any) -> Any:
        """Return what might stand there: something of another kind, or of another message."""
        rng = self.rng
        known = self._values.get(key)
        if known and rng.random() < 0.4:
            return copy.deepcopy(rng.choice(known))
        kinds: Sequence[Sequence[Any]] = (INTEGERS, INTEGERS, FLOATS, TEXTS, OTHERS)
        return copy.deepcopy(rng.choice(rng.choice(kinds)))

    def _replace(self, holder: Any, key: Any) -> None:
        holder[key] = self._value(key)

    def _of_its_kind(self, holder: Any, key: Any) -> None:
        """Put a value of the same kind there, so that only its meaning is another."""
        old = holder[key]
        if isinstance(old, str):
            holder[key] = self.rng.choice(TEXTS)
        elif isinstance(old, int) and not isinstance(old, bool):
            holder[key] = self.rng.choice(INTEGERS)
        elif isinstance(old, float):
            holder[key] = self.rng.choice(FLOATS)
        else:
            self._replace(holder, key)

    def _remove(self, holder: Any, key: Any) -> None:
        del holder[key]

    def _repeat(self, holder: Any, key: Any) -> None:
        value = holder[key]
        times = self.rng.choice((1, 2, LONG))
        if times == LONG and (self._repeated or len(repr(value)) > SMALL):
            times = 2  # Once in a message: repetitions of repetitions have no bound.
        self._repeated |= times == LONG
        holder[key] = (value if isinstance(value, list) else [value]) * times

    def _add(self, holder: Any, key: Any) -> None:
        value = self._value(key)
        if isinstance(holder, dict):
            holder[self.rng.choice(TEXTS)] = value
        else:
            holder.append(value)

    def _deepen(self, holder: Any, key: Any) -> None:
        depth = self.rng.choice((1, 5, 100))
        for _ in range(depth):
            holder[key] = [holder[key]] if self.rng.random() < 0.5 else {"x": holder[key]}

    def _damaged(self, raw: bytes) -> bytes:
        rng = self.rng
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(6):
            case 0:
                return raw[:at]
            case 1:
                return raw[:at] + rng.randbytes(rng.randint(1, 4)) + raw[at:]
            case 2:
                return raw + raw
            case 3:
                return b"[" * DEPTH + raw + b"]" * DEPTH
            case 4:  # Every key twice: readers take the first or the last.
                return raw.replace(b"{", b'{"type":"x",', 1)
            case _:
                colon = raw.find(b":", at)
                end = raw.find(b",", colon)
                if colon < 0 or end < 0:
                    return b"\xff\xfe" + raw
                return raw[: colon + 1] + rng.choice(TOKENS) + raw[end:]


CHANGES: tuple[Callable[[Mutator, Any, Any], None], ...] = (
    Mutator._replace,
    Mutator._replace,
    Mutator._of_its_kind,
    Mutator._of_its_kind,
    Mutator._of_its_kind,
    Mutator._remove,
    Mutator._repeat,
    Mutator._add,
    Mutator._deepen,
)


def places(tree: Any) -> Iterator[Place]:
    """Yield every entry of every object and list in a tree."""
    entries: list[Any] = []
    if isinstance(tree, dict):
        entries = list(tree)
    elif isinstance(tree, list):
        entries = list(range(len(tree)))
    for key in entries:
        yield tree, key
        yield from places(tree[key])
