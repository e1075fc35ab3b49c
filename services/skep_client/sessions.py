"""A command in a running job: a session, as `skep exec` has it, without a terminal."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from skep_client.errors import BadCallError, SessionError, UnreachableError
from skep_services.cli import exits, session
from skep_services.cli.captured import Captured
from skep_services.cli.client import Client, Target
from skep_services.cli.connection import LostError
from skep_services.cli.exits import CommandError

SESSION_LOST = "session-lost"


@dataclass(frozen=True)
class Executed:
    """How a command in a job ended, and what it printed: of each output the first 8 MiB."""

    job: str
    code: int
    """128 and the number of the signal, if one ended it."""
    stdout: str
    stderr: str
    cut_bytes: int = 0
    """What was printed beyond the first 8 MiB."""


def execute(
    target: Target, patience_s: float, job: str, command: Sequence[str], rank: int, stdin: bytes
) -> Executed:
    """Run a command in a job, and wait for its end.

    Args:
        target: The gateway.
        patience_s: How long it may be away before the command begins (seconds).
        job: The job's id or name.
        command: The program and its arguments.
        rank: The rank beside which it runs.
        stdin: What it reads.

    Raises:
        BadCallError: The command or the rank is none.
        UnreachableError: The gateway is away.
        SessionError: The command was not run to its end.
    """
    if isinstance(command, str) or not command or not all(isinstance(w, str) for w in command):
        text = f"not a command: {command!r:.80} (give a list, such as ['nvidia-smi', '-L'])"
        raise BadCallError(text)
    if not isinstance(rank, int) or rank < 0:
        text = f"rank={rank!r}: a whole number, 0 or more"
        raise BadCallError(text)
    captured = Captured()
    wanted = {"what": "exec", "argv": list(command), "rank": rank}
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        try:
            client = Client(target, patience_s)
            ended = session.Session(
                client, job, wanted, stdin=given.fileno(), write=captured.write
            ).run()
        except CommandError as error:
            reason = str(error.error["reason"])
            if error.code == exits.UNREACHABLE and reason != SESSION_LOST:
                raise UnreachableError(reason, error.text) from None
            raise SessionError(reason, error.text) from None
        except (ConnectionError, TimeoutError, LostError) as error:
            raise SessionError(SESSION_LOST, f"the session is lost: {error}") from None
    return Executed(job=job, code=ended.code, **captured.told())
