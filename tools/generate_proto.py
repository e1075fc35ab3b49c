"""Generate `proto/` from the code: JSON Schemas, AsyncAPI, OpenAPI and example messages.

python -m tools.generate_proto           # write
python -m tools.generate_proto --check   # exit 1 and name what differs
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import msgspec

from skep import __version__
from skep.wire import access, drafts, facts, subjects, talk
from skep.wire.admin import Admin
from skep.wire.advice import Advice
from skep.wire.changes import Wish
from skep.wire.commands import Command
from skep.wire.findings import Finding
from skep.wire.learned import Sight
from skep.wire.node import NodeEvent
from skep.wire.notices import NotifierFact
from skep.wire.profile import AdvisorFact
from skep.wire.reports import Heartbeat, NodeReport
from skep.wire.search import SearchSpec
from skep.wire.search_facts import Request, SearchFact, SearchVerdict
from skep.wire.served import ReplicaLate, Served
from skep.wire.service import ServiceSpec
from skep.wire.service_facts import ServiceWish
from skep.wire.spec import NOT_BUILT, JobSpec
from skep.wire.template_facts import TemplateAsk
from skep.wire.trials import Trials
from skep.wire.verdict import Verdict
from skep_services.gateway import openapi
from tools.proto_examples import ASKS, GROUPS, SPEC
from tools.proto_search import SEARCH_REQUESTS, SEARCH_SPEC
from tools.proto_services import SERVICE_REQUESTS, SERVICE_SPEC

PROTO = Path(__file__).parents[1] / "proto"

UNIONS: dict[str, Any] = {
    "commands": Command,
    "node-events": NodeEvent,
    "reports": Heartbeat | NodeReport,
    "findings": Finding,
    "advice": Advice,
    "sights": Sight,
    "trials": Trials,
    "drafts": drafts.Asked | drafts.Told,
    "admin": Admin,
    "verdict": Verdict,
    "search-verdict": SearchVerdict,
    "admission-facts": facts.AdmissionFact,
    "allocator-facts": facts.AllocatorFact,
    "search-facts": SearchFact,
    "served": Served,
    "late": ReplicaLate,
    "profile-facts": AdvisorFact,
    "access-requests": access.Wish,
    "access": access.AskAccess | access.AccessAnswer,
    "access-facts": access.AccessFact,
    "agent-facts": facts.AgentFact,
    "notifier-facts": NotifierFact,
    "job-says": talk.Said,
    "job-hears": talk.Heard,
}
"""Every group of messages, by the name of its schema file."""

SUBJECT_HEADERS = {
    subjects.KEY_HEADER: "Idempotency key: the same key makes one job.",
    subjects.REPLY_HEADER: "Where the verdict goes: `skep.v1.reply.<vc>.…` or an own inbox.",
    subjects.TRACE_HEADER: "W3C trace context of the submission.",
}

SCHEMA_FORMAT = "application/schema+json;version=2020-12"


def _record(schema: str) -> dict[str, Any]:
    """Return the envelope that a fact log keeps: what was decided at once, chained to the last."""
    properties = {
        "v": {"const": 1, "description": "Version of this envelope."},
        "n": {"type": "integer", "minimum": 1, "description": "Counts records without gaps."},
        "prev": {"type": "string", "description": "SHA-256 of the record before, hex."},
        "epoch": {"type": "integer", "description": "The process that owns the log, counted."},
        "at": {"type": "integer", "description": "Wall clock, ns."},
        "pos": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "How far each input stream was read.",
        },
        "facts": {"type": "array", "items": {"$ref": f"./{schema}.schema.json"}},
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


CANCEL = {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]}

PAYLOADS: dict[str, dict[str, Any]] = {
    "cancel": CANCEL,
    "cancel-person": CANCEL,
    "admission-facts": _record("admission-facts"),
    "allocator-facts": _record("allocator-facts"),
    "search-facts": _record("search-facts"),
    "access-facts": _record("access-facts"),
}
"""Payloads that are no message of their own, by channel."""

SERVERS: dict[str, Any] = {
    "bus": {
        "host": "{host}:{port}",
        "protocol": "nats",
        "description": "The cluster's bus: NATS with JetStream."
        " docs/how-to/submit-over-nats.md says how a client finds it.",
        "variables": {
            "host": {"default": "127.0.0.1", "description": "One of the bus's servers."},
            "port": {"default": "4222", "description": "Its port for clients."},
        },
        "security": [
            {
                "type": "userPassword",
                "description": "A service or a tenant, in a cluster of files.",
            },
            {
                "type": "asymmetricEncryption",
                "description": "A person, or a node that joined: an nkey with its JWT.",
            },
        ],
    }
}
"""Where the subjects are."""

CHANNELS: tuple[tuple[str, str, str, str, str], ...] = (
    ("submit", subjects.submit("{vc}"), "job-spec", "SUBMIT", "A tenant hands in a job."),
    ("cancel", subjects.cancel("{vc}"), "", "SUBMIT", 'A tenant ends a job: {"job": "j17"}.'),
    ("ask", subjects.ask("{vc}"), "asks", "SUBMIT", "A tenant asks for a change of a running job."),
    (
        "search",
        subjects.search("{vc}"),
        "search-requests",
        "SUBMIT",
        "A tenant begins or cancels a search, asks for a trial, or tells how one goes; it begins,"
        " updates, scales or stops a service.",
    ),
    (
        "submit-person",
        subjects.submit("{vc}", "{person}"),
        "job-spec",
        "SUBMIT",
        "A person of a tenant hands in a job, which is its own.",
    ),
    (
        "cancel-person",
        subjects.cancel("{vc}", "{person}"),
        "",
        "SUBMIT",
        "A person of a tenant ends a job.",
    ),
    (
        "ask-person",
        subjects.ask("{vc}", "{person}"),
        "asks",
        "SUBMIT",
        "A person of a tenant asks for a change of a job.",
    ),
    (
        "search-person",
        subjects.search("{vc}", "{person}"),
        "search-requests",
        "SUBMIT",
        "The same of searches and services, by a person of a tenant.",
    ),
    (
        "verdict",
        f"{subjects.PREFIX}.reply.{{vc}}.{{any}}",
        "verdict",
        "",
        "Admission's answer, to the subject in the Skep-Reply header.",
    ),
    (
        "search-verdict",
        f"{subjects.PREFIX}.reply.{{vc}}.{{any}}",
        "search-verdict",
        "",
        "What is answered to a request about searches or services, in the same way.",
    ),
    ("admin", subjects.admin("{verb}"), "admin", "ADMIN", "An operator changes the cluster."),
    (
        "node",
        subjects.node_event("{node}", "{event}"),
        "node-events",
        "NODE",
        "An agent says durably what became of processes.",
    ),
    (
        "command",
        subjects.command("{node}"),
        "commands",
        "",
        "The allocator tells an agent; repeated until a node event answers.",
    ),
    (
        "report",
        subjects.report("{node}"),
        "reports",
        "",
        "Progress of a node's jobs, every second.",
    ),
    ("heartbeat", subjects.heartbeat("{node}"), "reports", "", "The agent lives, every second."),
    ("finding", subjects.finding("{kind}"), "findings", "", "What the introspector saw."),
    (
        "served",
        subjects.served("{gateway}"),
        "served",
        "",
        "What a gateway finds of services, every second.",
    ),
    ("late", subjects.LATE, "late", "", "A replica whose requests take too long."),
    ("advice", subjects.ADVICE_QUEUE, "advice", "", "How the advisor would order the queue."),
    ("trials", subjects.TRIALS_OPEN, "trials", "", "What is tried and has to be judged."),
    ("outlook", subjects.ADVICE_OUTLOOK, "advice", "", "How jobs go, and how families scale."),
    ("learned", subjects.ADVICE_LEARNED, "advice", "", "What a learned model would do in a VC."),
    ("sights", subjects.SIGHTS, "sights", "", "What the policy of a VC with a model sees."),
    (
        "admission-facts",
        subjects.ADMISSION_FACTS,
        "admission-facts",
        "ADMISSION",
        "Records of admission's decisions.",
    ),
    (
        "allocator-facts",
        subjects.ALLOC_FACTS,
        "allocator-facts",
        "ALLOC",
        "Records of the allocator's decisions.",
    ),
    (
        "draft",
        subjects.draft("{service}"),
        "drafts",
        "",
        "Request: what would you decide? Nothing is decided by it.",
    ),
    (
        "search-facts",
        subjects.SEARCH_FACTS,
        "search-facts",
        "SEARCH",
        "Records of what was decided on searches and services.",
    ),
    (
        "profile-facts",
        subjects.PROFILE_FACTS,
        "profile-facts",
        "PROFILES",
        "Records of what the advisor measured.",
    ),
    (
        "access",
        subjects.ACCESS_ASKED,
        "access",
        "",
        "Request of the gateway or an operator: people, roles, tokens, nodes, the audit log.",
    ),
    (
        "access-facts",
        subjects.ACCESS_FACTS,
        "access-facts",
        "ACCESS",
        "Records of people, tokens, nodes, and the audit log.",
    ),
    ("span", subjects.span("{service}"), "", "", "Finished trace spans, a JSON list."),
    ("logs", subjects.logs("{node}"), "", "", "Request for a piece of a job's log."),
    (
        "terminal",
        subjects.terminal("{node}"),
        "",
        "",
        "Frames of sessions in jobs, by a gateway: binary, as `skep.wire.terminal` has them.",
    ),
    ("health", subjects.health("{identity}"), "", "", "Request: is this process well?"),
)
"""Name, address, schema file, stream (empty for core messages) and meaning of every subject."""


def documents() -> dict[str, str]:
    """Return every file of `proto/` by its relative path."""
    made = {"job-spec.schema.json": _text(_spec_schema())}
    for name, union in UNIONS.items():
        made[f"{name}.schema.json"] = _text(_schema(union))
    made["asyncapi.json"] = _text(_asyncapi())
    made["openapi.json"] = _text(openapi.document())
    made["examples/job-spec.json"] = _text(SPEC)
    made["asks.schema.json"] = _text(_schema(Wish | TemplateAsk))
    made["search-spec.schema.json"] = _text(_schema(SearchSpec))
    made["examples/search-spec.json"] = _text(SEARCH_SPEC)
    made["service-spec.schema.json"] = _text(_schema(ServiceSpec))
    made["examples/service-spec.json"] = _text(SERVICE_SPEC)
    made["search-requests.schema.json"] = _text(_schema(Request | ServiceWish))
    asked = (*SEARCH_REQUESTS, *SERVICE_REQUESTS)
    made |= {f"examples/search-requests/{_tag(each)}.json": _text(each) for each in asked}
    made |= {f"examples/asks/{_tag(ask)}.json": _text(ask) for ask in ASKS}
    for name, group in GROUPS.items():
        for message in group:
            made[f"examples/{name}/{_tag(message)}.json"] = _text(message)
    return made


def missing_examples() -> list[str]:
    """Return the tags of messages without an example."""
    have = {_tag(message) for group in GROUPS.values() for message in group}
    every = [str(kind.__struct_config__.tag) for union in UNIONS.values() for kind in _kinds(union)]
    return [tag for tag in every if tag not in have]


def _kinds(union: Any) -> Iterable[type[msgspec.Struct]]:
    return get_args(union) or (union,)


def _tag(message: msgspec.Struct) -> str:
    return str(message.__struct_config__.tag)


def _text(value: Any) -> str:
    return json.dumps(json.loads(msgspec.json.encode(value)), indent=2, ensure_ascii=False) + "\n"


def _schema(union: Any) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(union)}


def _spec_schema() -> dict[str, Any]:
    schema = _schema(JobSpec)
    schema["$comment"] = "Not built yet, and refused: " + ", ".join(sorted(NOT_BUILT))
    return schema


def _asyncapi() -> dict[str, Any]:
    channels, operations = {}, {}
    for name, address, schema, stream, meaning in CHANNELS:
        kept = f" Kept in stream {stream}." if stream else " Core message: at most once."
        message: dict[str, Any] = {"name": name, "contentType": "application/json"}
        if schema or name in PAYLOADS:
            payload = PAYLOADS.get(name, {"$ref": f"./{schema}.schema.json"})
            message["payload"] = {"schemaFormat": SCHEMA_FORMAT, "schema": payload}
        if name == "submit":
            properties = {
                header: {"type": "string", "description": text}
                for header, text in SUBJECT_HEADERS.items()
            }
            message["headers"] = {"type": "object", "properties": properties}
        channel: dict[str, Any] = {
            "address": address,
            "description": meaning + kept,
            "messages": {name: message},
        }
        parameters = [part[1:-1] for part in address.split(".") if part.startswith("{")]
        if parameters:
            channel["parameters"] = {parameter: {} for parameter in parameters}
        channels[name] = channel
        here = {"$ref": f"#/channels/{name}"}
        told = [{"$ref": f"#/channels/{name}/messages/{name}"}]
        operations[f"send-{name}"] = {"action": "send", "channel": here, "messages": told}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Skep on NATS",
            "version": __version__,
            "description": "Every subject between Skep's processes and its clients.",
        },
        "defaultContentType": "application/json",
        "servers": SERVERS,
        "channels": channels,
        "operations": operations,
    }


def drift() -> list[str]:
    """Return the files of `proto/` that differ from the code, are missing, or are too many."""
    made = documents()
    found = {str(path.relative_to(PROTO)) for path in PROTO.rglob("*.json")}
    differ = [
        name
        for name, text in made.items()
        if name not in found or (PROTO / name).read_text() != text
    ]
    return sorted(differ + [name for name in found if name not in made])


def main() -> int:
    """Write or check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        names = drift()
        for name in names:
            print(f"proto/{name} is not what the code says: run `make proto`", file=sys.stderr)
        return 1 if names else 0
    made = documents()
    for path in PROTO.rglob("*.json"):
        if str(path.relative_to(PROTO)) not in made:
            path.unlink()
    for name, text in made.items():
        (PROTO / name).parent.mkdir(parents=True, exist_ok=True)
        (PROTO / name).write_text(text)
    print(f"proto/: {len(made)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
