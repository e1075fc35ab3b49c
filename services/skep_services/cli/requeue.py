"""`skep requeue`: ended jobs again, each as a new one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits
from skep_services.cli.client import quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say


def options_requeue(parser: ArgumentParser) -> None:
    """Add what `requeue` takes."""
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="ended jobs, by id or unique name")
    parser.add_argument(
        "--hold", action="store_true", help="the new jobs do not start before `skep release`"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the new ids only")


def run_requeue(arguments: Namespace) -> int:
    """Submit ended jobs again.

    Returns:
        The exit code: the largest among the jobs'.

    Raises:
        CommandError: The cluster cannot be reached.
    """
    client = client_of(arguments)
    results: list[dict[str, Any]] = []
    worst = exits.OK
    for job in dict.fromkeys(arguments.jobs):
        try:
            options = {"hold": True} if arguments.hold else {}
            answer = client.post(f"/v1/jobs/{quote(job)}/requeue", options)
        except CommandError as error:
            if error.code == exits.UNREACHABLE:
                raise
            answer = {"of": job, "job": None, "accepted": False, "error": error.error}
            worst = max(worst, error.code)
        results.append(answer)
        if not arguments.json:
            _tell(answer, quiet=arguments.quiet)
    if arguments.json:
        print_json({"jobs": results})
    return worst


def _tell(answer: dict[str, Any], *, quiet: bool) -> None:
    if answer["accepted"] is False:
        say(f"{answer['of']}: {answer['error']['text']}")
    elif quiet:
        print(answer["job"], flush=True)
    else:
        print(f"{answer['job']} is {answer['of']} again", flush=True)


COMMANDS = {"requeue": Command(options_requeue, run_requeue)}
