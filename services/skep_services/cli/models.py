"""`skep models`: the learned models of a cluster, and which of them may advise."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.render import Column
from skep_services.supervisor.home import home_folder

if TYPE_CHECKING:
    from skep_services.learning.registry import Entry

VERBS = {
    "ls": "all of them",
    "show": "MODEL: what it was trained on, and how it was judged",
    "add": "FILE...: put models there, as candidates",
    "promote": "MODEL: let VCs name it",
    "retire": "MODEL: let no VC name it any more",
}
ABOUT = """\
Models are files in HOME/models (or SKEP_MODELS), named by the SHA-256 of their content. A virtual
cluster that is to follow one names it: policy: {name: learned, model: HASH}. Where a MODEL is asked
for, its first four digits or more will do. Models that come with Skep need not be added. How fast
models train where is `skep speeds`.
"""
SHOWN = 12
"""Digits of a model in tables."""


def options(parser: ArgumentParser) -> None:
    """Add what `models` takes."""
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    verbs = "; ".join(f"{verb}: {text}" for verb, text in VERBS.items())
    parser.add_argument("verb", metavar="VERB", nargs="?", default="ls", help=verbs)
    parser.add_argument("what", metavar="MODEL|FILE", nargs="*", help="what the verb is about")
    parser.add_argument("--why", default="", help="promote, retire, add: kept with the change")
    parser.add_argument("--measured", action="store_true", help="see `skep speeds`")
    parser.add_argument("--errors", help="see `skep speeds`")


def run(arguments: Namespace) -> int:
    """Do what the verb says.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line or a model is wrong, or the folder cannot be written.
    """
    verb: str = arguments.verb
    if verb not in VERBS or arguments.measured or arguments.errors is not None:
        named = verb if verb not in VERBS else "..."
        text = f"there is no `skep models {verb}`: {', '.join(VERBS)}; how fast models train is"
        raise CommandError(exits.USAGE, f"{text} `skep speeds {named}`", "moved")
    takes = (0, 0) if verb == "ls" else (1, 1000) if verb == "add" else (1, 1)
    if not takes[0] <= len(arguments.what) <= takes[1]:
        raise CommandError(exits.USAGE, f"{verb} takes {'FILE...' if verb == 'add' else 'MODEL'}")
    from skep_services.learning.registry import folder_of

    folder = folder_of(home_folder(arguments.home))
    with problems():
        return _VERBS[verb](arguments, folder)


@contextmanager
def problems() -> Iterator[None]:
    """Turn what is wrong with a model or a run into the error of a command.

    Raises:
        CommandError: Something is wrong.
    """
    from skep_services.learning.problems import NOT_FOUND, USAGE, LearningError

    try:
        yield
    except LearningError as error:
        usage = exits.USAGE if error.why in USAGE else exits.FAILED
        code = exits.NOT_FOUND if error.why in NOT_FOUND else usage
        raise CommandError(code, error.text, error.why.value) from None


def _ls(arguments: Namespace, folder: Path) -> int:
    from skep_services.learning.registry import read_registry

    known = list(read_registry(folder).values())
    if arguments.json:
        print_json({"folder": str(folder), "models": [_row(each) for each in known]})
        return exits.OK
    render.show_table(
        [
            Column("MODEL", [each.model[:SHOWN] for each in known]),
            Column("STATE", [_state(each) for each in known]),
            Column(
                "SINCE", [render.clock_time(each.at or None, date=True) for each in known], drop=2
            ),
            Column("SIZE", [render.size(max(each.size, 0)) for each in known], right=True, drop=1),
            Column("WHY", [render.printable(each.why) or "-" for each in known], narrow=20),
        ]
    )
    return exits.OK


def _state(entry: Entry) -> str:
    return entry.state.value if entry.size >= 0 else f"{entry.state.value}, file missing"


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "model": entry.model,
        "state": entry.state.value,
        "at": entry.at,
        "why": entry.why,
        "bytes": entry.size,
        "history": [
            {"state": line.state.value, "at": line.at, "why": line.why} for line in entry.history
        ],
    }


def _show(arguments: Namespace, folder: Path) -> int:
    from skep_services.learning import modelfiles
    from skep_services.learning.registry import find, read_model, read_registry

    entry = find(read_registry(folder), arguments.what[0])
    about = modelfiles.about(read_model(folder, entry.model))
    if arguments.json:
        print_json({**_row(entry), "about": about})
        return exits.OK
    print(f"{entry.model}: {_state(entry)}")
    for line in entry.history:
        print(f"  {render.clock_time(line.at, date=True)}  {line.state.value}  {_said(line.why)}")
    for key, value in about.items():
        _tell(key, value)
    return exits.OK


def _said(why: str) -> str:
    return render.printable(why)


def _tell(key: str, value: Any, indent: int = 0) -> None:
    """Print one part of what a model says of itself."""
    import json

    name, space = render.printable(str(key)), "  " * indent
    if isinstance(value, dict) and value:
        print(f"{space}{name}:")
        for part, each in value.items():
            _tell(part, each, indent + 1)
    else:
        text = value if isinstance(value, str) else json.dumps(value)
        print(f"{space}{name}: {render.printable(text)}")


def _add(arguments: Namespace, folder: Path) -> int:
    from skep_services.learning import modelfiles, registry

    added = []
    for name in arguments.what:
        data = registry.read_file(name)
        modelfiles.check(data, name)
        why = arguments.why or f"from {os.path.basename(name)}"
        added.append(registry.add(folder, data, time.time_ns(), why))
    if arguments.json:
        print_json({"folder": str(folder), "added": added})
    else:
        for model in added:
            print(model)
    return exits.OK


def _promote(arguments: Namespace, folder: Path) -> int:
    from skep_services.learning import modelfiles
    from skep_services.learning.registry import State, find, read_model, read_registry

    entry = find(read_registry(folder), arguments.what[0])
    modelfiles.check(read_model(folder, entry.model), f"model {entry.model[:SHOWN]}")
    return _change(arguments, folder, entry, State.PROMOTED.value)


def _retire(arguments: Namespace, folder: Path) -> int:
    from skep_services.learning.registry import State, find, read_registry

    entry = find(read_registry(folder), arguments.what[0])
    return _change(arguments, folder, entry, State.RETIRED.value)


def _change(arguments: Namespace, folder: Path, entry: Entry, state: str) -> int:
    from skep_services.learning import registry
    from skep_services.learning.problems import LearningError, Why

    if entry.state.value == state:
        text = f"model {entry.model[:SHOWN]} is {state} already, since"
        since = render.clock_time(entry.at, date=True)
        raise LearningError(Why.WRONG_STATE, f"{text} {since}")
    at = time.time_ns()
    registry.change(folder, entry.model, registry.State(state), at, arguments.why)
    if arguments.json:
        print_json({"model": entry.model, "state": state, "at": at, "before": entry.state.value})
    else:
        say(f"{entry.model}: {entry.state.value} -> {state}")
    return exits.OK


_VERBS = {"ls": _ls, "show": _show, "add": _add, "promote": _promote, "retire": _retire}
COMMANDS = {"models": Command(options, run)}
