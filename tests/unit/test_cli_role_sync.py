"""`skep role sync`: the roles that follow from groups, and what is left alone."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from skep_services.adapters.ldap_settings import DirectoryError
from skep_services.cli.main import main
from skep_services.cli.role_sync import planned
from tests.cli_kit import FakeGateway, fake_gateway

GROUPS = {"ml": {"nlp": "submitter"}, "leads": {"nlp": "manager", "cv": "viewer"}}


def row(person: str, **groups: str) -> dict[str, Any]:
    return {"person": person, "groups": groups}


def test_roles_follow_the_groups_and_go_with_them() -> None:
    members = {"ml": ["ada", "bob", "zoe"], "leads": ["ada"]}
    people = [
        row("ada"),
        row("bob", nlp="submitter"),
        row("eve", nlp="submitter", other="viewer"),
        row("mia"),
    ]
    changes, strangers = planned(GROUPS, members, people)
    # Of two roles in a VC the higher one; a VC of which no group speaks stays as it is.
    assert changes == {"ada": {"nlp": "manager", "cv": "viewer"}, "eve": {"other": "viewer"}}
    assert strangers == ["zoe"]
    again = [row("ada", nlp="manager", cv="viewer"), row("bob", nlp="submitter")]
    assert planned(GROUPS, members, again)[0] == {}


def test_a_name_from_elsewhere_is_printed_as_one_word() -> None:
    _, strangers = planned(GROUPS, {"ml": ["a\x1b[2Jb\n"]}, [])
    assert strangers == ["a\\x1b[2Jb\\n"]


def synced(
    monkeypatch: pytest.MonkeyPatch, folder: Path, members: Any, *words: str
) -> tuple[int, FakeGateway]:
    """Return what the command exits with, and what it asked of a gateway with one person."""

    def read_members(_settings: Any) -> Any:
        if isinstance(members, Exception):
            raise members
        return members

    adapter = types.ModuleType("skep_services.adapters.ldap_groups")
    adapter.read_members = read_members  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, adapter.__name__, adapter)
    file = folder / "groups.json"
    file.write_text(json.dumps({"server": "ldaps://x", "base": "dc=x", "groups": GROUPS}))
    with fake_gateway() as gateway:
        gateway.on("GET /v1/vcs", {"vcs": [{"vc": "nlp"}, {"vc": "cv"}]})
        gateway.on("GET /v1/people", {"people": [row("ada", nlp="submitter")]})
        gateway.on("POST /v1/group-roles", {"accepted": True, "repeated": False})
        monkeypatch.setenv("SKEP_API", gateway.url)
        monkeypatch.setenv("SKEP_TOKEN", "op")
        return main(["role", "sync", str(file), *words]), gateway


def posted(gateway: FakeGateway) -> list[Any]:
    return [asked.json() for asked in gateway.asked if asked.method == "POST"]


def test_a_member_that_left_loses_its_role(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone: dict[str, list[str]] = {"ml": [], "leads": []}
    code, gateway = synced(monkeypatch, tmp_path, gone, "--dry-run")
    assert (code, posted(gateway), capsys.readouterr().out) == (0, [], "ada: -\n")
    code, gateway = synced(monkeypatch, tmp_path, gone, "--json")
    assert (code, posted(gateway)) == (0, [{"person": "ada", "roles": {}}])
    told = json.loads(capsys.readouterr().out)
    assert told == {"changes": {"ada": {}}, "strangers": [], "dry_run": False}


def test_a_directory_that_cannot_be_read_takes_nothing_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, gateway = synced(monkeypatch, tmp_path, DirectoryError("ldaps://x: away"))
    assert (code, posted(gateway)) == (1, [])
    assert "ldaps://x: away" in capsys.readouterr().err
