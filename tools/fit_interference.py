"""Fits the loads of `skep.perf.interference` and says how far off they are where not fitted.

    python -m tools.fit_interference [--data DIR] [--seed N] [--write]

Gavel measured its models alone and in pairs on one GPU (`gavel/isolated_throughput.csv` and
`gavel/packed_pairs.csv.gz` under `--data`, or under SKEP_SHARED_DATA). For each type of GPU half of
the pairs, drawn by the seed, are fitted: three numbers a model. The error is that of the other
half. Of Gandiva's Table 1 every other row is fitted. Prints JSON; `--write` also writes the loads
that were fitted on the half to `libs/skep/perf/loads.py`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from skep.perf.interference import COPIES_MAX, TABLE_1, by_utilisation, packing_max

LOADS = Path(__file__).parents[1] / "libs/skep/perf/loads.py"
HIGHEST = (1.5, 2.0, 2.0)
"""Bounds of demand, sensitivity and pressure."""
FIRST_GUESS = (0.6, 0.1, 0.5)
PULL = 1e-3
"""How weakly a number is held at the first guess: enough for what no pair says anything about."""
OUTLIER = 0.1
"""Errors of normalised rates beyond this count less than their square."""


class Pair(NamedTuple):
    """Two models on one GPU, and the rate of each relative to being alone."""

    first: str
    second: str
    rates: tuple[float, float]


def main() -> int:
    """Fit and print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", default=os.environ.get("SKEP_SHARED_DATA", ""))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"write {LOADS.name}")
    given = parser.parse_args()
    folder = Path(given.data, "gavel")
    if not given.data or not folder.is_dir():
        print(
            f"error: no folder {folder}: name the one with the public data by --data or by "
            "SKEP_SHARED_DATA",
            file=sys.stderr,
        )
        return 2
    pairs = read_pairs(folder)
    fitted, report = {}, {}
    for gpu in sorted(pairs):
        fitted[gpu], report[gpu] = _fit(pairs[gpu], random.Random(given.seed))
    print(json.dumps({"seed": given.seed, "gavel": report, "table_1": table_1()}, indent=2))
    if given.write:
        LOADS.write_text(_source(fitted), encoding="utf-8")
        print(f"wrote {LOADS}", file=sys.stderr)
    return 0


def read_pairs(folder: Path) -> dict[str, list[Pair]]:
    """Return the pairs of one-GPU jobs by type of GPU, each pair once; those out of memory not."""
    alone = {}
    with open(folder / "isolated_throughput.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["placement"] == "consolidated" and row["num_gpus"] == "1":
                alone[row["gpu_type"], row["job_type"]] = float(row["iters_per_s"])
    pairs: dict[str, dict[tuple[str, ...], Pair]] = {}
    with gzip.open(folder / "packed_pairs.csv.gz", "rt", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["placement"] != "consolidated" or (row["num_gpus_a"], row["num_gpus_b"]) != (
                "1",
                "1",
            ):
                continue
            gpu, first, second = row["gpu_type"], row["job_a"], row["job_b"]
            rates = (
                float(row["iters_per_s_a"]) / alone[gpu, first],
                float(row["iters_per_s_b"]) / alone[gpu, second],
            )
            if min(rates) > 0:  # 0 is how Gavel notes that the two do not fit.
                key = tuple(sorted((first, second)))
                pairs.setdefault(gpu, {}).setdefault(key, Pair(first, second, rates))
    return {gpu: list(found.values()) for gpu, found in pairs.items()}


def _fit(pairs: list[Pair], rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return three numbers by model, fitted on half of the pairs, and the errors of both halves."""
    names = sorted({name for pair in pairs for name in pair[:2]})
    rng.shuffle(pairs)
    seen, unseen = pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]
    guess = np.repeat(FIRST_GUESS, len(names))
    found = least_squares(
        lambda x: np.concatenate([_errors(x, seen, names), PULL * (x - guess)]),
        guess,
        bounds=(np.zeros_like(guess), np.repeat(HIGHEST, len(names))),
        loss="soft_l1",
        f_scale=OUTLIER,
    ).x
    numbers = np.round(found.reshape(3, -1).T, 3)
    found = numbers.T.reshape(-1)
    report = {"fitted": _measure(found, seen, names), "held_out": _measure(found, unseen, names)}
    mean = np.mean([pair.rates for pair in seen])
    spread = np.abs(np.array([pair.rates for pair in unseen]) - mean).mean()
    report["held_out"]["error_of_always_saying_the_mean"] = round(float(spread), 3)
    return {name: tuple(map(float, numbers[i])) for i, name in enumerate(names)}, report


def _errors(x: Any, pairs: list[Pair], names: list[str]) -> Any:
    """Return predicted minus measured normalised rates: of every first, then of every second."""
    demand, sensitivity, pressure = x.reshape(3, -1)
    where = {name: i for i, name in enumerate(names)}
    a = np.array([where[pair.first] for pair in pairs])
    b = np.array([where[pair.second] for pair in pairs])
    measured = np.array([pair.rates for pair in pairs])
    both = demand[a] * demand[b]
    first = 1 / (1 + both + sensitivity[a] * pressure[b])
    second = 1 / (1 + both + sensitivity[b] * pressure[a])
    return np.concatenate([first - measured[:, 0], second - measured[:, 1]])


def _measure(x: Any, pairs: list[Pair], names: list[str]) -> dict[str, Any]:
    errors = _errors(x, pairs, names).reshape(2, -1)
    sums = np.array([sum(pair.rates) for pair in pairs])
    predicted = sums + errors.sum(axis=0)
    return {
        "pairs": len(pairs),
        "mean_absolute_error_of_a_rate": round(float(np.abs(errors).mean()), 3),
        "p90_of_it": round(float(np.quantile(np.abs(errors), 0.9)), 3),
        "mean_absolute_error_of_the_sum": round(float(np.abs(predicted - sums).mean()), 3),
        "packing_worth_it": {
            "measured": round(float((sums > 1).mean()), 3),
            "predicted_alike": round(float(((sums > 1) == (predicted > 1)).mean()), 3),
        },
    }


def table_1() -> dict[str, Any]:
    """Fit utilisation to packing on every other row of Gandiva's table; return gains of all."""
    rows = list(TABLE_1.items())
    used = np.array([row[0] for _, row in rows])
    gain = np.array([packed / sliced for _, (_, sliced, packed) in rows])

    def best(x: Any, at: Any) -> Any:
        own = x[0] + x[1] * at**2
        return np.max([n / (1 + (n - 1) * own) for n in range(2, COPIES_MAX + 1)], axis=0)

    found = least_squares(
        lambda x: np.log(best(x, used[::2]) / gain[::2]), (0.2, 1.0), bounds=(0.01, 5)
    ).x
    shipped = [packing_max(by_utilisation(float(each))) for each in used]
    off = np.abs(np.array(shipped) / gain - 1)
    return {
        "floor": round(float(found[0]), 3),
        "rise": round(float(found[1]), 3),
        "gains": {
            name: {
                "fitted_on": i % 2 == 0,
                "paper": round(float(gain[i]), 2),
                "ours": round(shipped[i], 2),
            }
            for i, (name, _) in enumerate(rows)
        },
        "mean_relative_error": {
            "fitted": round(float(off[::2].mean()), 3),
            "held_out": round(float(off[1::2].mean()), 3),
        },
    }


def _source(fitted: dict[str, dict[str, Any]]) -> str:
    first = '"""Loads of models on GPUs: `python -m tools.fit_interference --write` fits them.'
    lines = [
        first,
        "",
        "By type of GPU, by model: demand, sensitivity and pressure (see",
        "`skep.perf.interference`). From Gavel's throughputs of single models and of pairs;",
        'half of the pairs were fitted."""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Mapping",
        "",
        "GAVEL: Mapping[str, Mapping[str, tuple[float, float, float]]] = {",
    ]
    for gpu, models in fitted.items():
        lines.append(f'    "{gpu}": {{')
        lines += [f'        "{name}": {numbers},' for name, numbers in models.items()]
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    sys.exit(main())
