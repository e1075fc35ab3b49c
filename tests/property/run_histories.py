"""Run random histories of cells and print what happened in them as JSON.

python -m tests.property.run_histories --seeds 2000    exit 1 if an invariant broke
python -m tests.property.run_histories --seed 17       one history, with its traceback if it fails
python -m tests.property.run_histories --mixed         with gangs that may lie in several chains
python -m tests.property.run_histories --reference     on a dozen GPUs, every decision compared
                                                       with brute force
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import sys
import time
import traceback
from collections import Counter

from tests.property.cells_histories import EVENTS, History
from tests.property.test_cells_reference import LEAVES, Judged

SEEDS_AT_ONCE = 8
FAILURES_TOLD_MAX = 20


def history(seed: int, *, reference: bool, mixed: bool) -> dict[str, int]:
    """Run one history and return what happened how often."""
    return Judged(seed, LEAVES).run() if reference else History(seed, mixed=mixed).run()


def run_seed(seed: int, *, reference: bool, mixed: bool) -> tuple[int, dict[str, int], str]:
    """Run one history; return its seed, what happened how often, and why it failed."""
    try:
        return seed, history(seed, reference=reference, mixed=mixed), ""
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
        return seed, {}, f"{type(error).__name__} at {where}: {str(error)[:200]}"


def main() -> int:
    """Run the histories; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=2000, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--reference", action="store_true", help="compare with brute force")
    parser.add_argument("--mixed", action="store_true", help="with gangs in several chains")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    arguments = parser.parse_args()
    if arguments.seed is not None:
        kind = {"reference": arguments.reference, "mixed": arguments.mixed}
        print(json.dumps(history(arguments.seed, **kind)))
        return 0
    begin = time.monotonic()
    happened: Counter[str] = Counter()
    failures = []
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    run = functools.partial(run_seed, reference=arguments.reference, mixed=arguments.mixed)
    with multiprocessing.Pool(arguments.workers) as pool:
        for seed, counts, failure in pool.imap_unordered(run, seeds, SEEDS_AT_ONCE):
            happened.update(counts)
            if failure:
                failures.append({"seed": seed, "error": failure})
    failures.sort(key=lambda each: str(each["seed"]))
    told = {
        "histories": len(seeds),
        "first": arguments.first,
        "events_each": EVENTS,
        "failed": len(failures),
        "failures": failures[:FAILURES_TOLD_MAX],
        "happened": dict(sorted(happened.items())),
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(told, indent=2))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
