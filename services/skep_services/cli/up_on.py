"""`skep up --on slurm|kubernetes`: nodes on machines that another system owns."""

from __future__ import annotations

import os
import re
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits
from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import seconds
from skep_services.cli.options import client_of, print_json, say
from skep_services.supervisor.config import GPUS_MAX

if TYPE_CHECKING:
    from skep.pools import Limits
    from skep_services.adapters.kubernetes import Access
    from skep_services.pools.source import Source

SLURM, KUBERNETES = "slurm", "kubernetes"
FOLDER = "slurm"
NODES_MAX = 1000
GRACE_S_MIN, GRACE_S_MAX = 40, 3600
"""A pod that ends: jobs leave, the agent ends, and what is left stores itself."""
POOL = re.compile(r"[a-z][a-z0-9]{0,15}")
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LOOPBACK = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?/?")
IMAGE_CHARS_MAX = 500
POD_FILE_BYTES_MAX = 64 * 1024

OF_BOTH: dict[str, str] = {"nodes_min": "1", "margin": "2m", "idle": "10m"}
OF_SLURM: dict[str, str] = {"allocation_time": "4:00:00", "partition": "", "address": ""}
OF_KUBERNETES: dict[str, str | bool] = {
    "namespace": "",
    "image": "",
    "pod": "",
    "pool": "kube",
    "checkpoints_claim": "",
    "api_server": "",
    "hand_back": False,
}
"""Options that are about one of them alone, by their names here, and their usual values."""
OPTIONS = {"allocation_time": "--time"}
OTHERS = ("vc", "cluster", "policy", "port", "secrets", "people", "foreground")
"""Options of the cluster on this machine, which has nothing to do with other machines."""


def options(parser: ArgumentParser) -> None:
    """Add what is about other systems' machines."""
    both = parser.add_argument_group("on machines that another system owns")
    both.add_argument(
        "--on",
        choices=(SLURM, KUBERNETES),
        help="have nodes in allocations of Slurm's, or in pods of Kubernetes, for the cluster of "
        "servers in --home: as many as the jobs need, at most --nodes, each with --gpus; stay "
        "until interrupted",
    )
    both.add_argument("--nodes-min", metavar="N", help="nodes that are always there (default 1)")
    both.add_argument(
        "--margin",
        metavar="TIME",
        help="so long before an allocation ends its jobs are moved or stored; so long a pod has "
        "to end (default 2m)",
    )
    both.add_argument(
        "--idle", metavar="TIME", help="a node is handed back when idle for (default 10m)"
    )
    slurm = parser.add_argument_group("--on slurm")
    slurm.add_argument("--partition", help="of Slurm's (default: its own default)")
    slurm.add_argument(
        "--time",
        dest="allocation_time",
        metavar="TIME",
        help="of an allocation, as sbatch takes it (default 4:00:00)",
    )
    slurm.add_argument("--address", help="of every node, if not the machine's own")
    pods = parser.add_argument_group("--on kubernetes")
    pods.add_argument("--image", help="of the pods: Skep, and what jobs need")
    pods.add_argument("--namespace", metavar="NAME", help="of the pods (default: the pod's own)")
    pods.add_argument(
        "--pod", metavar="FILE", help="what else pods are to have: nodeSelector, tolerations, ..."
    )
    pods.add_argument(
        "--checkpoints-claim",
        metavar="NAME",
        help="a PersistentVolumeClaim that all pods can write to, for what jobs store",
    )
    pods.add_argument(
        "--pool", metavar="NAME", help="what names of nodes begin with (default kube)"
    )
    pods.add_argument(
        "--api-server",
        metavar="URL",
        help="of `kubectl proxy` on this machine (default: as pods find it)",
    )
    pods.add_argument(
        "--hand-back",
        action="store_const",
        const=True,
        help="have jobs leave all pods of the pool, delete the pods, and return",
    )


def refuse_mixed(arguments: Namespace) -> None:
    """Refuse options that would be ignored, and fill in the usual values of the others.

    Raises:
        CommandError: There is one.
    """
    mine = {SLURM: tuple(OF_SLURM), KUBERNETES: tuple(OF_KUBERNETES)}
    for on, names in mine.items():
        for name in names if arguments.on != on else ():
            if getattr(arguments, name):
                raise CommandError(exits.USAGE, f"{_option(name)} goes with --on {on}")
    for name in OTHERS if arguments.on else OF_BOTH:
        if getattr(arguments, name):
            text = f"does not go with --on {arguments.on}"
            text = text if arguments.on else "goes with --on slurm or --on kubernetes"
            raise CommandError(exits.USAGE, f"{_option(name)} {text}")
    for name, value in {**OF_BOTH, **OF_SLURM, **OF_KUBERNETES}.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def _option(name: str) -> str:
    return OPTIONS.get(name) or f"--{name.replace('_', '-')}"


def run(arguments: Namespace) -> int:
    """Keep nodes until interrupted.

    Returns:
        The exit code: 0 once everything is handed back, or, of pods, once it is asked to stop.

    Raises:
        CommandError: It is asked for wrongly, there is no cluster, or no owner of machines.
    """
    from skep_services.pools.source import SourceError

    limits = _limits(arguments)
    opened = _slurm if arguments.on == SLURM else _kubernetes
    try:
        with opened(arguments, limits) as (client, source), _alone(arguments, client):
            return _keep(arguments, limits, client, source)
    except SourceError as error:
        raise CommandError(exits.FAILED, str(error), f"no-{arguments.on}") from None


@contextmanager
def _alone(arguments: Namespace, client: Client) -> Iterator[None]:
    """Hold the pool's lock in the state folder, if there is one: two keepers would ask twice.

    Raises:
        CommandError: Another keeper of the pool runs, or the folder cannot be written.
    """
    import fcntl

    if not client.target.folder:
        yield  # In a pod: the StatefulSet runs one.
        return
    pool = arguments.on if arguments.on == SLURM else f"{arguments.on}-{arguments.pool}"
    path = os.path.join(client.target.folder, f"pool-{pool}.lock")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CommandError(exits.FAILED, f"{path} cannot be used: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another `skep up --on {arguments.on}` keeps this pool ({path}): stop it first"
            raise CommandError(exits.FAILED, text, "pool-kept") from None
        yield
    finally:
        os.close(lock)


def _keep(arguments: Namespace, limits: Limits, client: Client, source: Source) -> int:
    from skep_services.pools.keeper import Keeper

    def tell(text: str) -> None:
        print_json({"event": text}) if arguments.json else say(text)
        sys.stdout.flush()

    keeper = Keeper(client, source, limits, tell)
    signal.signal(signal.SIGTERM, _interrupt)
    stays = arguments.on == KUBERNETES
    if not arguments.hand_back:
        text = "they stay when this ends" if stays else "Ctrl-C hands them back"
        tell(f"{limits.least} to {limits.most} nodes of {limits.gpus} GPUs; {text}")
        try:
            keeper.run()
        except KeyboardInterrupt:
            if stays:
                tell("nodes stay; the command given again goes on with them")
                return exits.OK
    tell("handing everything back ...")
    keeper.hand_back()
    return exits.OK


def _limits(arguments: Namespace) -> Limits:
    from skep.pools import Limits

    limits = Limits(
        least=_count("--nodes-min", arguments.nodes_min, 0, NODES_MAX),
        most=_count("--nodes", 2 if arguments.nodes is None else arguments.nodes, 1, NODES_MAX),
        gpus=_count("--gpus", arguments.gpus or "4", 1, GPUS_MAX),
        margin_s=_length("--margin", arguments.margin),
        idle_s=_length("--idle", arguments.idle),
    )
    if limits.least > limits.most:
        raise CommandError(
            exits.USAGE, f"--nodes-min {limits.least}: at most --nodes {limits.most}"
        )
    return limits


# --- Slurm ----------------------------------------------------------------------------------------


@contextmanager
def _slurm(arguments: Namespace, limits: Limits) -> Iterator[tuple[Client, Source]]:
    from skep_services.pools.slurm import Queue

    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    if not client.target.folder or not client.target.url.startswith("https://"):
        text = "nodes elsewhere need a cluster of real machines: skep server init, skep server run"
        raise CommandError(exits.FAILED, f"{text}; its folder is --home DIR")
    client.get("/v1/nodes")
    folder = Path(client.target.folder, FOLDER)
    (folder / "checkpoints").mkdir(mode=0o700, parents=True, exist_ok=True)
    inside = [sys.executable, "-m", "skep_services.pools.slurm_node", str(folder)]
    inside += ["--device", arguments.device or "cuda", "--gpus", str(limits.gpus)]
    inside += ["--gpu-type", arguments.gpu_type] if arguments.gpu_type else []
    inside += ["--address", arguments.address] if arguments.address else []
    options = [f"--gres=gpu:{limits.gpus}", f"--time={arguments.allocation_time}"]
    options += [f"--partition={arguments.partition}"] if arguments.partition else []
    yield client, Queue(f"skep-{os.getuid()}-{_mark(folder)}", folder, options, inside)


def _mark(folder: Path) -> str:
    """Return what tells the allocations of one cluster from those of another."""
    import hashlib

    return hashlib.sha256(str(folder).encode()).hexdigest()[:8]


# --- Kubernetes -----------------------------------------------------------------------------------


@contextmanager
def _kubernetes(arguments: Namespace, limits: Limits) -> Iterator[tuple[Client, Source]]:
    from skep_services.pools.kubernetes import PodPool
    from skep_services.pools.kubernetes_pod import Wanted

    if not GRACE_S_MIN <= limits.margin_s <= GRACE_S_MAX:
        text = f"a pod has {GRACE_S_MIN} s to {GRACE_S_MAX} s to end"
        raise CommandError(exits.USAGE, f"--margin {arguments.margin}: {text}")
    if not arguments.image and not arguments.hand_back:
        raise CommandError(exits.USAGE, "--image IMAGE: of the pods, as Kubernetes pulls it")
    if not arguments.image.isprintable() or len(arguments.image) > IMAGE_CHARS_MAX:
        raise CommandError(exits.USAGE, "--image: a name of an image")
    _match("--pool", arguments.pool, POOL, "1 to 16 small letters and digits, a letter first")
    if arguments.checkpoints_claim:
        _name("--checkpoints-claim", arguments.checkpoints_claim)
    wanted = Wanted(
        pool=arguments.pool,
        image=arguments.image,
        device=arguments.device or "cuda",
        gpus=limits.gpus,
        gpu_type=arguments.gpu_type or "",
        grace_s=int(limits.margin_s),
        claim=arguments.checkpoints_claim,
        extra=_pod_file(arguments.pod),
    )
    access = _access(arguments)
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    if not client.target.url.startswith("https://"):
        text = "pods need a cluster of real machines: skep server init, skep server run"
        raise CommandError(exits.FAILED, f"{text}; its folder is --home DIR, or say SKEP_API")
    client.get("/v1/nodes")
    with PodPool(access, wanted) as pool:
        pool.allocations()
        yield client, pool


def _access(arguments: Namespace) -> Access:
    from skep_services.adapters.kubernetes import Access, KubernetesError, in_pod

    if arguments.namespace:
        _name("--namespace", arguments.namespace)
    if not arguments.api_server:
        try:
            return in_pod(arguments.namespace)
        except KubernetesError as error:
            raise CommandError(exits.FAILED, str(error), "no-kubernetes") from None
    text = "what `kubectl proxy` says, such as http://127.0.0.1:8001"
    _match("--api-server", arguments.api_server, LOOPBACK, text)
    if not arguments.namespace:
        raise CommandError(exits.USAGE, "--namespace NAME: where the pods are to be")
    return Access(arguments.api_server, arguments.namespace)


def _pod_file(name: str) -> dict[str, Any]:
    """Return what a file says about pods.

    Raises:
        CommandError: It cannot be read, or says what it may not.
    """
    import yaml

    from skep_services.pools import kubernetes_pod

    if not name:
        return {}
    try:
        with open(name, "rb") as file:
            raw = file.read(POD_FILE_BYTES_MAX + 1)
        if len(raw) > POD_FILE_BYTES_MAX:
            raise CommandError(exits.USAGE, f"--pod {name}: at most {POD_FILE_BYTES_MAX} bytes")
        return kubernetes_pod.check(yaml.safe_load(raw))
    except OSError as error:
        raise CommandError(exits.USAGE, f"--pod {name}: {error.strerror}") from None
    except kubernetes_pod.PodError as error:
        raise CommandError(exits.USAGE, f"--pod {name}: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        text = str(error).splitlines()[0]
        raise CommandError(exits.USAGE, f"--pod {name}: no YAML: {text}") from None


def _name(option: str, text: str) -> None:
    _match(option, text, DNS_LABEL, "small letters, digits and dashes, at most 63")


def _match(option: str, text: str, pattern: re.Pattern[str], wanted: str) -> None:
    if not pattern.fullmatch(text):
        raise CommandError(exits.USAGE, f"{option} {text}: {wanted}")


# --- Values ---------------------------------------------------------------------------------------


def _count(option: str, given: object, low: int, high: int) -> int:
    text = str(given)
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and low <= int(text) <= high):
        raise CommandError(exits.USAGE, f"{option} {text}: a number from {low} to {high}")
    return int(text)


def _length(option: str, text: str) -> float:
    try:
        return seconds(text)
    except ValueError:
        raise CommandError(exits.USAGE, f"{option} {text}: a time such as 90s, 15m") from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
