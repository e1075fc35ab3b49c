"""How a node joins: its keys are made here and stay here; what proves them comes from a server.

    own.key, bus.seed     made first, and kept: who repeats a join gets the same answer
    POST /v1/join         the token's secret, a certificate request, the public key on the bus
    own.pem, NAME.creds   what the answer adds to the keys
    node.json             last: a folder with it is a node

`renew` asks for both anew with the same keys, and shows that it has them by a signature.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from skep_services import durable
from skep_services.adapters import nats_access, nats_jwt, nats_keys
from skep_services.pki.certificates import CertificateError, describe
from skep_services.pki.requests import key_pem, new_key, request_of
from skep_services.servers import files
from skep_services.servers.address import Invitation, Place, parse_place
from skep_services.servers.files import FilesError, NodeFile
from skep_services.servers.joining import Door, JoinError, post
from skep_services.servers.versions import OWN
from skep_services.supervisor import home as folder

JOIN_PATH, RENEW_PATH = "/v1/join", "/v1/renew"
GATEWAY_PORT = 8470
RENEW_SHARE = 1 / 3
"""A certificate or an identity is renewed when less of its time is left."""
SIGNED_FOR = b"skep renew 1\n"
"""What a signature for a renewal begins with, so that it is one for nothing else."""


class AskJoin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node sends. `hosts` are for its certificate: none, for it serves nobody by it."""

    token: str
    secret: str
    node: str
    key: str
    request: str
    version: str
    hosts: tuple[str, ...] = ()


class AskRenew(msgspec.Struct, frozen=True, kw_only=True):
    """What a node sends for a new certificate. `at_s` is its time, in seconds since 1970."""

    key: str
    request: str
    at_s: int
    signature: str
    version: str


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What a node gets: its certificate and identity, and where the servers are."""

    cluster: str
    certificate: str
    authority: str
    jwt: str
    bus: tuple[str, ...]
    gateways: tuple[str, ...]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a person says about a node that joins; empty and None: it follows from the machine."""

    name: str = ""
    address: str = ""
    device: files.Device = "cpu"
    gpus: int | None = None
    gpu_type: str = ""
    ports: tuple[int, int] = files.GANG_PORTS
    checkpoints: str = ""
    job_log_days: int = 0


def join(home: str, invitation: Invitation, wanted: Wanted) -> NodeFile:
    """Have this machine join a cluster.

    Args:
        home: The state folder.
        invitation: The token, and a server's gateway.
        wanted: What the node is to be.

    Raises:
        FilesError: It is a node already, or the folder cannot be written.
        JoinError: The server cannot be reached or believed, or it refuses.
    """
    if files.has_node(home):
        known = files.read_node(home)
        text = (
            f"{home} is the node {known.name} of cluster {known.cluster} already: `skep node run`; "
            "to join anew, `skep node remove` it there and remove this folder"
        )
        raise FilesError(text)
    name = files.check_name(wanted.name or default_name(), "node")
    door = Door(invitation)
    files.make_folders(home, "tls", "creds")
    key, pair = own_key(home), own_pair(home)
    asked = AskJoin(
        token=door.token.id,
        secret=door.token.secret,
        node=name,
        key=pair.public,
        request=request_of(key, nats_access.node_identity(name)).decode("ascii"),
        version=OWN,
    )
    joined = read_joined(door.post(JOIN_PATH, msgspec.to_builtins(asked)))
    keep(home, name, joined, pair)
    file = NodeFile(
        cluster=joined.cluster,
        name=name,
        address=wanted.address or address_towards(door.place),
        bus=",".join(joined.bus),
        gateways=",".join(joined.gateways),
        device=wanted.device,
        gpus="auto" if wanted.gpus is None and wanted.device == "cuda" else wanted.gpus or 1,
        gpu_type=wanted.gpu_type or wanted.device,
        ports=wanted.ports,
        checkpoints=wanted.checkpoints,
        job_log_days=wanted.job_log_days,
    )
    files.write(files.node_path(home), file)
    return file


def read_joined(answer: Any) -> Joined:
    """Return what a server gave to a node.

    Raises:
        JoinError: The answer is none (`not-skep`).
    """
    try:
        return msgspec.convert(answer, Joined)
    except msgspec.ValidationError as error:
        text = f"the server's answer cannot be read: {error}"
        raise JoinError(text, "not-skep") from None


def keep(home: str, name: str, joined: Joined, pair: nats_jwt.Pair) -> None:
    """Write what a server gave to a node.

    Raises:
        JoinError: It does not fit the node's keys (`not-skep`).
        OSError: It cannot be written.
    """
    if nats_jwt.claims_of(joined.jwt).sub != pair.public:
        text = "the server's answer is for another key"
        raise JoinError(text, "not-skep")
    durable.write(files.tls_path(home, files.CA), joined.authority.encode(), folder.FILE_MODE)
    durable.write(
        files.tls_path(home, files.CERTIFICATE), joined.certificate.encode(), folder.FILE_MODE
    )
    creds = nats_jwt.credentials_text(joined.jwt, pair)
    path = files.creds_path(home, nats_access.node_identity(name))
    durable.write(path, creds.encode(), folder.FILE_MODE)


class Renewed(NamedTuple):
    """What a renewal changed: what proves the node, and where the servers are."""

    signed: bool = False
    moved: bool = False


def renew(home: str, *, force: bool = False, at: Place | None = None) -> Renewed:
    """Have what proves this node signed anew, if it has to be.

    Every gateway is tried until one answers.

    Args:
        home: The state folder.
        force: Whether or not it has to be.
        at: Where a gateway is now, if it has another address than those that are known.

    Raises:
        FilesError: There is no node.
        JoinError: No gateway answers, or it refuses.
    """
    file = files.read_node(home)
    if not force and not is_due(home, time.time()):
        return Renewed()
    key, pair = own_key(home), own_pair(home)
    request = request_of(key, nats_access.node_identity(file.name)).decode("ascii")
    at_s = int(time.time())
    signature = pair.sign(renewal_text(pair.public, request, at_s))
    asked = AskRenew(
        key=pair.public,
        request=request,
        at_s=at_s,
        signature=urlsafe_b64encode(signature).decode(),
        version=OWN,
    )
    authority = Path(files.tls_path(home, files.CA)).read_bytes()
    places = [at] if at is not None else places_of(file.gateways)
    answer = ask_any(places, authority, RENEW_PATH, msgspec.to_builtins(asked))
    joined = read_joined(answer)
    keep(home, file.name, joined, pair)
    changed = msgspec.structs.replace(
        file, bus=",".join(joined.bus), gateways=",".join(joined.gateways)
    )
    if changed != file:
        files.write(files.node_path(home), changed)
    return Renewed(signed=True, moved=changed != file)


def renewal_text(key: str, request: str, at_s: int) -> bytes:
    """Return what a node signs to have its certificate renewed."""
    return SIGNED_FOR + json.dumps([key, request, at_s]).encode()


def ask_any(places: list[Place], authority: bytes, path: str, value: Any) -> Any:
    """Return the answer of the first server that gives one.

    Raises:
        JoinError: One refuses, or none can be reached.
    """
    trouble = JoinError("no gateway is known", "unreachable")
    for place in places:
        try:
            return post(place, authority, path, value)
        except JoinError as error:
            if error.reason not in {"unreachable", "not-skep", "503", "502"}:
                raise
            trouble = error
    raise trouble


def is_due(home: str, now_s: float) -> bool:
    """Return whether the certificate or the identity of a node ends soon, or allows too little.

    An identity that an earlier version signed allows what agents of that version did.
    """
    file = files.read_node(home)
    path = files.tls_path(home, files.CERTIFICATE)
    creds = files.creds_path(home, nats_access.node_identity(file.name))
    try:
        own = describe(Path(path).read_bytes(), path)[0]
        claims = nats_jwt.claims_of(nats_jwt.read_credentials(Path(creds).read_text()).token)
    except (OSError, CertificateError, nats_jwt.TokenError):
        return True
    (user,) = nats_access.node_account(file.name).users
    if not nats_jwt.grants_as(claims, user):
        return True
    spans = [(own.begins_at, own.ends_at)]
    if claims.exp:
        spans.append((float(claims.iat), float(claims.exp)))
    return any(end - now_s < (end - begin) * RENEW_SHARE for begin, end in spans)


def own_key(home: str) -> ec.EllipticCurvePrivateKey:
    """Return the key of this machine's certificate; it is made if there is none.

    Raises:
        FilesError: The file holds something else.
    """
    path = files.tls_path(home, files.KEY)
    if not os.path.exists(path):
        durable.write(path, key_pem(new_key()), folder.FILE_MODE)
    try:
        key = load_pem_private_key(Path(path).read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        text = f"{path} holds no key of a node: remove it, and join again"
        raise FilesError(text)
    return key


def own_pair(home: str) -> nats_jwt.Pair:
    """Return this machine's key on the bus; it is made if there is none.

    Raises:
        FilesError: The file holds something else.
    """
    path = os.path.join(home, "creds", "bus.seed")
    if not os.path.exists(path):
        text = nats_keys.new_pair(nats_jwt.Kind.USER).seed_text + "\n"
        durable.write(path, text.encode(), folder.FILE_MODE)
    try:
        pair = nats_jwt.read_seed(Path(path).read_text(encoding="ascii"))
    except (ValueError, nats_jwt.TokenError):
        text = f"{path} holds no key of a node: remove it, and join again"
        raise FilesError(text) from None
    return pair


def default_name() -> str:
    """Return what this machine calls itself, as a node can be called."""
    short = socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "-", short).lstrip("-_")[:63]


def address_towards(place: Place) -> str:
    """Return the address by which this machine speaks to a server: others reach it there too."""
    try:
        infos = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)
    except OSError:
        infos = []
    for family, kind, number, _, address in infos:
        try:
            with socket.socket(family, kind, number) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def places_of(urls: str) -> list[Place]:
    """Return the hosts and ports of addresses with commas between."""
    return [
        parse_place(url.rpartition("://")[2].partition("/")[0], GATEWAY_PORT)
        for url in urls.split(",")
    ]
