"""People in a real cluster: the commands, a job of a person, and a token that is revoked."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedded import SKEP, Embedded, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def house(tmp_path: Path) -> Any:
    made = Embedded(tmp_path / "home")
    made.up("--people", "--nodes", "1", "--gpus", "2", "--vc", "nlp=2")
    yield made
    made.down()


def test_people_work_in_a_cluster_of_their_own(house: Embedded, tmp_path: Path) -> None:
    outside = {name: value for name, value in house.environment.items() if name != "SKEP_HOME"}
    outside |= {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}
    url = house.about["gateway"]["url"]

    def skep(*words: str, code: int = 0, typed: str = "", **more: str) -> str:
        done = subprocess.run(
            [*SKEP, *words],
            env={**outside, **more},
            input=typed,
            check=False,
            text=True,
            capture_output=True,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    for person, role in (("ada", "submitter"), ("bob", "submitter"), ("mia", "manager")):
        house.skep("user", "add", person)
        house.skep("role", "grant", person, role, "--vc", "nlp", "--reason", "first day")
    tokens = {
        person: house.skep("token", "create", "laptop", "--person", person).strip()
        for person in ("ada", "bob", "mia")
    }
    skep("login", url, "--token", typed=tokens["ada"] + "\n")
    kept = tmp_path / "config" / "skep" / "logins.json"
    assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600
    me = json.loads(skep("whoami", "--json"))
    assert (me["person"], me["roles"]) == ("ada", {"nlp": "submitter"})
    # A job of ada's: another submitter may not end it, a manager may, and that is noted.
    spec = tmp_path / "job.json"
    spec.write_text(
        json.dumps(
            {"name": "t", "vc": "nlp", "command": ["sleep", "300"], "resources": {"gpus": 1}}
        )
    )
    skep("submit", str(spec))
    assert house.started("j1")["owner"] == "ada"
    skep("cancel", "j1", code=1, SKEP_API=url, SKEP_TOKEN=tokens["bob"])
    skep("cancel", "j1", SKEP_API=url, SKEP_TOKEN=tokens["mia"])
    assert house.ended("j1")["state"] == "cancelled"
    lines = json.loads(house.skep("audit", "--action", "cancel", "--json"))["lines"]
    done = [line for line in lines if line["outcome"] == "done"]
    assert [(line["actor"], line["target"], line["vc"]) for line in done] == [("mia", "j1", "nlp")]
    assert {line["actor"] for line in lines if line["outcome"] == "refused"} == {"bob"}
    # The access service dies; what it had recorded holds, and it goes on.
    pid = house.kill("access")
    house.wait_back("access", pid)
    (token,) = json.loads(house.skep("token", "ls", "--person", "ada", "--json"))["tokens"]

    def revoked() -> bool:
        done = subprocess.run(
            [*SKEP, "token", "revoke", token["token"]], env=house.environment, check=False
        )
        return done.returncode == 0

    until(revoked, "the token is revoked")
    skep("whoami", code=1)  # The very next command.
    skep("logout")
    assert json.loads(kept.read_text()) == []
    with kept.open("w") as file:
        file.write("[]")
    kept.chmod(0o644)
    skep("whoami", code=1)  # Others could read it.
