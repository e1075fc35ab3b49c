"""Skep deployed with compose: brought up, taken down, looked at and crashed.

    python -m tools.compose up | down [--project NAME] [--viewers] [--wipe]

`up` expects the image (`make image`), makes the credentials in compose/secrets on first use, and
says where everything is once the cluster is well. `down` keeps the volumes, `down --wipe` does not.
`--viewers` adds the profile of that name: metrics and traces in Prometheus, Jaeger and Grafana.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from skep_services.compose.check import door_health
from skep_services.supervisor.table import port_of
from tools import engine

ROOT = Path(__file__).parents[1]
FILE = ROOT / "compose" / "compose.yaml"
SECRETS = ROOT / "compose" / "secrets"
PROJECT = "skep"
UP_WITHIN_S = 180.0
"""A loaded machine of two cores needs some 20 s."""
RESTARTS_MAX = 4
"""Of two that race for an epoch one starts again, once; more often is no coincidence."""
COLLECTOR = "http://collector:4318"
"""Where services send their spans, inside the containers' network."""
KILLED = 128 + signal.SIGKILL
LOOK_EVERY_S = 0.1
LOG_LINES_SHOWN = 8
ERROR_LINES_SHOWN = 4
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The gateway is on this machine: a proxy in the environment is not for it."""

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, within_s: float) -> T:
    """Return the first true value of `look`; raises TimeoutError that says what did not happen."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > deadline:
            text = f"not within {within_s:.0f} s: {what}"
            raise TimeoutError(text)
        time.sleep(LOOK_EVERY_S)
    return found


class Deployment:
    """One project of compose with its own credentials, ports and volumes."""

    def __init__(
        self,
        project: str,
        secrets: Path,
        image: str,
        nats_port: int,
        gateway_port: int,
        *,
        viewers: bool = False,
        changes: Path | None = None,
    ) -> None:
        """Prepare; `changes` is a file of compose that changes what `compose.yaml` says."""
        self.project, self.secrets = project, secrets
        self._command = [*engine.compose_command(), "-p", project, "-f", str(FILE)]
        self._command += ["-f", str(changes)] if changes else []
        self._command += ["--profile", "viewers"] if viewers else []
        self._nats_port, self._gateway_port = nats_port, gateway_port
        ports = {f"SKEP_NATS_PORT_{index + 1}": str(nats_port + index) for index in range(3)}
        self._environment = {
            **os.environ,
            **ports,
            "SKEP_DOOR_PORT": str(nats_port + 3),
            "SKEP_GATEWAY_PORT": str(gateway_port),
            "SKEP_SECRETS": str(secrets),
            "SKEP_IMAGE": image,
            **({"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR} if viewers else {}),
        }

    @property
    def about(self) -> Any:
        """Return the content of `cluster.json`."""
        return json.loads((self.secrets / "cluster.json").read_text())

    def init(self, *options: str) -> None:
        """Make the credentials that are missing. Raises RuntimeError."""
        ports = ["--nats-port", str(self._nats_port), "--port", str(self._gateway_port)]
        module = [sys.executable, "-m", "skep_services.compose.init"]
        sys.stderr.write(_run([*module, str(self.secrets), *ports, *options], None))

    def up(self) -> float:
        """Start everything; return after how many seconds it was well. Raises RuntimeError."""
        began = time.monotonic()
        image = self._environment["SKEP_IMAGE"]
        if subprocess.run(
            ["docker", "image", "inspect", image], capture_output=True, check=False
        ).returncode:
            message = f"there is no image {image} here: `make image IMAGE={image}` builds it"
            raise RuntimeError(message)
        try:
            self.compose("up", "--detach")
        except RuntimeError as error:
            message = f"{error}\n{self.last_words()}"
            raise RuntimeError(message) from error
        what = "every service is well and both nodes are up"
        try:
            until(self._is_up, what, UP_WITHIN_S)
        except TimeoutError as error:
            message = f"{error}\n{self.last_words()}"
            raise RuntimeError(message) from error
        return time.monotonic() - began

    def _is_up(self) -> bool:
        """Return whether all is well. Raises RuntimeError if that will never be."""
        if self.is_well():
            return True
        again = [name for name, one in self.containers().items() if _loops(one)]
        if again:
            text = f"ending again and again: {', '.join(sorted(again))}\n{self.last_words()}"
            raise RuntimeError(text)
        return False

    def down(self, *, wipe: bool) -> None:
        """Stop and remove the containers, with `wipe` the volumes too."""
        # What has no state worth waiting for need not be asked twice.
        self.compose("down", "--remove-orphans", *(["--volumes", "--timeout", "2"] if wipe else []))

    def forget_servers(self) -> None:
        """Have `init` configure the bus servers anew: without streams no earlier form is needed."""
        for path in self.secrets.glob("nats-*.conf"):
            path.unlink()

    def compose(self, *words: str) -> str:
        """Run compose; return what it printed. Raises RuntimeError with its words."""
        return _run([*self._command, *words], self._environment)

    def is_well(self) -> bool:
        """Return whether the gateway says that all is well, and tenants reach a bus server."""
        try:
            if tenants := self.about["nats"]["tenants"]:
                door_health(port_of(tenants))
            with DIRECT.open(f"{self.about['gateway']['url']}/v1/health", timeout=5) as answer:
                health = json.loads(answer.read())
        except (OSError, ValueError):
            return False
        nodes = [name for name in health["services"] if name.startswith("node-")]
        return health["ok"] and len(nodes) == len(self.about["nodes"])

    def identity_of(self, service: str) -> str:
        """Return which of a service's processes is active, empty if none says so."""
        try:
            with DIRECT.open(f"{self.about['gateway']['url']}/v1/health", timeout=5) as answer:
                services = json.loads(answer.read())["services"]
        except (OSError, ValueError):
            return ""
        return str(services.get(service, {}).get("identity", ""))

    def answers(self, name: str) -> bool:
        """Return whether the process of a container answers over the bus."""
        command = [
            "docker",
            "exec",
            self.containers()[name]["Id"],
            "python",
            "-m",
            "skep_services.compose.check",
        ]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def get(self, path: str, token: str) -> tuple[int, str]:
        """Return status and text of the gateway's answer. Raises OSError without one."""
        request = urllib.request.Request(  # noqa: S310 - the address is the deployment's own
            self.about["gateway"]["url"] + path, headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with DIRECT.open(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def run_aside(
        self, module: str, settings: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a process beside the deployment, on its network, with `settings`; wait for its end.

        It is allocator-1 by name unless they say otherwise.
        """
        known = {
            "SKEP_NATS_URL": "nats://nats-1:4222",
            "SKEP_NATS_USER": "allocator-1",
            "SKEP_ALLOW_PLAINTEXT": "yes",
            **settings,
        }
        command = [
            "docker",
            "run",
            "--rm",
            "--network",
            f"{self.project}_bus",
            *(word for name, value in known.items() for word in ("-e", f"{name}={value}")),
            self._environment["SKEP_IMAGE"],
            module,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    # --- containers ----------------------------------------------------------------------------

    def containers(self) -> dict[str, Any]:
        """Return what the engine says of each container, by the service's name."""
        label = f"label=com.docker.compose.project={self.project}"
        ids = _run(["docker", "ps", "--all", "--quiet", "--filter", label], None).split()
        if not ids:
            return {}
        found = json.loads(_run(["docker", "inspect", *ids], None))
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def crash(self, name: str) -> tuple[str, int]:
        """SIGKILL everything in a container; return when it had started, and when that was (ns).

        It starts by itself.
        """
        container = self.containers()[name]
        at = time.monotonic_ns()
        try:
            os.kill(container["State"]["Pid"], signal.SIGKILL)
        except (PermissionError, ProcessLookupError):
            # An engine elsewhere, or no root: the engine does not start again what it kills.
            _run(["docker", "kill", container["Id"]], None)
            _run(["docker", "start", container["Id"]], None)
        return str(container["State"]["StartedAt"]), at

    def crash_all(self) -> dict[str, str]:
        """SIGKILL everything in every container within some ms; return when each had started."""
        containers = self.containers()
        running = {name: one for name, one in containers.items() if one["State"]["Running"]}
        try:
            for container in running.values():
                os.kill(container["State"]["Pid"], signal.SIGKILL)
        except (PermissionError, ProcessLookupError):
            ids = [container["Id"] for container in running.values()]
            _run(["docker", "kill", *ids], None)
            _run(["docker", "start", *ids], None)
        return {name: str(container["State"]["StartedAt"]) for name, container in running.items()}

    def pause(self, name: str, for_s: float) -> str:
        """Stop a container's process for a while, with SIGSTOP; return when it had started.

        The container's init goes on. Raises RuntimeError, as `service_process`.
        """
        container = self.containers()[name]
        process = service_process(container)
        os.kill(process, signal.SIGSTOP)
        try:
            time.sleep(for_s)
        finally:
            os.kill(process, signal.SIGCONT)
        return str(container["State"]["StartedAt"])

    def restart(self, name: str) -> None:
        """Have a container's process end in good order, and start again."""
        _run(["docker", "restart", "--time", "15", self.containers()[name]["Id"]], None)

    def logs(self, name: str) -> str:
        """Return what a container's process said, of all its lives."""
        command = ["docker", "logs", self.containers()[name]["Id"]]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout

    def wait_again(self, name: str, started_at: str, within_s: float = UP_WITHIN_S) -> None:
        """Return once a container runs that had last started at `started_at`."""

        def again() -> bool:
            state = self.containers()[name]["State"]
            return bool(state["Running"] and state["StartedAt"] != started_at)

        until(again, f"{name} runs again", within_s)

    def started_ns(self, name: str) -> int:
        """Return when a container was last started, on this process's monotonic clock."""
        at = datetime.fromisoformat(self.containers()[name]["State"]["StartedAt"])
        return time.monotonic_ns() - int((datetime.now(UTC) - at).total_seconds() * 1e9)

    def read(self, name: str, path: str) -> str:
        """Return the content of a file in a container, empty if there is none."""
        command = ["docker", "exec", self.containers()[name]["Id"], "cat", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    def read_bytes(self, name: str, path: str) -> bytes:
        """Return the content of a file in a container. Raises RuntimeError."""
        command = ["docker", "exec", self.containers()[name]["Id"], "cat", path]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            message = f"{name}: {done.stderr.decode(errors='replace').strip()}"
            raise RuntimeError(message)
        return done.stdout

    def deaths(self, container: str, since: int) -> list[tuple[int, int]]:
        """Return exit code and time of every end of a container, by the engine (wall-clock ns)."""
        span = ["--since", f"{since / 1e9:.9f}", "--until", f"{time.time():.9f}"]
        only = ["--filter", f"container={container}", "--filter", "event=die"]
        told = _run(["docker", "events", *span, *only, "--format", "{{json .}}"], None)
        events = [json.loads(line) for line in told.splitlines()]
        return [(int(one["Actor"]["Attributes"]["exitCode"]), one["timeNano"]) for one in events]

    def last_words(self) -> str:
        """Return the end of the logs of what is not well."""
        lines = []
        for name, container in sorted(self.containers().items()):
            state = container["State"]
            health = state.get("Health", {}).get("Status", "")
            done = name == "bootstrap" and state["ExitCode"] == 0
            # One that is being killed over and over is seen running too, though never healthy.
            again = container["RestartCount"] > 0 and health != "healthy"
            well = state["Status"] == "running" and health != "unhealthy" and not again
            if done or well:
                continue
            restarts = f"{container['RestartCount']} restarts"
            lines.append(
                f"{name}: {state['Status']}, {health or 'no health'}, {restarts}, "
                f"exit code {state['ExitCode']}"
            )
            if state["OOMKilled"] or state["ExitCode"] == KILLED or again:
                limit = container["HostConfig"]["Memory"] // 2**20
                lines.append(f"    its limit of memory is {limit} MiB: less than it needs?")
            words = self.logs(name).splitlines()[-LOG_LINES_SHOWN:]
            lines += [f"    {line[:300]}" for line in words]
        return "\n".join(lines)


def service_process(container: Mapping[str, Any]) -> int:
    """Return the process id, on this machine, of what a container's init looks after.

    Args:
        container: What the engine says of it, with `State.Pid`.

    Raises:
        RuntimeError: The engine is elsewhere, or this is not root.
    """
    init = container["State"]["Pid"]
    try:
        children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        os.kill(int(children[0]), 0)
    except (OSError, IndexError) as error:
        message = f"this needs an engine on this machine, and root: {error}"
        raise RuntimeError(message) from error
    return int(children[0])


class Verdict(Protocol):
    """What a run says of itself."""

    @property
    def failures(self) -> int:
        """Return how many checks did not hold."""
        ...

    async def run(self) -> None:
        """Do everything but the deployment itself."""
        ...


R = TypeVar("R", bound=Verdict)
FAILURES = (engine.EngineError, RuntimeError, TimeoutError)
"""What keeps a run from its end."""


def deploy_and_run(
    make: Callable[[Deployment], R],
    *,
    project: str,
    image: str,
    ports: tuple[int, int],
    options: Sequence[str],
    up: Callable[[R, float], None] = lambda _run, _took_s: None,
    keep: bool = False,
) -> R:
    """Deploy aside, do what `make` returns, and take it all down again unless `keep`.

    `ports` are the first of the bus and the gateway's, `options` those of `compose.init`; `up` is
    told after how many seconds the deployment was well. Whatever is not well in the end says so on
    standard error. Raises EngineError, RuntimeError, TimeoutError, and what the run raises.
    """
    engine.up(install=False)
    with tempfile.TemporaryDirectory(prefix=f"{project}-") as folder:
        deployment = Deployment(project, Path(folder), image, *ports)
        deployment.init(*options)
        deployment.down(wipe=True)
        run = make(deployment)
        well = False
        try:
            up(run, deployment.up())
            asyncio.run(run.run())
            well = not run.failures
        finally:
            if not well:
                print(deployment.last_words(), file=sys.stderr)
            if not keep:
                deployment.down(wipe=True)
    return run


def _loops(container: Any) -> bool:
    return int(container["RestartCount"]) >= RESTARTS_MAX


def _run(command: Sequence[str], environment: dict[str, str] | None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = "\n  ".join(done.stderr.strip().splitlines()[-ERROR_LINES_SHOWN:])
        message = f"`{' '.join(command)}` returned {done.returncode}:\n  {words}"
        raise RuntimeError(message)
    return done.stdout


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Skep deployed with compose.")
    parser.add_argument("what", choices=("up", "down"))
    parser.add_argument("--project", default=PROJECT)
    parser.add_argument("--image", default="skep:local")
    parser.add_argument("--secrets", type=Path, default=SECRETS)
    parser.add_argument("--nats-port", type=int, default=4222, help="the first of four")
    parser.add_argument("--port", type=int, default=8470, help="of the gateway")
    parser.add_argument("--gpus", help="CPU slots of each node")
    parser.add_argument("--vc", action="append", default=[], help="NAME=GPUS, as research=6")
    parser.add_argument("--viewers", action="store_true", help="metrics and traces, to look at")
    parser.add_argument("--wipe", action="store_true", help="remove the volumes: every job is lost")
    given = parser.parse_args()
    secrets = given.secrets.resolve()
    try:
        engine.up(install=False)
        # Without the profile compose would leave the viewers running.
        viewers = given.viewers or given.what == "down"
        deployment = Deployment(
            given.project, secrets, given.image, given.nats_port, given.port, viewers=viewers
        )
        if given.what == "down":
            deployment.down(wipe=given.wipe)
            if given.wipe:
                deployment.forget_servers()
            return 0
        options = ["--gpus", given.gpus] if given.gpus else []
        deployment.init(*options, *(word for vc in given.vc for word in ("--vc", vc)))
        took_s = deployment.up()
    except (engine.EngineError, RuntimeError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    about = deployment.about
    print(f"the cluster is up after {took_s:.1f} s")
    print(f"  API and page     {about['gateway']['url']}")
    print(f"  bus              {about['nats']['url']}")
    if about["nats"]["tenants"]:
        print(f"  bus for tenants  {about['nats']['tenants']}")
    print(f"  credentials      {secrets / 'cluster.json'}")
    if given.viewers:
        print("  dashboard        http://127.0.0.1:" + os.environ.get("SKEP_GRAFANA_PORT", "3000"))
        print("  traces           http://127.0.0.1:" + os.environ.get("SKEP_JAEGER_PORT", "16686"))
    print(f"try: skep --home {secrets} ps -a, or SKEP_HOME={secrets}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
