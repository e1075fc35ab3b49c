"""The gateway's part for people: what it knows of them, how it knows callers, and its routes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
from aiohttp import web

from skep.wire import subjects
from skep.wire.access import KeyKind
from skep_services.attempts import Attempts
from skep_services.gateway.accounts import Accounts
from skep_services.gateway.api import ApiError, Tokens
from skep_services.gateway.asking import Asking
from skep_services.gateway.authentication import Authentication, Guesses, Proxies
from skep_services.gateway.callers import Caller
from skep_services.gateway.intake import Intake
from skep_services.gateway.joins import Joins
from skep_services.gateway.logins import Logins
from skep_services.gateway.oidc import OidcSettings, Provider, read_settings
from skep_services.gateway.page_logins import PageLogins
from skep_services.gateway.people import NEWS, PeopleView
from skep_services.gateway.refused import Refusals
from skep_services.gateway.watch import Watch
from skep_services.pki.certificates import CertificateError, describe_file
from skep_services.ports import Bus, Clock
from skep_services.service import ConfigurationError

log = structlog.get_logger(service="gateway")

ON = "on"
CAUGHT_UP_S = 20.0
"""How long to read the log of people at the start, before anybody is answered."""
STREAM_S = 2.0


class PeopleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says of people.

    `on`: an access service runs. `fingerprint` is that of the authority that join tokens name.
    """

    on: bool = False
    oidc: OidcSettings | None = None
    proxies: str = ""
    fingerprint: str = ""
    environment: Mapping[str, str] = {}


NO_PEOPLE = PeopleSettings()


def people_settings(environment: Mapping[str, str]) -> PeopleSettings:
    """Return the settings in SKEP_PEOPLE, SKEP_OIDC, SKEP_PROXIES and SKEP_TLS_CA.

    Raises:
        ConfigurationError: One of them is wrong.
    """
    on = environment.get("SKEP_PEOPLE", "")
    if on not in ("", "off", ON):
        text = f"SKEP_PEOPLE is {on!r}: it must be `on` or `off`"
        raise ConfigurationError(text)
    proxies = environment.get("SKEP_PROXIES", "")
    try:
        Proxies(proxies)
    except ValueError as error:
        text = f"SKEP_PROXIES: {error}: it has addresses and networks, separated by commas"
        raise ConfigurationError(text) from error
    authority = environment.get("SKEP_TLS_CA", "")
    try:
        found = describe_file(Path(authority)) if authority else []
    except CertificateError as error:
        text = f"SKEP_TLS_CA: {error}"
        raise ConfigurationError(text) from error
    return PeopleSettings(
        on=on == ON,
        oidc=read_settings(environment.get("SKEP_OIDC", "")),
        proxies=proxies,
        fingerprint=found[0].fingerprint if found else "",
        environment=environment,
    )


class Peopled:
    """All of it together. `follow` what `view` is made of before the first answer."""

    def __init__(
        self,
        settings: PeopleSettings,
        tokens: Tokens,
        bus: Bus,
        clock: Clock,
        watch: Watch,
        intake: Intake,
    ) -> None:
        self._settings, self._bus, self._clock, self._watch = settings, bus, clock, watch
        self._tokens = tokens
        self.view = PeopleView(intake, watch) if settings.on else None
        self._asking = Asking(bus, watch)
        self._refusals = Refusals(self._asking, time.monotonic)
        self._provider = Provider(settings.oidc) if settings.oidc is not None else None
        view = self.view
        self.authentication = Authentication(
            tokens,
            lambda: view.people if view is not None else None,
            clock.now,
            Guesses(Attempts(time.monotonic)),
            Proxies(settings.proxies),
        )

    async def caught_up(self) -> None:
        """Return once all that is in the log now was read.

        Until then a token could be taken for good that a later record revokes.
        """
        view = self.view
        if view is None:
            return
        subject = f"$JS.API.STREAM.INFO.{subjects.ACCESS}"
        answer = await self._bus.request(subject, b"", {}, STREAM_S)
        last = _last_sequence(answer.payload) if answer is not None else 0
        if not await self._watch.until(NEWS, lambda: view.position >= last, CAUGHT_UP_S):
            log.warning("the log of people is behind", position=view.position, last=last)

    @property
    def services(self) -> tuple[str, ...]:
        """Return the services that run for it."""
        return ("access",) if self._settings.on else ()

    def is_removed(self, node: str) -> bool:
        """Return whether a node was taken out of the cluster, where nodes join by keys."""
        if self.view is None or not self._settings.environment.get("SKEP_CLUSTER"):
            return False
        return (KeyKind.NODE, node) not in self.view.people.places

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        accounts = Accounts(
            self.view,
            self._asking,
            self.authentication,
            self._clock,
            self._settings.fingerprint,
            self._settings.oidc.issuer if self._settings.oidc is not None else "",
        )
        environment = self._settings.environment
        joins = Joins(self.view, self._asking, self.authentication, self._clock, environment)
        key = self._tokens.key("nonces of logins")
        logins = Logins(
            self.view, self._asking, self.authentication, self._clock, self._provider, key
        )
        page_logins = PageLogins(logins, self._provider, self._clock, key)
        handlers = (accounts, joins, logins, page_logins)
        return [route for each in handlers for route in each.routes()]

    async def note(self, caller: Caller, action: str, target: str, vc: str = "") -> None:
        """Write an action into the audit log, before it is done; without people there is none.

        The operator's token of the file is the way in when all else is locked out: what is done by
        it while the access service is away is in the log of this gateway only.

        Raises:
            ApiError: The access service is away (503).
        """
        if not self._settings.on:
            return
        try:
            await self._asking.note(caller, action, target, vc)
        except ApiError as error:
            if caller.person or not caller.operator or error.status != 503:
                raise
            about = {"action": action, "target": target, "vc": vc, "source": caller.source}
            log.error("not in the audit log: the access service is away", **about)

    def refused(self, caller: Caller, request: web.Request, error: ApiError) -> None:
        """Take what was refused to a caller, for the audit log; without people there is none."""
        if self._settings.on:
            self._refusals.note(caller, request, error)

    async def close(self) -> None:
        """Close what was opened."""
        await self._refusals.close()
        if self._provider is not None:
            await self._provider.close()


class _State(msgspec.Struct, frozen=True):
    last_seq: int = 0


class _Info(msgspec.Struct, frozen=True):
    state: _State = _State()


def _last_sequence(payload: bytes) -> int:
    try:
        return msgspec.json.decode(payload, type=_Info).state.last_seq
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
