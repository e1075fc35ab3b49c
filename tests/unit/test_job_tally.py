"""Counting rules, without torch: optimizers here are plain objects."""

import gc
import random
import time
from typing import Any

import pytest

from skep_job.link.orders import Control
from skep_job.observe import step_counter
from skep_job.observe.step_counter import (
    FAILURE_CHARACTERS_MAX,
    PHASE,
    SHORT_NS,
    UNTIMED,
    WINDOW,
    AfterStep,
    Tally,
    after_step,
)


class Optimizer:
    """Stands for a torch optimizer: an object with an identity and weak references."""


class Bare:
    """An optimizer of a class that allows no weak references."""

    __slots__ = ()


def step(hook: AfterStep, *optimizers: object, times: int = 1) -> None:
    for _ in range(times):
        for optimizer in optimizers:
            hook(optimizer, (), {})


def test_nothing_has_happened() -> None:
    count = Tally().count()
    assert count == (0, 0, 0, "none")


def test_steps_of_one_optimizer() -> None:
    tally = Tally()
    step(after_step(tally), Optimizer(), times=0)
    optimizer = Optimizer()
    step(after_step(tally), optimizer, times=20)
    count = tally.count()
    assert count.steps == 20
    assert count.source == "optimizer"
    assert count.step_ns > 0
    assert count.last_step_ns == tally.ends[-1]


def test_one_step_has_no_duration() -> None:
    tally = Tally()
    optimizer = Optimizer()
    step(after_step(tally), optimizer)
    assert tally.count().step_ns == 0
    assert tally.count().last_step_ns > 0


def test_the_duration_is_the_median_of_the_last_window() -> None:
    tally = Tally()
    gaps = [10] * WINDOW + [30] * (WINDOW // 2) + [1_000_000] + [20] * (WINDOW // 2 - 1)
    end = 0
    for gap in [0, *gaps]:
        end += gap
        tally.ends.append(end)
    assert tally.count().step_ns == 30
    tally.ends.clear()
    tally.ends.extend([0, 10, 30])
    assert tally.count().step_ns == 15


def test_gan_counts_the_optimizer_that_steps_most() -> None:
    tally = Tally()
    hook = after_step(tally)
    discriminator, generator = Optimizer(), Optimizer()
    for _ in range(4):
        step(hook, discriminator, times=5)
        step(hook, generator)
    assert tally.count().steps == 20


def test_orders_are_done_where_the_optimizer_that_leads_has_stepped() -> None:
    class Due(Control):
        def boundary(self, step: int, *, cooperative: bool = False) -> None:
            done.append((step, cooperative))

    done: list[tuple[int, bool]] = []
    tally, control = Tally(), Due()
    hook = after_step(tally, control)
    discriminator, generator = Optimizer(), Optimizer()
    step(hook, discriminator, generator)
    control.due = True
    step(hook, discriminator, generator, times=3)
    assert done == [(2, False), (3, False), (4, False)]


def test_gan_whose_generator_goes_first() -> None:
    tally = Tally()
    hook = after_step(tally)
    discriminator, generator = Optimizer(), Optimizer()
    for _ in range(4):
        step(hook, generator)
        step(hook, discriminator, times=5)
    assert tally.count().steps == 20


def test_one_optimizer_per_layer_counts_once_per_mini_batch() -> None:
    tally = Tally()
    layers = [Optimizer() for _ in range(4)]
    step(after_step(tally), *layers, times=20)
    assert tally.count().steps == 20


def test_an_optimizer_that_joins_a_running_loop_adds_nothing() -> None:
    tally = Tally()
    hook = after_step(tally)
    first, second = Optimizer(), Optimizer()
    step(hook, first, times=10)
    step(hook, second, first, times=10)
    assert tally.count().steps == 20


def test_phases_with_an_optimizer_each_keep_counting() -> None:
    tally = Tally()
    hook = after_step(tally)
    for _ in range(3):
        optimizer = Optimizer()
        step(hook, optimizer, times=20)
        del optimizer
        gc.collect()
    assert tally.count().steps == 60


def test_a_later_phase_counts_even_while_the_earlier_optimizer_lives() -> None:
    tally = Tally()
    hook = after_step(tally)
    head, everything = Optimizer(), Optimizer()
    step(hook, head, times=20)
    step(hook, everything, times=20)
    assert tally.count().steps == 40


def test_a_step_beside_another_optimizer_is_no_phase() -> None:
    tally = Tally()
    hook = after_step(tally)
    head, everything = Optimizer(), Optimizer()
    step(hook, head, times=20)
    step(hook, everything, times=PHASE - 1)
    assert tally.count().steps == 20 + PHASE - 2  # Its first step may belong to the other's.


def test_models_that_train_in_turn_are_counted_in_every_epoch() -> None:
    tally = Tally()
    hook = after_step(tally)
    folds = [Optimizer() for _ in range(5)]
    for epoch in range(1, 4):
        for number, fold in enumerate(folds, 1):
            step(hook, fold, times=20)
            assert tally.count().steps == (epoch - 1) * 100 + number * 20


def test_a_discriminator_that_leads_leaves_its_generator_behind() -> None:
    tally = Tally()
    hook = after_step(tally)
    discriminator, generator = Optimizer(), Optimizer()
    for _ in range(4):
        step(hook, discriminator, times=PHASE * 2)
        step(hook, generator)
    assert tally.count().steps == PHASE * 8


def test_two_gans_one_after_the_other() -> None:
    tally = Tally()
    hook = after_step(tally)
    for _ in range(2):
        discriminator, generator = Optimizer(), Optimizer()
        for _ in range(4):
            step(hook, discriminator, times=5)
            step(hook, generator)
        del discriminator, generator
        gc.collect()
    assert tally.count().steps == 40


def test_a_class_without_weak_references_is_counted() -> None:
    tally = Tally()
    optimizer = Bare()
    step(after_step(tally), optimizer, times=3)
    assert tally.count().steps == 3


def test_batches_count_while_no_optimizer_steps() -> None:
    tally = Tally()
    for _ in range(20):
        tally.begin_batch()
    assert tally.count()[::3] == (19, "dataloader")  # The latest is still being worked on.
    tally.end_batch()
    tally.end_batch()
    assert tally.count()[::3] == (20, "dataloader")
    assert tally.count().step_ns > 0


def test_the_batch_a_loop_was_left_with_counts_at_the_end() -> None:
    tally = Tally()
    tally.begin_batch()
    assert tally.count()[::3] == (0, "none")
    assert tally.count(ended=True)[::3] == (1, "dataloader")


def test_an_optimizer_step_outweighs_all_batches() -> None:
    tally = Tally()
    for _ in range(8):
        tally.begin_batch()
    optimizer = Optimizer()
    step(after_step(tally), optimizer)
    assert tally.count()[::3] == (1, "optimizer")
    assert len(tally.ends) == 1
    tally.begin_batch()
    assert len(tally.ends) == 1


def test_the_first_mini_batch_is_told_at_once_and_no_other() -> None:
    tally = Tally()
    told: list[Any] = []
    tally.wake = lambda: told.append(tally.count()[::3])
    tally.begin_batch()
    assert told == []
    tally.begin_batch()
    tally.begin_batch()
    assert told == [(1, "dataloader")]
    optimizers = Optimizer(), Optimizer()
    step(after_step(tally), *optimizers, times=5)
    assert told == [(1, "dataloader"), (1, "optimizer")]


def test_a_failure_in_the_hook_stays_in_the_hook() -> None:
    tally = Tally()
    woken = []
    tally.wake = lambda: woken.append(tally.failure)
    hook = after_step(tally)
    first, second = Optimizer(), Optimizer()
    step(hook, first, times=3)
    tally.join = lambda _: 1 / 0  # type: ignore[assignment, method-assign]
    step(hook, second, first, times=3)
    assert tally.failure == "optimizer hook: ZeroDivisionError: division by zero"
    assert tally.count()[::3] == (3, "none")
    assert woken[1:] == [tally.failure]


def test_a_failure_that_cannot_even_be_told() -> None:
    class NamelessError(Exception):
        def __str__(self) -> str:
            raise ValueError

    def wake() -> None:
        raise OSError

    tally = Tally()
    tally.wake = wake
    tally.fail("here", NamelessError())
    assert tally.failure == "here: NamelessError"


def test_only_the_first_failure_is_kept_and_not_all_of_it() -> None:
    tally = Tally()
    tally.fail("here", ValueError("x" * 10_000))
    tally.fail("there", ValueError())
    assert tally.failure is not None
    assert tally.failure.startswith("here: ValueError: xxx")
    assert len(tally.failure) == FAILURE_CHARACTERS_MAX


def test_after_a_failure_nothing_is_counted() -> None:
    tally = Tally()
    hook = after_step(tally)
    known, unknown = Optimizer(), Optimizer()
    step(hook, known, times=3)
    tally.fail("test", ValueError())
    step(hook, known, unknown, times=3)
    assert tally.count()[::3] == (3, "none")
    assert tally.levels == {}


def test_backward_passes_count_until_an_optimizer_steps() -> None:
    tally = Tally()
    tally.begin_batch()
    tally.end_batch()
    for _ in range(3):
        tally.end_backward()
        tally.begin_batch()
    assert tally.count()[::3] == (3, "backward")
    assert (tally.reached(), len(tally.ends)) == (3, 3)
    step(after_step(tally), Optimizer())
    tally.end_batch()
    assert tally.count()[::3] == (1, "optimizer")
    assert (tally.reached(), len(tally.ends)) == (1, 1)


def test_the_first_backward_pass_counts_with_the_second() -> None:
    tally = Tally()
    tally.begin_batch()
    tally.end_batch()
    assert not tally.end_backward()
    assert tally.count()[::3] == (1, "dataloader")
    assert tally.end_backward()
    assert tally.count()[::3] == (2, "backward")


def test_a_script_that_takes_over_counts_on_from_its_backward_passes() -> None:
    tally = Tally()
    tally.end_backward()
    tally.end_backward()
    tally.hand_over()
    tally.tick()
    assert tally.count()[::3] == (3, "cooperative")


class _Script:
    """Mini-batches of some length each, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10**9
        self.tally = Tally()
        self.hook = after_step(self.tally)
        self.ends: list[int] = []
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now)

    def train(self, times: int, took_ns: int, *optimizers: object) -> None:
        for _ in range(times):
            self.now += took_ns
            self.ends.append(self.now)
            step(self.hook, *optimizers)


def test_short_mini_batches_are_counted_and_some_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    script, optimizer = _Script(monkeypatch), Optimizer()
    script.train(3 * UNTIMED, 400_000, optimizer)
    count = script.tally.count()
    assert count == (3 * UNTIMED, 400_000, script.now, "optimizer")
    assert len(set(script.ends) & set(script.tally.ends)) <= WINDOW + 1
    timed = script.tally.ends[-1]
    assert timed < script.now
    script.now += 10**12
    assert script.tally.count() == count  # It stands, and the time of the latest is not moved on.


def test_behind_those_that_are_only_counted_a_window_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, optimizer = _Script(monkeypatch), Optimizer()
    script.train(2 * UNTIMED + 1 + WINDOW, 400_000, optimizer)
    assert list(script.tally.ends) == script.ends[-WINDOW - 1 :]
    script.train(1, 400_000, optimizer)
    assert script.tally.ends[-1] == script.ends[-2]


def test_a_failure_ends_the_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script, optimizer = _Script(monkeypatch), Optimizer()
    script.train(UNTIMED + 10, 400_000, optimizer)
    script.tally.fail("here", ValueError("x"))
    script.train(10, 400_000, optimizer)
    assert script.tally.count()[::3] == (UNTIMED + 10, "none")


def test_an_optimizer_with_the_id_of_one_that_is_gone_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, optimizers = _Script(monkeypatch), [Optimizer()]
    script.train(UNTIMED + 10, 400_000, optimizers[0])
    joined: list[object] = []
    script.tally.joins = joined.append
    gone = id(optimizers.pop())
    kept = [Optimizer() for _ in range(100)]
    same = next((each for each in kept if id(each) == gone), kept[0])
    script.train(1, 400_000, same)
    assert joined == [same]
    assert script.tally.count().steps == UNTIMED + 11


def test_short_mini_batches_that_become_long_are_seen_by_the_next_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, optimizer = _Script(monkeypatch), Optimizer()
    script.train(UNTIMED + WINDOW, 400_000, optimizer)
    script.tally.time_again()
    script.train(1, 400_000, optimizer)
    script.train(WINDOW, 10**9, optimizer)
    assert script.tally.count() == (UNTIMED + 2 * WINDOW + 1, 10**9, script.now, "optimizer")
    assert list(script.tally.ends) == script.ends[-WINDOW - 1 :]


def test_a_pause_is_no_mini_batch_while_they_are_only_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, optimizer = _Script(monkeypatch), Optimizer()
    script.train(UNTIMED + 10, 400_000, optimizer)
    script.now += 10**10
    script.tally.pass_over(10**10)
    assert script.tally.count().last_step_ns == script.now
    script.train(2 * UNTIMED, 400_000, optimizer)
    timing = script.tally.timing()
    assert timing is not None
    assert (timing["mean_ns"], timing["deviation_ns"]) == (400_000, 0)


@pytest.mark.parametrize("took_ns", [SHORT_NS, 10**8])
def test_long_mini_batches_are_all_timed(monkeypatch: pytest.MonkeyPatch, took_ns: int) -> None:
    script, optimizer = _Script(monkeypatch), Optimizer()
    script.train(2 * UNTIMED, took_ns, optimizer)
    assert list(script.tally.ends) == script.ends[-WINDOW - 1 :]


def test_mini_batches_of_a_gang_are_all_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    script, optimizer = _Script(monkeypatch), Optimizer()
    script.tally.own.turn(on=True)
    script.train(2 * UNTIMED, 400_000, optimizer)
    assert list(script.tally.ends) == script.ends[-WINDOW - 1 :]


def test_a_script_takes_over_while_mini_batches_are_only_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, optimizer = _Script(monkeypatch), Optimizer()
    script.train(UNTIMED + 10, 400_000, optimizer)
    script.tally.hand_over()
    for _ in range(WINDOW):
        script.now += 10**6
        script.tally.tick()
    assert script.tally.count() == (UNTIMED + 10 + WINDOW, 10**6, script.now, "cooperative")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_only_counted_is_counted_as_what_is_timed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optimizers come, go, and step alone or beside others, and reports are made in between."""
    found = []
    for short_ns in (SHORT_NS, 0):
        monkeypatch.setattr(step_counter, "SHORT_NS", short_ns)
        drawn, script, optimizers = random.Random(seed), _Script(monkeypatch), [Optimizer()]
        counts = []
        for _ in range(60):
            if drawn.random() < 0.2:
                optimizers.append(Optimizer())
            if drawn.random() < 0.3:
                del optimizers[drawn.randrange(len(optimizers))]
            if not optimizers or drawn.random() < 0.1:
                optimizers = [Optimizer()]
            if drawn.random() < 0.3:
                script.tally.time_again()
            some = drawn.sample(optimizers, drawn.randint(1, len(optimizers)))
            script.train(drawn.choice([1, 3, 100, 700]), 1_000, *some)
            counts.append(script.tally.count().steps)
        found.append(counts)
    assert found[0] == found[1]
