"""`skep down`: stop the cluster on this machine, whatever is left of it."""

from __future__ import annotations

import os
import signal
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from skep_services.cli import exits, leaving
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.up import LOOK_EVERY_S, lock_folder
from skep_services.supervisor import home as folder
from skep_services.supervisor import kept

DOWN_WITHIN_S = 90.0
"""Agents, jobs, services and the bus each get ten seconds and more before they are killed."""

WIPED = ("cluster.json", "pids.json", "supervisor.log", "vcs-published.json", "kept.json", "lock")


def options_down(parser: ArgumentParser) -> None:
    """Add what `down` takes."""
    parser.add_argument(
        "--wipe", action="store_true", help="delete the state folder: jobs, logs, credentials"
    )
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not ask before jobs lose what they did"
    )
    parser.add_argument(
        "--now", action="store_true", help="keep no job in memory, and ask nothing: end all at once"
    )
    parser.epilog = (
        "Jobs that can be suspended wait in memory, with their processes, and go on at the next\n"
        "`skep up`; jobs that store checkpoints store one and end. Others begin anew: they are\n"
        "listed, and `down` asks first.\n\n" + exits.HELP
    )


def run_down(arguments: Namespace) -> int:
    """Stop the cluster. Jobs are kept, and go on at the next `up`.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: Jobs would lose what they did or do not end in time, the folder's file is
            damaged, or another `up` or `down` is at work in the folder.
    """
    home = folder.home_folder(arguments.home)
    if told := folder.refuse_server(home):
        raise CommandError(exits.FAILED, told)
    cluster = _read_for_down(home, wipe=arguments.wipe)
    if cluster is None:
        # What was asked for is the case already: scripts may ask twice.
        if arguments.json:
            answer = {"was_up": False, "survivors": [], "wiped": False, "kept": [], "lost": []}
            print_json({"home": home, **answer})
        else:
            say(f"no cluster here: {home} holds none")
        return exits.OK
    was_up = folder.supervisor_alive(cluster)
    if arguments.now or arguments.wipe:
        # No job is kept. Nodes that an earlier `down` closed are still opened at the next `up`.
        closed = () if arguments.wipe else kept.read(home).undrain
        leave = leaving.Leave(kept.Kept(undrain=closed), (), ())
    else:
        leave = _leave(home, cluster, arguments)
    leaving.note(home, leave.kept)
    if was_up:
        _stop_supervisor(cluster["supervisor"])
    lock = lock_folder(home)
    if lock is None:
        text = f"another `skep up` or `skep down` is at work in {home}: wait for it"
        raise CommandError(exits.FAILED, text)
    try:
        left = _stop_left(home, leave.kept.jobs)
        if arguments.wipe:
            _wipe(home)
    finally:
        os.close(lock)
    if arguments.json:
        answer = {"was_up": was_up, "survivors": left, "wiped": arguments.wipe}
        lost = [one.job for one in leave.lost]
        print_json({"home": home, **answer, "kept": leave.kept.jobs, "lost": lost})
    else:
        done = "is stopped" if was_up or left else "was not running"
        wiped = f"; {home} is deleted" if arguments.wipe else ""
        print(f"the cluster in {home} {done}{wiped}")
        if leave.kept.jobs:
            names = " ".join(leave.kept.jobs)
            print(f"in memory until `skep up`: {names}  (`skep down --now` ends them)")
        if leave.stored:
            print(f"stored, and ended: {' '.join(leave.stored)}")
    return exits.OK


def _leave(home: str, cluster: dict[str, Any], arguments: Namespace) -> leaving.Leave:
    """Suspend the jobs that can be, and return what becomes of all.

    Raises:
        CommandError: Others would lose what they did, and may not; or the gateway refuses.
    """
    from skep_services.supervisor import boot

    before, client = kept.read(home), None
    try:
        leave, client = leaving.prepare(home, cluster, before)
    except CommandError as error:
        if error.code != exits.UNREACHABLE:
            raise
        busy = [path for path in boot.node_folders(home) if boot.has_jobs(path)]
        # What an earlier `down` kept is suspended: nothing of it is lost.
        before = kept.read(home)  # With nodes that it could close, and not open again.
        leave = leaving.Leave(before, (), () if before.jobs else leaving.unknown(busy))
    ask = None if arguments.json else leaving.asker()
    agreed = False
    try:
        agreed = leaving.agree(leave.lost, yes=arguments.yes, ask=ask)
    finally:
        if not agreed and client is not None and leaving.undo(client, leave.kept):
            leaving.note(home, before)
    if not agreed:
        shown = "\n".join(leaving.lines(leave.lost))
        text = f"nothing was stopped; these would lose what they did:\n{shown}\n  stop them: --yes"
        raise CommandError(exits.FAILED, text, "jobs-lost", lost=[one.job for one in leave.lost])
    return leave


def _read_for_down(home: str, *, wipe: bool) -> dict[str, Any] | None:
    """Return the cluster; one whose file is damaged can still be wiped.

    Raises:
        CommandError: The file is damaged, and is not to be wiped.
    """
    try:
        return folder.read_cluster(home)
    except ValueError as error:
        if wipe:
            return {}
        raise CommandError(exits.FAILED, f"{error}\n  begin anew: skep down --wipe") from None


def _stop_supervisor(entry: dict[str, Any]) -> None:
    """Ask the supervisor to stop everything, and wait until it is gone."""
    from skep_services.agent import proc

    process = proc.process(entry["pid"])
    if process is None or not folder.is_alive(entry):
        return
    proc.send(process, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_WITHIN_S
    while folder.is_alive(entry):
        if time.monotonic() > deadline:
            say(f"the supervisor does not stop after {DOWN_WITHIN_S:.0f} s and is killed")
            proc.send(process, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(LOOK_EVERY_S)


def _stop_left(home: str, keep: tuple[str, ...]) -> list[str]:
    """Stop what a killed supervisor left: its children, and jobs of its nodes that are not kept.

    What such jobs had in the nodes' memory is removed.

    Raises:
        CommandError: The jobs do not end in time.
    """
    import asyncio

    from skep_services.agent.replicas import Replicas
    from skep_services.supervisor import boot, survivors
    from skep_services.supervisor.table import NATS, cluster_plan, nats_config_path

    try:
        cluster = boot.read_cluster(home)
    except ValueError:
        cluster = None
    plan = cluster and cluster_plan(cluster, home, nats_config_path(home))
    found = survivors.find(home, plan.every() if plan else ())
    survivors.stop_in_order(found, NATS)
    try:
        busy = asyncio.run(boot.stop_jobs(boot.node_folders(home), keep))
    except boot.JobsStayError as error:
        raise CommandError(exits.TIMEOUT, str(error), "jobs-stay") from None
    for path in boot.node_folders(home):
        Replicas(Path(path), 0).remove_all(keep)
    names = sorted(found, key=lambda name: (name == NATS, name))
    return [*names, *(f"jobs in {state}" for state in busy)]


def _wipe(home: str) -> None:
    """Delete what `up` made. Anything else in the folder is not ours and stays."""
    import shutil

    from skep_services.supervisor.table import ACCESS, NATS, NOTIFIER, SERVICES, VAULT

    for name in os.listdir(home):
        path = os.path.join(home, name)
        # Every process that was kept up has its log in its folder, whatever it was called.
        known = (NATS, *SERVICES, VAULT, ACCESS, NOTIFIER, folder.CHECKPOINTS)
        ours = name in known or os.path.exists(os.path.join(path, "service.log"))
        if ours and os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
    for name in WIPED:
        try:
            os.unlink(os.path.join(home, name))
        except FileNotFoundError:
            pass  # Not every cluster came that far.
    try:
        os.rmdir(home)
    except OSError:
        say(f"{home} holds more than a cluster and stays")


COMMANDS = {"down": Command(options_down, run_down)}
