"""Trains a small model with plain PyTorch; knows nothing of Skep. Prints each loss as it is.

It makes its last step once the file GO is there.
"""

import os
import sys
import time

import torch
from torch import nn

STEPS, PAUSE_S = int(sys.argv[1]), float(sys.argv[2])

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
model = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.2), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
step = 0
with open(os.environ["LOSSES"], "w") as losses:
    while step < STEPS:
        for inputs, labels in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):
            while step == STEPS - 1 and not os.path.exists(os.environ["GO"]):
                time.sleep(0.05)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            step += 1
            value = float(loss.item()).hex()
            losses.write(f"{step} {value}\n")
            losses.flush()
            if step % 10 == 0:
                print(f"LOSS {step} {value}", flush=True)
            time.sleep(PAUSE_S)
            if step == STEPS:
                break
