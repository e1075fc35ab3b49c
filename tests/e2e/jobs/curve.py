"""Climbs a made-up learning curve at a known pace, without a model, and stands where it is told.

curve.py RATE STEPS: after n mini-batches its `accuracy` is 1 - (1 + RATE * n) ** -0.5.
"""

from __future__ import annotations

import sys
import time

import skep_job

PAUSE_S = 0.02


def main() -> None:
    """Make the mini-batches, and tell the accuracy after each."""
    rate, steps = float(sys.argv[1]), int(sys.argv[2])
    run = skep_job.init()
    while run.steps < steps:
        time.sleep(PAUSE_S)  # tidy: allow sleep because this is a job, and it paces itself
        run.report(accuracy=1 - (1 + rate * (run.steps + 1)) ** -0.5)
        run.step()


if __name__ == "__main__":
    main()
