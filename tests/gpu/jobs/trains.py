"""Trains a model on the GPU (on the CPU where PyTorch has none), and notes every mini-batch.

A note is one line: the attempt, the process, when (monotonic seconds), and the loss to its last
bit. The losses do not depend on when the job stood still, nor on what shared its GPU. The log
begins with a JSON line about the device. To ask for memory, write a number of bytes to NOTES.ask:
NOTES.answer then says `given` or `refused`. Only with `--cooperative` the loop has code for Skep.
`--way` says how it trains: compiled with mixed precision, split by FSDP2 (over gloo or NCCL), or as
ranks of torchrun.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # Sums in one order, always.
sys.path.insert(0, str(Path(__file__).parents[2] / "e2e" / "jobs"))

if "--way" not in sys.argv:
    import quick_torch  # noqa: F401 - PyTorch starts twice as fast
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

PAUSE_S = 0.004
"""Between two mini-batches: a reference, which makes none, is soon ahead of every job."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("notes", type=Path)
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--steps", type=int, default=0, help="without pauses")
    parser.add_argument("--pause", type=float, default=PAUSE_S)
    parser.add_argument("--model", choices=MODELS, default="layers")
    parser.add_argument(
        "--way", choices=("plain", "compiled", "split", "nccl", "ranks"), default="plain"
    )
    parser.add_argument("--cooperative", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    width = chosen.width
    model = trained(MODELS[chosen.model](width).to(DEVICE), chosen.way)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(torch.randn(1024, width)), 64, shuffle=True)
    print(json.dumps(about()), flush=True)
    attempt, count = os.environ.get("SKEP_GEN", "1"), 0
    mixed = torch.autocast(DEVICE, torch.bfloat16, enabled=chosen.way == "compiled")
    rank = dist.get_rank() if chosen.way == "ranks" else 0
    path = chosen.notes if rank == 0 else chosen.notes.with_suffix(f".{rank}")
    with path.open("a", buffering=1) as notes:
        for x in batches(model, optimizer, loader, cooperative=chosen.cooperative):
            optimizer.zero_grad()
            with mixed:
                loss = model(x.to(DEVICE)).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            count += 1
            now = time.monotonic()
            notes.write(f"{attempt} {os.getpid()} {now:.4f} {loss.item().hex()}\n")
            answer(chosen.notes)
            if count == chosen.steps or over(chosen):
                break
            if not chosen.steps and chosen.pause:
                # tidy: allow sleep because it bounds how many mini-batches are compared
                time.sleep(chosen.pause)
    if dist.is_initialized():
        dist.destroy_process_group()


def layers(width: int) -> nn.Module:
    """Return square layers."""
    blocks = [[nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1)] for _ in range(4)]
    return nn.Sequential(*itertools.chain(*blocks), nn.Linear(width, 1))


def transformer(width: int) -> nn.Module:
    """Return an encoder of eight tokens, whose width is that of the data."""
    block = nn.TransformerEncoderLayer(width, 8, 2 * width, dropout=0.1, batch_first=True)
    tokens = nn.Linear(width, 8 * width), nn.Unflatten(1, (8, width))
    return nn.Sequential(*tokens, nn.TransformerEncoder(block, 4, enable_nested_tensor=False))


def convolutions(width: int) -> nn.Module:
    """Return convolutions of pictures of 32 x 32, with an eighth of the width as channels."""
    few, many = width // 8, width // 4
    parts: list[nn.Module] = [nn.Linear(width, 3 * 32 * 32), nn.Unflatten(1, (3, 32, 32))]
    for before, after in itertools.pairwise((3, few, few, many, many)):
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(many, 10))


MODELS = {"layers": layers, "transformer": transformer, "convolutions": convolutions}


def trained(model: nn.Module, way: str) -> nn.Module:
    """Return a model as it is trained."""
    match way:
        case "compiled":
            backend = "inductor" if DEVICE == "cuda" else "aot_eager"
            model.compile(backend=backend)
            return model
        case "split" | "nccl":
            from torch.distributed.fsdp import fully_shard

            meet("nccl" if way == "nccl" and DEVICE == "cuda" else "gloo")
            for layer in model.children():
                if list(layer.parameters()):
                    fully_shard(layer)
            fully_shard(model)
            return model
        case "ranks":
            meet("gloo")
            return nn.parallel.DistributedDataParallel(model)
        case _:
            return model


def meet(backend: str) -> None:
    """Form the process group: of one rank, where nobody says that there are more."""
    from torch._C._distributed_c10d import HashStore

    # NCCL takes no two ranks on one GPU.
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


def over(chosen: argparse.Namespace) -> bool:
    """Return whether the training is to end; all ranks end after the same mini-batch."""
    word = torch.tensor(int(chosen.until.exists()))
    if chosen.way == "ranks":
        dist.all_reduce(word)
    return bool(word)


def about() -> dict[str, object]:
    """Return what this process sees of its device, and what it was told."""
    cuda = DEVICE == "cuda"
    return {
        "device": DEVICE,
        "name": torch.cuda.get_device_name() if cuda else "",
        "count": torch.cuda.device_count() if cuda else 0,
        "bytes": torch.cuda.memory_allocated() if cuda else 0,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "mps": os.environ.get("CUDA_MPS_PIPE_DIRECTORY"),
        "torch": torch.__version__,
    }


def batches(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[Tensor, ...]],
    *,
    cooperative: bool,
) -> Iterator[Tensor]:
    if not cooperative:
        for _ in range(10_000):
            for (x,) in loader:
                yield x
        return
    import skep_job

    run = skep_job.init()
    run.track(model=model, opt=optimizer)
    for _ in run.epochs(10_000):
        for (x,) in run.batches(loader):
            yield x


def answer(notes: Path) -> None:
    """Ask for as much memory as the file says, and write down what came of it."""
    asked = notes.with_suffix(".ask")
    if not asked.exists():
        return
    size = int(asked.read_text())
    asked.unlink()
    try:
        take(size)
    except torch.OutOfMemoryError:
        word = "refused"
    else:
        word = "given"
    notes.with_suffix(".answer").write_text(word)


def take(size: int) -> None:
    """Take device memory and give it back at once."""
    from skep_job.devices import fake_gpus

    for fake in fake_gpus.mine()[:1]:
        fake.allocate(size)
        fake.free(size)
    if DEVICE == "cuda":
        held = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        del held
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
