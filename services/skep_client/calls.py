"""The gateway's API as values: what is asked, and what the answer is. Nothing is sent here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from skep.wire.changes import (
    AskCheckpoint,
    AskHold,
    AskMigrate,
    AskPack,
    AskPriority,
    AskRelease,
    AskResize,
    AskResume,
    AskRetry,
    AskSuspend,
    AskUnpack,
)
from skep.wire.search import SearchSpec
from skep.wire.spec import SPEC_BYTES_MAX, JobSpec
from skep_client.errors import BadCallError
from skep_services.cli.client import is_header_text, query, quote
from skep_services.gateway.answers import (
    Blame,
    BlameList,
    CacheList,
    CacheRemoved,
    Calibration,
    Cancelled,
    ChangeTaken,
    ChunksKept,
    CodeKept,
    CodeList,
    Curve,
    EventList,
    Fair,
    GpuList,
    Health,
    History,
    JobDetail,
    JobList,
    Links,
    ModelList,
    Near,
    NodeList,
    NoticeList,
    NoticeTested,
    OutputDigest,
    OutputList,
    Plan,
    PromiseList,
    RateCourse,
    ReplayDetail,
    ReplayList,
    ReplayRow,
    Report,
    Requeued,
    SearchBegun,
    SearchCancelled,
    SearchDetail,
    SearchList,
    ServiceDetail,
    ServiceList,
    ServiceTaken,
    StateList,
    Submitted,
    Trace,
    TrialAsked,
    Trials,
    TrialTold,
    UsageList,
    VcList,
    VcUsage,
    Volumes,
    WhoAmI,
    Why,
    Windows,
)

ANSWER_S = 30.0
"""The gateway gives up on the bus after 10 s; three times that is a gateway that hangs."""
OUTPUTS_S, DIGEST_S, CODE_S = 60.0, 630.0, 120.0
"""Nodes are asked for files, read large ones whole, and the bus keeps what is sent."""
POLL_S = 30
"""How long one request waits at the gateway: below what proxies allow."""

Result = TypeVar("Result")


class HasJob(Protocol):
    """What has a job's id: rows, details, and what `submit` returned."""

    @property
    def job(self) -> str: ...


JobLike = str | HasJob
"""A job: its id (`j17`), its name if no other job of the caller has it, or what has its id."""
Spec = JobSpec | Mapping[str, Any]
"""A job's spec: the struct, or the keys of a spec file."""
ChangeAsk = (
    AskSuspend
    | AskResume
    | AskCheckpoint
    | AskMigrate
    | AskResize
    | AskPack
    | AskUnpack
    | AskPriority
    | AskHold
    | AskRelease
    | AskRetry
)


class Call(msgspec.Struct, Generic[Result], frozen=True, kw_only=True):
    """One request. `answer` is the type of its answer; `wait_s` bounds each wait for it."""

    method: str
    path: str
    answer: type[Result]
    body: bytes | None = None
    headers: dict[str, str] = {}
    wait_s: float = ANSWER_S


def job_name(job: JobLike) -> str:
    """Return the id or name of a job.

    Raises:
        BadCallError: It is neither.
    """
    name = job if isinstance(job, str) else getattr(job, "job", None)
    if not isinstance(name, str) or not name:
        text = f"not a job: {job!r:.80} (give its id, such as 'j17', or its name)"
        raise BadCallError(text)
    return name


def of_job(job: JobLike, rest: str = "") -> str:
    """Return the path of a job, or of something of it."""
    return f"/v1/jobs/{quote(job_name(job))}{rest}"


def _said(name: str, what: str) -> str:
    """Return a part of a path.

    Raises:
        BadCallError: It is no name.
    """
    if not isinstance(name, str) or not name:
        text = f"not {what}: {name!r:.80}"
        raise BadCallError(text)
    return name


def new_key(key: str | None) -> str:
    """Return an idempotency key: the one given, or a new one.

    Raises:
        BadCallError: It cannot be sent.
    """
    if key is None:
        return os.urandom(16).hex()
    if not key or not is_header_text(key):
        text = "a key has printable ASCII characters, at least one"
        raise BadCallError(text)
    return key


def encoded(value: Any, what: str) -> bytes:
    """Return a value as JSON.

    Args:
        what: What the value is called in the error.

    Raises:
        BadCallError: It is no JSON, or larger than a spec may be.
    """
    try:
        body = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        text = f"{what} cannot be sent as JSON: {error}"
        raise BadCallError(text) from None
    if len(body) > SPEC_BYTES_MAX:
        text = f"{what} has {len(body)} bytes; at most {SPEC_BYTES_MAX} are accepted"
        raise BadCallError(text)
    return body


# --- jobs ----------------------------------------------------------------------------------------


def submit(spec: Spec, key: str) -> Call[Submitted]:
    """Submit a job."""
    return Call(
        method="POST",
        path="/v1/jobs",
        answer=Submitted,
        body=encoded(spec, "the spec"),
        headers={"Idempotency-Key": key},
    )


def plan(spec: Spec) -> Call[Plan]:
    """Ask what would become of a spec."""
    return Call(method="POST", path="/v1/plan", answer=Plan, body=encoded(spec, "the spec"))


def labels_of(labels: Mapping[str, str | None] | None) -> list[str]:
    """Return labels as a query names them: `KEY=VALUE`, or `KEY` for any value."""
    return [key if value is None else f"{key}={value}" for key, value in (labels or {}).items()]


def jobs(**wanted: Any) -> Call[JobList]:
    """List jobs."""
    return Call(method="GET", path=query("/v1/jobs", **wanted), answer=JobList)


def job(name: JobLike) -> Call[JobDetail]:
    """Ask for everything about a job."""
    return Call(method="GET", path=of_job(name), answer=JobDetail)


def job_once(
    name: JobLike, until: str, timeout_s: int, number: int | None = None
) -> Call[JobDetail]:
    """Ask for a job once it is as `until` says, or after `timeout_s` seconds as it is."""
    path = query(of_job(name), wait=until, timeout_s=timeout_s, number=number)
    return Call(method="GET", path=path, answer=JobDetail, wait_s=ANSWER_S + timeout_s)


def cancel(name: JobLike) -> Call[Cancelled]:
    """Ask for a job's end."""
    return Call(method="DELETE", path=of_job(name), answer=Cancelled)


def change(ask: ChangeAsk) -> Call[ChangeTaken]:
    """Ask for a change of a job."""
    tree = msgspec.to_builtins(ask)
    verb = tree.pop("ask")
    tree.pop("job")
    body = encoded(tree, "the request")
    return Call(method="POST", path=of_job(ask.job, f"/{verb}"), answer=ChangeTaken, body=body)


def requeue(name: JobLike, key: str, *, hold: bool) -> Call[Requeued]:
    """Submit an ended job again."""
    return Call(
        method="POST",
        path=of_job(name, "/requeue"),
        answer=Requeued,
        body=encoded({"hold": True} if hold else {}, "the request"),
        headers={"Idempotency-Key": key},
    )


def outputs(name: JobLike, attempt: int | None) -> Call[OutputList]:
    """Ask for the files that an attempt left."""
    path = query(of_job(name, "/outputs"), attempt=attempt)
    return Call(method="GET", path=path, answer=OutputList, wait_s=OUTPUTS_S)


def output_digest(name: JobLike, asked: Mapping[str, Any]) -> Call[OutputDigest]:
    """Ask for the SHA-256 of a file of an attempt."""
    path = query(of_job(name, "/outputs/digest"), **asked)
    return Call(method="GET", path=path, answer=OutputDigest, wait_s=DIGEST_S)


def code(vc: str) -> Call[CodeList]:
    """Ask which snapshots of code a virtual cluster has."""
    return Call(method="GET", path=f"/v1/code/{quote(vc)}", answer=CodeList)


def keep_code(vc: str, digest: str, raw: bytes) -> Call[CodeKept]:
    """Hand in the list of a snapshot's chunks."""
    path = f"/v1/code/{quote(vc)}/{digest}"
    return Call(method="PUT", path=path, answer=CodeKept, body=raw, wait_s=CODE_S)


def keep_chunks(vc: str, body: bytes) -> Call[ChunksKept]:
    """Hand in chunks of snapshots."""
    path = f"/v1/code/{quote(vc)}"
    return Call(method="POST", path=path, answer=ChunksKept, body=body, wait_s=CODE_S)


def blame(name: JobLike) -> Call[Blame]:
    """Ask where the time of a job went."""
    return Call(method="GET", path=of_job(name, "/blame"), answer=Blame)


def links(name: JobLike) -> Call[Links]:
    """Ask where a job shows its training."""
    return Call(method="GET", path=of_job(name, "/links"), answer=Links)


def why(name: JobLike, *, what_if: bool) -> Call[Why]:
    """Ask why a job is where it is."""
    path = query(of_job(name, "/why"), what_if=1 if what_if else None)
    return Call(method="GET", path=path, answer=Why)


def curve(name: JobLike) -> Call[Curve]:
    """Ask for what a job said about its training."""
    return Call(method="GET", path=of_job(name, "/curve"), answer=Curve)


def rates(name: JobLike) -> Call[RateCourse]:
    """Ask how fast a job went over time."""
    return Call(method="GET", path=of_job(name, "/rates"), answer=RateCourse)


def trace(name: JobLike) -> Call[Trace]:
    """Ask for the spans of a job."""
    return Call(method="GET", path=of_job(name, "/trace"), answer=Trace)


def events(**wanted: Any) -> Call[EventList]:
    """Ask for stored events."""
    return Call(method="GET", path=query("/v1/events", **wanted), answer=EventList)


# --- searches ------------------------------------------------------------------------------------


def _of_search(search: str, rest: str = "") -> str:
    if not isinstance(search, str) or not search:
        text = f"not a search: {search!r:.80} (give its id, such as 's4')"
        raise BadCallError(text)
    return f"/v1/searches/{quote(search)}{rest}"


def begin_search(spec: SearchSpec | Mapping[str, Any], key: str) -> Call[SearchBegun]:
    """Begin a search."""
    return Call(
        method="POST",
        path="/v1/searches",
        answer=SearchBegun,
        body=encoded(spec, "the search"),
        headers={"Idempotency-Key": key},
    )


def searches(**wanted: Any) -> Call[SearchList]:
    """List searches."""
    return Call(method="GET", path=query("/v1/searches", **wanted), answer=SearchList)


def search(name: str, timeout_s: int | None = None) -> Call[SearchDetail]:
    """Ask for a search, at once or when it is over or `timeout_s` seconds have passed."""
    wait = None if timeout_s is None else "over"
    path = query(_of_search(name), wait=wait, timeout_s=timeout_s)
    return Call(method="GET", path=path, answer=SearchDetail, wait_s=ANSWER_S + (timeout_s or 0))


def cancel_search(name: str) -> Call[SearchCancelled]:
    """End a search."""
    return Call(method="DELETE", path=_of_search(name), answer=SearchCancelled)


def ask_trial(
    name: str, params: Mapping[str, Any] | None, key: str, *, outside: bool
) -> Call[TrialAsked]:
    """Add a trial to a search."""
    asked: dict[str, Any] = {} if params is None else {"params": dict(params)}
    if outside:
        asked["outside"] = True
    return Call(
        method="POST",
        path=_of_search(name, "/trials"),
        answer=TrialAsked,
        body=encoded(asked, "the trial"),
        headers={"Idempotency-Key": key},
    )


def tell_trial(name: str, trial: int, told: Mapping[str, Any]) -> Call[TrialTold]:
    """Say how a trial goes that runs outside."""
    path = _of_search(name, f"/trials/{trial:d}")
    return Call(method="POST", path=path, answer=TrialTold, body=encoded(told, "what is told"))


def rank_trial(name: str, trial: int, verb: str) -> Call[TrialTold]:
    """Put a trial behind all others (`demote`), or among them again (`promote`)."""
    path = _of_search(name, f"/trials/{trial:d}/{verb}")
    return Call(method="POST", path=path, answer=TrialTold)


# --- services ------------------------------------------------------------------------------------


def _of_service(service: str, rest: str = "") -> str:
    if not isinstance(service, str) or not service:
        text = f"not a service: {service!r:.80} (give its id, such as 'v4', or 'VC.NAME')"
        raise BadCallError(text)
    return f"/v1/services/{quote(service)}{rest}"


def serve(spec: Mapping[str, Any], key: str) -> Call[ServiceTaken]:
    """Begin a service."""
    return Call(
        method="POST",
        path="/v1/services",
        answer=ServiceTaken,
        body=encoded(spec, "the service"),
        headers={"Idempotency-Key": key},
    )


def update_service(name: str, spec: Mapping[str, Any]) -> Call[ServiceTaken]:
    """Have a service be as a spec says."""
    body = encoded(spec, "the service")
    return Call(method="PUT", path=_of_service(name), answer=ServiceTaken, body=body)


def services(**wanted: Any) -> Call[ServiceList]:
    """List services."""
    return Call(method="GET", path=query("/v1/services", **wanted), answer=ServiceList)


def service(
    name: str, until: str | None = None, timeout_s: int | None = None, since: int | None = None
) -> Call[ServiceDetail]:
    """Ask for a service, at once or when it is as `until` says or `timeout_s` seconds are over."""
    path = query(_of_service(name), wait=until, timeout_s=timeout_s, since=since)
    return Call(method="GET", path=path, answer=ServiceDetail, wait_s=ANSWER_S + (timeout_s or 0))


def scale_service(name: str, replicas: int) -> Call[ServiceTaken]:
    """Have a service have so many replicas."""
    body = encoded({"replicas": replicas}, "the request")
    return Call(method="POST", path=_of_service(name, "/scale"), answer=ServiceTaken, body=body)


def stop_service(name: str) -> Call[ServiceTaken]:
    """Drain all replicas of a service, and end it."""
    return Call(method="DELETE", path=_of_service(name), answer=ServiceTaken)


# --- the cluster ---------------------------------------------------------------------------------


def nodes() -> Call[NodeList]:
    """List the nodes."""
    return Call(method="GET", path="/v1/nodes", answer=NodeList)


def gpus() -> Call[GpuList]:
    """List the GPUs."""
    return Call(method="GET", path="/v1/gpus", answer=GpuList)


def vcs() -> Call[VcList]:
    """List the virtual clusters."""
    return Call(method="GET", path="/v1/vcs", answer=VcList)


def usage(vc: str) -> Call[VcUsage]:
    """Ask for the cells of a virtual cluster."""
    return Call(method="GET", path=f"/v1/vcs/{quote(vc)}/usage", answer=VcUsage)


def usages() -> Call[UsageList]:
    """Ask for the cells of every virtual cluster."""
    return Call(method="GET", path="/v1/usage", answer=UsageList)


def fair(**wanted: Any) -> Call[Fair]:
    """Ask what people used, and what they may have."""
    return Call(method="GET", path=query("/v1/fair", **wanted), answer=Fair)


def volumes(**wanted: Any) -> Call[Volumes]:
    """List the volumes that the caller may use."""
    return Call(method="GET", path=query("/v1/volumes", **wanted), answer=Volumes)


def windows() -> Call[Windows]:
    """List the windows in which nodes are kept free."""
    return Call(method="GET", path="/v1/windows", answer=Windows)


def caches() -> Call[CacheList]:
    """List the environments that nodes keep."""
    return Call(method="GET", path="/v1/caches", answer=CacheList, wait_s=OUTPUTS_S)


def remove_cache(node: str, key: str) -> Call[CacheRemoved]:
    """Have a node remove an environment."""
    path = f"/v1/caches/{quote(_said(node, 'a node'))}/{quote(_said(key, 'a key'))}"
    return Call(method="DELETE", path=path, answer=CacheRemoved, wait_s=OUTPUTS_S)


def notices(**wanted: Any) -> Call[NoticeList]:
    """List the targets that jobs may notify, and the latest messages."""
    return Call(method="GET", path=query("/v1/notices", **wanted), answer=NoticeList)


def test_notice(target: str, vc: str) -> Call[NoticeTested]:
    """Send a test to a target."""
    body = encoded({"target": target, "vc": vc}, "the test")
    return Call(
        method="POST", path="/v1/notices/test", answer=NoticeTested, body=body, wait_s=OUTPUTS_S
    )


def blames(**wanted: Any) -> Call[BlameList]:
    """Ask where the time of all jobs of virtual clusters went."""
    return Call(method="GET", path=query("/v1/blame", **wanted), answer=BlameList)


def promises(**wanted: Any) -> Call[PromiseList]:
    """List the deadlines of jobs."""
    return Call(method="GET", path=query("/v1/promises", **wanted), answer=PromiseList)


def trials(**wanted: Any) -> Call[Trials]:
    """List what was tried of running jobs."""
    return Call(method="GET", path=query("/v1/trials", **wanted), answer=Trials)


def calibration(**wanted: Any) -> Call[Calibration]:
    """Ask how often estimates held."""
    return Call(method="GET", path=query("/v1/calibration", **wanted), answer=Calibration)


def models(model: str | None, **wanted: Any) -> Call[ModelList]:
    """Ask what was measured of all models, or of one."""
    path = "/v1/models" if model is None else f"/v1/models/{quote(_said(model, 'a model'))}"
    return Call(method="GET", path=query(path, **wanted), answer=ModelList)


def limits() -> Call[Near]:
    """Ask which limits are near."""
    return Call(method="GET", path="/v1/limits", answer=Near)


def whoami() -> Call[WhoAmI]:
    """Ask what the gateway takes the caller for."""
    return Call(method="GET", path="/v1/whoami", answer=WhoAmI)


def report(**wanted: Any) -> Call[Report]:
    """Ask for sums of GPU time and jobs."""
    return Call(method="GET", path=query("/v1/report", **wanted), answer=Report)


def state(tables: str, **wanted: Any) -> Call[StateList]:
    """Ask for tables of what there is."""
    return Call(method="GET", path=query("/v1/state", tables=tables, **wanted), answer=StateList)


def history(**wanted: Any) -> Call[History]:
    """Ask for the cluster over the last hours."""
    return Call(method="GET", path=query("/v1/history", **wanted), answer=History)


def replays() -> Call[ReplayList]:
    """List the replays that the gateway keeps."""
    return Call(method="GET", path="/v1/replays", answer=ReplayList)


def of_replay(name: str) -> str:
    """Return the path of a replay."""
    return f"/v1/replays/{quote(_said(name, 'a replay'))}"


def replay(name: str) -> Call[ReplayDetail]:
    """Ask for a replay with its outcome."""
    return Call(method="GET", path=of_replay(name), answer=ReplayDetail)


def begin_replay(since: int, until: int, policies: Mapping[str, Any]) -> Call[ReplayRow]:
    """Have a past span simulated under other policies."""
    tree = {"since": since, "until": until, "policies": policies}
    body = encoded(tree, "the replay")
    return Call(method="POST", path="/v1/replays", answer=ReplayRow, body=body)


def end_replay(name: str) -> Call[ReplayRow]:
    """End a replay that runs."""
    return Call(method="DELETE", path=of_replay(name), answer=ReplayRow)


def health() -> Call[Health]:
    """Ask whether every process is well."""
    return Call(method="GET", path="/v1/health", answer=Health)


def anything(path: str, wanted: Mapping[str, Any]) -> Call[Any]:
    """Ask for any other answer, as JSON's own types.

    Raises:
        BadCallError: The path is none of the gateway's.
    """
    if not path.startswith("/v1/") or not path.isprintable() or any(c in path for c in " ?#"):
        text = f"not a path of the API: {path!r:.80} (such as '/v1/report')"
        raise BadCallError(text)
    return Call(method="GET", path=query(path, **wanted), answer=Any)
