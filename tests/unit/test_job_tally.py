"""Counting rules, without torch: optimizers here are plain objects."""

import gc
from typing import Any

from skep_job.observe.step_counter import (
    FAILURE_CHARACTERS_MAX,
    PHASE,
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
