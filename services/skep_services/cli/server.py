"""`skep server`: makes the servers of a cluster, runs them, and says how they are."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render, rolling, server_notify
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.render import Column

VERBS = (
    *("init", "join", "run", "status", "token"),
    *("rotate-certs", "ports", "install", "upgrade", "notify"),
)
SERVERS_PORT = 8471


def options_server(parser: ArgumentParser) -> None:
    """Add what `server` takes."""
    parser.add_argument("verb", choices=VERBS, help="what to do")
    parser.add_argument(
        "place",
        metavar="TOKEN@HOST|FILE",
        nargs="?",
        help="join: what was printed; notify: the file of targets",
    )
    parser.add_argument("--name", default="", help="init: the name of the cluster (default skep)")
    parser.add_argument(
        "--servers", type=int, choices=(1, 3), default=1, help="init: how many there will be"
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST",
        help="a name or address of this server; the first is the one that others use",
    )
    parser.add_argument("--listen", default="*", metavar="ADDRESS", help="default: every address")
    parser.add_argument(
        "--ports",
        action="append",
        default=[],
        metavar="PART=PORT",
        help="of gateway, servers, bus, door, routes",
    )
    parser.add_argument(
        "--vc", action="append", default=[], metavar="NAME=GPUS", help="init: a virtual cluster"
    )
    parser.add_argument("--cluster", metavar="FILE", help="init: a cluster file (its cells)")
    parser.add_argument(
        "--archive",
        default="",
        metavar="DIR",
        help="init: where old messages go, by `retention` of the cluster file; three servers share "
        "it (default: in the state folder)",
    )
    parser.add_argument("--replace", default="", metavar="NAME", help="join: in place of a server")
    parser.add_argument("--valid", type=float, default=60.0, metavar="MINUTES", help="token")
    parser.add_argument("--print", action="store_true", help="install: only show the units")
    parser.add_argument("--start", action="store_true", help="install: and start them now")
    server_notify.options(parser)
    rolling.options(parser, batch=False)


def run_server(arguments: Namespace) -> int:
    """Do what the verb says.

    Returns:
        The exit code.

    Raises:
        CommandError: It cannot be done; the text is one line.
    """
    from skep_services.servers.files import FilesError
    from skep_services.servers.joining import JoinError

    if arguments.verb not in ("join", "notify") and arguments.place:
        raise CommandError(
            exits.USAGE, f"`skep server {arguments.verb}` takes no {arguments.place}"
        )
    if arguments.verb not in ("install", "notify"):
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


def home_of(arguments: Namespace, default: str) -> str:
    """Return the state folder of a server or node."""
    given = arguments.home or os.environ.get("SKEP_HOME") or default
    return os.path.abspath(os.path.expanduser(given))


# --- making one -----------------------------------------------------------------------------------


def _init(arguments: Namespace) -> int:
    from skep_services.servers import files, setup

    home = _home(arguments)
    hosts = tuple(arguments.host) or setup.default_hosts()
    member = setup.new_member("server-1", hosts, _ports(arguments))
    name = files.check_name(arguments.name or "skep", "cluster")
    file = files.ServerFile(
        cluster=name,
        name="server-1",
        size=arguments.servers,
        members=[member],
        listen=_listen(arguments),
        archive=arguments.archive,
        **_cells(arguments),
    )
    files.check_retention(file, arguments.cluster or "--archive")
    setup.create(home, file)
    if arguments.json:
        print_json({"home": home, "cluster": name, "server": file.name, "hosts": list(hosts)})
        return exits.OK
    print(f"cluster {name} is made: this is server-1 of {arguments.servers}, known by {hosts[0]}")
    print(f"  state folder     {home} (secret: it holds the keys of the cluster)")
    option = _option(arguments)
    print(
        f"  next here        skep server install --start{option}    (or: skep server run{option})"
    )
    if arguments.servers > 1:
        each = f"(a token each: `skep server token{option}`)"
        print(f"  on two others    skep server join TOKEN@{hosts[0]}    {each}")
    else:
        print("  one server stays one; for three begin with `skep server init --servers 3`")
    return exits.OK


def _join(arguments: Namespace) -> int:
    import uuid

    import msgspec

    from skep_services.servers import files, meeting, setup
    from skep_services.servers.joining import Door, JoinError
    from skep_services.servers.versions import OWN
    from skep_services.supervisor import home as folder

    home = _home(arguments)
    invitation = invitation_of(arguments, "skep server join", SERVERS_PORT)
    hosts = tuple(arguments.host) or setup.default_hosts()
    member = setup.new_member("server-0", hosts, _ports(arguments))
    setup.refuse_taken(home)
    door = Door(invitation)
    files.make_folders(home)
    known = os.path.join(home, "machine")
    if not os.path.exists(known):
        folder.write_text(known, uuid.uuid4().hex)
    with open(known, encoding="ascii") as text:
        machine = text.read()
    asked = meeting.AskServer(
        id=door.token.id,
        secret=door.token.secret,
        machine=machine,
        hosts=member.hosts,
        ports=member.ports,
        version=OWN,
        replaces=arguments.replace,
    )
    answer = door.post(meeting.JOIN_PATH, msgspec.to_builtins(asked))
    try:
        joined = msgspec.convert(answer, meeting.ServerJoined)
    except msgspec.ValidationError as error:
        told = f"the server's answer cannot be read: {error}"
        raise JoinError(told, "not-skep") from None
    file = files.ServerFile(
        cluster=joined.cluster,
        name=joined.name,
        size=joined.size,
        revision=joined.revision,
        members=joined.members,
        listen=_listen(arguments),
        retention=joined.retention,
        archive=joined.archive,
        awaits_streams=joined.awaits_streams,
    )
    files.check_retention(file, "what the server says")
    setup.take(home, file, joined.secrets)
    if arguments.json:
        print_json({"home": home, "cluster": file.cluster, "server": file.name})
        return exits.OK
    print(f"this is {file.name} of cluster {file.cluster}, known by {hosts[0]}")
    missing = file.size - len(file.members)
    if missing:
        print(f"  still to come    {render.plural(missing, 'server')}")
    option = _option(arguments)
    print(
        f"  next here        skep server install --start{option}    (or: skep server run{option})"
    )
    return exits.OK


def invitation_of(arguments: Namespace, command: str, port: int) -> Any:
    """Return the token and the place that were typed.

    Args:
        arguments: The command line.
        command: What it is, for the error.
        port: The port if none was typed.

    Raises:
        CommandError: Nothing was typed, or it is not of the form.
    """
    from skep_services.servers.address import AddressError, parse_invitation

    if not arguments.place:
        raise CommandError(exits.USAGE, f"where to? ({command} TOKEN@HOST[:PORT])")
    try:
        return parse_invitation(arguments.place, port)
    except AddressError as error:
        raise CommandError(exits.USAGE, str(error)) from None


def _ports(arguments: Namespace) -> Any:
    from skep_services.servers.files import Ports

    given: dict[str, int] = {}
    for text in ",".join(arguments.ports).split(",") if arguments.ports else ():
        part, _, port = text.partition("=")
        if part not in Ports.__struct_fields__ or not port.isdecimal():
            told = (
                f"--ports {text}: write PART=PORT; parts are {', '.join(Ports.__struct_fields__)}"
            )
            raise CommandError(exits.USAGE, told)
        given[part] = int(port)
    try:
        return Ports(**given)
    except ValueError as error:
        raise CommandError(exits.USAGE, f"--ports: {error}") from None


def _listen(arguments: Namespace) -> str:
    from skep_services.servers.address import is_address

    listen: str = arguments.listen
    if listen != "*" and not is_address(listen):
        raise CommandError(exits.USAGE, f"--listen {listen}: write an address, or *")
    return listen


def _cells(arguments: Namespace) -> dict[str, Any]:
    """Return the first virtual clusters, and the cells they own.

    Raises:
        CommandError: They cannot be read, or are given twice.
    """
    from skep_services.cli import clusters
    from skep_services.supervisor.config import ConfigError, parse_vc

    if arguments.cluster:
        if arguments.vc:
            raise CommandError(exits.USAGE, "--vc or --cluster, not both")
        cells, kept = clusters.read_kept(arguments.cluster)
        return {
            **({"retention": kept} if kept is not None else {}),
            "vcs": cells.vcs,
            "chains": cells.chains,
            "pins": cells.pins,
            "quarantine": cells.quarantine,
            "volumes": cells.volumes,
        }
    try:
        return {"vcs": dict(map(parse_vc, arguments.vc))}
    except ConfigError as error:
        raise CommandError(exits.USAGE, str(error)) from None


def act_as_owner(home: str) -> None:
    """Go on as the account that a state folder belongs to, for good.

    Whoever has that account may have put links into the folder: root must not follow them.

    Args:
        home: The state folder.

    Raises:
        CommandError: The account cannot read this installation's Python.
    """
    try:
        found = os.stat(home)
    except FileNotFoundError:
        return
    if os.geteuid() == 0 and found.st_uid != 0:
        os.setgroups([])
        os.setgid(found.st_gid)
        os.setuid(found.st_uid)
        if not os.access(os.__file__, os.R_OK):
            raise CommandError(
                exits.FAILED,
                f"{home} is of account {found.st_uid}, which cannot read "
                f"{os.path.dirname(os.__file__)}: install Skep with a Python that all accounts can "
                "read, in /opt/skep for one",
            )


def _home(arguments: Namespace) -> str:
    from skep_services.servers.files import SERVER_HOME

    return home_of(arguments, SERVER_HOME)


def _option(arguments: Namespace) -> str:
    return f" --home {arguments.home}" if arguments.home else ""


# --- running one ----------------------------------------------------------------------------------


def _run(arguments: Namespace) -> int:
    from skep_services.servers import serving

    return serving.run(_home(arguments))


def _token(arguments: Namespace) -> int:
    from skep_services.servers import files, setup, tokens
    from skep_services.servers.address import hostport
    from skep_services.servers.meeting import ONE_STAYS_ONE

    home = _home(arguments)
    file = files.read_server(home)
    if file.size == 1:
        raise CommandError(exits.FAILED, ONE_STAYS_ONE, "one-stays-one")
    if not 0 < arguments.valid <= 24 * 60:
        raise CommandError(exits.USAGE, "--valid: 1 to 1440 minutes")
    token = tokens.make(
        home, setup.authority(home).fingerprint, time.time(), arguments.valid * 60.0
    )
    place = file.me.hosts[0]
    if file.me.ports.servers != SERVERS_PORT:
        place = hostport(place, file.me.ports.servers)
    if arguments.json:
        print_json({"token": str(token), "place": place, "valid_minutes": arguments.valid})
        return exits.OK
    print(f"skep server join {token}@{place}")
    say(
        f"valid once, for {arguments.valid:g} minutes. It gives the keys of the cluster away: "
        "type it on a server only"
    )
    return exits.OK


def _rotate(arguments: Namespace) -> int:
    import msgspec

    from skep_services.servers import files, setup

    home = _home(arguments)
    file = files.read_server(home)
    if arguments.host:
        hosts = files.check_hosts((*file.me.hosts, *arguments.host))
        me = msgspec.structs.replace(file.me, hosts=hosts)
        members = [me if one.name == me.name else one for one in file.members]
        file = msgspec.structs.replace(file, members=members, revision=file.revision + 1)
        files.write(files.server_path(home), file)
    setup.renew(home, file, force=True)
    from pathlib import Path

    from skep_services.pki.certificates import describe_file

    own = describe_file(Path(files.tls_path(home, files.CERTIFICATE)))[0]
    days = own.days_left(time.time())
    if arguments.json:
        print_json({"server": file.name, "days": round(days, 1), "hosts": list(file.me.hosts)})
    else:
        told = ", ".join(file.me.hosts)
        print(f"{file.name} has a new certificate, valid for {days:.0f} days: {told}")
        print("  what runs takes it in within seconds; nothing stops")
    return exits.OK


def _ports_list(arguments: Namespace) -> int:
    from skep_services.servers import files, firewall

    home = _home(arguments)
    if files.has_server(home):
        file = files.read_server(home)
        member, size = file.me, file.size
    else:
        member, size = files.Member(name="server-1", hosts=("HOST",)), 3
    found = firewall.openings(member, size, files.GANG_PORTS)
    if arguments.json:
        import msgspec

        print_json({"ports": msgspec.to_builtins(found)})
        return exits.OK
    render.show_table(
        [
            Column("OPEN ON", [one.machine for one in found]),
            Column("TCP", [one.ports for one in found], right=True),
            Column("TO", [one.by for one in found]),
            Column("WHAT", [one.what for one in found]),
        ]
    )
    return exits.OK


def _status(arguments: Namespace) -> int:
    from skep_services.servers import files, status

    home = _home(arguments)
    file = files.read_server(home)
    found = status.look(home, file)
    if arguments.json:
        print_json({**found, "servers": [_row(one) for one in found["servers"]]})
        return exits.OK if found["ok"] else exits.FAILED
    print(f"cluster {file.cluster}: this is {file.name} of {file.size}, {found['state']}")
    rows = found["servers"]
    render.show_table(
        [
            Column("SERVER", [one["name"] for one in rows]),
            Column("HOSTS", [" ".join(one["hosts"]) for one in rows], narrow=20),
            Column("MEETS", [one["meets"] for one in rows], coloured=True),
            Column("GATEWAY", [one["gateway"] for one in rows], coloured=True),
            Column("BUS", [one["bus"] for one in rows], coloured=True),
            Column("VERSION", [one["version"] or "-" for one in rows], drop=1),
        ]
    )
    return exits.OK if found["ok"] else exits.FAILED


def _row(one: dict[str, Any]) -> dict[str, Any]:
    """Return how a server is, without what it says of nodes: `skep node` tells that."""
    return {name: value for name, value in one.items() if name != "nodes"}


def _install(arguments: Namespace) -> int:
    from skep_services.servers import files, install

    home = _home(arguments)
    units = install.server_units(home)
    if arguments.print:
        return show_units(arguments, units)
    files.read_server(home)
    install.put(units, home, install.SERVER, start=arguments.start)
    return told_installed(arguments, units)


def show_units(arguments: Namespace, units: Any) -> int:
    """Print units and install nothing."""
    if arguments.json:
        print_json({one.name: one.text for one in units})
        return exits.OK
    for one in units:
        print(f"# /etc/systemd/system/{one.name}\n{one.text}")
    return exits.OK


def told_installed(arguments: Namespace, units: Any) -> int:
    """Say which units there are now."""
    names = [one.name for one in units]
    if arguments.json:
        print_json({"units": names, "started": arguments.start})
    elif arguments.start:
        print(f"installed, enabled and started: {', '.join(names)}")
    else:
        print(f"installed: systemctl enable --now {' '.join(names)}")
    return exits.OK


def _upgrade(arguments: Namespace) -> int:
    from skep_services.servers import files

    home = _home(arguments)
    return rolling.upgrade_servers(arguments, home, files.read_server(home))


def _notify(arguments: Namespace) -> int:
    return server_notify.run(arguments, _home(arguments), act_as_owner)


_DO = {
    "init": _init,
    "join": _join,
    "run": _run,
    "status": _status,
    "token": _token,
    "rotate-certs": _rotate,
    "ports": _ports_list,
    "install": _install,
    "upgrade": _upgrade,
    "notify": _notify,
}

COMMANDS = {"server": Command(options_server, run_server)}
