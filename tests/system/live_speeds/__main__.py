"""Predict placements that were not run, and promise by that: with real trainings on a real cluster.

    python -m tests.system.live_speeds [--out FOLDER] [--models N] [--mbit 200] [--no-promises]

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
import signal
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
from tests.system.live_speeds.trainings import (
    GPU_TYPE,
    MODELS,
    NODES,
    PROFILED,
    SLOTS,
    UNSEEN,
    Model,
)

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
    parser.add_argument("--no-promises", dest="promises", action="store_false", help="speeds alone")
    given = parser.parse_args(words)
    for need in NEEDS:
        if why := missing(need):
            print(f"skipped: {why}", file=sys.stderr)
            return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # So that no namespace is left.
    nodes = [{"name": name, "gpus": SLOTS, "device": "cpu", "gpu_type": GPU_TYPE} for name in NODES]
    vcs = {VC: under("deadline", len(NODES) * SLOTS)}
    with (
        tempfile.TemporaryDirectory(prefix="skep-speeds-") as text,
        Wires(NODES, given.mbit, Path(text)) as wires,
        running(vcs, nodes, wires=wires) as (live, ears),
    ):
        out = given.out or Path(text)
        out.mkdir(parents=True, exist_ok=True)
        bench = Bench(live, ears, Path(text) / "digits.pt")
        write_digits(bench.data)
        report: dict[str, Any] = {"began": time.time_ns(), "link_mbit": given.mbit, **machine()}
        for part in (speeds, promises) if given.promises else (speeds,):
            report |= part(bench, out, MODELS[: given.models])
            (out / "report.json").write_text(json.dumps(report, indent=2))
    print(json.dumps(report, indent=2))
    return 0


def speeds(bench: Bench, out: Path, models: Sequence[Model]) -> dict[str, Any]:
    """Profile, predict, run and compare, one model after the other."""
    profiles: list[Outcome] = []
    judged: list[tables.Judged] = []
    for model in models:
        profiles += [shown(bench.run(model, place)) for place in PROFILED]
        judged += unseen(bench, out, model)
    tell(tables.measurements(profiles))
    tell(tables.errors(judged))
    return {
        "profiles": [each._asdict() for each in profiles],
        "predictions": [
            {**each.predicted._asdict(), "error": each.error, "held": each.held}
            | {"outcome": each.outcome._asdict()}
            for each in judged
        ],
        "calibration": tables.summary(judged),
        "models": bench.measured(),
    }


def promises(bench: Bench, out: Path, models: Sequence[Model]) -> dict[str, Any]:
    """Have a deadline kept, and one refused and made possible: of the first model."""
    del out
    kept = deadlines.kept(bench, models[0], BATCHES)
    tell(kept["promises"])
    helped = deadlines.helped(bench, deadlines.too_early(bench, models[0], BATCHES))
    tell(helped["promises"])
    return {"kept": kept, "helped": helped}


def unseen(bench: Bench, out: Path, model: Model) -> list[tables.Judged]:
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


def tell(text: str) -> None:
    """Print a part of the report for people."""
    print(text, file=sys.stderr, flush=True)


def write_digits(path: Path) -> None:
    """Write the training data, so that no job has to import what makes them."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    torch.save([images, torch.tensor(digits.target)], path)


if __name__ == "__main__":
    sys.exit(main())
