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
    """A network with its weights. All its functions take any number of leading axes.

    The hidden layer of the head has one more number, the score by `skip`: it is not cut off at 0,
    and has weight 1.
    """

    def __init__(self, weights: Mapping[str, Matrix]) -> None:
        """Take weights of the shapes of `shapes`; units that nothing looks at are left out."""
        self.weights = dict(weights)
        self.sizes = Sizes(weights["job.0.weight"].shape[0], weights["head.0.weight"].shape[0])
        job = self.sizes.job
        last, last_hold = weights["head.2.weight"][0], weights["hold.2.weight"][0]
        seen, held = last != 0, last_hold != 0
        self._score = np.append(last[seen], np.float32(1.0))
        self._least = np.append(np.zeros(seen.sum()), -np.inf).astype(np.float32)
        self._hold_score = last_hold[held], weights["hold.2.bias"][0]
        first, hold = weights["head.0.weight"][seen], weights["hold.0.weight"][held]
        nothing = np.zeros((1, (POOLS + 2) * job), dtype=np.float32)
        first = np.concatenate([first, np.concatenate([nothing, weights["skip.weight"]], 1)])
        of_job, of_context, of_candidate = np.split(first, [job, (POOLS + 2) * job], axis=1)
        of_pools, of_cluster = np.split(np.concatenate([of_context, hold]), [POOLS * job], axis=1)
        biases = weights["head.0.bias"][seen], weights["head.2.bias"], weights["hold.0.bias"][held]
        self._of_pools, self._of_cluster = _turned(of_pools), _turned(of_cluster)
        self._of_none, self._of_candidate = np.concatenate(biases), _turned(of_candidate)
        self._cluster = _turned(weights["cluster.0.weight"]), weights["cluster.0.bias"]
        self.sees_pools = bool(of_pools.any())
        """Whether other jobs are of any matter to the score of a candidate."""
        outer = of_job.any(0) | self.sees_pools
        inner = weights["job.2.weight"][outer].any(0)
        self._of_job = _turned(of_job[:, outer])
        self._job = [
            (weights["job.0.weight"][inner], weights["job.0.bias"][inner, None]),
            (weights["job.2.weight"][outer][:, inner], weights["job.2.bias"][outer, None]),
        ]

    def embed(self, jobs: Matrix) -> Matrix:
        """Return the embeddings of jobs, `[.., n, job]`, from their features.

        The feature is the slowest axis in memory here: so pools are sums over what is adjacent.
        """
        made = jobs.swapaxes(-1, -2)
        for weight, bias in self._job:
            made = weight @ made
            made += bias
            np.maximum(made, _NOTHING, out=made)
        return made.swapaxes(-1, -2)

    def encode(self, cluster: Matrix) -> Matrix:
        """Return encoded clusters, `[.., job]`, from their features."""
        weight, bias = self._cluster
        made: Matrix = cluster @ weight
        made += bias
        return np.maximum(made, _NOTHING, out=made)

    def of_jobs(self, embedded: Matrix) -> Matrix:
        """Return the part of jobs in the hidden layer of the head."""
        made: Matrix = embedded @ self._of_job
        return made

    def of_context(self, pools: Matrix | None, encoded: Matrix) -> tuple[Matrix, Matrix]:
        """Return the part of the context in the hidden layer of the head, and the score of holding.

        That is the score of doing nothing more, `[..]`.

        Args:
            pools: Of the jobs; None: they are of no matter.
            encoded: The cluster.
        """
        made: Matrix = encoded @ self._of_cluster
        made += self._of_none
        if pools is not None:
            made += pools @ self._of_pools
        ends = len(self._score)
        last, last_bias = self._hold_score
        hold: Matrix = np.maximum(made[..., ends:], _NOTHING) @ last + last_bias
        return made[..., :ends], hold

    def score(self, of_jobs: Matrix, of_context: Matrix, candidates: Matrix) -> Matrix:
        """Return the scores of candidates, `[..]`.

        Args:
            of_jobs: The part of each candidate's job in the hidden layer, `[.., head + 1]`; axes of
                length 1 are broadcast.
            of_context: The part of its context.
            candidates: Features, `[.., A]`.
        """
        hidden = candidates @ self._of_candidate
        hidden += of_jobs
        hidden += of_context
        made: Matrix = np.maximum(hidden, self._least, out=hidden) @ self._score
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
        pooled = pools(embedded, waits, holds) if self.sees_pools else None
        of_context, hold = self.of_context(pooled, self.encode(cluster))
        of_jobs = self.of_jobs(embedded)[..., None, :]
        return self.score(of_jobs, of_context[..., None, None, :], candidates), hold


_NOTHING = np.zeros((), dtype=np.float32)


def _turned(weight: NDArray[np.float32]) -> Matrix:
    return np.ascontiguousarray(weight.T, dtype=np.float32)


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
        self._embedded = embedded.T
        self._chosen = np.empty((2, len(embedded)), dtype=np.float32)
        self._chosen[0], self._chosen[1] = waits, holds
        self._counts = self._chosen.sum(1)
        self._sums = self._chosen @ embedded
        self._most = (self._embedded * self._chosen[:, None]).max(-1, initial=0.0)
        self._made = np.empty((2, 2, embedded.shape[1]), dtype=np.float32)

    def change(self, row: int, embedded: Matrix) -> None:
        """Take another embedding of a job, which has GPUs from now on."""
        before = self._embedded[:, row].copy()
        self._embedded[:, row] = embedded
        at = int(self._chosen[1, row])  # Where it was.
        self._chosen[at, row], self._chosen[1, row] = 0.0, 1.0
        self._counts[at] -= 1
        self._counts[1] += 1
        self._sums[at] -= before
        self._sums[1] += embedded
        most = self._most[at]
        gone = (before * (before >= most)).nonzero()[0]
        if len(gone):
            most[gone] = (self._embedded[gone] * self._chosen[at]).max(1)
        np.maximum(self._most[1], embedded, out=self._most[1])

    def read(self) -> Matrix:
        """Return what `pools` does."""
        np.divide(self._sums, np.maximum(self._counts, 1.0)[:, None], out=self._made[:, 0])
        self._made[:, 1] = self._most
        return self._made.reshape(-1)


def random_weights(seed: int, sizes: Sizes | None = None) -> dict[str, Matrix]:
    """Return weights of an untrained network (He et al. 2015)."""
    rng = np.random.default_rng(seed)
    made: dict[str, Matrix] = {}
    for name, shape in shapes(sizes or Sizes()).items():
        scale = (2.0 / shape[-1]) ** 0.5 if name.endswith("weight") else 0.0
        made[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
    return made
