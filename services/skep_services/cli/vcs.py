"""`skep vc`: the virtual clusters and their quotas."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.render import Column

SHAPE = "vcs: {research: {gpus: 6}, production: {gpus: 2, jobs_max: 100}}"


def options_vc(parser: ArgumentParser) -> None:
    """Add what `vc` takes."""
    parser.add_argument("verb", choices=("ls", "set", "check"), help="what to do")
    parser.add_argument("file", metavar="FILE", nargs="?", help=f"YAML or JSON, such as {SHAPE}")


def run_vc(arguments: Namespace) -> int:
    """List the virtual clusters, replace them, or check a file of them."""
    if arguments.verb == "ls":
        if arguments.file:
            raise CommandError(exits.USAGE, "`skep vc ls` takes no file")
        return _list(arguments)
    if not arguments.file:
        text = f"skep vc {arguments.verb} FILE, with content such as\n  {SHAPE}"
        raise CommandError(exits.USAGE, text)
    if arguments.verb == "check":
        from skep_services.cli import clusters

        return clusters.check(arguments)
    return _set(arguments)


def _list(arguments: Namespace) -> int:
    client = client_of(arguments)
    if arguments.json:
        print_raw(client.get_bytes("/v1/vcs"))
        return exits.OK
    vcs = client.get("/v1/vcs")["vcs"]
    if not vcs:
        say("no virtual clusters yet: skep vc set FILE")
        return exits.OK
    render.show_table(
        [
            Column("VC", [one["vc"] for one in vcs]),
            Column("QUOTA", [str(one["gpus"]) for one in vcs], right=True),
            Column("USED", [str(one["used"]) for one in vcs], right=True),
            Column("RUNNING", [str(one["running"]) for one in vcs], right=True),
            Column("QUEUED", [str(one["queued"]) for one in vcs], right=True),
            Column("JOBS MAX", [str(one["jobs_max"]) for one in vcs], right=True, drop=1),
        ]
    )
    return exits.OK


def _set(arguments: Namespace) -> int:
    from skep_services.cli import specs

    documents = specs.read(arguments.file)
    if len(documents) != 1:
        raise CommandError(exits.USAGE, f"{arguments.file} holds {len(documents)} documents, not 1")
    vcs = quotas(documents[0].tree, arguments.file)
    client = client_of(arguments)
    client.post("/v1/admin/vcs", {"vcs": vcs})
    if arguments.json:
        print_json({"vcs": vcs})
    else:
        named = ", ".join(f"{vc} {config['gpus']}" for vc, config in vcs.items())
        print(f"virtual clusters and their GPUs: {named}")
    return exits.OK


def quotas(tree: Any, source: str) -> dict[str, dict[str, int]]:
    """Return the virtual clusters a file describes: `{vcs: {name: {gpus: N}}}`, or without `vcs`.

    A plain number means its GPUs. Raises CommandError that names everything wrong.
    """
    import msgspec

    from skep.wire.admin import vcs_problems
    from skep.wire.cluster import VirtualCluster

    if isinstance(tree, dict) and "vcs" in tree:
        if len(tree) > 1:
            others = ", ".join(sorted(str(key) for key in tree if key != "vcs"))
            raise CommandError(exits.FAILED, f"{source}: unknown keys beside `vcs`: {others}")
        tree = tree["vcs"]
    if not isinstance(tree, dict) or not tree:
        raise CommandError(exits.FAILED, f"{source}: not virtual clusters; write\n  {SHAPE}")
    found: dict[str, dict[str, int]] = {}
    for vc, value in tree.items():
        name = str(vc)
        config = {"gpus": value} if type(value) is int else value
        try:
            checked = msgspec.convert(config, VirtualCluster)
        except msgspec.ValidationError as error:
            raise CommandError(
                exits.FAILED, f"{source}: vcs.{name}: {error}; write\n  {SHAPE}"
            ) from None
        for problem in vcs_problems({name: checked}):
            where = problem.path.removeprefix("$.")
            raise CommandError(exits.FAILED, f"{source}: {where}: {problem.text}")
        found[name] = {"gpus": checked.gpus, "jobs_max": checked.jobs_max}
    return found


COMMANDS = {"vc": Command(options_vc, run_vc)}
