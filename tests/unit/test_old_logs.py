"""Logs of attempts that ended long ago go, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skep_services.agent.old_logs import days_kept, old, remove
from skep_services.service import ConfigurationError
from skep_services.supervisor.config import ConfigError, Retention, read_file, settle
from skep_services.supervisor.retention import command

LONG_AGO, NOW = 1_000, 2_000_000_000


def attempt(folder: Path, job: str, number: str, at_s: int) -> Path:
    path = folder / job / number
    path.mkdir(parents=True)
    (path / "rank0.log").write_text("words")
    os.utime(path / "rank0.log", (at_s, at_s))
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_only_what_was_not_written_for_long_is_old(tmp_path: Path) -> None:
    first = attempt(tmp_path, "j1", "1", LONG_AGO)
    second = attempt(tmp_path, "j1", "2", NOW)
    third = attempt(tmp_path, "j2", "1", LONG_AGO)
    attempt(tmp_path, "j2", "notes", LONG_AGO)
    (tmp_path / "j3").symlink_to(tmp_path / "j1")
    found = old(tmp_path, (NOW - 1) * 10**9)
    assert found == [("j1", 1, first), ("j2", 1, third)]
    for _, _, path in found:
        remove(path)
    assert not first.exists()
    assert (second / "rank0.log").exists()
    assert (tmp_path / "j2" / "notes").exists()
    assert old(tmp_path / "none", NOW) == []


def test_the_folder_of_a_job_goes_with_its_last_attempt(tmp_path: Path) -> None:
    remove(attempt(tmp_path, "j1", "1", LONG_AGO))
    assert not (tmp_path / "j1").exists()


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "99999999"])
def test_wrong_days_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SKEP_JOB_LOG_DAYS"):
        days_kept({"SKEP_JOB_LOG_DAYS": text})


def test_days_are_kept_for_ever_by_default() -> None:
    assert days_kept({}) == 0
    assert days_kept({"SKEP_JOB_LOG_DAYS": "30"}) == 30


def test_a_cluster_file_says_how_long_things_are_kept() -> None:
    tree = {"vcs": {"nlp": {"gpus": 4}}, "retention": {"archive_days": 30, "job_log_days": 7}}
    cluster = settle(None, read_file(tree, "c.yaml"), "/tmp/none")
    assert cluster.retention == Retention(archive_days=30, job_log_days=7)
    again = settle(cluster, read_file({"vcs": {"nlp": {"gpus": 4}}}, "c.yaml"), "/tmp/none")
    assert again.retention == cluster.retention
    assert settle(None, read_file({}, "c.yaml"), "/tmp/none").retention == Retention()
    assert command("/h", 30)[2:] == (
        *("skep_services", "log", "archive"),
        *("--older", "30", "--home", "/h", "--json"),
    )


@pytest.mark.parametrize("given", [{"archive_days": -1}, {"days": 3}, {"job_log_days": "x"}])
def test_a_wrong_retention_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="retention"):
        read_file({"retention": given}, "c.yaml")
