"""`skep exec`, `skep attach`, `skep shell` and `skep port-forward`: people in running jobs."""

from __future__ import annotations

import os
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from typing import Any

from skep_services.cli import exits, session
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, job_argument, print_json, say

NOT_RUN = 125
"""The exit code of `skep exec` where the command did not run to its end: others are its own."""
CAPTURED_BYTES_MAX = 8 * 1024 * 1024
"""What `exec --json` keeps of each output; what is beyond it is counted."""
DETACH_HELP = "Ctrl-p Ctrl-q leaves it as it is: `skep attach` comes back"


def options_exec(parser: ArgumentParser) -> None:
    """Add what `exec` takes."""
    parser.usage = "skep exec [--rank N] [--terminal | --no-terminal] JOB -- COMMAND [ARG...]"
    parser.epilog = (
        "The command runs beside the rank's own process: as its account, in its folder, with its\n"
        "variables and GPUs. It ends with the attempt, and when this command is ended.\n\n"
        "exit codes: the command's own (128 and the number of a signal that ended it);\n"
        f"  {NOT_RUN}  it was not run, or the session was lost"
    )
    job_argument(parser)
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="what to run")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="which rank (default 0)")
    parser.add_argument(
        "--terminal",
        action=BooleanOptionalAction,
        default=None,
        help="give it a terminal (default: if this is one); without one its output and its errors "
        "stay apart",
    )


def run_exec(arguments: Namespace) -> int:
    """Run a command in a job, and return its exit code.

    With `--json` one object with the exit code, the output and the errors is printed.

    Raises:
        CommandError: It was not run, or the session was lost: always with the code NOT_RUN.
    """
    try:
        return _exec(arguments)
    except CommandError as error:
        code = error.code if error.code == exits.USAGE and not arguments.command else NOT_RUN
        raise CommandError(code, error.text, str(error.error["reason"])) from None


def _exec(arguments: Namespace) -> int:
    if not arguments.command:
        raise CommandError(exits.USAGE, "run what? skep exec JOB -- COMMAND [ARG...]")
    if arguments.rank < 0:
        raise CommandError(exits.USAGE, f"--rank {arguments.rank}: a number from 0")
    terminal = arguments.terminal
    if terminal is None:
        terminal = session.is_terminal() and not arguments.json
    if terminal and arguments.json:
        raise CommandError(exits.USAGE, "--json is for a command without a terminal")
    wanted = {"what": "exec", "argv": arguments.command, "rank": arguments.rank}
    client = client_of(arguments)
    if not arguments.json:
        return _run(client, arguments.job, {**wanted, **_as_terminal(terminal)}).code
    captured = Captured()
    ended = session.Session(client, arguments.job, wanted, write=captured.write).run()
    print_json(
        {"job": arguments.job, "rank": arguments.rank, "code": ended.code, **captured.told()}
    )
    return ended.code


class Captured:
    """What a command printed, for JSON."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._kept = {session.STDOUT: bytearray(), session.STDERR: bytearray()}
        self._sizes = {session.STDOUT: 0, session.STDERR: 0}

    def write(self, number: int, data: bytes) -> int:
        """Keep some output; return how much of it was taken."""
        room = CAPTURED_BYTES_MAX - len(self._kept[number])
        self._kept[number] += data[:room]
        self._sizes[number] += len(data)
        return len(data)

    def told(self) -> dict[str, Any]:
        """Return it as it is printed."""
        names = {session.STDOUT: "stdout", session.STDERR: "stderr"}
        return {
            **{names[each]: kept.decode("utf-8", "replace") for each, kept in self._kept.items()},
            "cut_bytes": sum(self._sizes[each] - len(kept) for each, kept in self._kept.items()),
        }


def _as_terminal(terminal: bool) -> dict[str, Any]:
    if not terminal:
        return {}
    rows, columns = session.size()
    term = os.environ.get("TERM", "")[:64]
    return {"terminal": True, "rows": rows, "columns": columns, "term": term}


def _run(client: Client, job: str, wanted: dict[str, Any], escape: bytes = b"") -> session.Ended:
    return session.Session(client, job, wanted, escape=escape).run()


# --- attach and shell -----------------------------------------------------------------------------


def options_attach(parser: ArgumentParser) -> None:
    """Add what `attach` takes."""
    parser.epilog = f"{DETACH_HELP}.\n\n{exits.HELP}"
    job_argument(parser)


def run_attach(arguments: Namespace) -> int:
    """Come back to the terminal of a job that is a shell.

    Returns:
        The exit code: the shell's if it ended, 0 if the person left it.
    """
    client = client_of(arguments)
    row = client.get(f"/v1/jobs/{quote(arguments.job)}")
    return attached(client, row["job"], as_json=arguments.json)


def attached(client: Client, job: str, *, as_json: bool) -> int:
    """Attach this terminal to a job's, until one of them ends it; return the exit code.

    Args:
        client: The gateway.
        job: The job's id.
        as_json: Say at the end in JSON how it ended.

    Raises:
        CommandError: This is no terminal, the job is no shell, or the session was lost.
    """
    if not session.is_terminal():
        text = f"this is no terminal: `skep exec {job} -- COMMAND` needs none"
        raise CommandError(exits.USAGE, text)
    wanted = {"what": "attach", **_as_terminal(True)}
    ended = _run(client, job, wanted, session.ESCAPE)
    if as_json:
        print_json({"job": job, "detached": ended.detached, "code": ended.code})
    elif ended.detached:
        say(f"\r\n{job} goes on: skep attach {job}")
    return ended.code


COMMANDS = {"exec": Command(options_exec, run_exec), "attach": Command(options_attach, run_attach)}
