"""Other people's simulators beside Skep's: the same trace, cluster and policy, and why they differ.

    python -m tests.system.crosscheck                    everything, as a table
    python -m tests.system.crosscheck --only muri --json
    python -m tests.system.crosscheck --reference        and a bare loop with all of their quirks
    python -m tests.system.crosscheck --report OUT.md    and the table as Markdown

`theirs` was measured by running the peer's own simulator on these inputs (`anchors/measured.csv`,
found where SKEP_SHARED_DATA says; without the data this says so and ends with status 2). `ours` is
the production allocator with the registered policy and no switch; `switched` has every switch of
the row. Average job completion times in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from skep.units import in_seconds
from skep_lab.outcome import RunResult
from skep_lab.simulator.run import run
from skep_lab.workloads.situation import Steady
from tests.system.crosscheck import quirks
from tests.system.crosscheck.gavel import Rates
from tests.system.crosscheck.report import report
from tests.system.crosscheck.rows import ROWS, Row, inputs

DATA = Path(
    os.environ.get("SKEP_SHARED_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")
)


SHOWN = 1e-6
"""Equal to the digits that are published: as few as 9152.33."""


class Measured(msgspec.Struct, frozen=True):
    """What one run comes to; times in seconds, means over all jobs."""

    jct_s: float
    waited_s: float
    preemptions: int
    makespan_s: float
    cpu_s: float


def main() -> int:
    """Run the rows and print them."""
    options = arguments()
    if not (DATA / "anchors" / "measured.csv").exists():
        print(f"no anchors in {DATA}: set SKEP_SHARED_DATA", file=sys.stderr)
        return 2
    rows = [row for row in ROWS if options.only in row.name]
    if not rows:
        print(
            f"no row is called {options.only}: {', '.join(r.name for r in ROWS)}", file=sys.stderr
        )
        return 2
    shown = []
    for row in rows:
        told = compare(row, reference=options.reference)
        shown.append(told)
        if not options.json:
            print("\n".join(text(told)), flush=True)
    if options.report is not None:
        options.report.write_text(report(shown))
    if options.json:
        print(json.dumps({"load": os.getloadavg(), "rows": shown}, indent=2))
    return 0


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON value")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--reference", action="store_true", help="run the bare loop too")
    parser.add_argument("--report", type=Path, metavar="FILE.md", help="write a table there")
    return parser.parse_args()


def compare(row: Row, *, reference: bool) -> dict[str, Any]:
    """Return a row with all its numbers."""
    ours = measured(row, switched=False)
    switched = measured(row, switched=True) if row.switches else ours
    told: dict[str, Any] = {
        "name": row.name,
        "theirs": row.theirs,
        "ours": msgspec.to_builtins(ours),
        "switched": msgspec.to_builtins(switched),
        "switches": {name: quirks.QUIRKS[name] for name in row.switches},
        "difference_percent": round(100 * (ours.jct_s / row.theirs["jct_s"] - 1), 4),
        "difference_switched_percent": round(100 * (switched.jct_s / row.theirs["jct_s"] - 1), 6),
        "agrees": _off(row, switched) <= row.within,
        "exact": _off(row, switched) <= SHOWN,
        "why": row.why,
        "right": row.right,
    }
    if reference and row.reference is not None:
        began = time.process_time()
        told["reference"] = row.reference(DATA)
        told["reference"]["cpu_s"] = time.process_time() - began
    return told


def _off(row: Row, ours: Measured) -> float:
    return float(abs(ours.jct_s / row.theirs["jct_s"] - 1))


def measured(row: Row, *, switched: bool) -> Measured:
    """Return what comes of a row's run."""
    with quirks.registered(Rates.read(DATA)):
        trace, cluster, settings = inputs(row, DATA, switched=switched)
        play: Callable[..., RunResult] = run
        if row.world is not None and switched:
            play = partial(quirks.run_in, row.world)
        speeds = row.speeds(DATA) if row.speeds is not None else Steady()
        result = play(trace, cluster, settings, speeds, clock=time.process_time)
    return summed(result)


def summed(result: RunResult) -> Measured:
    """Return means and sums over a run's jobs; AssertionError if one has not come to its end."""
    ended = [job for job in result.jobs if job.ended is not None]
    assert len(ended) == len(result.jobs), f"{len(result.jobs) - len(ended)} jobs did not end"
    spans = [(job.ended or 0) - job.job.at for job in ended]
    return Measured(
        jct_s=in_seconds(sum(spans)) / len(ended),
        waited_s=in_seconds(sum(job.waited for job in ended)) / len(ended),
        preemptions=sum(job.preempted for job in ended),
        makespan_s=in_seconds(max(job.ended or 0 for job in ended)),
        cpu_s=round(result.cpu_s, 2),
    )


def text(told: dict[str, Any]) -> list[str]:
    """Return a row for people."""
    theirs, ours, switched = told["theirs"], told["ours"], told["switched"]
    lines = [
        f"{told['name']}: theirs {theirs['jct_s']:,.3f} | ours {ours['jct_s']:,.3f}"
        f" | with switches {switched['jct_s']:,.3f}"
        f" | difference {told['difference_percent']:+} %,"
        f" {told['difference_switched_percent']:+} % with them"
        f" | {'agrees' if told['agrees'] else 'DIFFERS'}",
        f"    preemptions: theirs {theirs.get('preemptions', '-')}, ours {ours['preemptions']},"
        f" with switches {switched['preemptions']}; CPU {switched['cpu_s']} s",
    ]
    if "reference" in told:
        lines.append(f"    the bare loop: {told['reference']}")
    lines += [f"    {name}: {what}" for name, what in told["switches"].items()]
    return [*lines, f"    {told['why']} Right: {told['right']}"]


if __name__ == "__main__":
    sys.exit(main())
