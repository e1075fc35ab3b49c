"""`skep exec`, `skep attach`, `skep shell` and `skep port-forward`: people in running jobs."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from typing import Any

from skep_services.cli import exits, run, session, specs, submit, templates
from skep_services.cli.captured import Captured
from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import ended_text, gpus
from skep_services.cli.options import Command, client_of, job_argument, print_json, say

NOT_RUN = 125
"""The exit code of `skep exec` where the command did not run to its end: others are its own."""
HOLDER = ("python3", "-m", "skep_job.terminal")
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


def attached(client: Client, job: str, *, as_json: bool, fresh: bool = False) -> int:
    """Attach this terminal to a job's, until one of them ends it; return the exit code.

    Args:
        client: The gateway.
        job: The job's id.
        as_json: Say at the end in JSON how it ended.
        fresh: It has been started just now, and may need a moment.

    Raises:
        CommandError: This is no terminal, the job is no shell, or the session was lost.
    """
    if not session.is_terminal():
        text = f"this is no terminal: `skep exec {job} -- COMMAND` needs none"
        raise CommandError(exits.USAGE, text)
    wanted = {"what": "attach", "fresh": fresh, **_as_terminal(True)}
    ended = _run(client, job, wanted, session.ESCAPE)
    if as_json:
        print_json({"job": job, "detached": ended.detached, "code": ended.code})
    elif ended.detached:
        say(f"\r\n{job} goes on: skep attach {job}")
    return ended.code


def options_shell(parser: ArgumentParser) -> None:
    """Add what `shell` takes."""
    parser.usage = "skep shell [--gpus N] [--name NAME] [...] [-- COMMAND [ARG...]]"
    parser.epilog = (
        "The shell is a job: it goes on when this command or its connection ends.\n"
        f"{DETACH_HELP}.\n"
        "It begins in this folder. Without a COMMAND it is the account's shell.\n\n" + exits.HELP
    )
    parser.add_argument(
        "--gpus", type=gpus, metavar="N", help="GPUs, or a share such as 0.5 (default 1)"
    )
    templates.option_template(parser)
    parser.add_argument("--gpu-type", metavar="TYPE", help="only GPUs of this type")
    parser.add_argument("--name", default="shell", help="the job's name (default shell)")
    parser.add_argument("--vc", help="virtual cluster")
    parser.add_argument("--time", metavar="TIME", help="limit, such as 90s, 15m, 2h")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable, or pass on the one of this shell (repeatable)",
    )
    parser.add_argument("-d", "--detach", action="store_true", help="submit only, and print the id")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="what to run in its place")


def run_shell(arguments: Namespace) -> int:
    """Submit a job that is a shell, and attach to it once it runs.

    Returns:
        The exit code: the shell's if it ended, 0 if the person left it.

    Raises:
        CommandError: This is no terminal, or the cluster refuses the job.
    """
    if not arguments.detach and not session.is_terminal():
        raise CommandError(exits.USAGE, "this is no terminal: with -d the shell waits for `attach`")
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    document = specs.Document("the command line", _shell_spec(arguments, client), {})
    submit.check([document])
    result = submit.send(client, document, None)
    if result["accepted"] is False or arguments.detach:
        if arguments.json:
            print_json(result)
        else:
            submit.tell(result, quiet=arguments.detach)
        return exits.FAILED if result["accepted"] is False else exits.OK
    job = str(result["job"])
    say(f"{job} submitted; {DETACH_HELP}")
    try:
        row = run.wait_started(client, job)
    except KeyboardInterrupt:
        client.close()
        return run.interrupted(client, job, ask=True)
    if row["state"] not in ("running", "suspended"):
        say(ended_text(row))
        return exits.FAILED
    return attached(client, job, as_json=arguments.json, fresh=True)


def _shell_spec(arguments: Namespace, client: Client) -> dict[str, Any]:
    words = arguments.command
    tree: dict[str, Any] = {
        "name": arguments.name,
        "vc": arguments.vc or submit.default_vc(client),
        "command": [*HOLDER, "--", *words] if words else list(HOLDER),
        **templates.resources(arguments),
        "env": {"TERM": os.environ.get("TERM", "xterm"), **dict(map(run.variable, arguments.env))},
    }
    if arguments.time:
        tree["limits"] = {"time": arguments.time}
    if arguments.template:
        templates.begin(tree, arguments.template, client)
    specs.settle_paths(tree)
    return tree


# --- ports ----------------------------------------------------------------------------------------


def options_forward(parser: ArgumentParser) -> None:
    """Add what `port-forward` takes."""
    parser.usage = "skep port-forward [--rank N] JOB PORT[:LOCAL] [PORT[:LOCAL]...]"
    parser.epilog = (
        "Connections to 127.0.0.1:LOCAL go to the port on the machine of the rank, as the job's\n"
        "own processes reach it. Ctrl-C ends it.\n\n" + exits.HELP
    )
    job_argument(parser)
    parser.add_argument("ports", nargs="+", metavar="PORT[:LOCAL]", help="from 1 to 65535")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="which rank (default 0)")


def run_forward(arguments: Namespace) -> int:
    """Carry connections to ports of a job, until this command is interrupted.

    With `--json` it prints one line with the ports once they listen.

    Returns:
        The exit code: 130 after an interrupt.

    Raises:
        CommandError: There is no such job, or a port is none, or is taken here.
    """
    from skep_services.cli import forwarding

    pairs = [forwarding.ports_of(text) for text in arguments.ports]
    if arguments.rank < 0:
        raise CommandError(exits.USAGE, f"--rank {arguments.rank}: a number from 0")
    client = client_of(arguments)
    row = client.get(f"/v1/jobs/{quote(arguments.job)}")
    forwarder = forwarding.Forwarder(client, row["job"], arguments.rank)
    listening = [(port, forwarder.listen(port, local)) for port, local in pairs]
    if arguments.json:
        print_json({"job": row["job"], "ports": [{"port": p, "local": at} for p, at in listening]})
        sys.stdout.flush()
    for port, local in listening:
        say(f"127.0.0.1:{local} is port {port} of {row['job']}")
    forwarder.serve()
    return exits.OK


COMMANDS = {
    "shell": Command(options_shell, run_shell, takes_command=True),
    "port-forward": Command(options_forward, run_forward),
    "exec": Command(options_exec, run_exec, takes_command=True),
    "attach": Command(options_attach, run_attach),
}
