"""`skep up`: start the cluster on this machine, or resume the one that was here."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any, NoReturn

from skep_services.cli import exits, render, up_on
from skep_services.cli.client import Client, Target
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.supervisor import home as folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from socket import socket

    from skep_services.supervisor.config import Cluster, Wishes

UP_WITHIN_S = 90.0
"""On an idle machine it takes two seconds; a busy one, or a store of gigabytes, takes longer."""

LOOK_EVERY_S = 0.05

FIFO_TEXT = """\
The default policy is fifo: a virtual cluster's GPUs go to its jobs by priority, then arrival, and
a job that does not fit holds up the later ones. Meanwhile every script that waits may have idle
GPUs, also of other virtual clusters. When their owner's jobs need them, the script is suspended,
or stored and stopped. So no GPU is idle while a job waits that can give it back, and the owner's
jobs wait no longer than a suspension takes.
A job with `over_quota: wait` takes no idle GPUs; `skep policies` lists other policies."""
LOG_LINES_SHOWN = 5


def options_up(parser: ArgumentParser) -> None:
    """Add what `up` takes."""
    parser.add_argument("--nodes", type=int, metavar="N", help="agents (default 2)")
    parser.add_argument(
        "--gpus", metavar="N", help="GPUs of each node (default 4), or auto with --device cuda"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "fake", "cuda"),
        help="cpu: slots without GPUs (default); fake: slots that behave like GPUs; cuda: NVML",
    )
    parser.add_argument("--gpu-type", metavar="TYPE", help="what to call the GPUs")
    parser.add_argument(
        "--vc", action="append", metavar="NAME=GPUS", help="a virtual cluster (repeatable)"
    )
    parser.add_argument(
        "--cluster", metavar="FILE", help="a cluster file: chains, vcs; and nodes, port"
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="of its virtual clusters (default fifo: see below)"
    )
    parser.add_argument("--port", type=int, metavar="N", help="of the API (default 8470)")
    parser.add_argument(
        "--secrets",
        action="store_const",
        const=True,
        help="keep secrets (`skep secret`) from now on",
    )
    parser.add_argument(
        "--people",
        action="store_const",
        const=True,
        help="have people with roles and tokens (`skep user`) from now on",
    )
    parser.add_argument(
        "--notify",
        metavar="FILE",
        help="notify people of their jobs, by the targets in this file (skep notify)",
    )
    parser.add_argument("--foreground", action="store_true", help="stay, and log to this terminal")
    up_on.options(parser)
    parser.epilog = (
        "What is not given stays as the state folder has it: `skep up` alone resumes the cluster\n"
        "that was here, jobs included.\n\n" + FIFO_TEXT + "\n\n" + exits.HELP
    )


def run_up(arguments: Namespace) -> int:
    """Start the cluster, or say that it is up already.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The cluster cannot be as it is asked for, or is not up in time.
        KeyboardInterrupt: A person interrupted it; what was started is stopped.
    """
    up_on.refuse_mixed(arguments)
    if arguments.on:
        return up_on.run(arguments)
    home = folder.home_folder(arguments.home)
    if told := folder.refuse_server(home):
        raise CommandError(exits.FAILED, told)
    wishes = _wishes(arguments)
    lock = lock_folder(home)
    if lock is None:
        return _already_up(home, wishes, arguments)
    held: list[socket] = []
    try:
        cluster = _settle(home, wishes)
        for text in _warnings(cluster):
            say(f"warning: {text}")
        _stop_survivors(home, cluster)
        _stop_former_nodes(home, cluster)
        held = _find_ports(cluster, wishes)
        try:
            _accept_server(home)
            _write(home, cluster, wishes)
        except OSError as error:
            text = f"{error.filename or home} cannot be written: {error.strerror}"
            todo = "make room there, or choose another state folder: --home DIR"
            raise CommandError(exits.FAILED, f"{text}; {todo}") from None
        if arguments.foreground:
            _become_supervisor(home, lock, held)
        process = _start_supervisor(home, lock, held)
    finally:
        # The supervisor has its own handles on them by then.
        os.close(lock)
        for each in held:
            each.close()
    progress = Progress(home, process, quiet=arguments.json)
    try:
        progress.wait_up(len(cluster.nodes))
    except KeyboardInterrupt:
        say("stopping what was started ...")
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    _tell_up(home, arguments, progress)
    return exits.OK


def _wishes(arguments: Namespace) -> Wishes:
    import msgspec

    from skep_services.supervisor import config

    try:
        vcs = dict(map(config.parse_vc, arguments.vc)) if arguments.vc else None
        gpus = arguments.gpus
        if gpus is not None and gpus != "auto":
            if not (gpus.isascii() and gpus.isdecimal()):
                raise CommandError(exits.USAGE, f"--gpus {gpus}: a number, or auto")
            gpus = int(gpus)
        given = config.Wishes(
            nodes=arguments.nodes,
            gpus=gpus,
            device=arguments.device,
            gpu_type=arguments.gpu_type,
            vcs=vcs,
            port=arguments.port,
            policy=arguments.policy,
            secrets=arguments.secrets,
            people=arguments.people,
            notify=_notify_file(arguments.notify),
        )
        if not arguments.cluster:
            return given
        if given.nodes or given.gpus or given.device or given.gpu_type:
            text = "--cluster FILE describes the nodes: leave --nodes, --gpus, --device out"
            raise CommandError(exits.USAGE, text)
        wanted = config.read_file(_cluster_file(arguments.cluster), arguments.cluster)
        return msgspec.structs.replace(
            wanted,
            vcs=given.vcs or wanted.vcs,
            chains={} if given.vcs else wanted.chains,
            pins={} if given.vcs else wanted.pins,
            port=given.port if given.port is not None else wanted.port,
            policy=given.policy,
            secrets=given.secrets,
            people=given.people,
            notify=given.notify,
        )
    except config.ConfigError as error:
        raise CommandError(exits.USAGE, str(error), "bad-value") from None


def _notify_file(name: str | None) -> str | None:
    """Return the full path of the operator's file of targets, having read it.

    Raises:
        CommandError: It cannot be used.
    """
    if not name:
        return name  # Empty: no notices from now on.
    from pathlib import Path

    from skep_services.notifier.settings import read
    from skep_services.service import ConfigurationError

    try:
        read(Path(name))
    except ConfigurationError as error:
        text = str(error).replace("SKEP_NOTIFY: ", "--notify: ", 1)
        raise CommandError(exits.USAGE, text, "bad-value") from None
    return os.path.realpath(name)


def _cluster_file(name: str) -> Any:
    from skep_services.cli import specs

    documents = specs.read(name)
    if len(documents) != 1:
        raise CommandError(exits.USAGE, f"{name} holds {len(documents)} documents, not 1")
    return documents[0].tree


def _settle(home: str, wishes: Wishes) -> Cluster:
    from skep_services.adapters import nats_access
    from skep_services.supervisor import boot, config

    try:
        before = boot.read_cluster(home)
        ports = f"{config.PORT_FIRST}-{config.PORT_LAST}"
        ports = os.environ.get("SKEP_PORTS") or ports
        cluster = config.settle(before, wishes, home, config.parse_ports(ports))
    except ValueError as error:
        text = f"{error}\n  restore it, or begin anew: skep down --wipe"
        raise CommandError(exits.FAILED, text) from None
    except config.ConfigError as error:
        raise CommandError(exits.USAGE, str(error), "bad-value") from None
    fresh = nats_access.new_passwords(
        [node.name for node in cluster.nodes], cluster.vcs_with_credentials
    )
    known = cluster.nats.users
    cluster.nats.users = {name: known.get(name, password) for name, password in fresh.items()}
    return cluster


def _warnings(cluster: Cluster) -> list[str]:
    from skep_services.supervisor import config

    return config.warnings(cluster)


def lock_folder(home: str) -> int | None:
    """Return the held lock of a state folder, or None where another process holds it.

    Args:
        home: The folder; it is made if there is none.

    Returns:
        A descriptor, which the caller closes; None: another process holds the lock.

    Raises:
        CommandError: The folder cannot be made or written to.
    """
    try:
        os.makedirs(home, mode=folder.FOLDER_MODE, exist_ok=True)
        lock = os.open(folder.lock_path(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        text = (
            f"the state folder {home} cannot be used: {error.strerror}; choose another: --home DIR"
        )
        raise CommandError(exits.FAILED, text) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _already_up(home: str, wishes: Wishes, arguments: Namespace) -> int:
    cluster = _read(home)
    if cluster is None or not folder.supervisor_alive(cluster):
        text = f"another `skep up` or `skep down` is at work in {home}: wait for it"
        raise CommandError(exits.FAILED, text)
    if wishes.given():
        text = f"a cluster is up in {home}: `skep down` first, then `skep up` with other options"
        raise CommandError(exits.FAILED, text)
    if arguments.json:
        print_json({**_summary(home, cluster), "already": True})
    else:
        say(f"the cluster in {home} is up already: {cluster['gateway']['url']}")
    return exits.OK


def _read(home: str) -> dict[str, Any] | None:
    try:
        return folder.read_cluster(home)
    except ValueError as error:
        raise CommandError(exits.FAILED, str(error)) from None


def _stop_survivors(home: str, cluster: Cluster) -> None:
    from skep_services.supervisor import survivors
    from skep_services.supervisor.table import cluster_plan, nats_config_path

    plan = cluster_plan(cluster, home, nats_config_path(home))
    found = survivors.find(home, plan.every())
    if found:
        say(f"stopping what a killed supervisor left: {', '.join(sorted(found))}")
        survivors.stop_in_order(found, plan.bus.name)


def _stop_former_nodes(home: str, cluster: Cluster) -> None:
    """End the jobs of nodes that are not part of the cluster any more: no agent will.

    Raises:
        CommandError: They do not end in time.
    """
    import asyncio

    from skep_services.supervisor import boot

    nodes = [node.name for node in cluster.nodes]
    former = [path for path in boot.node_folders(home) if os.path.basename(path) not in nodes]
    try:
        stopped = asyncio.run(boot.stop_jobs(former))
    except boot.JobsStayError as error:
        raise CommandError(exits.TIMEOUT, str(error), "jobs-stay") from None
    for path in stopped:
        say(f"the jobs of {os.path.basename(path)}, which is no node any more, are stopped")


def _find_ports(cluster: Cluster, wishes: Wishes) -> list[socket]:
    """Settle on which ports the servers are; return what keeps these until they are.

    Raises:
        CommandError: The port that was asked for is taken.
    """
    from skep_services.supervisor import ports
    from skep_services.supervisor.config import HOST
    from skep_services.supervisor.table import port_of

    def keep(url: str) -> tuple[socket, int]:
        port = port_of(url)
        found = (ports.hold(port) if port else None) or ports.hold()
        assert found is not None, "there is a free port"
        return found, found.getsockname()[1]

    bus, bus_port = keep(cluster.nats.url)
    cluster.nats.url = f"nats://{HOST}:{bus_port}"
    tenants, tenants_port = keep(cluster.nats.tenants)
    cluster.nats.tenants = f"nats://{HOST}:{tenants_port}"
    wanted = port_of(cluster.gateway.url)
    gateway, port = keep(cluster.gateway.url)
    held = [bus, tenants, gateway]
    if wanted and port != wanted:
        if wishes.port is not None:
            for each in held:
                each.close()
            text = f"port {wanted} is taken: choose another with --port"
            raise CommandError(exits.FAILED, text)
        say(f"port {wanted} is taken by another program: the API is on {port}")
    cluster.gateway.url = f"http://{HOST}:{port}"
    return held


def _accept_server(home: str) -> None:
    """Refuse a bus server that is too old, before it opens the store.

    Raises:
        CommandError: There is no server, or it is too old.
        OSError: The folder of the store cannot be made.
    """
    from skep_services.adapters import nats_server, nats_version
    from skep_services.supervisor import boot

    store = boot.marker_path(home).parent
    store.mkdir(mode=folder.FOLDER_MODE, exist_ok=True)
    try:
        nats_version.accept(nats_server.binary(), store)
    except (FileNotFoundError, nats_version.ServerVersionError) as error:
        raise CommandError(exits.FAILED, str(error)) from None


def _write(home: str, cluster: Cluster, wishes: Wishes) -> None:
    import msgspec

    try:
        # What an earlier supervisor wrote would be taken for the next one's.
        os.unlink(folder.pids_path(home))
    except FileNotFoundError:
        pass  # The first start, or it was wiped.
    folder.write_json(folder.cluster_path(home), msgspec.to_builtins(cluster))
    if wishes.vcs is not None and os.path.exists(folder.published_path(home)):
        # Cells that were set meanwhile (`skep vc apply`) give way to those asked for here.
        os.unlink(folder.published_path(home))


def _command(home: str) -> list[str]:
    return [sys.executable, "-m", "skep_services.supervisor", home]


def _handed_over(lock: int, held: Sequence[socket]) -> dict[str, str]:
    """Return the environment that says which descriptors the supervisor has from here."""
    numbers = " ".join(str(each.fileno()) for each in held)
    return {**os.environ, "SKEP_LOCK_FD": str(lock), "SKEP_PORT_FDS": numbers}


def _become_supervisor(home: str, lock: int, held: Sequence[socket]) -> NoReturn:
    for each in (lock, *(one.fileno() for one in held)):
        os.set_inheritable(each, True)
    sys.stdout.flush()
    environment = _handed_over(lock, held)
    os.execve(sys.executable, _command(home), environment)  # noqa: S606 - no shell


def _start_supervisor(home: str, lock: int, held: Sequence[socket]) -> subprocess.Popen[bytes]:
    with open(folder.supervisor_log_path(home), "ab", opener=_private) as log:
        return subprocess.Popen(
            _command(home),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            pass_fds=(lock, *(each.fileno() for each in held)),
            env=_handed_over(lock, held),
            start_new_session=True,
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, folder.FILE_MODE)


class Progress:
    """Watches a cluster come up, and tells it."""

    def __init__(self, home: str, process: subprocess.Popen[bytes], *, quiet: bool) -> None:
        self.home = home
        self.begin_s = time.monotonic()
        self._process = process
        self._quiet = quiet
        self._told: dict[str, bool] = {}

    def wait_up(self, nodes: int) -> None:
        """Return once every process is ready and every node has joined.

        Args:
            nodes: How many nodes the cluster has.

        Raises:
            CommandError: The supervisor ended, a process gave up, or the time is up.
        """
        while not self._all_ready():
            self._check_time()
            time.sleep(LOOK_EVERY_S)
        cluster = _read(self.home)
        assert cluster is not None
        gateway = cluster["gateway"]
        client = Client(Target(gateway["url"], gateway["tokens"]["operator"], self.home))
        joined = -1
        while joined < nodes:
            states = [one["state"] for one in client.get("/v1/nodes")["nodes"]]
            # A node that an operator drained is there as well.
            here = sum(state in ("up", "drained") for state in states)
            if here != joined:
                joined = here
                self._tell(f"{joined} of {render.plural(nodes, 'node')} joined")
            self._check_time()
            if joined < nodes:
                time.sleep(LOOK_EVERY_S)

    def seconds(self) -> float:
        """Return how long it has taken (seconds)."""
        return time.monotonic() - self.begin_s

    def _all_ready(self) -> bool:
        # Before the look at the records: what it wrote last is then read afterwards.
        ended = self._process.poll() is not None
        cluster = _read(self.home) or {}
        running = cluster.get("supervisor") or {}
        # A record of an earlier supervisor says nothing about this one.
        own = running.get("pid") == self._process.pid
        if ended or (own and running.get("state") == "failed"):
            if own and running.get("error"):
                self._fail(running["error"], "")
            code = self._process.returncode
            log = folder.supervisor_log_path(self.home)
            self._fail(f"the supervisor ended with code {code}", log)
        if not own:
            return False
        children = folder.read_json(folder.pids_path(self.home)) or {}
        for name, child in children.items():
            if child["state"] == "ready" and name not in self._told:
                self._told[name] = True
                self._tell(f"{name} is ready")
            if child["state"] == "stopped":
                path = folder.service_log_path(self.home, name)
                self._fail(f"{name} gave up: {child['detail']}", path)
            if child["state"] == "backoff" and f"{name} {child['restarts']}" not in self._told:
                self._told[f"{name} {child['restarts']}"] = True
                self._tell(f"{name} ended ({child['detail']}) and is started again")
        ready = all(child["state"] == "ready" for child in children.values())
        return running.get("state") == "running" and ready

    def _check_time(self) -> None:
        if self.seconds() < UP_WITHIN_S:
            return
        children = folder.read_json(folder.pids_path(self.home)) or {}
        late = [name for name, child in children.items() if child["state"] != "ready"]
        what = f"not ready: {', '.join(late)}" if late else "not every node has joined"
        path = folder.service_log_path(self.home, late[0]) if late else ""
        self._fail(f"the cluster is not up after {UP_WITHIN_S:.0f} s: {what}", path, exits.TIMEOUT)

    def _fail(self, text: str, log_path: str, code: int = exits.FAILED) -> None:
        lines = [text]
        if log_path:
            lines += [f"  its last words ({log_path}):", *_last_lines(log_path)]
        lines.append("  `skep doctor` says more; `skep down` stops what is running")
        raise CommandError(code, "\n".join(lines))

    def _tell(self, text: str) -> None:
        if not self._quiet:
            say(f"  {self.seconds():5.1f}s  {text}")


def _last_lines(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [f"    {render.printable(line)[:300]}" for line in lines[-LOG_LINES_SHOWN:]]


def _summary(home: str, cluster: dict[str, Any]) -> dict[str, Any]:
    return {
        "home": home,
        "url": cluster["gateway"]["url"],
        "nats": cluster["nats"]["url"],
        "nodes": cluster["nodes"],
        "vcs": cluster["vcs"],
        "supervisor": cluster["supervisor"],
    }


def _tell_up(home: str, arguments: Namespace, progress: Progress) -> None:
    cluster = _read(home)
    assert cluster is not None
    if arguments.json:
        print_json({**_summary(home, cluster), "seconds": round(progress.seconds(), 3)})
        return
    gpus = [node["gpus"] for node in cluster["nodes"]]
    total = "all GPUs" if "auto" in gpus else render.plural(sum(gpus), "GPU")
    nodes = render.plural(len(gpus), "node")
    option = f" --home {arguments.home}" if arguments.home else ""
    print(f"the cluster is up after {progress.seconds():.1f} s: {nodes}, {total}")
    print(f"  API and page     {cluster['gateway']['url']}")
    print(f"  bus              {cluster['nats']['url']}")
    print(f"  credentials      {folder.cluster_path(home)}")
    owned = [f"{vc} {_owned(one)}" for vc, one in cluster["vcs"].items()]
    print(f"  virtual clusters {', '.join(owned)}")
    # Without a VC named `default` a job has to name one of several.
    several = len(cluster["vcs"]) > 1 and "default" not in cluster["vcs"]
    named = f" --vc {next(iter(cluster['vcs']))}" if several else ""
    print(f"try: skep run{option}{named} -- hostname    skep ps{option} -a    skep down{option}")


def _owned(vc: dict[str, Any]) -> str:
    """Return what a VC owns: GPUs as it asks for them, cells, pinned cells by their names."""
    cells = [f"{one['count']}×{one['chain']}/{one['level']}" for one in vc.get("cells", ())]
    gpus = vc.get("gpus", 0)
    named = [*cells, *vc.get("pinned", ())]
    return " ".join([*([render.plural(gpus, "GPU")] if gpus or not named else []), *named])


COMMANDS = {"up": Command(options_up, run_up)}
