"""The operator's file of targets: `SKEP_NOTIFY`. It has passwords, so only its owner may read it.

[targets.team-chat]
url = "slack://..."             # any URL of Apprise
vcs = ["nlp"]                   # without it: every VC

[mail]                          # jobs may name mail addresses
url = "mailtos://user:password@smtp.example.org?from=skep@example.org"
domains = ["example.org"]       # without it: any

[webhooks]                      # jobs may name URLs
allow = true
hosts = ["hooks.example.org"]   # without it: any at a public address
networks = ["10.20.0.0/16"]     # beside public addresses
"""

from __future__ import annotations

import ipaddress
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from skep.ids import is_token
from skep.wire.bounds import UNDECODABLE, one_line
from skep.wire.notice_targets import TargetKind, kind_of, target_trouble
from skep.wire.notices import TargetShown
from skep.wire.reasons import Reason
from skep.wire.spec import Problem
from skep_services.notifier.addresses import Network, parse, trouble_of
from skep_services.service import ConfigurationError

FILE_BYTES_MAX = 256 * 1024
VARIABLE = "SKEP_NOTIFY"
NOT_INSTALLED = "Apprise is not installed: pip install 'skep[notify]'"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the file."""


class Target(_Part, frozen=True):
    """Something that the operator gave a name."""

    url: str
    vcs: tuple[str, ...] = ()


class Mail(_Part, frozen=True):
    """How mail is sent to addresses that jobs name."""

    url: str
    domains: tuple[str, ...] = ()


class Webhooks(_Part, frozen=True):
    """Which URLs jobs may name."""

    allow: bool = False
    hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()

    @property
    def allowed(self) -> tuple[Network, ...]:
        """Return the networks."""
        return tuple(ipaddress.ip_network(each) for each in self.networks)


class Config(_Part, frozen=True):
    """The file."""

    targets: dict[str, Target] = {}
    mail: Mail | None = None
    webhooks: Webhooks = Webhooks()

    def problems(self, vc: str, to: Sequence[str]) -> list[Problem]:
        """Return why jobs of a VC may not tell some targets.

        Args:
            vc: The VC.
            to: The targets, as `notify.to` has them.
        """
        found = ((at, self._problem(vc, target)) for at, target in enumerate(to))
        return [
            Problem(path=f"$.notify.to[{at}]", reason=why[0], text=why[1])
            for at, why in found
            if why is not None
        ]

    def _problem(self, vc: str, target: str) -> tuple[Reason, str] | None:
        match kind_of(target):
            case TargetKind.NAME:
                known = self.targets.get(target)
                if known is None:
                    names = [name for name, each in self.targets.items() if vc in (each.vcs or vc)]
                    those = f"there are {', '.join(names[:20])}" if names else "there are none"
                    return Reason.UNKNOWN_TARGET, f"there is no target `{target}`; {those}"
                if known.vcs and vc not in known.vcs:
                    return Reason.TARGET_NOT_ALLOWED, f"target `{target}` is not for VC {vc}"
            case TargetKind.MAIL:
                return self._mail_problem(target)
            case TargetKind.WEBHOOK:
                return self._webhook_problem(target)
            case None:
                return Reason.BAD_VALUE, target_trouble(target)
        return None

    def _mail_problem(self, target: str) -> tuple[Reason, str] | None:
        if self.mail is None:
            text = "mail addresses are not allowed here: the operator's file has no [mail]"
            return Reason.TARGET_NOT_ALLOWED, text
        domain = target.rpartition("@")[2].lower()
        if self.mail.domains and domain not in self.mail.domains:
            text = f"mail goes to {', '.join(self.mail.domains[:10])} only, not to {domain}"
            return Reason.TARGET_NOT_ALLOWED, text
        return None

    def _webhook_problem(self, target: str) -> tuple[Reason, str] | None:
        if not self.webhooks.allow:
            text = "URLs are not allowed here: name a target of the operator's (skep notify ls)"
            return Reason.TARGET_NOT_ALLOWED, text
        host = (urlsplit(target).hostname or "").lower()
        if self.webhooks.hosts and host not in self.webhooks.hosts:
            hosts = ", ".join(self.webhooks.hosts[:10])
            return Reason.TARGET_NOT_ALLOWED, f"webhooks may be at {hosts} only, not at {host}"
        literal = parse(host)
        why = trouble_of(literal, self.webhooks.allowed) if literal is not None else ""
        if host == "localhost" or host.endswith(".localhost"):
            why = f"{host} is this machine itself"
        return (Reason.TARGET_NOT_ALLOWED, why) if why else None

    def shown(self, vc: str | None) -> list[TargetShown]:
        """Return the targets that a VC (None: any) may use, without their URLs."""
        return [
            TargetShown(name=name, kind=urlsplit(each.url).scheme, vcs=each.vcs)
            for name, each in self.targets.items()
            if vc is None or not each.vcs or vc in each.vcs
        ]

    def apprise_url(self, target: str) -> str:
        """Return the URL by which Apprise reaches a name or a mail address that was allowed."""
        if kind_of(target) is TargetKind.NAME:
            return self.targets[target].url
        assert self.mail is not None
        parts = urlsplit(self.mail.url)
        query = [pair for pair in parse_qsl(parts.query) if pair[0].lower() != "to"]
        return urlunsplit(
            parts._replace(query=urlencode([*query, ("to", target)], quote_via=quote))
        )


def read(path: Path) -> Config:
    """Return what the file says.

    Raises:
        ConfigurationError: It cannot be used; the text never quotes a URL.
    """
    try:
        status = path.stat()
        text = path.read_bytes() if status.st_size <= FILE_BYTES_MAX else b""
    except OSError as error:
        message = f"{VARIABLE}: {path}: {error.strerror}"
        raise ConfigurationError(message) from error
    if status.st_size > FILE_BYTES_MAX:
        message = f"{VARIABLE}: {path} has more than {FILE_BYTES_MAX} bytes"
        raise ConfigurationError(message)
    if status.st_mode & 0o077:
        message = f"{VARIABLE}: {path} has passwords and can be read by others: chmod 600 {path}"
        raise ConfigurationError(message)
    try:
        config = msgspec.toml.decode(text, type=Config)
    except (*UNDECODABLE, ValueError) as error:
        message = f"{VARIABLE}: {path}: {one_line(error)}"
        raise ConfigurationError(message) from error
    if why := _trouble(config):
        message = f"{VARIABLE}: {path}: {why}"
        raise ConfigurationError(message)
    return config


def _trouble(config: Config) -> str:
    for name in config.targets:
        if not is_token(name):
            return f"`{name[:64]}` is no name of a target: letters, digits, `_` and `-`"
    for network in config.webhooks.networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            return f"webhooks.networks: {error}"
    urls = {f"targets.{name}.url": each.url for name, each in config.targets.items()}
    if config.mail is not None:
        urls["mail.url"] = config.mail.url
        if urlsplit(config.mail.url).scheme not in ("mailto", "mailtos"):
            return "mail.url is no mailto:// or mailtos:// URL of Apprise"
    if not urls:
        return ""
    instantiate = apprise_of()
    if instantiate is None:
        return NOT_INSTALLED
    for where, url in urls.items():
        if instantiate(url) is None:
            return f"{where} is no URL that Apprise knows (https://github.com/caronc/apprise)"
    return ""


def apprise_of() -> Any:
    """Return what makes a notification of an Apprise URL (None: the URL is wrong), if installed."""
    os.environ.setdefault("APPRISE_STORAGE_MODE", "memory")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of what it imports itself.
            from apprise import Apprise  # noqa: PLC0415 - an extra, and half a second
    except ImportError:
        return None

    def instantiate(url: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It imports what a URL needs when that is named.
            return Apprise.instantiate(url, suppress_exceptions=True)

    return instantiate
