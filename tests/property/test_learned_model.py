"""What a learned model sees and says, for any sight; and whatever its file holds."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from skep.learn import columns as c
from skep.learn.candidates import (
    CANDIDATE_FEATURES,
    GROW,
    LOCAL,
    SPREAD,
    candidates,
    demands,
    fit,
    look,
)
from skep.learn.columns import Flags, Floats
from skep.learn.decide import RANKED, Decision, decide, take
from skep.learn.features import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
    JOB_PLACES,
    Matrix,
    cluster_features,
    holding,
    job_features,
    queued,
    times,
)
from skep.learn.modelfile import Header, Model, ModelError, dump, load
from skep.learn.net import SetNet, random_weights
from skep.learn.scene import Scene
from skep.learn.shares import FIRST, SOON, share_out
from skep.learn.shipped import NEWEST, shipped
from skep.policy.sight import changes
from skep.units import Duration, Instant
from skep.wire.learned import AdvisedMove, JobSight, RoomSight, Sight
from tests.learn_kit import NOW, decided_slowly, followed, job_sight, model, sight

SEEDS = st.integers(0, 2**32 - 1)


def seen(scene: Scene, now: float) -> dict[str, tuple[list[Any], ...]]:
    """Return all that depends on the row of each job, and the demands that its codes stand for."""
    numbers, features = scene.options
    wanted = scene.demands
    found = {}
    for row, name in enumerate(scene.names):
        codes = scene.codes[row].tolist()
        there = [
            (code % 4, float(wanted.workers[code // 4]), float(wanted.gpus[code // 4]))
            for code in codes
            if code >= 0
        ]
        parts = (scene.raw[row], scene.jobs[row, 8:], numbers[row], features[row])
        found[name] = (*(each.tolist() for each in parts), there)
    return found


def changed(rng: random.Random, job: JobSight) -> JobSight:
    """Return another job of the same name, or the same job a while later."""
    if rng.random() < 0.5:
        return job_sight(rng, job.sequence)
    left = None if job.left is None or rng.random() < 0.2 else Duration(job.left // 2)
    return msgspec.structs.replace(job, left=left, served=Duration(job.served + 10**9))


@given(seed=SEEDS)
def test_differences_show_what_whole_sights_do(seed: int) -> None:
    rng = random.Random(seed)
    note(f"seed {seed}")
    before = sight(rng, rng.randrange(0, 30))
    scene = followed(before)
    for number in range(1, 5):
        jobs = [each for each in before.jobs if rng.random() < 0.9]
        jobs = [changed(rng, each) if rng.random() < 0.5 else each for each in jobs]
        fresh = sight(rng, rng.choice((0, 1, 3, 40)), number=number, first=100 * number)
        after = msgspec.structs.replace(fresh, jobs=(*jobs, *fresh.jobs))
        assert scene.follow(changes(before, after))
        assert seen(scene, NOW) == seen(followed(after), NOW)
        before = after
    assert not scene.follow(msgspec.structs.replace(before, whole=False, number=9))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_forgotten_is_made_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep.learn.scene.ALIKE_MAX", 20)
    monkeypatch.setattr("skep.learn.scene.FITS_MAX", 2)
    rng, brain = random.Random(seed), model(seed)
    before = sight(rng, 12)
    scene = followed(before)
    for number in range(1, 12):
        jobs = tuple(changed(rng, each) if rng.random() < 0.5 else each for each in before.jobs)
        after = msgspec.structs.replace(sight(rng, 0, number=number), jobs=jobs)
        assert scene.follow(changes(before, after))
        scene.check()
        decided = decide(brain, scene, NOW)
        again = followed(after)
        assert seen(scene, NOW) == seen(again, NOW)
        assert {move.job for move in decided.moves} == {
            move.job for move in decide(brain, again, NOW).moves
        }
        before = after


@given(seed=SEEDS)
def test_greedy_decoding_is_that_of_a_model_that_looks_again(seed: int) -> None:
    rng = random.Random(seed)
    note(f"seed {seed}")
    scene = followed(sight(rng, rng.randrange(1, 10)))
    brain = model(rng.randrange(1000))
    when = times(scene.raw, NOW)
    cluster, names = scene.cluster(NOW, when), list(scene.names)
    assert candidates(scene.raw, cluster, NOW).possible.sum() <= RANKED
    slow = decided_slowly(brain, scene.raw, cluster, NOW)
    quick = decide(brain, scene, NOW)
    assert quick.reliable
    if any(margin < 1e-3 for *_, margin in slow):
        return  # Rounding decides between two moves.
    assert [(each.job, each.workers, each.spread) for each in quick.moves] == [
        (names[row], workers, spread) for row, workers, spread, *_ in slow
    ]
    for each, (*_, score, margin) in zip(quick.moves, slow, strict=True):
        assert abs(each.score_milli - 1000 * score) < 3
        assert abs(each.margin_milli - 1000 * margin) < 3


@given(seed=SEEDS)
def test_features_are_in_their_ranges_and_know_no_clock(seed: int) -> None:
    rng = random.Random(seed)
    note(f"seed {seed}")
    scene = followed(sight(rng, rng.randrange(1, 40)))
    cluster = scene.cluster(NOW, times(scene.raw, NOW))
    found = candidates(scene.raw, cluster, NOW)
    for features, names in (
        (job_features(scene.raw, cluster, NOW), JOB_FEATURES),
        (cluster_features(cluster), CLUSTER_FEATURES),
        (found.features[found.possible], CANDIDATE_FEATURES),
    ):
        low, high = np.array([*names.values()], dtype=np.float32).T
        assert np.isfinite(features).all()
        assert (features >= low).all()
        assert (features <= high).all()
    later = scene.raw.copy()
    later[:, c.SUBMITTED] += 86_400
    later[:, c.SINCE] += np.where(later[:, c.SINCE] > 0, 86_400, 0)
    shifted = job_features(later, cluster, NOW + 86_400)
    assert np.allclose(shifted, job_features(scene.raw, cluster, NOW), atol=1e-5)


@given(seed=SEEDS)
def test_the_order_of_jobs_and_empty_rows_are_of_no_matter(seed: int) -> None:
    rng = random.Random(seed)
    note(f"seed {seed}")
    scene, brain = followed(sight(rng, rng.randrange(1, 20))), model(seed % 1000)
    raw = without_ties(scene.raw)
    cluster = scene.cluster(NOW, times(scene.raw, NOW))
    order = np.array(rng.sample(range(len(raw) + 3), len(raw) + 3))
    padded = np.concatenate([raw, np.zeros((3, c.RAW))])[order]
    plain, hold = scored(brain, raw, cluster)
    mixed, mixed_hold = scored(brain, padded, cluster)
    assert np.allclose(mixed[np.argsort(order)][: len(plain)], plain, atol=1e-5)
    assert np.allclose(hold, mixed_hold, atol=1e-5)
    scores, holds = scored(
        brain, np.stack([padded, padded]), np.stack([cluster, cluster]), np.full(2, float(NOW))
    )
    assert np.allclose(scores, mixed, atol=1e-5)
    assert np.allclose(holds, mixed_hold, atol=1e-5)


def without_ties(raw: Floats) -> Floats:
    """Return jobs of which no two are known to have the same time left.

    Of jobs that gain as much per GPU, the first gets the GPUs: there the order matters.
    """
    left = times(raw, NOW).remaining
    known = np.where(raw[:, c.LEFT] >= 0, left, -1.0 - np.arange(len(raw)))
    return raw[np.sort(np.unique(known, return_index=True)[1])]


def test_of_two_jobs_that_gain_as_much_the_first_gets_the_gpus() -> None:
    raw = np.zeros((2, c.RAW))
    raw[:, c.WORKERS], raw[:, c.EACH], raw[:, c.PHASE] = 1, 4, c.WAITING
    cluster = np.zeros(c.CLUSTER)
    cluster[c.GPUS] = cluster[c.FREE] = 6
    assert share_out(raw, cluster, times(raw, NOW)).workers.tolist() == [1, 0]


def scored(
    brain: Model, raw: Floats, cluster: Floats, now: ArrayLike = NOW
) -> tuple[Matrix, Matrix]:
    """Return the scores of all candidates, and of doing nothing more."""
    return brain.net.forward(
        job_features(raw, cluster, now),
        cluster_features(cluster),
        candidates(raw, cluster, now).features,
        queued(raw),
        holding(raw),
    )


@given(seed=SEEDS)
def test_units_that_nothing_looks_at_are_of_no_matter(seed: int) -> None:
    rng = random.Random(seed)
    note(f"seed {seed}")
    net = model(rng.randrange(1000)).net
    weights, job = {name: each.copy() for name, each in net.weights.items()}, net.sizes.job
    for name, units in (("head.2", 16), ("hold.2", 16), ("job.2", 16)):
        weights[f"{name}.weight"][:, rng.sample(range(units), rng.randrange(units + 1))] = 0.0
    if rng.random() < 0.5:
        weights["head.0.weight"][:, job : 5 * job] = 0.0
        weights["hold.0.weight"][:, : 4 * job] = 0.0
        weights["head.0.weight"][:, rng.sample(range(job), rng.randrange(job + 1))] = 0.0
    scene = followed(sight(rng, rng.randrange(1, 12)))
    view = look(scene.raw, scene.cluster(NOW, times(scene.raw, NOW)), NOW)
    inputs = view.jobs, view.cluster, view.candidates.features, view.waits, view.holds
    scores, hold = SetNet(weights).forward(*inputs)
    wanted, wanted_hold = plainly(weights, *inputs)
    assert np.allclose(scores, wanted, rtol=1e-3, atol=1e-3)
    assert np.allclose(hold, wanted_hold, rtol=1e-3, atol=1e-3)


def plainly(
    weights: dict[str, Matrix],
    jobs: Matrix,
    cluster: Matrix,
    options: Matrix,
    waits: Flags,
    holds: Flags,
) -> tuple[Matrix, Matrix]:
    """Return the scores of a network as its definition has them."""

    def layer(name: str, given: Matrix) -> Matrix:
        made: Matrix = given @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        return made

    def relu(given: Matrix) -> Matrix:
        return np.maximum(given, 0.0)

    embedded = relu(layer("job.2", relu(layer("job.0", jobs))))
    pooled = []
    for chosen in (embedded[waits], embedded[holds]):
        some = chosen if len(chosen) else np.zeros_like(embedded[:1])
        pooled += [some.mean(0), some.max(0)]
    context = np.concatenate([*pooled, relu(layer("cluster.0", cluster))])
    shape = (*options.shape[:2], -1)
    parts = embedded[:, None], context, options
    wide = [np.broadcast_to(each, (*options.shape[:2], each.shape[-1])) for each in parts]
    hidden = relu(layer("head.0", np.concatenate(wide, -1).reshape(shape)))
    scores = layer("head.2", hidden)[..., 0] + options @ weights["skip.weight"][0]
    return scores, layer("hold.2", relu(layer("hold.0", context)))[0]


@given(
    free=st.lists(st.integers(0, 8), min_size=1, max_size=9),
    workers=st.integers(1, 20),
    each=st.integers(1, 8),
)
def test_gangs_fit_as_packing_would_place_them(free: list[int], workers: int, each: int) -> None:
    cluster = np.zeros(c.CLUSTER)
    cluster[c.GPUS], cluster[c.FREE], cluster[c.NODE_GPUS] = 8 * len(free), sum(free), 8
    for gpus in free:
        cluster[c.ROOM + gpus] += 1
        cluster[c.WHOLE] += gpus == 8
    wanted = demands(np.array([float(workers)]), np.array([float(each)]), np.array(8.0))
    found = fit(cluster, wanted)
    slots = sorted((gpus // each for gpus in free), reverse=True)
    need = -(-workers // (8 // each))
    used = next((n for n in range(1, len(slots) + 1) if sum(slots[:n]) >= workers), None)
    assert found.nodes[0] == (np.inf if used is None else used)
    assert found.local[0] == (used is not None and used <= need)
    if used is None:
        return
    take(cluster, workers, each)
    room = cluster[c.ROOM :]
    assert cluster[c.FREE] == sum(free) - workers * each
    assert (room >= 0).all()
    assert room.sum() == len(free)
    assert (room * np.arange(c.NODE_MAX + 1)).sum() == cluster[c.FREE]
    assert room[8] == cluster[c.WHOLE]


@given(seed=SEEDS)
def test_shares_go_to_whoever_gains_most_per_gpu(seed: int) -> None:
    rng = random.Random(seed)
    note(f"seed {seed}")
    scene = followed(sight(rng, rng.randrange(1, 20)))
    when = times(scene.raw, NOW)
    cluster = scene.cluster(NOW, when)
    found = share_out(scene.raw, cluster, when)
    budget, steps, has = (
        float(cluster[c.FREE]),
        list[tuple[float, int, float]](),
        dict[int, float](),
    )
    for row, raw in enumerate(scene.raw.tolist()):
        waits = raw[c.PHASE] in {c.WAITING, c.AWAY}
        resizes = raw[c.PHASE] == c.RUNNING and raw[c.RESIZABLE] > 0
        if raw[c.LEFT] < 0 or not (waits or resizes):
            assert found.workers[row] == raw[c.WORKERS]
            continue
        worths = worths_of(raw, float(when.remaining[row]))
        at = least = min(worths)
        gpus = least * raw[c.EACH]
        if waits:
            first = FIRST / max(math.exp(-worths[least]) * gpus, 1.0)
            steps.append((first, row, least))
        else:
            budget += (raw[c.WORKERS] - least) * raw[c.EACH]
        has[row] = 0.0 if waits else least
        while more := [size for size in worths if size > at and worths[size] > worths[at]]:
            adds = {size: (worths[size] - worths[at]) / (size - at) / raw[c.EACH] for size in more}
            best = max(more, key=lambda size: adds[size])
            steps.append((adds[best], row, best - at))
            at = best
    for _, row, more_workers in sorted(steps, key=lambda step: -step[0]):
        budget -= more_workers * scene.raw[row, c.EACH]
        if budget < 0:
            break
        has[row] += more_workers
    assert {row: found.workers[row] for row in has} == has


def worths_of(raw: list[float], remaining: float) -> dict[float, float]:
    """Return what a job counts at each of its sizes."""
    sizes, rates = raw[c.SIZE : c.SIZE + c.SIZES], raw[c.RATE : c.RATE + c.SIZES]
    curve = dict(zip(sizes, rates, strict=True))
    rate = curve[raw[c.WORKERS]]
    made = {}
    for size in sizes:
        here = size == raw[c.WORKERS]
        speed = curve[size] / rate if rate else float(here)
        if size and speed:
            pause = raw[c.PAUSE] if raw[c.PHASE] == c.RUNNING and not here else 0.0
            made[size] = -math.log(remaining / speed + pause + SOON)
    return made


@given(seed=SEEDS)
def test_a_gang_that_fits_on_the_fewest_nodes_is_not_spread(seed: int) -> None:
    rng = random.Random(seed)
    note(f"seed {seed}")
    scene = followed(sight(rng, rng.randrange(1, 30)))
    cluster = scene.cluster(NOW, times(scene.raw, NOW))
    found = candidates(scene.raw, cluster, NOW)
    waits = queued(scene.raw)
    for row in range(len(scene.raw)):
        asked = scene.raw[row, c.WORKERS]
        kinds = {
            (kind, workers)
            for kind, workers, possible in zip(
                found.kind[row].tolist(),
                found.workers[row].tolist(),
                found.possible[row].tolist(),
                strict=True,
            )
            if possible
        }
        assert not {(LOCAL, asked), (SPREAD, asked)} <= kinds
        for kind, workers in kinds:
            assert (kind <= SPREAD) == waits[row]
            assert (kind == GROW) == (workers > asked and not waits[row])
            assert scene.raw[row, c.LEAST] <= workers <= scene.raw[row, c.MOST] or workers == asked


FILE = dump(random_weights(7), Header(trained_on="nothing", seeds=(7,)))


@given(seed=SEEDS)
def test_a_damaged_file_is_refused_in_one_line_or_is_a_model(seed: int) -> None:
    rng = random.Random(seed)
    note(f"seed {seed}")
    data, (header,) = bytearray(FILE), struct.unpack("<Q", FILE[:8])
    for _ in range(rng.choice((1, 1, 2, 8))):
        end = len(data) if rng.random() < 0.3 else min(8 + header, len(data))
        at = rng.randrange(end)
        change = rng.choice(("set", "set", "cut", "drop", "double"))
        if change == "set":
            data[at] = rng.randrange(256)
        elif change == "cut":
            del data[at + 1 :]
        elif change == "drop":
            del data[at : at + rng.choice((1, 4, 100))]
        else:
            data[at:at] = data[at : at + rng.choice((1, 4, 100))]
    refused, found = "", None
    try:
        found = load(bytes(data))
    except ModelError as error:
        refused = str(error)
    if found is None:
        assert 0 < len(refused) < 500
        assert refused.isprintable()
        return
    assert all(np.isfinite(each).all() for each in found.net.weights.values())
    rng = random.Random(1)
    decide(found, followed(sight(rng, 12)), NOW)


@given(seed=SEEDS)
def test_a_network_of_nonsense_advises_nothing(seed: int) -> None:
    rng = random.Random(seed)
    brain = model(1)
    weights = {name: each.copy() for name, each in brain.net.weights.items()}
    name = rng.choice(["skip.weight", "head.2.bias", "head.0.weight", "job.0.weight"])
    weights[name].flat[rng.randrange(weights[name].size)] = rng.choice((np.nan, np.inf))
    broken = brain._replace(net=type(brain.net)(weights))
    scene = followed(sight(rng, 30))
    with np.errstate(all="ignore"):
        made = decide(broken, scene, NOW)
    if not made.reliable:
        return
    assert decide(broken, scene, NOW) == made  # The number was of no matter.


def test_nothing_to_see_is_nothing_to_say() -> None:
    empty = Sight(
        vc="a", number=0, whole=True, at=Instant(NOW * 10**9), gpus=0, free=0, node_gpus=0
    )
    assert decide(model(), followed(empty), NOW) == Decision((), (), reliable=True)


def test_unknown_features_have_their_flags() -> None:
    rng = random.Random(3)
    plain = msgspec.structs.replace(
        job_sight(rng, 1), expected=None, left=None, rates=(), slowdown=(), doubt=0, pause=0
    )
    scene = followed(msgspec.structs.replace(sight(rng, 0), jobs=(plain,)))
    features = job_features(scene.raw, scene.cluster(NOW, times(scene.raw, NOW)), NOW)[0]
    for name in ("remaining", "rates", "slowdown", "doubt", "pause"):
        assert features[JOB_PLACES[f"{name}_known"]] == 0
    for name in ("remaining", "work", "progress", "waited_ratio", "best_speed", "next_gain"):
        assert features[JOB_PLACES[name]] == pytest.approx(0)


BIG = st.sampled_from((1, 2, 17, 10**6, 2**53))
LENGTHS = st.sampled_from((0, 1, 10**9, 2**62))


@given(data=st.data())
def test_any_sight_that_can_be_decoded_is_answered(data: st.DataObject) -> None:
    draw = data.draw
    plain = sight(random.Random(1), draw(st.integers(0, 3)))
    rates = tuple((draw(BIG) % 100_001, draw(LENGTHS)) for _ in range(draw(st.integers(0, 3))))
    jobs = tuple(
        msgspec.structs.replace(
            each,
            each=min(draw(BIG), 1024),
            workers=min(draw(BIG), 100_000),
            least=min(draw(BIG), 100_000),
            most=min(draw(BIG), 100_000),
            since=draw(LENGTHS),
            served=draw(LENGTHS),
            left=draw(st.none() | LENGTHS),
            pause=draw(LENGTHS),
            doubt=draw(LENGTHS),
            rates=rates,
            slowdown=draw(st.sampled_from(((), rates))),
            nodes=draw(BIG) % 100_001,
        )
        for each in plain.jobs
    )
    seen_now = msgspec.structs.replace(
        plain,
        jobs=jobs + jobs[:1],
        gpus=draw(BIG),
        free=draw(BIG),
        node_gpus=draw(BIG) % 100_001,
        at=draw(LENGTHS),
        gone=("j999",),
    )
    seen_now = msgspec.json.decode(msgspec.json.encode(seen_now), type=Sight)
    scene = Scene()
    assert scene.follow(seen_now)
    for now in (0, NOW, 2**62 / 1e9):
        made = decide(model(1), scene, now)
        assert len(made.moves) <= 32
        msgspec.json.decode(msgspec.json.encode(made.moves), type=tuple[AdvisedMove, ...])


def small_job() -> JobSight:
    """Return a waiting job of one GPU of which nothing is known."""
    return msgspec.structs.replace(
        job_sight(random.Random(0), 0),
        phase="waiting",
        each=1,
        workers=1,
        least=1,
        most=1,
        nodes=0,
        resizable=False,
        borrows=False,
        rates=(),
        slowdown=(),
    )


@pytest.mark.parametrize("gone", ["j1", "j2", "j3"])
def test_alike_jobs_are_begun_as_they_came_whatever_came_before(gone: str) -> None:
    one = small_job()
    jobs = tuple(msgspec.structs.replace(one, job=f"j{at}", sequence=at) for at in range(1, 5))
    room = (RoomSight(gpus=8, free=1, count=1),)
    begins = msgspec.structs.replace(sight(random.Random(1), 0), jobs=jobs, free=1, room=room)
    left = tuple(each for each in jobs if each.job != gone)
    after = msgspec.structs.replace(begins, number=1, jobs=left)
    scene = followed(begins, changes(begins, after))
    scene.check()
    backwards = followed(msgspec.structs.replace(after, jobs=left[::-1]))
    assert scene.names == followed(after).names == backwards.names == [each.job for each in left]
    for brain in (own := load(shipped()[NEWEST].read_bytes()), *map(model, range(8))):
        assert decide(brain, scene, NOW).moves == decide(brain, backwards, NOW).moves
    assert [move.job for move in decide(own, scene, NOW).moves] == [left[0].job]


def test_of_very_many_alike_jobs_the_first_are_begun() -> None:
    one = small_job()
    jobs = tuple(msgspec.structs.replace(one, job=f"j{at}", sequence=at) for at in range(300))
    room = (RoomSight(gpus=8, free=3, count=1),)
    scene = followed(
        msgspec.structs.replace(sight(random.Random(1), 0), jobs=jobs, free=3, room=room)
    )
    moves = decide(load(shipped()[NEWEST].read_bytes()), scene, NOW).moves
    assert [move.job for move in moves] == ["j0", "j1", "j2"]
