"""What a plan from the agent may say. The agent is not believed: it may have been taken over.

A plan chooses a program, its variables and its folder, all used with the rights of the job's
account. It cannot choose that account, a file that the launcher opens, or a device beyond the
patterns of the policy.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import stat
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from skep_services.launcher.accounts import Reason, Refusal
from skep_services.launcher.folders import NAME
from skep_services.launcher.policy import PERSON, VOLUME_MODES

WORDS_MAX = 100_000
TEXT_CHARS_MAX = 4 << 20
PATH_CHARS_MAX = 4096
NODES_MAX = 64
FILES_MAX = 64
VOLUMES_MAX = 16
SYSTEM_FOLDERS = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    # tidy: allow machine-path because every Linux has it
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",  # noqa: S108 - a job has its own
    "/usr",
    "/var",
)
SHARED_FOLDERS = ("/", "/home", "/media", "/mnt", "/opt", "/srv")
"""Where no volume may be seen: as in `skep.wire.volumes`, which the launcher does not import."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
LOG_BYTES_MAX = 1 << 50

TEXTS = ("token", "workdir", "script", "log_path", "job", "owner", "vc", "checkpoints")
KNOWN = frozenset(
    {
        *TEXTS,
        "argv",
        "env",
        "log_bytes_max",
        "device_nodes",
        "files",
        "fresh",
        "work",
        "volumes",
        "copies",
    }
)


def check(plan: Any, patterns: Sequence[str]) -> None:
    """Return if a plan has the form of one.

    Args:
        plan: What came.
        patterns: Of the devices that jobs may get.

    Raises:
        Refusal: It has not; the text says what is wrong.
    """
    if not isinstance(plan, dict):
        _refuse("it is no table")
    unknown = sorted(set(plan) - KNOWN)
    if unknown:
        text = f"it says {unknown[0]!r}, which is not a plan's to say"
        _refuse(text)
    for name in TEXTS:
        if not isinstance(plan.get(name), str) or "\0" in plan[name]:
            text = f"{name} is no text"
            _refuse(text)
    for name in ("token", "job"):
        if not NAME.fullmatch(plan[name]):
            text = f"{name} {plan[name][:64]!r} is no name"
            _refuse(text)
    for name in ("owner", "vc"):
        if plan[name] and not PERSON.fullmatch(plan[name]):
            text = f"{name} {plan[name][:64]!r} is no name"
            _refuse(text)
    if not isinstance(plan.get("work", ""), str) or "\0" in plan.get("work", ""):
        _refuse("work is no text")
    if not isinstance(plan.get("copies", False), bool):
        _refuse("copies is neither true nor false")
    _check_words(plan["argv"])
    _check_variables(plan["env"])
    _check_paths(plan)
    _check_nodes(plan["device_nodes"], patterns)
    _check_files(plan.get("files", {}))
    _check_volumes(plan.get("volumes", []))
    size = plan["log_bytes_max"]
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= LOG_BYTES_MAX:
        text = f"log_bytes_max {size!r} is no size"
        _refuse(text)


def _check_words(argv: Any) -> None:
    fine = isinstance(argv, list) and 1 <= len(argv) <= WORDS_MAX
    if not fine or not all(isinstance(word, str) for word in argv) or not argv[0]:
        _refuse("argv is no command")


def _check_variables(env: Any) -> None:
    fine = isinstance(env, dict) and len(env) <= WORDS_MAX
    if not fine or not all(isinstance(value, str) for value in env.values()):
        _refuse("env is no environment")


def _check_paths(plan: Mapping[str, Any]) -> None:
    for name in ("workdir", "checkpoints", "log_path"):
        path = plan[name]
        if path and (not os.path.isabs(path) or len(path) > PATH_CHARS_MAX):
            text = f"{name} {path[:64]!r} is no full path"
            _refuse(text)


def _check_nodes(nodes: Any, patterns: Sequence[str]) -> None:
    if not isinstance(nodes, list) or len(nodes) > NODES_MAX:
        _refuse("device_nodes is no list of devices")
    for node in nodes:
        named = isinstance(node, str) and any(re.fullmatch(each, node) for each in patterns)
        if not named:
            text = f"device {node!r} is none that jobs may have ([devices] of the policy)"
            raise Refusal(Reason.BAD_DEVICE, text)
        if number_of(node) is None:
            text = f"{node} is no device on this node"
            raise Refusal(Reason.BAD_DEVICE, text, of_node=True)


def _check_files(files: Any) -> None:
    if not isinstance(files, dict) or len(files) > FILES_MAX:
        _refuse("files is no table of files")
    for name, content in files.items():
        if not VARIABLE.fullmatch(name) or not isinstance(content, str):
            text = f"file {name[:64]!r} is none"
            _refuse(text)
        try:
            base64.b64decode(content, validate=True)
        except ValueError:
            text = f"file {name} cannot be decoded"
            _refuse(text)


def _check_volumes(volumes: Any) -> None:
    """Stop at what names no volumes with their places; which may be had is the policy's to say."""
    if not isinstance(volumes, list) or len(volumes) > VOLUMES_MAX:
        _refuse("volumes is no list of volumes")
    for each in volumes:
        fine = isinstance(each, list) and len(each) == 3
        if not fine or not all(isinstance(text, str) for text in each):
            _refuse("volumes has what is no volume: a name, a place and a mode")
        name, place, mode = each
        normal = os.path.isabs(place) and os.path.normpath(place) == place
        if not PERSON.fullmatch(name) or mode not in VOLUME_MODES or "\0" in place or not normal:
            text = f"volume {name[:64]!r} at {place[:64]!r} ({mode[:8]!r}) is none"
            _refuse(text)
        if len(place) > PATH_CHARS_MAX or place.startswith("//"):
            text = f"volume {name} cannot be at {place[:64]!r}"
            _refuse(text)
    places = sorted(each[1] + "/" for each in volumes)
    for above, below in itertools.pairwise(places):
        if below.startswith(above):
            text = f"two volumes are at {above[:64]!r}, or one in the other"
            _refuse(text)


def is_system(place: str) -> bool:
    """Return whether a place is the system's, or hides what all jobs need."""
    within = any(place == each or place.startswith(each + "/") for each in SYSTEM_FOLDERS)
    return within or place in SHARED_FOLDERS


def number_of(node: str) -> tuple[int, int] | None:
    """Return the major and minor number of a character device; None where there is none."""
    try:
        found = os.lstat(node)
    except (OSError, ValueError):
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return os.major(found.st_rdev), os.minor(found.st_rdev)


def _refuse(text: str) -> NoReturn:
    raise Refusal(Reason.BAD_PLAN, text)
