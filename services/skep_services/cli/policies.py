"""`skep policies`: what a virtual cluster may have as its policy, and by which options."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.render import Column


def options_policies(parser: ArgumentParser) -> None:
    """Add what `policies` takes."""
    parser.add_argument("name", metavar="POLICY", nargs="?", help="this one alone, at length")


def run_policies(arguments: Namespace) -> int:
    """List the policies, each with its options, their defaults and the paper it is from.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: There is no policy of that name.
    """
    known = policies()
    if arguments.name is not None:
        known = [one for one in known if one["policy"] == arguments.name]
        if not known:
            raise CommandError(exits.NOT_FOUND, _unknown(arguments.name))
    if arguments.json:
        print_json({"policies": known})
    elif arguments.name is not None:
        _show(known[0])
    else:
        render.show_table(
            [
                Column("POLICY", [one["policy"] for one in known]),
                Column("OPTIONS", [_options(one) or "-" for one in known], drop=1),
                Column("SOURCE", [one["source"] for one in known], narrow=20),
            ]
        )
        say("in a cluster file: policy: NAME, or policy: {name: NAME, OPTION: VALUE}")
        say("the default is fifo; meanwhile idle GPUs are lent to jobs that can give them back")
    return exits.OK


def policies() -> list[dict[str, Any]]:
    """Return every policy: name, what it does, source, options with their defaults."""
    from skep.policy.registry import described

    return described()


def _unknown(name: str) -> str:
    from skep.policy.registry import NoPolicy, make

    try:
        make(name)
    except NoPolicy as error:
        return str(error)
    return name


def _options(one: dict[str, Any]) -> str:
    return ", ".join(f"{key}: {render_value(value)}" for key, value in one["options"].items())


def render_value(value: Any) -> str:
    """Return an option's value as a cluster file has it."""
    import json

    return json.dumps(value)


def _show(one: dict[str, Any]) -> None:
    print(f"{one['policy']}: {one['does']}")
    print(f"source: {one['source']}")
    for key, value in one["options"].items():
        print(f"  {key}: {render_value(value)}")


COMMANDS = {"policies": Command(options_policies, run_policies)}
