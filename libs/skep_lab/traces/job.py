"""One job of a trace, in the terms of every source: what was asked for, and how long it ran."""

from __future__ import annotations

import msgspec

from skep.units import Duration


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job. `at` is when it was submitted, counted from the beginning of the trace.

    `gpus` is the whole gang's. `workers` is 0 where the source does not tell how they are spread:
    then they are as few as the nodes allow. `run_time` is how long the job runs where its speed is
    1: alone, on `gpu_type` (where it is empty: on the fastest), on as few nodes as hold it.
    """

    id: str
    at: Duration
    run_time: Duration
    gpus: int
    workers: int = 0
    vc: str = ""
    user: str = ""
    model: str = ""
    """What its speed depends on (`workloads`); without one its speed is 1 everywhere."""
    mini_batches: int = 0
    """In all; 0: the source does not tell."""
    batch_size: int = 0
    gpu_type: str = ""
    """Of the run that was measured; with `tied` also the only type it may run on."""
    tied: bool = False
    priority: int = 0
    opportunistic: bool = False
    within: str = ""
    """The level of cell that its workers are to share; with `hard` they wait for one."""
    hard: bool = False
    deadline: Duration | None = None
    """When it should have ended, counted as `at` is."""
    workers_min: int = 0
    workers_max: int = 0
    """How few and how many workers it may have; 0: its number is fixed."""
    servers: int = 0
    """Parameter servers; 0: its workers exchange gradients among themselves."""
    cpus: int = 0
    memory: int = 0
    """Of each worker; bytes."""
    demands: tuple[float, ...] = ()
    """Time of a mini-batch on each resource (Muri: storage or CPU, GPU, network), seconds."""


class RowProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with one row of a source: `row` counts from 1, the header line not counted.

    `row` 0 is the source as a whole.
    """

    row: int
    text: str
    column: str = ""
    hint: str = ""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in the order of submission, and what of the source could not be used."""

    name: str
    jobs: tuple[TraceJob, ...]
    problems: tuple[RowProblem, ...] = ()
    """Rows that are not among `jobs`, and why: nothing is dropped without a word."""
    notes: tuple[RowProblem, ...] = ()
    """What was made good: rows out of order, a number written as text."""
    rows: tuple[int, ...] = ()
    """The row of each job in the source, the first of those it is from; empty: they have none."""
    parts: int = 0
    """Rows that are parts of jobs which other rows began: rows = jobs + problems + parts."""
