"""Values of Slurm's options: lengths of time, memory, counts, GPUs, dependencies, times of day.

Each function returns what the text means, or raises `RefusedError` with one line that says what it
may be.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from skep.slurm.options import RefusedError
from skep.wire.array import parse_array

COUNT = re.compile(r"\d{1,9}", re.ASCII)
TIME = re.compile(
    r"(?:(?P<days>\d{1,6})-)?(?P<first>\d{1,9})(?::(?P<second>\d{1,6}))?(?::(?P<third>\d{1,6}))?",
    re.ASCII,
)
FOREVER = ("0", "infinite", "unlimited", "-1")
MEMORY = re.compile(r"(\d{1,15})([KMGT]?)B?", re.ASCII | re.IGNORECASE)
MEMORY_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}
TYPE = re.compile(r"[A-Za-z0-9_.+-]{1,64}", re.ASCII)
BEGIN_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})(?:T(\d{2}:\d{2})(:\d{2})?)?", re.ASCII)
BEGIN_DELAY = re.compile(r"now(?:\+(\d{1,9})([a-z]*))?", re.ASCII)
DELAYS = {"": "s", "second": "s", "minute": "m", "hour": "h", "day": "d"}
WEEK_DAYS = 7
JOBS_NAMED_MAX = 100
DEPENDENCIES = {"afterok": "ok", "afterany": "any", "afternotok": "fail"}
NO_DEPENDENCIES = {
    "after": "a start is nothing that a job waits for; say afterok, afterany or afternotok",
    "aftercorr": "tasks of two arrays cannot be paired",
    "afterburstbuffer": "Skep has no burst buffers",
    "expand": "`skep resize` gives a running job more workers",
    "singleton": "name the job that it comes after: afterany:ID",
}
IDS = re.compile(r"(?:[^,\[]|\[[^\]]*\]?)+")
"""Ids with commas between them; there may be commas in brackets too."""
SIGNAL = re.compile(
    r"(?:(?P<whom>[RBrb]{1,2}):)?(?P<name>[A-Za-z0-9]{1,12})(?:@(?P<before>\d{1,5}))?"
)
SIGNAL_BEFORE_S = 60
GRES_OTHER = re.compile(r"[a-zA-Z_]+")


def count(option: str, text: str) -> int:
    """Return a number from 1 on.

    Args:
        option: The option, for the error.
        text: Its value.

    Raises:
        RefusedError: The text is none.
    """
    if not COUNT.fullmatch(text) or int(text) < 1:
        msg = f"--{option}={text}: a number from 1 on"
        raise RefusedError(msg)
    return int(text)


def nodes(text: str) -> int:
    """Return the number of nodes, for which a range has to be one number.

    Raises:
        RefusedError: It is a wider range, or no number.
    """
    low, mark, high = text.partition("-")
    if mark and COUNT.fullmatch(low) and COUNT.fullmatch(high) and low != high:
        msg = f"--nodes={text}: one number; a job here has as many as it asks for"
        raise RefusedError(msg)
    return count("nodes", low if mark and low == high else text)


def seconds(text: str) -> int | None:
    """Return a time limit in seconds; None: there is none.

    Raises:
        RefusedError: The text is no length of time as Slurm writes it.
    """
    if text.lower() in FOREVER:
        return None
    match = TIME.fullmatch(text)
    if match is None:
        msg = f"--time={text}: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S"
        raise RefusedError(msg)
    first, second, third = (int(match[name] or 0) for name in ("first", "second", "third"))
    if match["days"] is not None:
        total = int(match["days"]) * 86400 + first * 3600 + second * 60 + third
    elif match["third"] is not None:
        total = first * 3600 + second * 60 + third
    else:
        total = first * 60 + second
    return total or None


def memory(option: str, text: str) -> int:
    """Return an amount of memory in bytes; a number alone is MiB.

    Raises:
        RefusedError: The text is none.
    """
    match = MEMORY.fullmatch(text)
    if match is None:
        msg = f"--{option}={text}: a number with K, M, G or T, such as 64G"
        raise RefusedError(msg)
    return int(match[1]) * MEMORY_UNITS[match[2].upper()]


class Gpus(NamedTuple):
    """How many GPUs, and of which type; None: of any."""

    number: int
    kind: str | None = None


def gpus(option: str, text: str, whole: str = "") -> Gpus:
    """Return GPUs that are written as `4`, `a100:4` or `a100`.

    Args:
        option: The option, for the error.
        text: What it says about GPUs.
        whole: All of its value, for the error; empty: the text.

    Raises:
        RefusedError: The text is none of these.
    """
    kind, mark, number = text.rpartition(":")
    if not mark and not text.isdecimal():
        kind, number = text, "1"
    if (mark or kind) and not TYPE.fullmatch(kind):
        msg = f"--{option}={whole or text}: GPUs as N, TYPE:N or TYPE, of one type"
        raise RefusedError(msg)
    if number == "0":
        return Gpus(0, kind or None)
    return Gpus(count(option, number), kind or None)


def gres(text: str) -> Gpus | None:
    """Return the GPUs of a list of generic resources; None: it has no GPUs.

    Raises:
        RefusedError: It has something else, or the text is wrong.
    """
    found: Gpus | None = None
    for each in text.removeprefix("gres:").split(","):
        if each in ("", "none"):
            continue
        name, _, rest = each.replace("=", ":", 1).partition(":")
        name = name.removeprefix("gres/")
        if name != "gpu":
            what = name if GRES_OTHER.fullmatch(name) else each
            msg = f"--gres={text}: Skep gives GPUs, and no {what!r}"
            raise RefusedError(msg)
        if found is not None:
            msg = f"--gres={text}: GPUs of one type"
            raise RefusedError(msg)
        found = gpus("gres", rest or "1", text)
    return found


def gpu_types(text: str) -> str:
    """Return what a constraint says of the type of GPUs: one type, or several as `a100|v100`.

    Raises:
        RefusedError: It says more than that.
    """
    kinds = text.strip("()").split("|")
    if not all(map(TYPE.fullmatch, kinds)):
        msg = f"--constraint={text}: a type of GPUs, or several as a100|v100"
        raise RefusedError(msg)
    return "|".join(kinds)


def dependencies(text: str) -> dict[str, list[str]]:
    """Return `after` of a spec from `afterok:17:18,afterany:19`.

    Raises:
        RefusedError: A job can wait for no such thing, or the text is wrong.
    """
    if "?" in text:
        msg = f"--dependency={text}: a job waits for all of them (`,`), not for any"
        raise RefusedError(msg)
    after: dict[str, list[str]] = {}
    for each in text.split(","):
        kind, *jobs = each.split(":")
        if kind in NO_DEPENDENCIES:
            msg = f"--dependency={text}: {kind}: {NO_DEPENDENCIES[kind]}"
            raise RefusedError(msg)
        if kind not in DEPENDENCIES or not jobs:
            msg = f"--dependency={text}: afterok:ID, afterany:ID or afternotok:ID"
            raise RefusedError(msg)
        after.setdefault(DEPENDENCIES[kind], []).extend(map(job_id, jobs))
    if sum(map(len, after.values())) > JOBS_NAMED_MAX:
        msg = f"--dependency: at most {JOBS_NAMED_MAX} jobs"
        raise RefusedError(msg)
    return after


def job_ids(text: str) -> list[str]:
    """Return the ids of jobs here from a list as Slurm takes it: `17,18_3,19_[1-4,7]`.

    Raises:
        RefusedError: A part of it is no id, or there are too many.
    """
    found: list[str] = []
    for each in IDS.findall(text):
        number, mark, tasks = each.partition("_[")
        if not mark:
            found.append(job_id(each))
            continue
        indices = parse_array(tasks.removesuffix("]"))
        if isinstance(indices, str) or not tasks.endswith("]"):
            msg = f"Invalid job id specified: {each!r} (tasks of an array such as 17_[1-4,7])"
            raise RefusedError(msg)
        found += [job_id(f"{number}_{index}") for index in indices.indices()]
    return found


def job_id(text: str) -> str:
    """Return a job's id here from its number in Slurm's commands: `j17`, and `j17[3]` for `17_3`.

    Raises:
        RefusedError: The text is no id of a job, nor of a task of an array.
    """
    number, mark, task = text.removeprefix("j").partition("_")
    if mark and COUNT.fullmatch(number) and COUNT.fullmatch(task):
        return f"j{int(number)}[{int(task)}]"
    if mark or not COUNT.fullmatch(number):
        msg = f"Invalid job id specified: {text!r} (a number such as 17)"
        raise RefusedError(msg)
    return f"j{int(number)}"


def begin(text: str) -> str | None:
    """Return `begin` of a spec: a delay such as `2h`, or a time; None: at once.

    A time is local, as it is in Slurm; its caller adds the offset from UTC.

    Raises:
        RefusedError: The text is neither.
    """
    delay = BEGIN_DELAY.fullmatch(text.lower())
    if delay is not None:
        unit = delay[2] or ""
        if unit.removesuffix("s") == "week":
            return f"{int(delay[1]) * WEEK_DAYS}d"
        if unit.removesuffix("s") in DELAYS:
            return f"{int(delay[1])}{DELAYS[unit.removesuffix('s')]}" if delay[1] else None
    date = BEGIN_DATE.fullmatch(text)
    if date is None:
        msg = f"--begin={text}: now+2hours, or a time such as 2031-01-20T12:34:00"
        raise RefusedError(msg)
    return f"{date[1]}T{date[2] or '00:00'}{date[3] or ':00'}"


def signal(text: str) -> dict[str, Any]:
    """Return which signal comes how long before the time limit, and whether the script gets it.

    Raises:
        RefusedError: The text is no signal with a time.
    """
    match = SIGNAL.fullmatch(text)
    if match is None or "R" in (match["whom"] or "").upper():
        msg = f"--signal={text}: [B:]SIGNAL[@SECONDS], such as B:USR1@120"
        raise RefusedError(msg)
    before = match["before"]
    return {
        "name": match["name"].upper().removeprefix("SIG"),
        "before_s": SIGNAL_BEFORE_S if before is None else int(before),
        "script": (match["whom"] or "").upper() == "B",
    }
