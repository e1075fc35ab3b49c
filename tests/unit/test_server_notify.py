"""`skep server notify`: which server runs the notifier, and what is refused before it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from skep_services.adapters import nats_access
from skep_services.cli import server_notify
from skep_services.cli.main import main
from skep_services.notifier import settings
from skep_services.servers import files, plan, serving, targets
from skep_services.servers.files import Member, ServerFile

GOOD = "[webhooks]\nallow = true\n"


def server(tmp_path: Path, size: int = 1) -> str:
    """Return the state folder of a server."""
    home = tmp_path / "home"
    home.mkdir()
    members = [Member(name=f"server-{n}", hosts=("h",)) for n in range(1, size + 1)]
    file = ServerFile(cluster="lab", name="server-1", size=size, members=members)
    files.write(files.server_path(str(home)), file)
    return str(home)


def written(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    """Return a file of targets."""
    path = tmp_path / "given.toml"
    path.write_text(text, encoding="ascii")
    path.chmod(mode)
    return str(path)


def test_a_file_of_targets_is_kept_for_the_next_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = server(tmp_path)
    assert main(["server", "notify", written(tmp_path, GOOD), "--home", home]) == 0
    kept = Path(targets.path(home))
    assert (kept.read_text(encoding="ascii"), kept.stat().st_mode & 0o777) == (GOOD, 0o600)
    assert "systemctl restart skep-server" in capsys.readouterr().out
    assert serving._notifies(home)
    assert main(["server", "notify", "--off", "--home", home]) == 0
    assert not serving._notifies(home)
    assert main(["server", "notify", "--off", "--home", home]) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, mode, line",
    [
        ([], 0o600, "give the file of targets or --off: skep server notify FILE"),
        (["FILE", "--off"], 0o600, "give the file of targets or --off"),
        (["FILE"], 0o644, "can be read by others: chmod 600"),
        (["/nowhere/x.toml"], 0o600, "/nowhere/x.toml: No such file or directory"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    words: list[str], mode: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, given = server(tmp_path), written(tmp_path, GOOD, mode)
    typed = [given if word == "FILE" else word for word in words]
    assert main(["server", "notify", *typed, "--home", home]) != 0
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not targets.has(home)


def test_without_its_library_all_else_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = server(tmp_path)
    targets.put(home, b'[targets.chat]\nurl = "json://localhost"\n')
    monkeypatch.setattr(settings, "apprise_of", lambda: None)
    assert not serving._notifies(home)
    assert settings.NOT_INSTALLED in capsys.readouterr().err


def test_a_second_server_does_not_send_all_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, given = server(tmp_path, size=3), written(tmp_path, GOOD)
    monkeypatch.setattr(server_notify, "_one_answers", lambda _: True)
    assert main(["server", "notify", given, "--home", home]) == 1
    assert "another server of this cluster runs the notifier" in capsys.readouterr().err
    assert not targets.has(home)


def test_the_notifier_has_one_name_on_any_server(tmp_path: Path) -> None:
    file = files.read_server(server(tmp_path, size=3))
    none = plan.server_plan(file, str(tmp_path), "/nats-server")
    assert nats_access.NOTIFIER not in [child.name for child in none.services]
    made = plan.server_plan(file, str(tmp_path), "/nats-server", notifier=True)
    env = next(one.env for one in made.services if one.name == nats_access.NOTIFIER)
    assert env["SKEP_NATS_USER"] == nats_access.NOTIFIER
    assert env[settings.VARIABLE] == targets.path(str(tmp_path))
