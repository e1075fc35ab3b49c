"""A training by an Engine of ignite, which knows nothing of Skep."""

from __future__ import annotations

from typing import Any

import torch
from digest import tell
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def update(_: Engine, batch: Any) -> float:
    """Train on a mini-batch."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(batch[0]), batch[0])
    loss.backward()
    optimizer.step()
    return loss.item()


trainer = Engine(update)


@trainer.on(Events.EPOCH_COMPLETED)
def say(engine: Engine) -> None:
    """Print the loss."""
    print(f"epoch {engine.state.epoch}: {engine.state.output:.6f}", flush=True)


trainer.run(DataLoader(TensorDataset(torch.randn(240, 64)), batch_size=4, shuffle=True), 2)
tell(model.state_dict().values())
