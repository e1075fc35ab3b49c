"""Idle GPUs that are lent by default make no job later than strict FIFO does."""

from __future__ import annotations

import msgspec
import pytest

from skep.machines.allocator.placement import lending
from skep.machines.allocator.policies import policy_views
from skep.units import Duration, in_seconds
from skep_lab.simulator.settings import IDEAL, Costs
from skep_lab.studies import strict

ANOMALY_SEED = 185
"""A mixed world in which a job that ended sooner has others later, also under strict FIFO."""


@pytest.mark.parametrize("kind", strict.KINDS)
@pytest.mark.parametrize("costs", [IDEAL, strict.COSTS], ids=["ideal", "costs"])
def test_no_job_is_later_and_no_gpu_idles(kind: strict.Kind, costs: Costs) -> None:
    left = lent = idle = 0.0
    for seed, can in enumerate(("observed", "cooperative", "driver", "stores", "observed")):
        found = strict.compare(seed, kind, costs, strict.CAN[can])
        print(f"seed {seed}, {can}: {found}")
        assert not found.later, found.told
        left, lent, idle = left + found.left, lent + found.idle_lent_s, idle + found.idle_strict_s
    assert left > 5, "jobs were taken back"
    assert idle > 1000, "GPUs idled under strict FIFO"
    # GPUs are kept for a suspended job while others leave them, which takes no time if ideal.
    assert lent <= (idle / 100 if costs.suspend_s else 0)


@pytest.mark.parametrize("seed", [19, 36, 64])
def test_jobs_that_stand_without_gpus_keep_their_place(seed: int) -> None:
    """In these worlds later jobs once had the cells of one that was about to go on."""
    found = strict.compare(seed, "even", IDEAL, strict.CAN["observed"])
    assert not found.later, found.told
    assert found.left


def test_jobs_that_cannot_be_stored_are_no_later_either() -> None:
    for seed in range(3):
        print(f"seed {seed}")
        found = strict.compare(seed, "even", IDEAL, strict.CAN["opaque"])
        assert not found.later, found.told


def test_a_scheduler_that_lets_later_jobs_overtake_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_views, "lines", lambda _machine: {})
    found = [strict.compare(seed, "even", IDEAL) for seed in range(8)]
    assert sum(each.later for each in found) > 0


def test_a_scheduler_that_lends_to_none_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "lend", lambda *_: 0)
    found = strict.compare(0, "even", IDEAL)
    assert found.idle_lent_s == found.idle_strict_s > 0


def test_strict_fifo_itself_is_later_where_an_earlier_job_is_gone() -> None:
    cluster, trace = strict.draw(ANOMALY_SEED, "mixed")
    whole = strict.run(cluster, trace, "wait", IDEAL)
    rest = msgspec.structs.replace(trace, jobs=trace.jobs[:7] + trace.jobs[8:])
    fewer = strict.run(cluster, rest, "wait", IDEAL)
    # j11 of the whole is j10 of the rest.
    later = in_seconds(Duration(fewer.rows["j10"].had_cells - whole.rows["j11"].had_cells))
    assert later == pytest.approx(137.5, abs=0.1)


def test_the_command_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert strict.main(["--seeds", "1", "--kind", "even", "--ideal"]) == 0
    assert "0 jobs later" in capsys.readouterr().out
    assert strict.main(["--seeds", "1", "--json"]) == 0
    assert [msgspec.json.decode(line)["kind"] for line in capsys.readouterr().out.splitlines()] == [
        "even",
        "mixed",
    ]
