"""A heap of timers: what is replaced or cancelled never fires."""

from skep.base.timers import STALE_MAX, TimerHeap


def test_timers_fall_due_in_order() -> None:
    timers = TimerHeap[str]()
    for key, at in (("c", 3), ("b", 1), ("a", 1), ("d", 9)):
        timers.set_timer(key, at)
    assert timers.pop_due(3) == ["a", "b", "c"]
    assert timers.pop_due(3) == []
    assert timers.due == {"d": 9}


def test_a_timer_that_was_replaced_or_cancelled_does_not_fire() -> None:
    timers = TimerHeap[str]()
    timers.set_timer("a", 1)
    timers.set_timer("a", 5)
    timers.set_timer("b", 2)
    timers.cancel("b")
    timers.cancel("b")
    assert timers.first_due() == 5
    assert timers.pop_due(4) == []
    assert timers.pop_due(5) == ["a"]
    assert timers.first_due() is None


def test_looking_ahead_leaves_timers_set() -> None:
    timers = TimerHeap[str]()
    for key, at in (("a", 1), ("b", 2), ("c", 3)):
        timers.set_timer(key, at)
    assert next(timers.upcoming(3)) == (1, "a")
    assert [*timers.upcoming(3, {"a"})] == [(2, "b")]
    assert timers.first_due({"a", "b"}) == 3
    assert timers.pop_due(3) == ["a", "b", "c"]


def test_the_heap_stays_small_when_one_timer_is_set_again_and_again() -> None:
    timers = TimerHeap[str]()
    for at in range(10 * STALE_MAX):
        timers.set_timer("a", at)
        assert len(timers) <= 2 + STALE_MAX
    assert timers.pop_due(10 * STALE_MAX) == ["a"]
