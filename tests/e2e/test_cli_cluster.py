"""The `skep` command on a cluster of its own, from the first `up` to `down --wipe`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

import skep_job
from skep_services.supervisor import home as folder
from tests.support.embedded import Embedded, until
from tests.support.terminal import Terminal

pytestmark = pytest.mark.e2e

DEADLINE_S = 120.0
SKEP = (sys.executable, "-m", "skep_services")

JOBS = """\
name: hello
script: hello.py
args: [world]
---
name: broken
command: [sh, -c, "echo about to fail; exit 3"]
"""
HELLO = "import os, sys; print('hello', sys.argv[1], 'from rank', os.environ['SKEP_RANK'])\n"


class Shell:
    """Runs the command as a person would, in a folder of its own."""

    def __init__(self, cluster: Embedded, workdir: Path) -> None:
        self.cluster = cluster
        self.workdir = workdir
        self.environment = {
            name: value
            for name, value in cluster.environment.items()
            if name not in {"SKEP_API", "SKEP_TOKEN", "SKEP_VC"}
        }

    def __call__(self, *words: str, code: int = 0) -> str:
        """Return what it printed; it must exit with `code`."""
        return self.both(*words, code=code)[0]

    def both(self, *words: str, code: int = 0) -> tuple[str, str]:
        """Return the same, and what it said on standard error."""
        done = subprocess.run(
            [*SKEP, *words],
            env=self.environment,
            cwd=self.workdir,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout, done.stderr

    def json(self, *words: str, code: int = 0) -> Any:
        """Return the one JSON document it printed."""
        return json.loads(self(*words, "--json", code=code))

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start the command and leave it running."""
        return subprocess.Popen([*SKEP, *words], env=self.environment, cwd=self.workdir, **options)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    home, workdir = tmp_path_factory.mktemp("own") / "home", tmp_path_factory.mktemp("work")
    (workdir / "jobs.yaml").write_text(JOBS)
    (workdir / "hello.py").write_text(HELLO)
    cluster = Embedded(home)
    try:
        cluster.up("--nodes", "1", "--gpus", "2", "--port", "0")
        yield Shell(cluster, workdir)
    finally:
        cluster.down()


def test_every_command_about_jobs(shell: Shell) -> None:
    out = shell("submit", "jobs.yaml", "-q")
    hello, broken = out.split()
    assert shell("wait", hello).startswith(f"{hello} succeeded after ")
    assert "exit status 3" in shell("wait", hello, broken, code=1)
    assert shell("logs", hello) == "hello world from rank 0\n"
    assert shell("logs", "-f", broken) == "about to fail\n"
    part = ("--tail", "1", "--since", "1h", "--grep", "WORLD", "-i")
    assert shell("logs", "-f", hello, *part) == "hello world from rank 0\n"
    assert f"{hello}\t" in shell("__complete", "logs", hello)
    states = {row["job"]: row["state"] for row in shell.json("ps", "-a")["jobs"]}
    assert (states[hello], states[broken]) == ("succeeded", "failed")
    table = shell("ps", "-a").splitlines()
    assert table[0].startswith("JOB")
    assert len(table) == 1 + len(states)
    assert shell.json("show", hello)["spec"]["workdir"] == str(shell.workdir)
    assert "exit status 3" in shell("show", broken)
    assert "exited-nonzero" in shell("why", broken)
    assert f"  {hello} " in shell("events", "--job", hello)
    assert "succeeded" in shell("events", "--job", hello)
    shell("cancel", hello, code=1)
    shell("cancel", "j99999", code=3)
    shell("show", "j99999", code=3)


def test_key_makes_one_job(shell: Shell) -> None:
    words = (
        "submit",
        "jobs.yaml",
        "--key",
        "once",
        "--set",
        'command=["true"]',
        "--set",
        "script=null",
        "--set",
        "args=[]",
        "-q",
    )
    assert shell(*words) == shell(*words)


def test_trace_has_every_service(shell: Shell) -> None:
    job = shell("run", "-d", "--", "true").strip()
    shell("wait", job)

    def services() -> set[str]:
        return {span["service"] for span in shell.json("trace", job)["spans"]}

    until(lambda: services() >= {"gateway", "admission", "allocator", "agent"}, "every span")
    assert shell("trace", job).startswith("trace ")


def test_wrong_spec_is_refused_here_and_there(shell: Shell) -> None:
    path = shell.workdir / "wrong.yaml"
    path.write_text("name: wrong\nscript: hello.py\nresources:\n  gpu: 1\n")
    assert "wrong.yaml:4: $.resources.gpu: " in shell.both("submit", "wrong.yaml", code=1)[1]
    path.write_text("name: wrong\nscript: hello.py\nresources:\n  gpus: 16\n")
    _, said = shell.both("submit", "wrong.yaml", code=1)
    assert "refused: wrong.yaml:" in said


def test_what_would_be_is_told_by_copies_and_not_done(shell: Shell) -> None:
    one = shell("run", "-d", "--gpus", "2", "--", "sleep", "600").strip()
    shell("wait", one, "--for", "started")
    other = shell("run", "-d", "--gpus", "2", "--", "true").strip()
    told = shell.json("why", other, "--what-if")["what_if"]
    urgent = next(each for each in told["options"] if each["reason"] == "with-a-priority")
    assert [each["job"] for each in urgent["outcome"]["others"]] == [one]
    (shell.workdir / "plan.yaml").write_text("name: x\nscript: hello.py\n")
    assert "it would wait, for how long is not known" in shell("plan", "plan.yaml")
    shell("cancel", one, other)
    assert shell.json("ledger")["trials"] == []
    shell("ledger", "--vc", "defualt", code=3)


def test_resources(shell: Shell) -> None:
    assert [gpu["index"] for gpu in shell.json("gpu", "ls")["gpus"]] == [0, 1]
    assert "node-1" in shell("node", "ls")
    shell("node", "drain", "node-1")
    until(lambda: shell.json("node", "ls")["nodes"][0]["state"] == "drained", "the drain")
    shell("node", "undrain", "node-1")
    until(lambda: shell.json("node", "ls")["nodes"][0]["state"] == "up", "the end of the drain")
    (shell.workdir / "vcs.yaml").write_text("vcs: {default: 2, extra: 1}")
    assert "default" in shell("vc", "plan", "vcs.yaml")
    shell("vc", "apply", "vcs.yaml")
    until(lambda: len(shell.json("vc", "ls")["vcs"]) == 2, "the virtual cluster")
    assert "node-1" in shell("vc", "tree")
    shell("gpu", "quarantine", "node-1", "1")
    until(lambda: shell.json("gpu", "ls")["gpus"][1]["quarantined"], "the quarantine")
    shell("gpu", "quarantine", "node-1", "1", "--undo")
    until(lambda: not shell.json("gpu", "ls")["gpus"][1]["quarantined"], "its end")
    # Two GPUs promised to one and one to another: of two there, each has one until this.
    (shell.workdir / "vcs.yaml").write_text("vcs: {default: 2}")
    shell("vc", "apply", "vcs.yaml")


def test_doctor_finds_nothing_wrong_with_the_cluster(shell: Shell) -> None:
    names = {"supervisor", "API", "token", "admission", "allocator", "process node-1"}
    checks = {check["name"]: check for check in shell.json("doctor")["checks"]}
    assert {checks[name]["level"] for name in names} == {"ok"}


def test_attached_run(shell: Shell) -> None:
    out, said = shell.both("run", "--vc", "default", "--workers", "2", "--", "hello.py", "all")
    assert sorted(out.splitlines()) == ["[0] hello all from rank 0", "[1] hello all from rank 1"]
    assert "succeeded after" in said
    shell("run", "--vc", "default", "--", "sh", "-c", "exit 7", code=1)


def test_attached_run_is_cancelled_from_the_terminal(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    run = shell.start(
        "run",
        "--vc",
        "default",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 1000",
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    heard = bytearray()
    answered = threading.Event()

    def listen() -> None:
        try:
            while piece := os.read(ours, 4096):
                heard.extend(piece)
                if b"begun" in heard and not answered.is_set():
                    answered.set()
                    run.send_signal(signal.SIGINT)
                if heard.rstrip().endswith(b"? [Y/n]"):
                    os.write(ours, b"y\n")
        except OSError:
            pass  # The other end of the terminal is closed.

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        code = run.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait(DEADLINE_S)
        code = None
    assert code == 130, heard.decode()
    thread.join(DEADLINE_S)
    os.close(ours)
    assert b"cancelled after" in heard


def test_events_are_followed_through_a_killed_gateway(shell: Shell) -> None:
    follower = shell.start("events", "-f", "--json", "--since", "0", stdout=subprocess.PIPE)
    assert follower.stdout is not None
    follower.stdout.readline()
    pid = shell.cluster.entry("gateway")["pid"]
    shell.cluster.kill("gateway")
    job = shell("run", "-d", "--vc", "default", "--", "true").strip()
    seen = ""
    while seen != job:
        seen = json.loads(follower.stdout.readline())["job"]
    follower.send_signal(signal.SIGINT)
    assert follower.wait(DEADLINE_S) == 130
    follower.stdout.close()
    shell.cluster.wait_back("gateway", pid)


def test_a_command_is_run_in_a_job(shell: Shell) -> None:
    job = shell("run", "-d", "--name", "host", "--", "sleep", "600").strip()
    shell("wait", "--for", "started", job)
    words = ("exec", "--json", job, "--", "sh", "-c", "echo $SKEP_JOB; echo err >&2; exit 7")
    done = json.loads(shell(*words, code=7))
    assert done == {
        "job": job,
        "rank": 0,
        "code": 7,
        "stdout": f"{job}\n",
        "stderr": "err\n",
        "cut_bytes": 0,
    }
    (shell.workdir / "given").write_text("x" * 100_000)
    assert shell("cp", "given", f"{job}:copied/").startswith(f"given -> {job}:copied/given")
    assert shell("cp", f"{job}:copied/given", "-") == "x" * 100_000
    assert (shell.workdir / "copied" / "given").read_text() == "x" * 100_000
    assert "no link is followed" in shell.both("cp", f"{job}:copied/given/x", "-", code=1)[1]
    assert "no rank 1" in shell.both("exec", "host", "--rank", "1", "--", "ls", code=125)[1]
    assert "not found in PATH" in shell.both("exec", job, "--", "no-such", code=125)[1]
    lasting = shell.start(
        "exec", job, "--", "sh", "-c", "echo on; sleep 600", stdout=PIPE, stderr=PIPE
    )
    assert lasting.stdout is not None
    assert lasting.stdout.readline() == b"on\n"
    shell("cancel", job)
    told = lasting.communicate(timeout=DEADLINE_S)[1].decode()
    assert (lasting.returncode, told) == (125, "skep exec: the attempt ended, and this with it\n")
    assert "has ended" in shell.both("exec", job, "--", "ls", code=125)[1]


def test_a_shell_outlives_its_people_and_a_gateway(shell: Shell) -> None:
    libs = Path(skep_job.__file__).parents[1]
    words = (*SKEP, "shell", "--env", f"PYTHONPATH={libs}", "--", "/bin/sh")
    first = Terminal(list(words), {**shell.environment, "PS1": "$ "})
    first.see(r"(j\d+) submitted")
    first.see(r"[$#] ")
    first.type("X=remem; echo ${X}bered; stty size\r")
    first.see(r"\nremembered")
    first.see("24 80")
    assert first.raw
    killed = shell.cluster.kill("gateway")
    first.see("the session is lost: .*; the shell goes on: skep attach j")
    assert first.end() == 4
    assert not first.was_raw, "the terminal is as it was"
    shell.cluster.wait_back("gateway", killed)
    second = Terminal([*SKEP, "attach", "shell"], shell.environment, rows=33)
    second.see("remembered")
    second.type("echo $X${X}bered; stty size\r")
    second.see("rememremembered")
    second.see("33 80")
    second.type("\x10\x11")
    second.see("goes on: skep attach")
    assert second.end() == 0
    third = Terminal([*SKEP, "attach", "shell"], shell.environment)
    third.type("exit 3\r")
    assert third.end() == 3, third.said
    assert not third.was_raw


def test_second_up_says_that_it_is_up(shell: Shell) -> None:
    assert "is up already" in shell.both("up")[1]
    assert shell.json("up")["already"] is True
    assert "`skep down` first" in shell.both("up", "--gpus", "3", code=1)[1]
    assert "0 GPUs" in shell.both("up", "--gpus", "0", "--home", "elsewhere", code=2)[1]


def test_cluster_and_its_jobs_outlive_a_killed_supervisor(shell: Shell) -> None:
    job = shell("run", "-d", "--vc", "default", "--", "sh", "-c", "sleep 1000").strip()
    shell("wait", "--for", "started", job)
    shell.cluster.kill("supervisor")
    assert shell("ps", "-q").split() == [job]
    assert "its supervisor" not in shell.both("ps")[1]
    _, said = shell.both("up")
    assert "stopping what a killed supervisor left: admission" in said
    row = shell.json("show", job)
    assert (row["state"], row["attempt"]) == ("running", 1)
    shell("cancel", job)
    shell("wait", job, code=1)


def test_down_keeps_jobs_in_memory_and_up_has_them_go_on(shell: Shell) -> None:
    command = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
    job = shell("run", "-d", "--vc", "default", "--", "sh", "-c", command).strip()
    shell("wait", "--for", "started", job)
    assert shell.json("down")["kept"] == [job]
    assert shell.json("down")["kept"] == [job]
    shell("up")
    row = until(
        lambda: (row := shell.json("show", job))["state"] == "running" and row, "its processes"
    )
    assert row["attempt"] == 1
    assert shell("logs", job).count("1\n2\n3\n") == 1
    shell("cancel", job)
    shell("wait", job, code=1)


def test_down_now_leaves_nothing_running_and_up_goes_on(shell: Shell) -> None:
    job = shell("run", "-d", "--vc", "default", "--", "sh", "-c", "sleep 1000").strip()
    shell("wait", "--for", "started", job)
    shell("down", "--now")
    assert shell.cluster.processes() == {}
    shell("ps", code=4)
    assert "supervisor" in {
        check["name"]
        for check in shell.json("doctor", code=1)["checks"]
        if check["level"] == "fail"
    }
    foreground = shell.start("up", "--foreground", stderr=subprocess.DEVNULL)
    until(lambda: all_ready(shell.cluster), "the cluster in the foreground")
    row = until(
        lambda: (row := shell.json("show", job))["state"] == "running" and row, "the second attempt"
    )
    assert row["attempt"] == 2
    foreground.send_signal(signal.SIGINT)
    assert foreground.wait(DEADLINE_S) == 0
    assert shell.cluster.processes() == {}


def test_wiped_cluster_is_gone(shell: Shell) -> None:
    home = shell.cluster.home
    (home / "mine.txt").write_text("not a cluster's")
    out, said = shell.both("down", "--wipe")
    assert "was not running" in out
    assert "holds more than a cluster and stays" in said
    assert [path.name for path in home.iterdir()] == ["mine.txt"]
    (home / "mine.txt").unlink()
    assert shell.json("down")["was_up"] is False
    assert "no cluster here" in shell.both("down")[1]
    shell("ps", code=4)


def all_ready(cluster: Embedded) -> bool:
    running = (folder.read_cluster(str(cluster.home)) or {}).get("supervisor") or {}
    entries = cluster.pids().values()
    return running.get("state") == "running" and all(one["state"] == "ready" for one in entries)
