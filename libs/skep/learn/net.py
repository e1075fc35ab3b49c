"""The set network in numpy: a score for each candidate of a job, and one of doing nothing more.

    job features      -> job encoder     -> e, one per job
    e of waiting jobs -> mean, max -> context
    e of jobs with GPUs -> mean, max -> context
    cluster features  -> cluster encoder -> context
    e, context, candidate features -> head -> score of the candidate
    context                        -> hold -> score of doing nothing more

The order of jobs is of no matter, and there may be any number of them. Candidate features also
reach the score directly, by `skip`: a rule that is linear in them is a special case.

Source: Zaheer et al., "Deep sets" (NeurIPS 2017), for the pooling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skep.learn.candidates import A
from skep.learn.columns import Flags
from skep.learn.features import F, G, Matrix


class Sizes(NamedTuple):
    """Widths of the layers of a network."""

    job: int = 32
    """Of both layers of the job encoder, and of that of the cluster."""
    head: int = 32
    """Of the hidden layers of both heads."""


WIDTH_MAX = 256
"""Wider layers are too slow for a queue of 1,000 jobs."""
POOLS = 4
"""Mean and maximum, over waiting jobs and over those with GPUs."""


def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights by name: those of the layers `torch.nn.Linear` of PyTorch.

    A weight is [outputs, inputs]. Inputs of `head.0` are an embedding, the context and candidate
    features, in this order; those of the context are the pools (waiting: mean, max; with GPUs:
    mean, max) and the encoded cluster.
    """
    job, head = sizes
    context = (POOLS + 1) * job
    layers = {
        "job.0": (job, F),
        "job.2": (job, job),
        "cluster.0": (job, G),
        "head.0": (head, job + context + A),
        "head.2": (1, head),
        "hold.0": (head, context),
        "hold.2": (1, head),
    }
    made: dict[str, tuple[int, ...]] = {"skip.weight": (1, A)}
    for name, (outputs, inputs) in layers.items():
        made[f"{name}.weight"], made[f"{name}.bias"] = (outputs, inputs), (outputs,)
    return made


class SetNet:
    """A network with its weights. All its functions take any number of leading axes."""

    def __init__(self, weights: Mapping[str, Matrix]) -> None:
        """Take weights of the shapes of `shapes`."""
        self.weights = dict(weights)
        self.sizes = Sizes(weights["job.0.weight"].shape[0], weights["head.0.weight"].shape[0])
        job = self.sizes.job
        ends = (job, job + (POOLS + 1) * job)

        def turned(weight: NDArray[np.float32]) -> Matrix:
            return np.ascontiguousarray(weight.T, dtype=np.float32)

        self._job = [
            (np.ascontiguousarray(weights[f"job.{at}.weight"]), weights[f"job.{at}.bias"])
            for at in (0, 2)
        ]
        self._cluster = turned(weights["cluster.0.weight"]), weights["cluster.0.bias"]
        first = weights["head.0.weight"]
        self._of_job = turned(first[:, : ends[0]])
        self._of_context = turned(first[:, ends[0] : ends[1]]), weights["head.0.bias"]
        self._of_candidate = turned(first[:, ends[1] :])
        self._score = weights["head.2.weight"][0], float(weights["head.2.bias"][0])
        self._skip = weights["skip.weight"][0]
        self._hold = turned(weights["hold.0.weight"]), weights["hold.0.bias"]
        self._hold_score = weights["hold.2.weight"][0], float(weights["hold.2.bias"][0])

    def embed(self, jobs: Matrix) -> Matrix:
        """Return the embeddings of jobs, `[.., n, job]`, from their features.

        The feature is the slowest axis in memory here: so pools are sums over what is adjacent.
        """
        made = jobs.swapaxes(-1, -2)
        for weight, bias in self._job:
            made = weight @ made
            made += bias[:, None]
            np.maximum(made, 0.0, out=made)
        return made.swapaxes(-1, -2)

    def encode(self, cluster: Matrix) -> Matrix:
        """Return encoded clusters, `[.., job]`, from their features."""
        weight, bias = self._cluster
        made: Matrix = np.maximum(cluster @ weight + bias, 0.0)
        return made

    def context(self, pools: Matrix, cluster: Matrix) -> Matrix:
        """Return what all candidates share, from the pools and the features of clusters."""
        return np.concatenate([pools, self.encode(cluster)], axis=-1)

    def of_jobs(self, embedded: Matrix) -> Matrix:
        """Return the part of jobs in the hidden layer of the head."""
        made: Matrix = embedded @ self._of_job
        return made

    def of_context(self, context: Matrix) -> Matrix:
        """Return the part of the context in the hidden layer of the head."""
        weight, bias = self._of_context
        made: Matrix = context @ weight + bias
        return made

    def score(self, of_jobs: Matrix, of_context: Matrix, candidates: Matrix) -> Matrix:
        """Return the scores of candidates, `[..]`.

        Args:
            of_jobs: The part of each candidate's job in the hidden layer, `[.., head]`; axes of
                length 1 are broadcast.
            of_context: The part of its context.
            candidates: Features, `[.., A]`.
        """
        hidden = candidates @ self._of_candidate
        hidden += of_jobs
        hidden += of_context
        np.maximum(hidden, 0.0, out=hidden)
        weight, bias = self._score
        made: Matrix = hidden @ weight + candidates @ self._skip + np.float32(bias)
        return made

    def hold(self, context: Matrix) -> Matrix:
        """Return the score of doing nothing more, `[..]`."""
        weight, bias = self._hold
        hidden = np.maximum(context @ weight + bias, 0.0)
        last, last_bias = self._hold_score
        made: Matrix = hidden @ last + np.float32(last_bias)
        return made

    def forward(
        self, jobs: Matrix, cluster: Matrix, candidates: Matrix, waits: Flags, holds: Flags
    ) -> tuple[Matrix, Matrix]:
        """Return the score of every candidate, and of doing nothing more.

        Args:
            jobs: Features `[.., n, F]`.
            cluster: Features `[.., G]`.
            candidates: Features `[.., n, CHOICES, A]`.
            waits: Which jobs wait, `[.., n]`.
            holds: Which have GPUs.

        Returns:
            Scores `[.., n, CHOICES]`, also of what is not possible, and `[..]`.
        """
        embedded = self.embed(jobs)
        context = self.context(pools(embedded, waits, holds), cluster)
        of_jobs = self.of_jobs(embedded)[..., None, :]
        of_context = self.of_context(context)[..., None, None, :]
        return self.score(of_jobs, of_context, candidates), self.hold(context)


def pools(embedded: Matrix, waits: Flags, holds: Flags) -> Matrix:
    """Return mean and maximum over waiting jobs and over those with GPUs; 0 if there are none.

    An embedding has no negative numbers, so 0 for other jobs does not change the maximum.

    Args:
        embedded: Embeddings `[.., n, job]`.
        waits: Which jobs wait, `[.., n]`.
        holds: Which have GPUs.
    """
    parts: list[Matrix] = []
    for chosen in (waits, holds):
        only = embedded * chosen[..., None]
        count = np.maximum(chosen.sum(-1), 1)[..., None].astype(np.float32)
        parts += [only.sum(-2) / count, only.max(-2, initial=0.0)]
    return np.concatenate(parts, axis=-1)


class Pools:
    """The pools of one scene, while jobs in it get GPUs or other sizes one by one."""

    def __init__(self, embedded: Matrix, waits: Flags, holds: Flags) -> None:
        """Begin with embeddings `[n, job]` of jobs that wait, or have GPUs."""
        self._embedded, self._chosen = embedded, (waits.copy(), holds)
        masks = [each.astype(np.float32) for each in self._chosen]
        self._counts = [int(each.sum()) for each in masks]
        self._sums = [embedded.T @ each for each in masks]
        self._most = [(embedded * each[:, None]).max(0, initial=0.0) for each in masks]

    def change(self, row: int, embedded: Matrix) -> None:
        """Take another embedding of a job, which has GPUs from now on."""
        before = self._embedded[row].copy()
        self._embedded[row] = embedded
        for at, chosen in enumerate(self._chosen):
            if chosen[row]:
                chosen[row] = False
                self._counts[at] -= 1
                self._sums[at] -= before
                if (before >= self._most[at]).any():
                    self._most[at] = (self._embedded * chosen[:, None]).max(0, initial=0.0)
        self._chosen[1][row] = True
        self._counts[1] += 1
        self._sums[1] += embedded
        np.maximum(self._most[1], embedded, out=self._most[1])

    def read(self) -> Matrix:
        """Return what `pools` does."""
        parts: list[Matrix] = []
        for count, total, most in zip(self._counts, self._sums, self._most, strict=True):
            parts += [total / np.float32(max(count, 1)), most]
        return np.concatenate(parts)


def random_weights(seed: int, sizes: Sizes | None = None) -> dict[str, Matrix]:
    """Return weights of an untrained network (He et al. 2015)."""
    rng = np.random.default_rng(seed)
    made: dict[str, Matrix] = {}
    for name, shape in shapes(sizes or Sizes()).items():
        scale = (2.0 / shape[-1]) ** 0.5 if name.endswith("weight") else 0.0
        made[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
    return made
