"""Credentials for virtual clusters that are made while the cluster runs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from skep.wire.admin import SetVcs
from skep.wire.cluster import VirtualCluster
from skep_services.gateway.api import Tokens
from skep_services.supervisor import tenants
from skep_services.supervisor.config import Cluster, ConfigError, Gateway, Nats


def cluster() -> Cluster:
    return Cluster(
        nats=Nats(url="", users={"vc-nlp": "secret"}),
        nodes=[],
        gateway=Gateway(url="", tokens={"vc-nlp": "token"}),
        vcs={"nlp": VirtualCluster(gpus=4)},
    )


def test_whoever_is_new_gets_a_user_and_a_token_once() -> None:
    known = cluster()
    assert not tenants.admit(known, ["nlp"])
    assert tenants.admit(known, ["nlp", "vision"])
    password, token = known.nats.users["vc-vision"], known.gateway.tokens["vc-vision"]
    assert len(password) > 20 < len(token)
    assert not tenants.admit(known, ["vision"])
    assert not tenants.admit(known, [])
    assert known.vcs_with_credentials == ["nlp", "vision"]
    assert known.nats.users == {"vc-nlp": "secret", "vc-vision": password}


def test_too_many_are_refused_and_what_is_no_name_too() -> None:
    known = cluster()
    with pytest.raises(ConfigError, match="1001 virtual clusters"):
        tenants.admit(known, [f"vc{number}" for number in range(1000)])
    with pytest.raises(ConfigError, match="no name"):
        tenants.admit(known, ["a.b"])
    assert known.vcs_with_credentials == ["nlp"]


@pytest.mark.parametrize("payload", [b"", b"{", b'{"type":"drain-node","node":"n"}'])
def test_what_is_no_division_makes_nobody(payload: bytes) -> None:
    assert tenants.asked_for(payload) == []


def test_a_division_that_is_refused_makes_nobody() -> None:
    good = SetVcs(vcs={"fresh": VirtualCluster(gpus=1)})
    assert tenants.asked_for(msgspec.json.encode(good)) == ["fresh"]
    wrong = SetVcs(vcs={"fresh": VirtualCluster(pinned=("nothing",))})
    assert tenants.asked_for(msgspec.json.encode(wrong)) == []


def test_the_gateway_reads_its_tokens_again_when_they_change(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"old": "vc-nlp"}))
    tokens = Tokens.read(file)
    assert tokens.caller("Bearer new") is None
    file.write_text(json.dumps({"old": "vc-nlp", "new": "vc-fresh"}))
    tokens.refresh()
    found = tokens.caller("Bearer new")
    assert found is not None
    assert found.vc == "fresh"
    file.write_text("{")
    tokens.refresh()
    assert tokens.caller("Bearer old") is not None, "what cannot be read changes nothing"
    file.write_text(json.dumps({"new": "vc-fresh"}))
    tokens.refresh()
    assert tokens.caller("Bearer old") is None
