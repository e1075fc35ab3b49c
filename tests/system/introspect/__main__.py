"""Run one of the figures; prints JSON.

python -m tests.system.introspect slices [--slice 6] [--alone 25] [--short 72] [--svg FILE]
    python -m tests.system.introspect packs [--slice 25] [--svg FILE]
    python -m tests.system.introspect gathers [--mbit 100] [--megabytes 2] [--ask] [--svg FILE]
    python -m tests.system.introspect grows [--work 0.4] [--after 6] [--train 8] [--svg FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.system.introspect import gathers, grows, packs, slices


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    figures = parser.add_subparsers(dest="figure", required=True)
    one = figures.add_parser("slices", help="figure 9: six jobs on four GPUs")
    one.add_argument("--slice", type=float, default=6.0, help="seconds of a turn")
    one.add_argument("--alone", type=float, default=25.0, help="seconds that four train alone")
    one.add_argument("--short", type=float, default=72.0, help="seconds of work of the short ones")
    two = figures.add_parser("packs", help="figure 10: packing that is kept, and that is undone")
    two.add_argument("--slice", type=float, default=25.0, help="seconds of a turn")
    three = figures.add_parser("gathers", help="figure 8: a scattered gang is brought together")
    three.add_argument("--mbit", type=float, default=100.0, help="speed of the links")
    three.add_argument("--megabytes", type=float, default=2.0, help="gradients of a mini-batch")
    three.add_argument("--train", type=float, default=20.0, help="seconds in each place")
    three.add_argument("--within", type=float, default=90.0, help="seconds until it has moved")
    three.add_argument("--ask", action="store_true", help="move it by hand, not by the policy")
    four = figures.add_parser("grows", help="figure 11: a job grows as others leave, and shrinks")
    four.add_argument("--work", type=float, default=0.4, help="seconds of a mini-batch alone")
    four.add_argument("--after", type=float, default=6.0, help="seconds without arrivals to grow")
    four.add_argument("--train", type=float, default=8.0, help="seconds at each size")
    for each in figures.choices.values():
        each.add_argument("--svg", type=Path, help="draw the rates over time")
    print(json.dumps(_run(parser.parse_args(words)), indent=2))
    return 0


def _run(given: argparse.Namespace) -> dict[str, Any]:
    if given.figure == "packs":
        return packs.run(given.slice, given.svg)
    if given.figure == "gathers":
        return gathers.run(
            given.mbit, given.megabytes, given.train, given.within, given.svg, asks=given.ask
        )
    if given.figure == "grows":
        return grows.run(given.work, given.after, given.train, given.svg)
    return slices.run(given.slice, given.alone, given.short, given.svg)


if __name__ == "__main__":
    sys.exit(main())
