"""Facts carry the whole outcome: a log leads to the same state whatever the code would decide."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from skep.cells.check import check_cells
from skep.machines.allocator import AllocatorMachine
from skep.wire.admin import SetVcs
from skep.wire.bearing import Fate, RulesRaised
from skep.wire.facts import CellsSet, EpochBegan, JobFate
from tests import effort
from tests.fold_kit import LOGS, Facts_, Story, digest, digests, replayed, stored, stored_digest
from tests.kit import admitted, allocator, facts_of, joined, started, vcs
from tests.perturbed import PERTURBATIONS, Patches, nothing_chosen, perturbed
from tests.replay_kit import history, log_of

SEEDS = (*range(18), 53, 58)
"""Of the last two sets lose their leader while several others could lead."""
FAULTS = (7,)
"""Histories of the fault simulator, of which the state is looked at only at the end of each log."""


@cache
def logs() -> list[tuple[list[Facts_], list[str]]]:
    """Return logs, and the digests of the state after each of their records."""
    made = [Story(seed).records for seed in SEEDS]
    for seed in FAULTS:
        records = log_of(history(seed), "allocator").records
        made.append([tuple(record.facts) for record in records])
    return [(records, list(digests(records))) for records in made]


@pytest.mark.parametrize(
    "perturbation",
    effort.slow_after(3, [nothing_chosen, *PERTURBATIONS]),
    ids=lambda each: each.__name__,
)
def test_a_log_is_read_as_the_same_state_whatever_would_be_decided(
    perturbation: Callable[[], Patches],
) -> None:
    known = logs()
    with perturbed(perturbation):
        for at, (records, then) in enumerate(known):
            for number, (now, before) in enumerate(zip(digests(records), then, strict=True)):
                assert now == before, (at, number, records[number])


@pytest.mark.parametrize("perturbation", PERTURBATIONS, ids=lambda each: each.__name__)
def test_a_perturbation_changes_what_is_decided(perturbation: Callable[[], Patches]) -> None:
    known = logs()
    for seed, (records, _) in reversed(list(zip(SEEDS, known, strict=False))):
        with perturbed(perturbation):
            if Story(seed).records != records:
                return
    raise AssertionError


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.gz")), ids=lambda path: path.name)
def test_logs_by_rules_1_are_read_by_their_own_frozen_choosers(path: Path) -> None:
    log = stored(path)
    with perturbed(nothing_chosen):
        assert list(digests(log.records, stored_digest)) == log.digests


def test_a_log_by_rules_1_goes_on_by_rules_2() -> None:
    restated = 0
    for path in sorted(LOGS.glob("*.gz")):
        records = stored(path).records
        story = Story.after(records, seed=7)
        raised = [
            fact for facts in story.records for fact in facts if isinstance(fact, RulesRaised)
        ]
        began = [
            fact.rules for facts in story.records for fact in facts if isinstance(fact, EpochBegan)
        ]
        assert began[0] == 1
        assert began[-1] == 2
        assert len(raised) == 1
        restated += len(raised[0].bad_cells)
        check_cells(story.machine.state.cells)
        with perturbed(nothing_chosen):
            last = list(digests(story.records))[-1]
        assert last == digest(story.machine)
    assert restated > 0


# --- one case, whole -----------------------------------------------------------------------------


def test_whoever_was_demoted_by_a_smaller_quota_stays_so() -> None:
    decide = allocator(joined(gpus=4), nlp=4)
    for number, gpus in enumerate((1, 1, 2), 1):
        decide(admitted(number, gpus=gpus))
        decide(started(f"j{number}"))
    facts = facts_of(decide(SetVcs(vcs=vcs(nlp=2))))
    (fact,) = [fact for fact in facts if isinstance(fact, CellsSet)]
    assert fact.fates == (JobFate(job="j3", fate="demoted", attempt=1),)
    assert [(each.job, each.fate) for each in fact.carried] == [
        ("j1", Fate.KEPT),
        ("j2", Fate.KEPT),
        ("j3", Fate.DEMOTED),
    ]

    def guaranteed(machine: AllocatorMachine) -> list[str]:
        return [hold.job for hold in machine.state.cells.holds.values() if hold.guaranteed]

    assert guaranteed(decide.machine) == ["j1.1", "j2.1"]
    for perturbation in PERTURBATIONS:
        with perturbed(perturbation):
            assert guaranteed(replayed([tuple(decide.facts)])) == ["j1.1", "j2.1"]
