"""Probes in the production machines: families become promisable, at a small part of GPU time."""

from skep.ledger import probes
from skep_lab.studies.probes import NODE_GPUS, NODES, WORKERS, day, judged


def test_probes_make_a_family_promisable_within_their_part() -> None:
    hours, seed = 3.0, 0
    without, found = (day(seed, hours, probe=probe) for probe in (False, True))
    assert not without.begun
    assert all(
        each.placement.gpus == WORKERS for points in without.families.values() for each in points
    ), "without probes each job is measured at the size of its spec"
    assert not any(judged(without.families, kind).promised for kind in without.families)

    known = {kind: judged(found.families, kind) for kind in found.families}
    assert any(each.promised == each.placements for each in known.values()), known
    assert found.verdicts.get("undone, probed", 0) >= 3, found.verdicts
    assert found.worst_ns <= probes.most(NODES * NODE_GPUS)
    # It costs the jobs little: each probe stops one twice.
    assert found.taken_s < without.taken_s * 1.05
