"""`skep login`, `skep logout` and `skep whoami`: being known to a cluster as a person."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import credentials, exits
from skep_services.cli.client import CA, Client, Target, is_header_text
from skep_services.cli.credentials import Login
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.people import date

EXAMPLES = """\
  skep login https://skep.example.org             # at the provider, by a code
  skep login https://skep.example.org --browser   # at the provider, in a browser on this machine
  skep login https://skep.example.org --token     # by a token that an operator made; it is asked
"""


def options_login(parser: ArgumentParser) -> None:
    """Add what `login` takes."""
    parser.epilog = f"{EXAMPLES}\n{exits.HELP}"
    parser.add_argument("url", metavar="URL", nargs="?", help="the gateway (default SKEP_API)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--token", action="store_true", help="by a token, typed or on standard input")
    how.add_argument("--device", action="store_true", help="by a code that is typed in any browser")
    how.add_argument("--browser", action="store_true", help="in a browser on this machine")
    parser.add_argument("--ca", metavar="FILE", help="the file of the cluster's CA (SKEP_CA)")
    parser.add_argument("--name", metavar="TEXT", help="what the token is called (this host)")


def run_login(arguments: Namespace) -> int:
    """Get a token, see that it is good, and keep it.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The gateway, the provider or the person refuses.
    """
    known = None if arguments.url else credentials.find()
    url = arguments.url or os.environ.get("SKEP_API", "") or (known.url if known else "")
    if not url:
        raise CommandError(exits.USAGE, "which cluster? (skep login https://HOST:PORT)")
    ca = arguments.ca or os.environ.get(CA, "") or (known.ca if known else "")
    ca = os.path.abspath(ca) if ca else ""
    token = _typed() if arguments.token else _vouched(arguments, url, ca)
    if not is_header_text(token):
        raise CommandError(exits.USAGE, "this is no token: copy all of it, and nothing else")
    me = Client(Target(url, token, "", ca)).get("/v1/whoami")
    credentials.keep(Login(url, token, ca, me["name"]))
    if arguments.json:
        print_json({**me, "url": url})
    else:
        print(f"logged in to {url} as {me['name']}")
    return exits.OK


def _typed() -> str:
    """Return a token from standard input: an argument could be read by others."""
    if sys.stdin.isatty():
        return getpass.getpass("token: ").strip()
    return sys.stdin.readline().strip()


def _vouched(arguments: Namespace, url: str, ca: str) -> str:
    """Return a token for the person that the provider vouches for.

    Raises:
        CommandError: The cluster has no provider, or it refuses.
    """
    from skep_services.cli import flows

    client = Client(Target(url, "", "", ca))
    told = client.get("/v1/login")["oidc"]
    if told is None:
        text = "this cluster has no provider: log in by a token (skep login --token)"
        raise CommandError(exits.FAILED, text, "no-provider")
    asked = flows.Asked(**{key: told[key] for key in flows.Asked._fields})
    through = lambda body: dict(client.post("/v1/login/provider", body))  # noqa: E731
    provider = flows.Provider(asked, through if told.get("confidential") else None)
    nonce = ""
    if arguments.browser or (not arguments.device and not provider.has_devices):
        nonce = asked.nonce
        id_token = provider.by_browser(_open)
    else:
        id_token = provider.by_device(say, time.sleep)
    name = arguments.name or socket.gethostname()[:63] or "login"
    body = {"id_token": id_token, "nonce": nonce, "name": name}
    return str(client.post("/v1/login", body)["text"])


def _open(address: str) -> None:
    import webbrowser

    say(f"opening {address}")
    webbrowser.open(address)


def options_logout(parser: ArgumentParser) -> None:
    """Add what `logout` takes."""
    parser.add_argument("url", metavar="URL", nargs="?", help="the gateway (default: in use)")


def run_logout(arguments: Namespace) -> int:
    """Revoke the token of a login, and forget it.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: There is no such login, or the gateway cannot be reached.
    """
    login = credentials.find(arguments.url or "")
    if login is None:
        raise CommandError(exits.NOT_FOUND, "you are not logged in", "no-login")
    told = "its token is revoked"
    try:
        Client(Target(login.url, login.token, "", login.ca)).post("/v1/logout", {})
    except CommandError as error:
        # One that counts no more, or never was revocable, is forgotten all the same.
        if error.error["reason"] in {"not-believed", "unreachable"}:
            raise
        told = error.text.partition("\n")[0]
    credentials.forget(login.url)
    if arguments.json:
        print_json({"url": login.url, "person": login.person})
    else:
        print(f"logged out of {login.url}: {told}")
    return exits.OK


def options_whoami(parser: ArgumentParser) -> None:
    """Add what `whoami` takes: nothing of its own."""


def run_whoami(arguments: Namespace) -> int:
    """Show what the cluster takes this command for.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments)
    me: dict[str, Any] = client.get("/v1/whoami")
    if arguments.json:
        print_json({**me, "url": client.target.url})
        return exits.OK
    roles = ", ".join(f"{role} of {vc}" for vc, role in sorted(me["roles"].items()))
    what = "operator" if me["operator"] else roles or "no roles"
    print(f"{me['name']} at {client.target.url}: {what}")
    token = me.get("token")
    if token:
        print(f"token {token['token']} ({token['name']}), until {date(token['expires_at'])}")
    return exits.OK


COMMANDS = {
    "login": Command(options_login, run_login),
    "logout": Command(options_logout, run_logout),
    "whoami": Command(options_whoami, run_whoami),
}
