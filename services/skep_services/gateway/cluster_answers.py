"""What the gateway answers about cells, virtual clusters, their people and use, as structs."""

from __future__ import annotations

from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer."""


# --- cells ---------------------------------------------------------------------------------------


class CellLevel(Answer, frozen=True):
    """A level of a chain, and the GPUs of a cell of it."""

    level: str
    gpus: int


class Cell(Answer, frozen=True):
    """A cell and the cells in it.

    `owner` is the virtual cluster that it is bound to, with the name of the pin if it has one;
    `doomed`: that bears it, as it is bad. `idle`, `used`, `borrowed`, `reserved` and `bad` count
    GPUs. `job` and its `vc` are told where all GPUs are alike, `for` is the job that they are
    reserved for, and `beside` are jobs that share them. `?` stands for another tenant's.
    """

    level: str
    address: str
    gpus: int
    owner: str = ""
    pin: str = ""
    doomed: bool = False
    idle: int = 0
    used: int = 0
    borrowed: int = 0
    reserved: int = 0
    bad: int = 0
    job: str = ""
    vc: str = ""
    reserved_for: str = msgspec.field(default="", name="for")
    beside: tuple[str, ...] = ()
    children: tuple[Cell, ...] = ()


class CellChain(Answer, frozen=True):
    """A chain: its levels from one GPU up, and its largest cells."""

    chain: str
    gpu: str
    node_level: str
    levels: tuple[CellLevel, ...]
    cells: tuple[Cell, ...]


class Alarm(Answer, frozen=True):
    """Something that is broken in the cells."""

    rule: str
    chain: str
    where: str
    vcs: tuple[str, ...]
    at: int
    text: str
    story: tuple[str, ...] = ()


# --- virtual clusters ----------------------------------------------------------------------------


class CellKind(Answer, frozen=True):
    """Cells of one level that a virtual cluster owns: how many are bound, free or bad."""

    chain: str
    level: str
    pin: str
    gpus: int
    owned: int
    bound: int
    free: int
    bad: int


class CellJob(Answer, frozen=True):
    """A job in a cell, or (`reserved`) one that waits for its GPUs."""

    job: str
    vc: str
    gpus: int
    borrowed: bool
    reserved: bool
    beside: tuple[str, ...] = ()


class BoundCell(Answer, frozen=True):
    """Where a cell of a virtual cluster is for now, and the jobs inside."""

    chain: str
    level: str
    address: str
    pin: str
    gpus: int
    idle: int
    bad: int
    doomed: bool
    jobs: tuple[CellJob, ...]


class Borrower(Answer, frozen=True):
    """A job that uses GPUs beyond the cells of its virtual cluster."""

    job: str
    gpus: int
    nodes: tuple[str, ...]


class JobFate(Answer, frozen=True):
    """What other cells would mean for a job; `astray` are its GPUs that would be in none."""

    job: str
    vc: str
    fate: str
    gpus: int
    place: str
    astray: tuple[str, ...]


class VcSide(Answer, frozen=True):
    """A virtual cluster before a change, or after it."""

    gpus: int
    cells: dict[str, int]
    pinned: tuple[str, ...]
    weight: float
    jobs_max: int
    policy: str
    options: dict[str, Any]
    priorities: dict[str, int]


class VcChange(Answer, frozen=True):
    """What becomes of a virtual cluster; None: it is not there before, or after."""

    vc: str
    before: VcSide | None
    after: VcSide | None
    changes: bool
    asked: int


class Finding(Answer, frozen=True):
    """Something wrong with a cluster file, or odd. `line` counts from 1; 0: it is on no line."""

    line: int
    path: str
    reason: str
    text: str
    suggestion: str = ""


class ClusterFile(Answer, frozen=True):
    """The cluster file that says what is set now. Another `digest`: something else is set."""

    text: str
    digest: str


class ClusterFileChecked(Answer, frozen=True):
    """What is wrong with a cluster file; without problems also what to plan and to set (`asked`).

    `owned` are GPUs of its virtual clusters, `joined` those that nodes have. `digest` is that of
    what is set now, `asked_digest` that of what it asks for.
    """

    problems: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    asked: dict[str, Any] | None
    owned: int
    joined: int
    digest: str
    asked_digest: str


# --- people --------------------------------------------------------------------------------------


class FairPerson(Answer, frozen=True):
    """A person by fair share: `times` is how often its part is in what it used."""

    order: int
    person: str
    weight: float
    used_gpu_s: int
    used_part: float
    part: float
    times: float | None
    jobs: int
    gpus: int
    queued: int


class FairVc(Answer, frozen=True):
    """A virtual cluster that shares by person or limits it, the next person first."""

    vc: str
    half_life_s: int
    limits: dict[str, int | None] | None
    people: tuple[FairPerson, ...]


class PersonTold(Answer, frozen=True):
    """A person, and its roles by virtual cluster."""

    person: str
    full_name: str
    login: str
    disabled: bool
    operator: bool
    roles: dict[str, str]
    groups: dict[str, str]
    tokens: int
    at: int


# --- use and promises ----------------------------------------------------------------------------


class WindowRow(Answer, frozen=True):
    """Nodes that are kept free for a time; `open`: it has begun."""

    name: str
    nodes: tuple[str, ...]
    begins: int
    ends: int
    vc: str
    maintenance: bool
    reason: str
    open: bool
    jobs: tuple[str, ...]


class PromiseRow(Answer, frozen=True):
    """The deadline of a job, what was answered to it, and what became of it."""

    job: str
    name: str
    vc: str
    state: str
    answer: str
    outcome: str
    due: int
    p50: int
    p90: int
    begin: int
    end: int
    gpus: int
    why: str
    text: str
    cause: str
    detail: str
    helps: tuple[tuple[str, str, str], ...]
    note: str
