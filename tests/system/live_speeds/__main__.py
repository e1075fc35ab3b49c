"""Predict placements that were not run, and promise by that: with real trainings on a real cluster.

    python -m tests.system.live_speeds [--out FOLDER] [--models N] [--mbit 200] [--only PART]

Three nodes of four CPU slots, each in a network namespace of its own; links between them have a
given speed, so two nodes are slower than one. Each of up to six models is trained at five
placements, four others are predicted and written down, then run and compared. Then a deadline is
accepted on a full cluster and kept, and one is refused that the suggested change makes possible.

Needs root, `ip`, `tc` and PyTorch; without them it says so and ends with 0. Prints tables on
standard error and one JSON object at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.needs import missing
from tests.system.introspect.live import VC, machine, running, under
from tests.system.introspect.wires import Wires
from tests.system.live_speeds import deadlines, tables
from tests.system.live_speeds.bench import Bench, Outcome, predicted, say, write_down
from tests.system.live_speeds.trainings import GPU_TYPE, MODELS, NODES, PROFILED, SLOTS, UNSEEN

NEEDS = ("root", "namespaces", "ip", "tc", "torch", "sklearn")
BATCHES = 300
"""Mini-batches of jobs with deadlines."""


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, help="a folder for predictions and report")
    parser.add_argument("--models", type=int, default=len(MODELS), help="how many models")
    parser.add_argument("--mbit", type=float, default=200.0, help="speed of the links")
    parser.add_argument("--only", choices=("speeds", "promises"), help="one part alone")
    given = parser.parse_args(words)
    for need in NEEDS:
        if why := missing(need):
            print(f"skipped: {why}", file=sys.stderr)
            return 0
    nodes = [{"name": name, "gpus": SLOTS, "device": "cpu", "gpu_type": GPU_TYPE} for name in NODES]
    vcs = {VC: under("deadline", len(NODES) * SLOTS)}
    with (
        tempfile.TemporaryDirectory(prefix="skep-speeds-") as text,
        Wires(NODES, given.mbit, Path(text)) as wires,
        running(vcs, nodes, wires=wires) as (live, ears),
    ):
        out = given.out or Path(text)
        out.mkdir(parents=True, exist_ok=True)
        report = study(Bench(live, ears, Path(text) / "digits.pt"), out, given.models, given.only)
    report |= {"link_mbit": given.mbit, **machine()}
    (out / "report.json").write_text(json.dumps(report, indent=2)) if given.out else None
    print(json.dumps(report, indent=2))
    return 0


def study(bench: Bench, out: Path, models: int, only: str | None) -> dict[str, Any]:
    """Run the parts; return the report."""
    write_digits(bench.data)
    report: dict[str, Any] = {"began": time.time_ns()}
    chosen = MODELS[: 1 if only == "promises" else models]
    profiles: list[Outcome] = []
    judged: list[tables.Judged] = []
    for model in chosen:
        profiles += [shown(bench.run(model, place)) for place in PROFILED]
        if only != "promises":
            judged += unseen(bench, out, model)
    print(tables.measurements(profiles), file=sys.stderr, flush=True)
    report["profiles"] = [each._asdict() for each in profiles]
    if judged:
        report["predictions"] = [
            {**each.predicted._asdict(), "error": each.error, "held": each.held}
            | {"outcome": each.outcome._asdict()}
            for each in judged
        ]
        report["calibration"] = tables.summary(judged)
        print(tables.errors(judged), file=sys.stderr, flush=True)
    if only != "speeds":
        model = chosen[0]
        report["kept"] = deadlines.kept(bench, model, BATCHES)
        report["helped"] = deadlines.helped(bench, deadlines.too_early(bench, model, BATCHES))
        print(report["helped"]["promises"], file=sys.stderr, flush=True)
    report["models"] = bench.measured()
    return report


def unseen(bench: Bench, out: Path, model: Any) -> list[tables.Judged]:
    """Predict placements, write that down, run them, and compare."""
    spans = [bench.span(model, place) for place in UNSEEN]
    told = [predicted(model, place, span) for place, span in zip(UNSEEN, spans, strict=True)]
    write_down(out / "predictions.jsonl", told)
    found = []
    for each in told:
        outcome = shown(bench.run(model, each.place))
        found.append(tables.Judged(each, outcome))
        say(f"predicted {each.p50_ms:.0f} ({each.p10_ms:.0f} to {each.p90_ms:.0f}) ms")
    return found


def shown(outcome: Outcome) -> Outcome:
    """Say what came of a run, and return it."""
    place = outcome.place
    say(
        f"{outcome.model} on {place.gpus} GPUs of {place.nodes} nodes ({outcome.nodes}), batch "
        f"{outcome.batch}: {outcome.p50_ms:.0f} ms, {outcome.took_s:.0f} s, load {outcome.load:.1f}"
    )
    return outcome


def write_digits(path: Path) -> None:
    """Write the training data, so that no job has to import what makes them."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    torch.save([images, torch.tensor(digits.target)], path)


if __name__ == "__main__":
    sys.exit(main())
