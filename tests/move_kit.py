"""Real training processes that are checkpointed, moved and killed at mini-batches of choice."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skep_job.link.frames import encode
from tests.support.job_agent import DEADLINE_S, JobAgent, environment

SCRIPT = Path(__file__).parent / "e2e" / "jobs" / "movable.py"
TOKEN = "sesame"


class Job:
    """One process of the script, under an agent of its own or under none."""

    def __init__(
        self,
        arguments: list[str],
        agent: JobAgent | None = None,
        script: Path = SCRIPT,
        env: dict[str, str] | None = None,
    ) -> None:
        base = agent.environment() if agent is not None else environment()
        self.agent = agent
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=base | (env or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hold(self, step: int) -> None:
        """Return once the job waits within this mini-batch."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if self.lines[-1] == f"holding {step}":
                return
        raise AssertionError(self.lines[-3:], self.finish())

    def go(self, word: str = "go") -> None:
        """Have it go on from there."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def order(self, **message: object) -> None:
        """Give an order within this mini-batch, and let it go on once the order is due."""
        self.tell(**message)
        self.go("order")

    def tell(self, **message: object) -> None:
        """Give an order."""
        assert self.agent is not None
        self.agent.tell(encode(message))

    def answer(self, kind: str, **fields: object) -> dict[str, Any]:
        """Return the message of this type, which has to be the only one, once it is there."""
        assert self.agent is not None
        self.agent.wait_until(lambda agent: agent.of_type(kind, **fields) or self.is_over())
        (message,) = self.agent.of_type(kind, **fields)
        return message

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return status and standard error."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        self.lines += out.splitlines()
        return self.process.returncode, err

    def trained(self) -> list[str]:
        """Return what it said about its training: losses, checks, the end."""
        return [line for line in self.lines if not line.startswith("holding")]


@contextlib.contextmanager
def job(
    arguments: list[str],
    agent: JobAgent | None = None,
    script: Path = SCRIPT,
    env: dict[str, str] | None = None,
) -> Iterator[Job]:
    """Yield a job, and leave none of it behind."""
    made = Job(arguments, agent, script, env)
    try:
        yield made
    finally:
        if not made.is_over():
            made.process.kill()
        for pipe in (made.process.stdin, made.process.stdout, made.process.stderr):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        made.process.wait()


def uninterrupted(arguments: list[str]) -> list[str]:
    """Return what a run without Skep says, from beginning to end."""
    with job(arguments) as alone:
        status, err = alone.finish()
        assert (status, err) == (0, "")
        return alone.trained()


def after(lines: list[str], step: int) -> list[str]:
    """Return the lines that follow those of a mini-batch."""
    (index,) = (i for i, line in enumerate(lines) if line.startswith(f"loss {step} "))
    return lines[index + 1 :]


def environment_of(folder: Path, attempt: int, *, successor: bool = False) -> dict[str, str]:
    """Return what names the checkpoints and the attempt."""
    awaits = {"SKEP_AWAITS": TOKEN, "SKEP_HOST": "127.0.0.1"} if successor else {}
    return {"SKEP_CHECKPOINTS": str(folder), "SKEP_GEN": str(attempt), **awaits}
