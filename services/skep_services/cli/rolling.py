"""`skep node upgrade` and `skep server upgrade`: machine after machine, each until it is back.

What is looked at here is said by gateways; the order and the wait are in `servers.rolling`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import print_json, say
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from skep_services.servers.files import ServerFile
    from skep_services.servers.rolling import Machine, Rolled, Upgraded

WITHIN_S = 600.0
"""A person may be the one who installs it."""
WITHIN_S_MAX = 24 * 3600.0
PATIENCE_S = 60.0
"""A gateway may be away while the machine it is on is upgraded."""
INSTALL = "/opt/skep/bin/pip install skep=={version}"
NODE_BY_HAND = f"{INSTALL} && systemctl restart skep-node"
SERVER_BY_HAND = f"{INSTALL} && systemctl restart skep-server"
BACK_STATES = ("up", "drained")
LOST_BY = ("node-lost", "node-stopped", "node-fault", "not-started", "exit-unknown")
"""Ends of an attempt that a restart of its agent may be the cause of."""


def options(parser: ArgumentParser, *, batch: bool) -> None:
    """Add what `upgrade` takes.

    Args:
        parser: Takes the options.
        batch: Several machines may be upgraded at a time.
    """
    parser.add_argument("--to", default="", metavar="VERSION", help="upgrade: the version to have")
    parser.add_argument(
        "--via",
        default="",
        metavar="COMMAND",
        help="upgrade: what installs it on a machine, such as 'ssh root@{address} ...'; without it "
        "a person does",
    )
    parser.add_argument(
        "--check", action="store_true", help="upgrade: only say which machine runs what"
    )
    parser.add_argument(
        "--within",
        type=float,
        default=WITHIN_S,
        metavar="SECONDS",
        help=f"upgrade: how long a machine may take (default {WITHIN_S:.0f})",
    )
    if batch:
        parser.add_argument("--batch", type=int, default=1, metavar="N", help="upgrade: at a time")


def upgrade_nodes(arguments: Namespace, client: Client) -> int:
    """Upgrade nodes; return the exit code.

    Args:
        arguments: The command line.
        client: The gateway.

    Raises:
        CommandError: They cannot be upgraded, or one is not back.
    """
    from skep_services.servers.rolling import Machine, check_template
    from skep_services.servers.versions import check_ahead, check_step

    _check_numbers(arguments)
    client.patience_s = PATIENCE_S
    nodes = _Nodes(client)
    nodes.look()
    to = _version(arguments.to or nodes.cluster)
    unknown = [name for name in arguments.nodes if name not in nodes.rows]
    if unknown:
        text = f"no node {unknown[0]}: `skep node ls` lists them"
        raise CommandError(exits.NOT_FOUND, text)
    wanted = arguments.nodes or list(nodes.rows)
    machines = [
        Machine(name=name, address=nodes.rows[name]["address"], version=nodes.version(name))
        for name in wanted
    ]
    with _errors():
        check_ahead(to, nodes.cluster)
        for one in machines:
            check_step(one.version, to, one.name)
        if arguments.via:
            check_template(arguments.via, "{node}")
    open_ones = [one for one in machines if one.version != to]
    if arguments.check:
        return _tell_plan(arguments, machines, to, {n: nodes.rows[n]["state"] for n in wanted})
    away = [one.name for one in open_ones if nodes.rows[one.name]["state"] not in BACK_STATES]
    if away and arguments.nodes:
        text = f"{away[0]} is {nodes.rows[away[0]]['state']}: it is upgraded when it is up"
        raise CommandError(exits.FAILED, text, "not-up")
    for name in away:
        say(f"{name} is {nodes.rows[name]['state']}, and passed over")
    todo = [one for one in open_ones if one.name not in away]
    nodes.note_jobs([one.name for one in todo])
    return _roll(
        arguments,
        todo,
        to,
        batch=arguments.batch,
        by_hand=NODE_BY_HAND,
        missing=lambda one: nodes.missing(one, to),
        words=lambda one: nodes.words(one.name),
        passed=away,
    )


def upgrade_servers(arguments: Namespace, home: str, file: ServerFile) -> int:
    """Upgrade the servers of a cluster, this one last; return the exit code.

    Args:
        arguments: The command line.
        home: The state folder of this server.
        file: This server.

    Raises:
        CommandError: They cannot be upgraded, or one is not back.
    """
    from skep_services.servers.rolling import Machine, check_template
    from skep_services.servers.versions import OWN, check_step

    _check_numbers(arguments)
    to = _version(arguments.to or OWN)
    servers = _Servers(home, file)
    servers.look()
    machines = [
        Machine(name=one.name, address=one.hosts[0], version=servers.rows[one.name]["version"])
        for one in reversed(file.mine_first)
    ]
    with _errors():
        for one in machines:
            check_step(one.version, to, one.name)
        for name, version in servers.nodes().items():
            check_step(version, to, f"node {name}")
        if arguments.via:
            check_template(arguments.via, "{server}")
    if arguments.check:
        states = {name: _words(row) or "ok" for name, row in servers.rows.items()}
        return _tell_plan(arguments, machines, to, states)
    todo = [one for one in machines if one.version != to]
    if todo and (trouble := servers.trouble()):
        text = f"{trouble}: servers are upgraded while all are well (`skep server status`)"
        raise CommandError(exits.FAILED, text, "not-well")
    return _roll(
        arguments,
        todo,
        to,
        batch=1,
        by_hand=SERVER_BY_HAND,
        missing=lambda one: servers.missing(one, to),
        words=lambda _: ", all servers are ok",
        passed=[],
    )


# --- the two kinds of machines --------------------------------------------------------------------


class _Nodes:
    """What a gateway says of the nodes. `jobs` are those of each node before: their attempts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.rows: dict[str, dict[str, Any]] = {}
        self.cluster = ""
        self._services: dict[str, Any] = {}
        self._before: dict[str, int] = {}
        self.jobs: dict[str, dict[str, int]] = {}

    def look(self) -> None:
        self.rows = {row["node"]: row for row in self._client.get("/v1/nodes")["nodes"]}
        health = self._client.get("/v1/health")
        self.cluster = health.get("version", "")
        self._services = health.get("services", {})

    def version(self, name: str) -> str:
        return str(self._services.get(f"node-{name}", {}).get("version", ""))

    def note_jobs(self, names: Sequence[str]) -> None:
        """Note how the nodes are before anything is done."""
        for name in names:
            self._before[name] = self.rows[name]["incarnation"]
            self.jobs[name] = {
                job: max((one["attempt"] for one in self._attempts(job)), default=0)
                for job in self.rows[name]["jobs"]
            }

    def missing(self, one: Machine, to: str) -> str:
        """Return what a node lacks to be back.

        Raises:
            BrokenError: It is back, and a job of it is lost.
        """
        from skep_services.servers.rolling import BrokenError

        self.look()
        row = self.rows.get(one.name)
        if row is None:
            text = "it is no node of the cluster any more"
            raise BrokenError(text)
        if row["incarnation"] <= self._before[one.name]:
            return "its agent was not started anew"
        if row["state"] not in BACK_STATES:
            return f"it is {row['state']}"
        version = self.version(one.name)
        if not version:
            return "its agent does not answer"
        if version != to:
            return f"it runs skep {version}"
        for job, attempt in self.jobs[one.name].items():
            for each in self._attempts(job):
                if each["attempt"] == attempt and each["ended_why"] in LOST_BY:
                    text = f"it is back, and its job {job} was lost ({each['ended_why']})"
                    raise BrokenError(text)
        return ""

    def words(self, name: str) -> str:
        """Return what is said of the jobs of a node that is back."""
        jobs = self.jobs[name]
        return f", its {render.plural(len(jobs), 'job')} went on" if jobs else ""

    def _attempts(self, job: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.get(f"/v1/jobs/{quote(job)}")["attempts"]
        return found


class _Servers:
    """What a server sees of all servers."""

    def __init__(self, home: str, file: ServerFile) -> None:
        self._home, self._file = home, file
        self.rows: dict[str, dict[str, Any]] = {}

    def look(self) -> None:
        from skep_services.servers import status

        found = status.look(self._home, self._file)
        self.rows = {row["name"]: row for row in found["servers"]}

    def nodes(self) -> dict[str, str]:
        """Return the version of each node that tells one."""
        return {
            name: version for row in self.rows.values() for name, version in row["nodes"].items()
        }

    def trouble(self) -> str:
        """Return which server is not well, and why; empty: all are."""
        found = [(name, _words(row)) for name, row in self.rows.items()]
        return next((f"{name} is not well: {words}" for name, words in found if words), "")

    def missing(self, one: Machine, to: str) -> str:
        """Return what a server lacks to be back, or its cluster to be well."""
        self.look()
        version = self.rows[one.name]["version"]
        if version and version != to:
            return f"it runs skep {version}"
        return self.trouble()


def _words(row: dict[str, Any]) -> str:
    parts = [f"{part} {row[part]}" for part in ("meets", "gateway", "bus") if row[part] != "ok"]
    return ", ".join(parts)


# --- what both share ------------------------------------------------------------------------------


def _roll(
    arguments: Namespace,
    todo: Sequence[Machine],
    to: str,
    *,
    batch: int,
    by_hand: str,
    missing: Callable[[Machine], str],
    words: Callable[[Machine], str],
    passed: Sequence[str],
) -> int:
    from skep_services.servers.rolling import command_for, roll

    if arguments.via:
        with _errors():  # Before anything is done.
            commands = {one.name: command_for(arguments.via, one, to) for one in todo}
    else:
        commands = dict.fromkeys((one.name for one in todo), "")
    by_name = {one.name: one for one in todo}

    def begin(one: Machine) -> str:
        if commands[one.name]:
            say(f"{one.name}: {commands[one.name]}")
        else:
            say(f"{one.name}: type there as root: {by_hand.replace('{version}', to)}")
        return commands[one.name]

    def told(one: Upgraded) -> None:
        if not arguments.json:
            before = one.before or "an earlier version"
            more = words(by_name[one.name])
            print(f"{one.name}: {before} to {to}, back after {one.seconds:.1f} s{more}", flush=True)

    rolled = roll(
        todo, batch=batch, within_s=arguments.within, command=begin, missing=missing, told=told
    )
    if rolled.failed:
        raise _stopped(rolled, to)
    if arguments.json:
        print_json({"to": to, **_done(rolled), "passed_over": list(passed)})
    else:
        count = render.plural(len(rolled.done), "machine")
        print(f"{count} upgraded to {to}" if rolled.done else f"all run {to} already")
    return exits.FAILED if passed else exits.OK


def _stopped(rolled: Rolled, to: str) -> CommandError:
    first = rolled.failed[0]
    count = len(rolled.left)
    rest = (
        f"; {render.plural(count, 'machine')} not begun: {', '.join(rolled.left)}" if count else ""
    )
    text = (
        f"{first.name}: {first.text}; look at it there (journalctl -u 'skep-*'), then type "
        f"the same command again{rest}"
    )
    late = all(one.late for one in rolled.failed)
    return CommandError(
        exits.TIMEOUT if late else exits.FAILED,
        text,
        "not-back",
        to=to,
        failed={one.name: one.text for one in rolled.failed},
        **_done(rolled),
    )


def _done(rolled: Rolled) -> dict[str, Any]:
    return {
        "done": [
            {"name": one.name, "before": one.before, "seconds": one.seconds} for one in rolled.done
        ],
        "left": rolled.left,
    }


def _tell_plan(
    arguments: Namespace, machines: Sequence[Machine], to: str, states: dict[str, str]
) -> int:
    open_ones = [one.name for one in machines if one.version != to]
    if arguments.json:
        rows = [
            {"name": one.name, "version": one.version, "state": states[one.name]}
            for one in machines
        ]
        print_json({"to": to, "machines": rows, "left": open_ones})
    else:
        render.show_table(
            [
                Column("MACHINE", [one.name for one in machines]),
                Column("STATE", [states[one.name] for one in machines], coloured=True),
                Column("VERSION", [one.version or "-" for one in machines]),
                Column("TO", [to if one.version != to else "" for one in machines]),
            ]
        )
    return exits.FAILED if open_ones else exits.OK


def _check_numbers(arguments: Namespace) -> None:
    from skep_services.servers.rolling import BATCH_MAX

    if not 1 <= getattr(arguments, "batch", 1) <= BATCH_MAX:
        raise CommandError(exits.USAGE, f"--batch: 1 to {BATCH_MAX}")
    if not 0 < arguments.within <= WITHIN_S_MAX:
        raise CommandError(exits.USAGE, f"--within: seconds, up to {WITHIN_S_MAX:.0f}")


def _version(text: str) -> str:
    from skep_services.servers.versions import NUMBER

    if not NUMBER.fullmatch(text):
        raise CommandError(exits.USAGE, f"--to {text!r} is no version: write it as 0.3.0")
    return text


@contextmanager
def _errors() -> Iterator[None]:
    from skep_services.servers.rolling import RollingError
    from skep_services.servers.versions import VersionError

    try:
        yield
    except VersionError as error:
        raise CommandError(exits.FAILED, str(error), "versions-apart") from None
    except RollingError as error:
        raise CommandError(exits.USAGE, str(error)) from None
