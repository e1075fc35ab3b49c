"""The entry of `skep`: finds the command, runs it, and turns how it ends into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from skep_services.cli import exits, render
from skep_services.cli.connection import LostError
from skep_services.cli.exits import CommandError

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from skep_services.cli.options import Command

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "the cluster on this machine": {
        "up": ("up", "start a cluster, or resume the one that was here"),
        "down": ("down", "stop it; jobs are kept and go on at the next `up`"),
        "doctor": ("doctor", "check this machine and the cluster, and say what to do"),
        "log": ("log", "check | repair: the services' logs, and what does not belong there"),
    },
    "jobs": {
        "submit": ("submit", "hand in job specs (YAML or JSON files, - for standard input)"),
        "plan": (
            "plan",
            "where a spec would run now, which jobs make room, and when: nothing is done",
        ),
        "run": ("run", "run a command as a job, attached: its output here, Ctrl-C to cancel"),
        "ps": ("jobs", "list jobs"),
        "show": ("show", "everything about one job"),
        "why": ("show", "why a job waits, runs or ended; --what-if: what would start it now"),
        "logs": ("logs", "print a job's output"),
        "cancel": ("jobs", "end jobs"),
        "suspend": ("changes", "have jobs stand still; --release gives their GPUs to others"),
        "resume": ("changes", "have suspended jobs go on"),
        "checkpoint": ("changes", "have jobs store their state durably, and go on"),
        "migrate": ("changes", "have jobs go on elsewhere"),
        "resize": ("changes", "have elastic jobs train with more or fewer workers"),
        "pack": ("changes", "have jobs that wait run on GPUs that another holds, beside it"),
        "unpack": ("changes", "have jobs leave the GPUs that they share"),
        "curve": ("curve", "what a job says about its training, as a table or (--svg) a picture"),
        "ledger": ("ledger", "what was tried to make jobs faster, and what came of it"),
        "promises": ("promises", "which deadlines are promised, and what became of them"),
