"""`proto/` is what the code says, and every golden example is understood both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skep.units import Instant
from skep.wire import codec
from skep.wire.parse import parse_spec
from tools import generate_proto
from tools.proto_examples import GROUPS, SPEC

EXAMPLES = [(name, message) for name, group in GROUPS.items() for message in group]
IDS = [f"{name}/{message.__struct_config__.tag}" for name, message in EXAMPLES]


def test_proto_has_not_drifted_from_the_code() -> None:
    assert generate_proto.drift() == [], "run `make proto` and read the difference"


def test_every_message_has_an_example() -> None:
    assert generate_proto.missing_examples() == []


def test_drift_is_found(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(generate_proto, "PROTO", tmp_path)
    (tmp_path / "left-over.json").write_text("{}")
    names = generate_proto.drift()
    assert "left-over.json" in names
    assert "asyncapi.json" in names
    monkeypatch.setattr("sys.argv", ["generate_proto.py"])
    assert generate_proto.main() == 0
    assert generate_proto.drift() == []
    monkeypatch.setattr("sys.argv", ["generate_proto.py", "--check"])
    assert generate_proto.main() == 0
    (tmp_path / "asyncapi.json").write_text("{}")
    assert generate_proto.main() == 1


@pytest.mark.parametrize("name, message", EXAMPLES, ids=IDS)
def test_examples_are_read_and_written_the_same(name: str, message: msgspec.Struct) -> None:
    path = generate_proto.PROTO / "examples" / name / f"{message.__struct_config__.tag}.json"
    raw = path.read_bytes()
    decoder = msgspec.json.Decoder(generate_proto.UNIONS[name])
    assert decoder.decode(raw) == message
    assert json.loads(codec.encode(message)) == json.loads(raw)


@pytest.mark.parametrize("name, message", EXAMPLES, ids=IDS)
def test_an_older_reader_skips_what_a_newer_writer_added(
    name: str, message: msgspec.Struct
) -> None:
    newer = {**json.loads(codec.encode(message)), "added_in_a_later_version": [1, 2]}
    decoder = msgspec.json.Decoder(generate_proto.UNIONS[name])
    if name == "admin":
        # Operators' own words are closed: a key that is skipped is a wish that is lost.
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(json.dumps(newer))
    else:
        assert decoder.decode(json.dumps(newer)) == message


@pytest.mark.parametrize("name, message", EXAMPLES, ids=IDS)
def test_garbage_is_refused(name: str, message: msgspec.Struct) -> None:
    decoder = msgspec.json.Decoder(generate_proto.UNIONS[name])
    for raw in (b"", b"null", b"[]", b'{"type": "nobody"}', b"\xff"):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decoder.decode(raw)


def test_the_spec_example_is_accepted() -> None:
    raw = (generate_proto.PROTO / "examples" / "job-spec.json").read_bytes()
    assert parse_spec(raw) == SPEC


@pytest.mark.parametrize(
    "subject, name",
    [
        ("skep.v1.node.node-1.joined", "node-events"),
        ("skep.v1.cmd.node-1", "commands"),
        ("skep.v1.finding.any", "findings"),
        ("skep.v1.advice.queue", "advice"),
        ("skep.v1.admin.any", "admin"),
    ],
)
def test_the_codec_reads_what_each_subject_promises(subject: str, name: str) -> None:
    for message in GROUPS[name]:
        assert codec.read(subject, codec.encode(message), {}, 1, Instant(2 * 10**18)) == message
