"""Files of models: what is in them, and what is refused, in one clear line each."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from skep.learn import columns as c
from skep.learn.candidates import CANDIDATE_FEATURES, A
from skep.learn.decide import decide
from skep.learn.features import JOB_FEATURES, F
from skep.learn.modelfile import (
    BYTES_MAX,
    KEY,
    Header,
    ModelError,
    Ranges,
    dump,
    load,
    name_of,
    read_header,
)
from skep.learn.net import Sizes, random_weights, shapes
from skep.learn.scene import Scene
from skep.policy.sight import sight_of
from tests.learn_kit import model
from tests.policy_kit import NOW, job, view

WEIGHTS = random_weights(3, Sizes(8, 8))
HEADER = Header(job=8, head=8, trained_on="bursts", seeds=(1, 2), report={"jct": 0.91})


def changed(**weights: Any) -> bytes:
    """Return a file with other weights; None: without them."""
    tensors = {**WEIGHTS, **{name.replace("_", "."): each for name, each in weights.items()}}
    text = json.dumps({"schema": 1, "job": 8, "head": 8})
    kept = {name: each for name, each in tensors.items() if each is not None}
    return bytes(safetensors.numpy.save(kept, {KEY: text}))


def text(said: str) -> bytes:
    """Return a file whose metadata say this of the model."""
    return bytes(safetensors.numpy.save(WEIGHTS, {KEY: said}))


def test_a_file_is_named_by_its_bytes_and_says_what_it_is() -> None:
    data = dump(WEIGHTS, HEADER)
    assert data == dump(dict(reversed(WEIGHTS.items())), HEADER)
    made = load(data)
    assert made.header == HEADER == read_header(data)
    assert made.name == name_of(data)
    assert len(made.name) == 64
    assert all(np.array_equal(made.net.weights[name], WEIGHTS[name]) for name in WEIGHTS)
    assert {name: each.shape for name, each in WEIGHTS.items()} == shapes(Sizes(8, 8))


@pytest.mark.parametrize(
    "data,said",
    [
        (b"", "no safetensors file: it has 0 bytes"),
        (pickle.dumps({"a": 1}), "no safetensors file, or a truncated one"),
        (dump(WEIGHTS, HEADER)[:-1], "no safetensors file: Error while deserializing"),
        (dump(WEIGHTS, HEADER)[:100], "no safetensors file, or a truncated one"),
        (struct.pack("<Q", 3) + b"{{}" + b"x" * 40, "no safetensors file: JSON is malformed"),
        (b"\0" * (BYTES_MAX + 1), f"model of {BYTES_MAX + 1} bytes is larger than {BYTES_MAX}"),
        (bytes(safetensors.numpy.save(WEIGHTS)), "no model of Skep: the file's metadata has no"),
        (text("{"), "metadata of the model: Input data was truncated"),
        (text('{"job": 8}'), "metadata of the model: Object missing required field `schema`"),
        (text('{"schema": 99}'), "model has feature schema 99, this version of Skep 1"),
        (text('{"schema": 1, "job": 100000}'), "metadata of the model: Expected `int` <= 256"),
        (text('{"schema": 1, "job": 16, "head": 8}'), "weights job.0.weight are float32 [8,"),
        (changed(skip_weight=None), "model lacks weights skip.weight"),
        (changed(more=np.zeros(3, np.float32)), "model has unknown weights more"),
        (changed(head_2_bias=np.zeros(2, np.float32)), "weights head.2.bias are float32 [2], not"),
        (changed(head_2_bias=np.zeros(1)), "weights head.2.bias are float64 [1], not float32 [1]"),
        (
            changed(head_2_bias=np.full(1, np.nan, np.float32)),
            "weights head.2.bias are not all finite numbers",
        ),
        (
            text('{"schema": 1, "job": 8, "head": 8, "ranges": {"job": [[0, 1]]}}'),
            f"model has ranges of 1 features instead of {F}",
        ),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(data: bytes, said: str) -> None:
    with pytest.raises(ModelError) as refused:
        load(data)
    assert said in str(refused.value)
    assert str(refused.value).isprintable()


def test_what_would_be_refused_is_not_written() -> None:
    broken = {**WEIGHTS, "skip.weight": np.full((1, A), np.inf, np.float32)}
    with pytest.raises(ModelError, match=r"skip\.weight are not all finite"):
        dump(broken, HEADER)


def shown() -> Scene:
    """Return a VC with three waiting jobs, of which each alone fits."""
    return Scene.of(
        view([job("j1", 4, needs=900), job("j2", 4, needs=100), job("j3", 4, needs=500)], nodes=1)
    )


def test_a_rule_is_a_special_case_of_the_network() -> None:
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes(Sizes(8, 8)).items()}
    weights["skip.weight"][0, [*CANDIDATE_FEATURES].index("shortest")] = 1.0
    weights["hold.2.bias"][0] = -100.0
    made = decide(load(dump(weights, HEADER)), shown(), NOW / 1e9)
    assert [(each.job, each.workers, each.spread) for each in made.moves] == [("j2", 4, False)]
    assert made.holds == ()
    weights["hold.2.bias"][0] = 100.0
    made = decide(load(dump(weights, HEADER)), shown(), NOW / 1e9)
    assert made.moves == ()
    assert made.holds == ("j1", "j2", "j3")


def test_features_beyond_the_training_are_told() -> None:
    everything = tuple((-1000.0, 1000.0) for _ in range(F))
    inside = model(ranges=Ranges(job=everything))
    assert decide(inside, shown(), NOW / 1e9).reliable
    at = [*JOB_FEATURES].index("gang")
    small = (*everything[:at], (0.0, 0.25), *everything[at + 1 :])
    assert not decide(model(ranges=Ranges(job=small)), shown(), NOW / 1e9).reliable


def test_sizes_of_a_job_are_few_and_near() -> None:
    assert c.sizes_of(3, 3, 3) == [3]
    assert c.sizes_of(1, 16, 4) == [1, 2, 4, 8, 16]
    assert c.sizes_of(1, 16, 5) == [1, 2, 4, 5, 8, 16]
    assert c.sizes_of(2, 12, 2) == [2, 4, 8, 12]
    assert c.sizes_of(1, 128, 3) == [1, 2, 3, 4, 8, 16]


def test_sight_of_many_jobs_keeps_rows_apart() -> None:
    jobs = [job(f"j{at}", 1, needs=at) for at in range(1, 200)]
    scene = Scene()
    assert scene.follow(sight_of(view(jobs[:10]), 0))
    assert scene.follow(sight_of(view(jobs), 1))
    lefts = dict(zip(scene.names, scene.raw[:, c.LEFT].tolist(), strict=True))
    assert lefts == {f"j{at}": float(at) for at in range(1, 200)}
