"""The public measurements that an experiment needs, from the folder that SKEP_SHARED_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

from skep_lab.experiments.report import Experiment
from skep_lab.traces.generators.k80measured import Row, Rows, rows_of
from skep_lab.workloads.gavel import Gavel
from skep_services import workload_tables

VARIABLE = "SKEP_SHARED_DATA"


class MissingError(Exception):
    """The measurements are not there, or cannot be read."""


def rows_for(experiment: Experiment) -> Rows:
    """Return the measurements that an experiment needs; empty: it needs none.

    Args:
        experiment: What is to be run.

    Raises:
        MissingError: They are not there, or cannot be read.
    """
    if not experiment.needs:
        return ()
    folder = os.environ.get(VARIABLE, "")
    try:
        read = workload_tables.read(Path(folder) if folder else None, only=(experiment.needs,))
    except (workload_tables.TableError, OSError) as error:
        raise MissingError(str(error)) from None
    for missing in read.absent.values():
        reason = f"{experiment.name} needs measurements: {VARIABLE} names no folder with {missing}"
        raise MissingError(reason)
    return k80_rows(next(table for table in read.tables if isinstance(table, Gavel)))


def k80_rows(table: Gavel) -> Rows:
    """Return what Gavel measured on K80s: its rates are mini-batches of all workers together."""
    return rows_of(
        Row(model, not near, gpus, float(batch), gpus / rate)
        for (kind, near, (model, batch)), rates in table.alone.items()
        for gpus, rate in rates.items()
        if kind == "k80" and (near or gpus > 1)
    )
