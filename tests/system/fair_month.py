"""Fair share over a simulated month: the parts of people against their weights, for several seeds.

    python -m tests.system.fair_month                  a table, and JSON as the last line
    python -m tests.system.fair_month --seeds 5        seeds 1 to 5
    python -m tests.system.fair_month --nodes 2 --lent 0 --days 30

Exit status 1: a part of the decayed usage is more than 2 % of the whole from its weight.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from skep_lab.studies.fairness import Outcome, Setting, play

WITHIN = 0.02


def main() -> int:
    """Play, print, and say whether all parts are as the weights say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=Setting().nodes)
    parser.add_argument("--lent", type=int, default=Setting().lent_nodes)
    given = parser.parse_args()
    setting = Setting(days=given.days, nodes=given.nodes, lent_nodes=given.lent)
    found = []
    print("seed person weight decayed late  GPU-h (last third)")
    for seed in range(given.first, given.first + given.seeds):
        began = time.process_time()
        outcome = play(seed, setting)
        found.append(outcome)
        _show(outcome, time.process_time() - began)
    print(json.dumps([_tree(outcome) for outcome in found]))
    return int(max(outcome.decayed_error for outcome in found) > WITHIN)


def _show(outcome: Outcome, cpu_s: float) -> None:
    for part in outcome.parts:
        print(
            f"{outcome.seed:4} {part.person:6} {part.weight:6.1%} {part.decayed:7.2%} "
            f"{part.late:6.2%} {part.gpu_hours:8.0f}"
        )
    print(
        f"{outcome.seed:4} worst: decayed {outcome.decayed_error:.2%}, late "
        f"{outcome.late_error:.2%} of the whole; {outcome.ended} of {outcome.jobs} jobs ended, up "
        f"to {outcome.suspended} suspended at once; {cpu_s:.0f} CPU s",
        flush=True,
    )


def _tree(outcome: Outcome) -> dict[str, object]:
    return {
        "seed": outcome.seed,
        "decayed_error": round(outcome.decayed_error, 5),
        "late_error": round(outcome.late_error, 5),
        "jobs": outcome.jobs,
        "parts": [part._asdict() for part in outcome.parts],
    }


if __name__ == "__main__":
    sys.exit(main())
