"""What the supervisor does with the bus and the jobs: the parts that need the adapters."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from skep.wire import subjects
from skep.wire.admin import SetVcs
from skep.wire.codec import encode
from skep.wire.runs import RunExited, RunStarted
from skep_services.adapters import nats_access, nats_server, nats_store
from skep_services.adapters.docker_records import has_containers
from skep_services.adapters.docker_runtime import DockerRuntime
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_streams import bootstrap_streams
from skep_services.adapters.node_runtimes import NodeRuntimes
from skep_services.adapters.process_runtime import ProcessRuntime
from skep_services.supervisor import home as folder
from skep_services.supervisor.config import Cluster
from skep_services.supervisor.kept import is_kept
from skep_services.supervisor.run import say
from skep_services.supervisor.table import nats_config_path, port_of, tokens_path

JOBS_GRACE_S = 5.0
"""What a job gets between SIGTERM and SIGKILL when the whole cluster is taken down."""

RUNNER_GONE_EVERY_S = 0.01
JOBS_STOP_WITHIN_S = 30.0
"""After this the cluster is taken down all the same."""


def marker_path(home: str) -> Path:
    """Return the file that says which streams exist: with it, a missing one is an alarm."""
    return Path(home, "nats", "streams.json")


def write_files(home: str, cluster: Cluster) -> None:
    """Write what the bus server and the gateway read; make what the agents write to."""
    os.makedirs(folder.checkpoints_path(home), mode=folder.FOLDER_MODE, exist_ok=True)
    nodes, vcs = [node.name for node in cluster.nodes], cluster.vcs_with_credentials
    for path in (nats_config_path(home), tokens_path(home)):
        os.makedirs(os.path.dirname(path), mode=folder.FOLDER_MODE, exist_ok=True)
    text = nats_server.config_text(
        port=port_of(cluster.nats.url),
        store_dir=_store(home),
        accounts=nats_access.accounts(nats_access.behind_door(cluster.nats.users, vcs), nodes, vcs),
    )
    folder.write_text(nats_config_path(home), text)
    names = {token: name for name, token in cluster.gateway.tokens.items()}
    folder.write_json(tokens_path(home), names)


def move_streams(home: str) -> None:
    """Have the streams of an earlier version belong to the services' account; no server may run.

    Raises:
        StoreError: Both accounts have streams, and only one of them can be the cluster's.
        OSError: The store cannot be read or written.
    """
    if nats_store.move_streams(_store(home)):
        say("streams moved", account=nats_access.SERVICES_ACCOUNT)


def _store(home: str) -> Path:
    return Path(home, "nats", "store")


async def prepare(home: str, cluster: Cluster, replicas: int = 1) -> None:
    """Make the streams that never existed, and publish the virtual clusters if they changed.

    Args:
        home: The state folder.
        cluster: The cluster, whose bus is up.
        replicas: How many servers keep each stream.

    Raises:
        MissingStreamError: A stream is gone.
        DriftedStreamError: A stream is not as it should be.
        RefusedError: The server does not make or change a stream.
    """
    bus = await _connect(cluster, nats_access.BOOTSTRAP)
    try:
        await bootstrap_streams(bus, marker_path(home), replicas)
    finally:
        await bus.close()
    wanted = encode(
        SetVcs(
            vcs=cluster.vcs,
            chains=cluster.chains,
            pins=cluster.pins,
            quarantine=cluster.quarantine,
            volumes=cluster.volumes,
        )
    )
    if _published(home) == wanted:
        return
    bus = await _connect(cluster, nats_access.OPERATOR)
    try:
        # A key of its own each time: going back to earlier quotas is a change as well, and setting
        # the same ones twice after a crash does no harm.
        key = f"vcs-{uuid.uuid4().hex}"
        sequence = await bus.publish(subjects.admin("vcs"), wanted, key, {})
    finally:
        await bus.close()
    folder.write_text(folder.published_path(home), wanted.decode())
    say("virtual clusters published", vcs=list(cluster.vcs), sequence=sequence)


def _published(home: str) -> bytes:
    try:
        with open(folder.published_path(home), "rb") as file:
            return file.read()
    except OSError:
        return b""


async def _connect(cluster: Cluster, identity: str) -> NatsBus:
    options = LinkOptions(
        servers=tuple(cluster.nats.url.split(",")),
        identity=identity,
        password=cluster.nats.users[identity],
        tls=cluster.nats.tls,
    )
    return await NatsBus.connect(options, _lost)


def _lost(error: Exception) -> None:
    say("the bus connection is lost", error=str(error))


def node_folders(home: str) -> list[str]:
    """Return the state folders of nodes in which a job ever was, of former nodes too."""
    try:
        names = sorted(os.listdir(home))
    except FileNotFoundError:
        return []
    folders = [os.path.join(home, name) for name in names]
    signs = "runner.lock", os.path.join("containers", "owner")
    return [
        path for path in folders if any(os.path.exists(os.path.join(path, sign)) for sign in signs)
    ]


class JobsStayError(Exception):
    """Jobs of nodes did not end in time; the text is one line."""


async def stop_jobs(states: Sequence[str], keep: Collection[str] = ()) -> list[str]:
    """End every process of every job of the nodes whose state folders are given.

    The agents must be gone.

    Args:
        states: The nodes' state folders.
        keep: Ids of jobs whose processes stay as they are; their runner stays with them.

    Returns:
        The folders of nodes where any job was stopped.

    Raises:
        JobsStayError: The jobs are not stopped within JOBS_STOP_WITHIN_S.
    """
    busy = [state for state in states if has_jobs(state)]
    try:
        async with asyncio.timeout(JOBS_STOP_WITHIN_S):
            stopped = await asyncio.gather(*(_stop_jobs_of(state, keep) for state in busy))
    except TimeoutError:
        text = (
            f"jobs did not end within {JOBS_STOP_WITHIN_S:.0f} s, of the nodes in "
            f"{', '.join(busy)}: type the same again"
        )
        raise JobsStayError(text) from None
    return [state for state, any_stopped in zip(busy, stopped, strict=True) if any_stopped]


async def _stop_jobs_of(state: str, keep: Collection[str]) -> bool:
    ends: dict[str, RunExited] = {}
    changed = asyncio.Event()

    async def ended(end: RunExited) -> None:
        ends[end.token] = end
        changed.set()

    processes = ProcessRuntime(Path(state))
    runtime = NodeRuntimes(processes, DockerRuntime(Path(state)))
    await runtime.open(ended)
    try:
        runs = [run.token for run in await runtime.runs() if isinstance(run, RunStarted)]
        live = [token for token in runs if not is_kept(token, keep)]
        await asyncio.gather(*(runtime.stop(token, JOBS_GRACE_S) for token in live))
        while not all(token in ends for token in live):
            await changed.wait()
            changed.clear()
        if len(live) < len(runs):
            return bool(live)
        await processes.shutdown(0.0)
    finally:
        await runtime.close()
    # It answers before it is gone; what is left of the folder's processes is then nothing.
    while _runner_alive(state):  # noqa: ASYNC110 - a lock tells no event
        await asyncio.sleep(RUNNER_GONE_EVERY_S)
    return True


def has_jobs(state: str) -> bool:
    """Return whether a node's runner is alive, or it or the engine may hold jobs.

    Args:
        state: The node's state folder.
    """
    return _runner_alive(state) or has_containers(Path(state)) or has_runs(state)


def has_runs(state: str) -> bool:
    """Return whether a node has runs of processes that have begun and not ended.

    Args:
        state: The node's state folder.
    """
    began: dict[str, bool] = {}
    try:
        with open(os.path.join(state, "runner.jsonl"), "rb") as file:
            for line in file:
                _take_line(began, line)
    except OSError:
        pass  # There never was a run.
    return bool(began)


def _runner_alive(state: str) -> bool:
    try:
        lock = os.open(os.path.join(state, "runner.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _take_line(began: dict[str, bool], line: bytes) -> None:
    """Follow one line of the runner's record: which runs have begun and not ended."""
    try:
        entry = json.loads(line)
    except ValueError:
        return
    if not isinstance(entry, dict):
        return
    if "began" in entry:
        began[entry["began"]] = True
    for key in ("exited", "not_started", "forgot"):
        if key in entry:
            began.pop(entry[key], None)


def read_cluster(home: str) -> Cluster | None:
    """Return the cluster of a state folder, or None if there is none.

    Raises:
        ValueError: The file cannot be used; the text is for a person.
    """
    tree = folder.read_cluster(home)
    if tree is None:
        return None
    try:
        return msgspec.convert(tree, Cluster)
    except msgspec.ValidationError as error:
        text = f"{folder.cluster_path(home)}: {error}"
        raise ValueError(text) from None
