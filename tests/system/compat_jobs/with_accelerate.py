"""A script for `accelerate launch`."""

import hashlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(256, 512), nn.Dropout(0.1), nn.Linear(512, 256))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(400, 256)), batch_size=2, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (x,) in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.mse_loss(model(x), x))
        optimizer.step()
        optimizer.zero_grad()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print("result", digest.hexdigest(), flush=True)
