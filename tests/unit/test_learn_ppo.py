"""PPO on the environment of Skep's own learner: what it keeps of episodes, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest

from skep.learn import modelfile
from skep.learn.candidates import look
from skep.learn.net import SetNet
from skep_services.learning import learners
from skep_services.learning.problems import LearningError
from tests import fast_env_kit  # noqa: F401  before the fast environment

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gymnasium.utils.env_checker import check_env  # isort: skip  # noqa: E402
from skep_lab.fast_env import queue, scores, tape  # isort: skip  # noqa: E402
from skep_lab.fast_env.environments import SkepEnv  # isort: skip  # noqa: E402
from skep_lab.learn import evolve, ppo, protocol, skep_env  # isort: skip  # noqa: E402
from skep_lab.learn.protocol import Setting  # isort: skip  # noqa: E402

SMALL = ppo.Settings(
    iterations=3,
    traces=1,
    episodes=2,
    keeps=1.0,
    batch=16,
    rate=0.01,
    temperature=0.5,
    tuning=1,
    every=2,
)


@pytest.fixture(autouse=True)
def few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the traces of the protocol as small as interpreted kernels need them."""
    monkeypatch.setattr(protocol, "JOBS_PER_NODE", 2)
    monkeypatch.setattr(protocol, "JOBS_MIN", 4)
    monkeypatch.setattr(protocol, "TRAIN_NODES", (2,))


def played(seed: int) -> tuple[ppo.Settings, ppo.Played]:
    """Return episodes of a random network."""
    chosen = SMALL._replace(start="random", temperature=1.0)
    weights = ppo.start_of(chosen, seed)
    return chosen, ppo.play(chosen, weights, np.random.default_rng(seed), chosen.temperature)


def test_equal_seeds_learn_alike_whether_they_were_stopped_or_not() -> None:
    settings = SMALL._replace(start="random", warm=1)
    whole = [progress.save() for progress in ppo.train(settings, 5)]
    rest = [progress.save() for progress in ppo.train(settings, 5, whole[0])]
    assert [each.step for each in rest] == [2, 3]
    assert rest[-1].numbers == whole[-1].numbers
    assert rest[-1].tensors.keys() == whole[-1].tensors.keys()
    for name, tensor in whole[-1].tensors.items():
        assert np.array_equal(tensor, rest[-1].tensors[name]), name
    skips = [each.tensors["net.skip.weight"] for each in (*whole, rest[-1])]
    assert [np.array_equal(skips[-1], each) for each in skips] == [False, False, True, True]


def test_a_run_makes_a_model_that_services_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skep_env, "RANGES_FROM", 1)
    *_, last = ppo.train(SMALL._replace(iterations=2, start="random"), 1)
    model = modelfile.load(ppo.model_of(last.save(), SMALL, 1))
    assert model.header.seeds == (1,)
    assert model.header.ranges.candidate
    best = ppo.best_of(last.save().tensors)
    assert np.array_equal(model.net.weights["skip.weight"], best["skip.weight"])


def test_costs_of_steps_add_up_to_what_jobs_took() -> None:
    rng = np.random.default_rng(3)
    case = (Setting("both", nodes=2), 3)
    jobs = protocol.draw(*case)
    batch = skep_env.batch_of([case])
    room = tape.tape_of(1, decisions=50, steps=2000, above=-np.inf)
    start = skep_env.net(evolve.weights_of(evolve.starts()))
    batch.play(start, noise=tape.noise_of(rng, 1000, 0.05), tape=room)
    (jct_s,) = batch.jct_s()
    assert jct_s.max() < 1e6
    steps = room.steps[: room.begins[1]]
    assert steps[:, tape.JCT].sum() == pytest.approx(jct_s.sum())
    alone = jobs.run.sum() / 1e9
    assert steps[:, tape.DELAY].sum() == pytest.approx(jct_s.sum() - alone)


def test_the_network_that_learns_says_what_production_says() -> None:
    settings, there = played(2)
    rng = np.random.default_rng(2)
    batch = skep_env.batch_of(skep_env.training_cases(rng, 1))
    shown, count = batch.shown, int(batch.shown.counts[0])
    first = int(there.tape.decisions[0, tape.STEP_AT])
    assert first == 0  # The very first decision was kept.
    seen = look(shown.raw[0, :count], shown.cluster[0].copy(), float(shown.now[0]))
    weights = ppo.start_of(settings, 2)
    found = seen.candidates
    scored, hold = SetNet(weights).forward(
        seen.jobs, seen.cluster, found.features, seen.waits, seen.holds
    )
    both = np.append(scored[found.possible], hold)
    with torch.no_grad():
        batch_of = ppo.batch_of(there, np.array([0]))
        logs, _value = ppo.Network(weights, 2).decide(batch_of, 1.0)
    assert logs[0].numpy() == pytest.approx(both - np.log(np.exp(both).sum()), abs=1e-4)


def test_moves_are_drawn_from_the_softmax_of_scores() -> None:
    batch = skep_env.batch_of([(Setting("elastic", nodes=2), 3)])
    shown, weights = batch.shown, evolve.weights_of(evolve.starts())
    net = scores.net_of(weights)
    noise = tape.noise_of(np.random.default_rng(4), 5003, 1.0)
    work = scores.work_of(8, net, noise=noise)
    count, drawn = int(shown.counts[0]), dict[tuple[float, float], int]()
    for _ in range(400):
        scores.best(shown.raw[0], count, shown.cluster[0], float(shown.now[0]), net, work)
        what = (-1.0, 0.0) if work.found[4] > work.found[0] else (work.found[1], work.found[2])
        drawn[what] = drawn.get(what, 0) + 1
    seen = look(shown.raw[0, :count], shown.cluster[0].copy(), float(shown.now[0]))
    found = seen.candidates
    scored, hold = SetNet(weights).forward(
        seen.jobs, seen.cluster, found.features, seen.waits, seen.holds
    )
    wanted = {(-1.0, 0.0): float(np.exp(hold))}
    for row, choice in np.argwhere(found.possible):
        wanted[float(row), found.workers[row, choice]] = float(np.exp(scored[row, choice]))
    total = sum(wanted.values())
    off = sum(abs(wanted[what] / total - drawn.get(what, 0) / 400) for what in wanted)
    assert len(wanted) > 3
    assert off / 2 < 0.1


def test_episodes_that_are_alike_cost_nothing_more_than_one_another() -> None:
    settings = SMALL._replace(episodes=3)
    weights = evolve.weights_of(evolve.starts())
    found = ppo.play(settings, weights, np.random.default_rng(1), 1e-9)
    assert len(found.cost) > 10
    assert np.abs(found.cost).max() < 1e-9
    alone = ppo.play(settings._replace(baseline="value"), weights, np.random.default_rng(1), 1e-9)
    assert np.abs(alone.cost).max() > 1e-3


@pytest.mark.parametrize("better", [True, False])
def test_what_costs_less_becomes_likelier(better: bool) -> None:
    settings, found = played(7)
    held = found.tape.decisions[: len(found.cost), tape.CHOSEN] < 0
    assert 0 < held.sum() < len(held)
    found = found._replace(cost=np.where(held == better, -1.0, 1.0))
    learner = ppo.Learner(settings, 7)
    (batch,) = [ppo.batch_of(found, np.arange(len(found.cost)))]

    def holds() -> float:
        with torch.no_grad():
            logs, _value = learner.net.decide(batch, settings.temperature)
        return float(logs[:, -1].exp().mean())

    before = holds()
    for _ in range(5):
        learner.learn([batch], warm=False)
    assert (holds() > before + 0.02) if better else (holds() < before - 0.02)


def test_wider_networks_begin_with_the_rule() -> None:
    _settings, found = played(3)
    batch = ppo.batch_of(found, np.arange(len(found.cost)))
    rule = ppo.start_of(SMALL._replace(start="rule"), 3)
    wide = ppo.start_of(SMALL._replace(start="wide"), 3)
    with torch.no_grad():
        said = [ppo.Network(weights, 3).decide(batch, 0.05)[0] for weights in (rule, wide)]
    assert torch.equal(*said)
    assert wide["head.0.weight"].any(1).all()
    assert not rule["head.0.weight"].any(1).all()


@pytest.mark.parametrize(
    "word, line",
    [
        (
            "start=roule",
            "--set start=roule: Invalid enum value 'roule': there are rule, wide, random",
        ),
        ("episodes=1", "--set episodes=1: Expected `int` >= 2"),
        ("temperature=0", "--set temperature=0: Expected `float` > 0.0"),
        ("keeps=2", "--set keeps=2: Expected `float` <= 1.0"),
        ("horizon=3", "no setting is called horizon: did you mean horizon_s?"),
    ],
)
def test_wrong_settings_are_refused_in_a_line(word: str, line: str) -> None:
    with pytest.raises(LearningError) as refused:
        learners.chosen(learners.find("ppo").settings, [word])
    assert str(refused.value) == line


def test_gymnasium_plays_a_trace_to_its_end() -> None:
    def draw(seed: int) -> queue.Batch:
        return skep_env.batch_of([(Setting("locality", nodes=2), seed % 100)])

    check_env(SkepEnv(draw, rows=4), skip_render_check=True)
    env, total, done = SkepEnv(draw, rows=4), 0.0, False
    _views, info = env.reset(seed=3)
    while not done:
        action = np.int64(np.argmax(info["action_mask"]))
        views, reward, done, truncated, info = env.step(action)
        total += reward
        assert not truncated
        assert env.observation_space.contains(views)
    (jct_s,) = env.batch.jct_s()
    assert -total * 3600 == pytest.approx(jct_s.sum())
