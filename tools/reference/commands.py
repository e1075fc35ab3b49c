"""The page of the command line: every command of `skep` with its arguments and options."""

from __future__ import annotations

import argparse
import importlib
from argparse import SUPPRESS, Action, ArgumentParser

from skep_services.cli import exits
from skep_services.cli.main import GROUPS, parser_of
from skep_services.cli.options import Command
from tools.reference.markdown import code, page, table

COMMON = ("--help", "--json", "--home")
INTRODUCTION = """`skep COMMAND -h` prints the same. Every command takes `--json` (print JSON) and
`--home DIR` (the state folder, by default `SKEP_HOME` or `~/.skep`)."""


def text() -> str:
    """Return the page."""
    blocks = [INTRODUCTION, f"```text\n{exits.HELP}\n```"]
    for title, group in GROUPS.items():
        blocks.append(f"## {title[0].upper()}{title[1:]}")
        for name, (module, meaning) in group.items():
            found = importlib.import_module(f"skep_services.cli.{module}")
            command: Command = found.COMMANDS[name]
            blocks += _command(parser_of(name, command), meaning)
    return page("Commands", *blocks)


def _command(parser: ArgumentParser, meaning: str) -> list[str]:
    rows = [
        [_spelled(action), _meaning(parser, action)]
        for action in parser._actions
        if action.help != SUPPRESS and not set(COMMON) & set(action.option_strings)
    ]
    words = [_usage(action) for action in parser._actions if not action.option_strings]
    blocks = [f"### {code(parser.prog)}", f"{meaning[0].upper()}{meaning[1:]}."]
    if words:
        blocks.append(code(" ".join([parser.prog, *words])))
    if rows:
        blocks.append(table(["argument", "meaning"], rows))
    more = (parser.epilog or "").replace(exits.HELP, "").strip()
    return [*blocks, f"```text\n{more}\n```"] if more else blocks


def _usage(action: Action) -> str:
    name = _value(action)
    match action.nargs:
        case "?":
            return f"[{name}]"
        case "*" | argparse.REMAINDER:
            return f"[{name} ...]"
        case "+":
            return f"{name} ..."
        case _:
            return name


def _spelled(action: Action) -> str:
    if not action.option_strings:
        return code(_value(action))
    options = ", ".join(action.option_strings)
    return code(options if action.nargs == 0 else f"{options} {_value(action)}")


def _value(action: Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _meaning(parser: ArgumentParser, action: Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    said = (action.help or "") % values
    return said.removesuffix(f" (default: {action.default})")
