"""Scripts for the Trainer of Lightning, with Skep's line: `lightning_fit.py NAME`."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import lightning
import torch
from digest import tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from skep_job.lightning_callback import SkepCallback


class Plain(lightning.LightningModule):
    """A small net with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64))

    def training_step(self, batch: Any, _: int) -> Any:
        """Return the loss."""
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[0])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Validated(Plain):
    """With a validation that draws random numbers, and a schedule."""

    def validation_step(self, batch: Any, _: int) -> None:
        """Log the loss with noise."""
        noisy = batch[0] + torch.randn_like(batch[0])
        self.log("val_loss", nn.functional.mse_loss(self.net(noisy), batch[0]))

    def configure_optimizers(self) -> Any:
        """Return AdamW and its schedule, which goes by batches."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Gan(lightning.LightningModule):
    """Two optimizers by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.fake, self.judge = nn.Linear(64, 64), nn.Linear(64, 1)

    def training_step(self, batch: Any, number: int) -> None:
        """Train the judge, and each second batch what it judges."""
        fool, catch = self.optimizers()
        noise = torch.randn_like(batch[0])
        catch.zero_grad()
        loss = (self.judge(self.fake(noise).detach()) - self.judge(batch[0])).mean()
        self.manual_backward(loss)
        catch.step()
        if number % 2:
            fool.zero_grad()
            self.manual_backward(-self.judge(self.fake(noise)).mean())
            fool.step()

    def configure_optimizers(self) -> Any:
        """Return one for each net."""
        adam = torch.optim.Adam
        return adam(self.fake.parameters(), lr=1e-3), adam(self.judge.parameters(), lr=1e-3)


def loader(count: int, **more: Any) -> Any:
    """Return a loader over random rows."""
    return DataLoader(TensorDataset(torch.randn(count, 64)), batch_size=4, **more)


def main() -> None:
    """Train by one of them."""
    lightning.seed_everything(0)
    name = sys.argv[1]
    model: Any = {"gan": Gan, "validated": Validated}.get(name, Plain)()
    more: dict[str, Any] = {"enable_checkpointing": False}
    if name == "validated":
        more = {"accumulate_grad_batches": 2, "val_check_interval": 20}
    if name == "ranks":
        more |= {"devices": int(os.environ["WORLD_SIZE"]), "strategy": "ddp"}
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator=os.environ.get("TRAIN_ON", "cpu"),
        logger=False,
        enable_progress_bar=False,
        default_root_dir=tempfile.mkdtemp(),
        callbacks=[SkepCallback()],
        **{"devices": 1, **more},
    )
    count = 480 if name == "validated" else 240
    workers = {"num_workers": 1} if name == "workers" else {}
    trainer.fit(model, loader(count, shuffle=True, **workers), loader(8))
    if trainer.is_global_zero:
        tell(model.state_dict().values())


main()
