"""Drives running jobs through suspensions, as an agent does, and keeps what they print."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.job_agent import DEADLINE_S, LIBS, JobAgent, Message, job_agent

JOBS = Path(__file__).parents[1] / "e2e" / "jobs"
MARGIN = 5
"""Mini-batches between what the slowest rank has told and the first clock that is tried."""


class Driver:
    """Some ranks of one job under one agent, each of them of so many processes."""

    def __init__(self, agent: JobAgent, ranks: int = 1, parts: int = 1) -> None:
        self.agent = agent
        self.ranks, self.voices = ranks, ranks * parts
        self.processes: list[subprocess.Popen[str]] = []
        self._order = 0

    def start(self, arguments: Sequence[object], **env: str) -> None:
        """Start every rank of `python -m skep_job` with `arguments`."""
        for rank in range(self.ranks):
            more = {"RANK": str(rank), "WORLD_SIZE": str(self.ranks)} if self.ranks > 1 else {}
            command = [sys.executable, "-m", "skep_job", *map(str, arguments)]
            self._start(command, {**more, **env})

    def start_command(self, command: Sequence[object], **env: str) -> None:
        """Start a plain command, whose Python processes watch for training."""
        ours = {"PYTHONPATH": str(LIBS / "skep_job" / "start_up"), "SKEP_RANK": "0"}
        self._start([*map(str, command)], {**ours, "SKEP_WORLD": "1", **env})

    def _start(self, command: list[str], env: dict[str, str]) -> None:
        process = subprocess.Popen(
            command,
            env=self.agent.environment(**{"SKEP_REPORT_S": "0.05", **env}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)

    def ask(self, kind: str, **fields: object) -> list[Message]:
        """Send an order, and return every process's answer to it."""
        self._order += 1
        self.agent.order(kind, self._order, **fields)
        return self.answers()

    def answers(self, kind: str | None = None) -> list[Message]:
        """Return the first answer of every process to the latest order, once all have come."""

        def found(agent: JobAgent) -> dict[tuple[int, int], Message]:
            mine: dict[tuple[int, int], Message] = {}
            for message in list(agent.received):
                if message.get("order") == self._order and kind in (None, message["type"]):
                    mine.setdefault((message["rank"], message.get("part", 0)), message)
            return mine

        def over(agent: JobAgent) -> bool:
            return len(found(agent)) == self.voices or self._died(agent)

        self.agent.wait_until(over)
        if len(found(self.agent)) < self.voices:
            said = [process.communicate()[1] for process in self.processes]
            raise AssertionError(f"a rank ended instead of answering: {said}")
        return [answer for _, answer in sorted(found(self.agent).items())]

    def _died(self, agent: JobAgent) -> bool:
        """Return whether a rank has ended: then its last connection has, too."""
        return (
            agent.accepted > 0
            and agent.open_connections < self.voices
            and any(process.poll() is not None for process in self.processes)
        )

    def suspend(self, after: int) -> list[Message]:
        """Suspend all ranks after the same mini-batch, at least the `after`-th: the two phases."""
        step, margin = after, MARGIN
        while True:
            answers = self.ask("suspend", step=step)
            if all(answer["type"] == "suspended" for answer in answers):
                assert len({answer["step"] for answer in answers}) == 1
                assert step in (0, answers[0]["step"])
                return answers
            assert {answer["type"] for answer in answers} <= {"suspended", "past"}, answers
            margin *= 2
            step = max(answer["step"] for answer in answers) + margin if self.voices > 1 else 0
            self.ask("resume")

    def wait_for_boundaries(self) -> None:
        """Return once every process has said that it can be suspended."""
        self.agent.wait_for(self.voices, "can")

    def ends(self) -> list[str]:
        """Wait for every rank to succeed; return what each printed."""
        printed = []
        for process in self.processes:
            out, err = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, err
            assert "skep_job" not in err, err
            printed.append(out)
        return printed

    def kill(self) -> None:
        """End what still runs."""
        for process in self.processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def driver(ranks: int = 1, parts: int = 1) -> Iterator[Driver]:
    """Yield a driver with an agent of its own; what it started is gone afterwards."""
    with job_agent() as agent:
        it = Driver(agent, ranks, parts)
        try:
            yield it
        finally:
            it.kill()
