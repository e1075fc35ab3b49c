"""One job of a trace, in terms that fit every source: what was asked for, and how long it ran."""

from __future__ import annotations

import msgspec

from skep.units import Duration


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job. `at` is when it was submitted, counted from the beginning of the trace.

    `gpus` is the whole gang's. `workers` is 0 if the source does not say how they are spread: then
    they are as few as the nodes allow. `run_time` is how long the job runs where its speed is 1:
    alone, on `gpu_type` (empty: on the fastest type), on as few nodes as hold it.
    """

    id: str
    at: Duration
    run_time: Duration
    gpus: int
    workers: int = 0
    vc: str = ""
    user: str = ""
    model: str = ""
    """The key of its speed (`workloads`); without one its speed is 1 everywhere."""
    mini_batches: int = 0
    """In all; 0: unknown."""
    batch_size: int = 0
    gpu_type: str = ""
    """The type of the measured run; with `tied` also the only type on which it may run."""
    tied: bool = False
    priority: int = 0
    opportunistic: bool = False
    within: str = ""
    """The level of the cell that its workers are to share; with `hard` they wait for one."""
    hard: bool = False
    deadline: Duration | None = None
    """When it should have ended, counted as `at` is."""
    workers_min: int = 0
    workers_max: int = 0
    """The fewest and the most workers that it may have; 0: the number is fixed."""
    batch_max: int = 0
    """The largest batch size that it may change to while it runs; 0: its batch size is fixed."""
    servers: int = 0
    """Parameter servers; 0: its workers exchange gradients among themselves."""
    cpus: int = 0
    memory: int = 0
    """Of each worker; bytes."""
    demands: tuple[float, ...] = ()
    """Seconds of a mini-batch on each resource (Muri: storage or CPU, GPU, network)."""
    said_time: Duration = Duration(0)
    """What its owner says of its run time; 0: what the settings of a simulation say."""
    qos: str = ""
    late: str = ""
    """Its class, and what happens to it when it cannot be on time (`spec.qos`, `spec.late`)."""
    project: str = ""
    mixed: bool = False
    """Whether its gang may lie on GPUs of several types, or on nodes of several sizes."""


class RowProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with one row of a source: `row` counts from 1, without the header line.

    `row` 0 is the source as a whole.
    """

    row: int
    text: str
    column: str = ""
    hint: str = ""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in the order of submission, and the parts of the source that could not be used."""

    name: str
    jobs: tuple[TraceJob, ...]
    problems: tuple[RowProblem, ...] = ()
    """Rows that are not among `jobs`, and why: no row is dropped silently."""
    notes: tuple[RowProblem, ...] = ()
    """What was corrected: rows out of order, a number written as text."""
    rows: tuple[int, ...] = ()
    """The row of each job in the source, the first one if there are several; empty: there are no
    rows."""
    parts: int = 0
    """Rows that are parts of jobs which other rows began: rows = jobs + problems + parts."""
