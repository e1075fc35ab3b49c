"""What every service's main does: settings, logs, bus, shell, health, and the exit code.

Exit codes: 0 asked to stop, 64 bad configuration, 70 the bus is beyond repair, 71 another process
owns the log, 72 the log is missing or corrupt, 73 the node's name is taken, 75 a message could not
be decided (the next process tries again, and the one after passes over it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import structlog

import skep
from skep.ids import is_token
from skep.units import Instant
from skep_services.adapters.nats_login import CredentialsError, Login
from skep_services.pki.files import TlsError, TlsFiles, bus_files, following_server, server_files
from skep_services.ports import (
    Bus,
    CorruptLogError,
    Delivery,
    MissingLogError,
    MissingStreamError,
    RefusedError,
    SupersededError,
)
from skep_services.shell import Shell
from skep_services.undecided import UndecidedError

EXIT_OK = 0
EXIT_CONFIGURATION = 64
EXIT_BUS = 70
EXIT_SUPERSEDED = 71
EXIT_LOG = 72
EXIT_NAME_TAKEN = 73
EXIT_UNDECIDED = 75


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a service is told by its environment."""

    service: str
    nats_url: str
    identity: str
    password: str
    state: Path
    environment: Mapping[str, str]
    peers: tuple[str, ...] = ()
    """The other processes of the same service, of which one at a time is active."""
    credentials: Path | None = None
    """Its credentials file for the bus; with it there is no password."""
    tls: TlsFiles | None = None
    """What it proves itself with on the bus, and whom it believes; None: nothing is encrypted."""


class ConfigurationError(Exception):
    """A variable is missing or wrong: the text says which, and what it should hold."""


class NameTakenError(Exception):
    """Another agent of this node's name is alive."""


class BeginAnewError(Exception):
    """What this process knows is of no use any more: it begins anew without it."""


def settings(service: str, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings in the environment; the state folder is made if there is none.

    Raises:
        ConfigurationError: A variable is missing or wrong.
    """

    def need(name: str, what: str) -> str:
        value = environment.get(name, "")
        if not value:
            text = f"{name} is not set: it must hold {what}"
            raise ConfigurationError(text)
        return value

    state = Path(need("SKEP_STATE", "the folder for this process's own state"))
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"SKEP_STATE: {error}"
        raise ConfigurationError(text) from error
    identity = need("SKEP_NATS_USER", "this process's name on the bus")
    nats_url = need("SKEP_NATS_URL", "the bus's address, such as nats://127.0.0.1:4222")
    try:
        tls = bus_files(nats_url, environment)
    except TlsError as error:
        raise ConfigurationError(str(error)) from error
    credentials = _credentials(environment)
    password = _password(environment)
    if credentials is None:
        password = password or need("SKEP_NATS_PASSWORD", "its password")
    return Settings(
        service=service,
        nats_url=nats_url,
        identity=identity,
        password=password,
        state=state,
        environment=environment,
        peers=_peers(environment, identity),
        credentials=credentials,
        tls=tls,
    )


def listen_at(text: str, default: str) -> tuple[str, int]:
    """Return host and port of SKEP_LISTEN.

    Args:
        text: Its value; empty: `default` holds.
        default: An address that would do, as the error shows it.

    Raises:
        ConfigurationError: It is not HOST:PORT.
    """
    host, _, port = (text or default).rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        message = (
            f"SKEP_LISTEN is {text!r}: it must be HOST:PORT, such as {default}, [::1]:PORT or "
            "*:PORT"
        )
        raise ConfigurationError(message)
    if ":" in bare and not host.startswith("["):
        message = f"SKEP_LISTEN is {text!r}: an address of IPv6 has brackets, as in [::1]:{port}"
        raise ConfigurationError(message)
    # An empty host is every address of the machine, of IPv4 and IPv6.
    return "" if bare == "*" else bare, int(port)


def server_context(
    chosen: Settings, host: str, trouble: Callable[[str], None]
) -> ssl.SSLContext | None:
    """Return what a service encrypts with to those that connect to it; None: it does not.

    Args:
        chosen: Its settings.
        host: The address that it listens on.
        trouble: Takes one line when files that were replaced cannot be used.

    Raises:
        ConfigurationError: Other machines would be served in plain text, or a file of the
            certificate cannot be used.
    """
    try:
        files = server_files(host, chosen.environment)
        return following_server(files, trouble) if files is not None else None
    except TlsError as error:
        raise ConfigurationError(str(error)) from error


def _credentials(environment: Mapping[str, str]) -> Path | None:
    """Return the credentials file that SKEP_NATS_CREDS names, or None.

    Raises:
        ConfigurationError: It cannot be used.
    """
    path = environment.get("SKEP_NATS_CREDS", "")
    if not path:
        return None
    try:
        Login(Path(path)).read()
    except CredentialsError as error:
        text = f"SKEP_NATS_CREDS: {error}"
        raise ConfigurationError(text) from error
    return Path(path)


def _password(environment: Mapping[str, str]) -> str:
    """Return what the file SKEP_NATS_PASSWORD_FILE holds, or nothing if none is named.

    Raises:
        ConfigurationError: The file cannot be read, or is empty.
    """
    path = environment.get("SKEP_NATS_PASSWORD_FILE", "")
    if not path:
        return ""
    try:
        password = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        text = f"SKEP_NATS_PASSWORD_FILE: {error}"
        raise ConfigurationError(text) from error
    if not password:
        text = f"SKEP_NATS_PASSWORD_FILE: {path} is empty"
        raise ConfigurationError(text)
    return password


def _peers(environment: Mapping[str, str], identity: str) -> tuple[str, ...]:
    text = environment.get("SKEP_PEERS", "")
    peers = tuple(peer.strip() for peer in text.split(",")) if text else ()
    if not all(is_token(peer) for peer in peers) or identity in peers:
        message = (
            f"SKEP_PEERS is {text!r}: it must list the other processes of this service by their "
            f"names on the bus, such as allocator-2, and not {identity} itself"
        )
        raise ConfigurationError(message)
    return peers


def logger(service: str) -> Any:
    """Return a logger that writes one JSON object per line to standard error."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    _log_of_modules(service)
    return structlog.get_logger(service=service)


def _log_of_modules(service: str) -> None:
    """Write what modules report by `logging` as the same lines, from `info` on."""
    about: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        lambda _logger, _method, event: {"service": service, **event},
    ]
    lines: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.JSONRenderer(serializer=lambda value, **_: _json(value).decode()),
    ]
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=lines, foreign_pre_chain=about)
    )
    modules = logging.getLogger("skep_services")
    modules.handlers[:] = [handler]
    modules.setLevel(logging.INFO)


def _json(value: Any, **_: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def write_lines(lines: Sequence[msgspec.Struct]) -> None:
    """Write log lines to standard error, all at once; each is one JSON object.

    A service decides thousands of events per second, and each has its line: the logger's own way,
    a chain of processors and a system call per line, would be a third of what a decision costs.
    """
    sys.stderr.buffer.write(_LINES.encode_lines(lines))
    sys.stderr.buffer.flush()


_LINES = msgspec.json.Encoder(enc_hook=str)


def run(service: str, main: Callable[[Settings, Any], Awaitable[None]]) -> NoReturn:
    """Run a service's main until it ends or SIGTERM comes, and exit with the code that says why."""
    log = logger(service)
    code = EXIT_OK
    try:
        asyncio.run(_until_stopped(main(settings(service), log)))
    except ConfigurationError as error:
        code = EXIT_CONFIGURATION
        log.error("bad configuration", error=str(error))
    except SupersededError as error:
        code = EXIT_SUPERSEDED
        log.error("superseded: another process owns the log", error=str(error))
    except (CorruptLogError, MissingLogError, MissingStreamError) as error:
        code = EXIT_LOG
        log.error("the log is missing or corrupt; not going on", error=str(error))
    except NameTakenError as error:
        code = EXIT_NAME_TAKEN
        log.error("refused", error=str(error))
    except BeginAnewError as error:
        code = EXIT_UNDECIDED
        log.warning("beginning anew", why=str(error))
    except UndecidedError as error:
        code = EXIT_UNDECIDED
        log.error("a message could not be decided; starting anew", error=str(error), exc_info=True)
    except (RefusedError, ConnectionError, BusLostError) as error:
        code = EXIT_BUS
        log.error("the bus is beyond repair", error=str(error))
    log.info("stopped", code=code)
    sys.stderr.flush()
    # Threads of a tracing exporter or a stuck call must not keep a stopped service alive.
    os._exit(code)


class BusLostError(Exception):
    """The connection cannot be repaired from within this process."""


async def _until_stopped(main: Awaitable[None]) -> None:
    """Await `main`; SIGTERM and SIGINT cancel it."""
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


class Fatal:
    """Turns an adapter's last word into an exception of the service's main."""

    def __init__(self) -> None:
        """Start with no such word."""
        self._raised: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: Exception) -> None:
        """Take the error; the first one counts."""
        if not self._raised.done():
            self._raised.set_exception(error)

    async def guard(self, work: Awaitable[None]) -> None:
        """Await `work`, or raise what was taken, whichever comes first.

        Raises:
            BusLostError: What was taken is an error that `run` has no exit code of its own for.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._raised), return_when=asyncio.FIRST_COMPLETED)
            if self._raised.done():
                error = self._raised.exception()
                assert error is not None
                known = (
                    MissingStreamError,
                    MissingLogError,
                    CorruptLogError,
                    RefusedError,
                    SupersededError,
                    NameTakenError,
                    BeginAnewError,
                )
                raise error if isinstance(error, known) else BusLostError(repr(error)) from error
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


class Health(msgspec.Struct, frozen=True):
    """What a process says of itself on `skep.v1.health.<identity>`.

    Of its `facts` the latest snapshot stands for `kept`; `keep_failed` says why a later one could
    not be stored.
    """

    service: str
    identity: str
    pid: int
    epoch: int
    positions: Mapping[str, int]
    facts: int
    kept: int
    keep_failed: str
    inbox: int
    dropped: int
    decide_us: Mapping[str, float]
    active_since: Instant = Instant(0)
    """When this process took over, by its own clock (wall-clock ns); 0 while it stands by."""
    passed_over: int = 0
    passed_latest: str = ""
    """Messages that were passed over because `decide` raises on them, and the latest of them."""
    stored: Mapping[str, int] = {}
    """How far of each stream what follows from it is stored."""
    foreign: int = 0
    foreign_latest: str = ""
    """Messages in fact streams that their owners did not write, and the latest of them."""
    version: str = ""
    """The version of Skep that it runs; earlier versions do not tell."""


async def answer_health(bus: Bus, chosen: Settings, shell: Shell[Any, Any], subject: str) -> None:
    """Answer requests on `subject` for the health of this process, from here on."""

    async def answer(asked: Delivery) -> None:
        health = Health(
            service=chosen.service,
            identity=chosen.identity,
            pid=os.getpid(),
            epoch=shell.epoch,
            positions=shell.positions,
            facts=shell.facts_applied,
            kept=shell.facts_kept,
            keep_failed=shell.keep_failed,
            inbox=shell.waiting,
            dropped=shell.dropped,
            decide_us=shell.decide_us(),
            active_since=shell.active_since,
            passed_over=shell.passed_over,
            passed_latest=shell.passed_latest,
            stored=shell.stored,
            foreign=shell.foreign.count,
            foreign_latest=shell.foreign.latest,
            version=skep.__version__,
        )
        if asked.reply:
            await bus.send(asked.reply, msgspec.json.encode(health), {})

    await bus.listen(subject, answer)


async def say_ready(shell: Shell[Any, Any], log: Any) -> None:
    """Log `ready` once the machine follows its inputs."""
    await shell.ready.wait()
    log.info("ready", epoch=shell.epoch, facts=shell.facts_applied, pid=os.getpid())
