"""Run one benchmark and print one JSON object.

    python -m benchmarks --list
    python -m benchmarks NAME [--out FILE] [OPTIONS]     (NAME --help lists its options)

A benchmark is a module of this package. Its docstring says what is measured, `options(parser)` adds
its options, and `run(given)` measures and returns figures: numbers, texts, and dicts and lists of
these. Progress goes to standard error. What is printed, for all of them alike:

    {"benchmark": NAME, "commit": ..., "machine": {...}, "parameters": {...},
     "results": [{"name": "tick_ms.median", "value": 1.5, "unit": "ms"}, ...],
     "notes": {"limited_by": "..."}}

Exits 1 if a figure called `within_limit` is false.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
UNITS = {
    "ns": "ns",
    "us": "us",
    "ms": "ms",
    "s": "s",
    "bytes": "B",
    "mb": "MB",
    "gb": "GB",
    "mib": "MiB",
    "percent": "%",
}
"""What a word in a figure's name says of its unit."""
SECONDS = {"s", "second"}
NUMBERS = {
    "count",
    "events",
    "gpus",
    "jobs",
    "misfits",
    "n",
    "nodes",
    "over",
    "placed",
    "ratio",
    "rounds",
    "rows",
    "runs",
    "times",
    "trees",
    "waiting",
}
"""A figure with one of these words in its name has no unit: a count, or a ratio."""
ONE_THREAD = ("predict",)
"""Benchmarks of what a service does with numpy, which has one thread there."""
LABELS = ("pair", "megabytes", "facts")
"""The fields by which rows of a list are told apart."""


class Leaf(NamedTuple):
    """A figure on its own: its name with dots, the number or text, the unit ("" for none)."""

    name: str
    value: Any
    unit: str


def names() -> dict[str, str]:
    """Return the benchmarks, each with the first line of its docstring; imports none of them."""
    found = {}
    for path in sorted(HERE.glob("[a-z]*.py")):
        told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = told.partition("\n")[0]
    return found


def leaves(figures: Any, name: str = "", unit: str = "") -> Iterator[Leaf]:
    """Return each number and text in `figures`.

    Args:
        figures: Numbers, texts, and dicts and lists of these. The entry `unit` of a dict says what
            its other numbers are in.
        name: The name of what `figures` is a part of.
        unit: The unit of what it is a part of; a name that tells a unit counts before it.
    """
    before = f"{name}." if name else ""
    if isinstance(figures, Mapping):
        unit = figures.get("unit", unit)
        for key, value in figures.items():
            if key != "unit":
                yield from leaves(value, f"{before}{key}", unit_of(str(key), unit))
    elif isinstance(figures, list | tuple):
        for number, value in enumerate(figures):
            key = next((key for key in LABELS if isinstance(value, Mapping) and key in value), "")
            label = value[key] if key else number
            rest = {word: each for word, each in value.items() if word != key} if key else value
            yield from leaves(rest, f"{before}{label}", unit)
    elif figures is not None:
        yield Leaf(name, figures, unit)


def unit_of(name: str, unit: str) -> str:
    """Return the unit that a name such as `tick_ms_median` tells, or else `unit`."""
    words = name.split("_")
    said = next((UNITS[word] for word in words if word in UNITS and word not in SECONDS), "")
    if "per" in words and SECONDS & set(words):
        return f"{said or '1'}/s"
    if said or "s" in words:
        return said or "s"
    return "" if NUMBERS & set(words) else unit


def commit() -> str:
    """Return the commit that is measured, marked when files differ; "" outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    told = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def report(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run a benchmark; return what is printed."""
    before = os.getloadavg()[0]
    found = list(leaves(importlib.import_module(f"benchmarks.{name}").run(given)))
    numbers = [each for each in found if isinstance(each.value, int | float)]
    truths = [each for each in numbers if isinstance(each.value, bool)]
    return {
        "benchmark": name,
        "commit": commit(),
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "load": [round(before, 1), round(os.getloadavg()[0], 1)],
        },
        "parameters": {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(given).items()
            if key != "out"
        },
        "results": [each._asdict() for each in numbers if each not in truths],
        "notes": {each.name: each.value for each in found if each in truths or each not in numbers},
    }


def main(words: list[str]) -> int:
    """Return the exit code."""
    known = names()
    first = argparse.ArgumentParser("python -m benchmarks", description=__doc__.partition("\n")[0])
    first.add_argument("--list", action="store_true", help="print what there is")
    first.add_argument("name", nargs="?", choices=known, metavar="NAME", help="one of --list")
    chosen = first.parse_args(words[:1])
    if chosen.list or not chosen.name:
        for name, told in known.items():
            print(f"{name:<18} {told}")
        return 0
    if chosen.name in ONE_THREAD:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # Before numpy is imported, which reads it.
    module = importlib.import_module(f"benchmarks.{chosen.name}")
    parser = argparse.ArgumentParser(
        f"python -m benchmarks {chosen.name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there too")
    module.options(parser)
    given = parser.parse_args(words[1:])
    document = report(chosen.name, given)
    text = json.dumps(document, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")
    missed = [key for key, value in document["notes"].items() if value is False]
    return 1 if any(key.rpartition(".")[2] == "within_limit" for key in missed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
