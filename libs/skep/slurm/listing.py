"""Listings as Slurm prints them: fields of jobs and nodes, and their formats.

`%[.][width]letter` is a column of `squeue` and `sinfo`, cut to its width, on the right with a dot.
`Name%width` is one of `sacct`. A record has every field as text, by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from skep.slurm.options import RefusedError
from skep.slurm.states import job_state, reason

Record = dict[str, str]
FIELD = re.compile(r"%(?P<right>\.)?(?P<width>\d{1,4})?(?P<letter>[A-Za-z%])")
NANOSECONDS = 10**9
UNKNOWN = "Unknown"
NAMED_WIDTH = 20

SQUEUE = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
SQUEUE_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
SQUEUE_START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
SINFO = "%9P %.5a %.10l %.6D %.6t %N"
SINFO_NODES = "%N %.6D %.9P %6t"
SACCT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
SACCT_BRIEF = "jobid,state,exitcode"


class Field(NamedTuple):
    """A column: its title, what it shows of a record, and whether that needs the whole job."""

    title: str
    name: str
    whole: bool = False


JOB_LETTERS = {
    "i": Field("JOBID", "id"),
    "A": Field("JOBID", "own_id"),
    "F": Field("ARRAY_JOB_ID", "array_id"),
    "K": Field("ARRAY_TASK_ID", "array_task"),
    "P": Field("PARTITION", "partition"),
    "j": Field("NAME", "name"),
    "u": Field("USER", "user"),
    "t": Field("ST", "st"),
    "T": Field("STATE", "state"),
    "M": Field("TIME", "elapsed"),
    "l": Field("TIME_LIMIT", "limit", whole=True),
    "L": Field("TIME_LEFT", "left", whole=True),
    "D": Field("NODES", "nodes"),
    "R": Field("NODELIST(REASON)", "where"),
    "N": Field("NODELIST", "nodelist"),
    "B": Field("EXEC_HOST", "first_node"),
    "C": Field("CPUS", "cpus", whole=True),
    "m": Field("MIN_MEMORY", "memory", whole=True),
    "b": Field("TRES_PER_NODE", "gres"),
    "Q": Field("PRIORITY", "priority"),
    "p": Field("PRIORITY", "priority"),
    "q": Field("QOS", "qos"),
    "a": Field("ACCOUNT", "account"),
    "r": Field("REASON", "reason"),
    "S": Field("START_TIME", "start"),
    "e": Field("END_TIME", "end"),
    "V": Field("SUBMIT_TIME", "submit"),
    "Z": Field("WORK_DIR", "folder", whole=True),
    "k": Field("COMMENT", "comment", whole=True),
    "f": Field("FEATURES", "gpu_type"),
    "Y": Field("SCHEDNODES", "none"),
    "E": Field("DEPENDENCY", "none"),
}
JOB_NAMES = {
    "jobid": "i",
    "jobarrayid": "i",
    "name": "j",
    "partition": "P",
    "username": "u",
    "state": "T",
    "statecompact": "t",
    "timeused": "M",
    "timelimit": "l",
    "timeleft": "L",
    "numnodes": "D",
    "reasonlist": "R",
    "nodelist": "N",
    "batchhost": "B",
    "numcpus": "C",
    "minmemory": "m",
    "tres-per-node": "b",
    "gres": "b",
    "prioritylong": "Q",
    "priority": "Q",
    "qos": "q",
    "account": "a",
    "reason": "r",
    "starttime": "S",
    "endtime": "e",
    "submittime": "V",
    "workdir": "Z",
    "comment": "k",
    "dependency": "E",
}
NODE_LETTERS = {
    "P": Field("PARTITION", "partition"),
    "R": Field("PARTITION", "partition_name"),
    "a": Field("AVAIL", "avail"),
    "l": Field("TIMELIMIT", "limit"),
    "D": Field("NODES", "nodes"),
    "t": Field("STATE", "state"),
    "T": Field("STATE", "state"),
    "N": Field("NODELIST", "nodelist"),
    "n": Field("HOSTNAMES", "nodelist"),
    "o": Field("NODE_ADDR", "address"),
    "c": Field("CPUS", "cpus"),
    "m": Field("MEMORY", "memory"),
    "G": Field("GRES", "gres"),
    "f": Field("AVAIL_FEATURES", "gpu_type"),
    "E": Field("REASON", "reason"),
    "A": Field("NODES(A/I)", "nodes_ai"),
    "F": Field("NODES(A/I/O/T)", "nodes_aiot"),
}
SACCT_FIELDS = {
    "jobid": ("JobID", -12, "id"),
    "jobidraw": ("JobIDRaw", -12, "own_id"),
    "jobname": ("JobName", 10, "name"),
    "partition": ("Partition", 10, "partition"),
    "account": ("Account", 10, "account"),
    "alloccpus": ("AllocCPUS", 10, "cpus"),
    "ncpus": ("NCPUS", 10, "cpus"),
    "reqcpus": ("ReqCPUS", 8, "cpus"),
    "allocnodes": ("AllocNodes", 10, "nodes"),
    "nnodes": ("NNodes", 8, "nodes"),
    "ntasks": ("NTasks", 8, "tasks"),
    "alloctres": ("AllocTRES", 10, "tres"),
    "reqtres": ("ReqTRES", 10, "tres"),
    "reqmem": ("ReqMem", 10, "memory"),
    "state": ("State", 10, "state"),
    "exitcode": ("ExitCode", 8, "exit"),
    "elapsed": ("Elapsed", 10, "elapsed_full"),
    "elapsedraw": ("ElapsedRaw", 10, "elapsed_s"),
    "timelimit": ("Timelimit", 10, "limit_full"),
    "submit": ("Submit", 19, "submit"),
    "start": ("Start", 19, "start"),
    "end": ("End", 19, "end"),
    "user": ("User", 9, "user"),
    "nodelist": ("NodeList", 15, "nodelist"),
    "workdir": ("WorkDir", 20, "folder"),
    "reason": ("Reason", 22, "reason"),
    "priority": ("Priority", 10, "priority"),
    "qos": ("QOS", 10, "qos"),
    "cluster": ("Cluster", 10, "cluster"),
    "comment": ("Comment", 14, "comment"),
}
"""Fields of `sacct`: title, width (negative: on the left), and what is shown."""
SACCT_EMPTY = frozenset(
    [
        "maxrss",
        "avevmsize",
        "maxvmsize",
        "averss",
        "avecpu",
        "totalcpu",
        "usercpu",
        "systemcpu",
        "mincpu",
        "maxdiskread",
        "maxdiskwrite",
        "avediskread",
        "avediskwrite",
        "consumedenergy",
        "cputime",
        "cputimeraw",
        "group",
        "uid",
        "gid",
        "derivedexitcode",
        "admincomment",
        "reservation",
    ]
)
"""Fields that Slurm has and nothing here knows: their columns are empty."""


def columns(format_text: str, letters: Mapping[str, Field]) -> list[tuple[str, Field | None, int]]:
    """Return what a format shows: texts between columns, and columns with their widths.

    Args:
        format_text: The format.
        letters: What there is.

    Returns:
        Triples: a text with no field, or the letter, its field and its width (negative: on the
        left; 0: as wide as it is).

    Raises:
        RefusedError: A letter is not known.
    """
    found: list[tuple[str, Field | None, int]] = []
    position = 0
    for match in FIELD.finditer(format_text):
        if between := format_text[position : match.start()]:
            found.append((between, None, 0))
        position = match.end()
        letter, width = match["letter"], int(match["width"] or 0)
        if letter == "%":
            found.append(("%", None, 0))
        elif letter not in letters:
            msg = f"Invalid job format specification: %{letter}"
            raise RefusedError(msg)
        else:
            found.append((letter, letters[letter], width if match["right"] else -width))
    return [*found, *([(rest, None, 0)] if (rest := format_text[position:]) else [])]


def named_columns(text: str) -> list[tuple[str, Field | None, int]]:
    """Return the columns of `squeue --Format`: `JobID:10,Name:.30`.

    Raises:
        RefusedError: A name is not known.
    """
    found: list[tuple[str, Field | None, int]] = []
    for each in text.split(","):
        name, _, width = each.partition(":")
        letter = JOB_NAMES.get(name.strip().lower())
        if letter is None:
            msg = f"Invalid job format specification: {name.strip()}"
            raise RefusedError(msg)
        digits = "".join(filter(str.isdecimal, width))[:4]
        size = int(digits) if digits else NAMED_WIDTH
        found.append((letter, JOB_LETTERS[letter], size if width.startswith(".") else -size))
    return found


def line(parts: Sequence[tuple[str, Field | None, int]], record: Record | None) -> str:
    """Return one line; of the titles without a record."""
    texts = []
    for text, field, width in parts:
        if field is None:
            texts.append(text)
            continue
        value = field.title if record is None else record.get(field.name, "N/A")
        if width:
            value = value[: abs(width)]
            value = value.rjust(width) if width > 0 else value.ljust(-width)
        texts.append(value)
    return "".join(texts)


def sacct_columns(text: str) -> list[tuple[str, int, str]]:
    """Return the columns of `sacct --format`.

    Raises:
        RefusedError: A field is not known.
    """
    found = []
    for each in text.split(","):
        name, mark, width = each.partition("%")
        known = SACCT_FIELDS.get(name.strip().lower())
        if known is None and name.strip().lower() in SACCT_EMPTY:
            known = (name.strip(), 10, "empty")
        if known is None or (mark and not re.fullmatch(r"-?\d{1,4}", width)):
            msg = f'Invalid field requested: "{each.strip()}"'
            raise RefusedError(msg)
        found.append((known[0], int(width) if mark else known[1], known[2]))
    return found


def sacct_line(
    parts: Sequence[tuple[str, int, str]], record: Record | None, delimiter: str, *, last: bool
) -> str:
    """Return one line of `sacct`; of the titles without a record.

    Args:
        parts: The columns.
        record: The job.
        delimiter: What is between fields; empty: columns have widths.
        last: A delimiter follows the last field too.
    """
    values = [title if record is None else record.get(name, "") for title, _, name in parts]
    if delimiter:
        return delimiter.join(values) + (delimiter if last else "")
    texts = []
    for value, (_, width, _name) in zip(values, parts, strict=True):
        size = abs(width)
        cut = value if len(value) <= size else value[: size - 1] + "+"
        texts.append(cut.ljust(size) if width < 0 else cut.rjust(size))
    return " ".join(texts) + " "


def clock(length_s: int | None) -> str:
    """Return a length of time as `squeue` writes it: `1:05`, `2:03:04`, `1-02:03:04`."""
    if length_s is None:
        return "UNLIMITED"
    days, rest = divmod(max(0, length_s), 86400)
    hours, minutes, seconds = rest // 3600, rest % 3600 // 60, rest % 60
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"


def clock_full(length_s: int | None) -> str:
    """Return a length of time as `sacct` writes it: `00:01:05`."""
    if length_s is None:
        return "UNLIMITED"
    days, rest = divmod(max(0, length_s), 86400)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def number_of(job: str) -> str:
    """Return a job's number in Slurm's commands: `17`, and `17_3` for a task of an array."""
    return job.removeprefix("j").replace("[", "_").removesuffix("]")


def order_of(record: Record) -> tuple[int, ...]:
    """Return what jobs are listed by: the number, then the task's."""
    return tuple(int(part) for part in record["id"].split("_") if part.isdecimal())


def nodes_of(place: str) -> list[str]:
    """Return the nodes of a place: `node-1:0,1 node-2:0`."""
    return [part.partition(":")[0] for part in place.split() if ":" in part]


def job_record(
    row: Mapping[str, Any], user: str, now_ns: int, told: Callable[[int], str]
) -> Record:
    """Return what there is to show of a job.

    Args:
        row: The job as the gateway shows it, alone or in a list.
        user: Whose it is where it has no owner of its own.
        now_ns: The time.
        told: Says an instant (ns since 1970) in local time.
    """

    def instant(at_ns: int | None, otherwise: str = UNKNOWN) -> str:
        return otherwise if at_ns is None else told(at_ns)

    state, short = job_state(row["state"], row.get("why"))
    begun, ended = row.get("started_at"), row.get("ended_at")
    elapsed_s = ((ended or now_ns) - begun) // NANOSECONDS if begun else 0
    places = nodes_of(row.get("place") or "")
    active = row["state"] in ("bound", "running", "suspended", "stopping")
    waits = "None" if active or ended else reason(row.get("why"))
    estimate = (row.get("estimate") or {}).get("start") or {}
    workers = max(1, row.get("workers") or 1)
    shown_id = row.get("slurm_id") or number_of(row.get("task") or row["job"])
    record = {
        "id": shown_id,
        "own_id": number_of(row["job"]),
        "array_id": shown_id.partition("_")[0],
        "name": row.get("name", ""),
        "partition": row.get("vc", ""),
        "user": row.get("owner") or user,
        "state": state,
        "st": short,
        "elapsed": clock(elapsed_s),
        "elapsed_full": clock_full(elapsed_s),
        "elapsed_s": str(elapsed_s),
        "nodes": str(workers),
        "nodelist": ",".join(places),
        "first_node": places[0] if places else "n/a",
        "where": ",".join(places) if active else f"({waits})",
        "reason": waits,
        "gres": f"gres:gpu:{_of_worker(row, workers)}",
        "gpu_type": row.get("gpu_type") or "(null)",
        "priority": str(row.get("priority", 0)),
        "qos": "normal",
        "account": row.get("vc", ""),
        "submit": instant(row.get("submitted_at")),
        "start": instant(begun or estimate.get("p50"), "N/A"),
        "end": instant(ended, "N/A" if begun is None else UNKNOWN),
        "cluster": "skep",
        "none": "(null)",
        "array_task": shown_id.partition("_")[2].strip("[]") or "N/A",
        "empty": "",
    }
    return record | (_whole(row, workers, elapsed_s) if "spec" in row else {})


def _of_worker(row: Mapping[str, Any], workers: int) -> int:
    return int(row.get("gpus") or workers) // workers


def _whole(row: Mapping[str, Any], workers: int, elapsed_s: int) -> Record:
    """Return what only the whole job tells."""
    spec = row["spec"] or {}
    resources = spec.get("resources") or {}
    cpus = (resources.get("cpus") or 1) * workers
    limit = (spec.get("limits") or {}).get("time")
    limit_s = limit if isinstance(limit, int) else None
    gpus = int(row.get("gpus") or 0)
    memory = resources.get("memory") or 0
    return {
        "cpus": str(cpus),
        "tasks": str(workers),
        "memory": f"{memory // 2**20}M" if isinstance(memory, int) and memory else "0",
        "limit": clock(limit_s),
        "limit_full": clock_full(limit_s),
        "left": clock(None if limit_s is None else limit_s - elapsed_s),
        "folder": spec.get("workdir") or "",
        "comment": (spec.get("labels") or {}).get("comment", "(null)"),
        "tres": f"cpu={cpus},gres/gpu={gpus},node={workers}",
        "exit": _exit(row),
    }


def _exit(row: Mapping[str, Any]) -> str:
    """Return the exit code and the signal of the worst process of the last attempt."""
    if row["state"] == "succeeded" or not row.get("attempts"):
        return "0:0"
    codes = {
        int(one["rank"]): int(one["code"])
        for member in row["attempts"][-1].get("members") or ()
        for one in member.get("exits") or ()
        if one.get("code")
    }
    if not codes:
        return "1:0" if row["state"] == "failed" else "0:0"
    # When the first process fails, the others are ended because of that.
    code = codes.get(0) or max(codes.values()) or min(codes.values())
    return f"0:{-code}" if code < 0 else f"{code}:0"
