"""A job that reports mini-batches as a training does, and waits in between: STEPS SECONDS."""

from __future__ import annotations

import sys
import time

import skep_job


def main() -> None:
    """Make so many mini-batches that take so long each."""
    steps, step_s = int(sys.argv[1]), float(sys.argv[2])
    run = skep_job.init()
    while run.steps < steps:
        time.sleep(step_s)
        run.step()


if __name__ == "__main__":
    main()
