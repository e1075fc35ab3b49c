"""`--on`: where the runs of a simulation or an experiment go on, and what is said of it."""

from __future__ import annotations

import os
import re
import secrets
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import client_of, say

if TYPE_CHECKING:
    from skep_services.cli.client import Client
    from skep_services.engines.deal import Engine
    from skep_services.engines.skep_jobs import Seen

HERE, RAY, AUTO, SKEP = "processes", "ray", "auto", "skep"
OUTSIDE = ("succeeded", "failed", "cancelled", "refused")
RUNNING = "running"
LISTEN = re.compile(r"(\[(?P<six>[0-9a-fA-F:]+)\]|(?P<host>[^:\[\]]+))(:(?P<port>\d{1,5}))?")
PORT_MAX = 65535
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104
"""No address that a node could be told."""
HELP = """\
where runs go on: processes of this machine (by itself), a Ray cluster (ray, HOST:PORT or
ray://HOST:PORT, with the extra `ray`), or jobs of the Skep cluster that SKEP_API or --home names
(skep). Everywhere the result is the same to the byte, and Ctrl-C ends all.
"""


def options(parser: ArgumentParser) -> None:
    """Add what says where runs go on."""
    parser.add_argument(
        "--processes",
        metavar="N",
        type=int,
        default=0,
        help="runs at a time here; default as many as processors",
    )
    parser.add_argument(
        "--on",
        metavar="ENGINE",
        default=HERE,
        help="processes (default), ray, HOST:PORT, ray://HOST:PORT or skep",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=int,
        default=0,
        help="runs at a time with --on; default for Ray as many as processors, for Skep 4 jobs",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST[:PORT]",
        help="--on skep: where its nodes reach this command; default the address of this machine "
        "towards the gateway, and any port",
    )


def engine(arguments: Namespace) -> Engine:
    """Return the engine that a command line names.

    Raises:
        CommandError: The options make no sense or do not go together.
    """
    from skep_services.engines.processes import Processes

    on = arguments.on
    if arguments.processes < 0 or arguments.workers < 0:
        raise CommandError(exits.USAGE, "--processes and --workers: 1 or more")
    if on == HERE:
        if arguments.workers or arguments.listen:
            text = "--workers and --listen go with --on; here it is --processes"
            raise CommandError(exits.USAGE, text)
        return Processes(arguments.processes)
    if arguments.processes:
        raise CommandError(
            exits.USAGE, f"--processes is for this machine; with --on {on} it is --workers"
        )
    if on == SKEP:
        return _on_skep(arguments)
    if arguments.listen:
        raise CommandError(exits.USAGE, "--listen goes with --on skep")
    if on not in (RAY, AUTO) and ":" not in on:
        text = f"--on {on}: write processes, ray, HOST:PORT, ray://HOST:PORT or skep"
        raise CommandError(exits.USAGE, text)
    from skep_services.engines.ray_actors import OnRay

    address = os.environ.get("RAY_ADDRESS") or AUTO if on == RAY else on
    return OnRay(address, arguments.workers)


@contextmanager
def errors() -> Iterator[None]:
    """Turn what goes wrong with an engine into the error of a command.

    Raises:
        CommandError: Something went wrong.
    """
    from skep_services.engines import task

    try:
        yield
    except task.FailedError as error:
        say(error.trace.rstrip())
        raise CommandError(exits.FAILED, str(error)) from None
    except task.UnusableError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    except task.UnreachableError as error:
        raise CommandError(exits.UNREACHABLE, str(error)) from None
    except task.EngineError as error:
        raise CommandError(exits.FAILED, str(error)) from None


# --- jobs of a Skep cluster -----------------------------------------------------------------------


def _on_skep(arguments: Namespace) -> Engine:
    """Return the engine of the cluster that the command line and the environment name.

    Raises:
        CommandError: There is no cluster, or nothing can listen where --listen says.
    """
    from skep_services.cli.client import PATIENCE_FOLLOWING_S
    from skep_services.cli.submit import default_vc
    from skep_services.engines.skep_jobs import OnSkep, listener

    client = client_of(arguments)
    vc = default_vc(client)
    client.patience_s = PATIENCE_FOLLOWING_S  # From now on the gateway may be away for a moment.
    host, port = _listen(arguments.listen) if arguments.listen else (_towards(client), 0)
    try:
        listener(host, port).close()
    except OSError as error:
        text = f"--listen {host}: this machine cannot listen there: {error}"
        raise CommandError(exits.USAGE, text) from None
    return OnSkep(GatewayJobs(client, vc), host, port, arguments.workers)


def _listen(text: str) -> tuple[str, int]:
    """Return host and port of HOST, HOST:PORT or [ADDRESS]:PORT.

    Raises:
        CommandError: The text is none of them, or names every address.
    """
    match = LISTEN.fullmatch(text)
    port = int(match["port"] or 0) if match is not None else 0
    host = "" if match is None else match["host"] or match["six"]
    if match is None or port > PORT_MAX or host in EVERYWHERE:
        reason = f"--listen {text}: write HOST or HOST:PORT, the address by which nodes reach this"
        raise CommandError(exits.USAGE, f"{reason} machine")
    return host, port


def _towards(client: Client) -> str:
    """Return the address by which this machine reaches the gateway."""
    family, _, _, _, there = socket.getaddrinfo(
        client.address.host, client.address.port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, socket.SOCK_DGRAM) as link:
        link.connect(there)  # Nothing is sent.
        address: str = link.getsockname()[0]
    return address


class GatewayJobs:
    """The jobs of one command at a gateway."""

    def __init__(self, client: Client, vc: str) -> None:
        self.client, self.vc = client, vc
        self.key = secrets.token_hex(8)
        self.submitted = 0

    def submit(self, command: Sequence[str], env: dict[str, str]) -> str:
        """Submit a job on one idle GPU; see `skep_jobs.Jobs`.

        Raises:
            CommandError: The cluster refuses it or cannot be reached.
        """
        from skep_services.cli import specs, submit

        self.submitted += 1
        name = f"runs-{self.submitted}"
        tree = {
            "name": name,
            "vc": self.vc,
            "command": list(command),
            "env": env,
            "service_class": "opportunistic",
        }
        document = specs.Document("a job for runs", tree, {})
        result = submit.send(self.client, document, f"{name}-{self.key}")
        if result["accepted"] is False:
            text = f"--on skep: VC {self.vc} refuses a job for runs: {'; '.join(result['where'])}"
            raise CommandError(exits.FAILED, text)
        return str(result["job"])

    def look(self, job: str) -> Seen:
        """Return how a job is; see `skep_jobs.Jobs`."""
        from skep_services.cli.client import quote
        from skep_services.cli.job_table import why_of
        from skep_services.engines.skep_jobs import Seen

        row = self.client.get(f"/v1/jobs/{quote(job)}")
        ended = row["state"] in OUTSIDE
        said = f"{row['state']} ({why_of(row)})" if why_of(row) else str(row["state"])
        return Seen(ended, row["state"] == RUNNING, len(row["attempts"]), said)

    def cancel(self, job: str) -> None:
        """Have a job end; see `skep_jobs.Jobs`."""
        from skep_services.cli.jobs import ask_cancel

        try:
            ask_cancel(self.client, job)
        except CommandError as error:
            if error.code == exits.UNREACHABLE:
                say(f"{job} was not cancelled: {error.text}")
