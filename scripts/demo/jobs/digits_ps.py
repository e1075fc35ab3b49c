"""Trains a digits classifier on parameter servers. Plain PyTorch but for its optimizer.

Started by `python -m skep_ps.launch --servers S digits_ps.py`. The workers share each epoch's
samples; how many there are may change at any mini-batch, and the servers too.
"""

from __future__ import annotations

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from skep_ps import SGD

TEST_SAMPLES = 360
"""A fifth of the 1,797 samples is kept for the accuracy."""


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Trains a digits classifier on servers.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="of all workers together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-accuracy", type=float, default=0.9)
    parser.add_argument("--asynchronous", action="store_true")
    return parser.parse_args()


def load(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images and labels to train on, and those to test on: alike in every process."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return images[train], labels[train], images[test], labels[test]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that the model classifies rightly."""
    with torch.no_grad():
        return int((model(images).argmax(dim=1) == labels).sum()) / len(labels)


def main() -> int:
    """Train, and return 1 if the model stayed too bad."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    images, labels, test_images, test_labels = load(arguments.seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = SGD(
        model.parameters(),
        lr=arguments.lr,
        momentum=0.9,
        asynchronous=arguments.asynchronous,
        average=False,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, arguments.epochs // 2 + 1, 0.3)
    total = 0.0
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for begin in range(0, len(order), arguments.batch_size):
            batch = order[begin : begin + arguments.batch_size]
            # Summed over the workers, the gradient is the mean over the whole mini-batch,
            # however many they are.
            own = batch[optimizer.rank :: optimizer.world]
            optimizer.zero_grad()
            outputs = model(images[own])
            loss = nn.functional.cross_entropy(outputs, labels[own], reduction="sum") / len(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total = loss.item()
            if optimizer.left:
                return 0
        schedule.step()
        if optimizer.rank == 0:
            reached = accuracy(model, test_images, test_labels)
            print(f"epoch {epoch + 1} loss={total:.4f} accuracy={reached:.4f}", flush=True)
    final = accuracy(model, test_images, test_labels)
    print(f"rank {optimizer.rank} final accuracy={final:.4f}", flush=True)
    return 0 if final >= arguments.min_accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
