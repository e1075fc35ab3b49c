"""`skep node join | run | token | remove | install`: how a machine becomes a node, and is none."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import client_of, print_json, say
from skep_services.cli.server import (
    act_as_owner,
    home_of,
    invitation_of,
    show_units,
    told_installed,
)

if TYPE_CHECKING:
    from skep_services.servers.nodejoin import Wanted

VERBS = ("join", "run", "token", "remove", "renew", "install")
VALID_MINUTES = 60.0


def options_join(parser: ArgumentParser) -> None:
    """Add what the verbs of a machine take."""
    parser.add_argument("--name", default="", help="join, token: the node's (default: the host's)")
    parser.add_argument("--device", choices=("cuda", "cpu", "fake"), default="cpu", help="join")
    parser.add_argument("--gpus", type=int, help="join: how many (default: all, or 1 slot)")
    parser.add_argument("--gpu-type", default="", help="join: what its GPUs are called")
    parser.add_argument("--address", default="", help="join: where other nodes reach it")
    parser.add_argument("--gang-ports", default="", metavar="FIRST-LAST", help="join")
    parser.add_argument("--checkpoints", default="", metavar="DIR", help="join: shared storage")
    parser.add_argument(
        "--valid", type=float, default=VALID_MINUTES, metavar="MINUTES", help="token"
    )
    parser.add_argument("--count", type=int, default=1, help="token: how many tokens")
    parser.add_argument("--launcher", action="store_true", help="install: jobs as their owners")
    parser.add_argument("--print", action="store_true", help="install: only show the units")
    parser.add_argument("--start", action="store_true", help="install: and start them now")


def run_join(arguments: Namespace) -> int:
    """Do what the verb says.

    Returns:
        The exit code.

    Raises:
        CommandError: It cannot be done; the text is one line.
    """
    from skep_services.servers.files import FilesError
    from skep_services.servers.joining import JoinError

    arguments.place = arguments.nodes[0] if arguments.nodes else None
    if arguments.verb in {"join", "run", "renew"}:
        act_as_owner(_home(arguments))
    try:
        code: int = _DO[arguments.verb](arguments)
    except FilesError as error:
        raise CommandError(exits.FAILED, str(error)) from None
    except JoinError as error:
        code = exits.UNREACHABLE if error.reason == "unreachable" else exits.FAILED
        raise CommandError(code, str(error), error.reason) from None
    except PermissionError as error:
        text = f"{error.filename}: {error.strerror}: be root, or the account that owns it"
        raise CommandError(exits.FAILED, text) from None
    return code


def _home(arguments: Namespace) -> str:
    from skep_services.servers.files import NODE_HOME

    return home_of(arguments, NODE_HOME)


def _join(arguments: Namespace) -> int:
    from skep_services.servers import nodejoin

    home = _home(arguments)
    invitation = invitation_of(arguments, "skep node join", nodejoin.GATEWAY_PORT)
    file = nodejoin.join(home, invitation, _wanted(arguments))
    if arguments.json:
        print_json({"home": home, "node": file.name, "cluster": file.cluster, "bus": file.bus})
        return exits.OK
    option = f" --home {arguments.home}" if arguments.home else ""
    print(f"this machine is the node {file.name} of cluster {file.cluster}, at {file.address}")
    print(f"  next here        skep node install --start{option}    (or: skep node run{option})")
    return exits.OK


def _wanted(arguments: Namespace) -> Wanted:
    from skep_services.servers import files
    from skep_services.servers.address import is_host
    from skep_services.servers.nodejoin import Wanted
    from skep_services.supervisor.config import GPUS_MAX, ConfigError, parse_ports

    if arguments.gpus is not None and not 1 <= arguments.gpus <= GPUS_MAX:
        raise CommandError(exits.USAGE, f"--gpus {arguments.gpus}: a node has 1 to {GPUS_MAX}")
    if arguments.address and not is_host(arguments.address):
        text = f"--address {arguments.address}: neither a host name nor an address"
        raise CommandError(exits.USAGE, text)
    ports = files.GANG_PORTS
    if arguments.gang_ports:
        try:
            ports = parse_ports(arguments.gang_ports)
        except ConfigError:
            text = f"--gang-ports {arguments.gang_ports}: write FIRST-LAST, as 20000-20499"
            raise CommandError(exits.USAGE, text) from None
    return Wanted(
        name=arguments.name,
        address=arguments.address,
        device=arguments.device,
        gpus=arguments.gpus,
        gpu_type=arguments.gpu_type,
        ports=ports,
        checkpoints=arguments.checkpoints,
    )


def _run(arguments: Namespace) -> int:
    from skep_services.servers import nodejoin, noderun

    return noderun.run(_home(arguments), nodejoin.renew)


def _renew(arguments: Namespace) -> int:
    from skep_services.servers import nodejoin

    nodejoin.renew(_home(arguments), force=True)
    if arguments.json:
        print_json({"renewed": True})
    else:
        print("certificate and identity are new; the agent takes them in without a stop")
    return exits.OK


def _token(arguments: Namespace) -> int:
    if not 1 <= arguments.count <= 100:
        raise CommandError(exits.USAGE, "--count: 1 to 100")
    client = client_of(arguments)
    wish = {"kind": "node", "node": arguments.name, "minutes": arguments.valid}
    made = [client.post("/v1/join-tokens", wish) for _ in range(arguments.count)]
    place = _place(client.target.url)
    if arguments.json:
        print_json({"tokens": [one["text"] for one in made], "place": place})
        return exits.OK
    for one in made:
        print(f"skep node join {one['text']}@{place}")
    say(f"each is for one node, once, within {arguments.valid:g} minutes")
    return exits.OK


def _place(url: str) -> str:
    """Return what is typed behind a token's @ to reach a gateway."""
    from skep_services.servers.nodejoin import GATEWAY_PORT

    first = url.split(",", maxsplit=1)[0].rpartition("://")[2].partition("/")[0]
    return first.removesuffix(f":{GATEWAY_PORT}")


def _remove(arguments: Namespace) -> int:
    if not arguments.nodes:
        raise CommandError(exits.USAGE, "which node? (skep node remove NODE...)")
    client = client_of(arguments)
    for node in arguments.nodes:
        client.post("/v1/admin/drain", {"node": node, "drain": True})
        client.post(f"/v1/members/node/{node}/remove", {})
        if not arguments.json:
            print(
                f"{node} is removed: its key and certificate count no more; its jobs go elsewhere"
            )
    if arguments.json:
        print_json({"nodes": arguments.nodes, "removed": True})
    return exits.OK


def _install(arguments: Namespace) -> int:
    from skep_services.launcher.policy import SOCKET
    from skep_services.servers import files, install

    home = _home(arguments)
    units = install.node_units(home, apart=arguments.launcher)
    if arguments.print:
        return show_units(arguments, units)
    file = files.read_node(home)
    if arguments.launcher:
        install.write_policy()
        file.launcher = SOCKET
        files.write(files.node_path(home), file)
    install.put(units, home, install.NODE, start=arguments.start)
    return told_installed(arguments, units)


_DO: dict[str, Any] = {
    "join": _join,
    "run": _run,
    "token": _token,
    "remove": _remove,
    "renew": _renew,
    "install": _install,
}
