"""The garbage collector looks at what is new, and once an hour at everything."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from skep_services.collection import ALL_AGAIN_S, ShortPauses, short_pauses


class Thing:
    """What can be in a cycle, and be looked for."""

    def __init__(self) -> None:
        self.itself = self


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Have collections run only where a test asks for one, and end with nothing frozen."""
    gc.disable()
    made = Clock()
    pauses = ShortPauses(made)
    gc.callbacks.append(pauses)
    yield made
    gc.callbacks.remove(pauses)
    gc.unfreeze()
    gc.enable()


def test_a_full_collection_frees_what_is_new_and_freezes_the_rest(clock: Clock) -> None:
    before = gc.get_freeze_count()
    stays, goes = Thing(), weakref.ref(Thing())
    gc.collect()
    assert goes() is None
    assert gc.get_freeze_count() > before
    assert not any(each is stays for each in gc.get_objects(generation=2))


def test_young_collections_freeze_nothing(clock: Clock) -> None:
    before, stays = gc.get_freeze_count(), Thing()
    gc.collect(1)
    assert gc.get_freeze_count() <= before, "what is frozen may go, and nothing comes"
    assert any(each is stays for each in gc.get_objects(generation=2))


def test_a_frozen_cycle_is_freed_within_the_hour(clock: Clock) -> None:
    thing = Thing()
    found = weakref.ref(thing)
    gc.collect()
    del thing
    gc.collect()
    assert found() is not None, "it is frozen"
    clock.now = ALL_AGAIN_S
    gc.collect()
    assert found() is None


def test_nothing_stays_frozen_at_the_end() -> None:
    before = list(gc.callbacks)
    with short_pauses():
        assert gc.get_freeze_count() > 0
        assert len(gc.callbacks) == len(before) + 1
    assert gc.get_freeze_count() == 0
    assert gc.callbacks == before
