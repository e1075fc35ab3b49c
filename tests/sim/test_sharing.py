"""Sharing safety in simulation: small instances, and errors that must be noticed."""

from __future__ import annotations

import msgspec
import pytest

from skep.cells.decide import placement
from skep.cells.state import Cells
from skep_lab.studies import sharing
from skep_lab.studies.gpuquota import GpuQuota
from skep_lab.studies.mirror import BrokenError, Mirror
from skep_lab.studies.replay import Replay
from skep_lab.studies.tenants import CHAIN, FLOOD, SIZE, Plan, Settings, alone, draw

SMALL = Settings(tenants=3, days=0.5)


def shared(plan: Plan) -> tuple[Replay, Mirror]:
    mirror = Mirror(plan.cluster)
    run = Replay(plan, over_quota="opportunistic", watch=mirror.watch)
    run.run()
    return run, mirror


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_legal_is_granted_at_once(seed: int) -> None:
    print(f"seed {seed}")
    bad, priorities = seed % 2 * 4, seed > 1
    settings = msgspec.structs.replace(SMALL, spare_nodes=bad, priorities=priorities)
    plan = draw(seed, settings)
    run, mirror = shared(plan)
    judged = mirror.counts
    assert judged.legal == judged.placed + judged.reserved > 50
    assert run.preemptions == judged.victims
    assert bool(judged.lower) <= priorities
    assert bool(plan.troubles) == bool(bad)
    assert not mirror.ill or plan.troubles


def test_the_same_seed_is_the_same_experiment() -> None:
    first, second = (shared(draw(7, SMALL))[0] for _ in range(2))
    assert list(first.served.values()) == list(second.served.values())


def test_a_private_cluster_is_the_tenants_cells() -> None:
    plan = draw(3, SMALL)
    for vc, owned in plan.cluster.vcs.items():
        own = alone(plan, vc)
        assert list(own.cluster.vcs) == [vc]
        assert own.cluster.vcs[vc] == owned
        gpus = sum(SIZE[quota.level] * quota.count for quota in owned.cells)
        racks = len(own.cluster.chains[CHAIN].nodes) * SIZE["node"] // SIZE["rack"]
        assert (racks - 1) * SIZE["rack"] < gpus <= racks * SIZE["rack"]
        assert all(job.vc == vc and not job.opportunistic for job in own.jobs)


def test_a_scheduler_that_spares_the_flood_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = placement.find_placement

    def spare(cells: Cells, *arguments: object) -> object:
        found = find(cells, *arguments)  # type: ignore[arg-type]
        return None if found is not None and found.victims else found

    monkeypatch.setattr(placement, "find_placement", spare)
    with pytest.raises(BrokenError, match="its cells can hold it"):
        shared(draw(0, SMALL))


def test_a_scheduler_that_gives_more_than_is_owned_is_noticed() -> None:
    plan = draw(0, SMALL)
    mirror = Mirror(plan.cluster)
    vc = next(vc for vc in plan.cluster.vcs if vc != FLOOD)
    mirror.total[vc] = {1: 1}
    run = Replay(plan, over_quota="opportunistic", watch=mirror.watch)
    with pytest.raises(BrokenError, match=f"{vc} does not have"):
        run.run()


def test_tenants_who_do_not_borrow_are_served_as_if_alone() -> None:
    plan = draw(2, SMALL)
    plan = plan._replace(jobs=[job for job in plan.jobs if not job.opportunistic])
    run = Replay(plan, over_quota="wait")
    run.run()
    for vc in plan.cluster.vcs:
        own = Replay(alone(plan, vc), over_quota="wait")
        own.run()
        mine = [each for each in run.served.values() if each.job.vc == vc]
        assert mine == list(own.served.values()), vc


def test_quotas_in_gpus_end_every_job() -> None:
    plan = draw(1, SMALL)
    run = GpuQuota(plan)
    run.run()
    done = [each for each in run.served.values() if not each.job.opportunistic]
    assert all(each.delay >= each.waited >= 0 for each in done)
    run.queues.clear()
    assert min(run.firm) >= 0
    assert min(run.soft) >= 0
    assert not any(run.used.values())


@pytest.mark.slow
def test_the_command_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seeds", "2", "--tenants", "2", "--days", "0.3"]
    assert sharing.main(arguments) == 0
    assert "legal requests" in capsys.readouterr().out
    assert sharing.main([*arguments, "--json"]) == 0
    summary = msgspec.json.decode(capsys.readouterr().out, type=sharing.Summary)
    assert summary.seeds == 2
    assert summary.judged.legal > 0
    with pytest.raises(SystemExit):
        sharing.main(["--seeds", "0"])


def test_a_broken_promise_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Mirror, "legal", lambda *_, **__: True)
    assert sharing.main(["--seeds", "1", "--tenants", "3", "--days", "0.5"]) == 1
    assert "its cells can hold it" in capsys.readouterr().out
