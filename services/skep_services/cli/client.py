"""The gateway as the commands see it: where it is, what it answers, and patience while it restarts.

The cluster is the one named by `SKEP_API` and `SKEP_TOKEN`; or the one whose state folder is
`--home` or `SKEP_HOME`; or the one that `skep login` was last used for; or the one in `~/.skep`;
or, for root on a server, the server's. The gateway may be away for a moment at any time (its
supervisor starts it again), so a request is repeated until `patience_s` has passed. That is safe
for reading, and for a submission because it carries an idempotency key.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from skep_services.cli import credentials, exits
from skep_services.cli.connection import (
    CONNECT_NEXT_S,
    CONNECT_TIMEOUT_S,
    Address,
    Answer,
    Connection,
    LostError,
    UnbelievedError,
    parse_url,
)
from skep_services.cli.exits import CommandError
from skep_services.supervisor import home

ANSWER_TIMEOUT_S = 30.0
"""The gateway gives up on the bus after 10 s; three times that is a gateway that hangs."""

PATIENCE_S = 5.0
"""How long a command waits for a gateway that is being restarted, which takes a second."""

PATIENCE_FOLLOWING_S = 60.0
"""The same for commands that wait anyway: they outlast a cluster that is restarted under them."""

RETRY_AFTER_S = 0.1

CA = "SKEP_CA"
"""The variable that names the file of the cluster's CA, where the system's do not know it."""

TOO_MANY = 429
"""The answer to a request beyond its tenant's rate."""

NO_CLUSTER = """no cluster here: {folder} holds none
  start one:         skep up
  or use another:    SKEP_API=http://HOST:PORT SKEP_TOKEN=... skep ...
  or its folder:     --home DIR (or SKEP_HOME)"""


class Target(NamedTuple):
    """Which gateway to talk to. `folder` is its state folder, empty for one named by `SKEP_API`.

    `ca` is the file of the CA that it is believed by; empty: those of the system are.
    """

    url: str
    token: str
    folder: str
    ca: str = ""

    def local(self) -> bool:
        """Return whether the cluster was found by its state folder."""
        return bool(self.folder)


def find_target(given_home: str | None) -> Target:
    """Return the cluster to use.

    Args:
        given_home: The state folder that the command line names; None: the cluster of `SKEP_API`,
            or else the one in `SKEP_HOME` or `~/.skep`, or the one of this machine's server.

    Raises:
        CommandError: There is no cluster, or its file cannot be used.
    """
    url = os.environ.get("SKEP_API", "")
    if url and given_home is None:
        return _named(url)
    if given_home is None and not os.environ.get("SKEP_HOME"):
        login = credentials.find()
        if login is not None:
            return _with_environment(login)
    folder = home.cluster_folder(given_home)
    try:
        cluster = home.read_cluster(folder)
        if cluster is None:
            raise CommandError(exits.UNREACHABLE, NO_CLUSTER.format(folder=folder), "no-cluster")
        gateway = cluster["gateway"]
        token = os.environ.get("SKEP_TOKEN") or gateway["tokens"]["operator"]
        ca = gateway.get("ca", "")
        ca = os.environ.get(CA) or (os.path.join(folder, ca) if ca else "")
        return Target(gateway["url"], token, folder, ca)
    except ValueError as error:
        raise CommandError(exits.UNREACHABLE, str(error), "no-cluster") from None
    except (KeyError, TypeError) as error:
        text = f"{home.cluster_path(folder)} has no gateway address or token ({error})"
        raise CommandError(exits.UNREACHABLE, text, "no-cluster") from None


def _named(url: str) -> Target:
    """Return the gateway of SKEP_API, with the token of the environment or of a login there."""
    token, ca = os.environ.get("SKEP_TOKEN", ""), os.environ.get(CA, "")
    login = credentials.find(url) if not token else None
    if login is None:
        return Target(url, token, "", ca)
    return Target(url, login.token, "", ca or login.ca)


def _with_environment(login: credentials.Login) -> Target:
    token = os.environ.get("SKEP_TOKEN") or login.token
    return Target(login.url, token, "", os.environ.get(CA) or login.ca)


def query(path: str, /, **parameters: Any) -> str:
    """Return a path with its query; parameters that are None are left out, lists are repeated."""
    given = [
        f"{name}={quote(str(each))}"
        for name, value in parameters.items()
        for each in (value if isinstance(value, list) else [value])
        if each is not None
    ]
    return path + "?" + "&".join(given) if given else path


def is_header_text(text: str) -> bool:
    """Return whether a header of HTTP can hold a text."""
    return text.isascii() and (text.isprintable() or not text)


SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


def quote(text: str) -> str:
    """Return `text` percent-encoded for one path segment or query value."""
    raw = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in SAFE else f"%{byte:02X}" for byte in raw)


class Client:
    """Requests to a gateway: the first of those in the target's address that answers.

    Args:
        target: The gateway, or several with commas between their addresses.
        patience_s: For how long a request is repeated while the gateway is away (seconds).

    Raises:
        CommandError: The target's address is none, or its token cannot be sent.
    """

    def __init__(self, target: Target, patience_s: float = PATIENCE_S) -> None:
        self.target = target
        self.patience_s = patience_s
        if not is_header_text(target.token):
            raise CommandError(exits.USAGE, "the token is not printable ASCII: check SKEP_TOKEN")
        urls = target.url.split(",")
        within_s = CONNECT_TIMEOUT_S if len(urls) == 1 else CONNECT_NEXT_S
        self._connections: list[Connection] = []
        for url in urls:
            address = parse_url(url)
            if address is None:
                text = f"not an address: {url!r} (like http://127.0.0.1:8470)"
                raise CommandError(exits.USAGE, text)
            self._connections.append(Connection(address, target.token, target.ca, within_s))
        self._at = self._failed = 0

    @property
    def _connection(self) -> Connection:
        """The connection to the gateway in use."""
        return self._connections[self._at]

    @property
    def address(self) -> Address:
        """Return where the gateway is."""
        return self._connection.address

    def get(self, path: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Return the JSON answer to GET.

        Args:
            path: The path with its query.
            timeout_s: How long each wait for the gateway may take (seconds).

        Raises:
            CommandError: There is any other outcome.
        """
        return decoded(self.get_bytes(path, timeout_s))

    def get_bytes(self, path: str, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
        """Return the body of the answer to GET.

        Args:
            path: The path with its query.
            timeout_s: How long each wait for the gateway may take (seconds).
        """
        return self.send("GET", path, timeout_s=timeout_s)[1]

    def post(self, path: str, value: Any, headers: Mapping[str, str] | None = None) -> Any:
        """Return the JSON answer to POST of a JSON value."""
        return self.post_bytes(path, json.dumps(value).encode(), headers)

    def post_bytes(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Any:
        """Return the JSON answer to POST of a JSON value that is encoded already."""
        return decoded(self.send("POST", path, body, headers)[1])

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> tuple[int, bytes]:
        """Return status and body of a successful answer.

        Args:
            method: The method of HTTP.
            path: The path with its query.
            body: JSON; empty: the request has no body.
            headers: Headers of this request; None: only those of every request.
            timeout_s: How long each wait for the gateway may take (seconds).

        Raises:
            CommandError: The gateway cannot be reached, does not answer in time, or a header is
                not printable ASCII.
            refusal: A CommandError: the status of the answer is 300 or above.
        """
        deadline = time.monotonic() + self.patience_s
        sent = {**(headers or {}), **({"Content-Type": "application/json"} if body else {})}
        for name, value in sent.items():
            if not is_header_text(value):
                raise CommandError(exits.USAGE, f"{name} is not printable ASCII: {value!r}")
        while True:
            try:
                answer = self._connection.request(method, path, timeout_s, body, sent)
                data = answer.read()
            except TimeoutError:
                text = f"{self.target.url} took the request and did not answer in {timeout_s:.0f} s"
                raise CommandError(exits.UNREACHABLE, text) from None
            except OSError as error:
                self._try_next(deadline, error)
                continue
            if answer.status < 300:
                return answer.status, data
            pause_s = _too_soon_by(answer.status, data)
            if pause_s is None or time.monotonic() + pause_s > deadline:
                raise refusal(answer.status, data)
            time.sleep(pause_s)

    def stream(self, path: str, timeout_s: float | None) -> Answer:
        """Return an answer whose body arrives over time; reading it may raise OSError.

        Args:
            path: The path with its query.
            timeout_s: How long each wait for the gateway may take (seconds); None: for ever.

        Raises:
            CommandError: The gateway cannot be reached.
            refusal: A CommandError: the status of the answer is 300 or above.
        """
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                answer = self._connection.request("GET", path, timeout_s)
                if answer.status < 300:
                    return answer
                data = answer.read()
            except OSError as error:
                self._try_next(deadline, error)
                continue
            raise refusal(answer.status, data)

    def upgrade(self, path: str, headers: Mapping[str, str]) -> tuple[socket.socket, bytes]:
        """Return a socket on which another protocol is spoken, and what came by it already.

        Args:
            path: The path with its query.
            headers: What asks for that protocol.

        Raises:
            CommandError: The gateway cannot be reached.
            refusal: A CommandError: it answers anything else.
        """
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                answer = self._connection.upgrade(path, ANSWER_TIMEOUT_S, headers)
                if isinstance(answer, tuple):
                    return answer
                data = answer.read()
            except OSError as error:
                self._try_next(deadline, error)
                continue
            raise refusal(answer.status, data)

    def ends_at(self) -> float | None:
        """Return when the gateway's certificate ends (seconds since the epoch); None without."""
        return self._connection.ends_at()

    def close(self) -> None:
        """Drop the connection."""
        self._connection.close()

    def pause(self) -> None:
        """Drop the connection and wait a moment: something was wrong with it."""
        self._connection.close()
        time.sleep(RETRY_AFTER_S)

    def _try_next(self, deadline: float, error: OSError) -> None:
        """Turn to the next gateway at once; when all have failed, wait a moment or give up."""
        self._connection.close()
        self._at = (self._at + 1) % len(self._connections)
        self._failed += 1
        if self._failed % len(self._connections) == 0:
            self._wait_or_give_up(deadline, error)

    def _wait_or_give_up(self, deadline: float, error: OSError) -> None:
        if isinstance(error, UnbelievedError):
            raise CommandError(exits.UNREACHABLE, str(error), "not-believed") from None
        patient = self.patience_s > PATIENCE_S
        hopeless = (
            self.target.local()
            and not patient
            and self._supervisor() not in ("starting", "running")
        )
        if hopeless or time.monotonic() + RETRY_AFTER_S > deadline:
            raise CommandError(exits.UNREACHABLE, self._unreachable(error)) from None
        time.sleep(RETRY_AFTER_S)

    def _supervisor(self) -> str:
        """Return how far the supervisor of a local cluster is, empty if there is none."""
        try:
            cluster = home.read_cluster(self.target.folder)
        except ValueError:
            return ""
        if cluster is None or not home.supervisor_alive(cluster):
            return ""
        return str(cluster["supervisor"].get("state", ""))

    def _unreachable(self, error: OSError) -> str:
        what = str(error) if isinstance(error, LostError) else error.strerror or str(error)
        text = f"the cluster cannot be reached: {self.target.url}: {what}"
        if not self.target.local():
            return f"{text}\n  check SKEP_API, and that the cluster is up"
        match self._supervisor():
            case "":
                hint = home.start_hint(self.target.folder)
                return f"{text}\n  it is not running: start it again with `{hint}`"
            case "failed":
                return f"{text}\n  its start failed: `skep doctor` says why"
            case "stopping":
                return f"{text}\n  it is being stopped"
            case _:
                return f"{text}\n  its supervisor is running: `skep doctor` says what is wrong"


def _too_soon_by(status: int, data: bytes) -> float | None:
    """Return after how many seconds a request beyond its tenant's rate may be repeated.

    None for every other answer.
    """
    error = refusal(status, data)
    if status != TOO_MANY or error.error["reason"] != "too-many-requests":
        return None
    try:
        return max(0.0, float(json.loads(data).get("retry_after_s", RETRY_AFTER_S)))
    except (TypeError, ValueError):
        return RETRY_AFTER_S


def refusal(status: int, data: bytes) -> CommandError:
    """Return what an answer of status 300 and above means to a command."""
    error: Any = {}
    try:
        body = json.loads(data)
        error = body.get("error", {}) if isinstance(body, dict) else {}
    except ValueError:
        body = {}
    if not isinstance(error, dict):
        error = {"text": str(error)}
    text = str(error.get("text") or f"the gateway answered with status {status}")
    reason = str(error.get("reason") or status)
    more = {key: value for key, value in error.items() if key not in ("reason", "text")}
    if isinstance(body, dict) and "job" in body:
        more["job"] = body["job"]
    match status:
        case 400:
            code = exits.USAGE
        case 401 if reason in ("unauthorized", "401"):
            code, text = exits.FAILED, f"{text}\n  the token is not accepted: check SKEP_TOKEN"
        case 404:
            code = exits.NOT_FOUND
        case 502 | 503 | 504:
            code, text = exits.UNREACHABLE, f"{text}\n  `skep doctor` says what is wrong"
        case _:
            code = exits.FAILED
    return CommandError(code, text, reason, **more)


class EventParser:
    """Takes a stream of server-sent events apart. Comments and events without data are skipped."""

    def __init__(self) -> None:
        self._identity = ""
        self._data: list[str] = []
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[str, str]]:
        """Yield (id, data) of each event that `piece` completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if not line:
                if self._data:
                    yield self._identity, "\n".join(self._data)
                self._data = []
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._identity = value
            elif name == "data":
                self._data.append(value)


LARGE_BYTES = 1 << 20
"""From this size on it pays to import the faster decoder: ten thousand jobs are 6 MB."""


def decoded(data: bytes) -> Any:
    """Return a JSON answer.

    Raises:
        CommandError: The answer is not JSON.
    """
    try:
        if len(data) < LARGE_BYTES:
            return json.loads(data)
        import msgspec

        try:
            return msgspec.json.decode(data)
        except msgspec.MsgspecError:
            return json.loads(data)  # It says better what is wrong.
    except ValueError as error:
        text = f"the gateway's answer is not JSON: {error}"
        raise CommandError(exits.UNREACHABLE, text) from None
