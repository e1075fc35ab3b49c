"""The one connection of a process to NATS: kept alive, watched, and never believed.

The client library reconnects by itself, but it can also stop reading while it calls itself
connected, lose the reconnect task, or close for good. So three things are checked from outside:

- every WATCH_EVERY_S an empty message is sent through the server to this process; three misses in
  a row force a reconnect, three more end the process (`on_fatal`);
- the library's read and reconnect tasks must be alive;
- a connection that closes without being asked ends the process.

A call (request and answer) that is in flight when the connection drops is answered LOST at once,
so its owner repeats it as soon as the link is up, instead of waiting for its timeout. Calls wait
for the link before they are sent: the library's buffer would deliver them long after their owners
gave up.

Callbacks given to the library only note what happened. One that raises or waits for an answer
would stop the library's read loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
import random
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from skep.units import KIB
from skep.wire import subjects
from skep_services.adapters.nats_client import NUID, Client, Msg, RawSubscription, Server, errors
from skep_services.adapters.nats_login import CredentialsError, Login
from skep_services.pki.failures import explain, is_final
from skep_services.pki.files import Fresh, TlsError, TlsFiles, fresh_client
from skep_services.ports import RefusedError

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2
CONNECT_PAUSE_S = 0.1
"""Between attempts of the first connection, which usually waits for a server that just starts."""
CANCEL_AGAIN_S = 0.1
PING_EVERY_S = 5
PINGS_MISSED_MAX = 2
RECONNECT_FIRST_S = 0.05
RECONNECT_PAUSE_S_MAX = 1.0
"""The mean pause before an attempt doubles from the first, because a server that was only
restarted is back in 30 ms, to the last. Each is drawn between half and one and a half of the mean,
so that a thousand agents do not come back in the same instant."""
FLUSH_TIMEOUT_S = 2.0
PENDING_BYTES_MAX = 256 * KIB
"""What is kept for sending while disconnected, and what may wait unsent while connected. Small,
because what waits here is core messages, and those are stale by the time the link is back."""

WATCH_EVERY_S = 2.0
WATCH_TIMEOUT_S = 1.0
WATCH_MISSES_MAX = 3
RECONNECT_STUCK_S = 15.0
"""How long a reconnect may make no attempt at all; each attempt is bounded by CONNECT_TIMEOUT_S."""
CLOSE_TIMEOUT_S = 2.0
REFUSED_LOGINS_MAX = 3
"""A server refuses a login for a moment while it reloads its users; three times is an answer."""
VIOLATIONS_MAX = 64
"""Distinct subjects remembered for the statistics; beyond that only the count goes on."""

TOO_MANY_CONNECTIONS = "maximum account active connections exceeded"
"""What the server says to a login beyond the limit of its account."""

NOT_ENCRYPTED = "the server does not encrypt"

ENDED_LOGIN = re.compile("(user|account) authentication (expired|revoked)")
"""What the server says to a connection whose credentials count no more; it cuts it then."""

_VIOLATION = re.compile(r'permissions violation for (\w+)[^"]* "([^"]+)"')


class Silence(enum.Enum):
    """Why a call has no answer."""

    TIMEOUT = "timeout"
    NO_RESPONDERS = "no responders"
    LOST = "connection lost"


class LinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the bus, and with which identity.

    Inboxes are `_INBOX.<identity>.>`. `connect_within_s` bounds the first connection only; later
    the link waits for the server for ever. With `tls` nothing is said to a server that is not
    believed, or that would not encrypt.
    """

    servers: tuple[str, ...]
    identity: str
    password: str = ""
    connect_within_s: float = 30.0
    credentials: Path | None = None
    """A credentials file; with it there is no password."""
    tls: TlsFiles | None = None
    reader: str = ""
    """What the consumers of streams are named after instead: a second process of an identity that
    reads what the first one follows."""


class _Encrypted(Client):
    """The library's client, which encrypts always, and with certificates as they are by then."""

    def __init__(self, fresh: Fresh) -> None:
        super().__init__()
        self._fresh = fresh

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The context of the connection that is being made."""
        return self._fresh.context()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # The library would go on in plain text, with its password, if the server asks for that.
        if initial_connection and not info.get("tls_required"):
            text = f"nats: {NOT_ENCRYPTED}"
            raise errors.Error(text)
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:
            self._drop()
            raise
        # What the library leaves out when it begins to encrypt: back pressure, and how it ends.
        transport: Any = self._transport
        stream = transport._io_writer.transport
        transport._io_reader.set_transport(stream)
        stream.get_protocol()._over_ssl = True
        # One record for what goes out together, where the library would have one for each piece.
        writer = transport._io_writer
        transport.writelines = lambda pieces: writer.write(b"".join(pieces))

    def _drop(self) -> None:
        """Forget the socket: the library waits for ever for one that failed to encrypt to end."""
        transport: Any = self._transport
        if transport is not None and transport._io_writer is not None:
            _drop_socket(transport._io_writer.transport)
            transport._io_writer = None


class Violations:
    """What the server refused for want of permission; subjects in lower case, as reported."""

    def __init__(self) -> None:
        self.count = 0
        self.texts: dict[str, str] = {}

    def note(self, text: str) -> tuple[str, str] | None:
        """Record an error text and return its verb and subject if it is a permission violation."""
        found = _VIOLATION.search(text.lower())
        if found is None:
            return None
        self.count += 1
        verb, subject = found.group(1), found.group(2)
        if len(self.texts) < VIOLATIONS_MAX or subject in self.texts:
            self.texts[subject] = text
        return verb, subject


OnFatal = Callable[[Exception], None]
Receive = Callable[[Msg], None]


class Link:
    """A connection to NATS under one identity. Make it with `Link.connect`."""

    def __init__(self, options: LinkOptions, on_fatal: OnFatal) -> None:
        self.identity = options.identity
        self.reader = options.reader or options.identity
        self.inbox = f"_INBOX.{options.identity}"
        self.reconnects = 0
        self.violations = Violations()
        self._options = options
        self._on_fatal = on_fatal
        self._login = Login(options.credentials) if options.credentials else None
        self._client = _client(options)
        self._up = asyncio.Event()
        self._closing = False
        self._dead: Exception | None = None
        self._tokens = itertools.count(1)
        self._calls: dict[str, tuple[asyncio.Future[Msg | Silence], str]] = {}
        self._nuid = NUID()
        self._mux = self.new_inbox()
        self._node_mux = self._nuid.next().decode()
        self._asks_nodes = False
        self._watcher: asyncio.Task[None] | None = None
        self._on_up: dict[int, Callable[[], None]] = {}
        self._attempts = 0
        self._turn = -1
        self._last_attempt_at = 0.0
        self._logins_refused = 0
        self._login_refused = asyncio.Event()
        self._too_many = False
        self._tls_refused = 0
        self._tls_trouble = ""
        self._refused_subscriptions: set[str] = set()

    @classmethod
    async def connect(cls, options: LinkOptions, on_fatal: OnFatal) -> Link:
        """Return a connected link.

        Args:
            options: How to reach the bus.
            on_fatal: Is called at most once, with the reason why this process should end; it must
                not raise.

        Raises:
            RefusedError: The server refuses the login, or its identity has too many connections.
            ConnectionError: No server answered within `connect_within_s`.
        """
        link = cls(options, on_fatal)
        link._check_login()
        await link._connect()
        return link

    def _check_login(self) -> None:
        """Read the credentials file, if there is one.

        Raises:
            RefusedError: It cannot be used.
        """
        if self._login is None:
            return
        try:
            self._login.read()
        except CredentialsError as error:
            raise RefusedError(str(error)) from error

    async def _connect(self) -> None:
        connecting = asyncio.ensure_future(self._connect_client())
        refused = asyncio.ensure_future(self._login_refused.wait())
        done, _ = await asyncio.wait(
            (connecting, refused),
            timeout=self._options.connect_within_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        refused.cancel()
        if connecting in done:
            connecting.result()
        else:
            self._closing = True
            while not connecting.done():
                # The library loses a cancellation that comes together with a server's answer.
                connecting.cancel()
                await asyncio.wait((connecting,), timeout=CANCEL_AGAIN_S)
            await self._close_client()
            servers = ", ".join(self._options.servers)
            if refused in done:
                raise RefusedError(self._why_refused(servers))
            message = f"no bus at {servers} within {self._options.connect_within_s} s"
            raise ConnectionError(message)
        self._up.set()
        try:
            await self._subscribe_raw(f"{self._mux}.*", self._on_reply)
        except ConnectionError as error:
            # The server has cut it at once: its credentials expire in this second.
            self._note_close()
            raise self._dead or error from error
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.identity}")

    def _why_refused(self, servers: str) -> str:
        if self._tls_trouble:
            return self._tls_trouble
        if self._too_many:
            return (
                f"the bus at {servers} refuses another connection: {self.identity!r} has as "
                f"many connections as it may have; close some of its programs"
            )
        return f"the bus at {servers} refuses the login of {self.identity!r}: {self._login_trouble}"

    @property
    def _login_trouble(self) -> str:
        if self._login is not None:
            return self._login.trouble()
        return "check its password and whether the server knows it"

    async def _connect_client(self) -> None:
        options = self._options
        await self._client.connect(
            servers=list(options.servers),
            name=options.identity,
            **self._who(),
            inbox_prefix=self.inbox,
            connect_timeout=CONNECT_TIMEOUT_S,
            # The library passes the pause to asyncio.sleep; its annotation says int.
            reconnect_time_wait=CONNECT_PAUSE_S,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=PING_EVERY_S,
            max_outstanding_pings=PINGS_MISSED_MAX,
            pending_size=PENDING_BYTES_MAX,
            flush_timeout=FLUSH_TIMEOUT_S,
            reconnect_to_server_handler=self._next_server,
            error_cb=self._noted_error,
            disconnected_cb=self._noted_disconnect,
            reconnected_cb=self._noted_reconnect,
            closed_cb=self._noted_close,
        )

    def _who(self) -> dict[str, Any]:
        if self._login is None:
            return {"user": self._options.identity, "password": self._options.password}
        return {"user_jwt_cb": self._login.token, "signature_cb": self._login.signature}

    # --- sending ---------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether a message sent at this moment would go out."""
        return self._up.is_set() and self._client.is_connected

    async def wait_up(self, timeout_s: float | None = None) -> bool:
        """Return True once the link is up, False if it is not within `timeout_s`.

        Args:
            timeout_s: How long is waited (seconds); None: for ever.

        Raises:
            _closed: A ConnectionError: the link was closed.
        """
        if self.connected:
            return True
        if self._closing:
            raise _closed()
        if not self._client.is_connected:
            # The library knows of the loss before it calls back.
            self._up.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            return False
        if self._closing:
            raise _closed()
        return True

    async def send(
        self, subject: str, payload: bytes, headers: Mapping[str, str], reply: str = ""
    ) -> bool:
        """Hand a core message to the library and return True, or False if it was dropped.

        Args:
            reply: Where an answer goes; empty: there is none.

        Raises:
            RefusedError: No server would take the message: it is too large, or its subject or a
                header is not valid.
        """
        try:
            await self._client.publish(
                subject, payload, reply=reply, headers=dict(headers) if headers else None
            )
        except (
            errors.OutboundBufferLimitError,
            errors.ConnectionClosedError,
            errors.ConnectionDrainingError,
            OSError,
        ):
            return False
        except errors.MaxPayloadError as error:
            message = f"{subject}: {len(payload)} bytes, the bus takes {self._client.max_payload}"
            raise RefusedError(message) from error
        except (errors.BadSubjectError, errors.BadHeaderError) as error:
            message = f"{subject!r}: {error}"
            raise RefusedError(message) from error
        return True

    async def call(
        self, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Msg | Silence:
        """Send a request and return its answer, or why there is none within `timeout_s`.

        Waits for the link first.

        Raises:
            RefusedError: This identity may not ask it, or no server would take the request.
            ConnectionError: The link was closed.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        if not await self.wait_up(timeout_s):
            return Silence.LOST
        node = subjects.answering_node(subject)
        inbox = await self._hear_node(node) if node else self._mux
        with self._waiting(subject, deadline, inbox) as (reply, answer):
            sent = await self.send(subject, payload, headers, reply)
            return await answer if sent else Silence.LOST

    async def _hear_node(self, node: str) -> str:
        """Return the inbox in which this node, and no other, may answer."""
        if not self._asks_nodes:
            self._asks_nodes = True
            subject = f"{self.inbox}.{subjects.ANSWERS}.*.{self._node_mux}.*"
            await self._subscribe_raw(subject, self._on_reply)
        return f"{self.inbox}.{subjects.ANSWERS}.{node}.{self._node_mux}"

    async def echo(self, timeout_s: float) -> bool:
        """Return whether a message to ourselves came back through the server in time.

        The server handles a connection's messages in order, so everything sent before, also a
        subscription, is in effect when this returns True.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        if not await self.wait_up(timeout_s):
            return False
        with self._waiting(self._mux, deadline, self._mux) as (reply, answer):
            sent = await self.send(reply, b"", {})
            return sent and isinstance(await answer, Msg)

    @contextlib.contextmanager
    def _waiting(
        self, subject: str, deadline: float, inbox: str
    ) -> Iterator[tuple[str, asyncio.Future[Msg | Silence]]]:
        """Yield a reply subject in `inbox` and the future of what comes there.

        It is done at `deadline` at last.
        """
        loop = asyncio.get_running_loop()
        token = str(next(self._tokens))
        future: asyncio.Future[Msg | Silence] = loop.create_future()
        self._calls[token] = (future, subject.lower())
        timer = loop.call_at(deadline, _settle, future, Silence.TIMEOUT)
        try:
            yield f"{inbox}.{token}", future
        finally:
            timer.cancel()
            del self._calls[token]

    # --- receiving -------------------------------------------------------------------------

    def new_inbox(self) -> str:
        """Return a subject below this identity's inbox with no other user."""
        return f"{self.inbox}.{self._nuid.next().decode()}"

    async def subscribe(self, subject: str, receive: Receive) -> RawSubscription:
        """Have `receive` called, in the loop and in order, for every message on `subject`.

        Returns when the server has taken the subscription, or at once while disconnected: the
        library subscribes again on every reconnect.

        Raises:
            RefusedError: This identity may not listen there, or `subject` is no subject.
            ConnectionError: The link was closed.
        """
        self._refused_subscriptions.discard(subject.lower())
        raw = await self._subscribe_raw(subject, receive)
        await self.echo(WATCH_TIMEOUT_S)
        if subject.lower() in self._refused_subscriptions:
            await self.unsubscribe(raw)
            message = f"{self.identity!r} may not listen on {subject}"
            raise RefusedError(message)
        return raw

    async def _subscribe_raw(self, subject: str, receive: Receive) -> RawSubscription:
        async def callback(message: Msg) -> None:
            try:
                receive(message)
            except Exception as error:
                # An exception here would vanish in the library's error callback.
                self.fatal(error)

        try:
            return await self._client.subscribe(subject, cb=callback)
        except errors.BadSubjectError as error:
            message = f"{subject!r} is no subject to listen on"
            raise RefusedError(message) from error
        except errors.ConnectionClosedError as error:
            raise _closed() from error

    async def unsubscribe(self, raw: RawSubscription) -> None:
        """Stop a subscription. Never fails: a closed connection has none."""
        try:
            await raw.unsubscribe()
        except (errors.Error, OSError):
            pass

    def on_up(self, owner: object, callback: Callable[[], None]) -> None:
        """Have `callback` called after each reconnect, until `forget(owner)`."""
        self._on_up[id(owner)] = callback

    def forget(self, owner: object) -> None:
        """Drop what `owner` registered."""
        self._on_up.pop(id(owner), None)

    def _on_reply(self, message: Msg) -> None:
        waiting = self._calls.get(message.subject.rpartition(".")[2])
        if waiting is None:
            return
        headers = message.headers
        unheard = not message.data and headers is not None and headers.get("Status") == "503"
        _settle(waiting[0], Silence.NO_RESPONDERS if unheard else message)

    # --- what the library reports: noted, never acted on by waiting ----------------------------

    async def _noted_error(self, error: Exception) -> None:
        try:
            self._note_error(error)
        except Exception:
            log.exception("noting a bus error failed")

    def _note_error(self, error: Exception) -> None:
        text = str(error)
        self._last_attempt_at = asyncio.get_running_loop().time()
        if self._options.tls is not None and self._note_tls(error, text):
            return
        violation = self.violations.note(text)
        if violation is not None:
            verb, subject = violation
            log.error("the bus refuses %s: %s", self.identity, text)
            if verb == "subscription":
                self._refused_subscriptions.add(subject)
            else:
                self._refuse_calls(subject, text)
        elif "authorization violation" in text.lower():
            self._logins_refused += 1
            if self._logins_refused >= REFUSED_LOGINS_MAX:
                self._login_refused.set()
                if self._watcher is not None:
                    text = f"the bus refuses the login of {self.identity!r}: {self._login_trouble}"
                    self.fatal(RefusedError(text))
        elif TOO_MANY_CONNECTIONS in text.lower() and self._watcher is None:
            self._too_many = True
            self._login_refused.set()
        elif not self._closing:
            self._attempts += 1
            if self._attempts == 1:
                log.warning("bus trouble at %s: %s", self.identity, text or repr(error))

    def _note_tls(self, error: Exception, text: str) -> bool:
        """Take in an error of encryption: once each is said, and several refuse a first login."""
        server = self._client._current_server
        where = server.uri.netloc.rpartition("@")[2] if server is not None else "the bus"
        line = explain(error, where, self._options.tls)
        if NOT_ENCRYPTED in text:
            line = f"{where} does not encrypt: it is no bus of this cluster, or is set up without"
        if not line:
            return False
        self._attempts += 1
        if line != self._tls_trouble:
            log.error("bus trouble at %s: %s", self.identity, line)
        self._tls_trouble = line
        if is_final(error) or NOT_ENCRYPTED in text:
            self._tls_refused += 1
            if self._tls_refused >= REFUSED_LOGINS_MAX * len(self._options.servers):
                self._login_refused.set()
        return True

    def _refuse_calls(self, subject: str, text: str) -> None:
        for future, called in list(self._calls.values()):
            if called == subject and not future.done():
                future.set_exception(RefusedError(f"{self.identity!r} may not: {text}"))

    async def _noted_disconnect(self) -> None:
        self._up.clear()
        for future, _ in list(self._calls.values()):
            _settle(future, Silence.LOST)

    async def _noted_reconnect(self) -> None:
        self.reconnects += 1
        self._logins_refused = self._tls_refused = 0
        self._tls_trouble = ""
        log.warning("bus reached again by %s after %d errors", self.identity, self._attempts)
        self._attempts = 0
        self._up.set()
        for callback in list(self._on_up.values()):
            callback()

    async def _noted_close(self) -> None:
        self._note_close()

    def _note_close(self) -> None:
        if self._closing:
            return
        error = str(self._client.last_error)
        if self._login is not None and ENDED_LOGIN.search(error.lower()):
            # The library closes for good. The next process has the credentials that are there then.
            why = self._login.trouble(revoked="revoked" in error.lower())
            self.fatal(RefusedError(f"the bus ends the connection of {self.identity!r}: {why}"))
            return
        self.fatal(ConnectionError(f"the bus closed the connection: {error}"))

    def _next_server(self, servers: list[Server], _: dict[str, Any]) -> tuple[Server, float]:
        """Return the server to try and how long to wait before: each in turn, with jitter."""
        self._last_attempt_at = asyncio.get_running_loop().time()
        # An attempt that failed after the connection stood leaves its socket open.
        self._abort()
        self._turn += 1
        doublings = min(max(self._attempts - 1, 0), 10)
        mean_s = min(RECONNECT_FIRST_S * 2**doublings, RECONNECT_PAUSE_S_MAX)
        return servers[self._turn % len(servers)], mean_s * (0.5 + random.random())

    # --- watching ------------------------------------------------------------------------------

    def fatal(self, error: Exception) -> None:
        """Tell the owner, once, that this process cannot go on."""
        if self._dead is not None or self._closing:
            return
        self._dead = error
        log.critical("bus of %s is beyond repair: %s", self.identity, error)
        self._on_fatal(error)

    async def _watch(self) -> None:
        misses = 0
        while not self._closing:
            await asyncio.sleep(WATCH_EVERY_S)
            if not self._client.is_connected:
                misses = 0
                self._check_reconnecting()
            elif self._login is not None and self._login.is_renewed():
                log.info("bus of %s: logging in anew, with renewed credentials", self.identity)
                await self._client.force_reconnect()
            elif await self.echo(WATCH_TIMEOUT_S):
                misses = 0
            elif self._client.is_connected:
                misses += 1
                log.warning("bus of %s does not echo, miss %d", self.identity, misses)
                if misses >= 2 * WATCH_MISSES_MAX:
                    self.fatal(ConnectionError("the bus connection is dead and stays dead"))
                elif misses == WATCH_MISSES_MAX or self._reader_is_dead():
                    self._abort()
                    await self._client.force_reconnect()

    def _reader_is_dead(self) -> bool:
        reader = self._client._reading_task
        return reader is None or reader.done()

    def _check_reconnecting(self) -> None:
        """End the process if no task is reconnecting; shake a reconnect that hangs."""
        if self._client.is_closed:
            self._note_close()  # The library says so only when the socket is gone too.
            return
        reconnecting = self._client._reconnection_task
        if reconnecting is None or reconnecting.done():
            self.fatal(ConnectionError("the bus connection is lost and is not made again"))
            return
        stuck_s = asyncio.get_running_loop().time() - self._last_attempt_at
        if stuck_s > 2 * RECONNECT_STUCK_S:
            self.fatal(ConnectionError("reconnecting to the bus hangs"))
        elif stuck_s > RECONNECT_STUCK_S:
            self._abort()

    def _abort(self) -> None:
        """Drop the socket at once: the library waits for unsent bytes, which a dead peer keeps."""
        writer = getattr(self._client._transport, "_io_writer", None)
        if writer is not None:
            _drop_socket(writer.transport)

    async def close(self) -> None:
        """Send what waits, close, and fail what is still in flight with ConnectionError."""
        self._closing = True
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait((self._watcher,))
        for future, _ in list(self._calls.values()):
            if not future.done():
                future.set_exception(_closed())
        # Those that wait for the link learn that it never comes.
        self._up.set()
        await self._close_client()

    async def _close_client(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.close()
        except (TimeoutError, errors.Error, OSError):
            pass
        finally:
            # The library does nothing where it has begun to close by itself.
            self._abort()


def _client(options: LinkOptions) -> Client:
    """Return the library's client.

    Raises:
        RefusedError: A file of certificates cannot be used.
    """
    if options.tls is None:
        return Client()
    try:
        return _Encrypted(fresh_client(options.tls, log.warning))
    except TlsError as error:
        raise RefusedError(str(error)) from error


def _drop_socket(transport: asyncio.WriteTransport) -> None:
    """Abort a transport, whatever state it is in.

    Python 3.11.2 raises for an encrypted one that was closed twice; its socket is on its way out
    then. The library asks again at once, for ever, when what it asks for the next server raises.
    """
    with contextlib.suppress(AttributeError):
        transport.abort()


def _settle(future: asyncio.Future[Msg | Silence], outcome: Msg | Silence) -> None:
    if not future.done():
        future.set_result(outcome)


def _closed() -> ConnectionError:
    return ConnectionError("the bus was closed by its owner")
