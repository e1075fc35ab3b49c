"""Apply recorded logs while decisions are perturbed, and compare the state after every record.

python -m tests.fold.check_fold --logs 200      (JSON to stdout; exit 1 if a digest differs)
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from tests.fold_kit import Story, digests
from tests.perturbed import PERTURBATIONS, nothing_chosen, perturbed


def main() -> int:
    """Record logs by seeds, apply each under every perturbation, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=200, help="how many logs (200)")
    logs = parser.parse_args().logs
    began = time.monotonic()
    recorded = [(seed, Story(seed).records) for seed in range(logs)]
    known = [list(digests(records)) for _, records in recorded]
    different: dict[str, list[int]] = {}
    for perturbation in (*PERTURBATIONS, nothing_chosen):
        with perturbed(perturbation):
            different[perturbation.__name__] = [
                seed
                for (seed, records), then in zip(recorded, known, strict=True)
                if list(digests(records)) != then
            ]
    json.dump(
        {
            "logs": logs,
            "records": sum(len(records) for _, records in recorded),
            "different": different,
            "seconds": round(time.monotonic() - began, 1),
        },
        sys.stdout,
        indent=1,
    )
    print()
    return 1 if any(different.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
