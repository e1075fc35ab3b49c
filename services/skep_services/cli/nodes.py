"""`skep gpu` and `skep node`."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from skep_services.cli import exits, joining, render, rolling
from skep_services.cli.client import Client
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.render import Column
from skep_services.cli.stake import at_stake_of


def options_gpu(parser: ArgumentParser) -> None:
    """Add what `gpu` takes."""
    parser.add_argument("verb", choices=("ls", "quarantine"), help="what to do")
    parser.add_argument("node", metavar="NODE", nargs="?", help="the node of the GPU")
    parser.add_argument("device", metavar="DEVICE", nargs="?", help="its index there")
    parser.add_argument("--undo", action="store_true", help="quarantine: it is good again")


def run_gpu(arguments: Namespace) -> int:
    """List every GPU and the jobs that hold it, or have one count as bad.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong.
    """
    if arguments.verb == "ls":
        if arguments.node or arguments.undo:
            raise exits.CommandError(exits.USAGE, "`skep gpu ls` takes nothing")
        return _list_gpus(arguments)
    device = arguments.device or ""
    if not (device.isascii() and device.isdecimal()):
        text = "which GPU? (skep gpu quarantine NODE DEVICE; `skep gpu ls` lists them)"
        raise exits.CommandError(exits.USAGE, text)
    wish = {"node": arguments.node, "device": int(device), "quarantine": not arguments.undo}
    client_of(arguments).post("/v1/admin/quarantine", wish)
    if arguments.json:
        print_json(wish)
    elif arguments.undo:
        print(f"GPU {device} of {arguments.node} is taken back into use")
    else:
        print(f"GPU {device} of {arguments.node} counts as bad; what runs there goes on")
    return exits.OK


def _list_gpus(arguments: Namespace) -> int:
    client = client_of(arguments)
    if arguments.json:
        print_raw(client.get_bytes("/v1/gpus"))
        return exits.OK
    gpus = client.get("/v1/gpus")["gpus"]
    if not gpus:
        say("no GPUs: no node has joined (`skep node ls`, `skep doctor`)")
        return exits.OK
    render.show_table(
        [
            Column("NODE", [one["node"] for one in gpus]),
            Column("GPU", [str(one["index"]) for one in gpus], right=True),
            Column("TYPE", [one["type"] for one in gpus], drop=2),
            Column("MEMORY", [render.size(one["memory"]) for one in gpus], right=True, drop=3),
            Column("USED", [_percent(one.get("utilisation")) for one in gpus], right=True, drop=1),
            Column("JOB", [_jobs(one) for one in gpus]),
            Column("RANK", [_rank(one) for one in gpus], right=True, drop=4),
            Column("VC", [one["vc"] or "-" for one in gpus]),
            Column("NOTE", [_note(one) for one in gpus]),
        ]
    )
    held = sum(1 for one in gpus if one["job"])
    say(f"{held} of {render.plural(len(gpus), 'GPU')} held")
    _tell_blame(gpus)
    return exits.OK


def _jobs(one: dict[str, Any]) -> str:
    """Return the job that holds a GPU and those packed beside it: `j3+j5`."""
    return "+".join([one["job"] or "-", *one["beside"]])


def _percent(utilisation: float | None) -> str:
    return "-" if utilisation is None else f"{utilisation:.0f}%"


def _note(one: dict[str, Any]) -> str:
    notes = ["borrowed"] if one["borrowed"] else []
    notes += ["quarantined"] if one["quarantined"] else []
    return ", ".join([*notes, *(["blamed"] if one.get("blamed") else [])])


def _rank(one: dict[str, Any]) -> str:
    return "-" if one["rank"] is None or not one["job"] else str(one["rank"])


def options_node(parser: ArgumentParser) -> None:
    """Add what `node` takes."""
    verbs = ("ls", "drain", "undrain", "upgrade", *joining.VERBS)
    parser.add_argument("verb", choices=verbs, help="what to do")
    parser.add_argument(
        "nodes", metavar="NODE", nargs="*", help="nodes to change; for join: TOKEN@HOST[:PORT]"
    )
    joining.options_join(parser)
    rolling.options(parser, batch=True)


def run_node(arguments: Namespace) -> int:
    """List nodes, close them to work and open them; make, run, upgrade and remove nodes.

    Returns:
        The exit code; 1 if nodes were passed over, or are to be upgraded yet.

    Raises:
        CommandError: The command line names no node.
    """
    if arguments.verb in joining.VERBS:
        return joining.run_join(arguments)
    if arguments.verb == "ls":
        return _list(arguments)
    if arguments.verb == "upgrade":
        return rolling.upgrade_nodes(arguments, client_of(arguments))
    if not arguments.nodes:
        text = f"which node? (skep node {arguments.verb} NODE...; `skep node ls` lists them)"
        raise exits.CommandError(exits.USAGE, text)
    client = client_of(arguments)
    drain = arguments.verb == "drain"
    for node in arguments.nodes:
        client.post("/v1/admin/drain", {"node": node, "drain": drain})
        if not arguments.json:
            told = "takes no further work; what runs there goes on" if drain else "is open for work"
            print(f"{node} {told}")
    stakes = _stakes(client, arguments.nodes) if drain else {}
    if arguments.json:
        answer = {"nodes": arguments.nodes, "drain": drain}
        print_json({**answer, **({"if_stopped": stakes} if drain else {})})
    elif stakes:
        print("if the node is stopped while they run:")
        print("\n".join(render.printable(f"  {job}: {text}") for job, text in stakes.items()))
    return exits.OK


def _stakes(client: Client, nodes: Sequence[str]) -> dict[str, str]:
    """Return for each job on some nodes what becomes of its work when it is stopped."""
    try:
        rows = client.get("/v1/nodes")["nodes"]
    except (exits.CommandError, KeyError):
        return {}  # The nodes are drained all the same.
    return at_stake_of(client, (job for row in rows if row["node"] in nodes for job in row["jobs"]))


def _list(arguments: Namespace) -> int:
    if arguments.nodes:
        raise exits.CommandError(exits.USAGE, "`skep node ls` takes no node")
    client = client_of(arguments)
    if arguments.json:
        print_raw(client.get_bytes("/v1/nodes"))
        return exits.OK
    nodes = client.get("/v1/nodes")["nodes"]
    if not nodes:
        say("no node has joined (`skep doctor` says what is wrong)")
        return exits.OK
    now_ns = time.time_ns()
    render.show_table(
        [
            Column("NODE", [one["node"] for one in nodes]),
            Column("STATE", [one["state"] for one in nodes], coloured=True),
            Column("FREE", [f"{one['free']}/{one['gpus']}" for one in nodes], right=True),
            Column("TYPE", [one["gpu_type"] or "-" for one in nodes], drop=3),
            Column("CPUS", [str(one["cpus"]) for one in nodes], right=True, drop=4),
            Column("MEMORY", [render.size(one["memory"]) for one in nodes], right=True, drop=5),
            Column("HEARD", [_heard(one["last_heard_at"], now_ns) for one in nodes], right=True),
            Column("STARTS", [str(one["incarnation"]) for one in nodes], right=True, drop=6),
            Column("ADDRESS", [one["address"] or "-" for one in nodes], drop=2),
            Column("JOBS", [" ".join(one["jobs"]) or "-" for one in nodes], narrow=10, drop=7),
        ]
    )
    _tell_blame(nodes)
    return exits.OK


def _tell_blame(rows: Sequence[dict[str, Any]]) -> None:
    """Say which of some nodes or GPUs are blamed, and for what."""
    for one in rows:
        if one.get("blamed"):
            say(render.printable(one["blamed"]))


def _heard(at_ns: int | None, now_ns: int) -> str:
    return "never" if at_ns is None else f"{render.duration(max(0, now_ns - at_ns))} ago"


COMMANDS = {"gpu": Command(options_gpu, run_gpu), "node": Command(options_node, run_node)}
