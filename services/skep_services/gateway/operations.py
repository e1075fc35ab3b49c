"""Every route of the gateway as the OpenAPI document has it: what it takes, answers and refuses.

A route without an entry here fails a test, as does an entry without a route.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skep.ledger.report import By
from skep.wire.bounds import NAME_PATTERN, SEARCH_PATTERN, SERVICE_PATTERN
from skep.wire.changes import ASKS
from skep.wire.search import SearchSpec
from skep.wire.service import ServiceSpec
from skep.wire.spec import JobSpec
from skep.wire.trials import Kind
from skep_services.gateway import answers, cluster_answers
from skep_services.gateway.accounts import (
    BindBody,
    GroupRolesBody,
    JoinTokenBody,
    KeyBody,
    PersonBody,
    RoleBody,
    TokenBody,
)
from skep_services.gateway.api import CALLS
from skep_services.gateway.choosing import LABELS_MAX, ORDERS
from skep_services.gateway.cluster import (
    DrainBody,
    QuarantineBody,
    ReserveBody,
    UnreserveBody,
    VcsBody,
)
from skep_services.gateway.cluster_file import ClusterFileBody
from skep_services.gateway.columns import TABLES
from skep_services.gateway.front import METHODS
from skep_services.gateway.jobs import WAIT_S_MAX
from skep_services.gateway.joins import JoinBody, RenewBody
from skep_services.gateway.ledger import VERDICTS
from skep_services.gateway.logins import LoginBody, ProviderBody
from skep_services.gateway.notices import TestBody
from skep_services.gateway.page_logins import BeginBody, EndBody
from skep_services.gateway.promises import NEWEST, OUTCOMES
from skep_services.gateway.replays import ReplayBody
from skep_services.gateway.requeue import Requeue
from skep_services.gateway.rows import ACTIVE, ENDED
from skep_services.gateway.secrets import SecretBody
from skep_services.gateway.services import ScaleBody
from skep_services.gateway.state import HOURS, HOURS_MAX
from skep_services.gateway.submit import KEY_MAX
from skep_services.gateway.templates import TemplateBody

Schema = dict[str, Any]

FLAG: Schema = {"type": "integer", "enum": [0, 1], "default": 0}
COUNT: Schema = {"type": "integer", "minimum": 0}
NAME: Schema = {"type": "string", "pattern": NAME_PATTERN.replace("(?!\\n)", "")}
TEXT: Schema = {"type": "string"}
DAY: Schema = {"type": "string", "pattern": r"^$|^\d{4}-\d{2}-\d{2}$"}


def one_of(*words: str) -> Schema:
    """Return the schema of one of some words."""
    return {"type": "string", "enum": list(words)}


class Parameter(msgspec.Struct, frozen=True):
    """A part of a path, a key of a query, or a header."""

    name: str
    schema: Schema
    text: str
    where: str = "query"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One route.

    `errors` are statuses beside those of every route. `answer` None: no JSON, but `media`.
    `open`: it needs no token.
    """

    tag: str
    text: str
    answer: Any = None
    status: int = 200
    more_status: tuple[int, ...] = ()
    media: str = "application/json"
    takes: tuple[Parameter, ...] = ()
    body: Any = None
    body_needed: bool = True
    example: Any = None
    errors: tuple[int, ...] = ()
    open: bool = False


NAME_OR_ALL: Schema = {**NAME, "pattern": f"^$|{NAME['pattern']}"}
VC = Parameter("vc", NAME_OR_ALL, "Only what is of this virtual cluster; empty: of all.")
TABLE_NAMES = Parameter(
    "tables",
    {**TEXT, "examples": ["jobs,totals"]},
    f"Which tables, with commas between: {', '.join(TABLES)}; empty: all.",
)
LIMIT = Parameter("limit", COUNT, "At most so many.")
KEY = Parameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": KEY_MAX, "pattern": "^[!-~]+$"},
    "The same key makes the same job, however often the request is sent.",
    "header",
)
LAST_EVENT = Parameter(
    "Last-Event-ID", {"type": "string"}, "Go on after this event: what a client had last.", "header"
)
WAIT = Parameter("timeout_s", COUNT, f"How long it waits (seconds), {WAIT_S_MAX} at most.")

SERVICE_OR_NAME = SERVICE_PATTERN.replace("(?!\\n)", "") + "|^[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+$"

PATH: dict[str, Schema] = {
    "job": {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
    "search": {"type": "string", "pattern": SEARCH_PATTERN.replace("(?!\\n)", "")},
    "service": {"type": "string", "pattern": SERVICE_OR_NAME},
    "path": {"type": "string"},
    "trial": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "vc": NAME,
    "model": {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
    "token": {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
    "kind": one_of("node", "server"),
    "name": {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
    "scope": one_of("vc", "person"),
    "owner": NAME,
    "replay": {"type": "string", "pattern": "^r[1-9][0-9]{0,8}$"},
    "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "node": NAME,
    "key": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
}
"""The parts of paths, by name."""
PATH_TEXTS = {
    "job": "The id of a job (`j17`), or the name of one.",
    "search": "The id of a search (`s4`).",
    "service": "The id of a service (`v4`), or `VC.NAME` of one that is not over.",
    "path": "What the replica is asked for, with its query.",
    "trial": "The number of a trial.",
    "vc": "A virtual cluster.",
    "model": "The family of a job.",
    "token": "The id of a token.",
    "kind": "What it is.",
    "name": "Its name.",
    "scope": "Whose secret it is: a virtual cluster's or a person's.",
    "owner": "The virtual cluster or the person.",
    "do": "What is done.",
    "replay": "The id of a replay (`r2`).",
    "digest": "The SHA-256 of a snapshot's list.",
    "node": "A node.",
    "key": "What an environment is known by.",
}
CHOICES: dict[str, tuple[str, ...]] = {
    "/v1/searches/{search}/trials/{trial}/{do}": ("demote", "promote"),
    "/v1/people/{do}": ("add", "disable", "enable", "remove"),
    "/v1/roles/{do}": ("grant", "revoke"),
}
"""What `{do}` may be, by path."""

SPEC_EXAMPLE = {
    "name": "mnist",
    "vc": "nlp",
    "script": "train.py",
    "args": ["--epochs", "20"],
    "resources": {"gpus": 1, "workers": 2},
}
SERVICE_EXAMPLE = {
    "name": "llm",
    "vc": "default",
    "job": {"command": "python server.py --port $SKEP_PORT"},
    "replicas": 2,
    "health": "/health",
}
SEARCH_EXAMPLE = {
    "name": "rates",
    "vc": "nlp",
    "metric": "accuracy",
    "direction": "maximize",
    "job": {"script": "train.py", "args": ["--rate", "{rate}"]},
    "space": {"rate": {"log": [0.0001, 0.1]}},
    "budget": {"trials": 20},
    "parallel": 4,
}
VCS_EXAMPLE = {"vcs": {"nlp": {"gpus": 8}, "vision": {"gpus": 8}}}
SECRET_EXAMPLE = {"sealed": "c2VhbGVk" * 8, "key": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}
TEMPLATE_EXAMPLE = {"spec": {"resources": {"gpus": 1}}, "fixed": ["resources.gpus"]}
CHANGE_EXAMPLES: dict[str, Any] = {
    "suspend": {"release": True},
    "migrate": {"to": "node-2"},
    "resize": {"workers": 4},
    "pack": {"beside": "j12", "share": 0.5},
    "priority": {"priority": 10},
}


class TrialBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trial that is added. `outside`: the client runs it."""

    params: dict[str, str | int | float | bool] | None = None
    outside: bool = False


class TrialNews(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a trial goes that runs outside."""

    step: int = 0
    value: float | None = None
    over: str = ""


def get(tag: str, text: str, answer: Any = None, *takes: Parameter, **more: Any) -> Operation:
    """Return an operation that reads."""
    return Operation(tag=tag, text=text, answer=answer, takes=takes, **more)


def post(tag: str, text: str, answer: Any, body: Any = None, **more: Any) -> Operation:
    """Return an operation that changes something."""
    errors = (400, 409, 413, 422, 503, *more.pop("errors", ()))
    return Operation(tag=tag, text=text, answer=answer, body=body, errors=errors, **more)


def _change(verb: str) -> Operation:
    return post(
        "changes",
        str(ASKS[verb].__doc__).partition("\n")[0],
        answers.ChangeTaken,
        ASKS[verb],
        status=202,
        errors=(404,),
        body_needed=verb in ("resize", "pack", "priority"),
        example=CHANGE_EXAMPLES.get(verb, {}),
    )


ATTEMPT = Parameter(
    "attempt", {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "latest"}]}, "The attempt."
)
A_FILE = (
    ATTEMPT,
    Parameter("path", TEXT, "The file, relative to the job's folder."),
    Parameter("node", NAME_OR_ALL, "The node that has it; empty: the first one."),
    Parameter("token", TEXT, "What an earlier answer said of it: another content is refused."),
)

OPERATIONS: dict[tuple[str, str], Operation] = {
    # --- jobs ---
    ("GET", "/v1/jobs"): get(
        "jobs",
        "List jobs, the newest where the limit cuts.",
        answers.JobList,
        Parameter(
            "state",
            {**TEXT, "examples": ["active", "running,queued"]},
            f"Which jobs: {', '.join(('active', 'ended', 'all', *ACTIVE, *ENDED))}; several with"
            " commas between.",
        ),
        VC,
        Parameter("name", TEXT, "Only jobs of this name; `*` and `?` stand for any characters."),
        Parameter("prefix", TEXT, "Only jobs whose id or name begins so."),
        Parameter("owner", NAME_OR_ALL, "Only jobs of this person."),
        Parameter("user", TEXT, "The same, or whose label `user` says so if no person did."),
        Parameter("mine", FLAG, "Only jobs of the caller, a person."),
        Parameter(
            "label",
            {"type": "array", "items": TEXT, "maxItems": LABELS_MAX},
            "Only jobs with these labels: `KEY` or `KEY=VALUE`.",
        ),
        Parameter("tasks", FLAG, "The jobs of arrays' tasks, too."),
        Parameter("array", TEXT, "The jobs of this array's tasks, and no other."),
        Parameter(
            "order",
            {**TEXT, "examples": [*ORDERS, "-gpus"]},
            "Their order: one of these, or a column, with `-` before it the other way round.",
        ),
        LIMIT,
        errors=(400,),
    ),
    ("POST", "/v1/jobs"): post(
        "jobs",
        "Submit a job. 202: it is kept, and not judged yet.",
        answers.Submitted,
        JobSpec,
        status=201,
        more_status=(202,),
        takes=(KEY,),
        example=SPEC_EXAMPLE,
    ),
    ("GET", "/v1/jobs/{job}"): get(
        "jobs",
        "Show everything about a job, at once or when what `wait` names has come.",
        answers.JobDetail,
        Parameter("wait", one_of("started", "ended", "asked"), "What to wait for."),
        WAIT,
        Parameter("number", COUNT, "The request for a change that `wait=asked` waits for."),
        errors=(400, 404, 409),
    ),
    ("DELETE", "/v1/jobs/{job}"): Operation(
        tag="jobs",
        text="Ask for a job's end.",
        answer=answers.Cancelled,
        status=202,
        errors=(404, 409, 503),
    ),
    **{("POST", f"/v1/jobs/{{job}}/{verb}"): _change(verb) for verb in ASKS},
    ("POST", "/v1/plan"): post(
        "jobs",
        "Ask what would become of a spec, without submitting it.",
        answers.Plan,
        JobSpec,
        example=SPEC_EXAMPLE,
    ),
    ("GET", "/v1/jobs/{job}/why"): get(
        "jobs",
        "Explain why a job is where it is, and with `what_if` what would start it now.",
        answers.Why,
        Parameter("what_if", FLAG, "Ask what would start it."),
        errors=(400, 404, 409, 503),
    ),
    ("GET", "/v1/jobs/{job}/curve"): get(
        "jobs", "Show what a job said about its training.", answers.Curve, errors=(404, 409)
    ),
    ("GET", "/v1/jobs/{job}/rates"): get(
        "jobs",
        "Show how fast a job went over time, and what may have changed that.",
        answers.RateCourse,
        errors=(404, 409),
    ),
    ("GET", "/v1/jobs/{job}/events"): get(
        "events", "List what happened to a job.", answers.EventList, errors=(404, 409)
    ),
    ("GET", "/v1/jobs/{job}/trace"): get(
        "jobs", "List the spans of a job.", answers.Trace, errors=(404, 409)
    ),
    ("GET", "/v1/jobs/{job}/blame"): get(
        "jobs", "Tell where the time of a job went.", answers.Blame, errors=(404, 409)
    ),
    ("GET", "/v1/jobs/{job}/logs"): get(
        "jobs",
        "Read the output of a rank; with `follow` until its attempt is over.",
        None,
        Parameter("rank", COUNT, "The process of the gang."),
        ATTEMPT,
        Parameter("offset", COUNT, "How many bytes are passed over."),
        Parameter("follow", FLAG, "Go on until the attempt is over."),
        Parameter("tail", COUNT, "Only the last lines, so many."),
        Parameter("since_s", COUNT, "Only what was written in the last seconds, so many."),
        Parameter("grep", TEXT, "Only lines with this text, each as JSON with its offset."),
        Parameter("any_case", FLAG, "`grep` takes capital and small letters for the same."),
        media="text/plain",
        errors=(400, 404, 409, 503),
    ),
    ("GET", "/v1/jobs/{job}/terminal"): get(
        "jobs",
        "Open a session in a running job, over a WebSocket: a command, a terminal, or a port.",
        None,
        media="application/octet-stream",
        errors=(400, 404, 409, 503),
    ),
    ("POST", "/v1/jobs/{job}/requeue"): post(
        "jobs",
        "Submit an ended job again, as a new job.",
        answers.Requeued,
        Requeue,
        status=201,
        more_status=(202,),
        takes=(KEY,),
        errors=(404,),
        body_needed=False,
        example={"hold": True},
    ),
    ("GET", "/v1/jobs/{job}/links"): get(
        "jobs",
        "Show where a job shows its training: W&B runs, folders for TensorBoard.",
        answers.Links,
        errors=(404, 409),
    ),
    ("GET", "/v1/jobs/{job}/outputs"): get(
        "jobs",
        "List the files that an attempt of a job left on its nodes.",
        answers.OutputList,
        ATTEMPT,
        errors=(400, 404, 409, 503),
    ),
    ("GET", "/v1/jobs/{job}/outputs/file"): get(
        "jobs",
        "Read a file of an attempt.",
        None,
        *A_FILE,
        Parameter("offset", COUNT, "How many bytes are passed over."),
        media="application/octet-stream",
        errors=(400, 404, 409, 503),
    ),
    ("GET", "/v1/jobs/{job}/outputs/digest"): get(
        "jobs",
        "Tell the SHA-256 of a file of an attempt.",
        answers.OutputDigest,
        *A_FILE,
        errors=(400, 404, 409, 503),
    ),
    # --- caches ---
    ("GET", "/v1/caches"): get(
        "cluster", "List the environments of jobs that the nodes keep.", answers.CacheList
    ),
    ("DELETE", "/v1/caches/{node}/{key}"): Operation(
        tag="cluster",
        text="Have a node remove an environment that no job runs in.",
        answer=answers.CacheRemoved,
        errors=(400, 403, 404, 409, 503),
    ),
    # --- code ---
    ("GET", "/v1/code/{vc}"): get(
        "code",
        "List the snapshots of code that a virtual cluster has.",
        answers.CodeList,
        errors=(400,),
    ),
    ("POST", "/v1/code/{vc}"): post(
        "code",
        "Keep chunks of snapshots: each with its length before it.",
        answers.ChunksKept,
        status=201,
        errors=(408,),
    ),
    ("PUT", "/v1/code/{vc}/{digest}"): post(
        "code",
        "Keep a snapshot, or answer which of its chunks are to be sent first.",
        answers.CodeKept,
        more_status=(201,),
        errors=(408,),
    ),
    ("GET", "/v1/events"): get(
        "events",
        "List stored events, or with `follow` every further one as server-sent events.",
        answers.EventList,
        VC,
        Parameter("job", TEXT, "Only events of this job; empty: of all."),
        Parameter("since", COUNT, "Only events after this one."),
        LIMIT,
        Parameter("follow", FLAG, "Go on with what happens, as text/event-stream."),
        LAST_EVENT,
        errors=(400, 404, 409, 503),
    ),
    # --- searches ---
    ("GET", "/v1/searches"): get(
        "searches",
        "List searches without their trials.",
        answers.SearchList,
        VC,
        Parameter("state", one_of("active", "over", "all"), "Which searches."),
        errors=(400,),
    ),
    ("POST", "/v1/searches"): post(
        "searches",
        "Begin a search.",
        answers.SearchBegun,
        SearchSpec,
        status=201,
        takes=(KEY,),
        example=SEARCH_EXAMPLE,
        errors=(404,),
    ),
    ("GET", "/v1/searches/{search}"): get(
        "searches",
        "Show a search with all of its trials, at once or when it is over.",
        answers.SearchDetail,
        Parameter("wait", one_of("over"), "Wait for its end."),
        WAIT,
        errors=(400, 404),
    ),
    ("DELETE", "/v1/searches/{search}"): Operation(
        tag="searches",
        text="End a search and all of its trials.",
        answer=answers.SearchCancelled,
        status=202,
        takes=(KEY,),
        errors=(400, 404, 409, 422, 503),
    ),
    ("POST", "/v1/searches/{search}/trials"): post(
        "searches",
        "Add a trial.",
        answers.TrialAsked,
        TrialBody,
        status=201,
        takes=(KEY,),
        body_needed=False,
        example={"params": {"rate": 0.01}, "outside": True},
        errors=(404,),
    ),
    ("POST", "/v1/searches/{search}/trials/{trial}"): post(
        "searches",
        "Say how a trial goes that runs outside.",
        answers.TrialTold,
        TrialNews,
        takes=(KEY,),
        body_needed=False,
        example={"step": 100, "value": 0.75},
        errors=(404,),
    ),
    ("POST", "/v1/searches/{search}/trials/{trial}/{do}"): post(
        "searches",
        "Put a trial behind all others of its search, or among them again.",
        answers.TrialTold,
        takes=(KEY,),
        errors=(404,),
    ),
    # --- services ---
    ("GET", "/v1/services"): get(
        "services",
        "List services without their replicas.",
        answers.ServiceList,
        VC,
        Parameter("state", one_of("active", "over", "all"), "Which services."),
        errors=(400,),
    ),
    ("POST", "/v1/services"): post(
        "services",
        "Begin a service.",
        answers.ServiceTaken,
        ServiceSpec,
        status=201,
        takes=(KEY,),
        example=SERVICE_EXAMPLE,
        errors=(404,),
    ),
    ("GET", "/v1/services/{service}"): get(
        "services",
        "Show a service with its replicas, at once or when all are ready, it is over or changes.",
        answers.ServiceDetail,
        Parameter("wait", one_of("ready", "over", "change"), "Wait until it is so."),
        WAIT,
        Parameter("since", COUNT, "With `wait=change`: `seq` of what is known; else that of now."),
        errors=(400, 404),
    ),
    ("PUT", "/v1/services/{service}"): Operation(
        tag="services",
        text="Update a service, one replica after another.",
        answer=answers.ServiceTaken,
        status=202,
        takes=(KEY,),
        body=ServiceSpec,
        example=SERVICE_EXAMPLE,
        errors=(400, 404, 409, 413, 422, 503),
    ),
    ("DELETE", "/v1/services/{service}"): Operation(
        tag="services",
        text="Drain all replicas of a service, and end it.",
        answer=answers.ServiceTaken,
        status=202,
        takes=(KEY,),
        errors=(400, 404, 409, 422, 503),
    ),
    ("POST", "/v1/services/{service}/scale"): post(
        "services",
        "Have a service have so many replicas.",
        answers.ServiceTaken,
        ScaleBody,
        status=202,
        takes=(KEY,),
        example={"replicas": 3},
        errors=(404,),
    ),
    **{
        (method, CALLS): Operation(
            tag="services",
            text="Pass a request on to a replica that is ready, and its answer back.",
            media="*/*",
            errors=(404, 409, 413, 501, 502, 503),
        )
        for method in METHODS
    },
    # --- the cluster ---
    ("GET", "/v1/nodes"): get("cluster", "List the nodes.", answers.NodeList),
    ("GET", "/v1/gpus"): get("cluster", "List the GPUs.", answers.GpuList),
    ("GET", "/v1/vcs"): get("cluster", "List the virtual clusters.", answers.VcList),
    ("GET", "/v1/vcs/{vc}/usage"): get(
        "cluster", "Show the cells of a virtual cluster.", answers.VcUsage, errors=(404,)
    ),
    ("GET", "/v1/templates"): get(
        "cluster",
        "List the templates of virtual clusters.",
        answers.TemplateList,
        VC,
        errors=(400,),
    ),
    ("PUT", "/v1/templates/{vc}/{name}"): Operation(
        tag="cluster",
        text="Set a template of a virtual cluster's managers.",
        answer=answers.TemplateTaken,
        more_status=(202,),
        body=TemplateBody,
        example=TEMPLATE_EXAMPLE,
        errors=(400, 404, 409, 413, 422, 503),
    ),
    ("DELETE", "/v1/templates/{vc}/{name}"): Operation(
        tag="cluster",
        text="Remove a template of a virtual cluster's managers.",
        answer=answers.TemplateTaken,
        more_status=(202,),
        errors=(400, 404, 409, 503),
    ),
    ("GET", "/v1/usage"): get(
        "cluster", "Show the cells of every virtual cluster.", answers.UsageList
    ),
    ("GET", "/v1/cells"): get(
        "cluster",
        "Show the tree of cells.",
        answers.Cells,
        Parameter("chain", TEXT, "Only this chain."),
        errors=(404,),
    ),
    ("GET", "/v1/cells.svg"): get(
        "cluster",
        "Draw the tree of cells.",
        None,
        Parameter("chain", TEXT, "Only this chain."),
        media="image/svg+xml",
        errors=(404,),
    ),
    ("GET", "/v1/fair"): get(
        "cluster",
        "Show what the people of virtual clusters used, and what they may have.",
        answers.Fair,
        VC,
        errors=(400, 404),
    ),
    ("GET", "/v1/volumes"): get(
        "cluster",
        "List the volumes that the caller's virtual clusters may use.",
        answers.Volumes,
        VC,
        errors=(400,),
    ),
    ("GET", "/v1/windows"): get(
        "cluster", "List the windows in which nodes are kept free.", answers.Windows
    ),
    ("GET", "/v1/report"): get(
        "cluster",
        "Sum up GPU time and jobs.",
        answers.Report,
        Parameter("by", one_of(*By), "One row for each."),
        Parameter("from", DAY, "From this day."),
        Parameter("to", DAY, "To this day, included."),
        VC,
        errors=(400,),
    ),
    ("GET", "/v1/blame"): get(
        "cluster",
        "Tell where the time of all jobs of virtual clusters went.",
        answers.BlameList,
        VC,
        errors=(400, 404),
    ),
    ("GET", "/v1/promises"): get(
        "cluster",
        "List the deadlines of jobs.",
        answers.PromiseList,
        VC,
        Parameter("outcome", one_of("", *OUTCOMES), "Only those that came to this."),
        Parameter("order", one_of("", NEWEST), "The last ones first."),
        LIMIT,
        errors=(400, 404),
    ),
    ("GET", "/v1/trials"): get(
        "cluster",
        "List what was tried of running jobs.",
        answers.Trials,
        VC,
        Parameter("job", TEXT, "Only of this job."),
        Parameter("kind", one_of("", *Kind), "Only of this kind."),
        Parameter("verdict", one_of("", *VERDICTS), "Only with this verdict."),
        LIMIT,
        errors=(400, 404),
    ),
    ("GET", "/v1/calibration"): get(
        "cluster",
        "Show how often estimates held.",
        answers.Calibration,
        VC,
        Parameter("family", TEXT, "Only of this family."),
        errors=(400, 404),
    ),
    ("GET", "/v1/models"): get(
        "cluster", "List what was measured of models.", answers.ModelList, VC, errors=(400,)
    ),
    ("GET", "/v1/models/{model}"): get(
        "cluster", "Show what was measured of a model.", answers.ModelList, VC, errors=(400, 404)
    ),
    ("GET", "/v1/state"): get(
        "cluster",
        "List tables of jobs, nodes, GPUs, virtual clusters, searches, totals and alerts.",
        answers.StateList,
        TABLE_NAMES,
        VC,
        errors=(400,),
    ),
    ("GET", "/v1/state/changes"): get(
        "cluster",
        "Follow what changes in these tables, as server-sent events.",
        None,
        TABLE_NAMES,
        VC,
        Parameter("since", {**TEXT, "examples": ["5f3a-17"]}, "The cursor to go on from."),
        Parameter("Last-Event-ID", TEXT, "The same, of a client that reconnects.", "header"),
        media="text/event-stream",
        errors=(400, 503),
    ),
    ("GET", "/v1/history"): get(
        "cluster",
        "Show GPUs, waiting jobs and useful time over the last hours.",
        answers.History,
        Parameter(
            "hours",
            {"type": "integer", "minimum": 1, "maximum": HOURS_MAX, "default": HOURS},
            "How many hours.",
        ),
        VC,
        errors=(400,),
    ),
    ("GET", "/v1/policies"): get(
        "cluster", "List the policies that a virtual cluster may have.", answers.PolicyList
    ),
    ("GET", "/v1/limits"): get("cluster", "Say which limits are near.", answers.Near),
    ("GET", "/v1/health"): get(
        "cluster", "Say whether every process is well.", answers.Health, open=True
    ),
    ("GET", "/metrics"): get(
        "cluster", "Give metrics to Prometheus.", None, media="text/plain", open=True
    ),
    ("GET", "/"): get("cluster", "Show the page.", None, media="text/html", open=True),
    ("GET", "/v1/openapi.json"): get("cluster", "Give this document.", dict[str, Any], open=True),
    ("GET", "/v1/docs"): get(
        "cluster", "Show this document as a page.", None, media="text/html", open=True
    ),
    # --- operators ---
    ("GET", "/v1/cluster-file"): get(
        "operators",
        "Show the cluster file that says what is set now.",
        cluster_answers.ClusterFile,
        errors=(403,),
    ),
    ("POST", "/v1/cluster-file/check"): post(
        "operators",
        "Say what is wrong with the text of a cluster file, and on which line.",
        cluster_answers.ClusterFileChecked,
        ClusterFileBody,
        example={"text": "vcs: {nlp: {gpus: 8}, vision: {gpus: 8}}"},
    ),
    ("POST", "/v1/cells/plan"): post(
        "operators",
        "Ask what other cells would mean for the jobs that run.",
        answers.CellsPlan,
        VcsBody,
        example=VCS_EXAMPLE,
    ),
    ("GET", "/v1/replays"): get(
        "operators", "List the replays that the gateway keeps.", answers.ReplayList
    ),
    ("POST", "/v1/replays"): post(
        "operators",
        "Simulate what a past span would have been under other policies.",
        answers.ReplayRow,
        ReplayBody,
        status=201,
        example={
            "since": 1_796_025_600_000_000_000,
            "until": 1_796_032_800_000_000_000,
            "policies": {"nlp": {"name": "srtf"}},
        },
        errors=(404, 408),
    ),
    ("GET", "/v1/replays/{replay}"): get(
        "operators",
        "Show a replay with its outcome, at once or when it has changed.",
        answers.ReplayDetail,
        Parameter("seen", COUNT, "Wait while it is as in this version."),
        WAIT,
        errors=(400, 404),
    ),
    ("DELETE", "/v1/replays/{replay}"): Operation(
        tag="operators", text="End a replay that runs.", answer=answers.ReplayRow, errors=(404, 409)
    ),
    ("POST", "/v1/admin/vcs"): post(
        "operators",
        "Set the virtual clusters.",
        answers.Accepted,
        VcsBody,
        status=202,
        example=VCS_EXAMPLE,
    ),
    ("POST", "/v1/admin/drain"): post(
        "operators",
        "Let no job start on a node, or let them start again.",
        answers.Accepted,
        DrainBody,
        status=202,
        example={"node": "node-1", "drain": True},
        errors=(404,),
    ),
    ("POST", "/v1/admin/quarantine"): post(
        "operators",
        "Take a GPU out of use, or back.",
        answers.Accepted,
        QuarantineBody,
        status=202,
        example={"node": "node-1", "device": 0, "quarantine": True},
        errors=(404,),
    ),
    ("POST", "/v1/admin/reserve"): post(
        "operators",
        "Keep nodes free for a time.",
        answers.Accepted,
        ReserveBody,
        status=202,
        example={
            "window": {
                "name": "course",
                "nodes": ["node-1"],
                "begins": 1_796_025_600_000_000_000,
                "ends": 1_796_032_800_000_000_000,
            }
        },
        errors=(404,),
    ),
    ("POST", "/v1/admin/unreserve"): post(
        "operators",
        "Take a window back.",
        answers.Accepted,
        UnreserveBody,
        status=202,
        example={"name": "course"},
        errors=(404,),
    ),
    # --- people ---
    ("GET", "/v1/whoami"): get("people", "Say what the caller is.", answers.WhoAmI),
    ("GET", "/v1/people"): get("people", "List people.", answers.People, errors=(404, 409)),
    ("POST", "/v1/people/bind"): post(
        "people",
        "Say which account at the provider is a person's.",
        answers.Accepted,
        BindBody,
        example={"person": "ann", "subject": "248289761001"},
        errors=(404, 408),
    ),
    ("POST", "/v1/people/{do}"): post(
        "people",
        "Add, disable, enable or remove a person.",
        answers.Accepted,
        PersonBody,
        example={"person": "ann", "full_name": "Ann Example"},
        errors=(404, 408),
    ),
    ("POST", "/v1/roles/{do}"): post(
        "people",
        "Grant or revoke a role.",
        answers.Accepted,
        RoleBody,
        example={"person": "ann", "role": "submitter", "vc": "nlp"},
        errors=(404, 408),
    ),
    ("POST", "/v1/group-roles"): post(
        "people",
        "Set the roles that a person's groups give it.",
        answers.Accepted,
        GroupRolesBody,
        example={"person": "ann", "roles": {"nlp": "submitter"}},
        errors=(404, 408),
    ),
    ("GET", "/v1/tokens"): get(
        "people",
        "List tokens.",
        answers.TokenList,
        Parameter("person", NAME_OR_ALL, "Only those of this person."),
        errors=(404, 409),
    ),
    ("POST", "/v1/tokens"): post(
        "people",
        "Make a token.",
        answers.TokenMade,
        TokenBody,
        status=201,
        example={"name": "laptop", "days": 30},
        errors=(404, 408),
    ),
    ("POST", "/v1/tokens/{token}/revoke"): post(
        "people", "Revoke a token.", answers.Accepted, errors=(404, 408)
    ),
    ("POST", "/v1/logout"): post(
        "people", "Revoke the token that is used here.", answers.Accepted, errors=(404, 408)
    ),
    ("POST", "/v1/bus-keys"): post(
        "people",
        "Take a key on the bus for a virtual cluster.",
        dict[str, Any],
        KeyBody,
        status=201,
        example={"vc": "nlp", "key": "U" + "A" * 55},
        errors=(404, 408),
    ),
    ("GET", "/v1/audit"): get(
        "people",
        "List lines of the audit log, the latest last.",
        answers.Audit,
        LIMIT,
        Parameter("since", COUNT, "Only lines after this instant (Unix ns)."),
        *(
            Parameter(name, TEXT, f"Only lines with this {name}.")
            for name in ("actor", "action", "target", "vc", "outcome", "source")
        ),
        errors=(400, 404, 409),
    ),
    ("GET", "/v1/login"): get("people", "Say how one logs in.", answers.LoginOptions, open=True),
    ("POST", "/v1/login"): post(
        "people",
        "Log in with an ID token of the provider.",
        answers.TokenMade,
        LoginBody,
        status=201,
        example={"id_token": "eyJhbGciOi...", "name": "laptop"},
        errors=(401, 403, 404, 408, 429),
        open=True,
    ),
    ("POST", "/v1/login/provider"): post(
        "people",
        "Ask the provider on behalf of a program that logs in.",
        dict[str, Any],
        ProviderBody,
        example={"device_code": "GmRhmhcxhwAzkoEqiMEg"},
        errors=(401, 403, 404, 408, 429, 502),
        open=True,
    ),
    ("POST", "/v1/login/begin"): post(
        "people",
        "Begin a login of the page at the provider.",
        answers.LoginBegun,
        BeginBody,
        example={
            "page": "https://skep.example.org",
            "challenge": "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM",
        },
        errors=(404, 408, 429),
        open=True,
    ),
    ("POST", "/v1/login/end"): post(
        "people",
        "End a login of the page with what the browser brought back.",
        answers.TokenMade,
        EndBody,
        status=201,
        example={
            "page": "https://skep.example.org",
            "code": "SplxlOBeZQQYbYS6WxSbIA",
            "state": "af0ifjsldkj",
            "code_verifier": "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        },
        errors=(401, 403, 404, 408, 429),
        open=True,
    ),
    ("GET", "/v1/provider"): get(
        "people", "Say whether the provider answers.", dict[str, Any], errors=(404, 409)
    ),
    # --- nodes that join ---
    ("GET", "/v1/join-tokens"): get(
        "nodes", "List the tokens by which nodes join.", answers.JoinTokenList, errors=(404, 409)
    ),
    ("POST", "/v1/join-tokens"): post(
        "nodes",
        "Make a token by which one node or server joins.",
        dict[str, Any],
        JoinTokenBody,
        status=201,
        example={"kind": "node", "node": "node-3", "minutes": 60},
        errors=(404, 408),
    ),
    ("POST", "/v1/join-tokens/{token}/revoke"): post(
        "nodes", "Let nothing join by a token any more.", answers.Accepted, errors=(404, 408)
    ),
    ("GET", "/v1/members"): get(
        "nodes", "List nodes and servers that joined.", answers.Members, errors=(404, 409)
    ),
    ("POST", "/v1/members/{kind}/{name}/remove"): post(
        "nodes", "Take a node or server out of the cluster.", answers.Accepted, errors=(404, 408)
    ),
    ("GET", "/v1/ca"): get(
        "nodes",
        "Give the certificate of the cluster's authority.",
        None,
        media="application/x-pem-file",
        errors=(404,),
        open=True,
    ),
    ("POST", "/v1/join"): post(
        "nodes",
        "Join the cluster.",
        dict[str, Any],
        JoinBody,
        status=201,
        example={
            "token": "abcdefgh2345",
            "secret": "...",
            "node": "node-3",
            "key": "U" + "A" * 55,
            "request": "-----BEGIN CERTIFICATE REQUEST-----\n...",
        },
        errors=(401, 403, 404, 408, 429),
        open=True,
    ),
    ("POST", "/v1/renew"): post(
        "nodes",
        "Renew the credentials of a node or server.",
        dict[str, Any],
        RenewBody,
        status=201,
        example={
            "key": "U" + "A" * 55,
            "request": "-----BEGIN CERTIFICATE REQUEST-----\n...",
            "at_s": 1_790_000_000,
            "signature": "...",
        },
        errors=(401, 403, 404, 408, 429),
        open=True,
    ),
    # --- secrets ---
    ("GET", "/v1/secrets/key"): get(
        "secrets", "Give the key that secrets are sealed to.", answers.SecretKey, errors=(409,)
    ),
    ("GET", "/v1/secrets/{scope}/{owner}"): get(
        "secrets", "List the secrets of an owner.", answers.SecretList, errors=(400,)
    ),
    ("PUT", "/v1/secrets/{scope}/{owner}/{name}"): Operation(
        tag="secrets",
        text="Keep a sealed secret.",
        answer=answers.Secret,
        body=SecretBody,
        status=201,
        example=SECRET_EXAMPLE,
        errors=(400, 409, 413, 503),
    ),
    ("DELETE", "/v1/secrets/{scope}/{owner}/{name}"): Operation(
        tag="secrets", text="Take a secret back.", answer=answers.Secret, errors=(400, 404, 503)
    ),
    # --- notices ---
    ("GET", "/v1/notices"): get(
        "notices",
        "List the targets that jobs may notify, and the latest messages.",
        answers.NoticeList,
        VC,
        errors=(400, 409, 502),
    ),
    ("POST", "/v1/notices/test"): post(
        "notices",
        "Send a test to a target.",
        answers.NoticeTested,
        body=TestBody,
        example={"target": "team-chat", "vc": "default"},
        errors=(400, 409, 422, 502),
    ),
}
"""The operations by method and path. Changes of jobs have a path each, where the route has one."""

TAGS = {
    "jobs": "Submit jobs, and see how they go.",
    "changes": "Suspend, resume, move and resize running jobs.",
    "events": "What happened, and what happens.",
    "searches": "Many trials of one job, as one object.",
    "services": "Replicas that answer requests, as one object.",
    "cluster": "Nodes, GPUs, virtual clusters and what they were used for.",
    "operators": "What operators change.",
    "people": "People, their roles and tokens.",
    "nodes": "Nodes and servers that join.",
    "secrets": "Sealed values for jobs.",
    "notices": "Mail, chats and webhooks about jobs.",
    "code": "Folders that travel with jobs.",
}
