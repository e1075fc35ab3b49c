"""Trains a small convolutional classifier on handwritten digits. Plain PyTorch."""

from __future__ import annotations

import argparse
import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

TEST_SAMPLES = 360
"""A fifth of the 1,797 samples is kept for the accuracy."""


class Network(nn.Module):
    """Two convolutions and a linear layer over an image of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.second = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.normal = nn.BatchNorm2d(32)
        self.last = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per digit: float32 [images, 10]."""
        features = functional.relu(self.first(images))
        features = functional.relu(self.normal(self.second(features)))
        scores: Tensor = self.last(functional.max_pool2d(features, 2).flatten(1))
        return scores


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-accuracy", type=float, default=0.9)
    return parser.parse_args()


def load(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test set, in a seeded order."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def accuracy(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """Return the share of the loader's images that the model classifies rightly."""
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for images, labels in loader:
            right += int((model(images).argmax(dim=1) == labels).sum())
            seen += len(labels)
    model.train()
    return right / seen


def main() -> int:
    """Train, evaluate after every epoch, and return 1 if the model stayed too bad."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    train, test = load(arguments.seed)
    train_loader = DataLoader(train, batch_size=arguments.batch_size, shuffle=True)
    test_loader = DataLoader(test, batch_size=TEST_SAMPLES)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        total = 0.0
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = loss_of(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        schedule.step()
        print(
            f"epoch {epoch}/{arguments.epochs} loss={total / len(train_loader):.4f} "
            f"accuracy={accuracy(model, test_loader):.4f}",
            flush=True,
        )

    final = accuracy(model, test_loader)
    print(f"final accuracy={final:.4f}", flush=True)
    return 0 if final >= arguments.min_accuracy else 1


if __name__ == "__main__":
    sys.exit(main())
