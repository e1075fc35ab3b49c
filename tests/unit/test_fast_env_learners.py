"""The environments of SCHED² and DL² for learners."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import warnings
from typing import Any

import numpy as np
import pytest

from tests import fast_env_kit  # noqa: F401  before the fast environment

from gymnasium.utils.env_checker import check_env  # isort: skip
from skep_lab.fast_env import dl2, draw, engine, places, sched2  # isort: skip
from skep_lab.fast_env.arrays import JOB, NODE, NUM, PHASE  # isort: skip
from skep_lab.fast_env.environments import Dl2Env, Sched2Env  # isort: skip

SMALL = sched2.Options(jobs=30, window=4, nodes=(3,), interval_s=300.0)
HARD = SMALL._replace(
    nodes=(2, 2),
    kind_speeds=(1.0, 0.5),
    burst=5.0,
    burst_part=0.5,
    told_sigma=0.5,
    told_after_s=60.0,
    fault_every_s=1500.0,
    start_s=20.0,
    stop_s=5.0,
    checkpoint_every_s=600.0,
)
FEW = dl2.Options(jobs=12, window=5, nodes=(4,), interval_s=600.0)
ROUGH = FEW._replace(
    nodes=(2, 2),
    kind_speeds=(1.0, 0.5),
    bundle=True,
    burst=4.0,
    burst_part=0.5,
    speed_error=0.3,
    told_error=0.2,
    told_after_slots=1,
    fault_part=0.1,
    checkpoint_slots=2,
    start_s=30.0,
    resume_s=20.0,
    resize_s=10.0,
)


def first_possible(mask: Any) -> Any:
    return np.argmax(mask, axis=1)


def check_cells(batch: sched2.Batch) -> None:
    """Everything that is held is held once, and what is shown is what is held."""
    state = batch.state
    for b in range(len(state.num)):
        held = np.zeros(state.nodes.shape[1], np.int64)
        for j in range(state.jobs.shape[1]):
            for p in range(state.jobs[b, j, JOB.parts]):
                held[state.held[b, j, p, 0]] += state.held[b, j, p, 1]
        assert (state.nodes[b, :, NODE.free] == state.nodes[b, :, NODE.size] - held).all()
        assert ((state.until[b] > 0).sum(axis=1) == held).all()
        assert (np.diff(state.until[b], axis=1) <= 0).all()
        assert state.num[b, NUM.gpus_free] == state.nodes[b, :, NODE.free].sum()
        queue = state.queue[b, : state.num[b, NUM.queued]]
        assert (state.jobs[b, queue, JOB.phase] == PHASE.waiting).all()
        gpus = state.jobs[b, queue, JOB.size_now] * state.jobs[b, queue, JOB.each]
        assert state.num[b, NUM.gpus_waited] == gpus.sum()


@pytest.mark.parametrize("options", [SMALL, HARD])
def test_every_job_of_sched2_ends_and_what_is_held_adds_up(options: sched2.Options) -> None:
    batch = sched2.Batch(2, options)
    sight, ended = batch.reset(np.array([1, 2])), np.zeros(2)
    for number in range(400):
        assert sight.observation.min() >= 0.0
        assert sight.observation.max() <= 1.0
        taken = batch.state.nodes[:, :, NODE.free] < batch.state.nodes[:, :, NODE.size]
        assert (sight.mask[:, -1] | ~taken.any(1)).all(), "only an empty cluster may not be held"
        assert sight.mask.any(1).all()
        sight = batch.step(first_possible(sight.mask))
        ended += sight.done
        assert (sight.reward >= 0.0).all()
        assert (sight.reward <= 1.0).all()
        if number % 20 == 0:
            check_cells(batch)
    assert (ended >= 1).all()
    assert (sight.finished[:, 1] > 0.0).all()
    if options is SMALL:
        assert (sight.finished[:, 1] <= 1.0).all()


@pytest.mark.parametrize("options", [FEW, ROUGH])
def test_every_job_of_dl2_ends_and_rewards_add_up(options: dl2.Options) -> None:
    batch = dl2.Batch(2, options)
    sight, ended, total = batch.reset(np.array([1, 2])), np.zeros(2), np.zeros(2)
    for _ in range(4000):
        assert sight.mask[:, -1].all()
        sight = batch.step(first_possible(sight.mask))
        total += np.where(ended == 0, sight.reward, 0.0)
        ended += sight.done
        assert (sight.slot_ended | (sight.reward == 0.0)).all()
        assert sight.observation.min() >= 0.0
        assert sight.observation.max() <= 1.0
        nodes = batch.state.alike.sum(axis=(2, 3))
        assert (nodes == np.array(options.nodes)).all()
        if (ended > 0).all():
            break
    assert (ended > 0).all()
    # Each job's epochs add up to all of them, however often a fault took some back.
    assert total == pytest.approx(np.full(2, options.jobs))


def test_a_job_that_fits_one_server_has_effectiveness_one_and_a_spread_one_less() -> None:
    options = SMALL._replace(nodes=(2,), node_gpus=2, sizes=(2,), size_weights=(1.0,))
    batch = sched2.Batch(1, options)
    batch.reset(np.array([3]))
    assert batch.step(np.array([0])).reward[0] == 1.0
    batch.reset(np.array([3]))
    state = batch.state
    for node in range(2):
        places.hold(state, 0, node, 1)
    reward = batch.step(np.array([0])).reward[0]
    model = state.jobs[0, 0, JOB.model]
    assert reward == pytest.approx(1.0 / options.slowdown[model])


def test_a_decision_that_is_not_possible_is_to_hold() -> None:
    results = []
    for action in (SMALL.window, SMALL.window - 1, 99, -1):
        batch = sched2.Batch(1, SMALL)
        batch.reset(np.array([5]))
        sight = batch.step(np.array([action]))
        results.append((sight.observation.tolist(), sight.reward.tolist()))
    assert results.count(results[0]) == 4


def test_dl2_stops_at_once_where_nothing_is_left() -> None:
    batch = dl2.Batch(1, FEW._replace(nodes=(1,)))
    sight = batch.reset(np.array([1]))
    sight = batch.step(np.array([2]))  # A worker and a server: 4 of 8 CPUs.
    assert not sight.slot_ended[0]
    assert batch.step(np.array([2])).slot_ended[0]


def test_optimus_speeds_have_their_best_size_inside() -> None:
    table = dl2.optimus_speeds(16)
    assert table[:, 4, 4] == pytest.approx(np.ones(len(dl2.MODELS)))
    assert (table[:, 0] == 0).all()
    assert (table[:, :, 0] == 0).all()
    assert (table[:, 16, 16] < table.max(axis=(1, 2))).all()


def test_costs_of_dl2_take_a_part_of_the_slot() -> None:
    def done(**costs: Any) -> float:
        batch = dl2.Batch(1, FEW._replace(**costs))
        batch.reset(np.array([4]))
        batch.step(np.array([2]))
        batch.step(np.array([3 * FEW.window]))
        return float(batch.state.work[0, 0, dl2.WORK.done])

    assert done(start_s=600.0) == pytest.approx(done() / 2)
    assert done(resize_s=600.0) == done()


def test_bursts_keep_the_mean_interval_and_come_together() -> None:
    def gaps(**more: Any) -> Any:
        batch = sched2.Batch(4, SMALL._replace(jobs=1000, interval_sigma=0.0, **more))
        draw.draw(batch.state, batch.workload, np.arange(4))
        return np.diff(batch.state.jobs[:, :, JOB.at] / 1e9)

    smooth, bursts = gaps(), gaps(burst=10.0, burst_part=0.6)
    assert smooth.mean() == pytest.approx(300.0, rel=0.1)
    assert bursts.mean() == pytest.approx(300.0, rel=0.25)
    assert np.median(bursts) < np.median(smooth) / 2


def test_equal_seeds_give_equal_episodes_and_others_do_not() -> None:
    def play(seed: int) -> list[float]:
        batch = sched2.Batch(1, HARD)
        batch.reset(np.array([seed]))
        batch.play_random(150)
        return [*batch.sight.observation[0].tolist(), *batch.sight.finished[0].tolist()]

    assert play(7) == play(7)
    assert play(7) != play(8)


@pytest.mark.parametrize("env", [Sched2Env(SMALL), Sched2Env(HARD), Dl2Env(FEW), Dl2Env(ROUGH)])
def test_gymnasium_accepts_the_environments(env: Sched2Env | Dl2Env) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*not.*spec.*", UserWarning)
        check_env(env, skip_render_check=True)
    seen, info = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    assert (seen == again).all()
    assert (info["action_mask"] == env.action_masks()).all()
    done, steps = False, 0
    while not done:
        action = np.int64(np.argmax(env.action_masks()))
        _, _, done, truncated, info = env.step(action)
        assert not truncated
        steps += 1
    assert info["finished"][0] > 0.0
    assert steps > env.batch.options.jobs


@pytest.mark.parametrize(
    "options, reason",
    [
        (SMALL._replace(window=0), "window"),
        (SMALL._replace(nodes=()), "nodes"),
        (SMALL._replace(kind_speeds=()), "kind_speeds"),
        (SMALL._replace(sizes=(64,), size_weights=(1.0,)), "sizes fit"),
        (SMALL._replace(burst_part=1.0), "burst"),
        (SMALL._replace(start_s=-1.0), "0 or more"),
        (FEW._replace(worker_gpus=3), "a node holds a worker"),
        (FEW._replace(kind_speeds=(0.0,)), "kind_speeds"),
        (FEW._replace(told_error=1.0), "errors"),
        (FEW._replace(slot_s=0.0), "slot_s"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: sched2.Options | dl2.Options, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        _ = (
            sched2.Batch(1, options)
            if isinstance(options, sched2.Options)
            else dl2.Batch(1, options)
        )


def test_a_batch_has_environments_and_a_table_its_shape() -> None:
    with pytest.raises(ValueError, match="envs is 1 or more"):
        sched2.Batch(0)
    with pytest.raises(ValueError, match="envs is 1 or more"):
        dl2.Batch(0)
    with pytest.raises(ValueError, match=r"shape \(models, 17, 17\)"):
        dl2.Batch(1, FEW, np.ones((2, 3, 3)))
    assert sched2.RULE.order == engine.HANDS_OFF


PLAYS = """
import json, sys
import numba
numba.config.DISABLE_JIT = sys.argv[1] == "interpreted"
import numpy as np
from skep_lab.fast_env import dl2, sched2
said = []
for batch in (
    sched2.Batch(2, sched2.Options(jobs=40, fault_every_s=3000.0, burst=3.0, burst_part=0.3)),
    dl2.Batch(2, dl2.Options(jobs=20, speed_error=0.2, fault_part=0.1)),
):
    batch.reset(np.array([1, 2]))
    batch.play_random(300)
    sight = batch.sight
    said.append([each.tolist() for each in (sight.observation, sight.reward, sight.finished)])
print(json.dumps(said))
"""


@pytest.mark.nightly
def test_compiled_and_interpreted_kernels_agree() -> None:
    def play(how: str) -> Any:
        words = [sys.executable, "-c", textwrap.dedent(PLAYS), how]
        return json.loads(subprocess.run(words, check=True, capture_output=True).stdout)

    assert play("compiled") == play("interpreted")
