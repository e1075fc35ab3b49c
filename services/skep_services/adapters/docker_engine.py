"""The container engine, by the Docker SDK: blocking calls, for threads.

The containers of a state folder carry its name as a label, and have names made of it and their
token. They get the agent's user, the host's network and shared memory, and the folders they need
at the paths these have on the host; images need nothing but a /bin/sh.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from skep.units import Instant
from skep.wire.runs import RunPlan
from skep.wire.volumes import READ, Mount
from skep_services.adapters.docker_account import Confined, host_config
from skep_services.adapters.docker_entry import entrypoint
from skep_services.agent.proc import RUN_VARIABLE

OWNER_LABEL = "skep.owner"
TOKEN_LABEL = "skep.token"  # noqa: S105 - a name of a run, not a secret

CALL_SECONDS_MAX = 60
"""What an engine may take to answer: it takes 0.2 s to start a container on an idle machine."""

CALLS_MAX = 16
"""Calls under way at once; more wait."""

OWNER_CHARS = 12
"""How much of the owner is in names: they are for people, and only need to differ on one host."""

HIDDEN_BYTES, HIDDEN_MODE = 1 << 20, 0o755
"""Of what hides a folder: any user may pass through it to what is mounted in it."""

DEFAULT_HOST = "unix:///var/run/docker.sock"
INSTALL = (
    "install the `docker` extra (pip install 'skep[docker]'; for agents that are containers "
    "see compose/containers.yaml)"
)
STOPPED = "it was stopped"
NO_IMAGE_STATUS, GONE_STATUS, CONFLICT_STATUS = 404, 404, 409


class EngineGoneError(Exception):
    """No engine answers. The text says where it was looked for and what would help."""


class EngineRefusedError(Exception):
    """The engine will not do this. The text says why and what would help."""


class Mounts(NamedTuple):
    """What a container sees of its host, at the same paths; `hidden` is empty in it.

    What is mounted goes before what is hidden around it. `volumes` are seen at their targets,
    without the file systems that are mounted in them.
    """

    folders: tuple[str, ...]
    read_only: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    volumes: tuple[Mount, ...] = ()


class Container(msgspec.Struct, frozen=True):
    """What the engine says of one container. `pid` is 0 unless it runs; times wall-clock ns."""

    pid: int
    code: int
    started_at: Instant
    finished_at: Instant
    error: str = ""

    @property
    def alive(self) -> bool:
        """Return whether it may still do something."""
        return self.pid > 0


class Ended(msgspec.Struct, frozen=True):
    """News: a container ended with this status, or is gone (None)."""

    token: str
    code: int | None


class News(Protocol):
    """What the engine says from now on, until `close` or its own end."""

    def __iter__(self) -> Iterator[Ended]:
        """Yield each end."""
        ...

    def close(self) -> None:
        """Let the iteration end, from another thread."""
        ...


class Engine:
    """The engine DOCKER_HOST names, or that of the machine, as `owner` uses it.

    Every call may raise EngineGoneError.
    """

    def __init__(self, owner: str) -> None:
        """Connect to nothing yet."""
        self.owner = owner
        self._environment = {k: v for k, v in os.environ.items() if k.startswith("DOCKER_")}
        self.host = self._environment.get("DOCKER_HOST") or DEFAULT_HOST
        self._lock = threading.Lock()
        self._connected: Any = None

    def name(self, token: str) -> str:
        """Return the name of a run's container."""
        return f"skep-{self.owner[:OWNER_CHARS]}-{token}"

    def ping(self) -> None:
        """Return if an engine answers."""
        self._ask(lambda api: api.ping())

    def has_image(self, image: str) -> bool:
        """Return whether containers can be made of an image without fetching it."""
        return self._ask(lambda api: api.inspect_image(image)) is not None

    def pull(
        self,
        image: str,
        login: Mapping[str, str] | None,
        tell: Callable[[int, int], None],
        stopped: Callable[[], bool],
    ) -> None:
        """Fetch an image from its registry.

        Args:
            image: The image; without a tag or digest it is `latest`.
            login: `username` and `password` for its registry; None: what this user has.
            tell: Takes how many bytes of its layers are here, and of how many that are known.
            stopped: Whether to give up.

        Raises:
            EngineRefusedError: The registry or the engine refuses it, or it was to give up.
            EngineGoneError: The engine goes away meanwhile.
        """
        docker, requests = _sdk(), _requests()
        name, tag = docker.utils.parse_repository_tag(image)
        layers: dict[str, tuple[int, int]] = {}
        how = {"tag": tag or "latest", "stream": True, "decode": True}
        try:
            said = self._do(
                lambda api: api.pull(name, auth_config=dict(login) if login else None, **how)
            )
            with contextlib.closing(said):
                for event in said:
                    if stopped():
                        raise EngineRefusedError(STOPPED)
                    if "error" in event:
                        raise EngineRefusedError(_not_pulled(str(event["error"])))
                    _count(layers, event)
                    sizes = layers.values()
                    tell(sum(one[0] for one in sizes), sum(one[1] for one in sizes))
        except docker.errors.APIError as error:
            raise EngineRefusedError(_not_pulled(str(error.explanation or error))) from error
        except (requests.RequestException, OSError, ValueError) as error:
            raise EngineGoneError(_gone(self.host, error)) from error

    def tokens(self) -> list[str]:
        """Return the tokens of all containers of this owner."""
        wanted = {"label": f"{OWNER_LABEL}={self.owner}"}
        found = self._ask(lambda api: api.containers(all=True, filters=wanted))
        return [one["Labels"][TOKEN_LABEL] for one in found or ()]

    def look(self, token: str) -> Container | None:
        """Return a container, or None if there is none."""
        found = self._ask(lambda api: api.inspect_container(self.name(token)))
        if found is None:
            return None
        state = found["State"]
        return Container(
            pid=state["Pid"],
            code=state["ExitCode"],
            started_at=_instant(state["StartedAt"]),
            finished_at=_instant(state["FinishedAt"]),
            error=state.get("Error") or "",
        )

    def create(
        self, plan: RunPlan, said_path: str, mounts: Mounts, given: Confined | None = None
    ) -> None:
        """Make a run's container.

        Args:
            plan: The run.
            said_path: The file in which the container says what becomes of its command.
            mounts: What it sees of its host.
            given: The account that it is confined to; None: it is the agent's.

        Raises:
            EngineRefusedError: The engine does not make it.
        """
        docker = _sdk()

        def create(api: Any) -> None:
            types = docker.types
            shown = [types.Mount(each, each, type="bind") for each in mounts.folders]
            shown += [
                types.Mount(each, each, type="bind", read_only=True) for each in mounts.read_only
            ]
            shown += [
                types.Mount(
                    each, None, type="tmpfs", tmpfs_size=HIDDEN_BYTES, tmpfs_mode=HIDDEN_MODE
                )
                for each in mounts.hidden
            ]
            shown += [_volume(types, each) for each in mounts.volumes]
            requests = [types.DeviceRequest(device_ids=list(plan.gpus), capabilities=[["gpu"]])]
            usual = {
                "network_mode": "host",
                "ipc_mode": "host",
                "group_add": [str(group) for group in os.getgroups()],
                # An image's setuid programs give a job no rights that its agent lacks.
                "security_opt": ["no-new-privileges"],
            }
            host = api.create_host_config(
                init=True,
                mounts=shown,
                device_requests=requests if plan.gpus else None,
                log_config={"type": "none"},
                **(usual if given is None else host_config(given, types.Ulimit)),
            )
            whose = (os.getuid(), os.getgid()) if given is None else (given.uid, given.gid)
            # The init process passes signals on to the command's whole process group.
            env = {**plan.env, RUN_VARIABLE: plan.token, "TINI_KILL_PROCESS_GROUP": "1"}
            api.create_container(
                plan.image,
                list(plan.argv),
                entrypoint=list(entrypoint(plan.log_path, said_path, plan.python_path)),
                name=self.name(plan.token),
                environment=env,
                working_dir=plan.workdir,
                user=f"{whose[0]}:{whose[1]}",
                labels={OWNER_LABEL: self.owner, TOKEN_LABEL: plan.token},
                host_config=host,
            )

        self._order(create, plan.image)

    def start(self, token: str) -> None:
        """Start a container that was created.

        Raises:
            EngineRefusedError: The engine does not start it.
        """
        self._order(lambda api: api.start(self.name(token)), "")

    def kill(self, token: str, signal: int) -> bool:
        """Signal a container's first process; return whether it runs."""
        docker = _sdk()

        try:
            self._do(lambda api: api.kill(self.name(token), signal))
        except docker.errors.APIError:
            # Gone or ended; what it is, is seen by looking.
            return False
        return True

    def freeze(self, token: str) -> str:
        """Pause a container; return why it is not paused, or an empty text."""
        return self._pause(token, paused=True)

    def thaw(self, token: str) -> str:
        """Let a container go on; return why it does not, or an empty text."""
        return self._pause(token, paused=False)

    def _pause(self, token: str, *, paused: bool) -> str:
        docker = _sdk()
        name = self.name(token)
        try:
            self._do(lambda api: api.pause(name) if paused else api.unpause(name))
        except docker.errors.APIError as error:
            found = self._ask(lambda api: api.inspect_container(name))
            if found is None or not found["State"]["Running"]:
                return ""  # Gone or ended, which is seen by looking.
            if bool(found["State"]["Paused"]) is paused:
                return ""
            return f"the engine did not {'freeze' if paused else 'thaw'} it: {error.explanation}"
        return ""

    def remove(self, token: str) -> None:
        """Remove a container, killing it if it runs. Idempotent."""
        self._ask(lambda api: api.remove_container(self.name(token), force=True, v=True))

    # --- commands of people in containers ---------------------------------------------------------

    def exec_create(self, token: str, argv: list[str], **how: Any) -> str:
        """Return the id of a command that is to run in a container.

        Raises:
            EngineRefusedError: The container does not run, or the engine refuses it.
        """
        docker = _sdk()
        try:
            made = self._do(lambda api: api.exec_create(self.name(token), argv, stdin=True, **how))
        except docker.errors.APIError as error:
            raise EngineRefusedError(str(error.explanation)) from error
        return str(made["Id"])

    def exec_state(self, number: str) -> tuple[bool, int | None]:
        """Return whether a command runs, and its exit code; None: it is not known any more."""
        found = self._ask(lambda api: api.exec_inspect(number))
        return (bool(found["Running"]), found["ExitCode"]) if found is not None else (False, None)

    def exec_resize(self, number: str, rows: int, columns: int) -> None:
        """Set the size of a command's terminal; one that has ended has none."""
        self._ask(lambda api: api.exec_resize(number, rows, columns))

    def exec_alone(self, token: str, argv: list[str]) -> None:
        """Run a command in a container, and do not wait for it."""
        with contextlib.suppress(EngineRefusedError):
            number = self.exec_create(token, argv)
            self._ask(lambda api: api.exec_start(number, detach=True))

    def exec_wait(self, token: str, argv: list[str]) -> int | None:
        """Run a command in a container to its end; return its exit code, None if not known.

        Raises:
            EngineRefusedError: The container does not run, or the engine refuses it.
        """
        number = self.exec_create(token, argv)
        self._ask(lambda api: api.exec_start(number))
        return self.exec_state(number)[1]

    def news(self) -> News:
        """Return what happens to this owner's containers from now on."""
        wanted = {
            "type": "container",
            "event": ["die", "destroy"],
            "label": f"{OWNER_LABEL}={self.owner}",
        }
        return _Events(self._ask(lambda api: api.events(decode=True, filters=wanted)))

    # --- how it is asked --------------------------------------------------------------------------

    def _order(self, call: Any, image: str) -> None:
        docker = _sdk()

        try:
            self._do(call)
        except docker.errors.APIError as error:
            raise EngineRefusedError(_explained(error, image)) from error

    def _ask(self, call: Any) -> Any:
        """Return what `call` returns, None for what is not there or on its way out.

        Raises:
            EngineGoneError: No engine answers, or it answers with another error.
        """
        docker = _sdk()
        try:
            return self._do(call)
        except docker.errors.APIError as error:
            if error.status_code in {GONE_STATUS, CONFLICT_STATUS}:
                return None
            # Such an answer is to nothing that was wrong here: asked again later.
            raise EngineGoneError(_gone(self.host, error)) from error

    def _do(self, call: Any) -> Any:
        """Return what `call` returns of the API.

        Raises:
            EngineGoneError: No engine answers.
            docker.errors.APIError: The engine answers anything else than yes.
        """
        docker, requests = _sdk(), _requests()

        try:
            _knock(self.host)
            return call(self._api())
        except docker.errors.APIError:
            raise
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise EngineGoneError(_gone(self.host, error)) from error

    def _api(self) -> Any:
        docker = _sdk()

        with self._lock:
            if self._connected is None:
                client = docker.from_env(
                    environment=self._environment, timeout=CALL_SECONDS_MAX, max_pool_size=CALLS_MAX
                )
                self._connected = client.api
            return self._connected

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            if self._connected is not None:
                self._connected.close()
                self._connected = None


def _volume(types: Any, one: Mount) -> Any:
    """Return the mount of a volume; the engine makes no folder where there is none."""
    read_only = one.mode == READ
    made = types.Mount(
        one.target, one.path, type="bind", read_only=read_only, propagation="rprivate"
    )
    made["BindOptions"]["NonRecursive"] = True
    return made


def sdk_missing() -> str:
    """Return an empty text if the SDK is installed, else what to do."""
    try:
        _sdk()
    except EngineGoneError as error:
        return str(error)
    return ""


class _Events:
    """The engine's events as news."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Ended]:
        docker, requests = _sdk(), _requests()

        try:
            for event in self._stream:
                about = event["Actor"]["Attributes"]
                code = about.get("exitCode") if event["Action"] == "die" else None
                yield Ended(about[TOKEN_LABEL], None if code is None else int(code))
        except (docker.errors.DockerException, requests.RequestException, OSError, ValueError):
            return  # The engine is gone, or `close` was called.
        finally:
            # The SDK closes the connection, but not what holds it.
            self._stream._response.close()

    def close(self) -> None:
        try:
            self._stream.close()
        except (AttributeError, OSError):
            pass  # It has ended by itself: there is no socket left, or not a connected one.


def _sdk() -> Any:
    try:
        import docker  # noqa: PLC0415  # Present only where jobs are containers.
    except ImportError as error:
        text = f"the Docker SDK is not installed beside the agent: {INSTALL}"
        raise EngineGoneError(text) from error
    return docker


def _requests() -> Any:
    import requests  # noqa: PLC0415  # What the SDK itself depends on.

    return requests


def _knock(host: str) -> None:
    """Raise OSError where none listens: the SDK would leave a socket open for each attempt."""
    scheme, _, path = host.partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CALL_SECONDS_MAX)
            probe.connect(path)


def _count(layers: dict[str, tuple[int, int]], event: dict[str, Any]) -> None:
    """Note how much of a layer is here, by what the engine says of it."""
    layer, detail = str(event.get("id", "")), event.get("progressDetail") or {}
    status = event.get("status")
    if status == "Downloading" and isinstance(detail.get("total"), int):
        layers[layer] = (int(detail.get("current", 0)), detail["total"])
    elif status in {"Download complete", "Pull complete"} and layer in layers:
        layers[layer] = (layers[layer][1], layers[layer][1])


def _not_pulled(text: str) -> str:
    """Return in words why an image was not fetched."""
    text = " ".join(text.split())[:500]
    if any(
        word in text
        for word in ("denied", "unauthorized", "authentication required", "no basic auth")
    ):
        return f"{text}: name a secret that has `user:password` as `runtime.login`"
    return text


def _explained(error: Any, image: str) -> str:
    """Return in words why the engine refused a container."""
    text = str(error.explanation or error).strip()
    if image and error.status_code == NO_IMAGE_STATUS:
        return (
            f"image {image} is not on this node, and is not fetched: docker pull {image} there, or "
            "`pull: missing` in `runtime`"
        )
    if "argument list too long" in text:
        return "the arguments and the environment are together too large to execute"
    if "bind source path does not exist" in text:
        return f"the engine does not see a folder of the agent at the same path: {text}"
    if "could not select device driver" in text:
        return f"the engine cannot hand out GPUs ({text}): install nvidia-container-toolkit"
    if image and error.status_code == CONFLICT_STATUS:
        return f"the container's name is taken: {text}"
    return f"the engine refused the container: {text}"


def _gone(host: str, error: Exception) -> str:
    return (
        f"no container engine answers at {host} ({_innermost(error)}): start it, or let the "
        "agent's user use it (group docker)"
    )


def _innermost(error: BaseException) -> str:
    """Return the words of the cause; those of the layers above are long and say nothing more."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _instant(text: str) -> Instant:
    """Return an RFC 3339 time with up to nine digits after the point; 0 for "never"."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    if whole.startswith("0001-"):
        return Instant(0)
    at = datetime.fromisoformat(whole + "+00:00")
    return Instant(int(at.timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0))
