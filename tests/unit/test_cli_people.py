"""`skep login`, `audit` and their files: which cluster a command means, and what is refused."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from skep_services.cli import audit, credentials
from skep_services.cli.client import Target, find_target, refusal
from skep_services.cli.credentials import Login
from skep_services.cli.exits import CommandError
from skep_services.cli.main import main

URL = "https://skep.example.org"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SKEP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_a_login_is_kept_for_its_owner_only() -> None:
    assert credentials.read() == []
    credentials.keep(Login(URL, "skep_a_b", "", "ada"))
    credentials.keep(Login("http://other", "skep_c_d", "", "ada"))
    assert stat.S_IMODE(os.stat(credentials.path()).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(credentials.path())).st_mode) == 0o700
    assert [login.url for login in credentials.read()] == ["http://other", URL]
    credentials.keep(Login(URL, "new", "", "ada"))
    assert credentials.read()[0].token == "new"
    credentials.forget(URL)
    assert [login.url for login in credentials.read()] == ["http://other"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_file_that_others_may_read_is_not_used(mode: int) -> None:
    credentials.keep(Login(URL, "skep_a_b"))
    os.chmod(credentials.path(), mode)
    with pytest.raises(CommandError, match="can be read by others"):
        credentials.find()


@pytest.mark.parametrize("text", ["", "{}", '[{"url": 1}]', "[1]", "\x00"])
def test_a_broken_file_says_what_to_do(text: str) -> None:
    credentials.keep(Login(URL, "skep_a_b"))
    Path(credentials.path()).write_text(text)
    if text == "{}":
        assert credentials.read() == []  # An object without logins.
        return
    with pytest.raises(CommandError, match="skep login"):
        credentials.find()


def test_a_command_means_the_cluster_that_is_named_the_closest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials.keep(Login(URL, "kept", "/ca.pem", "ada"))
    assert find_target(None) == Target(URL, "kept", "", "/ca.pem")
    monkeypatch.setenv("SKEP_TOKEN", "mine")
    assert find_target(None).token == "mine"
    monkeypatch.setenv("SKEP_API", "http://127.0.0.1:1")
    assert find_target(None) == Target("http://127.0.0.1:1", "mine", "")
    monkeypatch.delenv("SKEP_TOKEN")
    assert find_target(None).token == ""  # The token of one cluster is not sent to another.
    monkeypatch.setenv("SKEP_API", URL)
    assert find_target(None).token == "kept"
    monkeypatch.delenv("SKEP_API")
    monkeypatch.setenv("SKEP_HOME", str(tmp_path / "none"))
    with pytest.raises(CommandError, match="no cluster here"):
        find_target(None)
    with pytest.raises(CommandError, match="no cluster here"):
        find_target(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "text, ago_s", [("90m", 5400), ("12h", 43_200), ("7d", 604_800), ("1w", 604_800), ("5s", 5)]
)
def test_a_time_ago(text: str, ago_s: int) -> None:
    assert audit.since(text, 1_760_000_000.0) == (1_760_000_000 - ago_s) * 10**9


def test_a_date_is_one_of_this_time_zone() -> None:
    want = int(time.mktime((2026, 11, 26, 10, 30, 0, 0, 0, -1))) * 10**9
    assert audit.since("2026-11-26T10:30", 0.0) == want
    for text in ("yesterday", "-1d", "1y", "2026-13-01", "٣d", ""):
        with pytest.raises(CommandError, match="--since"):
            audit.since(text, 0.0)


@pytest.mark.parametrize(
    "words",
    [
        ["user", "add"],
        ["role", "grant", "ada"],
        ["role", "grant", "ada", "viewer"],
        ["role", "grant", "ada", "operator", "--vc", "nlp"],
        ["role", "revoke", "ada"],
        ["role", "revoke"],
        ["login"],
        ["audit", "--since", "soon"],
    ],
)
def test_half_a_command_is_refused_before_anything_is_asked(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["text"]


def test_an_ended_token_is_one_clear_line() -> None:
    body = {"error": {"reason": "token-expired", "text": "the token x (laptop) has expired: ..."}}
    told = refusal(401, json.dumps(body).encode())
    assert (told.text, told.error["reason"]) == (body["error"]["text"], "token-expired")


def test_one_that_is_not_logged_in_cannot_log_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logout"]) == 3
    assert "not logged in" in capsys.readouterr().err
