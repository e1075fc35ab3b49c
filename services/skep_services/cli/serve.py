"""`skep serve` and `skep services`: replicas that answer requests, as one object."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import code, exits, render, specs
from skep_services.cli.client import Client, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.problems import refuse_wrong
from skep_services.cli.render import Column, printable
from skep_services.cli.submit import default_vc, encode

WAIT_PIECE_S = 25
"""What one request waits at most."""
WAIT_S = 600


def serve_options(parser: ArgumentParser) -> None:
    """Add what `skep serve` takes."""
    parser.add_argument(
        "file", metavar="FILE", help="the spec (YAML or JSON, - for standard input)"
    )
    parser.add_argument("--vc", help="the virtual cluster")
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key, as replicas=3 (repeatable)",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="have the service of that name be so, one replica after another",
    )
    parser.add_argument("--key", help="idempotency key: said again, it is the same service")
    _wait_options(parser)


def services_options(parser: ArgumentParser) -> None:
    """Add what `skep services` takes."""
    parser.add_argument("service", metavar="SERVICE", nargs="?", help="its name, VC.NAME or id")
    parser.add_argument("--vc", help="the virtual cluster")
    parser.add_argument("--all", action="store_true", help="list those that are over too")
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--scale", type=int, metavar="N", help="have N replicas")
    doing.add_argument("--stop", action="store_true", help="drain all replicas, and end it")
    _wait_options(parser)


def _wait_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--wait", action="store_true", help="until all replicas are ready; --stop: until it is over"
    )
    parser.add_argument("--timeout", type=int, default=WAIT_S, metavar="S", help="of --wait (s)")


# --- begin and update -------------------------------------------------------------------------


def serve(arguments: Namespace) -> int:
    """Begin or update one service; its spec is checked here first.

    Raises:
        CommandError: The file does not hold exactly one service, the service is wrong, or the
            gateway refuses.
    """
    client = client_of(arguments)
    documents = specs.read(arguments.file)
    if len(documents) != 1:
        raise CommandError(exits.USAGE, f"{arguments.file}: one service at a time, please")
    document = documents[0]
    tree = document.tree
    if isinstance(tree, dict):
        for assignment in arguments.assignments:
            specs.put(tree, assignment)
        if arguments.vc is not None:
            tree["vc"] = arguments.vc
        if tree.get("vc") is None:
            tree["vc"] = default_vc(client)
        if isinstance(tree.get("job"), dict):
            keeps_workdir = code.settle(tree["job"], arguments)
            specs.settle_paths(tree["job"], keeps_workdir=keeps_workdir)
    check(document)
    code.send(client, [{**tree["job"], "vc": tree["vc"]}], arguments)
    headers = {"Idempotency-Key": arguments.key or os.urandom(16).hex()}
    if arguments.update:
        name = f"{tree['vc']}.{tree['name']}"
        path = f"/v1/services/{quote(name)}"
        _, data = client.send("PUT", path, encode(tree), headers)
        answer = _decoded(data)
    else:
        answer = client.post_bytes("/v1/services", encode(tree), headers)
    again = ", as before" if answer.get("repeated") else ""
    done = "is being updated" if arguments.update else f"submitted{again}"
    return _told(arguments, client, answer, f"{answer['service']} {printable(tree['name'])} {done}")


def check(document: specs.Document) -> None:
    """Check a spec as the cluster will.

    Raises:
        CommandError: The spec is wrong; the error has every problem.
    """
    from skep.wire.service import parse_service_tree

    refuse_wrong(document, parse_service_tree(document.tree), "service")


def _decoded(data: bytes) -> Any:
    import json

    return json.loads(data)


# --- list, show and change --------------------------------------------------------------------


def services(arguments: Namespace) -> int:
    """List services, or show, scale or stop one.

    Raises:
        CommandError: There is none of that name, or several, or the gateway refuses.
    """
    client = client_of(arguments)
    if arguments.service is None:
        if arguments.scale is not None or arguments.stop or arguments.wait:
            raise CommandError(exits.USAGE, "say which service: skep services SERVICE --stop")
        return _list(arguments, client)
    name = _id_of(arguments, client)
    if arguments.stop:
        _, data = client.send("DELETE", f"/v1/services/{quote(name)}")
        return _told(arguments, client, _decoded(data), f"{name} is being stopped")
    if arguments.scale is not None:
        body = {"replicas": arguments.scale}
        answer = client.post(f"/v1/services/{quote(name)}/scale", body)
        return _told(arguments, client, answer, f"{name} is to have {arguments.scale} replicas")
    found = client.get(f"/v1/services/{quote(name)}")
    if arguments.wait:
        found = _waited(arguments, client, name)
    return _show(arguments, found)


def _id_of(arguments: Namespace, client: Client) -> str:
    """Return the id of the service that is named.

    Raises:
        CommandError: There is none of that name, or several.
    """
    given: str = arguments.service
    path = query("/v1/services", vc=arguments.vc, state="all" if _is_id(given) else None)
    listed = client.get(path)["services"]
    found = [
        one
        for one in listed
        if given in (one["service"], one["name"], f"{one['vc']}.{one['name']}")
    ]
    if not found:
        text = f"there is no service {given}: `skep services` lists them"
        raise CommandError(exits.NOT_FOUND, text, "unknown-service")
    if len(found) > 1:
        names = ", ".join(f"{one['vc']}.{one['name']}" for one in found)
        raise CommandError(exits.USAGE, f"there are several services {given}: say one of {names}")
    name: str = found[0]["service"]
    return name


def _is_id(text: str) -> bool:
    return text[:1] == "v" and text[1:].isascii() and text[1:].isdigit()


def _told(arguments: Namespace, client: Client, answer: Any, text: str) -> int:
    """Say what was asked for, wait for it if that is wanted, and show it then."""
    if not arguments.wait:
        if arguments.json:
            print_json(answer)
        else:
            print(text)
        return exits.OK
    if not arguments.json:
        say(text)
    return _show(arguments, _waited(arguments, client, answer["service"]))


def _waited(arguments: Namespace, client: Client, name: str) -> Any:
    """Return a service once all of its replicas are ready, or with --stop once it is over.

    Raises:
        CommandError: It was not so in time, or the service has ended before.
    """
    stopping = getattr(arguments, "stop", False)
    until = "over" if stopping else "ready"
    deadline = time.monotonic() + arguments.timeout
    while True:
        left = deadline - time.monotonic()
        wait_s = max(0, min(WAIT_PIECE_S, int(left) + 1))
        path = query(f"/v1/services/{quote(name)}", wait=until, timeout_s=str(wait_s))
        found = client.get(path, WAIT_PIECE_S + 10.0)
        if found["state"] == "over":
            if stopping:
                return found
            raise CommandError(exits.FAILED, f"{name} is over: {found['why']}", "already-ended")
        if not stopping and not found["updating"] and found["ready"] == found["wanted"]:
            return found
        if left <= 0:
            what = "over" if stopping else f"ready: {found['ready']} of {found['wanted']} are"
            text = f"{name} is not {what} after {arguments.timeout} s: skep services {name}"
            raise CommandError(exits.TIMEOUT, text)


def _list(arguments: Namespace, client: Client) -> int:
    state = "all" if arguments.all else None
    answer = client.get(query("/v1/services", vc=arguments.vc, state=state))
    found = answer["services"]
    if arguments.json:
        print_json(answer)
        return exits.OK
    if not found:
        say("no services: skep serve FILE")
        return exits.OK
    render.show_table(
        [
            Column("SERVICE", [one["service"] for one in found]),
            Column("NAME", [printable(one["name"]) for one in found], narrow=8),
            Column("VC", [one["vc"] for one in found], drop=3),
            Column("STATE", [_state(one) for one in found], coloured=True),
            Column("READY", [f"{one['ready']}/{one['wanted']}" for one in found], right=True),
            Column("REQUESTS/S", [f"{one['requests_per_s']:g}" for one in found], right=True),
            Column("P95", [_latency(one) for one in found], right=True, drop=1),
            Column("WHY", [one["why"] or "-" for one in found], drop=2),
        ]
    )
    return exits.OK


def _state(one: dict[str, Any]) -> str:
    return "updating" if one["state"] == "active" and one["updating"] else str(one["state"])


def _latency(one: dict[str, Any]) -> str:
    return f"{one['p95_ms']} ms" if one["p95_ms"] else "-"


def _show(arguments: Namespace, found: dict[str, Any]) -> int:
    if arguments.json:
        print_json(found)
        return exits.OK
    why = f" ({found['why']})" if found["why"] else ""
    detail = f": {printable(found['detail'])}" if found["detail"] else ""
    print(f"{found['service']}  {printable(found['name'])}  {_state(found)}{why}{detail}")
    most = f", up to {found['replicas_max']}" if found["replicas_max"] > found["wanted"] else ""
    print(f"  {'replicas':10} {found['ready']} of {found['wanted']} ready{most}")
    if found["scaled_at"]:
        when = render.clock_time(found["scaled_at"], date=True)
        print(f"  {'scaled':10} {when}, {found['scaled_why']}")
    print(f"  {'revision':10} {found['revision']}")
    print(
        f"  {'requests':10} {found['requests_per_s']:g} per second, 95 % within {_latency(found)}, "
        f"{found['open']} open"
    )
    print(f"  {'address':10} {found['url']} of the gateway")
    rows = found["rows"]
    if rows:
        print()
        render.show_table(
            [
                Column("REPLICA", [str(row["replica"]) for row in rows], right=True),
                Column("JOB", [row["job"] or "-" for row in rows]),
                Column("STATE", [row["stand"] for row in rows], coloured=True),
                Column("REVISION", [str(row["revision"]) for row in rows], right=True, drop=1),
                Column("NODE", [row["node"] or "-" for row in rows]),
                Column("OPEN", [str(row["open"]) for row in rows], right=True),
                Column("WHY", [row["why"] or "-" for row in rows], drop=2),
            ]
        )
    return exits.OK


COMMANDS = {"serve": Command(serve_options, serve), "services": Command(services_options, services)}
