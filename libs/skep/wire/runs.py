"""Process trees on a node: what the agent asks its runtime for, and what the runtime answers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skep.units import Instant
from skep.wire.volumes import Mount


class Warm(msgspec.Struct, frozen=True, kw_only=True):
    """A run may be forked from a process that has made its script's imports (a warm process).

    At most so many `processes` are on the node, each of so many `bytes`, and each for `idle_s`
    seconds after it was of use. A warm process is never of use to another VC or owner (`whose`).
    `script` names the same script in all runs of it, wherever its folder is. A start waits for
    `wait_s` seconds at most.
    """

    processes: int
    bytes: int
    idle_s: int
    whose: tuple[str, str] = ("", "")
    script: str = ""
    wait_s: int = 3


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One process tree to start on this node.

    `token` identifies it for ever on this node (job, attempt and rank are in it). `env` is the
    whole environment. `log_path` receives stdout and stderr, appended, `log_bytes_max` at most.
    Without the file `script` (absolute, or in `workdir`), if one is named, nothing is executed.

    With an `image` it is a container: `env` comes on top of what the image sets, and `gpus` are
    the vendor's names of the devices that the container is given; `folders` are seen in it beside
    `workdir` and its log's, `folders_to_read` read-only; `python_path` comes first in its
    PYTHONPATH, whatever sets that.

    `job` is whose run it is, of the person `owner` (empty: the VC's own) in `vc`: a launcher
    chooses the account by that. `device_nodes` are the devices that it may open there.
    `checkpoints` is the folder of the job's checkpoints, which a launcher makes. `meets`: other
    processes connect to it by the node's address, or may come to do so. `files` are made for a run
    of an account, in its memory; each is the content of one, whose path is in the variable. With
    `fresh`, what is in its log already is of another run of this token, before a restore. `work` is
    the attempt's own folder, if it has one: a launcher makes the folder around it. `mounts` are the
    volumes that it gets: a launcher takes their paths from its own policy. Without `warm` it is
    executed. `copies`: a launcher makes a folder in the node's memory for copies of its state.
    """

    token: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    log_path: str
    log_bytes_max: int
    image: str = ""
    gpus: tuple[str, ...] = ()
    script: str = ""
    folders: tuple[str, ...] = ()
    folders_to_read: tuple[str, ...] = ()
    python_path: str = ""
    job: str = ""
    owner: str = ""
    vc: str = ""
    device_nodes: tuple[str, ...] = ()
    checkpoints: str = ""
    meets: bool = True
    files: Mapping[str, bytes] = {}
    fresh: bool = False
    work: str = ""
    mounts: tuple[Mount, ...] = ()
    warm: Warm | None = None
    copies: bool = False


class RunStarted(msgspec.Struct, frozen=True):
    """The process was executed. `start_ticks` (from /proc/PID/stat) makes `pid` an identity.

    Both are 0 where they cannot be known any more. A container's is its first process. `frozen`:
    the whole tree was frozen, and has not been thawed. `uid` is the account that it runs as, -1:
    the agent's own.
    """

    token: str
    pid: int
    start_ticks: int
    at: Instant
    frozen: bool = False
    uid: int = -1


class RunNotStarted(msgspec.Struct, frozen=True):
    """The process could not be executed: `detail` says what was missing and where.

    `of_node`: the node is to blame for it (its disk is full), and not what the job asked for.
    """

    token: str
    detail: str
    of_node: bool = False


class RunExited(msgspec.Struct, frozen=True):
    """The process and everything it started are gone.

    `code` is the exit status, or minus the signal's number, or None where its end was not seen.
    `leftovers` counts descendants that outlived the process and were killed; those of a container
    die with it, uncounted. `asked`: it had been told to end before it did, so `code` says nothing
    about its work. `left` names the first leftovers: pid and command line. `exceeded` is the bound
    that ended it: a code, and what it means in words.
    """

    token: str
    code: int | None
    at: Instant
    leftovers: int = 0
    asked: bool = False
    left: tuple[str, ...] = ()
    exceeded: str = ""


RunEvent = RunStarted | RunNotStarted | RunExited
