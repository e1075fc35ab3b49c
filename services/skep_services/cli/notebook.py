"""`skep notebook`: Jupyter as a job, and its page here."""

from __future__ import annotations

import json
import os
import sys
import threading
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from skep_services.cli import (
    exits,
    files,
    images,
    render,
    returning,
    run,
    session,
    specs,
    submit,
    templates,
)
from skep_services.cli.captured import Captured
from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.forwarding import HOST, Forwarder
from skep_services.cli.jobs import ended_text, poll, positive, seconds
from skep_services.cli.options import Command, client_of, print_json, say

PROCESS = ("python3", "-m", "skep_job.notebook")
"""What the job runs; it becomes Jupyter."""
IDLE_S_MIN = 60
"""Jupyter looks once a minute whether it is idle."""
NO_PAGE = "no-page"
"""The reason of a notebook that was not reached: it has ended, or does not listen."""
GOES_ON = "it goes on without this command"


def options_notebook(parser: ArgumentParser) -> None:
    """Add what `notebook` takes."""
    parser.usage = "skep notebook [--gpus N] [--name NAME] [...]   |   skep notebook JOB"
    parser.epilog = (
        "The notebook is a job: it goes on when this command or its connection ends, and\n"
        "`skep notebook JOB` prints its address again. `skep cancel JOB` ends it.\n"
        "It begins in this folder, on the interpreter of the active environment or the python3\n"
        "of the image, which needs jupyterlab or jupyter_server (`pip install 'skep[notebook]'`).\n"
        "\n" + exits.HELP
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help="a notebook that runs")
    parser.add_argument("--gpus", type=positive, metavar="N", help="GPUs (default 1)")
    parser.add_argument("--gpu-type", metavar="TYPE", help="only GPUs of this type")
    parser.add_argument("--name", default="notebook", help="the job's name (default notebook)")
    parser.add_argument("--vc", help="virtual cluster")
    parser.add_argument("--time", metavar="TIME", help="limit, such as 90s, 15m, 2h")
    parser.add_argument(
        "--idle",
        metavar="TIME",
        help="suspend it once no cell, terminal or page has done anything for so long, such as 30m;"
        " the next request has it go on. What cannot be suspended ends",
    )
    images.options_image(parser)
    templates.option_template(parser)
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable, or pass on the one of this shell (repeatable)",
    )
    parser.add_argument(
        "--python", metavar="PYTHON", help="interpreter (default: of the active environment)"
    )
    parser.add_argument(
        "--local", type=int, metavar="PORT", help="port here (default: as in the job, or any)"
    )
    parser.add_argument("-d", "--detach", action="store_true", help="submit only, and print the id")


def run_notebook(arguments: Namespace) -> int:
    """Submit a notebook, or find the one that is named, and carry its page until interrupted.

    Returns:
        The exit code: 0 if the person left it or it ended well.

    Raises:
        CommandError: The cluster refuses the job, it is no notebook, or it does not start.
    """
    if arguments.local is not None and not 0 <= arguments.local <= 65535:
        raise CommandError(exits.USAGE, f"--local {arguments.local}: a port from 1 to 65535")
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    if arguments.job:
        return opened(client, arguments.job, arguments)
    document = specs.Document("the command line", spec_of(arguments, client), {})
    submit.check([document])
    if client.target.local() and not arguments.image:
        _check_python(document.tree["command"])
    result = submit.send(client, document, None)
    if result["accepted"] is False or arguments.detach:
        if arguments.json:
            print_json(result)
        else:
            submit.tell(result, quiet=arguments.detach)
        return exits.FAILED if result["accepted"] is False else exits.OK
    job = str(result["job"])
    say(f"{job} submitted; {GOES_ON}: skep notebook {job}")
    try:
        run.wait_started(client, job)
    except KeyboardInterrupt:
        client.close()
        return run.interrupted(client, job, ask=True)
    return opened(client, job, arguments)


def spec_of(arguments: Namespace, client: Client) -> dict[str, Any]:
    """Return the spec of a notebook.

    Raises:
        CommandError: What the command line says cannot be done.
    """
    words = list(PROCESS)
    runtime = images.runtime_of(arguments)
    # The shell's environment is not in an image; a name is looked up there.
    python = arguments.python if runtime else files.interpreter(arguments.python, os.environ)
    if python:
        words += ["--python", python]
    if arguments.idle is not None:
        words += ["--idle", str(idle_s(arguments.idle))]
    tree: dict[str, Any] = {
        "name": arguments.name,
        "vc": arguments.vc or submit.default_vc(client),
        "command": words,
        "env": dict(map(run.variable, arguments.env)),
        **templates.resources(arguments),
    }
    if arguments.time:
        tree["limits"] = {"time": arguments.time}
    if runtime:
        tree["runtime"] = runtime
    if arguments.template:
        templates.begin(tree, arguments.template, client)
    specs.settle_paths(tree)
    return tree


def idle_s(text: str) -> int:
    """Return how long a notebook may be idle (seconds).

    Raises:
        CommandError: It is no length of time, or too short a one.
    """
    try:
        found = int(seconds(text))
    except ValueError:
        text = f"--idle {text}: a length of time, such as 30m or 2h"
        raise CommandError(exits.USAGE, text) from None
    if found < IDLE_S_MIN:
        text = f"--idle {text}: at least {IDLE_S_MIN}s, as Jupyter looks once a minute"
        raise CommandError(exits.USAGE, text)
    return found


def opened(client: Client, job: str, arguments: Namespace) -> int:
    """Print the address of a notebook, and carry its page until interrupted or it has ended.

    Raises:
        CommandError: It is no notebook that runs.
        _never_listened: A CommandError: it ended before it could be reached.
    """
    row = client.get(f"/v1/jobs/{quote(job)}")
    job, command = str(row["job"]), row["spec"].get("command")
    if not isinstance(command, list) or tuple(command[: len(PROCESS)]) != PROCESS:
        text = f"{job} is no notebook: `skep notebook` starts one"
        raise CommandError(exits.FAILED, text, "bad-value")
    try:
        where = _where(client, job)
    except CommandError as error:
        raise _never_listened(client, job, error) from None
    forwarder = Forwarder(client, job, 0)
    local = _listen(forwarder, int(where["port"]), arguments.local)
    url = f"http://{HOST}:{local}/{where['page']}?token={where['token']}"
    if arguments.json:
        print_json({"job": job, "url": url, "port": where["port"], "local": local})
    else:
        print(url)
    sys.stdout.flush()
    say(f"Ctrl-C leaves it: {GOES_ON}; skep cancel {job} ends it")
    ends = _watch_end(Client(client.target, client.patience_s), job, forwarder)
    try:
        forwarder.serve()
    except KeyboardInterrupt:
        say(f"\n{job} goes on: skep notebook {job}")
        return exits.OK
    if isinstance(end := ends[0], CommandError):
        raise end
    say(ended_text(end))
    return exits.OK if end["state"] == "succeeded" else exits.FAILED


def _where(client: Client, job: str) -> dict[str, Any]:
    """Return where a notebook listens in its job, and its token.

    Raises:
        CommandError: It does not, or its attempt is over.
    """
    from skep_job import notebook

    # A command in a job need not find Skep: its own source is given to it.
    argv = ["python3", "-I", "-S", "-c", Path(notebook.__file__).read_text("utf-8"), "--where"]
    captured = Captured()
    wanted = {"what": "exec", "argv": argv, "rank": 0}
    ended = _run(client, job, wanted, captured)
    if ended.code:
        text = f"{job} does not come to listen: skep logs {job} says why"
        raise CommandError(exits.FAILED, text, NO_PAGE)
    found: dict[str, Any] = json.loads(captured.told()["stdout"])
    return found


def _run(client: Client, job: str, wanted: dict[str, Any], captured: Captured) -> session.Ended:
    """Run a command in a job, and wait for the job if it was suspended as nothing happened."""
    returns = returning.Returns()
    while True:
        try:
            return session.Session(client, job, wanted, stdin=-1, write=captured.write).run()
        except CommandError as error:
            returns.wait(client, job, error, lambda: True)


def _never_listened(client: Client, job: str, error: CommandError) -> CommandError:
    """Return why there is no page: what a notebook that has ended said last."""
    if error.error["reason"] not in (NO_PAGE, "attempt-over", "not-running"):
        return error
    row = client.get(query(f"/v1/jobs/{quote(job)}", wait="ended", timeout_s=5))
    if row["state"] != "failed":
        return error
    path = query(f"/v1/jobs/{quote(job)}/logs", rank=0, attempt="latest", tail=1)
    last = client.get_bytes(path).decode("utf-8", "replace").strip()
    said = last.removeprefix("skep_job.notebook: ") or str(row.get("detail"))
    image = (row["spec"].get("runtime") or {}).get("image")
    where = f"image {image}: " if image and image not in said else ""
    return CommandError(exits.FAILED, f"{job} failed: {where}{render.printable(said)}", "failed")


def _listen(forwarder: Forwarder, port: int, wanted: int | None) -> int:
    """Return the port here: the one that is wanted, else the job's own, else any."""
    if wanted is not None:
        return forwarder.listen(port, wanted)
    try:
        return forwarder.listen(port, port)
    except CommandError:
        return forwarder.listen(port, 0)


def _watch_end(
    client: Client, job: str, forwarder: Forwarder
) -> list[dict[str, Any] | CommandError]:
    """Have the page end with its job; return where it is then noted how that ended."""
    ends: list[dict[str, Any] | CommandError] = []

    def watch() -> None:
        try:
            ends.append(poll(client, job, "ended", None))
        except CommandError as error:
            ends.append(error)
        forwarder.stop()

    threading.Thread(target=watch, daemon=True).start()
    return ends


def _check_python(words: list[str]) -> None:
    """Look for Jupyter before the job is submitted to a cluster of this machine.

    Raises:
        CommandError: The interpreter has none.
    """
    from skep_job.notebook import lacks, program_of

    python = words[words.index("--python") + 1] if "--python" in words else sys.executable
    try:
        found = program_of(python)
    except OSError as error:
        text = f"--python {python} cannot be executed: {error.strerror}"
        raise CommandError(exits.FAILED, text) from None
    if not found:
        raise CommandError(exits.FAILED, lacks(python), "cannot-execute")


COMMANDS = {"notebook": Command(options_notebook, run_notebook)}
