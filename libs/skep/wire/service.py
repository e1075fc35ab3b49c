"""A service: replicas of one server that answer requests, as one object that stays.

Written as YAML by people, sent as JSON to `skep.v1.search.<vc>` with `do: serve`. Each replica is
an ordinary job of kind `inference`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skep.ids import is_token
from skep.wire.around_job import parse_job, parse_json
from skep.wire.bounds import Count, Token, Words, convert_unbounded
from skep.wire.parse import PROBLEMS_MAX, bound_problems, kind_of, shape_problems
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Problem
from skep.wire.times import time_s

SERVICE_VERSION = 1
REPLICAS_MAX = 256
"""Replicas of one service: the report of a gateway on all of them takes 50 KB."""
PER_REPLICA_MAX = 100_000
"""Requests a second that one replica may be said to answer."""
LATENCY_MS_MAX = 600_000
WAIT_S_MAX = 86_400
"""The longest of a service's own times: a day."""
PATH_CHARS_MAX = 256
PATH = re.compile(r"/[!-~]*")
SERVICE = re.compile(r"v([1-9][0-9]{0,17})")
TIME_WANTED = "seconds, or text such as `90s`, `15m`, `2h`, up to a day"

WAITS_S_MAX = 600
"""The longest that a request may wait for a replica: clients and proxies give up then as well."""
IDLE_S = 600
"""Without `idle`."""
WAITS_S = 120
"""Without `wait`."""

TIMES = ("start", "unhealthy", "drain", "idle", "wait")
"""Keys that are times."""
OF_NONE = ("idle", "wait")
"""Times that only a service without replicas at times has."""
NOT_OF_REPLICAS = {
    "after": "its service says when each begins",
    "begin": "its service says when each begins",
    "hold": "its service says when each begins",
    "pipeline": "its service says when each begins",
    "array": "its service says how many there are",
    "finish_by": "it has no end of its own",
    "qos": "it has no end of its own",
}
"""Keys of a job that a replica cannot have, and why."""
NO_REPLICA = {"elastic": "replicas that change their size", "ps": "replicas on parameter servers"}
"""Keys of a job that a replica cannot have yet."""


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A piece of the spec: closed, immutable, defaults left out on the wire."""


class ServiceSpec(_Part, frozen=True):
    """One service. `job` is what every replica is, its name and VC may be left out.

    A replica listens at the port `SKEP_PORT` of its node. It is ready while `GET` of the path
    `health` is answered with a status below 400, or, without a path, while the port takes
    connections. There are `replicas` of them. With `replicas_max` there are as many as requests
    need, up to so many: each is to answer `requests_per_s`, and one more is begun while the 95th
    percentile of the latency is above `latency_ms`. Jobs that share a GPU with a replica whose own
    is above that leave it. A replica that is not ready within `start`, or
    that was ready and is not for `unhealthy`, is replaced. One that is to go gets no more requests,
    and ends when it has answered those it has, or after `drain`. An update begins `surge` replicas
    beside the others; with 0 it ends one first. With 0 `replicas` all end once nothing was asked
    for `idle` (IDLE_S), and the next request waits up to `wait` (WAITS_S) for one.
    """

    name: Token
    vc: Token
    job: JobSpec
    version: Count = SERVICE_VERSION
    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] = 1
    replicas_max: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] | None = None
    requests_per_s: Annotated[int, Meta(ge=1, le=PER_REPLICA_MAX)] | None = None
    latency_ms: Annotated[int, Meta(ge=1, le=LATENCY_MS_MAX)] | None = None
    health: Annotated[str, Meta(max_length=PATH_CHARS_MAX)] = ""
    start: Annotated[int, Meta(ge=1, le=WAIT_S_MAX)] | Words = 600
    unhealthy: Annotated[int, Meta(ge=1, le=WAIT_S_MAX)] | Words = 30
    drain: Annotated[int, Meta(ge=1, le=WAIT_S_MAX)] | Words = 30
    surge: Annotated[int, Meta(ge=0, le=1)] = 1
    idle: Annotated[int, Meta(ge=1, le=WAIT_S_MAX)] | Words | None = None
    wait: Annotated[int, Meta(ge=1, le=WAITS_S_MAX)] | Words | None = None

    @property
    def most(self) -> int:
        """Return how many replicas there may be, apart from those that an update adds."""
        return max(self.replicas, self.replicas_max or self.replicas)

    def seconds_of(self, name: str) -> int:
        """Return one of TIMES in seconds."""
        value = getattr(self, name)
        if value is None:
            value = IDLE_S if name == "idle" else WAITS_S
        assert isinstance(value, int), "a spec that was read has times in seconds"
        return value


def service_id(number: int) -> str:
    """Return the id of the service that began with message `number` of SUBMIT: `v17`."""
    return f"v{number}"


def is_service_id(text: str) -> bool:
    """Return whether a text is the id of a service."""
    return SERVICE.fullmatch(text) is not None


def parse_service(raw: bytes) -> ServiceSpec | list[Problem]:
    """Return the service in `raw` (JSON), times in seconds, or its problems."""
    return parse_json(raw, parse_service_tree)


def parse_service_tree(tree: Any, path: str = "$") -> ServiceSpec | list[Problem]:
    """Return the service in a decoded JSON or YAML value found at `path`, or its problems."""
    if not isinstance(tree, dict):
        text = f"a service is an object with keys, not {kind_of(tree)}"
        return [Problem(path=path, reason=Reason.WRONG_TYPE, text=text)]
    job, wrong = _job(tree)
    plain = {key: value for key, value in tree.items() if key != "job"}
    problems = [*shape_problems(_Open, plain, path)]
    problems += [msgspec.structs.replace(each, path=f"{path}{each.path[1:]}") for each in wrong]
    if problems or job is None:
        return list(dict.fromkeys(problems))[:PROBLEMS_MAX]
    whole = {**plain, "job": msgspec.to_builtins(job)}
    spec = convert_unbounded(whole, ServiceSpec)
    values = list(islice(_values(spec, path), PROBLEMS_MAX))
    if values := values or bound_problems(ServiceSpec, whole, path):
        return values
    given = {name: getattr(spec, name) for name in TIMES}
    times = {name: time_s(value) for name, value in given.items() if value is not None}
    return msgspec.structs.replace(spec, **times)


def _open_fields() -> Iterator[tuple[str, Any, Any]]:
    for field in msgspec.structs.fields(ServiceSpec):
        if field.name != "job":
            missing = field.default is msgspec.NODEFAULT
            yield field.name, field.type, msgspec.field() if missing else field.default


_Open = msgspec.defstruct("_Open", list(_open_fields()), bases=(_Part,), frozen=True)
"""The spec without its job, for finding what is wrong with keys and types."""


def _job(tree: dict[str, Any]) -> tuple[JobSpec | None, list[Problem]]:
    """Return the replicas' job, or what is wrong with it, with paths inside the service."""
    parsed = parse_job(tree, kind="inference")
    problems = list(_of_replica(parsed)) if isinstance(parsed, JobSpec) else parsed
    return (None, problems) if problems or not isinstance(parsed, JobSpec) else (parsed, [])


def _of_replica(job: JobSpec) -> Iterator[Problem]:
    """Yield why a job cannot be a replica."""
    for key, why in NOT_OF_REPLICAS.items():
        if getattr(job, key):
            yield Problem(
                path=f"$.job.{key}",
                reason=Reason.BAD_VALUE,
                text=f"a replica cannot have `{key}`: {why}",
                suggestion="leave it out",
            )
    for key, what in NO_REPLICA.items():
        if getattr(job, key):
            yield Problem(
                path=f"$.job.{key}",
                reason=Reason.NOT_BUILT,
                text=f"{what} are not built yet",
                suggestion="leave it out",
            )
    if job.resources.workers > 1:
        yield Problem(
            path="$.job.resources.workers",
            reason=Reason.NOT_BUILT,
            text="replicas of several workers are not built yet",
            suggestion="use one worker with as many `gpus` as the server needs",
        )
    if job.limits.retries:
        yield _bad("$.job.limits.retries", "left out: the service replaces a replica that ends")
    if job.kind != "inference":
        yield _bad("$.job.kind", "`inference`, or left out")


def _values(spec: ServiceSpec, path: str) -> Iterator[Problem]:
    """Yield what is wrong with values whose types are right."""
    if spec.version != SERVICE_VERSION:
        yield Problem(
            path=f"{path}.version",
            reason=Reason.WRONG_VERSION,
            text=f"version {spec.version} is not spoken here",
            suggestion=f"use version {SERVICE_VERSION}",
        )
    for name in ("name", "vc"):
        if not is_token(getattr(spec, name)):
            yield _bad(f"{path}.{name}", "a name of letters, digits, `_` and `-`")
    if spec.job.vc != spec.vc:
        yield Problem(
            path=f"{path}.job.vc",
            reason=Reason.WRONG_VC,
            text=f"the replicas of a service of `{spec.vc}` are its jobs",
            suggestion="leave it out",
        )
    for name in TIMES:
        value, most = getattr(spec, name), WAITS_S_MAX if name == "wait" else WAIT_S_MAX
        length = time_s(value) if value is not None else most
        if length is None or not 1 <= length <= most:
            wanted = TIME_WANTED.replace("a day", "10m") if name == "wait" else TIME_WANTED
            yield _bad(f"{path}.{name}", wanted)
    if spec.health and not (len(spec.health) <= PATH_CHARS_MAX and PATH.fullmatch(spec.health)):
        yield _bad(f"{path}.health", "a path of printable ASCII such as `/health`")
    yield from _scale(spec, path)


def _scale(spec: ServiceSpec, path: str) -> Iterator[Problem]:
    """Yield what is wrong with the numbers of replicas, and what they go by."""
    if not 0 <= spec.replicas <= REPLICAS_MAX:
        yield _bad(f"{path}.replicas", f"0 to {REPLICAS_MAX}")
    if spec.replicas == 0 and spec.replicas_max is None:
        yield Problem(
            path=f"{path}.replicas_max",
            reason=Reason.MISSING_KEY,
            text="a service with `replicas: 0` begins replicas when requests come",
            suggestion="give `replicas_max` and `requests_per_s`",
        )
    for name in OF_NONE if spec.replicas else ():
        if getattr(spec, name) is not None:
            yield Problem(
                path=f"{path}.{name}",
                reason=Reason.BAD_VALUE,
                text=f"`{name}` is of services with `replicas: 0`",
                suggestion="give `replicas: 0`, or leave it out",
            )
    most = spec.replicas_max
    if most is not None and not spec.replicas <= most <= REPLICAS_MAX:
        yield _bad(
            f"{path}.replicas_max", f"{max(1, spec.replicas)}, `replicas`, to {REPLICAS_MAX}"
        )
    if (most is None) != (spec.requests_per_s is None):
        missing = "replicas_max" if most is None else "requests_per_s"
        yield Problem(
            path=f"{path}.{missing}",
            reason=Reason.MISSING_KEY,
            text="the number of replicas follows requests by `replicas_max` and `requests_per_s`",
            suggestion="give both, or neither",
        )
    if spec.latency_ms is not None and most is None and not spec.job.resources.share:
        yield Problem(
            path=f"{path}.latency_ms",
            reason=Reason.BAD_VALUE,
            text="`latency_ms` asks for more replicas, which `replicas_max` allows, or bounds what "
            "sharing a GPU costs",
            suggestion="give `replicas_max` and `requests_per_s`, or a share of a GPU",
        )


def _bad(path: str, wanted: str) -> Problem:
    name = path.rsplit(".", 1)[-1]
    return Problem(path=path, reason=Reason.BAD_VALUE, text=f"`{name}` must be {wanted}")
