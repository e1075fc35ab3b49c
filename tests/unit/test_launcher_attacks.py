"""What jobs and persons try on the launcher's decisions, and machines that lack things."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest

from skep_services.launcher import folders, groups, policy, server
from skep_services.launcher.accounts import Account, Accounts, Refusal
from skep_services.launcher.enclosure import Apart
from skep_services.launcher.policy import Policy

AGENT_GID = 4322


def made(folder: Path, **accounts: Any) -> Policy:
    """Return a policy whose state is in a folder."""
    chosen = policy.parsed({"accounts": accounts}, 1 << 34)._replace(folder=str(folder))
    os.makedirs(chosen.state, exist_ok=True)
    return chosen


def known(folder: Path, **accounts: Any) -> Accounts:
    return Accounts(made(folder, **accounts), agent_uid=4321, agent_gid=AGENT_GID)


def legacy_groups(tmp_path: Path, *controllers: str) -> groups.Groups:
    """Return the groups of a machine with version 1 only."""
    found = {each: str(tmp_path / "cgroup" / each) for each in controllers}
    for above in found.values():
        folder = Path(above) / "skep-jobs-1"
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").touch()
    return groups.Groups(groups.Mounted("", found), "skep-jobs-1", made(tmp_path).limits)


class Place:
    """A shared folder with nothing else in it than its root."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)


def apart(tmp_path: Path, found: groups.Groups, monkeypatch: pytest.MonkeyPatch) -> Apart:
    monkeypatch.setattr(Apart, "_lacking", lambda _: {})
    chosen = made(tmp_path, mode="dynamic")
    accounts = known(tmp_path, mode="dynamic")
    return Apart(chosen, accounts, found, Place(tmp_path))  # type: ignore[arg-type]


# --- accounts -------------------------------------------------------------------------------------


@pytest.fixture
def unix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be accounts; each is in the agent's group as well."""
    gids = {"al123": 1503, "friend": AGENT_GID}

    def find(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", 1503, gids[name], "", "/people/one", "/bin/bash"))

    monkeypatch.setattr(pwd, "getpwnam", find)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((f"g{gid}", "x", gid, [])))
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, AGENT_GID, 2000])


@pytest.mark.usefixtures("unix")
def test_the_account_of_another_person_and_the_agents_group(tmp_path: Path) -> None:
    one = known(tmp_path, persons={"al": "al123"})
    expected = Account("al123", 1503, 1503, (1503, 2000), "/people/one", "/bin/bash")
    assert one.of("al", "nlp") == expected, "without the group that reads the logs of everybody"
    for person, why in (
        ("al123", "no-account: the account al123 is another person's in [accounts] persons"),
        ("friend", "system-account: person friend has the account friend, whose group 4322 no job"),
    ):
        with pytest.raises(Refusal) as caught:
            one.of(person, "nlp")
        assert str(caught.value).startswith(why)


# --- whose a process is ---------------------------------------------------------------------------


def test_a_process_does_not_choose_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables name any run; its control group, of whichever version, is the launcher's."""
    one = apart(tmp_path, legacy_groups(tmp_path, "pids", "memory"), monkeypatch)
    assert not one.trusts_environments
    mine = "9:memory:/skep-jobs-1/1f\n3:cpu:/\n1:name=systemd:/x.service\n0::/x.service\n"
    assert one._groups.run_in(mine) == 0x1F
    assert one._groups.run_in("0::/skep-jobs-1/2a\n") == 0x2A
    for other in ("0::/\n", "9:memory:/skep-jobs-2/1f\n", "9:memory:/skep-jobs-1/probe\n", ""):
        assert one._groups.run_in(other) is None
    assert one.mark_of(os.getpid()) is None
    none = groups.Groups(groups.Mounted("", {}), "skep-jobs-1", made(tmp_path).limits)
    assert apart(tmp_path, none, monkeypatch).trusts_environments


# --- what a machine lacks -------------------------------------------------------------------------


def test_a_machine_without_processes_to_spare_ends_no_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job may have them all when another one ends, or when its checkpoints are removed."""
    one = apart(tmp_path, legacy_groups(tmp_path, "pids"), monkeypatch)
    (tmp_path / "checkpoints" / "j1").mkdir(parents=True)

    def none_left(*_: Any) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "posix_spawn", none_left)
    one.remove("checkpoints", "j1")
    assert not (tmp_path / "checkpoints" / "j1").exists()
    assert "is left for later: Resource temporarily unavailable" in capsys.readouterr().err
    (tmp_path / "checkpoints" / "j1").mkdir()
    monkeypatch.setattr(os, "rename", none_left)
    one.remove("checkpoints", "j1")
    assert "j1 cannot be removed: Resource temporarily unavailable" in capsys.readouterr().err


def test_what_a_job_made_by_the_million_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / "job" / str(number)).mkdir(parents=True)
    monkeypatch.setattr(folders, "LOOKED_AT_MAX", 2)
    looked: list[str] = []
    look = os.lstat

    def counted(name: str, dir_fd: int) -> os.stat_result:
        looked.append(name)
        return look(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "lstat", counted)
    above = os.open(tmp_path, os.O_RDONLY)
    try:
        assert folders._latest(above, "job") is not None
    finally:
        os.close(above)
    assert len(looked) == 2


def test_code_that_others_can_replace_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is root's is no help in a folder that is not."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    program = tmp_path / "theirs" / "python"
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    server._warn_of_code()
    assert f"warning: {tmp_path}/theirs is not root's alone" in capsys.readouterr().err
