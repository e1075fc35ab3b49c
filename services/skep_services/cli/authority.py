"""`skep ca`: the cluster's authority, on the server that has it."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json
from skep_services.supervisor import home as folder

if TYPE_CHECKING:
    from skep_services.pki.authority import Authority

VERBS = ("show", "init", "issue", "trust", "begin", "switch", "end")
SERVERS = os.path.join("keys", "ca")
"""Where the state folder of a server has the authority."""
OTHERS = "pki"
NEXT_STEPS = {
    "begun": "put `skep ca trust` on every machine, then: skep ca switch",
    "switched": "have every certificate issued anew, then: skep ca end",
}


def options(parser: ArgumentParser) -> None:
    """Add what `ca` takes."""
    parser.add_argument("verb", choices=VERBS, help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="init: the cluster; issue: whose")
    parser.add_argument(
        "--host",
        metavar="HOST",
        action="append",
        default=[],
        help="issue: a name or an address at which it serves (repeatable; none: a client)",
    )
    parser.add_argument("--days", metavar="N", type=float, default=365.0, help="issue: valid for")
    parser.add_argument("--out", metavar="DIR", type=Path, help="issue, trust: where files go")
    parser.add_argument(
        "--authority", metavar="DIR", type=Path, help="its folder (default keys/ca in --home)"
    )
    parser.epilog = f"{EPILOG}\n{exits.HELP}"


EPILOG = """show     its fingerprint, when it ends, and how far a change of it is
init     make one; `skep server init` does so by itself
issue    NAME.pem, NAME.key and ca.pem in --out
trust    ca.pem in --out, or on standard output: what every machine has to believe
begin    the next authority is believed beside this one, and signs nothing
switch   it signs; this one is still believed
end      this one is believed no more, and all that it signed is refused"""


def run(arguments: Namespace) -> int:
    """Show, use or change the authority.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, or the authority or a file cannot be used.
    """
    from skep_services.pki.authority import Authority
    from skep_services.pki.certificates import CertificateError

    place = arguments.authority or _place(folder.home_folder(arguments.home))
    try:
        if arguments.verb == "init":
            return _show(arguments, Authority.create(place, _name(arguments, "which cluster?")))
        return _do(arguments, Authority.read(place))
    except CertificateError as error:
        raise CommandError(exits.FAILED, str(error)) from None
    except OSError as error:
        raise CommandError(exits.FAILED, f"{error.filename}: {error.strerror}") from None


def _place(home: str) -> Path:
    servers = Path(home, SERVERS)
    return servers if servers.exists() else Path(home, OTHERS)


def _name(arguments: Namespace, question: str) -> str:
    if not arguments.name:
        raise CommandError(exits.USAGE, f"{question} (skep ca {arguments.verb} NAME)")
    return str(arguments.name)


def _do(arguments: Namespace, authority: Authority) -> int:
    match arguments.verb:
        case "issue":
            return _issue(arguments, authority)
        case "trust":
            return _trust(arguments, authority)
        case "begin":
            authority = authority.begin_change()
        case "switch":
            authority = authority.switch_change()
        case "end":
            authority = authority.end_change()
        case _:
            pass
    return _show(arguments, authority)


def _show(arguments: Namespace, authority: Authority) -> int:
    from skep_services.pki.certificates import describe

    now = time.time()
    every = describe(authority.trust)
    if arguments.json:
        print_json(
            {
                "folder": str(authority.folder),
                "fingerprint": authority.fingerprint,
                "change": authority.change,
                "trust": [
                    {"name": one.name, "fingerprint": one.fingerprint, "ends_at": one.ends_at}
                    for one in every
                ],
            }
        )
        return exits.OK
    print(f"{every[0].name}, which signs, of {authority.folder}")
    print(f"  fingerprint {authority.fingerprint}")
    for one in every:
        print(f"  {one.name} ends in {render.plural(int(one.days_left(now)), 'day')}")
    if authority.change != "none":
        print(f"its change has {authority.change}: {NEXT_STEPS[authority.change]}")
    return exits.OK


def _issue(arguments: Namespace, authority: Authority) -> int:
    from skep_services import durable

    name = _name(arguments, "whose certificate?")
    out = arguments.out or Path()
    issued = authority.issue(name, arguments.host, arguments.days)
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {"certificate": out / f"{name}.pem", "key": out / f"{name}.key", "ca": out / "ca.pem"}
    issued.write(files["certificate"], files["key"])
    durable.write(str(files["ca"]), authority.trust)
    told: dict[str, Any] = {what: str(path) for what, path in files.items()}
    if arguments.json:
        print_json(told)
    else:
        print("\n".join(f"{what:<12} {path}" for what, path in told.items()))
    return exits.OK


def _trust(arguments: Namespace, authority: Authority) -> int:
    from skep_services import durable

    if arguments.out is None:
        print(authority.trust.decode("ascii"), end="")
        return exits.OK
    arguments.out.mkdir(parents=True, exist_ok=True)
    durable.write(str(arguments.out / "ca.pem"), authority.trust, 0o644)
    return exits.OK


COMMANDS = {"ca": Command(options, run)}
