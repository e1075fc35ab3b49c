"""`skep cells`: rehearse on paper what jobs, failures and changes would do to a cluster's cells."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json

if TYPE_CHECKING:
    from skep.cells.replay import Outcome


def options_cells(parser: ArgumentParser) -> None:
    """Add what `cells` takes."""
    parser.add_argument("verb", choices=("replay",), help="what to do")
    parser.add_argument(
        "file",
        metavar="SCRIPT",
        help="a cluster file and a list of events, JSON or YAML; - is standard input",
    )


def run_cells(arguments: Namespace) -> int:
    """Print what comes of each event of a script: with --json one JSON value on a line each.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The script or a file that it names cannot be read, or has mistakes.
    """
    from skep.cells.replay import Replay
    from skep.cells.script import parse_script
    from skep_services.cli.clusters import read_document, refuse_document

    read = read_document(arguments.file)
    folder = "." if arguments.file == "-" else os.path.dirname(arguments.file) or "."
    parsed = parse_script(_with_files(read.tree, folder))
    if isinstance(parsed, list):
        refuse_document(read, parsed, f"{read.source} is wrong:")
    replay = Replay(parsed)
    for number, event in enumerate(parsed.events, 1):
        outcome = replay.step(event)
        if arguments.json:
            print_json(outcome)
        else:
            _show(number, outcome)
    return exits.OK


def _with_files(tree: Any, folder: str) -> Any:
    """Return a script with every cluster that is the name of a file read in, beside the script."""
    if not isinstance(tree, dict):
        return tree
    made = dict(tree)
    if isinstance(made.get("cluster"), str):
        made["cluster"] = _read(made["cluster"], folder)
    if isinstance(made.get("events"), list):
        made["events"] = [
            {**event, "cluster": _read(event["cluster"], folder)}
            if isinstance(event, dict) and isinstance(event.get("cluster"), str)
            else event
            for event in made["events"]
        ]
    return made


def _read(name: str, folder: str) -> Any:
    from skep_services.cli.clusters import read_document

    if name == "-":
        raise CommandError(exits.USAGE, "a script names the file of its cluster, not `-`")
    return read_document(os.path.join(folder, name)).tree


def _show(number: int, outcome: Outcome) -> None:
    """Print one event and what came of it for people."""
    about = outcome.get("job") or outcome.get("node") or ""
    head = f"{number:4}  {outcome['event']} {about}".rstrip()
    print(f"{head}: {_sentence(outcome)}")
    for each in outcome.get("then", ()):
        print(f"      then {each['job']}: {_sentence(each)}")


def _sentence(outcome: Outcome) -> str:
    """Return what came of it in words."""
    words = [outcome["outcome"]]
    if outcome.get("opportunistic"):
        words.append("opportunistically")
    text = " ".join(words)
    if "workers" in outcome:
        text += " on " + ", ".join(_worker(worker) for worker in outcome["workers"])
    if "text" in outcome:
        text += f" ({outcome['reason']}): {outcome['text']}"
        if outcome.get("suggestion"):
            text += f"; {outcome['suggestion']}"
    for key in ("preempts", "cancels", "demotes", "runs_there"):
        if outcome.get(key):
            text += f"; {key.replace('_', ' ')} {', '.join(outcome[key])}"
    for fate, jobs in outcome["jobs"].items() if outcome["outcome"] == "reconfigured" else ():
        text += f"; {fate}: {', '.join(jobs)}"
    for vc, cells in outcome.get("bears", {}).items():
        text += f"; {vc} bears {', '.join(cells)}"
    if outcome["outcome"] == "restarted":
        text += f" with {render.plural(outcome['jobs'], 'job')}"
    return text


def _worker(worker: dict[str, Any]) -> str:
    gpus = ",".join(map(str, worker["gpus"]))
    return f"{worker['node']}:{gpus}" + (f" [{worker['cell']}]" if "cell" in worker else "")


COMMANDS = {"cells": Command(options_cells, run_cells)}
