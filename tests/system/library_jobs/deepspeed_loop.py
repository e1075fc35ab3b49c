"""An engine of DeepSpeed on a CPU, which knows nothing of Skep: `deepspeed_loop.py ZeRO_STAGE`."""

from __future__ import annotations

import os
import sys

import deepspeed
import torch
from digest import tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
    os.environ.setdefault(name, value)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29531")
# Else it compiles one for all_reduce in shared memory, for minutes.
deepspeed.ops.__compatible_ops__ = dict.fromkeys(deepspeed.ops.__compatible_ops__, False)
torch.manual_seed(0)
deepspeed.init_distributed("gloo")
model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64))
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": int(sys.argv[1].removeprefix("ZeRO_"))},
        "zero_allow_untested_optimizer": True,
    },
)
rows = TensorDataset(torch.randn(480, 64))
for _ in range(2):
    for (x,) in DataLoader(rows, batch_size=4, shuffle=True):
        loss = nn.functional.mse_loss(engine(x), x)
        engine.backward(loss)
        engine.step()
tell(engine.module.state_dict().values())
