"""`skep run`: a command as a job, attached to this terminal."""

from __future__ import annotations

import os
import signal
import sys
from argparse import REMAINDER, ArgumentParser, BooleanOptionalAction, Namespace
from types import FrameType
from typing import Any

from skep_services.cli import (
    code,
    exits,
    files,
    images,
    logs,
    render,
    run_array,
    specs,
    stdin,
    submit,
    templates,
)
from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.job_table import why_of
from skep_services.cli.jobs import (
    ENDED,
    POLL_MARGIN_S,
    ask_cancel,
    ended_text,
    gpus,
    poll,
    positive,
    reached,
)
from skep_services.cli.options import Command, client_of, print_json, say

STATUS_AFTER_S = 1
"""A job that starts within a second needs no words about why it waits."""

STATUS_EVERY_S = 5
CANCEL_WITHIN_S = 60
"""How long to wait for the end of a job that was cancelled: twice what an agent gives it."""


class TerminatedError(KeyboardInterrupt):
    """This command was asked to end by SIGTERM or SIGHUP: no person is there to answer."""


def options_run(parser: ArgumentParser) -> None:
    """Add what `run` takes."""
    parser.usage = "skep run [--gpus N] [--workers N] [--name NAME] [...] -- COMMAND [ARG...]"
    parser.epilog = (
        "A COMMAND that ends in .py is run observed (python -m skep_job): its mini-batches are\n"
        "seen without any change to it. Every other command is run as it is.\n\n" + exits.HELP
    )
    parser.add_argument(
        "--gpus",
        type=gpus,
        metavar="N",
        help="GPUs per worker, or a share such as 0.5 (default: 1)",
    )
    parser.add_argument("--workers", type=positive, metavar="N", help="processes (default: 1)")
    parser.add_argument("--gpu-type", metavar="TYPE", help="only GPUs of this type")
    parser.add_argument("--name", help="the job's name (default: the command's)")
    parser.add_argument("--vc", help="virtual cluster")
    parser.add_argument("--time", metavar="TIME", help="limit, such as 90s, 15m, 2h")
    parser.add_argument(
        "--retries", type=int, metavar="N", help="attempts after failure (default: 0)"
    )
    parser.add_argument("--priority", type=int, metavar="N", help="0 to 1000 (default: 0)")
    templates.option_template(parser)
    parser.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="[KIND:]JOB",
        help="start once that job has succeeded (ok:, the default), ended (any:) or failed (fail:);"
        " repeatable",
    )
    parser.add_argument("--begin", metavar="TIME", help="start no earlier: 2h, or a time with zone")
    parser.add_argument("--hold", action="store_true", help="start no earlier than `skep release`")
    parser.add_argument(
        "--array", metavar="TASKS", help="run it as the tasks of an array, such as 0-9, 0-99%%8"
    )
    parser.add_argument(
        "--opportunistic", action="store_true", help="run on what is idle, and yield"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable, or pass on the one of this shell (repeatable)",
    )
    parser.add_argument(
        "--distributed",
        action=BooleanOptionalAction,
        help="set RANK, WORLD_SIZE and the like, as torchrun does (default: with several workers)",
    )
    parser.add_argument(
        "--python",
        metavar="PYTHON",
        help="interpreter of the job: a path, or a name in PATH (default: of the active "
        "environment, by VIRTUAL_ENV, then CONDA_PREFIX; else the cluster's)",
    )
    parser.add_argument(
        "--no-check", action="store_true", help="do not look for its files on this machine"
    )
    images.options_image(parser)
    code.options_code(parser)
    stdin.options_stdin(parser)
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="PATH",
        help="keep this path of the job's folder when it ends (with --code; repeatable)",
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="NAME[:PLACE][:ro|:rw]",
        help="a volume of `skep volumes`, perhaps at this place (repeatable)",
    )
    parser.add_argument(
        "--resume",
        action="append",
        default=[],
        metavar="auto|PATTERN",
        help="have a later attempt go on from the newest checkpoint: auto, of transformers or "
        "Lightning; or one that is named so, in SKEP_RESUME_FROM (repeatable)",
    )
    parser.add_argument("--rank", default="all", help="whose output to print (default: all)")
    parser.add_argument("-d", "--detach", action="store_true", help="submit only, and print the id")
    parser.add_argument("command", nargs=REMAINDER, metavar="COMMAND", help="what to run")


def run_run(arguments: Namespace) -> int:
    """Submit a command, print its output here, and return how it ended: 0 only for success."""
    if not arguments.detach:
        run_array.check(arguments.array, arguments.rank)
    tree = spec_of(arguments)
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    if "vc" not in tree:
        tree["vc"] = submit.default_vc(client)
    if arguments.template:
        templates.begin(tree, arguments.template, client)
        complete(tree, arguments)
    if not arguments.detach:
        logs.check_rank(arguments.rank, _workers(tree))
    document = specs.Document("the command line", tree, {})
    with stdin.kept(tree, arguments):
        code.settle(tree, arguments)
        submit.check([document])
        if not arguments.no_check:
            files.check_files([document], local=client.target.local())
        code.send(client, [tree], arguments)
    result = submit.send(client, document, None)
    if result["accepted"] is False or arguments.detach:
        if arguments.json:
            print_json(result)
        else:
            submit.tell(result, quiet=arguments.detach)
        return exits.FAILED if result["accepted"] is False else exits.OK
    job = str(result["job"])
    say(f"{job} {tree['name']} submitted")
    end_on_signals()
    return attached(client, job, arguments, array=arguments.array is not None)


def end_on_signals() -> None:
    """Have SIGTERM and SIGHUP cancel the attached job, as an interrupt does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)


def spec_of(arguments: Namespace) -> dict[str, Any]:
    """Return the spec the command line describes.

    Raises:
        CommandError: There is no command, or this shell lacks a program or variable that is named.
    """
    words = list(arguments.command)
    if words[:1] == ["--"]:
        del words[0]
    if not words and not arguments.template:
        raise CommandError(exits.USAGE, "run what? skep run [options] -- COMMAND [ARG...]")
    tree: dict[str, Any] = templates.resources(arguments)
    if words and words[0].endswith(".py"):
        tree["script"] = words[0]
        tree["args"] = words[1:]
    elif words:
        tree["command"] = words
    if words or arguments.name:
        tree["name"] = arguments.name or os.path.basename(words[0]) or "run"
    if runtime := images.runtime_of(arguments):
        tree["runtime"] = runtime
    if not arguments.template:
        complete(tree, arguments)
    elif arguments.python:
        own = arguments.environment or runtime
        tree["python"] = (
            arguments.python if own else files.interpreter(arguments.python, os.environ)
        )
    limits = {"time": arguments.time, "retries": arguments.retries}
    if arguments.distributed is not None:
        tree["distributed"] = arguments.distributed
    given = {
        "vc": arguments.vc,
        "limits": {name: value for name, value in limits.items() if value is not None},
        "after": after_of(arguments.after),
        "begin": arguments.begin,
        "hold": arguments.hold,
        "service_class": "opportunistic" if arguments.opportunistic else "",
        "outputs": arguments.output,
        "volumes": volumes_of(arguments.volume),
        "env": dict(map(variable, arguments.env)),
        "resume": resume_of(arguments.resume),
    }
    tree.update({name: value for name, value in given.items() if value})
    for key in ("array", "priority"):
        if (value := getattr(arguments, key)) is not None:
            tree[key] = value
    return tree


def complete(tree: dict[str, Any], arguments: Namespace) -> None:
    """Fill in what neither the command line nor a template says: name, folder and interpreter.

    Args:
        tree: The spec; it is changed.
        arguments: The command line.
    """
    tree.setdefault("name", arguments.template or "run")
    if not arguments.code:
        specs.settle_paths(tree)
    if "python" in tree:
        return
    python = arguments.python
    # The shell's environment is not in an image, nor in one that nodes build.
    if not (arguments.environment or {"environment", "runtime"} & tree.keys()):
        python = files.interpreter(python, os.environ)
    if python:
        tree["python"] = python


def _workers(tree: dict[str, Any]) -> int:
    """Return how many workers a spec asks for."""
    workers = (tree.get("resources") or {}).get("workers", 1)
    return workers if isinstance(workers, int) else 1


def after_of(words: list[str]) -> dict[str, list[str]]:
    """Return what a job waits for, of words such as `j3`, `ok:j3`, `any:train` or `fail:j3`."""
    after: dict[str, list[str]] = {}
    for word in words:
        kind, mark, job = word.partition(":")
        known = mark and kind in ("ok", "any", "fail")
        after.setdefault(kind if known else "ok", []).append(job if known else word)
    return after


def volumes_of(words: list[str]) -> dict[str, str]:
    """Return the volumes of words such as `datasets`, `datasets:/data` or `datasets:/data:ro`.

    Raises:
        CommandError: One is named twice.
    """
    volumes: dict[str, str] = {}
    for word in words:
        name, mark, rest = word.partition(":")
        if name in volumes:
            raise CommandError(exits.USAGE, f"--volume {word}: {name} is given twice")
        volumes[name] = f":{rest}" if mark and not rest.startswith("/") else rest
    return volumes


def resume_of(words: list[str]) -> dict[str, Any]:
    """Return how a later attempt goes on, of `auto` and patterns such as `ckpt/step_*`."""
    found = [word for word in words if word != "auto"]
    auto = {"auto": True} if len(found) < len(words) else {}
    return {**auto, **({"find": found} if found else {})}


def variable(text: str) -> tuple[str, str]:
    """Return the variable of `NAME=VALUE`, or that of this shell called so.

    Raises:
        CommandError: This shell has none.
    """
    name, mark, value = text.partition("=")
    if not mark:
        if name not in os.environ:
            raise CommandError(exits.USAGE, f"--env {name}: no such variable here; give NAME=VALUE")
        value = os.environ[name]
    return name, value


def attached(client: Client, job: str, arguments: Namespace, *, array: bool = False) -> int:
    """Print the job's output, or how the tasks stand, until it has ended.

    On an interrupt it asks whether to cancel the job.

    Args:
        client: The gateway; its connection is closed by an interrupt.
        job: The job's id.
        arguments: The `rank` whose output is wanted, and whether as `json`.
        array: Whether it is an array.

    Returns:
        The exit code: 0 if the job succeeded, 1 if it ended otherwise, 130 after an interrupt.
    """
    try:
        row = run_array.watched(client, job) if array else followed(client, job, arguments)
    except KeyboardInterrupt as interrupt:
        client.close()
        return interrupted(client, job, ask=not isinstance(interrupt, TerminatedError))
    if arguments.json:
        print_json(row)
    else:
        say(ended_text(row))
    return exits.OK if row["state"] == "succeeded" else exits.FAILED


def followed(client: Client, job: str, arguments: Namespace) -> dict[str, Any]:
    """Print the output of a job until it has ended; return its row."""
    row = wait_started(client, job)
    ranks = logs.ranks_of(arguments.rank, row)
    take = logs.json_takers(ranks) if arguments.json else logs.takers(ranks)
    following = Namespace(job=job, attempt=None)
    logs.follow_ranks(following, client, ranks, take)
    return poll(client, job, "ended", None)


def wait_started(client: Client, job: str) -> dict[str, Any]:
    """Return a job once it runs or has ended, and say meanwhile why it waits."""
    told = ""
    wait_s = STATUS_AFTER_S
    while True:
        path = query(f"/v1/jobs/{quote(job)}", wait="started", timeout_s=wait_s)
        row: dict[str, Any] = client.get(path, wait_s + POLL_MARGIN_S)
        if reached(row, "started"):
            return row
        status = f"{job} is {row['state']}" + (f" ({why_of(row)})" if why_of(row) else "")
        if status != told:
            say(render.printable(status))
            told = status
        wait_s = STATUS_EVERY_S


def interrupted(client: Client, job: str, *, ask: bool) -> int:
    """Cancel the job, unless a person at the terminal wants to keep it."""
    try:
        if ask and render.is_terminal(sys.stdin) and render.is_terminal(sys.stderr):
            print(f"\ncancel {job}? [Y/n] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() in ("n", "no"):
                say(f"{job} goes on: skep logs -f {job}")
                return exits.INTERRUPTED
    except KeyboardInterrupt:
        say("")
    try:
        ask_cancel(client, job)
        say(f"cancelling {job} ...")
        path = query(f"/v1/jobs/{quote(job)}", wait="ended", timeout_s=CANCEL_WITHIN_S)
        row = client.get(path, CANCEL_WITHIN_S + POLL_MARGIN_S)
        say(ended_text(row) if row["state"] in ENDED else f"{job} is being stopped")
    except CommandError as error:
        say(f"{job}: {error.text}")
    except KeyboardInterrupt:
        say(f"not waiting for the end of {job}: skep show {job}")
    return exits.INTERRUPTED


def _terminated(number: int, frame: FrameType | None) -> None:
    raise TerminatedError


COMMANDS = {"run": Command(options_run, run_run, takes_rest=True)}
