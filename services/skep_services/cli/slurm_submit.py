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
from skep_services.cli import exits, run, specs, submit
from skep_services.cli.client import PATIENCE_FOLLOWING_S, PATIENCE_S, Client, find_target
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import poll
from skep_services.cli.slurm_common import complain, note

PARTITIONS = "SKEP_SLURM_PARTITIONS"
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
        partitions=_partitions(os.environ.get(PARTITIONS, "")),
        looks_secret=looks_secret,
        node_gpus=lambda: [int(one["gpus"]) for one in client.get("/v1/nodes")["nodes"]],
        host=socket.gethostname(),
        key=os.urandom(32).hex(),
    )


def _partitions(text: str) -> dict[str, str]:
    """Return names of virtual clusters by those of partitions: `gpu=team-a,debug=default`.

    Raises:
        RefusedError: The text is none of that.
    """
    found = {}
    for each in filter(None, text.split(",")):
        partition, mark, vc = each.partition("=")
        if not (partition and mark and vc):
            msg = f"{PARTITIONS} has {each!r}: write PARTITION=VC,PARTITION=VC"
            raise RefusedError(msg)
        found[partition.strip()] = vc.strip()
    return found


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
