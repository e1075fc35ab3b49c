"""`sbatch` and `srun`: their command lines become jobs."""

from __future__ import annotations

import os
import socket
import sys
from argparse import Namespace
from datetime import datetime
from typing import Any

from skep.slurm import jobs, script
from skep.slurm.listing import number_of
from skep.slurm.options import ENVIRONMENT, SBATCH, SRUN, Given, RefusedError, parse
from skep.vault.looks_secret import looks_secret
from skep.wire.spec import GPUS_PER_WORKER_MAX, PRIORITY_MAX
from skep_services.cli import exits, run, specs, submit
from skep_services.cli.client import PATIENCE_FOLLOWING_S, PATIENCE_S, Client, find_target
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import poll
from skep_services.cli.slurm_common import complain, note

PARTITIONS = "SKEP_SLURM_PARTITIONS"
GPUS, QUALITIES = "SKEP_SLURM_GPUS", "SKEP_SLURM_QOS"
SHELL = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrapped}\n"
VERSION = "slurm-skep"


def sbatch(words: list[str]) -> int:
    """Hand in a batch script; return the exit code.

    Args:
        words: The command line.

    Raises:
        RefusedError: It is refused.
    """
    given, rest = parse("sbatch", SBATCH, words)
    text, rest = _script(given, rest)
    by_environment = {
        option: os.environ[name] for name, option in ENVIRONMENT.items() if name in os.environ
    }
    given = {**script.directives(text), **by_environment, **given}
    client = Client(find_target(None), PATIENCE_FOLLOWING_S if "wait" in given else PATIENCE_S)
    mapped = jobs.batch_job(given, text, rest, _here(client))
    quiet = "quiet" in given
    job = _hand_in("sbatch", client, mapped, quiet=quiet or "parsable" in given)
    if job is None:
        return exits.FAILED
    number = number_of(job)
    if "parsable" in given:
        print(number, flush=True)
    elif not quiet:
        print(f"Submitted batch job {number}", flush=True)
    if "wait" not in given:
        return exits.OK
    return exits.OK if poll(client, job, "ended", None)["state"] == "succeeded" else exits.FAILED


def srun(words: list[str]) -> int:
    """Run a command as a job, attached; return the exit code.

    Args:
        words: The command line.

    Raises:
        RefusedError: It is refused.
    """
    given, command = parse("srun", SRUN, words)
    client = Client(find_target(None), PATIENCE_FOLLOWING_S)
    mapped = jobs.command_job(given, command, _here(client))
    job = _hand_in("srun", client, mapped, quiet="quiet" in given)
    if job is None:
        return exits.FAILED
    run.end_on_signals()
    # Everything that the tasks write comes through the first worker.
    return run.attached(client, job, Namespace(rank="0", json=False))


def _script(given: Given, rest: list[str]) -> tuple[str, list[str]]:
    """Return the batch script, and its name with its arguments.

    Raises:
        RefusedError: There is none, or it is no text.
    """
    if "wrap" in given:
        if rest:
            msg = "Script arguments are not permitted with --wrap option"
            raise RefusedError(msg)
        return SHELL.format(wrapped=given["wrap"]), ["wrap"]
    if rest:
        try:
            with open(rest[0], "rb") as file:
                raw = file.read(script.SCRIPT_BYTES_MAX + 1)
        except OSError as error:
            msg = f"Unable to open file {rest[0]}: {error.strerror}"
            raise RefusedError(msg) from None
    else:
        raw = sys.stdin.buffer.read(script.SCRIPT_BYTES_MAX + 1)
        rest = ["sbatch"]
    try:
        return raw.decode("utf-8"), rest
    except UnicodeDecodeError:
        if len(raw) > script.SCRIPT_BYTES_MAX:
            return raw.decode("utf-8", "replace"), rest
        msg = "The batch script is not UTF-8 text"
        raise RefusedError(msg) from None


def _here(client: Client) -> jobs.Submission:
    return jobs.Submission(
        folder=os.getcwd(),
        environment=os.environ,
        partitions=_pairs(PARTITIONS, "PARTITION=VC"),
        gpus=_number(GPUS, os.environ.get(GPUS, "0"), GPUS_PER_WORKER_MAX),
        qualities={
            name: _number(QUALITIES, text, PRIORITY_MAX)
            for name, text in _pairs(QUALITIES, "QOS=PRIORITY").items()
        },
        looks_secret=looks_secret,
        node_gpus=lambda: [int(one["gpus"]) for one in client.get("/v1/nodes")["nodes"]],
        host=socket.gethostname(),
        key=os.urandom(32).hex(),
    )


def _pairs(variable: str, form: str) -> dict[str, str]:
    """Return what a variable says: `gpu=team-a,debug=default`.

    Raises:
        RefusedError: The text is none of that.
    """
    found = {}
    for each in filter(None, os.environ.get(variable, "").split(",")):
        name, mark, value = each.partition("=")
        if not (name and mark and value):
            msg = f"{variable} has {each!r}: write {form},{form}"
            raise RefusedError(msg)
        found[name.strip()] = value.strip()
    return found


def _number(variable: str, text: str, most: int) -> int:
    """Return a number that a variable says.

    Raises:
        RefusedError: It is none, or too high.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) <= most):
        msg = f"{variable} has {text!r}: a number from 0 to {most}"
        raise RefusedError(msg)
    return int(text)


def _hand_in(program: str, client: Client, mapped: jobs.Mapped, *, quiet: bool) -> str | None:
    """Submit a job and return its id; None: it was refused, which has been said.

    Raises:
        CommandError: The gateway cannot be reached.
    """
    tree = mapped.tree
    if "begin" in tree and "T" in tree["begin"]:
        tree["begin"] = datetime.fromisoformat(tree["begin"]).astimezone().isoformat()
    if "vc" not in tree:
        tree["vc"] = submit.default_vc(client)
    if not quiet:
        note(program, mapped.notes)
    document = specs.Document(program, tree, {})
    try:
        submit.check([document])
        result: dict[str, Any] = submit.send(client, document, None)
    except CommandError as error:
        if problems := error.error.get("problems"):
            complain(program, (_problem(one) for one in problems))
            return None
        raise
    if result["accepted"] is False:
        problems = result.get("problems") or [{"text": result.get("text", "refused"), **result}]
        complain(program, (_problem(one) for one in problems))
        return None
    return str(result["job"])


def _problem(one: dict[str, Any]) -> str:
    """Return one line about what is wrong with a job."""
    path = str(one.get("path", "$")).removeprefix("$").removeprefix(".")
    text = f"{path}: {one.get('text', '')}" if path else str(one.get("text", ""))
    if one.get("suggestion"):
        text += f": {one['suggestion']}"
    return f"Batch job submission failed: {text} ({one.get('reason', 'refused')})"
