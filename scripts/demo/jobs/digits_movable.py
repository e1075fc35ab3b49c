"""Trains a small classifier on handwritten digits; the marked lines make it movable.

With them the job can be checkpointed, moved to another node and begun again after a crash, and goes
on to the same bits. Without Skep the script is what it would be without them.
"""

from __future__ import annotations

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import skep_job  # 1

TEST_SAMPLES = 360
"""A fifth of the 1,797 samples is kept for the accuracy."""


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Trains a digits classifier that can be moved.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-accuracy", type=float, default=0.9)
    return parser.parse_args()


def load(seed: int) -> tuple[TensorDataset, Tensor, Tensor]:
    """Return the training set, and the images and labels of the test set, in a seeded order."""
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


def main() -> int:
    """Train, evaluate after every epoch, and return 1 if the model stayed too bad."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    train, images, labels = load(arguments.seed)
    loader = DataLoader(train, batch_size=arguments.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    loss_of = nn.CrossEntropyLoss()

    run = skep_job.init(checkpoint_every="10m")  # 2
    run.track(model=model, opt=optimizer, sched=schedule)  # 3
    for epoch in run.epochs(arguments.epochs):  # 4
        for batch, targets in run.batches(loader):  # 5
            optimizer.zero_grad()
            loss = loss_of(model(batch), targets)
            loss.backward()
            optimizer.step()
            run.report(loss=loss, samples=len(batch))  # If its curve is to be seen.
        schedule.step()
        print(
            f"epoch {epoch + 1}/{arguments.epochs} accuracy={accuracy(model, images, labels):.4f}",
            flush=True,
        )

    final = accuracy(model, images, labels)
    print(f"final accuracy={final:.4f}", flush=True)
    return 0 if final >= arguments.min_accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
