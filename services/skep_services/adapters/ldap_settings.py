"""What `skep role sync` is told of a directory (LDAP), in a file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.roles import VC_ROLES, Role
from skep_services.pki.files import is_loopback


class DirectoryError(Exception):
    """Why the groups cannot be read, in one line."""


class LdapSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of `skep role sync`.

    `server` is ldaps://HOST, or ldap://HOST with `starttls` (without it on this machine only); `ca`
    is the file of the authority that it is believed by, empty: those of the system. Below `base`
    are the groups and their members. `groups` has, for each group, the role in each VC. `member` is
    the attribute of a group that has its members, `name` the one of a member that has its name.
    """

    server: str
    base: str
    groups: dict[str, dict[str, Role]]
    starttls: bool = False
    ca: str = ""
    bind_dn: str = ""
    password_file: str = ""
    member: str = "memberUid"
    name: str = "uid"


def read_settings(path: str) -> LdapSettings:
    """Return the settings in a file.

    Raises:
        DirectoryError: The file cannot be read, or does not hold them.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=LdapSettings)
    except (OSError, *UNDECODABLE) as error:
        text = f"{path}: {one_line(error)}"
        raise DirectoryError(text) from error
    roles = [role for vcs in found.groups.values() for role in vcs.values()]
    if any(role not in VC_ROLES for role in roles):
        text = f"{path}: a group gives roles in virtual clusters, and makes no operators"
        raise DirectoryError(text)
    parts = urlsplit(found.server)
    if parts.scheme not in ("ldap", "ldaps") or not parts.hostname:
        text = f"{path}: `server` is ldaps://HOST, or ldap://HOST with `starttls`"
        raise DirectoryError(text)
    plain = parts.scheme == "ldap" and not found.starttls
    if plain and not is_loopback(parts.hostname):
        text = f"{path}: {found.server} is not encrypted: use ldaps://, or `starttls`"
        raise DirectoryError(text)
    return found
