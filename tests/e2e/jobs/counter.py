"""Does what stepper.py does, without a model: for machines without PyTorch, and in a hurry."""

from __future__ import annotations

import os
import time

PAUSE_S = 0.02


def main() -> None:
    """Count until $STEPS_FILE.stop exists."""
    path, attempt, rank = (
        os.environ["STEPS_FILE"],
        os.environ["SKEP_GEN"],
        os.environ.get("RANK", "0"),
    )
    notes = os.open(f"{path}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    step = 0
    while not os.path.exists(f"{path}.stop"):
        step += 1
        os.write(notes, f"{attempt} {step}\n".encode())
        time.sleep(PAUSE_S)  # tidy: allow sleep because this is a job, and it paces itself


if __name__ == "__main__":
    main()
