"""A short trial: a small network, and the time of its first mini-batch.

short_trial.py RATE STEPS FILE: appends the wall-clock time (s) after the first mini-batch to FILE.
"""

import json
import os
import sys
import time

import torch

import skep_job


def main() -> None:
    """Train for some mini-batches."""
    rate, steps, file = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    inputs = torch.randn(64, 8)
    targets = inputs.sum(1, keepdim=True)
    run = skep_job.init()
    loss = torch.zeros(())
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        run.report(loss=loss.item())
        run.step()
        if not step:
            line = json.dumps({"job": os.environ["SKEP_JOB"], "at": time.time()}) + "\n"
            with open(file, "a", encoding="ascii") as out:
                out.write(line)
    print(f"{loss.item():.9f}")


if __name__ == "__main__":
    main()
