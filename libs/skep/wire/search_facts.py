"""What is asked of searches, and the facts of their service's own log, SEARCH.

A request is published to `skep.v1.search.<vc>` as JSON: `{"do": "cancel", "search": "s17"}`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skep.units import Instant
from skep.wire.bounds import (
    NAMES_MAX,
    UNDECODABLE,
    Count,
    Number,
    Scalar,
    SearchName,
    Short,
    convert_unbounded,
)
from skep.wire.changes import Result
from skep.wire.facts import EpochBegan, RolesSeen
from skep.wire.message import Message
from skep.wire.parse import bound_problems, nearest, shape_problems
from skep.wire.reasons import Reason
from skep.wire.search import STEP_MAX, VALUE_MAX, SearchSpec, Value, is_search_id, parse_search_tree
from skep.wire.service_facts import SERVICE_WISHES, ServiceFacts, ServiceWish, parse_service_request
from skep.wire.spec import SPEC_BYTES_MAX, Problem

REQUEST_BYTES_MAX = SPEC_BYTES_MAX + 1024
EXAMPLE = 'publish {"do": "cancel", "search": "s17"}'


# --- requests ----------------------------------------------------------------------------------


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Something was asked of searches; `number` is the request's place in SUBMIT.

    `person` published it; empty: the VC as a whole.
    """

    vc: str
    raw: bytes
    at: Instant
    number: int
    key: str = ""
    reply: str = ""
    person: str = ""


class _Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="do"):
    """What a tenant asks for. `parse_request` refuses unknown keys."""


class BeginSearch(_Request, frozen=True, tag="begin"):
    """Begin a search; its id comes with the answer."""

    spec: SearchSpec


class CancelSearch(_Request, frozen=True, tag="cancel"):
    """Begin no more trials, and cancel all there are."""

    search: SearchName


class AskTrial(_Request, frozen=True, tag="ask"):
    """Add a trial with these parameters, or (none given) with drawn ones.

    `outside`: the client runs it, and tells how it goes; else it is a job of Skep.
    """

    search: SearchName
    params: Annotated[dict[Short, Scalar], Meta(max_length=NAMES_MAX)] | None = None
    outside: bool = False


class TellTrial(_Request, frozen=True, tag="tell"):
    """How a trial that runs outside goes: the metric after so many steps, or that it is over."""

    search: SearchName
    trial: Count
    step: Count = 0
    value: Number | None = None
    over: Literal["", "done", "failed"] = ""


class DemoteTrial(_Request, frozen=True, tag="demote"):
    """Let a trial of Skep's run only where no other wants the place: what a pruner stops."""

    search: SearchName
    trial: Count


class PromoteTrial(_Request, frozen=True, tag="promote"):
    """Take a demotion back."""

    search: SearchName
    trial: Count


Request = BeginSearch | CancelSearch | AskTrial | TellTrial | DemoteTrial | PromoteTrial

REQUESTS: dict[str, type[Any]] = {
    "begin": BeginSearch,
    "cancel": CancelSearch,
    "ask": AskTrial,
    "tell": TellTrial,
    "demote": DemoteTrial,
    "promote": PromoteTrial,
}


class SearchVerdict(Message, frozen=True, tag="search-verdict"):
    """What is told about a request. `trial` and `params` are what was asked for.

    `search` is the id of the search, or of the service.
    """

    search: str
    accepted: bool
    reason: Reason | None = None
    problems: tuple[Problem, ...] = ()
    trial: int = 0
    params: dict[str, Value] = {}


def parse_request(raw: bytes) -> Request | ServiceWish | list[Problem]:
    """Return the request in `raw`, of searches or services, or everything that is wrong with it."""
    if len(raw) > REQUEST_BYTES_MAX:
        text = f"a request has at most {REQUEST_BYTES_MAX} bytes"
        return [Problem(path="$", reason=Reason.TOO_LARGE, text=text)]
    try:
        tree = msgspec.json.decode(raw)
    except UNDECODABLE as error:
        return [
            Problem(path="$", reason=Reason.NOT_JSON, text=f"not JSON: {error}", suggestion=EXAMPLE)
        ]
    if not isinstance(tree, dict):
        return [
            Problem(
                path="$",
                reason=Reason.WRONG_TYPE,
                text="a request is a JSON object",
                suggestion=EXAMPLE,
            )
        ]
    named = tree.get("do")
    if isinstance(named, str) and named in SERVICE_WISHES:
        return parse_service_request(tree)
    kind = REQUESTS.get(named) if isinstance(named, str) else None
    if kind is None:
        reason = Reason.BAD_VALUE if "do" in tree else Reason.MISSING_KEY
        words = [*REQUESTS, *SERVICE_WISHES]
        text = f"`do` must be one of {', '.join(words)}"
        return [
            Problem(path="$.do", reason=reason, text=text, suggestion=nearest(str(named), words))
        ]
    return _begin(tree) if kind is BeginSearch else _other(kind, tree)


def _begin(tree: dict[str, Any]) -> Request | list[Problem]:
    problems = [
        Problem(
            path=f"$.{key}",
            reason=Reason.UNKNOWN_KEY,
            text=f"unknown key `{key}`",
            suggestion=nearest(key, ["spec"]),
        )
        for key in tree
        if key not in {"do", "spec"}
    ][:20]
    if "spec" not in tree:
        problems.append(
            Problem(path="$.spec", reason=Reason.MISSING_KEY, text="`spec` is required")
        )
        return problems
    spec = parse_search_tree(tree["spec"], "$.spec")
    if isinstance(spec, list):
        return problems + spec
    return problems or BeginSearch(spec=spec)


def _other(kind: type[Any], tree: dict[str, Any]) -> Request | list[Problem]:
    rest = {key: value for key, value in tree.items() if key != "do"}
    problems = list(shape_problems(kind, rest, "$"))[:20]
    if problems:
        return problems
    made: Request = convert_unbounded(tree, kind)
    if not isinstance(made, BeginSearch) and not is_search_id(made.search):
        problems.append(
            Problem(
                path="$.search",
                reason=Reason.BAD_VALUE,
                suggestion="such as s17",
                text="`search` must be a search id",
            )
        )
    if isinstance(made, TellTrial):
        if made.value is None and not made.over:
            problems.append(
                Problem(
                    path="$.value", reason=Reason.MISSING_KEY, text="`value` is required, or `over`"
                )
            )
        if not 0 <= made.step <= STEP_MAX:
            problems.append(
                Problem(
                    path="$.step", reason=Reason.BAD_VALUE, text=f"`step` must be 0 to {STEP_MAX}"
                )
            )
        if made.value is not None and not abs(made.value) <= VALUE_MAX:
            problems.append(
                Problem(
                    path="$.value",
                    reason=Reason.BAD_VALUE,
                    text=f"`value` must be a number up to {VALUE_MAX:g}",
                )
            )
    return problems or bound_problems(kind, tree, "$") or made


# --- facts -------------------------------------------------------------------------------------


class Stand(StrEnum):
    """How a trial is."""

    NEW = "new"
    """Its job is submitted, once there is a place for it, and admission has yet to answer."""
    WAITING = "waiting"
    """Its job has no GPUs, or makes ready: it will run by itself."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Its search had it suspended, and it stays so until the search resumes it."""
    OUTSIDE = "outside"
    """Whoever asked for it runs it."""
    OVER = "over"


class TrialEnd(StrEnum):
    """The one end of a trial."""

    DONE = "done"
    FAILED = "failed"
    GIVEN_UP = "given-up"
    """Its curve promised too little, and it was stopped for good."""
    CANCELLED = "cancelled"


class SearchMessage(Message, frozen=True):
    """A fact about a search."""

    search: str


class SearchBegan(SearchMessage, frozen=True, tag="search-began"):
    """A search was accepted. `spec` is normalised and whole. `owner` is as in `Admitted`."""

    spec: SearchSpec
    at: Instant
    key: str = ""
    owner: str = ""


class SearchRefused(SearchMessage, frozen=True, tag="search-refused"):
    """What was asked for is no search, or one too many."""

    vc: str
    problems: tuple[Problem, ...]
    at: Instant


class SearchTrialAdded(SearchMessage, frozen=True, tag="search-trial-added"):
    """A trial of a search; trials are numbered from 1. `key` is that of the request, if any.

    `run` false: it is not submitted before there is a place for it.
    """

    trial: int
    params: dict[str, Value]
    at: Instant
    outside: bool = False
    bracket: int = 0
    key: str = ""
    run: bool = True


class SearchTrialAdmitted(SearchMessage, frozen=True, tag="search-trial-admitted"):
    """A trial's submission became this job."""

    trial: int
    job: str
    at: Instant


class SearchTrialPutOff(SearchMessage, frozen=True, tag="search-trial-put-off"):
    """A trial's submission was refused for what passes; it is submitted anew, later."""

    trial: int
    why: Reason
    at: Instant


class SearchTrialTurned(SearchMessage, frozen=True, tag="search-trial-turned"):
    """A trial is to run from here on, or (`run` false) to stand; `rung` is the one it may reach.

    `score` is what it was ranked by: what its curve promises, more is better.
    """

    trial: int
    run: bool
    why: Reason
    at: Instant
    rung: int = 0
    score: float | None = None


class SearchTrialDemoted(SearchMessage, frozen=True, tag="search-trial-demoted"):
    """A client wants a trial to stand behind all others, or (`demoted` false) among them.

    `number` is that of its request: an earlier one, read again, changes nothing.
    """

    trial: int
    demoted: bool
    at: Instant
    number: int = 0


class SearchTrialGivenUp(SearchMessage, frozen=True, tag="search-trial-given-up"):
    """A trial's curve promises too little: its job is cancelled."""

    trial: int
    score: float
    at: Instant


class SearchTrialHeard(SearchMessage, frozen=True, tag="search-trial-heard"):
    """Admission passed on what was asked for a trial's job: it needs no repeating."""

    trial: int
    what: str
    number: int = 0


class SearchTrialStood(SearchMessage, frozen=True, tag="search-trial-stood"):
    """How a trial's job is has changed."""

    trial: int
    stand: Stand
    at: Instant


class SearchTrialAnswered(SearchMessage, frozen=True, tag="search-trial-answered"):
    """What came of request `number` for a trial's job.

    What was not done is asked for again after a while, unless it cannot be.
    """

    trial: int
    what: str
    number: int
    result: Result
    at: Instant
    why: Reason | None = None


class SearchTrialMeasured(SearchMessage, frozen=True, tag="search-trial-measured"):
    """The metric of a trial after so many mini-batches."""

    trial: int
    step: int
    value: float
    at: Instant


class SearchTrialOver(SearchMessage, frozen=True, tag="search-trial-over"):
    """The one end of a trial."""

    trial: int
    end: TrialEnd
    why: Reason
    at: Instant
    detail: str = ""


class SearchEnding(SearchMessage, frozen=True, tag="search-ending"):
    """No more trials are begun, and all are cancelled, but for `spared` (0: none)."""

    why: Reason
    at: Instant
    spared: int = 0


class SearchOver(SearchMessage, frozen=True, tag="search-over"):
    """The one end of a search. `trial` had the best `value` of all, after `step` mini-batches."""

    why: Reason
    at: Instant
    trials: int
    gpu_ns: int
    trial: int = 0
    value: float | None = None
    step: int = 0
    params: dict[str, Value] = {}


SearchTrialFact = (
    SearchTrialAdded
    | SearchTrialAdmitted
    | SearchTrialPutOff
    | SearchTrialTurned
    | SearchTrialDemoted
    | SearchTrialGivenUp
    | SearchTrialHeard
    | SearchTrialStood
    | SearchTrialAnswered
    | SearchTrialMeasured
    | SearchTrialOver
)

SearchFact = (
    EpochBegan
    | SearchBegan
    | SearchRefused
    | SearchTrialFact
    | SearchEnding
    | SearchOver
    | RolesSeen
    | ServiceFacts
)
