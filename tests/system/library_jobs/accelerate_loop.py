"""A script's own loop with accelerate, with Skep's line: `accelerate_loop.py`."""

from __future__ import annotations

import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from digest import tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from skep_job.accelerate_loop import follow

set_seed(0)
ON_CPU = os.environ.get("TRAIN_ON", "cpu") == "cpu"
accelerator = Accelerator(cpu=ON_CPU, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
rows, others = TensorDataset(torch.randn(240, 64)), TensorDataset(torch.randn(16, 64))
training, validation = DataLoader(rows, batch_size=2, shuffle=True), DataLoader(others, 4)
model, optimizer, training, validation, schedule = accelerator.prepare(
    model, optimizer, training, validation, schedule
)
follow(accelerator)
for epoch in range(2):
    model.train()
    for (x,) in training:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(x), x))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), x) for (x,) in validation]
    accelerator.print(f"epoch {epoch}: {sum(losses):.6f}")
if accelerator.is_main_process:
    tell(accelerator.unwrap_model(model).state_dict().values())
