"""Members of groups in a directory (LDAP), read over an encrypted connection.

A group is an entry whose `cn` is its name. Its members are names of people (`memberUid`), or
entries (`member`, `uniqueMember`) that have those names. A group that is not there, or there twice,
stops everything: a wrong base or an empty directory must take no roles away.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ldap3
from ldap3.core.exceptions import LDAPException, LDAPNoSuchObjectResult
from ldap3.utils.conv import escape_filter_chars

from skep.wire.bounds import one_line
from skep_services.adapters.ldap_settings import DirectoryError, LdapSettings

CONNECT_S = 5.0
ANSWER_S = 10
MEMBERS_MAX = 10_000
"""Members of one group: as many as there may be people."""
NAMES_HAVE = ("memberuid",)
"""Attributes that have names of people, and no entries."""


def read_members(settings: LdapSettings) -> dict[str, list[str]]:
    """Return the names of the members of each group.

    Raises:
        DirectoryError: The directory cannot be read, or lacks a group.
    """
    try:
        connection = _connected(settings)
        try:
            names: dict[str, str] = {}
            return {
                group: list(_members(connection, settings, group, names))
                for group in settings.groups
            }
        finally:
            connection.unbind()
    except (LDAPException, OSError, ValueError) as error:
        text = f"{settings.server}: {one_line(error) or type(error).__name__}"
        raise DirectoryError(text) from error


def _connected(settings: LdapSettings) -> Any:
    password = None
    if settings.password_file:
        password = Path(settings.password_file).read_text(encoding="utf-8").rstrip("\n")
    tls = ldap3.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=settings.ca or None)
    server = ldap3.Server(settings.server, tls=tls, connect_timeout=CONNECT_S, get_info=ldap3.NONE)
    bind = ldap3.AUTO_BIND_TLS_BEFORE_BIND if settings.starttls else ldap3.AUTO_BIND_NO_TLS
    return ldap3.Connection(
        server,
        user=settings.bind_dn or None,
        password=password,
        auto_bind=bind,
        receive_timeout=ANSWER_S,
        auto_referrals=False,
        raise_exceptions=True,
        read_only=True,
    )


def _members(
    connection: Any, settings: LdapSettings, group: str, names: dict[str, str]
) -> Iterator[str]:
    """Yield the names of a group's members; `names` keeps those of entries, which are in several.

    Raises:
        DirectoryError: There is no such group, or it has too many members.
    """
    wanted = f"(cn={escape_filter_chars(group)})"
    member = settings.member
    connection.search(settings.base, wanted, ldap3.SUBTREE, attributes=[member])
    entries = list(_entries(connection))
    if len(entries) != 1:
        text = f"there are {len(entries)} groups {group} below {settings.base}, and not one"
        raise DirectoryError(text)
    values = [value.decode() for value in _values(entries[0], member)]
    if len(values) > MEMBERS_MAX:
        text = f"the group {group} has more than {MEMBERS_MAX} members"
        raise DirectoryError(text)
    for value in values:
        if member.lower() in NAMES_HAVE:
            yield value
            continue
        if value not in names:
            names[value] = _name_of(connection, settings, value)
        if names[value]:
            yield names[value]


def _name_of(connection: Any, settings: LdapSettings, entry: str) -> str:
    """Return the name of a member; empty: it is gone, or has none."""
    try:
        connection.search(entry, "(objectClass=*)", ldap3.BASE, attributes=[settings.name])
    except LDAPNoSuchObjectResult:
        return ""
    found = [value for each in _entries(connection) for value in _values(each, settings.name)]
    return found[0].decode() if found else ""


def _entries(connection: Any) -> Iterable[dict[str, Any]]:
    return (each for each in connection.response if each["type"] == "searchResEntry")


def _values(entry: dict[str, Any], attribute: str) -> list[bytes]:
    found = {name.lower(): values for name, values in entry["raw_attributes"].items()}
    values: list[bytes] = found.get(attribute.lower(), [])
    return values
