"""Crash everything around real jobs, in every phase of every change, and show what came of it.

    python -m tests.system.crash_matrix [--only MECHANISM/PHASE/VICTIM] [--seed N] [--json]
                                        [--markdown FILE] [--svg FILE] [--list]

On an embedded cluster of two nodes PyTorch jobs are suspended, resumed, stored, moved and resized,
one of them forked from warm processes. In each cell of the matrix one process is killed (SIGKILL),
or all of Skep at once, or the job is cancelled, in one phase of one change;
`tests/system/crashes/cells.py` says how a phase is reached, and what may come of it. Whatever dies,
the request is answered once, the job goes on (or, cancelled, is gone), no step that was confirmed
is lost, and its training is the same, to the last bit, as that of a run that was left alone (of a
gang of several sizes: as double precision allows).
One JSON line for each cell, then the table. Exits 1 if anything was not as stated.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.embedded import Embedded
from tests.system.crashes import table
from tests.system.crashes.cells import Cell, cells, chosen
from tests.system.crashes.play import play_all
from tests.system.crashes.world import World

Report = dict[str, Any]


def crash_matrix(
    wanted: Sequence[Cell],
    seed: int,
    tell: Callable[[dict[str, Any], str], None],
    folder: Path | None = None,
) -> Report:
    """Play cells on a fresh cluster in a folder of its own; return the report."""
    with tempfile.TemporaryDirectory(prefix="skep-crashes-", dir=folder) as name:
        cluster = Embedded(Path(name) / "home", {"SKEP_WARM_PROCESSES": "4"})
        try:
            report = asyncio.run(_play(World(cluster), Path(name), list(wanted), seed, tell))
        finally:
            _clean_up(cluster)
    failed = sum(not row["ok"] for row in report["cells"])
    return {
        "seed": seed,
        "ran": len(report["cells"]),
        "failed": failed,
        **report,
        "load_1m": round(os.getloadavg()[0], 1),
    }


def _clean_up(cluster: Embedded) -> None:
    """Stop the cluster, and by force what is left of it: its folder is deleted next.

    Without the folder nobody could reach a runner and its jobs any more, so no signal ends this.
    """
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        cluster.down()
    finally:
        for pid in cluster.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for number, handler in before.items():
            signal.signal(number, handler)


async def _play(
    world: World,
    folder: Path,
    wanted: list[Cell],
    seed: int,
    tell: Callable[[dict[str, Any], str], None],
) -> Report:
    async with world.up():
        return await play_all(world, folder, wanted, seed, tell)


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"crash-matrix: {text}", file=sys.stderr, flush=True)


def told(row: dict[str, Any], progress: str) -> None:
    """Print a cell, and on standard error how far it is."""
    print(json.dumps(row), flush=True)
    cell = Cell(row["mechanism"], row["phase"], row["victim"])
    what = row["came"] if row["ok"] else f"FAILED: {'; '.join(row['problems'])}"
    say(f"{cell}: {what} ({row['seconds']} s; {progress})")


def main() -> int:
    """Run it in a temporary folder."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = "MECHANISM[/PHASE[/VICTIM]], each of them `*` for any; repeatable"
    parser.add_argument("--only", action="append", metavar="CELLS", help=which)
    parser.add_argument("--seed", type=int, help="of the order (default: a new one, printed)")
    parser.add_argument("--json", action="store_true", help="end with the report as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as well")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the table as well")
    parser.add_argument("--list", action="store_true", help="name the cells, and run none")
    arguments = parser.parse_args()
    try:
        named = [cell for only in arguments.only or () for cell in chosen(only)]
    except ValueError as error:
        parser.error(str(error))
    wanted = list(dict.fromkeys(named)) or cells()
    if arguments.list:
        print("\n".join(map(str, wanted)))
        return 0
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    say(f"seed {seed}, {len(wanted)} cells")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Both clean up.
    try:
        report = crash_matrix(wanted, seed, told)
    except KeyboardInterrupt:
        say("interrupted: the cells above were played to the end")
        return 130
    text = table.markdown(report["cells"])
    summary = (
        f"seed {seed}: {report['ran']} cells, {report['failed']} failed, "
        f"{len(report['problems'])} problems at the end, {report['jobs']} jobs, "
        f"{report['seconds']:.0f} s"
    )
    if arguments.markdown:
        arguments.markdown.write_text(f"{text}\n")
    if arguments.svg:
        arguments.svg.write_text(table.svg(report["cells"], f"Crashes: {summary}"))
    print(json.dumps(report) if arguments.json else f"{text}\n\n{summary}")
    for problem in report["problems"]:
        say(f"PROBLEM {problem}")
    return 1 if report["failed"] or report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
