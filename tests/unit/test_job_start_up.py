"""What is below a job's command is observed if it trains, and left alone otherwise."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep_job.process.rank_part import parts
from tests.support.job_agent import DEADLINE_S, LIBS, JobAgent, job_agent
from tests.unit.test_job_hooks import FAKE_TORCH, TRAIN

START_UP = LIBS / "skep_job" / "start_up"


class Command:
    """A folder with the small torch, and an agent that starts commands as the real one does."""

    def __init__(self, folder: Path, agent: JobAgent) -> None:
        self.folder = folder
        self.agent = agent
        for name, text in FAKE_TORCH.items():
            self.write(f"site/{name}", text)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def run(self, *argv: str | Path, **env: str) -> str:
        """Run a command to its end and until its last word has arrived; return what it printed."""
        path = f"{START_UP}:{self.folder / 'site'}"
        ours = {"PYTHONPATH": path, "SKEP_RANK": "1", "SKEP_WORLD": "2", "RANK": "1"}
        done = subprocess.run(
            [*map(str, argv)],
            env=self.agent.environment(**{**ours, "WORLD_SIZE": "2", **env}),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=self.folder,
        )
        assert done.stderr == ""
        self.agent.settle()
        return done.stdout

    def heard(self) -> list[tuple[int, int]]:
        """Return the rank and final count of every process that reported."""
        return [(bye["rank"], bye["steps"]) for bye in self.agent.of_type("bye")]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    with job_agent() as agent:
        yield Command(tmp_path, agent)


def test_a_script_below_a_shell_is_observed(command: Command) -> None:
    script = command.write("train.py", TRAIN)
    command.run("bash", "-c", f"cd / && {sys.executable} {script}; true")
    assert command.heard() == [(1, 20)]
    assert command.agent.of_type("can")[0]["can"] == ["suspend", "release", "rebind"]


def test_the_script_finds_what_it_would_have_found(command: Command) -> None:
    command.write("site/sitecustomize.py", "import builtins; builtins.theirs = __file__")
    script = command.write("look.py", "import sys; print(theirs, sys.modules['sitecustomize'])")
    printed = command.run(sys.executable, script)
    assert printed.count(str(command.folder / "site" / "sitecustomize.py")) == 2
    look = command.write("path.py", "import sys; print([p for p in sys.path if 'start_up' in p])")
    assert command.run(sys.executable, look).strip() == "[]"
    assert command.heard() == []


def test_an_error_in_their_own_start_up_stays_theirs(command: Command) -> None:
    command.write("site/sitecustomize.py", "raise SystemExit(5)")
    site = str(command.folder / "site")
    with_and_without = [
        subprocess.run(
            [sys.executable, "-c", "print('never')"],
            env=command.agent.environment(PYTHONPATH=path),
            capture_output=True,
            check=False,
        )
        for path in (site, f"{START_UP}:{site}")
    ]
    codes = [done.returncode for done in with_and_without]
    assert codes[0] == codes[1] != 0


def test_launchers_and_workers_are_not_heard(command: Command) -> None:
    script = command.write("train.py", TRAIN)
    launcher = command.write(
        "launcher.py",
        f"""
        import os, subprocess, sys
        import torch.optim.optimizer, torch.utils.data.dataloader
        if not os.fork():
            os._exit(0)
        os.wait()
        subprocess.run([sys.executable, "-c", "import torch.optim.optimizer"], check=True)
        subprocess.run([sys.executable, {str(script)!r}], check=True)
        """,
    )
    command.run(sys.executable, launcher)
    assert command.heard() == [(1, 20)]
    assert command.agent.accepted == 1


def test_a_fork_that_trains_is_the_one_that_reports(command: Command) -> None:
    script = command.write(
        "forks.py",
        f"""
        import os
        from torch.optim.optimizer import Optimizer
        child = os.fork()
        if child:
            print(child)
            os.waitpid(child, 0)
            raise SystemExit
        {textwrap.dedent(TRAIN).replace(chr(10), chr(10) + "        ")}
        """,
    )
    printed = command.run(sys.executable, script)
    assert [hello["pid"] for hello in command.agent.of_type("hello")] == [int(printed)]
    assert command.heard() == [(1, 20)]


def test_of_several_processes_of_a_rank_each_says_which_it_is(command: Command) -> None:
    script = command.write("train.py", TRAIN)
    for rank in ("2", "3"):
        command.run(sys.executable, script, RANK=rank, WORLD_SIZE="4")
    assert command.heard() == [(1, 20), (1, 20)]
    said = [(one.get("part", 0), one["parts"]) for one in command.agent.of_type("hello")]
    assert said == [(0, 2), (1, 2)]
    assert all("suspend" in one["can"] for one in command.agent.of_type("can"))
    assert {one.get("part", 0) for one in command.agent.of_type("bye")} == {0, 1}


def test_a_script_may_ask_for_more_before_its_first_step(command: Command) -> None:
    script = command.write(
        "asks.py",
        f"""
        import os, skep_job, torch.optim.optimizer
        from skep_job.observe.observation import boot
        booted = boot(os.environ)
        assert skep_job.current() is booted, booted
        {textwrap.dedent(TRAIN).replace(chr(10), chr(10) + "        ")}
        """,
    )
    command.run(sys.executable, script)
    assert command.heard() == [(1, 20)]
    assert command.agent.accepted == 1


def test_one_of_several_processes_of_a_rank_is_one_of_all_that_train(command: Command) -> None:
    script = command.write(
        "asks.py",
        f"""
        import os
        from skep_job.observe.observation import boot
        settings = boot(os.environ).settings
        print(settings.process, settings.processes, settings.host_bytes)
        {textwrap.dedent(TRAIN).replace(chr(10), chr(10) + "        ")}
        """,
    )
    printed = command.run(sys.executable, script, RANK="3", WORLD_SIZE="4")
    assert printed.split() == ["3", "4", "None"]
    assert command.heard() == [(1, 20)]


def test_under_skep_job_itself_a_process_is_observed_once(command: Command) -> None:
    script = command.write("train.py", TRAIN)
    command.run(sys.executable, "-m", "skep_job", script)
    assert command.heard() == [(1, 20)]


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SKEP_WORLD": "2"}, (0, 1)),
        ({"RANK": "5", "WORLD_SIZE": "8", "SKEP_WORLD": "2"}, (1, 4)),
        ({"RANK": "3", "WORLD_SIZE": "4", "SKEP_WORLD": "1"}, (3, 4)),
        ({"RANK": "3", "WORLD_SIZE": "5", "SKEP_WORLD": "2"}, (0, 1)),
        ({"RANK": "x", "WORLD_SIZE": "4", "SKEP_WORLD": "0"}, (0, 1)),
    ],
)
def test_the_parts_of_a_rank(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert parts(environ) == expected
