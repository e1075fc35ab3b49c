"""Opens the public tables of measurements that `skep_lab.workloads` reads.

The folder is the one that SKEP_SHARED_DATA names. What is not in it is passed over: the models
that the papers print are known without any.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from skep_lab.workloads import chronus, deepshare, dl2, elasticflow, gavel, pollux, salus, synergy
from skep_lab.workloads.models import Models
from skep_lab.workloads.table import Table


class Tables(NamedTuple):
    """What was read, and what was not there (by name, with the file that is missing)."""

    tables: tuple[Table, ...]
    absent: dict[str, str]


class TableError(Exception):
    """A file is there and cannot be read: which, and why."""


def read(folder: Path | None, only: Sequence[str] = ()) -> Tables:
    """Read the tables that the folder has.

    Args:
        folder: The folder; None: there is none, and every table is absent.
        only: The tables to read by name; empty: every table.

    Raises:
        TableError: A file is there, and is not what was published.
        OSError: A file cannot be read.
    """
    tables, absent = [], {}
    for name, (needed, reader) in READERS.items():
        if only and name not in only:
            continue
        if folder is None or not (folder / needed).exists():
            absent[name] = needed
            continue
        try:
            tables.append(reader(folder))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            text = f"{folder / needed}: cut short or damaged ({error})"
            raise TableError(text) from error
        except (ValueError, KeyError, TypeError, IndexError) as error:
            kind = type(error).__name__
            text = f"{folder / needed}: not what {name} published ({kind}: {error})"
            raise TableError(text) from error
    return Tables(tuple(tables), absent)


def models(folder: Path | None, *, node_gpus: int = 8, types: Sequence[str] = ()) -> Models:
    """Return `Speeds` of all that is there.

    Args:
        folder: The folder; None: there is none.
        node_gpus: GPUs of a node.
        types: The cluster's GPU types; empty: every type is equally fast for a job without one.

    Raises:
        TableError: A file is there, and is not what was published.
        OSError: A file cannot be read.
    """
    return Models(read(folder).tables, node_gpus=node_gpus, types=types)


def _lines(path: Path) -> list[str]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8-sig") as file:
            return file.read().splitlines()
    return path.read_text(encoding="utf-8-sig").splitlines()


def _gavel(folder: Path) -> Table:
    pairs = folder / "gavel/packed_pairs.csv.gz"
    return gavel.parse(
        _lines(folder / "gavel/isolated_throughput.csv"), _lines(pairs) if pairs.exists() else ()
    )


def _pollux(folder: Path) -> Table:
    places = sorted((folder / "pollux/traces").glob("*/placements.csv"))
    more = [place.with_name("scalability.csv") for place in places]
    return pollux.parse(
        {place.parent.name: _lines(place) for place in places},
        {file.parent.name: _lines(file) for file in more if file.exists()},
        {
            place.parent.name: {
                int(file.stem.rpartition("-")[2]): _lines(file)
                for file in sorted(place.parent.glob("validation-*.csv"))
            }
            for place in places
        },
    )


def _chronus(folder: Path) -> Table:
    return chronus.parse((folder / "chronus/model_info.json").read_bytes())


def _dl2(folder: Path) -> Table:
    return dl2.parse(_lines(folder / "dl2/config_speed.csv"))


def _elasticflow(folder: Path) -> Table:
    files = sorted((folder / "elasticflow").glob("throughputs_*/*.csv"))
    return elasticflow.parse(
        {
            (file.parent.name.removeprefix("throughputs_").lower(), file.stem): _lines(file)
            for file in files
        }
    )


def _deepshare(folder: Path) -> Table:
    shared = folder / "deepshare/shared_thp_ratio.csv"
    return deepshare.parse(
        _lines(folder / "deepshare/isolated_thp.csv"), _lines(shared) if shared.exists() else ()
    )


def _synergy(folder: Path) -> Table:
    return synergy.parse((folder / "synergy/model_profiles.json").read_bytes())


def _salus(folder: Path) -> Table:
    return salus.parse(_lines(folder / "salus/workloads.csv"))


READERS: dict[str, tuple[str, Callable[[Path], Table]]] = {
    "gavel": ("gavel/isolated_throughput.csv", _gavel),
    "pollux": ("pollux/traces", _pollux),
    "chronus": ("chronus/model_info.json", _chronus),
    "dl2": ("dl2/config_speed.csv", _dl2),
    "elasticflow": ("elasticflow/throughputs_A100", _elasticflow),
    "deepshare": ("deepshare/isolated_thp.csv", _deepshare),
    "synergy": ("synergy/model_profiles.json", _synergy),
    "salus": ("salus/workloads.csv", _salus),
}
"""By table: what must be there, and what reads it."""
