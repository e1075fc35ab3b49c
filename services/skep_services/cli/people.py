"""`skep user`, `skep role` and `skep token`: people, what they may, and what they are known by."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import Client, is_header_text, query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import seconds
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column

NS_PER_S = 1_000_000_000
USER = {
    "ls": "people, their roles and how many tokens they have",
    "add": "NAME: let a person have an account (--oidc: it logs in at the provider)",
    "bind": "NAME SUBJECT: say which account at the provider is a person's (its `sub`)",
    "disable": "NAME: refuse all that a person asks for, at once",
    "enable": "NAME: take that back",
    "remove": "NAME: remove a person with its roles and tokens; its jobs and its name stay its own",
}
ROLE = {
    "ls": "[NAME]: the roles of people",
    "grant": "NAME ROLE: viewer, submitter or manager in --vc VC, or operator",
    "revoke": "NAME: take the role in --vc VC away (--operator: that of an operator)",
    "sync": "FILE: set the roles that follow from groups of a directory (LDAP)",
}
TOKEN = {
    "ls": "tokens of yours; of --person NAME, for operators",
    "create": "NAME: make one, for a device or a program of that name; it is shown once",
    "revoke": "ID: refuse a token from now on, and those that were made by it",
}


def _verbs(parser: ArgumentParser, verbs: dict[str, str]) -> None:
    told = "; ".join(f"{verb}: {text}" for verb, text in verbs.items())
    parser.add_argument("verb", choices=tuple(verbs), help=told)


def reason_option(parser: ArgumentParser) -> None:
    """Add the reason for the audit log."""
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for the audit log")


def changed(client: Client, path: str, body: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return the answer to a change.

    Raises:
        CommandError: It is refused, or the reason cannot be sent.
    """
    if not is_header_text(reason):
        raise CommandError(exits.USAGE, "--reason must be printable ASCII")
    answer: dict[str, Any] = client.post(path, body, {"Skep-Reason": reason} if reason else None)
    return answer


# --- people ---------------------------------------------------------------------------------------


def options_user(parser: ArgumentParser) -> None:
    """Add what `user` takes."""
    _verbs(parser, USER)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the person's name")
    parser.add_argument("subject", metavar="SUBJECT", nargs="?", help="bind: the account's `sub`")
    parser.add_argument("--full-name", metavar="TEXT", default="", help="add: the name in full")
    parser.add_argument(
        "--oidc", action="store_true", help="add: it logs in at the provider, not by tokens alone"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="add: the same person as before it was removed; it has its jobs and secrets again",
    )
    parser.add_argument("--issuer", metavar="URL", default="", help="bind: not the one in use")
    reason_option(parser)


def run_user(arguments: Namespace) -> int:
    """List people, or change one.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, or the gateway refuses.
    """
    verb, name = arguments.verb, arguments.name
    if verb == "ls":
        return _list_people(arguments, _roles_of)
    if not name:
        raise CommandError(exits.USAGE, f"which person? (skep user {verb} NAME)")
    body: dict[str, Any] = {"person": name}
    if verb == "add":
        body |= {"full_name": arguments.full_name, "oidc": arguments.oidc}
        # An earlier gateway knows no `again`, and would refuse it.
        body |= {"again": True} if arguments.again else {}
    if (verb == "bind") != bool(arguments.subject):
        text = "which account? (skep user bind NAME SUBJECT; no other verb takes one)"
        raise CommandError(exits.USAGE, text)
    if verb == "bind":
        body |= {"subject": arguments.subject, "issuer": arguments.issuer}
    answer = changed(client_of(arguments), f"/v1/people/{verb}", body, arguments.reason)
    if arguments.json:
        print_json({"person": name, **answer})
    elif answer["repeated"]:
        print(f"{name}: nothing to change")
    else:
        print(f"{name}: {DONE[verb]}")
        if verb == "add" and not arguments.oidc:
            say(f"a token for the first login: skep token create first --person {name}")
    return exits.OK


DONE = {
    "add": "added",
    "bind": "bound",
    "disable": "disabled",
    "enable": "enabled",
    "remove": "removed",
}


def _list_people(arguments: Namespace, roles: Callable[[dict[str, Any]], str]) -> int:
    people = client_of(arguments).get("/v1/people")["people"]
    if arguments.name:
        people = [row for row in people if row["person"] == arguments.name]
        if not people:
            raise CommandError(exits.NOT_FOUND, f"there is no person {arguments.name}")
    if arguments.json:
        print_json({"people": people})
        return exits.OK
    if not people:
        say("no people yet: skep user add NAME")
        return exits.OK
    render.show_table(
        [
            Column("PERSON", [row["person"] for row in people]),
            Column("FULL NAME", [row["full_name"] or "-" for row in people], drop=1),
            Column("LOGIN", [row["login"] for row in people], drop=2),
            Column("STATE", ["disabled" if row["disabled"] else "active" for row in people]),
            Column("TOKENS", [str(row["tokens"]) for row in people], right=True, drop=3),
            Column("ROLES", [roles(row) for row in people], narrow=20),
        ]
    )
    return exits.OK


def _roles_of(row: dict[str, Any]) -> str:
    roles = [f"{vc}:{role}" for vc, role in sorted(row["roles"].items())]
    return " ".join(["operator"] * row["operator"] + roles) or "-"


# --- roles ----------------------------------------------------------------------------------------


def options_role(parser: ArgumentParser) -> None:
    """Add what `role` takes."""
    _verbs(parser, ROLE)
    parser.add_argument("name", metavar="NAME|FILE", nargs="?", help="the person's name; a file")
    parser.add_argument(
        "role",
        metavar="ROLE",
        nargs="?",
        choices=("viewer", "submitter", "manager", "operator"),
        help="grant: viewer, submitter, manager or operator",
    )
    parser.add_argument("--vc", metavar="VC", default="", help="the virtual cluster")
    parser.add_argument("--operator", action="store_true", help="revoke: that of an operator")
    parser.add_argument(
        "--every", metavar="TIME", type=seconds, help="sync: again and again, such as 5m"
    )
    parser.add_argument("--dry-run", action="store_true", help="sync: change nothing, only say")
    reason_option(parser)


def run_role(arguments: Namespace) -> int:
    """List roles, grant one, revoke one, or set those that follow from groups.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, or the gateway refuses.
    """
    verb, name, role, vc = arguments.verb, arguments.name, arguments.role, arguments.vc
    if verb == "ls":
        return _list_people(arguments, _roles_of)
    if verb == "sync":
        from skep_services.cli import role_sync

        return role_sync.run(arguments)
    if not name:
        raise CommandError(exits.USAGE, f"whose role? (skep role {verb} NAME)")
    operator = role == "operator" if verb == "grant" else arguments.operator
    if verb == "grant" and not role:
        text = "which role? (skep role grant NAME viewer|submitter|manager --vc VC)"
        raise CommandError(exits.USAGE, text)
    if operator == bool(vc):
        text = "an operator is one of the whole cluster; every other role is of one --vc VC"
        raise CommandError(exits.USAGE, text)
    body = {"person": name, "vc": vc} | ({"role": role} if role else {})
    answer = changed(client_of(arguments), f"/v1/roles/{verb}", body, arguments.reason)
    if arguments.json:
        print_json({**body, **answer})
    else:
        where = f" of VC {vc}" if vc else ""
        told = f"is {role}{where}" if verb == "grant" else f"has no granted role{where} any more"
        print(f"{name} {told}")
    return exits.OK


# --- tokens ---------------------------------------------------------------------------------------


def options_token(parser: ArgumentParser) -> None:
    """Add what `token` takes."""
    _verbs(parser, TOKEN)
    parser.add_argument("name", metavar="NAME|ID", nargs="?", help="what it is for; or its id")
    parser.add_argument("--person", metavar="NAME", default="", help="another one than you")
    parser.add_argument(
        "--days", metavar="N", type=float, default=90.0, help="create: valid so long (default 90)"
    )
    reason_option(parser)


def run_token(arguments: Namespace) -> int:
    """List tokens, make one or revoke one.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, or the gateway refuses.
    """
    verb, name = arguments.verb, arguments.name
    client = client_of(arguments)
    if verb == "ls":
        return _list_tokens(arguments, client)
    if not name:
        what = "for what?" if verb == "create" else "which one?"
        raise CommandError(exits.USAGE, f"{what} (skep token {verb} {TOKEN[verb][:4]})")
    if verb == "revoke":
        path = f"/v1/tokens/{quote(name)}/revoke"
        answer = changed(client, path, {}, arguments.reason)
        print_json({"token": name, **answer}) if arguments.json else print(f"{name} is revoked")
        return exits.OK
    body = {"name": name, "person": arguments.person, "days": arguments.days}
    made = changed(client, "/v1/tokens", body, arguments.reason)
    if arguments.json:
        print_json(made)
        return exits.OK
    print(made["text"])
    until = date(made["expires_at"])
    say(f"token {made['token']} of {made['person']}, until {until}; it is not shown again")
    return exits.OK


def _list_tokens(arguments: Namespace, client: Client) -> int:
    tokens = client.get(query("/v1/tokens", person=arguments.person or None))["tokens"]
    if arguments.json:
        print_json({"tokens": tokens})
        return exits.OK
    if not tokens:
        say("no tokens")
        return exits.OK
    render.show_table(
        [
            Column("TOKEN", [row["token"] for row in tokens]),
            Column("PERSON", [row["person"] for row in tokens]),
            Column("NAME", [row["name"] for row in tokens], narrow=16),
            Column("STATE", [row["state"] for row in tokens]),
            Column("MADE", [date(row["at"]) for row in tokens], drop=1),
            Column("UNTIL", [date(row["expires_at"]) for row in tokens]),
            Column("USED", [_used(row) for row in tokens], drop=2),
        ]
    )
    return exits.OK


def _used(row: dict[str, Any]) -> str:
    """Return when a token was last used, as far as the gateway knows: since it began."""
    at = row.get("used_at")
    return date(at) if at else "-"


def date(instant: int) -> str:
    """Return an instant as a person reads it, in its own time zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(instant / NS_PER_S))


COMMANDS = {
    "user": Command(options_user, run_user),
    "role": Command(options_role, run_role),
    "token": Command(options_token, run_token),
}
