"""`skep role sync FILE`: the roles that follow from the groups of a directory (LDAP)."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from skep_services.adapters.ldap_settings import DirectoryError, LdapSettings, read_settings
from skep_services.cli import exits
from skep_services.cli.client import Client
from skep_services.cli.exits import CommandError
from skep_services.cli.options import client_of, print_json, say

EVERY_S_MIN = 10.0
SHOWN_MAX = 10
REASON = "groups of the directory"

Groups = Mapping[str, Mapping[str, str]]
"""The role in each VC, by group or by person."""


def run(arguments: Namespace) -> int:
    """Set the roles that follow from groups, once or again and again.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The file is wrong, the directory cannot be read, or the gateway refuses.
    """
    if not arguments.name:
        raise CommandError(exits.USAGE, "which groups? (skep role sync FILE)")
    try:
        settings = read_settings(arguments.name)
    except DirectoryError as error:
        raise CommandError(exits.USAGE, str(error)) from error
    every_s = arguments.every
    if every_s is not None and every_s < EVERY_S_MIN:
        raise CommandError(exits.USAGE, f"--every is {EVERY_S_MIN:.0f} s or more")
    client = client_of(arguments)
    while True:
        try:
            _sync(arguments, settings, client)
        except CommandError as error:
            if every_s is None:
                raise
            say(f"skep role sync: {error.text}; tried again in {every_s:.0f} s")
        if every_s is None:
            return exits.OK
        time.sleep(every_s)


def _sync(arguments: Namespace, settings: LdapSettings, client: Client) -> None:
    """Set roles once.

    Raises:
        CommandError: The directory cannot be read, or the gateway refuses.
    """
    missing = {vc for roles in settings.groups.values() for vc in roles}
    missing -= {row["vc"] for row in client.get("/v1/vcs")["vcs"]}
    if missing:
        text = f"{arguments.name}: there is no VC {', '.join(sorted(missing))} (`skep vc ls`)"
        raise CommandError(exits.FAILED, text)
    try:
        from skep_services.adapters.ldap_groups import read_members
    except ImportError as error:
        text = "the package ldap3 is not installed: pip install 'skep[ldap]'"
        raise CommandError(exits.FAILED, text) from error
    try:
        members = read_members(settings)
    except DirectoryError as error:
        raise CommandError(exits.FAILED, str(error)) from error
    people = client.get("/v1/people")["people"]
    changes, strangers = planned(settings.groups, members, people)
    for person, roles in changes.items():
        if not arguments.dry_run:
            body = {"person": person, "roles": roles}
            client.post("/v1/group-roles", body, {"Skep-Reason": arguments.reason or REASON})
        if not arguments.json:
            told = " ".join(f"{vc}:{role}" for vc, role in sorted(roles.items())) or "-"
            print(f"{person}: {told}", flush=True)
    if arguments.json:
        print_json({"changes": changes, "strangers": strangers, "dry_run": arguments.dry_run})
        return
    if strangers:
        more = f" and {len(strangers) - SHOWN_MAX} more" if len(strangers) > SHOWN_MAX else ""
        say(f"no people here: {', '.join(strangers[:SHOWN_MAX])}{more} (skep user add NAME)")
    if not changes:
        say("roles are as the groups say")


def planned(
    groups: Groups, members: Mapping[str, Sequence[str]], people: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return what is to be changed, and the members that are no people of the cluster.

    Roles in VCs of which no group speaks stay.

    Args:
        groups: The roles that each group gives.
        members: The names in each group.
        people: The people as the gateway lists them.

    Returns:
        The roles from groups by person, where they change; and names.
    """
    from skep.wire.roles import Role

    wanted: dict[str, dict[str, str]] = {}
    for group, names in members.items():
        for name in names:
            roles = wanted.setdefault(name, {})
            for vc, role in groups[group].items():
                if vc not in roles or Role(role).covers(Role(roles[vc])):
                    roles[vc] = str(role)
    ours = {vc for roles in groups.values() for vc in roles}
    changes = {}
    for row in people:
        others = {vc: role for vc, role in row["groups"].items() if vc not in ours}
        roles = {**others, **wanted.get(row["person"], {})}
        if roles != row["groups"]:
            changes[row["person"]] = roles
    known = {row["person"] for row in people}
    # Names come from elsewhere: they are printed, and so only what is printable of them.
    strangers = sorted(ascii(name)[1:-1][:63] for name in wanted if name not in known)
    return changes, strangers
