"""A recipe in the form that torchtune's have, with five lines of Skep's.

A class that is set up, trains by epochs over a StatefulDataLoader of torchdata with accumulated
gradients, a schedule and clipping.
"""

from __future__ import annotations

import torch
from digest import tell
from torch import nn
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import skep_job

EPOCHS, BATCHES, ACCUMULATED = 2, 120, 2


class Texts(IterableDataset):  # type: ignore[type-arg]
    """Samples without an index, which know how many of them were read."""

    def __init__(self) -> None:
        self.rows, self.read = torch.randint(100, (BATCHES * 4, 16)), 0

    def __iter__(self) -> Texts:
        return self

    def __next__(self) -> torch.Tensor:
        if self.read == len(self.rows):
            self.read = 0
            raise StopIteration
        self.read += 1
        return self.rows[self.read - 1]

    def state_dict(self) -> dict[str, int]:
        """Return the place."""
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a place."""
        self.read = state["read"]


class Recipe:
    """Trains a small language model."""

    def setup(self) -> None:
        """Make what the training needs."""
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
        self.model = nn.Sequential(nn.Embedding(100, 32), layer, nn.Linear(32, 100))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 120)
        self.loader = StatefulDataLoader(Texts(), batch_size=4)
        self.run = skep_job.init()
        self.run.track(model=self.model, optimizer=self.optimizer, schedule=self.schedule)

    def train(self) -> None:
        """Train all epochs."""
        for _ in self.run.epochs(EPOCHS):
            for number, tokens in self.run.enumerate(self.loader):
                logits = self.model(tokens)[:, :-1].flatten(0, 1)
                loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
                (loss / ACCUMULATED).backward()
                if number % ACCUMULATED == ACCUMULATED - 1:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.schedule.step()
        tell(self.model.state_dict().values())


recipe = Recipe()
recipe.setup()
recipe.train()
