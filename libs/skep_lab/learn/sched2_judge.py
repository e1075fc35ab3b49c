"""Print SCHED²'s figures of the networks that `sched2_main` trained.

    python -m skep_lab.learn.sched2_judge FOLDER [--rules FILE] [--charts FILE]

`FOLDER` has `models.npz` and `runs.json`; `FILE` keeps what became of jobs under the rules. Tables
are Markdown; `--charts` stores the lines of figures 8 and 9, and the curves of training, as JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from skep_lab.fast_env.sched2_rules import Played
from skep_lab.learn import sched2_figures, sched2_play
from skep_lab.learn.progress import Tensors
from skep_lab.learn.sched2_figures import Chart, Table
from skep_lab.learn.sched2_protocol import JUDGED, READINGS, RULES, settings

FULL = "seed-"
"""What the names of runs of full length begin with."""
KEPT = "|"
"""Only the names of what became of jobs have it."""
DIGEST = "digest"
"""Of the settings that kept rules are of; others are made anew."""


def networks(file: Path, prefix: str = FULL) -> tuple[dict[str, Tensors], dict[str, Tensors]]:
    """Return the weights of the runs in a file, by run, and what became of jobs.

    Args:
        file: `models.npz`.
        prefix: What their names begin with.
    """
    weights: dict[str, dict[str, Any]] = {}
    starts: dict[str, dict[str, Any]] = {}
    with np.load(file) as stored:
        for name in stored.files:
            run, key = name.split("/")
            if run.startswith(prefix):
                (starts if KEPT in key else weights).setdefault(run, {})[key] = stored[name]
    return {**weights}, {**starts}


def _rules(file: Path | None) -> dict[str, Played]:
    """Return what became of jobs under the rules, as it is kept, or anew."""
    known = settings()
    digest = hashlib.sha256(repr((known, RULES, READINGS)).encode()).hexdigest()
    if file is not None and file.exists():
        with np.load(file) as found:
            if DIGEST in found.files and str(found[DIGEST]) == digest:
                names = dict.fromkeys(
                    name.rpartition(KEPT)[0] for name in found.files if KEPT in name
                )
                return {
                    name: sched2_play.restored(found, name, known[name.partition(KEPT)[0]])
                    for name in names
                }
    made = sched2_figures.play_rules()
    if file is not None:
        arrays: dict[str, Any] = {**sched2_play.stored(made), DIGEST: np.array(digest)}
        np.savez_compressed(file, **arrays)
    return made


def training(runs: list[dict[str, Any]]) -> tuple[Table, Chart]:
    """Return how training went: a row for each run, and completion times over episodes."""
    rows, lines = [], dict[str, list[tuple[float, float]]]()
    for each in runs:
        last = each["curve"][-1]
        decisions = last["updates"] * each["settings"]["decisions"]
        rows.append(
            (
                each["name"],
                each["candidate"],
                f"{last['episodes']:.0f}",
                f"{decisions / 1e6:.2f}",
                f"{last['updates']:,}",
                f"{each['tuning_jct_s']:,.0f}",
                f"{each['cpu_s']:.0f}",
                f"{each['wall_s']:.0f}",
            )
        )
        lines[f"{each['name']}: {each['candidate']}"] = [
            (point["episodes"], point["mean_jct_s"])
            for point in each["curve"]
            if "mean_jct_s" in point
        ]
    heads = (
        "Run",
        "Candidate",
        "Episodes",
        "Decisions (M)",
        "Updates",
        "JCT on tuning traces (s)",
        "CPU s",
        "Wall s",
    )
    title = "Completion time of training episodes"
    chart = Chart("sched2-training", title, "episodes", "mean JCT (s)", lines)
    return Table("Training", heads, rows), chart


def main(words: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="sched2_judge", description="judge SCHED²")
    parser.add_argument("folder", type=Path, help="what sched2_main stored")
    parser.add_argument("--rules", type=Path, help="keep what became of jobs under the rules")
    parser.add_argument("--charts", type=Path, help="store lines as JSON")
    given = parser.parse_args(words)
    rules, known = _rules(given.rules), settings()
    runs = json.loads((given.folder / "runs.json").read_text())
    table, chart = training(runs)
    models, starts = networks(given.folder / "models.npz")
    played = {
        run: {name: sched2_play.restored(each, name, known[name]) for name in known}
        for run, each in starts.items()
    }
    report = sched2_figures.report(
        models, played, rules, len(JUDGED), lambda text: _say(text, sys.stderr)
    )
    _say(sched2_figures.markdown(report._replace(tables=[table, *report.tables])), sys.stdout)
    if given.charts:
        charts = [each._asdict() for each in (chart, *report.charts)]
        given.charts.write_text(json.dumps(charts, indent=1))
    return 0


def _say(text: str, where: Any) -> None:
    where.write(f"{text}\n")
    where.flush()


if __name__ == "__main__":
    sys.exit(main())
