"""A script for Lightning's Trainer."""

import hashlib
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    """A small net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 512), nn.Dropout(0.1), nn.Linear(512, 256))

    def training_step(self, batch: Any, _: int) -> Any:
        """Return the loss."""
        return nn.functional.mse_loss(self.net(batch[0]), batch[0])

    def configure_optimizers(self) -> Any:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
torch.set_num_threads(1)
model = Module()
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, devices=1
)
trainer.fit(model, DataLoader(TensorDataset(torch.randn(400, 256)), batch_size=2, shuffle=True))
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print("result", digest.hexdigest(), flush=True)
