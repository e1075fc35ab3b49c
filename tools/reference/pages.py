"""Pages of what messages hold, of reasons, of policies, of subjects and of metrics."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from skep.ledger.blame import causes as causes_of_time
from skep.policy.registry import POLICIES, make
from skep.wire import facts, reasons, remedies, subjects
from skep.wire.access import AccessFact
from skep.wire.notices import NotifierFact
from skep.wire.profile import AdvisorFact
from skep.wire.search_facts import SearchFact
from skep.wire.spec import NOT_BUILT, JobSpec
from tools.generate_proto import CHANNELS, SUBJECT_HEADERS
from tools.reference import kinds
from tools.reference.markdown import code, docstring, page, table

ROOT = Path(__file__).resolve().parents[2]
LOGS: dict[str, tuple[str, Any]] = {
    "ADMISSION": ("admission records them in the stream ADMISSION", facts.AdmissionFact),
    "ALLOC": ("the allocator records them in the stream ALLOC", facts.AllocatorFact),
    "SEARCH": ("the searches service records them in the stream SEARCH", SearchFact),
    "PROFILES": ("the advisor records them in the stream PROFILES", AdvisorFact),
    "ACCESS": ("the access service records them in the stream ACCESS", AccessFact),
    "Journal of a node": ("an agent records them in its journal", facts.AgentFact),
    "Journal of the notifier": ("the notifier records them in its journal", NotifierFact),
}
WRITERS = {
    subjects.SUBMIT: "tenants and their people; the gateway for them",
    subjects.ADMIN: "operators; the gateway for them",
    subjects.NODE: "each agent, its own subjects",
    subjects.ADMISSION: "admission",
    subjects.ALLOC: "the allocator",
    subjects.SEARCH: "the searches service",
    subjects.PROFILES: "the advisor",
    subjects.ACCESS: "the access service",
    subjects.KEPT: "owners of logs: snapshots",
    subjects.SECRETS: "the gateway: sealed values; the vault: its key",
    subjects.CODE: "the gateways: snapshots of code; what no job names is taken out",
}


def spec() -> str:
    """Return the page of the job spec."""
    blocks = [
        "[Write a job spec](../how-to/job-spec.md) explains the keys by examples. The schema is"
        " `proto/job-spec.schema.json`.",
        *_struct(JobSpec, "## JobSpec"),
    ]
    for kind in kinds.inside([JobSpec]):
        blocks += _struct(kind, f"## {kind.__name__}")
    rows = [[code(key), meaning] for key, meaning in sorted(NOT_BUILT.items())]
    return page("Job spec", *blocks, "## Not built", "Refused:", table(["key", "meaning"], rows))


def reason_codes() -> str:
    """Return the page of reasons, in the groups of the source."""
    source = Path(reasons.__file__).read_text(encoding="utf-8")
    groups: dict[str, list[list[str]]] = {}
    title = ""
    for line in source.split("class Reason(StrEnum):")[1].split("\nTEXT:")[0].splitlines():
        if match := re.fullmatch(r"    # (.+)\.", line):
            title = match[1]
            groups[title] = []
        elif match := re.fullmatch(r'    ([A-Z_]+) = "(.+)"', line):
            reason = reasons.Reason(match[2])
            row = [code(match[2]), reasons.TEXT[reason], remedies.REMEDIES.get(reason, "")]
            groups[title].append(row)
    head = (
        "Codes are stable. `skep why` and the gateway give a code and its text, and `skep explain"
        " CODE` what is here."
    )
    blocks = [
        block
        for title, rows in groups.items()
        for block in (f"## {title}", table(["code", "text", "what to do"], rows))
    ]
    causes = [[code(cause), text] for cause, text in causes_of_time.TEXT.items()]
    blocks += [
        "## Where a job's time went",
        "Causes of `skep blame`: each instant from a job's submission to its end has exactly one."
        " [Where time went](../explanation/blame.md) says which facts tell them.",
        table(["code", "text"], causes),
    ]
    return page("Reasons", head, *blocks)


def policies() -> str:
    """Return the page of policies with their options."""
    blocks = [
        "A VC names its policy in the cluster file: `policy: {name: las}`, with options beside the"
        " name. [Policies](../explanation/policies.md) explains them."
    ]
    for name, policy in POLICIES.items():
        blocks += [f"## {code(name)}", docstring(policy), _powers(name)]
        blocks.append(f"Source: {policy.source}.")
        if policy.__struct_fields__:
            blocks.append(kinds.fields(policy).replace("| key |", "| option |", 1))
    return page("Policies", *blocks)


def _powers(name: str) -> str:
    """Return what a policy may do with its default options, as comparisons name it."""
    powers = make(name).powers
    acts = [
        verb
        for verb, may in (
            ("suspends", powers.suspends),
            ("moves", powers.moves),
            ("packs", powers.packs),
            ("resizes", powers.resizes),
        )
        if may
    ]
    goes = [what for what, by in (("run times", powers.run_times), ("rates", powers.rates)) if by]
    sentences = [
        f"It {', '.join(acts)} running jobs for others."
        if acts
        else "No job is stopped for another of its priority.",
        {
            "takes": "A higher priority takes GPUs from lower ones.",
            "first": "A higher priority comes first among waiting jobs.",
            "ignored": "Priorities do not count between owners.",
        }[powers.priority],
        "A job that does not fit is passed over."
        if powers.passes
        else "A job that does not fit blocks those behind it.",
        f"It goes by {' and '.join(goes)} of jobs." if goes else "",
    ]
    return " ".join(filter(None, sentences))


def streams() -> str:
    """Return the page of streams and subjects."""
    kept = {**subjects.STREAMS, subjects.KEPT: subjects.KEPT_SUBJECTS}
    kept[subjects.SECRETS] = subjects.SECRET_SUBJECTS
    kept[subjects.CODE] = subjects.CODE_SUBJECTS
    rows = [
        [code(name), ", ".join(map(code, names)), WRITERS[name]] for name, names in kept.items()
    ]
    channels = [
        [code(address), stream or "core message", code(schema and f"{schema}.schema.json"), meaning]
        for _, address, schema, stream, meaning in CHANNELS
    ]
    headers = [[code(name), meaning] for name, meaning in SUBJECT_HEADERS.items()]
    return page(
        "Streams and subjects",
        "`proto/asyncapi.json` describes the messages in full, and `proto/examples` has examples.",
        "## Streams",
        "Messages of a stream are durable. A core message may be lost.",
        table(["stream", "subjects", "written by"], rows),
        "## Subjects",
        table(["subject", "stream", "schema in `proto/`", "meaning"], channels),
        "## Headers of submissions",
        table(["header", "meaning"], headers),
    )


def fact_tags() -> str:
    """Return the page of facts: tags and fields, by the log that has them."""
    blocks = ["A fact is a durable record of a decision. `type` in its JSON is its tag."]
    every: list[type[msgspec.Struct]] = []
    for title, (who, union) in LOGS.items():
        blocks += [f"## {title}", f"{who[0].upper()}{who[1:]}."]
        for kind in get_args(union):
            every.append(kind)
            blocks += _struct(kind, f"### {code(kind.__struct_config__.tag)}")
    blocks += ["## Types of fields", "What is in fields of facts."]
    for kind in kinds.inside(every):
        blocks += _struct(kind, f"### {kind.__name__}")
    return page("Facts", *blocks)


def metrics() -> str:
    """Return the page of the series that the gateway offers to Prometheus."""
    rows = []
    for path in sorted((ROOT / "services").rglob("*.py")):
        rows += list(_series(ast.parse(path.read_text(encoding="utf-8"))))
    return page(
        "Metrics",
        "The gateway answers Prometheus at `/metrics`.",
        table(["series", "kind", "labels", "meaning"], sorted(rows)),
    )


def _series(tree: ast.Module) -> Iterator[list[str]]:
    """Yield a row for each call that names a series and says what it means."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                args=[ast.Constant(value=str(name)), ast.Constant(value=str(text)), *rest]
            ) if name.startswith("skep_"):
                kind = next((k for k in ("counter", "histogram") if k in _called(node)), "gauge")
                named = [word.value for word in node.keywords if word.arg == "labels"]
                labels = [each for each in (*rest, *named) if isinstance(each, ast.Tuple)]
                names = ast.literal_eval(labels[0]) if labels else ()
                name += "_total" if kind == "counter" else ""
                yield [code(name), kind, ", ".join(map(code, names)), text]


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).lower()


def _struct(kind: type[msgspec.Struct], heading: str) -> list[str]:
    return [heading, docstring(kind), kinds.fields(kind)]
