"""Trains a small net with all that a suspension could upset, and prints hashes of what came out.

    python train_everything.py STEPS WORKERS [WORKERS ...]

One phase for each number of data-loader workers. With RANK and a rendezvous file in MEET, all
ranks train together. DEVICE chooses another device than the CPU.
"""

import copy
import hashlib
import json
import os
import struct
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 256
DEVICE = os.environ.get("DEVICE", "cpu")


class Net(nn.Module):
    """Has buffers, dropout, and one weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.2)
        self.leave = nn.Linear(WIDTH, WIDTH)
        self.leave.weight = self.enter.weight
        self.table = nn.Embedding(512, WIDTH)
        self.history: torch.Tensor
        self.register_buffer("history", torch.zeros(256, WIDTH))

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the prediction, and note the mean activation."""
        hidden = self.drop(torch.relu(self.norm(self.enter(x)))) + self.table(tokens)
        if self.training:
            self.history = torch.roll(self.history, 1, 0)
            self.history[0] = hidden.detach().mean(0)
        out: torch.Tensor = self.leave(hidden)
        return out


def main() -> None:
    """Run every phase."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(DEVICE == "cpu")
    steps, phases = int(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    if "MEET" in os.environ:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meet = f"file://{os.environ['MEET']}"
        torch.distributed.init_process_group("gloo", meet, rank=rank, world_size=world)
    for workers in phases:
        print(json.dumps({"workers": workers, **train(steps, workers)}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def train(steps: int, workers: int) -> dict[str, str]:
    """Train `steps` mini-batches; return what must not depend on suspensions."""
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(7)
    net = Net().to(DEVICE)
    view = net.enter.weight.detach()[10:200]  # Of the same memory, and never told to anybody.
    average = copy.deepcopy(net)
    model = DistributedDataParallel(net) if torch.distributed.is_initialized() else net
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    torch.manual_seed(11 + rank)
    x, tokens = torch.randn(640, WIDTH), torch.randint(512, (640,))
    data = TensorDataset(x, tokens, torch.randn(640, WIDTH))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=workers, drop_last=True)
    losses, seen, step = [], hashlib.sha256(), 0
    while step < steps:
        for x, tokens, y in loader:
            if step == steps:
                break
            optimizer.zero_grad()
            loss = ((model(x.to(DEVICE), tokens.to(DEVICE)) - y.to(DEVICE)) ** 2).mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                for kept, new in zip(average.parameters(), net.parameters(), strict=True):
                    kept.lerp_(new, 0.05)
            losses.append(loss.item())
            seen.update(struct.pack("<f", view[3, 5].item()))
            step += 1
    assert view.data_ptr() == net.enter.weight[10:200].data_ptr()
    state = [*net.state_dict().values(), *average.state_dict().values()]
    state += [value for slot in optimizer.state.values() for value in slot.values()]
    state += [torch.get_rng_state(), view]
    digest = hashlib.sha256()
    for tensor in state:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return {
        "losses": hashlib.sha256(struct.pack(f"<{len(losses)}f", *losses)).hexdigest(),
        "last": repr(losses[-1]),
        "views": seen.hexdigest(),
        "state": digest.hexdigest(),
    }


main()
