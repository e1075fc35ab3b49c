"""What a spec names on this machine: the interpreter to record, and files that are not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import say
from skep_services.cli.specs import Document

ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""What names the environment that is active in a shell, in the order in which they are asked."""


def interpreter(given: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the interpreter that a job of this shell runs on.

    Args:
        given: What `--python` says: a path, or a name that is looked up in PATH; None: the one of
            the environment that is active.
        environment: The shell's variables.

    Returns:
        The full path; None: the cluster's own.

    Raises:
        CommandError: The name is not in PATH.
    """
    if given is not None:
        if "/" in given:
            return os.path.abspath(os.path.expanduser(given))
        found = shutil.which(given, path=environment.get("PATH"))
        if found is None:
            text = f"--python {given}: no such program in PATH; give the path of an interpreter"
            raise CommandError(exits.USAGE, text)
        return os.path.abspath(found)
    for name in ACTIVE:
        if environment.get(name):
            path = os.path.join(environment[name], "bin", "python")
            if os.access(path, os.X_OK):
                return path
            say(f"{name} names {environment[name]}, which has no bin/python: the cluster's is used")
    return None


def missing(tree: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a spec names and this machine lacks: where in the spec, and in words.

    Of a container's files only its workdir can be looked for.

    Args:
        tree: The spec.
    """
    found: list[tuple[str, str]] = []
    workdir, script, python = tree.get("workdir"), tree.get("script"), tree.get("python")
    environment = tree.get("environment")
    built_with = environment.get("python") if isinstance(environment, dict) else None
    if isinstance(built_with, str) and "/" in built_with and not os.access(built_with, os.X_OK):
        found.append(("$.environment.python", f"{built_with} is no program on this machine"))
    if tree.get("code") and not (isinstance(workdir, str) and workdir.startswith("/")):
        # Its files travel with it, and were looked for when they were taken.
        script = workdir = None
    if isinstance(workdir, str) and not os.path.isdir(workdir):
        found.append(("$.workdir", f"workdir {workdir} is no folder on this machine"))
    elif tree.get("runtime") is None:
        base = workdir if isinstance(workdir, str) else "/"
        if isinstance(script, str) and not os.path.exists(path := os.path.join(base, script)):
            found.append(("$.script", f"script {os.path.normpath(path)} does not exist"))
        if isinstance(python, str) and "/" in python and not os.access(python, os.X_OK):
            found.append(("$.python", f"{python} is no program on this machine"))
    return found


def check_files(documents: list[Document], *, local: bool, done: str = "submitted") -> None:
    """Look for the files that specs name, before anything is `done` with them.

    Args:
        documents: The specs.
        local: The cluster is this machine. Else the nodes may have a file that is missing here, and
            a line says that they need it.
        done: The participle in the text of the error.

    Raises:
        CommandError: A file is missing, and the cluster is this machine.
    """
    told = [
        f"{document.where(path)}: {text}"
        for document in documents
        if isinstance(document.tree, dict)
        for path, text in missing(document.tree)
    ]
    if told and local:
        text = "\n  ".join([f"nothing was {done}, because a file is missing:", *told])
        raise CommandError(exits.FAILED, text, "bad-value")
    for text in told:
        say(f"warning: {text}; the nodes have to have it")
