"""Trains a small network on scikit-learn's handwritten digits: one trial of a search.

Its parameters are those of the search (`SKEP_PARAMETERS`), and it tells the best accuracy so far.
NumPy alone, so that sixty processes begin within a minute on two cores. A mini-batch takes
`--step-s` at least: what it would take on a slower device, so that a busy machine with few cores
changes little.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import skep_job

Array = NDArray[np.float32]

TRAIN_SAMPLES = 600
"""Of the 1,797 samples; the rest is for the accuracy, whose steps are a tenth of a per cent."""
DEFAULTS: dict[str, Any] = {
    "lr": 0.1,
    "momentum": 0.9,
    "batch": 32,
    "hidden": 32,
    "layers": 1,
    "decay": 1e-4,
    "dropout": 0.0,
    "noise": 0.0,
    "scale": 1.0,
    "activation": "relu",
}


def load() -> tuple[Array, NDArray[np.int64], Array, NDArray[np.int64]]:
    """Return images and labels to train and to test with, always the same.

    The file is read by itself: to import scikit-learn takes longer than to train.
    """
    found = importlib.util.find_spec("sklearn")
    assert found is not None, "scikit-learn has the data"
    assert found.submodule_search_locations is not None
    path = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = (rows[:, :-1] / 16 - 0.3).astype(np.float32), rows[:, -1].astype(np.int64)
    cut = TRAIN_SAMPLES
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


class Network:
    """A fully connected classifier, trained by gradient descent with momentum."""

    def __init__(self, given: dict[str, Any], rng: np.random.Generator) -> None:
        """Draw the first weights."""
        self._given, self._rng = given, rng
        sizes = [64, *[given["hidden"]] * given["layers"], 10]
        self.weights = [
            (rng.standard_normal((a, b)) * given["scale"] * (2 / a) ** 0.5).astype(np.float32)
            for a, b in itertools.pairwise(sizes)
        ]
        self.biases = [np.zeros(size, np.float32) for size in sizes[1:]]
        self._speed = [np.zeros_like(each) for each in [*self.weights, *self.biases]]

    def state_dict(self) -> dict[str, Any]:
        """Return what a later process goes on with."""
        return {
            "values": [each.tolist() for each in [*self.weights, *self.biases]],
            "speed": [each.tolist() for each in self._speed],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what an earlier process had."""
        values = [np.array(each, np.float32) for each in state["values"]]
        self.weights, self.biases = values[: len(self.weights)], values[len(self.weights) :]
        self._speed = [np.array(each, np.float32) for each in state["speed"]]

    def accuracy(self, images: Array, labels: NDArray[np.int64]) -> float:
        """Return the share of images that are classified rightly."""
        for at, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            images = images @ weight + bias
            if at < len(self.weights) - 1:
                images = self._active(images)
        return float((images.argmax(axis=1) == labels).mean())

    def train(self, images: Array, labels: NDArray[np.int64]) -> None:
        """Take one step on a mini-batch."""
        given, rng = self._given, self._rng
        inputs = [images + given["noise"] * rng.standard_normal(images.shape, np.float32)]
        masks = []
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            mask = (rng.random((len(labels), len(bias))) >= given["dropout"]) / (
                1 - given["dropout"]
            )
            masks.append(mask.astype(np.float32))
            inputs.append(self._active(inputs[-1] @ weight + bias) * masks[-1])
        scores = inputs[-1] @ self.weights[-1] + self.biases[-1]
        scores -= scores.max(axis=1, keepdims=True)
        error = np.exp(scores)
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        for at in range(len(self.weights) - 1, -1, -1):
            back = error @ self.weights[at].T if at else None
            self._descend(self.weights[at], at, inputs[at].T @ error)
            self._descend(self.biases[at], len(self.weights) + at, error.sum(axis=0))
            if back is not None:
                error = back * masks[at - 1] * self._slope(inputs[at])

    def _descend(self, value: Array, at: int, gradient: Array) -> None:
        speed, given = self._speed[at], self._given
        speed *= given["momentum"]
        speed -= given["lr"] * (gradient + given["decay"] * value)
        value += speed

    def _active(self, values: Array) -> Array:
        result: Array = (
            np.maximum(values, 0) if self._given["activation"] == "relu" else np.tanh(values)
        )
        return result

    def _slope(self, active: Array) -> Array:
        relu = self._given["activation"] == "relu"
        result: Array = (active > 0).astype(np.float32) if relu else 1 - active**2
        return result


def batches(rng: np.random.Generator, samples: int, size: int) -> Iterator[NDArray[np.int64]]:
    """Yield the samples of each mini-batch, without end."""
    while True:
        order = rng.permutation(samples)
        for begin in range(0, samples - size + 1, size):
            yield order[begin : begin + size]


def main() -> None:
    """Train, and report the accuracy every few mini-batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--every", type=int, default=20)
    options = parser.parse_args()
    given = DEFAULTS | json.loads(os.environ.get("SKEP_PARAMETERS", "{}"))
    images, labels, tests, answers = load()
    rng = np.random.default_rng(7)
    network = Network(given, rng)
    run = skep_job.init()
    run.track(network=network)
    chosen = batches(rng, len(labels), given["batch"])
    due = time.monotonic()
    with np.errstate(all="ignore"):  # Some parameters lead nowhere: that is what a search finds.
        while run.steps < options.steps:
            batch = next(chosen)
            network.train(images[batch], labels[batch])
            if (run.steps + 1) % options.every == 0:
                best = max(run.state.get("best", 0.0), network.accuracy(tests, answers))
                run.state["best"] = best
                run.report(accuracy=best)
            due = max(due + options.step_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            run.step()


if __name__ == "__main__":
    main()
