"""What the gateway answers, as structs: the OpenAPI document says it, and the client decodes it.

Instants are wall-clock nanoseconds; None where something has not happened. Codes of reasons are
text here: a client goes on when a newer gateway has a reason that the client does not know.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skep.ledger.report import ReportTable
from skep.wire.links import Link
from skep.wire.notices import MessageShown, TargetShown
from skep_services.gateway.cluster_answers import (
    Alarm,
    Borrower,
    BoundCell,
    CellChain,
    CellKind,
    FairVc,
    JobFate,
    PersonTold,
    PromiseRow,
    VcChange,
    WindowRow,
)
from skep_services.gateway.ledger import Tried
from skep_services.gateway.rows import (
    Asked,
    Attempt,
    Changing,
    Estimate,
    Event,
    Pledged,
    Row,
    Spanned,
)


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with what was sent: where (`$.resources.gpus`), why, what to do."""

    path: str = ""
    reason: str = ""
    text: str = ""
    suggestion: str = ""


class ErrorTold(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused: a stable code, one line for people, and every problem."""

    reason: str
    text: str
    problems: tuple[Wrong, ...] = ()


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What every refusal has. `retry_after_s`: when the same request may be repeated (seconds)."""

    error: ErrorTold
    job: str | None = None
    key: str | None = None
    number: int | None = None
    retry_after_s: float | None = None


# --- jobs ----------------------------------------------------------------------------------------


class JudgedTold(msgspec.Struct, frozen=True, kw_only=True):
    """What was answered to the deadline of a job. Instants are Unix nanoseconds."""

    answer: str
    why: str
    due: int
    text: str = ""
    p50: int = 0
    p90: int = 0
    note: str = ""


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A job that the cluster keeps.

    `accepted` is None while it is not judged. `repeated`: the same key was used before, and `job`
    is the job of then.
    """

    job: str
    accepted: bool | None
    repeated: bool = False
    judged: JudgedTold | None = None
    warnings: tuple[str, ...] = ()


class Requeued(Submitted, frozen=True, kw_only=True):
    """An ended job that was submitted again; `of` is the ended one."""

    of: str


class CodeList(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots of code that a virtual cluster has, and what they may come to (bytes)."""

    vc: str
    bytes: int
    bytes_max: int
    code: list[dict[str, Any]]


class CodeKept(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a snapshot is kept, or the digests of the chunks that are to be sent first."""

    code: str
    kept: bool
    missing: list[str]


class ChunksKept(msgspec.Struct, frozen=True, kw_only=True):
    """How many chunks were kept."""

    chunks: int


class NodeOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The files on one node: path, bytes, and when it was written (Unix seconds).

    `away`: the node does not answer. `more`: it has more files than are listed.
    """

    node: str
    away: bool
    files: list[tuple[str, int, int]]
    more: bool


class OutputList(msgspec.Struct, frozen=True, kw_only=True):
    """The files that an attempt left, by node."""

    job: str
    attempt: int
    nodes: list[NodeOutputs]


class OutputDigest(msgspec.Struct, frozen=True, kw_only=True):
    """The SHA-256 of a file."""

    path: str
    sha256: str


class CacheList(msgspec.Struct, frozen=True, kw_only=True):
    """The environments that nodes keep, by node; `away`: it does not answer."""

    nodes: list[dict[str, Any]]


class CacheRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that was removed, and the bytes that it had."""

    node: str
    key: str
    bytes: int


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, and how many there are without the limit."""

    jobs: list[Row]
    total: int


class NodeBuilds(msgspec.Struct, frozen=True, kw_only=True):
    """A node builds the environment of an attempt since then, or fetches its image (`text`)."""

    node: str
    since: int
    text: str = ""


class HoldsUp(msgspec.Struct, frozen=True, kw_only=True):
    """A rank for which the others of its gang wait.

    `own_ns` is what of a mini-batch (`step_ns`) it spends on its own, `usual_ns` the median of the
    gang. The gang is slower for it by the factor `slower_milli` / 1000.
    """

    rank: int
    node: str
    devices: tuple[int, ...]
    why: str
    since: int
    own_ns: int
    usual_ns: int
    step_ns: int
    slower_milli: int
    text: str


class JobDetail(Row, kw_only=True, gc=True):
    """Everything about a job. `spec` is as it was admitted; None: what was sent was no JSON."""

    spec: dict[str, Any] | None = None
    problems: tuple[Wrong, ...] = ()
    detail: str = ""
    attempts: tuple[Attempt, ...] = ()
    trace: str = ""
    key: str = ""
    repeated_by: tuple[str, ...] = ()
    cancel_asked: bool = False
    tier: str = ""
    can: tuple[str, ...] = ()
    released: bool = False
    changing: Changing | None = None
    asks: tuple[Asked, ...] = ()
    trials: list[Tried] | None = None
    pledged: Pledged | None = None
    building: tuple[NodeBuilds, ...] = ()
    held_up: tuple[HoldsUp, ...] = ()


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """An end that was asked for. `accepted` is None while admission has not answered."""

    job: str
    accepted: bool | None


class ChangeTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was asked for. Its `number` names it in the job's `asks`."""

    job: str
    ask: str
    number: int
    accepted: bool | None


class ReasonTold(msgspec.Struct, frozen=True, kw_only=True):
    """One reason: its code, its text, and what it is about."""

    reason: str
    text: str
    needs: str = ""


class TouchedJob(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen to another job. Without a name it is of a VC that the caller may not see.

    `rate_milli` and `then_milli`: its rate now and then; None: not known.
    """

    job: str | None
    vc: str | None
    what: str
    gpus: int
    why: str | None
    rate_milli: int | None
    then_milli: int | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a job: `start` is `now`, `after`, `later` or `unknown`.

    `place` names the first of `nodes` nodes. `awaits` are jobs whose ends come first, `unknown`
    counts those whose ends are not known; with `limits` some ends are those of time limits.
    """

    start: str
    why: str | None
    text: str
    needs: str
    place: str
    nodes: int
    chain: str
    borrows: bool
    at: int | None
    ends_at: int | None
    ends_most: int | None
    others: list[TouchedJob]
    others_more: int
    awaits: list[str]
    unknown: int
    limits: bool


class WhatIfOption(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a waiting job, and what would come of it. `rank` 1 is the least change.

    `spec` is what is to be submitted in its place; None: it only has to wait.
    """

    reason: str
    text: str
    value: str = ""
    spec: dict[str, Any] | None = None
    outcome: Outcome
    rank: int | None = None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """What would start a job. `problem`: why that is not known."""

    problem: str
    outcome: Outcome | None
    options: list[WhatIfOption]
    in_vain: list[WhatIfOption]


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is, and what would change that."""

    job: str
    state: str
    reasons: list[ReasonTold]
    would_change: list[str]
    trials: list[Tried] | None = None
    what_if: WhatIf | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a spec that is not submitted."""

    name: str
    vc: str
    service_class: str
    gpus: int
    outcome: Outcome
    estimate: Estimate | None = None


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a job said at one mini-batch."""

    at: int
    attempt: int
    step: int
    values: dict[str, float]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """What a job said about its training, earliest first."""

    job: str
    points: list[CurvePoint]


class RateMark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may have changed a job's rate: `kind` is the tag of the event."""

    at: int
    kind: str
    text: str
    reason: str = ""


class RateCourse(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a job went, earliest first: lists of one length, as this gateway heard it.

    A point is a stretch up to `at`: the means of `rate_milli` and `utilisation` (thousandths of its
    devices in use), and the most `memory` (bytes) that a rank of it used.
    """

    job: str
    at: list[int]
    attempt: list[int]
    steps: list[int]
    rate_milli: list[int]
    utilisation: list[int]
    memory: list[int]
    marks: list[RateMark]


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    """Events in their order."""

    events: list[Event]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The spans of a job by their start."""

    trace_id: str
    spans: list[Spanned]


# --- searches ------------------------------------------------------------------------------------


class BestTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The trial with the best value so far."""

    trial: int
    job: str | None
    value: float
    step: int
    params: dict[str, Any]


class SearchRow(msgspec.Struct, kw_only=True):
    """A search without its trials. `state` is `active`, `ending` or `over`."""

    search: str
    name: str
    vc: str
    owner: str
    state: str
    why: str | None
    method: str
    metric: str
    direction: str
    target: float | None
    began_at: int
    ended_at: int | None
    trials: int
    trials_max: int
    stands: dict[str, int]
    gpu_ns: int
    gpu_time_s: int | str | None
    best: BestTrial | None


class SearchList(msgspec.Struct, frozen=True, kw_only=True):
    """Searches by their begin."""

    searches: list[SearchRow]


class TrialRow(msgspec.Struct, kw_only=True):
    """A trial with its curve: `points` are mini-batch and value."""

    trial: int
    job: str | None
    params: dict[str, Any]
    stand: str
    end: str | None
    why: str | None
    wanted: bool
    demoted: bool
    since: int | None
    ran_ns: int
    step: int
    value: float | None
    best: float | None
    best_step: int
    promise: float | None
    spread: float | None
    chance: float | None
    bracket: int
    rung: int
    rungs: list[int]
    reached: list[float]
    points: list[tuple[int, float]]


class SearchDetail(SearchRow, kw_only=True):
    """A search with its spec and all of its trials."""

    spec: dict[str, Any]
    rows: list[TrialRow]


class SearchBegun(msgspec.Struct, frozen=True, kw_only=True):
    """A search that has begun."""

    search: str
    accepted: bool
    repeated: bool = False


class SearchCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """A search whose end was asked for."""

    search: str
    accepted: bool


class ServiceRow(msgspec.Struct, kw_only=True):
    """A service without its replicas. `state` is `active`, `ending` or `over`.

    `requests_per_s`, `p95_ms`, `open` and `waiting` are those of the gateway that answers; requests
    that are `waiting` are `open` too. `seq` is the place of the latest fact about the service in
    its log: it is another one once anything has changed. `target_per_s` is what one replica is to
    answer, `latency_ms` what 95 % of the requests may take.
    """

    service: str
    name: str
    vc: str
    owner: str
    state: str
    why: str | None
    detail: str
    began_at: int
    ended_at: int | None
    revision: int
    updating: bool
    wanted: int
    ready: int
    replicas: int
    replicas_max: int
    scaled_why: str | None
    scaled_at: int | None
    seq: int
    failures: int
    requests_per_s: float
    p95_ms: int
    target_per_s: int | None
    latency_ms: int | None
    open: int
    waiting: int
    url: str


class ServiceList(msgspec.Struct, frozen=True, kw_only=True):
    """Services by their begin."""

    services: list[ServiceRow]


class ReplicaRow(msgspec.Struct, kw_only=True):
    """A replica. `stand` is `new`, `waiting`, `running`, `ready` or `draining`."""

    replica: int
    job: str
    revision: int
    stand: str
    why: str | None
    since: int
    node: str | None
    open: int


class ServiceDetail(ServiceRow, kw_only=True):
    """A service with its spec and its replicas that are not over."""

    spec: dict[str, Any]
    rows: list[ReplicaRow]


class ServiceTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a service was taken."""

    service: str
    accepted: bool
    repeated: bool = False


class TrialAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A trial that was added to a search."""

    search: str
    trial: int | None
    params: dict[str, Any]
    repeated: bool = False


class TrialTold(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of a trial was taken."""

    search: str
    trial: int
    accepted: bool


# --- the cluster ---------------------------------------------------------------------------------


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `free` counts GPUs; `jobs` are those that the caller may know of."""

    node: str
    address: str
    state: str
    gpus: int
    free: int
    gpu_type: str
    cpus: int
    memory: int
    last_heard_at: int | None
    incarnation: int
    jobs: list[str]
    images: str = ""
    """Whether images of processes are stored there: empty: it is not allowed; `yes`; or why not."""
    blamed: str = ""
    """What it, or a GPU of it, is blamed for, as ranks of several tenants were slow there; for
    operators."""


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes by name."""

    nodes: list[NodeRow]


class GpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU. `utilisation` is thousandths, None if it is not measured."""

    node: str
    index: int
    type: str
    memory: int
    uuid: str
    taken: bool
    job: str | None
    vc: str | None
    rank: int | None
    borrowed: bool
    beside: list[str]
    quarantined: bool
    utilisation: int | None
    blamed: str = ""
    """What it alone is blamed for; as of a node."""


class GpuList(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs by node."""

    gpus: list[GpuRow]


class StageTold(msgspec.Struct, frozen=True, kw_only=True):
    """How far a learned model has come in a VC, and the figures that it rests on."""

    stage: str
    since: int
    why: str
    decisions: int
    agreed_milli: int
    pairs: int
    gain_milli: int
    low_milli: int
    high_milli: int
    text: str


class ExploredTold(msgspec.Struct, frozen=True, kw_only=True):
    """What was drawn last where other choices are tried, and what of the day's budget is spent."""

    choice: int
    chance: int
    day: int
    spent: int


class FollowingTold(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a VC is planned by its learned model or by its rule, since when, and why."""

    vc: str
    follows: bool
    model: str
    rule: str
    why: str
    text: str
    since: int
    stage: StageTold | None = None
    explored: ExploredTold | None = None


class VcRow(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual cluster: the GPUs of its cells, and what its jobs use."""

    vc: str
    gpus: int
    asked: int
    weight: float
    jobs_max: int | None
    policy: str
    options: dict[str, Any]
    used: int
    borrowed: int
    running: int
    suspended: int
    queued: int
    following: FollowingTold | None = None
    templates: dict[str, Any] = {}


class VcList(msgspec.Struct, frozen=True, kw_only=True):
    """The virtual clusters by name."""

    vcs: list[VcRow]
    alarms: list[Alarm]


class TemplateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A template: of the `operator`, in the cluster file, or of the `managers`."""

    name: str
    vc: str
    spec: dict[str, Any]
    fixed: list[str]
    about: str
    of: str
    by: str = ""
    set_at: int = 0


class TemplateList(msgspec.Struct, frozen=True, kw_only=True):
    """The templates by virtual cluster and name."""

    templates: list[TemplateRow]


class TemplateTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a template; `accepted` null: admission has not answered yet."""

    vc: str
    name: str
    accepted: bool | None


class VcUsage(VcRow, frozen=True, kw_only=True):
    """A virtual cluster with its cells: how many, and where each one is."""

    cells: tuple[CellKind, ...] = ()
    bound: tuple[BoundCell, ...] = ()
    borrowers: tuple[Borrower, ...] = ()


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    """The virtual clusters with their cells."""

    vcs: list[VcUsage]
    alarms: list[Alarm]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether every process is well, by its identity."""

    ok: bool
    services: dict[str, dict[str, Any]]
    version: str


class Near(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence for each limit of which a tenant uses four fifths or more."""

    near: list[str]


class StateTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table: each row is in the order of the columns, of which the first is the key."""

    columns: list[str]
    rows: list[list[Any]]


class StateList(msgspec.Struct, frozen=True, kw_only=True):
    """Tables by name. What changes after `cursor` is in `/v1/state/changes?since=CURSOR`.

    Rows may be newer than the cursor: then they come once more.
    """

    cursor: str
    at: int
    tables: dict[str, StateTable]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster over the last hours, a row for each `step_s` seconds, the oldest first."""

    step_s: int
    columns: list[str]
    rows: list[list[Any]]


class Cells(msgspec.Struct, frozen=True, kw_only=True):
    """The trees of cells by chain."""

    chains: list[CellChain]
    alarms: list[Alarm]


class CellsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What other cells would mean for the jobs that run. `missing`: nodes that have not joined."""

    jobs: list[JobFate]
    vcs: list[VcChange]
    missing: list[str]


class Fair(msgspec.Struct, frozen=True, kw_only=True):
    """What the people of virtual clusters used, and what they may have."""

    vcs: list[FairVc]


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job shows its training; `log`: whether its log could be read for that."""

    job: str
    links: list[Link]
    log: bool


class Volumes(msgspec.Struct, frozen=True, kw_only=True):
    """Volumes, and in which mode which virtual cluster may use them."""

    volumes: list[dict[str, Any]]


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are kept free for a time."""

    windows: list[WindowRow]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time and jobs, as a table."""

    at: int
    report: ReportTable


class BlamedParty(msgspec.Struct, frozen=True, kw_only=True):
    """Whose doing a part of a share was: a `job`, a `node`, a `reason`, `others`, ... ."""

    kind: str
    ns: int
    name: str = ""
    vc: str = ""


class BlamedShare(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one cause, and the GPU time that was held meanwhile (nanoseconds)."""

    cause: str
    ns: int
    gpu_ns: int
    parties: tuple[BlamedParty, ...] = ()
    text: str = ""


class BlamedSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a job's time with one cause."""

    begin: int
    end: int
    cause: str
    parties: tuple[BlamedParty, ...] = ()


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a job went: the shares come to `elapsed_ns`, exactly.

    `end` is empty while it has not ended; then `until` is when this was told. `earlier_ns` are
    before the first of `spans`.
    """

    job: str
    name: str
    vc: str
    gpus: int
    submitted_at: int
    until: int
    end: str
    elapsed_ns: int
    held_gpu_ns: int
    useful_gpu_ns: int
    slowed_gpu_ns: int
    lost_gpu_ns: int
    shares: tuple[BlamedShare, ...]
    earlier_ns: int
    spans: tuple[BlamedSpan, ...]


class BlameList(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of the jobs of virtual clusters went."""

    at: int
    vcs: list[dict[str, Any]]


class PromiseList(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines of jobs, and how many were kept."""

    promises: list[PromiseRow]
    total: int
    totals: dict[str, dict[str, int]]


class KindTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How many trials of a kind came to what, and the mean gain of those that were kept."""

    kind: str
    open: int
    kept: int
    undone: int
    void: int
    kept_gain_milli: int | None


class ProbesTold(msgspec.Struct, frozen=True, kw_only=True):
    """What probes took of the GPU time of a VC in the last day, and what they may take.

    `why`: no further one would fit.
    """

    vc: str
    probes: int
    used_s: int
    most_s: int
    why: str | None


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried of running jobs, and how it was judged. `texts`: what its codes mean."""

    trials: list[Tried]
    total: int
    totals: list[KindTotals]
    forgotten: int
    following: list[FollowingTold]
    probes: list[ProbesTold]
    texts: dict[str, str] = {}


class EstimatesHeld(msgspec.Struct, frozen=True, kw_only=True):
    """How often estimates held that rest on the same: eight of ten should.

    `ranks` counts outcomes by the tenth of their estimate in which they fell.
    """

    vc: str
    family: str | None
    what: str
    outcomes: int
    held: int
    covered: float | None
    error: float
    widened: float
    ranks: list[int]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How often estimates held."""

    estimates: list[EstimatesHeld]
    left_out: int


class MeasuredAt(msgspec.Struct, frozen=True, kw_only=True):
    """What a mini-batch took at a place, as quantiles over jobs."""

    gpus: int
    nodes: int
    batch: int
    shared: bool
    p10_ns: int
    p50_ns: int
    p90_ns: int
    jobs: int
    samples: int
    spread_milli: int


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A family of jobs on a type of GPU: what was measured, and what is borrowed from which."""

    model: str
    gpu_type: str
    fingerprint: dict[str, Any] | None
    measured: list[MeasuredAt]
    borrowed: list[dict[str, Any]]
    borrowed_from: dict[str, Any] | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of models."""

    models: list[ModelRow]
    left_out: int = 0


class PolicyTold(msgspec.Struct, frozen=True, kw_only=True):
    """A policy: what it does, the paper it is from, and its options with their defaults."""

    policy: str
    does: str
    source: str
    options: dict[str, Any]


class PolicyList(msgspec.Struct, frozen=True, kw_only=True):
    """The policies that a virtual cluster may have."""

    policies: list[PolicyTold]


class ReplayGroup(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of a VC fared in a run: means over jobs, in seconds."""

    jobs: int
    jct_s: float | None
    queue_s: float | None


class ReplayRun(msgspec.Struct, frozen=True, kw_only=True):
    """How all jobs fared in a run: means over jobs, in seconds. `allocated` is a part of one."""

    jobs: int
    ended: int
    refused: int
    jct_s: float | None
    queue_s: float | None
    makespan_s: float
    allocated: float
    preempted: int
    by_vc: dict[str, ReplayGroup]


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job: how long it waited, and how long it took from its submission to its end.

    Each has three: as it was, simulated as it was, and simulated otherwise. None: it never did.
    """

    job: str
    vc: str
    gpus: int
    submitted_at: int
    waited_s: list[float | None]
    lasted_s: list[float | None]


class ReplayOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a span was, and what it would have been: compare `simulated` and `changed`.

    How close `simulated` is to `was` says how far the simulation can be believed. `jobs` are those
    with the largest differences, `moved` all that would have ended at another time.
    """

    was: ReplayRun
    simulated: ReplayRun
    changed: ReplayRun
    jobs: list[ReplayJob]
    jobs_total: int
    moved: int
    left_out: list[str]


class PolicyGiven(msgspec.Struct, frozen=True, kw_only=True):
    """A policy by its name, with the options that are not the defaults."""

    name: str
    options: dict[str, Any] = {}


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True):
    """A replay. `part` are thousandths of its `phase`; `version` grows with every change."""

    replay: str
    state: str
    phase: str
    part: int
    since: int
    until: int
    policies: dict[str, PolicyGiven]
    by: str
    begun_at: int
    ended_at: int | None
    reason: str | None
    text: str
    version: int


class ReplayDetail(ReplayRow, frozen=True, kw_only=True):
    """A replay with its outcome, once it is done."""

    outcome: ReplayOutcome | None


class ReplayList(msgspec.Struct, frozen=True, kw_only=True):
    """Replays, the newest first."""

    replays: list[ReplayRow]


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """It is kept, and is done soon."""

    accepted: bool
    repeated: bool = False


class MayDo(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the caller may do: in a VC (empty: in any, or it is not about one).

    `own_only`: only to what is the caller's own. Actions are those of the table of rights.
    """

    action: str
    vc: str
    own_only: bool


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway takes the caller for, and what it may do."""

    name: str
    person: str
    operator: bool
    vc: str
    roles: Any
    source: str
    full_name: str = ""
    token: TokenTold | None = None
    may: tuple[MayDo, ...] = ()


class People(msgspec.Struct, frozen=True, kw_only=True):
    """The people that the caller may know of."""

    people: list[PersonTold]


class TokenTold(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its text: `valid`, `revoked` or `expired`. `by` is what it was made with.

    `used_at`: when this gateway last took it; null: not since it began.
    """

    token: str
    person: str
    name: str
    state: str
    at: int
    expires_at: int
    by: str
    used_at: int | None = None


class TokenList(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens. `used_since`: since when this gateway knows that one was used."""

    tokens: list[TokenTold]
    used_since: int = 0


class TokenMade(msgspec.Struct, frozen=True, kw_only=True):
    """A token. Its `text` is in this answer, and nowhere else."""

    token: str
    person: str
    name: str
    expires_at: int
    text: str


class JoinTokenList(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens by which nodes and servers join, without their texts."""

    join_tokens: list[dict[str, Any]]


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret, without its value."""

    scope: str
    owner: str
    name: str


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of an owner, without their values."""

    scope: str
    owner: str
    secrets: list[dict[str, Any]]


class SecretKey(msgspec.Struct, frozen=True, kw_only=True):
    """What secrets are to be sealed to, in base64."""

    key: str
    places: Any


class NoticeList(msgspec.Struct, frozen=True, kw_only=True):
    """The targets that jobs may notify, and the latest messages, those that wait first.

    `mail` and `webhooks`: whether jobs may name addresses and URLs of their own.
    """

    targets: list[TargetShown]
    messages: list[MessageShown]
    waiting: int
    mail: bool
    webhooks: bool


class NoticeTested(msgspec.Struct, frozen=True, kw_only=True):
    """A test that a target took."""

    target: str
    vc: str
    sent: bool


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes and servers that joined by a token."""

    members: list[dict[str, Any]]


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """A person or a token changed something, or was refused to.

    `why` is the reason of a refusal, `reason` what the actor says. `missed` counts refusals of the
    actor before this one that have no line.
    """

    at: int
    actor: str
    action: str
    target: str
    outcome: str
    vc: str = ""
    source: str = ""
    token: str = ""
    reason: str = ""
    why: str | None = None
    missed: int = 0


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of the audit log. `texts`: what the codes of refusals mean."""

    lines: list[AuditLine]
    left_out: int
    older: int
    texts: dict[str, str] = {}


class LoginProvider(msgspec.Struct, frozen=True, kw_only=True):
    """The provider that vouches for people, and a nonce for a login at it.

    `confidential`: it wants a secret of its client, so that programs ask it through the gateway.
    `client_secret` is empty. `pages` are the addresses at which one logs in to the page.
    """

    issuer: str
    client_id: str
    confidential: bool
    client_secret: str
    scopes: str
    nonce: str
    pages: list[str]


class LoginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one logs in here; `oidc` null: no provider vouches for people."""

    people: bool
    oidc: LoginProvider | None


class LoginBegun(msgspec.Struct, frozen=True, kw_only=True):
    """Where the browser goes to log in, and the state that it must bring back."""

    url: str
    state: str
