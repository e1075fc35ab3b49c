"""`skep up --on slurm`: a cluster whose nodes are in allocations of a Slurm cluster."""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import FrameType

from skep_services.cli import exits
from skep_services.cli.client import PATIENCE_FOLLOWING_S
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import seconds
from skep_services.cli.options import client_of, print_json, say
from skep_services.supervisor.config import GPUS_MAX

FOLDER = "slurm"
NODES_MAX = 1000
USUAL = {"nodes_min": "1", "allocation_time": "4:00:00", "margin": "2m", "idle": "10m"}
USUAL |= {"partition": "", "address": ""}
"""Options that are about Slurm alone, by their names here."""
OPTIONS = {"nodes_min": "--nodes-min", "allocation_time": "--time"}
OTHERS = ("vc", "cluster", "policy", "port", "secrets", "people", "foreground")
"""Options of the cluster on this machine, which has nothing to do with Slurm."""


def options(parser: ArgumentParser) -> None:
    """Add what is about Slurm."""
    slurm = parser.add_argument_group("on a cluster that Slurm owns")
    slurm.add_argument(
        "--on",
        choices=("slurm",),
        help="have nodes in allocations of Slurm's for the cluster of servers in --home, as many "
        "as the jobs need, at most --nodes, each with --gpus; stay until interrupted",
    )
    slurm.add_argument("--partition", help="of Slurm's (default: its own default)")
    slurm.add_argument("--nodes-min", metavar="N", help="nodes that are always there (default 1)")
    slurm.add_argument(
        "--time",
        dest="allocation_time",
        metavar="TIME",
        help="of an allocation, as sbatch takes it (default 4:00:00)",
    )
    slurm.add_argument(
        "--margin",
        metavar="TIME",
        help="so long before its end its jobs are moved or stored (default 2m)",
    )
    slurm.add_argument(
        "--idle", metavar="TIME", help="a node is handed back when idle for (default 10m)"
    )
    slurm.add_argument("--address", help="of every node, if not the machine's own")


def refuse_mixed(arguments: Namespace) -> None:
    """Refuse options that would be ignored, and fill in the usual values of the others.

    Raises:
        CommandError: There is one.
    """
    wrong = OTHERS if arguments.on else USUAL
    for name in wrong:
        if getattr(arguments, name):
            option = OPTIONS.get(name, f"--{name}")
            text = "does not go with" if arguments.on else "goes with"
            raise CommandError(exits.USAGE, f"{option} {text} --on slurm")
    for name, value in USUAL.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def run(arguments: Namespace) -> int:
    """Keep nodes in allocations until interrupted, and then hand all of them back.

    Returns:
        The exit code: 0 once everything is handed back.

    Raises:
        CommandError: It is asked for wrongly, there is no cluster, or no Slurm.
    """
    from skep.slurm.allocations import Limits
    from skep_services.slurm_nodes.keeper import Keeper
    from skep_services.slurm_nodes.queue import Queue, SlurmError

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
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    if not client.target.folder or not client.target.url.startswith("https://"):
        text = "nodes elsewhere need a cluster of real machines: skep server init, skep server run"
        raise CommandError(exits.FAILED, f"{text}; its folder is --home DIR")
    client.get("/v1/nodes")
    folder = Path(client.target.folder, FOLDER)
    (folder / "checkpoints").mkdir(mode=0o700, parents=True, exist_ok=True)
    inside = [sys.executable, "-m", "skep_services.slurm_nodes.inside", str(folder)]
    inside += ["--device", arguments.device or "cuda", "--gpus", str(limits.gpus)]
    inside += ["--gpu-type", arguments.gpu_type] if arguments.gpu_type else []
    inside += ["--address", arguments.address] if arguments.address else []
    options = [f"--gres=gpu:{limits.gpus}", f"--time={arguments.allocation_time}"]
    options += [f"--partition={arguments.partition}"] if arguments.partition else []
    try:
        queue = Queue(f"skep-{os.getuid()}-{_mark(folder)}", folder, options, inside)
    except SlurmError as error:
        raise CommandError(exits.FAILED, str(error), "no-slurm") from None

    def tell(text: str) -> None:
        print_json({"event": text}) if arguments.json else say(text)
        sys.stdout.flush()

    keeper = Keeper(client, queue, folder, limits, tell)
    signal.signal(signal.SIGTERM, _interrupt)
    tell(f"{limits.least} to {limits.most} nodes of {limits.gpus} GPUs; Ctrl-C hands them back")
    try:
        keeper.run()
    except KeyboardInterrupt:
        tell("handing everything back ...")
    try:
        keeper.hand_back()
    except SlurmError as error:
        raise CommandError(exits.FAILED, str(error)) from None
    return exits.OK


def _mark(folder: Path) -> str:
    """Return what tells the allocations of one cluster from those of another."""
    import hashlib

    return hashlib.sha256(str(folder).encode()).hexdigest()[:8]


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
