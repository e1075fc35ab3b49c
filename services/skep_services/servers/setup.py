"""Making a server: the authority, the keys of the bus, certificates, identities, `server.json`.

The first server makes what is secret (`create`), the others get it from it (`take`), and from then
on each has all of it: any of them can sign, so that any of them can be lost. What follows from it
(this server's certificate, its services' identities) is made anew by whoever starts the server, if
it is not there, about to expire, or not what this version of Skep needs.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skep_services import durable
from skep_services.adapters import nats_access, nats_jwt, nats_keys
from skep_services.pki.authority import Authority, Issued
from skep_services.pki.certificates import CertificateError, describe
from skep_services.servers import files
from skep_services.servers.address import is_address
from skep_services.servers.files import FilesError, Member, ServerFile
from skep_services.supervisor import home as folder
from skep_services.supervisor.config import new_token
from skep_services.vault import boxes

CERTIFICATE_DAYS = 90.0
RENEW_DAYS = 30.0
"""A certificate with less left is issued anew, at each start and once a day."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
"""What the services of a server call its own bus."""


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What all servers of a cluster share, and nobody else has. Whoever has it is the cluster."""

    authority: dict[str, str]
    bus: dict[str, str]
    vault: str
    """The key of the vault, in hexadecimal."""
    operator: str
    created_at_s: int

    def __repr__(self) -> str:
        return "Secrets(...)"


def create(home: str, file: ServerFile) -> Secrets:
    """Make a new cluster, whose first server this is.

    Args:
        home: The state folder.
        file: The server; it is written last, so that half a server is none.

    Raises:
        FilesError: There is a server or a cluster already, or the folder cannot be written.
    """
    refuse_taken(home)
    files.make_folders(home, "keys", "tls", "creds")
    keys = Path(files.keys_path(home))
    try:
        Authority.create(keys / "ca", file.cluster)
        nats_keys.create(keys / "bus")
    except (CertificateError, OSError) as error:
        text = f"{error}; remove {keys} if a first try failed, and nothing of it is in use"
        raise FilesError(text) from None
    shared = _secrets(keys, new_token(), int(time.time()))
    take(home, file, shared)
    return shared


def take(home: str, file: ServerFile, shared: Secrets) -> None:
    """Make this machine a server of a cluster whose secrets it was given.

    Args:
        home: The state folder.
        file: The server; it is written last.
        shared: The secrets.

    Raises:
        FilesError: The folder cannot be written.
    """
    files.make_folders(home, "keys", "keys/ca", "keys/bus", "tls", "creds")
    keys = Path(files.keys_path(home))
    for name, content in (*_named("ca", shared.authority), *_named("bus", shared.bus)):
        durable.write(str(keys / name), content.encode(), folder.FILE_MODE)
    durable.write(vault_key_path(home), bytes.fromhex(shared.vault), folder.FILE_MODE)
    durable.write(str(keys / "shared.json"), msgspec.json.encode(shared), folder.FILE_MODE)
    renew(home, file, force=True)
    files.write(files.server_path(home), file)
    write_cluster(home, file, shared)


def refuse_taken(home: str) -> None:
    """Refuse a folder that has a server or another cluster.

    Raises:
        FilesError: It has.
    """
    if files.has_server(home):
        text = f"{home} has a server already: `skep server status`; for another one use --home DIR"
        raise FilesError(text)
    if os.path.exists(folder.cluster_path(home)):
        text = f"{home} has a cluster of `skep up`: use another folder (--home DIR)"
        raise FilesError(text)


def read_secrets(home: str) -> Secrets:
    """Return what all servers share.

    Raises:
        FilesError: It cannot be read.
    """
    keys = Path(files.keys_path(home))
    path = keys / "shared.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Secrets)
        # The authority may have been replaced since: a server that joins gets the one of now.
        return msgspec.structs.replace(found, authority=_texts(keys / "ca"))
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        text = f"{path} cannot be used ({error}): restore it, or have this server join again"
        raise FilesError(text) from None


def vault_key_path(home: str) -> str:
    """Return the file of the vault's key, which all servers have."""
    return os.path.join(files.keys_path(home), "vault.key")


def authority(home: str) -> Authority:
    """Return the cluster's authority.

    Raises:
        CertificateError: Its files cannot be used.
    """
    return Authority.read(Path(files.keys_path(home), "ca"))


def bus_keys(home: str) -> nats_keys.BusKeys:
    """Return what signs identities on the bus.

    Raises:
        TokenError: The files are damaged.
        OSError: They cannot be read.
    """
    return nats_keys.read(Path(files.keys_path(home), "bus"))


def renew(home: str, file: ServerFile, *, force: bool = False) -> bool:
    """Issue this server's certificate anew if it has to be; return whether it was.

    Args:
        home: The state folder.
        file: The server.
        force: Whether or not it has to be.

    Raises:
        FilesError: It cannot be written.
    """
    hosts = tuple(dict.fromkeys((*file.me.hosts, *LOOPBACK_HOSTS)))
    signer = authority(home)
    durable.write(files.tls_path(home, files.CA), signer.trust, folder.FILE_MODE)
    path = files.tls_path(home, files.CERTIFICATE)
    if not force and not _is_due(path, signer):
        return False
    issued: Issued = signer.issue(file.name, hosts, CERTIFICATE_DAYS)
    try:
        issued.write(Path(path), Path(files.tls_path(home, files.KEY)))
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror}"
        raise FilesError(text) from None
    return True


def _is_due(path: str, signer: Authority) -> bool:
    try:
        with open(path, "rb") as file:
            own, *chain = describe(file.read(), path)
    except (OSError, CertificateError):
        return True
    signed = any(one.fingerprint == signer.fingerprint for one in chain)
    return not signed or own.days_left(time.time()) < RENEW_DAYS


def write_identities(home: str, file: ServerFile) -> list[str]:
    """Make the bus identities of this server's services; return those that were made.

    One that is there and may do what it should is kept: its key is in use.

    Raises:
        FilesError: They cannot be written.
    """
    keys, made = bus_keys(home), []
    wanted = {user.name: user for user in nats_access.service_users(file.size)}
    system = nats_access.system_account()
    wanted.update({user.name: user for user in system.users})
    for name in identities_of(file):
        path = files.creds_path(home, name)
        if _may_the_same(path, wanted[name]):
            continue
        account = system.name if name == nats_access.CLAIMS else nats_access.SERVICES_ACCOUNT
        text = keys.credentials(account, wanted[name], issued_at_s=int(time.time()))
        durable.write(path, text.encode(), folder.FILE_MODE)
        made.append(name)
    return made


def identities_of(file: ServerFile) -> list[str]:
    """Return the bus identities that a server's processes have."""
    services = (*nats_access.SERVICES, nats_access.VAULT)
    own = [service_identity(file, service) for service in services]
    people = (nats_access.OPERATOR, nats_access.BOOTSTRAP, nats_access.DOOR, nats_access.CLAIMS)
    return [*people, nats_access.NOTIFIER, *own]


def service_identity(file: ServerFile, service: str) -> str:
    """Return the bus identity of this server's process of a service."""
    return service if file.size == 1 else f"{service}-{file.number}"


def _may_the_same(path: str, user: nats_access.User) -> bool:
    try:
        with open(path, encoding="ascii") as file:
            claims = nats_jwt.claims_of(nats_jwt.read_credentials(file.read()).token)
    except (OSError, ValueError, nats_jwt.TokenError):
        return False
    return nats_jwt.grants_as(claims, user)


def write_cluster(home: str, file: ServerFile, shared: Secrets) -> None:
    """Write `cluster.json`: what the `skep` command needs to speak for the operator."""
    before = folder.read_json(folder.cluster_path(home)) or {}
    cluster = {
        "version": folder.CLUSTER_VERSION,
        "name": file.cluster,
        "nats": {
            "url": ",".join(one.url("tls", one.ports.bus) for one in file.mine_first),
            "tenants": ",".join(one.url("tls", one.ports.door) for one in file.mine_first),
            "users": {},
        },
        "gateway": {
            "url": ",".join(one.url("https", one.ports.gateway) for one in file.mine_first),
            "tokens": {"operator": shared.operator},
            "ca": files.tls_path(home, files.CA),
        },
        "nodes": [],
        "vcs": {},
        "supervisor": before.get("supervisor", {}),
    }
    folder.write_json(folder.cluster_path(home), cluster)


def default_hosts() -> tuple[str, ...]:
    """Return the addresses and the name by which others most probably reach this machine.

    The address first, because not every network has names for its machines.
    """
    found = [
        address
        for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
        if (address := _address_towards(family, far))
    ]
    return tuple(dict.fromkeys((*found, socket.gethostname())))


def _address_towards(family: int, far: str) -> str:
    """Return the address by which this machine would speak to `far`; nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return ""
    return address if is_address(address) else ""


def _secrets(keys: Path, operator: str, created_at_s: int) -> Secrets:
    return Secrets(
        authority=_texts(keys / "ca"),
        bus=_texts(keys / "bus"),
        vault=bytes(boxes.new_key()).hex(),
        operator=operator,
        created_at_s=created_at_s,
    )


def _texts(folder_of: Path) -> dict[str, str]:
    return {one.name: one.read_text(encoding="ascii") for one in folder_of.iterdir()}


def _named(part: str, content: dict[str, str]) -> Sequence[tuple[str, str]]:
    for name in content:
        if "/" in name or name.startswith("."):
            text = f"{name!r} is no name of a file of keys"
            raise FilesError(text)
    return [(f"{part}/{name}", text) for name, text in content.items()]


def new_member(name: str, hosts: Sequence[str], ports: files.Ports) -> Member:
    """Return a server by its names and addresses."""
    return Member(name=name, hosts=files.check_hosts(tuple(hosts)), ports=ports)


def new_secret() -> str:
    """Return a secret for a join token."""
    return secrets.token_urlsafe(24)
