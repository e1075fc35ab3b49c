"""What signs for the access service of a server: certificates by the authority, rights on the bus.

A node has an account of its own on the bus, and so has each person in each VC. The account is told
to all bus servers first, then its user's token is signed: whoever gets a token can use it. To take
a key back, its user is revoked in the account, which cuts its connections.
"""

from __future__ import annotations

import time
from pathlib import Path

from skep.machines.access.calls import Revoke, Sign
from skep.units import Instant, seconds
from skep.wire.access import Credentials, KeyKind
from skep_services.access.signer import SignError
from skep_services.adapters import nats_access
from skep_services.adapters.nats_access import Account
from skep_services.adapters.nats_claims import Resolver
from skep_services.adapters.nats_jwt import TokenError
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.pki.certificates import CertificateError, describe
from skep_services.servers import files, plan, setup, sources
from skep_services.servers.meeting import own_tls
from skep_services.service import Settings

NODE_DAYS = 90.0
"""Of a node's certificate and identity: it renews both when a third is left."""
PERSON_DAYS = 30.0
"""Of a person's identity on the bus."""
DAY_S = 86_400


def make(chosen: Settings) -> ServerSigner:
    """Return the signer of the server whose folder SKEP_HOME names."""
    return ServerSigner(chosen.environment["SKEP_HOME"])


class ServerSigner:
    """Signs by the keys in a server's folder.

    Args:
        home: The state folder.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._link: Link | None = None

    async def sign(self, wanted: Sign) -> Credentials:
        """Return what a key may be used with.

        Raises:
            SignError: The request or the key is none.
            OSError: The bus servers cannot be told now.
        """
        account = account_of(wanted.kind, wanted.name, wanted.vc)
        days = PERSON_DAYS if wanted.kind is KeyKind.PERSON else NODE_DAYS
        try:
            certificate = self._certificate(wanted, days)
        except CertificateError as error:
            raise SignError(str(error)) from error
        resolver = await self._resolver()
        await resolver.push(account)
        file, person = files.read_server(self._home), wanted.kind is KeyKind.PERSON
        issued_at_s = await resolver.issue_after_s(account.name, wanted.key)
        until_s = int(time.time() + days * DAY_S)
        try:
            token = setup.bus_keys(self._home).user_token(
                account.name,
                account.users[0],
                wanted.key,
                issued_at_s=issued_at_s,
                expires_at_s=until_s,
                sources=sources.networks(file, sources.read(self._home)) if person else (),
            )
        except TokenError as error:
            raise SignError(str(error)) from error
        ends = [float(until_s)]
        if certificate:
            ends.append(describe(certificate.encode())[0].ends_at)
        return Credentials(
            certificate=certificate,
            authority=setup.authority(self._home).trust.decode("ascii"),
            jwt=token,
            bus=tuple(
                one.url("tls", one.ports.door if person else one.ports.bus) for one in file.members
            ),
            until=Instant(seconds(min(ends))),
            details={
                "cluster": file.cluster,
                "gateways": ",".join(one.url("https", one.ports.gateway) for one in file.members),
            },
        )

    async def revoke(self, wanted: Revoke) -> None:
        """Have the bus refuse a key from now on, and cut its connections.

        Raises:
            OSError: The bus servers cannot be told now.
        """
        if wanted.kind is KeyKind.SERVER:
            return  # Nothing was signed for it.
        account = account_of(wanted.kind, wanted.name, wanted.vc)
        await (await self._resolver()).revoke(account, wanted.key)

    def _certificate(self, wanted: Sign, days: float) -> str:
        if not wanted.request:
            return ""  # A person proves itself by its identity alone.
        name = nats_access.node_identity(wanted.name)
        request = wanted.request.encode("ascii", "replace")
        # Without hosts it is a client's certificate: it cannot stand for a server.
        return setup.authority(self._home).sign(request, name, (), days).decode("ascii")

    async def _resolver(self) -> Resolver:
        file = files.read_server(self._home)
        if self._link is None:
            options = LinkOptions(
                servers=tuple(plan.bus_urls(file).split(",")),
                identity=nats_access.CLAIMS,
                password="",
                credentials=Path(files.creds_path(self._home, nats_access.CLAIMS)),
                tls=own_tls(self._home),
            )
            self._link = await Link.connect(options, on_fatal=self._lost)
        keys = setup.bus_keys(self._home)
        return Resolver(self._link, keys, file.size, lambda: int(time.time()))

    def _lost(self, _: Exception) -> None:
        self._link = None  # The next call connects anew.


def account_of(kind: KeyKind, name: str, vc: str) -> Account:
    """Return the account on the bus that a key is of.

    Raises:
        SignError: A server asks: those join by tokens of `skep server token`.
    """
    match kind:
        case KeyKind.NODE:
            return nats_access.node_account(name)
        case KeyKind.PERSON:
            return nats_access.person_account(vc, name)
        case KeyKind.SERVER:
            text = "a server joins by `skep server join`, with a token of `skep server token`"
            raise SignError(text)
