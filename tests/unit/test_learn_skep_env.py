"""The environment of Skep's own learner: its rows, its compiled network, and the learner on it."""

from __future__ import annotations

import numpy as np
import pytest

from skep.learn import columns as c
from skep.learn.candidates import CHOICES, look
from skep.learn.features import times
from skep.learn.net import SetNet, Sizes, random_weights
from skep.learn.shares import share_out
from skep_lab.traces.heldout import is_held_out
from skep_lab.workloads.situation import Situation
from skep_lab.workloads.table import fewest
from tests import fast_env_kit  # noqa: F401  before the fast environment

from skep_lab.fast_env import scores  # isort: skip
from skep_lab.learn import evolve, protocol, skep_env  # isort: skip
from skep_lab.learn.protocol import Setting  # isort: skip

CASES = [
    (Setting(family, bursts=True, error=0.2, nodes=nodes), number)
    for number, (family, nodes) in enumerate((("both", 3), ("elastic", 2), ("locality", 4)))
]


def test_numbers_of_traces_have_one_use_each() -> None:
    uses = protocol.TRAINING, protocol.TUNING, protocol.HELD_OUT
    numbers = [number for use in uses for number in use]
    assert len(numbers) == len({*numbers})
    with pytest.raises(ValueError, match="neither of training nor of tuning nor held out"):
        protocol.draw(Setting(), protocol.TUNING.stop)
    assert is_held_out(protocol.seed_of(protocol.HELD_OUT.start))
    assert not is_held_out(protocol.seed_of(protocol.TUNING.start))


def test_a_trace_is_the_same_for_both_simulators_and_states_what_it_states() -> None:
    setting = Setting("both", error=0.3, nodes=4)
    drawn = protocol.draw(setting, 7)
    trace, truth = protocol.trace_of(drawn, "x"), protocol.TruthOf(drawn)
    assert [job.run_time for job in trace.jobs] == drawn.run.tolist()
    assert [job.said_time for job in trace.jobs] == drawn.told_run.tolist()
    off = drawn.told_run / drawn.run
    assert 0.69 < off.min() < 0.8
    assert 1.2 < off.max() < 1.31
    for number, job in enumerate(trace.jobs[:20]):
        spread = fewest(job.gpus, protocol.NODE_GPUS)
        where = Situation("v100", spread, job.workers)
        assert truth.speed(job, where) == pytest.approx(1.0), number


def test_rows_shares_features_and_scores_are_those_of_production() -> None:
    batch = skep_env.batch_of(CASES)
    weights = random_weights(3, Sizes(8, 8))
    net, kernel = SetNet(weights), scores.net_of(weights)
    work = scores.work_of(batch.state.jobs.shape[1], kernel, ranges=True)
    rng, seen = np.random.default_rng(1), 0
    for _ in range(150):
        moves = np.full((len(CASES), 1, 3), -1, np.int64)
        for b in range(len(CASES)):
            shown, count = batch.shown, int(batch.shown.counts[b])
            if not count or shown.done[b]:
                continue
            raw, cluster, now = shown.raw[b, :count], shown.cluster[b].copy(), float(shown.now[b])
            view = look(raw, cluster, now)
            shares = share_out(raw, cluster, times(raw, now))
            scored, hold = net.forward(
                view.jobs, view.cluster, view.candidates.features, view.waits, view.holds
            )
            possible = view.candidates.possible
            scored = np.where(possible, scored, -np.inf)
            scores.best(shown.raw[b], count, shown.cluster[b], now, kernel, work)
            assert shown.cluster[b] == pytest.approx(cluster)
            assert work.shares[:count] == pytest.approx(shares.workers)
            assert work.shares[-1] == pytest.approx(shares.price[0])
            assert work.found[4] == pytest.approx(float(hold), abs=1e-4)
            if possible.any():
                row, _place = divmod(int(scored.argmax()), CHOICES)
                assert work.found[0] == pytest.approx(float(scored.max()), abs=1e-4)
                assert work.found[1] == row
                chosen = np.argwhere(possible)[rng.integers(possible.sum())]
                kind = view.candidates.kind[tuple(chosen)]
                moves[b, 0] = chosen[0], view.candidates.workers[tuple(chosen)], kind == 1
                seen += 1
        batch.step(moves)
    assert seen > 100


def test_a_network_plays_every_job_to_its_end_and_equal_seeds_play_alike() -> None:
    start = evolve.starts()
    net = skep_env.net(evolve.weights_of(start))
    cases = [(Setting("both", nodes=2), 1)]
    first, second = (skep_env.mean_jct_s([net], cases) for _ in range(2))
    assert first == second
    batch = skep_env.batch_of(cases)
    batch.play(net)
    jobs = protocol.draw(*cases[0])
    (jct_s,) = batch.jct_s()
    assert len(jct_s) == len(jobs.at)
    assert (jct_s > 0).all()


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def score(nets: list[scores.Net], cases: list[object], _jobs: object = None) -> protocol.Floats:
        skips = np.array([net.skip for net in nets])
        made: protocol.Floats = np.exp(((skips - 1.0) ** 2).sum(1))[:, None]
        return np.repeat(made, len(cases), axis=1)

    monkeypatch.setattr(evolve, "mean_jct_s", score)
    settings = evolve.Settings(generations=12, population=8, traces=3, tuning=3, every=4)
    whole = [progress.save() for progress in evolve.train(settings, 5)]
    half = next(each for each in whole if each.step == 6)
    rest = [progress.save() for progress in evolve.train(settings, 5, half)]
    assert rest[-1].step == whole[-1].step == 12
    for name, tensor in whole[-1].tensors.items():
        assert np.array_equal(tensor, rest[-1].tensors[name]), name
    assert whole[-1].numbers == rest[-1].numbers
    assert whole[-1].numbers["score"] < -0.1


def test_columns_that_the_environment_writes_are_those_of_production() -> None:
    batch = skep_env.batch_of([(Setting("both", nodes=2), 3)])
    row = batch.shown.raw[0, 0]
    sizes = c.sizes_of(1, protocol.WORKERS_MAX, int(row[c.WORKERS]))
    assert row[c.SIZE : c.SIZE + c.SIZES].tolist() == [*sizes, *[0.0] * (c.SIZES - len(sizes))]


def test_a_network_that_never_places_a_job_comes_to_an_end() -> None:
    holds = evolve.weights_of(evolve.starts())
    holds["hold.2.bias"][:] = 100.0
    batch = skep_env.batch_of([(Setting("locality", nodes=2), 1)])
    batch.play(skep_env.net(holds))
    assert batch.shown.done.all()
    (jct_s,) = batch.jct_s()
    assert (jct_s == 30 * 86_400.0).all()
