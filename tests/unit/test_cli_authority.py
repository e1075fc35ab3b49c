"""`skep ca`: the cluster's authority by its commands."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from skep_services.cli.main import main
from skep_services.pki.files import TlsFiles, client_context, server_context


def ca(home: Path, *words: str) -> int:
    return main(["ca", *words, "--home", str(home)])


def test_an_authority_is_made_used_and_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> dict[str, object]:
        capsys.readouterr()
        assert ca(tmp_path, "show", "--json") == 0
        told: dict[str, object] = json.loads(capsys.readouterr().out)
        return told

    assert ca(tmp_path, "show") == 1
    assert "make the authority first" in capsys.readouterr().err
    assert ca(tmp_path, "init", "lab") == 0
    assert "fingerprint" in capsys.readouterr().out
    first = shown()
    out = tmp_path / "out"
    hosts = ("--host", "gateway.example.org", "--host", "fd00::1")
    assert ca(tmp_path, "issue", "gateway", *hosts, "--days", "90", "--out", str(out)) == 0
    files = TlsFiles(ca=out / "ca.pem", certificate=out / "gateway.pem", key=out / "gateway.key")
    assert stat.S_IMODE((out / "gateway.key").stat().st_mode) == 0o600
    server_context(files, clients=True)
    client_context(files.ca, files)

    assert ca(tmp_path, "begin") == 0
    assert "put `skep ca trust` on every machine" in capsys.readouterr().out
    assert ca(tmp_path, "end") == 1
    assert "has begun" in capsys.readouterr().err
    assert shown()["fingerprint"] == first["fingerprint"]
    assert ca(tmp_path, "trust") == 0
    assert capsys.readouterr().out.count("BEGIN CERTIFICATE") == 2
    assert ca(tmp_path, "switch") == 0
    assert "issued anew, then: skep ca end" in capsys.readouterr().out
    assert shown()["fingerprint"] != first["fingerprint"]
    assert ca(tmp_path, "end") == 0
    assert ca(tmp_path, "trust", "--out", str(out)) == 0
    assert (out / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 1


def test_the_authority_of_a_server_is_found(tmp_path: Path) -> None:
    assert main(["ca", "init", "lab", "--authority", str(tmp_path / "keys" / "ca")]) == 0
    assert ca(tmp_path, "show") == 0


@pytest.mark.parametrize(
    "words, code, told",
    [
        (("init",), 2, "which cluster?"),
        (("issue",), 2, "whose certificate?"),
        (("issue", "a b"), 1, "is no name"),
        (("issue", "a", "--host", "*"), 1, "is no host"),
        (("issue", "a", "--days", "9999"), 1, "at most 825 days"),
        (("issue", "a", "--out", "/proc/nowhere"), 1, "/proc/nowhere: "),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, told: str
) -> None:
    if words != ("init",):
        assert ca(tmp_path, "init", "lab") == 0
    assert ca(tmp_path, *words) == code
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
