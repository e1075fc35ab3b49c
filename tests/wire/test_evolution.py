"""Messages grow only at the end, with defaults: older and newer readers understand one another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from skep.wire import bounds, codec, subjects
from skep.wire.advice import ADVISED_MAX, JobAdvice, QueueAdvice
from skep.wire.commands import BindJob
from skep.wire.facts import Admitted, Refused
from skep.wire.parse import parse_spec
from skep.wire.reasons import TEXT, Reason
from skep.wire.spec import SPEC_BYTES_MAX, JobSpec
from tests.kit import T0, bind
from tools import generate_proto
from tools.proto_examples import GROUPS

OPEN = [(name, message) for name, group in GROUPS.items() for message in group if name != "admin"]
OPEN_IDS = [f"{name}/{message.__struct_config__.tag}" for name, message in OPEN]
EXAMPLES = [(name, message) for name, group in GROUPS.items() for message in group]
IDS = [f"{name}/{message.__struct_config__.tag}" for name, message in EXAMPLES]

GARBAGE: tuple[Any, ...] = (None, True, 7.5, "x", [], {}, [[[]]], -(2**80))
"""One value of every JSON kind: each field is of some kind, so most of these are wrong for it."""


def decoder(name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(generate_proto.UNIONS[name])


def plain(message: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(codec.encode(message))
    return read


def nested(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object inside a tree, itself included."""
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from nested(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nested(value)


def open_structs(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a message that may grow: not specs, clusters, problems, maps by name.

    Parts of specs are closed as they are.
    """
    closed = {
        "spec",
        "after",
        "problems",
        "cluster",
        "asked",
        "vcs",
        "chains",
        "pins",
        "env",
        "gpus",
        "values",
        "params",
        "granted",
        "roles",
        "groups",
        "remaining",
        "template",
    }
    yield tree
    for key, value in tree.items():
        if key not in closed:
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, dict):
                    yield from open_structs(inner)


@pytest.mark.parametrize("name, message", OPEN, ids=OPEN_IDS)
def test_fields_that_a_later_version_added_anywhere_are_skipped(
    name: str, message: msgspec.Struct
) -> None:
    tree = plain(message)
    for level in list(open_structs(tree)):
        level["added_later"] = {"deep": [1, {"deeper": None}]}
    assert decoder(name).decode(json.dumps(tree)) == message


@pytest.mark.parametrize("name, message", EXAMPLES, ids=IDS)
def test_a_message_without_any_optional_field_is_read(name: str, message: msgspec.Struct) -> None:
    required = {f.encode_name for f in msgspec.structs.fields(type(message)) if f.required}
    tree = plain(message)
    least = {key: value for key, value in tree.items() if key == "type" or key in required}
    read = decoder(name).decode(json.dumps(least))
    for field in msgspec.structs.fields(type(message)):
        if field.required:
            assert getattr(read, field.name) == getattr(message, field.name)


@pytest.mark.parametrize("name, message", EXAMPLES, ids=IDS)
def test_a_message_without_a_required_field_is_refused(name: str, message: msgspec.Struct) -> None:
    tree = plain(message)
    for field in msgspec.structs.fields(type(message)):
        if field.required:
            lacking = {key: value for key, value in tree.items() if key != field.encode_name}
            with pytest.raises(msgspec.ValidationError, match=f"`{field.encode_name}`"):
                decoder(name).decode(json.dumps(lacking))


@pytest.mark.parametrize("name, message", EXAMPLES, ids=IDS)
def test_values_of_another_kind_are_refused(name: str, message: msgspec.Struct) -> None:
    tree = plain(message)
    for field in msgspec.structs.fields(type(message)):
        key = field.encode_name
        refusals = [refusal(name, {**tree, key: value}) for value in GARBAGE]
        assert all(key in text for text in refusals if text), refusals
        # A field may take one kind of these values, two of them numbers, or one more if it may be
        # null: never anything.
        assert refusals.count("") <= 3, key


def refusal(name: str, tree: dict[str, Any]) -> str:
    """Return why a message is refused, or an empty text."""
    try:
        decoder(name).decode(json.dumps(tree))
    except msgspec.ValidationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name, message", EXAMPLES, ids=IDS)
def test_a_message_of_another_kind_is_refused(name: str, message: msgspec.Struct) -> None:
    for tag in ("nobody", 7, None):
        with pytest.raises(msgspec.ValidationError):
            decoder(name).decode(json.dumps({**plain(message), "type": tag}))


@pytest.mark.parametrize(
    "raw",
    [
        '{"type":"set-vcs","vcs":{},"vsc":{}}',
        '{"type":"set-vcs","vcs":{"nlp":{"gpus":1,"gpsu":2}}}',
        '{"type":"drain-node","node":"node-1","darin":false}',
    ],
)
def test_what_operators_say_is_closed(raw: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        decoder("admin").decode(raw)


def test_every_message_is_frozen_tagged_and_called_once() -> None:
    tags: dict[str, type] = {}
    for union in generate_proto.UNIONS.values():
        for kind in get_args(union) or (union,):
            config = kind.__struct_config__
            assert config.frozen, kind
            assert config.tag_field == "type"
            assert tags.setdefault(str(config.tag), kind) is kind


def test_every_reason_has_a_sentence_and_a_code_that_scripts_can_use() -> None:
    assert set(TEXT) == set(Reason)
    for reason in Reason:
        assert reason.value == reason.name.lower().replace("_", "-")
        assert TEXT[reason]


# --- sizes --------------------------------------------------------------------------------------


def test_the_largest_spec_fits_its_facts_and_commands() -> None:
    filler = SPEC_BYTES_MAX - 200
    spec = JobSpec(name="x", vc="nlp", command=("x" * filler,))
    admitted = Admitted(job="j1", spec=spec, submitted_at=T0, key="k" * 256)
    assert len(codec.encode(admitted)) < codec.RECORD_BYTES_MAX
    assert len(codec.encode(bind(argv=spec.command))) < bounds.MESSAGE_BYTES_MAX


def test_the_longest_refusal_fits_its_record() -> None:
    raw = json.dumps({f"{'k' * 3_200}{i}": 1 for i in range(20)}).encode()
    problems = problems_of(raw)
    assert len(problems) == 20
    refused = Refused(job="j1", vc="nlp", problems=problems, submitted_at=T0)
    assert len(codec.encode(refused)) < codec.RECORD_BYTES_MAX


def problems_of(raw: bytes) -> tuple[Any, ...]:
    found = parse_spec(raw)
    assert isinstance(found, list)
    return tuple(found)


def test_the_longest_advice_fits_a_message() -> None:
    jobs = tuple(
        JobAdvice(job=f"j{10**18 + n}", why=Reason.PREDICTED_SHORTEST) for n in range(ADVISED_MAX)
    )
    advice = QueueAdvice(at=T0, expires_at=T0, jobs=jobs)
    assert len(codec.encode(advice)) < bounds.MESSAGE_BYTES_MAX


# --- the AsyncAPI document ----------------------------------------------------------------------


def references(tree: Any) -> Iterator[str]:
    for level in nested(tree):
        if "$ref" in level:
            yield level["$ref"]


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    document = json.loads((generate_proto.PROTO / "asyncapi.json").read_text())
    assert document["asyncapi"] == "3.0.0"
    for reference in references(document):
        where, _, inside = reference.partition("#")
        if where:
            assert (generate_proto.PROTO / where).is_file(), reference
        level: Any = document
        for part in inside.split("/")[1:]:
            level = level[part]


def test_every_subject_of_the_streams_is_in_the_asyncapi_document() -> None:
    document = json.loads((generate_proto.PROTO / "asyncapi.json").read_text())
    addresses = {
        ".".join("*" if part.startswith("{") else part for part in channel["address"].split("."))
        for channel in document["channels"].values()
    }
    kept = [pattern for patterns in subjects.STREAMS.values() for pattern in patterns]
    others = [subjects.FINDINGS, subjects.HEARTBEATS, subjects.REPORTS, subjects.SPANS]
    assert [pattern for pattern in (*kept, *others) if pattern not in addresses] == []


def test_the_schema_of_a_spec_knows_every_key() -> None:
    schema = json.loads((Path(generate_proto.PROTO) / "job-spec.schema.json").read_text())
    properties = schema["$defs"]["JobSpec"]["properties"]
    assert list(properties) == list(JobSpec.__struct_fields__)
    assert schema["$defs"]["JobSpec"]["additionalProperties"] is False
    assert BindJob.__struct_config__.tag == "bind-job"
