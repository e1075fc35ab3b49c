"""Behaviour cloning: a set network that does what pairs of a scheduler show.

The network is that of `skep.learn.net`, in PyTorch. At each pair it gives every candidate that is
possible a score, and one to doing nothing more; the loss is minus the logarithm of the probability
of what was done. Where several moves followed, any of them may come first: their probabilities add
up. The last part of the pairs, by time, is never trained on; how often the network does what was
done there is told with the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skep.learn import columns as c
from skep.learn import modelfile
from skep.learn.candidates import CHOICES, A, candidates
from skep.learn.features import F, G, cluster_features, holding, job_features, queued
from skep.learn.net import POOLS, Sizes, random_weights
from skep_lab.learn.pairs import Pairs
from skep_lab.learn.progress import Count, Progress, Saved, Tensors, UnfitError, numbers_of, rng_of

IMPOSSIBLE = -1e9
NOT_JUDGED = -1.0
"""The agreement with pairs that are held out, if there are none."""
JOBS_MAX = 64
"""Jobs of a pair that are trained on at a time: those that moved, and others drawn at random."""
ADAM = ("exp_avg", "exp_avg_sq")
RANGES = ("job", "cluster", "candidate")


class Settings(NamedTuple):
    """What a run may choose."""

    steps: Count = 2000
    batch: Count = 32
    """Pairs of a step."""
    rate: float = 0.002
    job: Count = 32
    head: Count = 32
    """Widths of the layers (`skep.learn.net.Sizes`)."""
    held_out: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    """The last part of the pairs, by time."""
    every: Count = 100
    """Steps between two points of the curves."""
    marked: bool = False
    """Whether pairs are taken that are not the scheduler's own choice."""


class Batch(NamedTuple):
    """Pairs as the network takes them."""

    jobs: torch.Tensor
    cluster: torch.Tensor
    candidates: torch.Tensor
    waits: torch.Tensor
    holds: torch.Tensor
    possible: torch.Tensor
    done: torch.Tensor
    """Which candidates, flattened, and last whether nothing, was done."""


class Network(nn.Module):
    """`skep.learn.net.SetNet`, to be trained: its weights have the same names and shapes."""

    def __init__(self, sizes: Sizes) -> None:
        """Begin with any weights."""
        super().__init__()
        context = (POOLS + 1) * sizes.job
        self.job = nn.Sequential(
            nn.Linear(F, sizes.job), nn.ReLU(), nn.Linear(sizes.job, sizes.job), nn.ReLU()
        )
        self.cluster = nn.Sequential(nn.Linear(G, sizes.job), nn.ReLU())
        inputs = sizes.job + context + A
        self.head = nn.Sequential(
            nn.Linear(inputs, sizes.head), nn.ReLU(), nn.Linear(sizes.head, 1)
        )
        self.hold = nn.Sequential(
            nn.Linear(context, sizes.head), nn.ReLU(), nn.Linear(sizes.head, 1)
        )
        self.skip = nn.Linear(A, 1, bias=False)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the logarithms of probabilities of all candidates, and last of doing nothing."""
        embedded = self.job(batch.jobs)
        parts = []
        for chosen in (batch.waits, batch.holds):
            only = embedded * chosen[..., None]
            parts += [only.sum(1) / chosen.sum(1).clamp(min=1)[:, None], only.amax(1)]
        context = torch.cat([*parts, self.cluster(batch.cluster)], -1)
        first = self.head[0]
        assert isinstance(first, nn.Linear)
        sizes = [embedded.shape[-1], context.shape[-1], A]
        of_job, of_context, of_option = torch.split(first.weight, sizes, 1)
        # The same as of one long row for each candidate, without making it.
        hidden = batch.candidates @ of_option.T + (embedded @ of_job.T)[:, :, None, :]
        hidden = (hidden + (context @ of_context.T + first.bias)[:, None, None, :]).relu()
        scores = self.head[2](hidden)[..., 0] + self.skip(batch.candidates)[..., 0]
        scores = scores.masked_fill(~batch.possible, IMPOSSIBLE).flatten(1)
        return torch.cat([scores, self.hold(context)], 1).log_softmax(1)


class Cloner:
    """A network that is being trained on pairs."""

    def __init__(self, settings: Settings, seed: int, pairs: Pairs) -> None:
        """Begin with random weights.

        Raises:
            UnfitError: There are too few pairs.
        """
        self.settings, self.pairs = settings, pairs
        self.rng = np.random.default_rng(seed)
        self.net = Network(Sizes(settings.job, settings.head))
        weights = random_weights(seed, Sizes(settings.job, settings.head))
        self.net.load_state_dict({name: torch.from_numpy(each) for name, each in weights.items()})
        self.adam = torch.optim.Adam(self.net.parameters(), settings.rate)
        self.step, self.agreement = 0, NOT_JUDGED
        self.ranges = {
            name: np.array([[np.inf] * size, [-np.inf] * size], dtype=np.float32)
            for name, size in (("job", F), ("cluster", G), ("candidate", A))
        }
        used = np.arange(pairs.size) if settings.marked else pairs.clean()
        used = used[[self._trains(place) for place in used]] if len(used) else used
        used = used[np.argsort(pairs.at[used], kind="stable")]
        self.held = used[len(used) - int(len(used) * settings.held_out) :]
        self.used = used[: len(used) - len(self.held)]
        if not len(self.used):
            text = f"none of {pairs.size} pairs is a scheduler's own choice among candidates"
            text += ": --set marked=true takes all"
            raise UnfitError(text)

    def _trains(self, place: int) -> bool:
        """Return whether what followed from a pair can be said by candidates."""
        moves = self.pairs.moves[self.pairs.first_move[place] : self.pairs.first_move[place + 1]]
        return not len(moves) or bool((moves[:, 1] >= 0).any())

    def batch(self, places: NDArray[np.int64]) -> Batch:
        """Return pairs as the network takes them; what it has seen widens the ranges."""
        found = [self._rows(self.pairs.pair(int(place))) for place in places]
        jobs = max(1, *(len(raw) for raw, _ in found))
        raw = np.zeros((len(found), jobs, c.RAW))
        done = np.zeros((len(found), jobs * CHOICES + 1), dtype=bool)
        for number, (rows, moved) in enumerate(found):
            raw[number, : len(rows)] = rows
            for row, choice in moved:
                done[number, row * CHOICES + choice] = True
        now, cluster = self.pairs.at[places], self.pairs.cluster[places]
        there = candidates(raw, cluster, now)
        possible = there.possible & (raw[..., c.WORKERS] > 0)[..., None]
        done[:, :-1] &= possible.reshape(len(found), -1)
        done[:, -1] = [not moved for _, moved in found]
        features = job_features(raw, cluster, now), cluster_features(cluster), there.features
        self._widen(features, raw[..., c.WORKERS] > 0, possible)
        seen, around, options = (torch.from_numpy(np.ascontiguousarray(each)) for each in features)
        return Batch(
            seen,
            around,
            options,
            torch.from_numpy(queued(raw).astype(np.float32)),
            torch.from_numpy(holding(raw).astype(np.float32)),
            torch.from_numpy(possible),
            torch.from_numpy(done),
        )

    def _rows(self, pair: Any) -> tuple[NDArray[np.float64], list[tuple[int, int]]]:
        """Return rows of a pair's jobs, few enough, and what was done by row and choice."""
        own = [(move.job, move.choice) for move in pair.moves if move.choice >= 0]
        if len(pair.raw) <= JOBS_MAX:
            return pair.raw, own
        moved = sorted({row for row, _ in own})[:JOBS_MAX]
        others = np.setdiff1d(np.arange(len(pair.raw)), moved)
        drawn = self.rng.choice(others, JOBS_MAX - len(moved), replace=False)
        at = {row: place for place, row in enumerate(moved)}
        return pair.raw[[*moved, *drawn]], [(at[row], each) for row, each in own if row in at]

    def _widen(self, features: tuple[Any, ...], there: Any, possible: Any) -> None:
        jobs, cluster, options = features
        for name, seen in (
            ("job", jobs[there]),
            ("cluster", cluster),
            ("candidate", options[possible]),
        ):
            if len(seen):
                low, high = self.ranges[name]
                np.minimum(low, seen.min(0), out=low)
                np.maximum(high, seen.max(0), out=high)

    def learn(self) -> float:
        """Take one step; return the loss."""
        batch = self.batch(self.rng.choice(self.used, self.settings.batch))
        known = batch.done.any(1)  # Else a cell was free that no candidate shows.
        logs = self.net(batch).masked_fill(~batch.done, IMPOSSIBLE).logsumexp(1)
        loss = -(logs * known).sum() / known.sum().clamp(min=1)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.step += 1
        return float(loss.detach())

    def agrees(self) -> float:
        """Return how often, of the pairs that are held out, the likeliest is what was done."""
        if not len(self.held):
            return NOT_JUDGED
        same = total = 0
        kept, ranges = self.rng.bit_generator.state, {k: v.copy() for k, v in self.ranges.items()}
        with torch.no_grad():
            for first in range(0, len(self.held), self.settings.batch):
                batch = self.batch(self.held[first : first + self.settings.batch])
                best = self.net(batch).argmax(1, keepdim=True)
                same += int(batch.done.gather(1, best).sum())
                total += len(best)
        self.rng.bit_generator.state, self.ranges = kept, ranges
        return same / total

    def save(self) -> Saved:
        """Return all that training goes on from."""
        tensors: dict[str, NDArray[Any]] = {
            f"net.{name}": each.numpy().copy() for name, each in self.net.state_dict().items()
        }
        for name, each in self.net.named_parameters():
            state = self.adam.state[each]
            tensors |= {f"{part}.{name}": state[part].numpy().copy() for part in ADAM}
        tensors |= {f"range.{name}": each.copy() for name, each in self.ranges.items()}
        about = {key: self.pairs.about.get(key) for key in ("from", "source", "sha256", "policies")}
        numbers = {"rng": numbers_of(self.rng), "agreement": self.agreement, "pairs": about}
        return Saved(self.step, tensors, numbers)

    def load(self, saved: Saved) -> None:
        """Go on from there."""
        self.step, self.rng = saved.step, rng_of(saved.numbers["rng"])
        self.agreement = float(saved.numbers["agreement"])
        self.net.load_state_dict(
            {name: _tensor(saved.tensors, f"net.{name}") for name in self.net.state_dict()}
        )
        for name, each in self.net.named_parameters():
            self.adam.state[each] = {
                "step": torch.tensor(float(saved.step)),
                **{part: _tensor(saved.tensors, f"{part}.{name}") for part in ADAM},
            }
        self.ranges = {name: saved.tensors[f"range.{name}"].copy() for name in self.ranges}


def _tensor(tensors: Tensors, name: str) -> torch.Tensor:
    return torch.from_numpy(np.array(tensors[name]))


def train(
    settings: Settings, seed: int, saved: Saved | None = None, *, pairs: Pairs
) -> Iterator[Progress]:
    """Train on pairs, and yield the progress every so many steps.

    Args:
        settings: What may be chosen.
        seed: Of the weights, and of the pairs of each step.
        saved: What an earlier run goes on from.
        pairs: What the scheduler saw and did.

    Raises:
        UnfitError: There are too few pairs.
    """
    torch.set_num_threads(1)
    cloner = Cloner(settings, seed, pairs)
    if saved is not None:
        cloner.load(saved)
    while cloner.step < settings.steps:
        until = min(cloner.step + settings.every, settings.steps)
        losses = []
        while cloner.step < until:
            losses.append(cloner.learn())
        cloner.agreement = cloner.agrees()
        values = {"loss": float(np.mean(losses)), "agreement": cloner.agreement}
        yield Progress(cloner.step, settings.steps, values, cloner.save)


def model_of(saved: Saved, settings: Settings, seed: int) -> bytes:
    """Return the file of the model.

    Args:
        saved: What the run ended with.
        settings: Those of the run.
        seed: That of the run.
    """
    weights = {
        name.removeprefix("net."): each
        for name, each in saved.tensors.items()
        if name.startswith("net.")
    }
    about: Mapping[str, Any] = saved.numbers["pairs"]
    source = " ".join(str(about[key]) for key in ("from", "source", "sha256") if about.get(key))
    agreement = float(saved.numbers["agreement"])
    header = modelfile.Header(
        job=settings.job,
        head=settings.head,
        trained_on=source,
        learner=f"imitate: {settings.steps} steps of {settings.batch} pairs",
        seeds=(seed,),
        report={"agreement": agreement} if agreement >= 0 else {},
        ranges=modelfile.Ranges(**{name: _range(saved, name) for name in RANGES}),
    )
    return modelfile.dump(weights, header)


def _range(saved: Saved, name: str) -> tuple[tuple[float, float], ...]:
    low, high = saved.tensors[f"range.{name}"]
    if not np.isfinite(low).all():
        return ()
    return tuple((float(least), float(most)) for least, most in zip(low, high, strict=True))
