"""Which secrets a node may have, sealed boxes, and variables that look like secrets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from skep.ledger.job_state import JobState
from skep.units import Instant
from skep.vault.looks_secret import looks_secret, warning
from skep.vault.secrets import PERSON, VC, Refusal, Secrets, Whose
from skep.wire import codec, subjects
from skep.wire.member import Member
from skep.wire.parse import parse_tree
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from skep.wire.vault import (
    SEAL_BYTES,
    SECRETS_PER_ASK_MAX,
    SECRETS_PER_OWNER_MAX,
    VALUE_BYTES_MAX,
    AskSecrets,
    SecretKept,
    SecretsGiven,
    VaultKey,
)
from skep_services.ports import Delivery
from skep_services.service import ConfigurationError
from skep_services.vault import boxes
from skep_services.vault.__main__ import Vault

KEY = bytes(32)
SILENT: Any = None
"""A bus on which nothing is said."""


def kept(text: str) -> bytes:
    return codec.encode(SecretKept(sealed=text.encode(), key=KEY, at=Instant(7), by="ada"))


def known() -> Secrets:
    secrets = Secrets()
    for scope, owner, text in ((VC, "nlp", "team"), (PERSON, "ada", "own"), (VC, "cv", "other")):
        assert secrets.heard(subjects.secret(scope, owner, "wandb"), kept(text))
    return secrets


def job(owner: str = "ada", vc: str = "nlp", node: str = "n1") -> JobState:
    spec = JobSpec(
        name="x", vc=vc, command="true", secrets={"WANDB": "wandb"}, secret_files={"F": "cert"}
    )
    state = JobState(
        job="j1", sequence=1, spec=spec, submitted_at=Instant(0), trace="", attempt=2, owner=owner
    )
    member = Member(node=node, identity="i", devices=((0,),), first_rank=0)
    return msgspec.structs.replace(state, members={node: member})


def ask(*names: str, node: str = "n1", attempt: int = 2) -> AskSecrets:
    return AskSecrets(node=node, job="j1", attempt=attempt, key=KEY, names=names or ("wandb",))


def test_a_persons_secret_goes_before_the_vcs_and_no_other_vcs_is_found() -> None:
    secrets = known()
    granted = secrets.grant(ask(), job())
    assert isinstance(granted, dict)
    assert granted["wandb"].whose == Whose(PERSON, "ada", "wandb")
    assert granted["wandb"].kept.sealed == b"own"
    of_vc = secrets.grant(ask(), job(owner="bob"))
    assert isinstance(of_vc, dict)
    assert of_vc["wandb"].kept.sealed == b"team"
    assert secrets.grant(ask(), job(owner="bob", vc="lab")) == Refusal(
        Reason.NO_SECRET, "there is no secret wandb of bob or of VC lab: skep secret set wandb"
    )


@pytest.mark.parametrize(
    "asked, of, reason",
    [
        (ask(node="n2"), job(), Reason.NOT_BOUND_HERE),
        (ask(attempt=1), job(), Reason.NOT_BOUND_HERE),
        (ask(), None, Reason.NOT_BOUND_HERE),
        (ask("other"), job(), Reason.NO_SECRET),
        (ask("cert"), job(), Reason.NO_SECRET),
    ],
    ids=["another node", "an earlier attempt", "no such job", "not named", "not kept"],
)
def test_a_node_gets_only_what_its_job_names(
    asked: AskSecrets, of: JobState | None, reason: Reason
) -> None:
    refused = known().grant(asked, of)
    assert isinstance(refused, Refusal)
    assert refused.reason is reason
    assert "\n" not in refused.text


def test_what_is_no_secret_is_passed_over() -> None:
    secrets = known()
    assert not secrets.heard("skep.v1.secret.vc.nlp", kept("x"))
    assert not secrets.heard("skep.v1.secret.king.nlp.wandb", kept("x"))
    assert not secrets.heard(subjects.secret(VC, "nlp", "wandb"), b"{")
    assert not secrets.heard(subjects.VAULT_KEY, b'{"key": "AA=="}')
    assert secrets.heard(subjects.VAULT_KEY, codec.encode(VaultKey(key=KEY)))
    assert secrets.of(VC, "nlp")["wandb"].sealed == b"team"
    assert secrets.heard(subjects.secret(VC, "nlp", "wandb"), b"")
    assert not secrets.of(VC, "nlp")


def test_an_owner_has_a_bounded_number_of_secrets() -> None:
    secrets = Secrets()
    for number in range(SECRETS_PER_OWNER_MAX):
        secrets.heard(subjects.secret(VC, "nlp", f"s{number}"), kept("x"))
    assert secrets.full(Whose(VC, "nlp", "more"))
    assert not secrets.full(Whose(VC, "nlp", "s1"))
    assert not secrets.full(Whose(VC, "cv", "more"))


def test_only_the_owner_of_the_key_opens_a_box() -> None:
    key, other = boxes.new_key(), boxes.new_key()
    box = boxes.seal(b"value", bytes(key.public_key))
    assert boxes.opened(box, key) == b"value"
    for wrong, which in ((box, other), (box[:-1], key), (b"", key)):
        with pytest.raises(boxes.BoxError):
            boxes.opened(wrong, which)
    # Keys that libsodium refuses are not an agent's way to end the vault.
    for key_bytes in (bytes(32), b"\1" + bytes(31)):
        with pytest.raises(boxes.BoxError):
            boxes.seal(b"value", key_bytes)


def vault_of(key: Any, place: Whose, box: bytes) -> Vault:
    """Return a vault that keeps a box at a place, and knows of a job that names it."""
    vault = Vault(SILENT, key, structlog.get_logger())
    payload = codec.encode(SecretKept(sealed=box, key=bytes(key.public_key), at=Instant(7)))
    assert vault.secrets.heard(subjects.secret(*place), payload)
    vault._state.jobs["j1"] = job()
    return vault


def given(vault: Vault, opens: Any) -> SecretsGiven:
    payload = codec.encode(msgspec.structs.replace(ask(), key=bytes(opens.public_key)))
    return vault._given(Delivery(subjects.vault("n1"), payload))


def test_a_box_that_was_copied_does_not_open() -> None:
    key, opens = boxes.new_key(), boxes.new_key()
    public, here = bytes(key.public_key), Whose(VC, "nlp", "wandb")
    own = boxes.seal_in_place(b"value", public, here)
    told = given(vault_of(key, here, own), opens)
    assert boxes.opened(told.sealed["wandb"], opens) == b"value"
    for place in (Whose(PERSON, "eve", "wandb"), Whose(VC, "nlp", "wandb2"), Whose(VC, "nl", "p")):
        copied = boxes.seal_in_place(b"theirs", public, place)
        told = given(vault_of(key, here, copied), opens)
        assert (told.refused, told.sealed) == (Reason.OTHER_PLACE, {})
        assert told.text == (
            "wandb of vc nlp: the box was sealed for another owner or name: skep secret set wandb"
        )
    # Boxes of earlier versions go on to open.
    told = given(vault_of(key, here, boxes.seal(b"old", public)), opens)
    assert boxes.opened(told.sealed["wandb"], opens) == b"old"
    longest = Whose(PERSON, "o" * 63, "n" * 63)
    most = boxes.seal_in_place(bytes(VALUE_BYTES_MAX), public, longest)
    assert Secrets().heard(
        subjects.secret(*longest), codec.encode(SecretKept(sealed=most, key=public, at=Instant(7)))
    )


def test_the_vaults_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "vault" / "key"
    first = boxes.key_in(path)
    assert bytes(boxes.key_in(path)) == bytes(first)
    assert path.stat().st_mode & 0o777 == 0o600
    os.chmod(path, 0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        boxes.key_in(path)
    path.write_bytes(b"short")
    os.chmod(path, 0o600)
    with pytest.raises(ConfigurationError, match="restore it from a backup"):
        boxes.key_in(path)


@pytest.mark.parametrize(
    "more, path",
    [
        ({"secrets": {"A B": "x"}}, "$.secrets.A B"),
        ({"secrets": {"SKEP_RANK": "x"}}, "$.secrets.SKEP_RANK"),
        ({"secrets": {"A": "x.y"}}, "$.secrets.A"),
        ({"secrets": {"A": "x"}, "env": {"A": "1"}}, "$.secrets.A"),
        ({"secrets": {"A": "x"}, "secret_files": {"A": "x"}}, "$.secret_files.A"),
        ({"secrets": {f"A{n}": f"s{n}" for n in range(33)}}, "$.secrets"),
    ],
)
def test_a_spec_names_secrets_well(more: dict[str, object], path: str) -> None:
    found = parse_tree({"name": "x", "vc": "nlp", "command": "true", **more})
    assert isinstance(found, list)
    assert [problem.path for problem in found] == [path]


@pytest.mark.parametrize(
    "name, value, told",
    [
        ("WANDB_API_KEY", "x", True),
        ("DB_PASSWORD", "x", True),
        ("HF", "hf_abcdefghijklmnop", True),
        ("URL", "postgres://me:pw@host/db", True),
        ("PEM", "-----BEGIN RSA PRIVATE KEY-----\nxx", True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("LR", "0.1", False),
        ("KEYBOARD", "de", False),
        ("HF_TOKEN", "", False),
        ("URL", "https://host/a:b@c", False),
    ],
)
def test_values_that_look_like_secrets_are_told(name: str, value: str, *, told: bool) -> None:
    assert looks_secret({name: value}) == ([name] if told else [])
    if told:
        assert value not in warning([name]).split()


def test_the_largest_answer_fits_a_message_of_the_bus() -> None:
    largest = bytes(VALUE_BYTES_MAX + SEAL_BYTES)
    names = [f"{number:063}" for number in range(SECRETS_PER_ASK_MAX)]
    assert len(codec.encode(SecretsGiven(sealed=dict.fromkeys(names, largest)))) < 1_000_000
