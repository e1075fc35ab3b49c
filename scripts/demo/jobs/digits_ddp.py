"""Trains a digits classifier with DistributedDataParallel over gloo. Plain PyTorch.

Every process gets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its launcher, as with
torchrun. Each trains on its own share of the samples; rank 0 evaluates and prints.
"""

from __future__ import annotations

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TEST_SAMPLES = 360
"""A fifth of the 1,797 samples is kept for the accuracy."""


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Trains a digits classifier on several processes.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="per process")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-accuracy", type=float, default=0.9)
    return parser.parse_args()


def load(seed: int) -> tuple[TensorDataset, Tensor, Tensor]:
    """Return the training set, and the images and labels of the test set: alike on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return TensorDataset(images[train], labels[train]), images[test], labels[test]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that the model classifies rightly."""
    model.eval()
    with torch.no_grad():
        right = int((model(images).argmax(dim=1) == labels).sum())
    model.train()
    return right / len(labels)


def train(arguments: argparse.Namespace) -> int:
    """Train together with the other ranks; return 1, on every rank, if the model stayed too bad."""
    leads = distributed.get_rank() == 0
    samples, images, labels = load(arguments.seed)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        samples, shuffle=True, seed=arguments.seed
    )
    loader = DataLoader(samples, batch_size=arguments.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(replica.parameters(), lr=arguments.lr)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        total = 0.0
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = loss_of(replica(batch), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
        if leads:
            print(
                f"epoch {epoch}/{arguments.epochs} loss={total / len(loader):.4f} "
                f"accuracy={accuracy(model, images, labels):.4f}",
                flush=True,
            )

    # Rank 0 speaks for all: the others wait here for its result and end with the same status.
    result = torch.tensor([accuracy(model, images, labels) if leads else 0.0])
    distributed.broadcast(result, src=0)
    final = result.item()
    if leads:
        print(f"final accuracy={final:.4f}", flush=True)
    return 0 if final >= arguments.min_accuracy else 1


def main() -> int:
    """Join the other ranks, train, and leave in order."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    distributed.init_process_group("gloo", init_method="env://")
    try:
        return train(arguments)
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
