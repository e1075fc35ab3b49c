"""DL²'s learner, its baselines and its protocol."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests import fast_env_kit, needs  # noqa: F401  before the fast environment

needs.require("torch")

import torch  # isort: skip  # noqa: E402
from skep_lab.fast_env import dl2, dl2_rules  # isort: skip  # noqa: E402
from skep_lab.fast_env.dl2 import JOB, SUM, WORK  # isort: skip  # noqa: E402
from skep_lab.learn import dl2_agent, dl2_figures, dl2_main  # isort: skip  # noqa: E402
from skep_lab.learn import dl2_protocol, dl2_runs  # isort: skip  # noqa: E402

TINY = dl2.Options(jobs=5, window=3, nodes=(2,), most=3, median_s=3000.0, sigma=0.5)
SEED_OF_BOTH = 1
"""Its first three jobs have models of the first and of the second four."""
RUN = dl2_agent.PAPER._replace(
    world=TINY,
    envs=2,
    neurons=8,
    samples=32,
    passes=2,
    steps=8,
    batch=8,
    replay=64,
    report_every=4,
    critic_first=2,
)


def weights(progress: Any) -> list[Any]:
    saved = progress.save()
    return [saved.tensors[name].tolist() for name in sorted(saved.tensors)]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"clusters": 2, "prioritised": False, "correction": "ratio", "reward": "gain"},
        {"norm": True, "type_number": True, "neurons": 0, "correction": "stored", "value": "slot"},
        {"replay": 0, "critic": False, "bundle_action": False, "reward": "job", "loss": "square"},
    ],
)
def test_a_run_that_is_resumed_ends_as_one_that_was_not(changed: dict[str, Any]) -> None:
    settings = RUN._replace(**changed)
    whole = list(dl2_agent.train(settings, 7))
    half = next(each for each in dl2_agent.train(settings, 7) if each.step >= 4)
    saved = half.save()
    numbers = json.loads(json.dumps(saved.numbers))
    rest = list(dl2_agent.train(settings, 7, saved._replace(numbers=numbers)))
    assert [each.step for each in whole][-1] == rest[-1].step
    assert whole[-1].values == rest[-1].values
    assert weights(whole[-1]) == weights(rest[-1])
    other = list(dl2_agent.train(settings, 8))
    assert weights(whole[-1]) != weights(other[-1])


@pytest.mark.parametrize("norm", [False, True])
def test_a_warm_up_that_is_resumed_ends_as_one_that_was_not(norm: bool) -> None:
    settings = RUN._replace(passes=25, norm=norm)
    whole = list(dl2_agent.train(settings, 7))
    assert [each.step for each in whole] == [-20, -10, 0, 4, 8]
    for stop in (-20, -10, 0):
        part = next(each for each in dl2_agent.train(settings, 7) if each.step == stop)
        saved = part.save()
        numbers = json.loads(json.dumps(saved.numbers))
        rest = list(dl2_agent.train(settings, 7, saved._replace(numbers=numbers)))
        assert [each.step for each in rest] == [each.step for each in whole if each.step > stop]
        assert weights(whole[-1]) == weights(rest[-1])
    assert not any(name.startswith("warm") for name in whole[-1].save().tensors)


def test_warm_up_makes_the_policy_decide_as_its_teacher() -> None:
    settings = RUN._replace(passes=60, steps=0, samples=128, neurons=32)
    learner = dl2_agent.Learner(settings, 1)
    losses = list(learner.warm(1))
    assert losses[-1] < losses[0] / 2
    seen, mask, wanted = dl2_agent.teach(settings, 1)
    actions, _ = learner.policy.choose(seen, mask, None)
    assert np.mean(actions == wanted) > 0.8
    # The teacher goes on until nothing fits: no label says to stop.
    assert (wanted < 3 * TINY.window).all()


@pytest.mark.parametrize("rng", [None, np.random.default_rng(1)])
def test_only_possible_actions_are_chosen(rng: np.random.Generator | None) -> None:
    policy = dl2_agent.Learner(RUN._replace(bundle_action=False), 1).policy
    seen = np.random.default_rng(2).random((500, 3 * (8 + dl2.FEATURES)), np.float32)
    mask = np.random.default_rng(3).random((500, 10)) < 0.4
    mask[:, -1] = True
    possible = policy.possible(mask)
    actions, logs = policy.choose(seen, possible, rng)
    assert mask[np.arange(500), actions].all()
    assert not ((actions % 3 == 2) & (actions < 9)).any()
    assert np.exp(logs).sum(1) == pytest.approx(np.ones(500), abs=1e-5)


def test_exploration_gives_a_poor_job_what_it_lacks() -> None:
    settings = RUN._replace(explore=0.25, world=TINY._replace(most=16))
    seen = np.zeros((400, 3, 13), np.float32)
    seen[:200, 1, -2] = 2 / 16  # Two workers and no server.
    seen[200:, 2, -2:] = (1 / 16, 12 / 16)  # Twelve servers for a worker.
    mask = np.ones((400, 10), bool)
    actions, logs = np.full(400, 9), np.full((400, 10), np.log(0.1), np.float32)
    dl2_agent._explore(
        actions, logs, seen.reshape(400, -1), mask, settings, np.random.default_rng(1)
    )
    assert set(actions[:200]) == {9, 4}
    assert set(actions[200:]) == {9, 6}
    assert 60 < np.sum(actions != 9) < 140
    assert np.exp(logs[0]) == pytest.approx([0.075] * 4 + [0.325] + [0.075] * 5, abs=1e-6)
    even = np.full(400, 9)
    dl2_agent._explore(
        even, logs, np.zeros((400, 39), np.float32), mask, settings, np.random.default_rng(1)
    )
    assert (even == 9).all()


def test_what_actions_gain_adds_up_to_the_reward_of_their_slot() -> None:
    options = TINY._replace(window=5, lengths=(50.0,) * 8)
    batch = dl2.Batch(1, options)
    sight, gained = batch.reset(np.array([4])), 0.0
    for action in (2, 5, 3, 0, 15):
        sight = batch.step(np.array([action if sight.mask[0, action] else 15]))
        gained += sight.added[0, 2]
        assert sight.added[0, 1] == pytest.approx(50.0 * sight.added[0, 2])
        if sight.slot_ended[0]:
            break
    assert sight.slot_ended[0]
    assert gained == pytest.approx(sight.reward[0])
    assert sight.shares[0].sum() == pytest.approx(sight.reward[0])


def test_the_public_codes_gradient_is_that_at_the_old_probabilities() -> None:
    scores = torch.randn(6, 10, generator=torch.Generator().manual_seed(1), requires_grad=True)
    mask = torch.ones(6, 10, dtype=torch.bool)
    mask[:, 4] = False
    logs = dl2_agent.masked(scores, mask)
    action, advantage = torch.tensor([0, 1, 2, 3, 5, 9]), torch.linspace(-1, 1, 6)
    none = torch.zeros(6)
    sample = dl2_agent.Sample(none, mask, logs.detach(), action, none, none, none, none)
    found = []
    for correction in ("none", "stored", "ratio"):
        loss = dl2_agent._policy_loss(correction, logs, scores, sample, advantage)
        found.append(torch.autograd.grad(loss, scores, retain_graph=True)[0].numpy())
    assert found[1] == pytest.approx(found[0], abs=1e-6)  # Nothing is old yet.
    assert found[2] == pytest.approx(found[0], abs=1e-6)


def test_memory_keeps_the_latest_and_draws_what_was_most_wrong() -> None:
    memory = dl2_agent.Memory(8, 2, 4, prioritised=True)
    for number in range(3):
        parts = {"action": np.full(5, number), "seen": np.full((5, 2), number, np.float32)}
        memory.add(parts, np.full(5, float(number)), np.zeros(2, np.float32), last=False)
    assert sorted(memory.columns.action) == [1, 1, 1, 2, 2, 2, 2, 2]
    memory.judge(np.arange(8), np.array([9.0] + [0.0] * 7))
    rows, sample = memory.draw(200, np.random.default_rng(1))
    assert np.mean(rows == 0) > 0.9
    assert sample.weight.numpy()[rows == 0].max() < sample.weight.max() == 1.0
    assert sample.reward.tolist() == [float(memory.columns.action[row]) for row in rows]


def slot_of(rule: str, lengths: float = 50.0, **options: Any) -> tuple[Any, Any]:
    """Return workers and servers of each job after the first slot under a rule."""
    made = TINY._replace(arrivals=(3, 0), lengths=(lengths,) * 8, **options)
    batch = dl2.Batch(1, made, options.get("speed"))
    batch.reset(np.array([2]))
    known = dl2_rules.rule_of(rule, batch)
    action = np.zeros(1, np.int64)
    while True:
        dl2_rules.actions(batch.state, known, made.window, action)
        before = batch.state.jobs[0, :3, JOB.workers : JOB.servers + 1].copy()
        chosen = int(action[0])
        if chosen < 3 * made.window:
            before[chosen // 3, 0] += chosen % 3 != 1
            before[chosen // 3, 1] += chosen % 3 != 0
        if batch.step(action).slot_ended[0]:
            return batch, before.tolist()


def test_baselines_give_what_they_are_named_for() -> None:
    roomy: dict[str, Any] = {"nodes": (20,)}
    for rule in ("drf", "fifo", "srtf", "tetris"):
        assert slot_of(rule, **roomy)[1] == [[3, 3]] * 3
    assert slot_of("fifo", nodes=(2,))[1] == [[3, 3], [1, 1], [0, 0]]
    batch, sizes = slot_of("best-size", **roomy)
    for j, size in enumerate(sizes):
        table = batch.state.speed[batch.state.jobs[0, j, JOB.model]]
        assert table[tuple(size)] == table.max()
    shares = slot_of("drf", nodes=(3,))[1]
    assert max(sum(size) for size in shares) - min(sum(size) for size in shares) <= 2


def test_look_ahead_goes_beyond_a_step_that_gains_nothing_where_optimus_stops() -> None:
    speed = np.zeros((1, 4, 4))
    speed[0, 1:, 1:] = [[1.0, 0.9, 5.0], [0.8, 0.8, 0.8], [0.7, 0.7, 0.7]]
    options = TINY._replace(nodes=(20,), jobs=1, lengths=(20.0,))
    found = []
    for name in ("optimus", "look-ahead"):
        batch = dl2.Batch(1, options, speed)
        scores = dl2_rules.play(batch, dl2_rules.rule_of(name, batch), np.array([1]))
        found.append(float(scores[0, 0]))
    assert found == pytest.approx([20.0, 4.0])


def test_a_worker_without_gpu_fits_where_no_gpu_is_free() -> None:
    options = TINY._replace(nodes=(1,), node_gpus=1, model_gpus=(1,) * 4 + (0,) * 4, arrivals=(3,))
    batch = dl2.Batch(1, options)
    batch.reset(np.array([SEED_OF_BOTH]))
    models = batch.state.jobs[0, :3, JOB.model]
    bare, other = np.flatnonzero(models >= 4), np.flatnonzero(models < 4)
    sight = batch.step(np.array([3 * other[0]]))
    assert sight.mask[0, 3 * bare[0]]
    assert not any(sight.mask[0, 3 * j] for j in other)
    assert batch.state.sums[0, SUM.room] & 0b111 == 0b010


def test_jobs_come_by_the_pattern_from_some_slot_on() -> None:
    options = TINY._replace(jobs=12, arrivals=(2, 0, 3), lengths=tuple(range(1, 9)))
    batch = dl2.Batch(8, options)
    batch.reset(np.arange(8))
    for b in range(8):
        slots = batch.state.jobs[b, :, JOB.arrives]
        counts = np.bincount(slots, minlength=9)[:6].tolist()
        assert counts in [([2, 0, 3] * 3)[first : first + 6] for first in range(3)]
        models = batch.state.jobs[b, :, JOB.model]
        assert (batch.state.work[b, :, WORK.all] == models + 1).all()


def test_fitting_optimus_form_finds_a_table_of_that_form() -> None:
    table = dl2.optimus_speeds(6)
    assert dl2_protocol.fitted(table) == pytest.approx(table, rel=1e-6)


@pytest.mark.parametrize(
    "lines, constants, told",
    [
        (["model,num_worker"], {}, "no speeds"),
        (["model,total_batch,num_ps,num_worker,sum_speed", "ctc,50,1,1,10"], {}, "lacks models"),
    ],
)
def test_wrong_data_is_told_in_a_line(lines: list[str], constants: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dl2_protocol.world(dl2_protocol.SMALL, lines, constants)


@pytest.mark.parametrize(
    "wrong",
    [{"arrivals": (0, 0)}, {"lengths": (0.0,) * 8}, {"lengths": (1.0,)}, {"model_gpus": (2,) * 8}],
)
def test_an_option_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        dl2.Batch(1, TINY._replace(**wrong))


def test_every_run_and_condition_has_a_setting_that_makes_sense() -> None:
    worlds = {"large": dl2_protocol.chosen(TINY), "small": dl2_protocol.chosen(TINY)}
    for name in dl2_runs.RUNS:
        world, settings = dl2_runs.worlds_for(name, worlds)
        world.options.check()
        assert settings.world == world.options
    for condition in dl2_runs.CONDITIONS:
        dl2_runs.under(worlds["small"], condition).options.check()


def test_the_command_stores_what_the_figures_are_made_of(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = {size: dl2_protocol.chosen(TINY) for size in ("large", "small")}
    monkeypatch.setattr(dl2_main, "worlds_of", lambda _folder: worlds)
    monkeypatch.setattr(dl2_protocol, "HELD_OUT", (10000, 10001))
    monkeypatch.setattr(dl2_figures, "HELD_OUT", (10000, 10001))
    monkeypatch.setattr(dl2_runs, "CONDITIONS", ("poisson",))
    monkeypatch.setattr(dl2_protocol, "TUNING", (100, 101))
    monkeypatch.setattr(dl2_runs, "RUNS", {"small": dl2_runs.Run("small", RUN, "9")})
    words = ["--out", str(tmp_path), "--steps", "4", "--time-limit", "9999"]
    results = []
    for seed in ("0", "1"):
        dl2_main.main([*words, "--seed", seed])
        results.append(json.loads((tmp_path / f"seed-{seed}.json").read_text()))
        with np.load(tmp_path / f"seed-{seed}.npz") as weights:
            assert "small/policy.0.weight" in weights
    assert [step for step, _ in results[0]["small"]["points"]] == [0, 4]
    monkeypatch.setattr(dl2_runs, "play", None)  # What is stored is not trained again.
    dl2_main.main([*words, "--seed", "0"])
    assert json.loads((tmp_path / "seed-0.json").read_text()) == results[0]
    told = list(dl2_figures.lines(results, dl2_figures.ruled(worlds)))
    assert any(line.startswith("| learned: small, sampled") and "seeds: 2" in line for line in told)
    assert any(line.startswith("| poisson | ") for line in told)
    curve = dl2_figures.curves(results, ["small"], "sampled")["small"]
    assert [step for step, _ in curve] == [0.0, 4.0]


def test_an_interval_is_over_seeds_as_well() -> None:
    before, late, later = ([[value]] * 10 for value in (4.0, 5.0, 7.0))
    alike = dl2_figures.gain([before], [late] * 4)
    assert (alike.mean, alike.low, alike.high) == (1.0, 1.0, 1.0)
    apart = dl2_figures.gain([before], [late, later])
    assert (apart.mean, apart.low, apart.high, apart.base) == (2.0, 1.0, 3.0, 4.0)


def test_curves_are_means_over_seeds_point_by_point() -> None:
    points = [[[250, {"sampled": 7.0}]], [[252, {"sampled": 8.0}], [500, {"sampled": 6.0}]]]
    results = [{"small-shaped": {"points": each, "scores": {}}} for each in points]
    found = dl2_figures.curves(results, ["small-shaped", "small"], "sampled")
    assert found == {"small-shaped": [(251.0, 7.5), (500.0, 6.0)]}
    assert list(dl2_figures.federated(results))[-1] == "| 1 | 500 | 7.50, 6.00 | - |"


def test_kept_rules_are_made_anew_for_other_data(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    scores: dl2_figures.Ruled = {"small": {"drf": [[1.0]]}}

    def ruled(worlds: Any) -> dl2_figures.Ruled:
        made.append(worlds)
        return scores

    monkeypatch.setattr(dl2_figures, "ruled", ruled)
    worlds = {size: dl2_protocol.chosen(TINY) for size in ("large", "small")}
    other = {**worlds, "small": worlds["small"]._replace(speed=worlds["small"].speed * 1.01)}
    longer = {**worlds, "large": dl2_protocol.chosen(TINY._replace(jobs=6))}
    file = tmp_path / "rules.json"
    for each in (worlds, worlds, other, longer, longer, worlds):
        assert dl2_figures.ruled_once(file, each) == scores
    assert made == [worlds, other, longer, worlds]
    file.write_text('{"small": {}}')  # As it was without a digest.
    dl2_figures.ruled_once(file, worlds)
    assert len(made) == 5


def test_a_policy_that_only_stops_is_judged_all_the_same() -> None:
    policy = dl2_agent.Learner(RUN, 1).policy
    last = [each for each in policy.net if isinstance(each, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.bias[-1] = 1e6
    found = dl2_agent.judge(policy, TINY, None, np.array([1, 2]), None)
    assert (found[:, 0] == dl2_agent.SLOTS_MAX).all()
    assert len(dl2_agent.sizes(policy, TINY, None, 1, 0)) <= dl2_agent.SLOTS_MAX
