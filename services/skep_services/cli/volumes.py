"""`skep volumes`: the folders of the nodes that a job may ask for by their names."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column

VCS_SHOWN = 4


def options(parser: ArgumentParser) -> None:
    """Add what `volumes` takes."""
    parser.epilog = (
        "A spec asks for them: volumes: [datasets], or volumes: {datasets: /data:ro}.\n"
        "The variable in the last column says in the job where one is.\n\n" + exits.HELP
    )
    parser.add_argument("--vc", metavar="VC", help="those that this virtual cluster may use")


def run(arguments: Namespace) -> int:
    """List the volumes that the caller may use."""
    found = client_of(arguments).get(query("/v1/volumes", vc=arguments.vc))
    if arguments.json:
        print_json(found)
        return exits.OK
    rows = found["volumes"]
    if not rows:
        say("there are no volumes that you may use: an operator names them in the cluster file")
        return exits.OK
    render.show_table(
        [
            Column("VOLUME", [one["volume"] for one in rows]),
            Column("MAY USE IT", [_modes(one["vcs"]) for one in rows]),
            Column("PATH", [render.printable(one["path"]) for one in rows]),
            Column("IS", [render.printable(one["is"]) or "-" for one in rows], narrow=12, drop=1),
            Column("VARIABLE", [one["variable"] for one in rows], drop=2),
        ]
    )
    return exits.OK


def _modes(vcs: dict[str, str]) -> str:
    shown = ", ".join(f"{vc} {mode}" for vc, mode in list(vcs.items())[:VCS_SHOWN])
    more = f" and {len(vcs) - VCS_SHOWN} more" if len(vcs) > VCS_SHOWN else ""
    return f"{shown}{more}" or "no virtual cluster"


COMMANDS = {"volumes": Command(options, run)}
