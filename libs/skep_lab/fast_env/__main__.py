"""The equality suite: random traces in both simulators, the share of equal start times per policy.

    python -m skep_lab.fast_env [--seeds N] [--first N] [--jobs N] [--case NAME]... [--json]

Exits 1 if any job starts or ends at another time.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from skep_lab.fast_env.equality import Equality, cases, compare, table


def main(words: list[str] | None = None) -> int:
    """Play the suite; return the exit status.

    Args:
        words: The arguments; None: those of the process.
    """
    known = cases()
    parser = argparse.ArgumentParser(prog="python -m skep_lab.fast_env", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="traces for each case")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=300, help="jobs of a trace")
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(words)
    if given.seeds < 1 or given.jobs < 1:
        parser.error("--seeds and --jobs are 1 or more")
    wrong = [name for name in given.case or () if name not in known]
    if wrong:
        parser.error(f"no case {wrong[0]!r}; there are: {'; '.join(known)}")
    found: list[Equality] = []
    for name in given.case or known:
        mine = [
            compare(known[name], seed, given.jobs)
            for seed in range(given.first, given.first + given.seeds)
        ]
        found += mine
        if not given.json:
            _say(_line(name, table(mine)[name]))
    if given.json:
        _say(json.dumps({"cases": table(found)}, indent=1))
    return int(any(each.starts < each.jobs or each.ends < each.jobs for each in found))


def _line(name: str, row: dict[str, Any]) -> str:
    return (
        f"{name:32} {row['jobs']:7} jobs  {row['same_starts_percent']:7.3f} % starts"
        f"  {row['same_ends_percent']:7.3f} % ends  {row['first_difference']}"
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
