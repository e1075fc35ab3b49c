"""Messages with anything in them, read and decided on: no machine ends, and its invariants hold.

The examples of `proto/` are changed by chance, published on each subject that a service hears from
outside, read as its shell reads them, and given to its machine one after the other.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from skep.machines.base import Restarted, Tick
from skep.units import after, seconds
from skep.wire import codec, subjects
from tests.mutations import Mutator
from tests.unit.test_every_message import (
    NODE,
    SERVICES,
    VC,
    example_files,
    kind_of,
    patterns,
    populated,
)

MESSAGES = 25
"""Messages in one history."""


def heard(name: str) -> list[tuple[str, list[bytes]]]:
    """Return each subject that a service hears others on, and the examples of what is said there.

    Facts are left out: they come from one owner, and the bus lets no other write them.
    """
    found = []
    for pattern, _ in patterns(SERVICES[name]):
        kind, first = kind_of(pattern)
        if kind == "fact":
            continue
        words = {"submit": VC, "cancel": VC, "ask": VC, "search": VC, "admin": "vcs"}
        subject = pattern.replace("*.*", f"{NODE}.event")
        subject = subject.replace("*", words.get(kind, first if first != "*" else NODE))
        examples = [path.read_bytes() for path in example_files(kind, first)]
        if kind == "cancel":
            examples = [b'{"job":"j12"}']
        found.append((subject, examples))
    return found


@pytest.mark.parametrize("name", [name for name in SERVICES if heard(name)])
@given(seed=st.integers(0, 2**32 - 1))
def test_no_mutated_message_ends_a_service(name: str, seed: int) -> None:
    rng = random.Random(seed)
    note(f"{name}, seed {seed}")
    said = [(subject, Mutator(rng, examples)) for subject, examples in heard(name)]
    machine, now = populated(name)
    for number in range(200, 200 + MESSAGES):
        subject, mutator = rng.choice(said)
        payload = mutator.payload()
        streamed = not subject.startswith(tuple(f"{subjects.PREFIX}.{kind}." for kind in CORE))
        now = after(now, seconds(rng.choice((0.001, 1.0, 7.0))))
        event: Any = codec.read(subject, payload, {}, number if streamed else 0, now)
        if rng.random() < 0.1:
            event = rng.choice((Tick(), Restarted(2)))
        note(f"{subject}: {payload[:300]!r}")
        if isinstance(event, codec.Unreadable):
            assert event.text.isprintable()
            assert len(event.text) <= 300
        for effect in machine.decide(event, now):
            msgspec.json.encode(effect)
        machine.check()


CORE = ("cmd", "heartbeat", "report", "finding", "advice", "trial")
