"""`skep down`: stop the cluster on this machine, whatever is left of it."""

from __future__ import annotations

import os
import signal
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.up import LOOK_EVERY_S, lock_folder
from skep_services.supervisor import home as folder

DOWN_WITHIN_S = 90.0
"""Agents, jobs, services and the bus each get ten seconds and more before they are killed."""

WIPED = ("cluster.json", "pids.json", "supervisor.log", "vcs-published.json", "lock")


def options_down(parser: ArgumentParser) -> None:
    """Add what `down` takes."""
    parser.add_argument(
        "--wipe", action="store_true", help="delete the state folder: jobs, logs, credentials"
    )


def run_down(arguments: Namespace) -> int:
    """Stop the cluster: jobs too. They are kept, and go on at the next `up`."""
    home = folder.home_folder(arguments.home)
    cluster = _read_for_down(home, wipe=arguments.wipe)
    if cluster is None:
        # What was asked for is the case already: scripts may ask twice.
        if arguments.json:
            print_json({"home": home, "was_up": False, "survivors": [], "wiped": False})
        else:
            say(f"no cluster here: {home} holds none")
        return exits.OK
    was_up = folder.supervisor_alive(cluster)
    if was_up:
        _stop_supervisor(cluster["supervisor"])
    lock = lock_folder(home)
    if lock is None:
        text = f"another `skep up` or `skep down` is at work in {home}: wait for it"
        raise CommandError(exits.FAILED, text)
    try:
        left = _stop_left(home)
        if arguments.wipe:
            _wipe(home)
    finally:
        os.close(lock)
    if arguments.json:
        print_json({"home": home, "was_up": was_up, "survivors": left, "wiped": arguments.wipe})
    else:
        done = "is stopped" if was_up or left else "was not running"
        wiped = f"; {home} is deleted" if arguments.wipe else ""
        print(f"the cluster in {home} {done}{wiped}")
    return exits.OK


def _read_for_down(home: str, *, wipe: bool) -> dict[str, Any] | None:
    """Return the cluster; one whose file is damaged can still be wiped."""
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


def _stop_left(home: str) -> list[str]:
    """Stop what a killed supervisor left: its children, and the jobs of its nodes."""
    import asyncio

    from skep_services.supervisor import boot, survivors
    from skep_services.supervisor.table import cluster_plan, nats_config_path

    try:
        cluster = boot.read_cluster(home)
    except ValueError:
        cluster = None
    plan = cluster and cluster_plan(cluster, home, nats_config_path(home))
    found = survivors.find(home, plan.every() if plan else ())
    bus = found.pop("nats", None)
    survivors.stop(found.values())
    if bus is not None:
        survivors.stop([bus])
    busy = asyncio.run(boot.stop_jobs(boot.node_folders(home)))
    return [*sorted(found), *(["nats"] if bus else []), *(f"jobs in {state}" for state in busy)]


def _wipe(home: str) -> None:
    """Delete what `up` made. Anything else in the folder is not ours and stays."""
    import shutil

    from skep_services.supervisor.table import NATS, SERVICES

    for name in os.listdir(home):
        path = os.path.join(home, name)
        # Every process that was kept up has its log in its folder, whatever it was called.
        ours = name in (NATS, *SERVICES, folder.CHECKPOINTS) or os.path.exists(
            os.path.join(path, "service.log")
        )
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
