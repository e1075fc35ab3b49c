"""`squeue`, `sinfo`, `sacct`, `scancel` and `scontrol` on a Skep cluster."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from skep.slurm import listing, states, values
from skep.slurm.listing import Record
from skep.slurm.options import RefusedError
from skep_services.cli import exits
from skep_services.cli import slurm_common as common
from skep_services.cli.client import Client
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import ask_cancel

VERBS = {"suspend": "suspend", "resume": "resume", "hold": "hold", "release": "release"}
VERBS |= {"requeue": "requeue"}
"""What `scontrol` does to jobs, and the commands of Skep that do it."""
STEP = re.compile(r"\.[a-z0-9]+")
"""Steps of a job (`17.batch`): there is one line for all of it."""
DAY = "%Y-%m-%d"
TIMES = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", DAY)
EXIT_CODES = "exit codes: 0 done, 1 refused or wrong"


class Parser(argparse.ArgumentParser):
    """Refuses in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong.

        Raises:
            RefusedError: Always.
        """
        raise RefusedError(message)


def _parser(program: str) -> Parser:
    # Slurm's -h is not always help.
    made = Parser(prog=program, allow_abbrev=False, add_help=False, epilog=EXIT_CODES)
    made.add_argument("--help", action="help", help="show this")
    return made


def _emit(lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if text:
        print(text)


def _words(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]


def _json(key: str, found: list[Any]) -> int:
    meta = {"plugin": {"name": "skep"}, "Slurm": {"version": {"major": 0}}}
    print(json.dumps({"meta": meta, "errors": [], "warnings": [], key: found}))
    return exits.OK


# --- squeue ---------------------------------------------------------------------------------------


def squeue(words: list[str]) -> int:
    """List jobs that have not ended; return the exit code.

    Args:
        words: The command line.

    Raises:
        RefusedError: An option or a format is not known.
    """
    parser = _parser("squeue")
    parser.add_argument("-o", "--format", default=None)
    parser.add_argument("-O", "--Format", dest="named")
    parser.add_argument("-h", "--noheader", action="store_true")
    parser.add_argument("-l", "--long", action="store_true")
    parser.add_argument("--start", action="store_true")
    parser.add_argument("-r", "--array", action="store_true")
    parser.add_argument("-a", "--all", action="store_true")
    _filters(parser)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    usual = listing.SQUEUE_LONG if given.long else listing.SQUEUE
    usual = listing.SQUEUE_START if given.start else usual
    if given.named:
        parts = listing.named_columns(given.named)
    else:
        parts = listing.columns(given.format or usual, listing.JOB_LETTERS)
    gateway = common.client()
    whole = given.json or any(field is not None and field.whole for _, field, _ in parts)
    records = _found(gateway, given, whole=whole)
    if given.start:
        records = [record for record in records if record["st"] == "PD"]
    if given.json:
        return _json("jobs", [_as_json(record) for record in records])
    head = [] if given.noheader else [listing.line(parts, None)]
    _emit([*head, *(listing.line(parts, record) for record in records)])
    return exits.OK


def _filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-u", "--user")
    parser.add_argument("--me", action="store_true")
    parser.add_argument("-j", "--jobs", nargs="?", const="")
    parser.add_argument("-n", "--name")
    parser.add_argument("-p", "--partition")
    parser.add_argument("-t", "--states", "--state", dest="states")
    parser.add_argument("-w", "--nodelist")


def _states(text: str | None) -> set[str]:
    """Return short names of states.

    Raises:
        RefusedError: One is not known.
    """
    found = set()
    for word in _words(text):
        name = word.upper()
        name = {"CANCELED": "CANCELLED"}.get(name, name)
        short = states.SHORTS.get(name, name if name in states.SHORTS.values() else "")
        if name != "ALL" and not short:
            known = ",".join(states.SHORTS)
            msg = f"Invalid job state specified: {word} (one of {known})"
            raise RefusedError(msg)
        found |= set(states.SHORTS.values()) if name == "ALL" else {short}
    return found


def _found(
    gateway: Client, given: argparse.Namespace, *, whole: bool, tasks: bool = True
) -> list[Record]:
    wanted, ids = _states(given.states), values.job_ids(given.jobs or "")
    state = "all" if wanted - {"PD", "CF", "R", "S", "CG"} else "active"
    if ids:
        found = [one for job in ids if (one := common.named(gateway, job)) is not None]
        if not found:
            msg = "Invalid job id specified"
            raise RefusedError(msg)
    else:
        found = common.rows(gateway, state)
    if tasks:
        found = common.expanded(gateway, found, state, apart=given.array)
    if not wanted:
        found = [one for one in found if one["state"] not in _ENDED]
    records = common.records(gateway, found, whole=whole)
    records.sort(key=lambda record: (_ORDER.get(record["st"], 0), listing.order_of(record)))
    return [record for record in records if _fits(record, given, wanted)]


_ENDED = ("succeeded", "failed", "cancelled", "refused")
_ORDER = {"PD": -1}
"""Jobs that wait come first, as by Slurm."""


def _fits(record: Mapping[str, str], given: argparse.Namespace, wanted: set[str]) -> bool:
    users = [*_words(given.user), *([common.user()] if given.me else [])]
    nodes = _words(given.nodelist)
    return (
        (not users or record["user"] in users)
        and (not given.name or record["name"] in _words(given.name))
        and (not given.partition or record["partition"] in _words(given.partition))
        and (not wanted or record["st"] in wanted)
        and (not nodes or bool(set(nodes) & set(record["nodelist"].split(","))))
    )


def _as_json(record: Record) -> dict[str, Any]:
    return {
        "job_id": listing.order_of(record)[0],
        "name": record["name"],
        "job_state": record["state"],
        "state_reason": record["reason"],
        "partition": record["partition"],
        "account": record["account"],
        "user_name": record["user"],
        "nodes": record["nodelist"],
        "node_count": int(record["nodes"]),
        "cpus": int(record.get("cpus", "0")),
        "priority": int(record["priority"]),
        "submit_time": record["submit"],
        "start_time": record["start"],
        "end_time": record["end"],
        "elapsed": int(record["elapsed_s"]),
        "time_limit": record.get("limit_full", ""),
        "tres_alloc_str": record.get("tres", ""),
        "exit_code": record.get("exit", "0:0"),
        "current_working_directory": record.get("folder", ""),
        "comment": record.get("comment", ""),
    }


# --- sacct ----------------------------------------------------------------------------------------


def sacct(words: list[str]) -> int:
    """List jobs, those that have ended too; return the exit code.

    Args:
        words: The command line.

    Raises:
        RefusedError: An option, a field or a time is not known.
    """
    parser = _parser("sacct")
    parser.add_argument("-o", "--format", default=None)
    parser.add_argument("-b", "--brief", action="store_true")
    parser.add_argument("-n", "--noheader", action="store_true")
    parser.add_argument("-p", "--parsable", action="store_true")
    parser.add_argument("-P", "--parsable2", action="store_true")
    parser.add_argument("--delimiter", default="|")
    parser.add_argument("-X", "--allocations", action="store_true")
    parser.add_argument("-a", "--allusers", action="store_true")
    parser.add_argument("-S", "--starttime")
    parser.add_argument("-E", "--endtime")
    parser.add_argument("-s", "--state", dest="states")
    parser.add_argument("-u", "--user", "--uid", dest="user")
    parser.add_argument("-j", "--jobs")
    parser.add_argument("--name", dest="name")
    parser.add_argument("-r", "--partition")
    parser.add_argument("-N", "--nodelist")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    given.me = False
    usual = listing.SACCT_BRIEF if given.brief else listing.SACCT
    parts = listing.sacct_columns(given.format or usual)
    gateway, wanted = common.client(), _states(given.states)
    ids = values.job_ids(STEP.sub("", given.jobs or ""))
    if ids:
        found = [one for job in ids if (one := common.named(gateway, job)) is not None]
    else:
        since, until = _instant(given.starttime, "today"), _instant(given.endtime, "")
        found = [one for one in common.rows(gateway, "all") if _within(one, since, until)]
    found = common.expanded(gateway, found, "all", apart=False)
    if len(found) > common.WHOLE_MAX:
        text = f"of {len(found)} jobs, the last {common.WHOLE_MAX} have every field"
        common.note("sacct", [f"{text}: narrow it by -S, -j or -u"])
    records = [
        record
        for record in common.records(gateway, found, whole=True)
        if _fits(record, given, wanted)
    ]
    records.sort(key=listing.order_of)
    if given.json:
        return _json("jobs", [_as_json(record) for record in records])
    delimiter = given.delimiter if given.parsable or given.parsable2 else ""

    def line(record: Record | None) -> str:
        return listing.sacct_line(parts, record, delimiter, last=given.parsable)

    head = [] if given.noheader else [line(None)]
    if head and not delimiter:
        head.append("".join(f"{'-' * abs(width)} " for _, width, _ in parts))
    _emit([*head, *map(line, records)])
    return exits.OK


def _within(one: Mapping[str, Any], since_ns: int | None, until_ns: int | None) -> bool:
    """Return whether a job was there at some time between two instants."""
    begun, ended = one["submitted_at"] or 0, one["ended_at"]
    return (since_ns is None or ended is None or ended >= since_ns) and (
        until_ns is None or begun <= until_ns
    )


def _instant(text: str | None, otherwise: str) -> int | None:
    """Return an instant in local time; None: no bound.

    Raises:
        RefusedError: The text is none.
    """
    text = text or otherwise
    if not text:
        return None
    now = datetime.now(UTC).astimezone()
    if text in ("today", "midnight"):
        now = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in ("today", "midnight", "now"):
        return int(now.timestamp()) * 10**9
    for form in TIMES:
        try:
            # Without a zone it is local, as by Slurm.
            return int(datetime.strptime(text, form).timestamp()) * 10**9  # noqa: DTZ007
        except ValueError:
            continue
    msg = f"Invalid time specification: {text} (2031-01-20, 2031-01-20T12:34, today)"
    raise RefusedError(msg)


# --- sinfo ----------------------------------------------------------------------------------------


def sinfo(words: list[str]) -> int:
    """List virtual clusters and nodes; return the exit code.

    Args:
        words: The command line.

    Raises:
        RefusedError: An option or a format is not known.
    """
    parser = _parser("sinfo")
    parser.add_argument("-o", "--format", default=None)
    parser.add_argument("-h", "--noheader", action="store_true")
    parser.add_argument("-N", "--Node", dest="by_node", action="store_true")
    parser.add_argument("-p", "--partition")
    parser.add_argument("-n", "--nodes")
    parser.add_argument("-t", "--states")
    parser.add_argument("-a", "--all", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    usual = listing.SINFO_NODES if given.by_node else listing.SINFO
    parts = listing.columns(given.format or usual, listing.NODE_LETTERS)
    gateway = common.client()
    nodes = gateway.get("/v1/nodes")["nodes"]
    vcs = [str(one["vc"]) for one in gateway.get("/v1/vcs")["vcs"]]
    wanted = _words(given.nodes)
    nodes = [node for node in nodes if not wanted or node["node"] in wanted]
    if given.states:
        shown = [word.lower().rstrip("*") for word in _words(given.states)]
        nodes = [node for node in nodes if _state(node).rstrip("*") in shown]
    if given.partition:
        vcs = [vc for vc in vcs if vc in _words(given.partition)]
    records = _node_records(vcs, nodes, by_node=given.by_node or "%n" in (given.format or ""))
    if given.json:
        return _json("nodes", [dict(node) for node in nodes])
    head = [] if given.noheader else [listing.line(parts, None)]
    lines = [listing.line(parts, record) for record in records]
    _emit([*head, *dict.fromkeys(lines)])
    return exits.OK


def _state(node: Mapping[str, Any]) -> str:
    return states.node_state(node["state"], node["gpus"], node["free"])


def _node_records(vcs: list[str], nodes: list[dict[str, Any]], *, by_node: bool) -> list[Record]:
    usual = vcs[0] if len(vcs) == 1 else "default"
    found = []
    for vc in vcs:
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for node in nodes:
            alike = (node["node"],) if by_node else (_state(node),)
            groups.setdefault(alike, []).append(node)
        for group in groups.values():
            first, names = group[0], [node["node"] for node in group]
            state, count = _state(first), len(group)
            idle = count if state == "idle" else 0
            busy = count if state in ("mix", "alloc") else 0
            found.append(
                {
                    "partition": f"{vc}*" if vc == usual else vc,
                    "partition_name": vc,
                    "avail": "up",
                    "limit": "infinite",
                    "nodes": str(count),
                    "state": state,
                    "nodelist": ",".join(names),
                    "address": first["address"] or "",
                    "cpus": str(first["cpus"]),
                    "memory": str(first["memory"] // 2**20),
                    "gres": f"gpu:{first['gpu_type'] or 'gpu'}:{first['gpus']}",
                    "gpu_type": first["gpu_type"] or "(null)",
                    "reason": "none",
                    "nodes_ai": f"{busy}/{idle}",
                    "nodes_aiot": f"{busy}/{idle}/{count - busy - idle}/{count}",
                }
            )
    return found


# --- scancel --------------------------------------------------------------------------------------


def scancel(words: list[str]) -> int:
    """Cancel jobs; return the exit code.

    Args:
        words: The command line.

    Raises:
        CommandError: The cluster cannot be reached.
        RefusedError: No jobs are named, or not as they are here.
    """
    parser = _parser("scancel")
    _filters(parser)
    parser.add_argument("-q", "--quiet", "-Q", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("ids", nargs="*")
    given = parser.parse_args(words)
    named = [job for text in given.ids for job in values.job_ids(text)]
    filtered = any((given.user, given.me, given.name, given.partition, given.states))
    if not named and not filtered:
        msg = "No job identification provided"
        raise RefusedError(msg)
    gateway = common.client()
    if not named:
        # Without a state, an array is cancelled as one thing, not task by task.
        given.jobs, given.array = None, True
        records = _found(gateway, given, whole=False, tasks=bool(given.states))
        named = [values.job_id(record["id"]) for record in records]
    code = exits.OK
    for job in named:
        try:
            ask_cancel(gateway, job)
        except CommandError as error:
            if error.code == exits.UNREACHABLE:
                raise
            code = exits.FAILED
            if not given.quiet:
                why = "Invalid job id specified" if error.code == exits.NOT_FOUND else error.text
                text = f"Kill job error on job id {listing.number_of(job)}: {why}"
                common.complain("scancel", [text])
    return code


# --- scontrol -------------------------------------------------------------------------------------


def scontrol(words: list[str]) -> int:
    """Show jobs, nodes and partitions, or change jobs; return the exit code.

    Args:
        words: The command line.

    Raises:
        RefusedError: It is nothing that can be shown or done.
    """
    words = [word for word in words if word not in ("-d", "-o", "--oneliner", "--details", "-a")]
    match words:
        case ["show", ("job" | "jobs" | "jobid"), *rest] if len(rest) < 2:
            return _show_jobs(rest)
        case ["show", ("hostnames" | "hostname"), *rest]:
            from skep_job.slurm.scontrol import main as hostnames

            return hostnames(["show", "hostnames", *rest])
        case ["show", ("node" | "nodes"), *rest] if len(rest) < 2:
            return _show_nodes(rest)
        case ["ping"]:
            common.client().get("/v1/vcs")
            print("Slurmctld(primary) at skep is UP")
            return exits.OK
        case [verb, *jobs] if verb in VERBS and jobs:
            return _change(verb, [job for one in jobs for job in values.job_ids(one)])
    known = f"show job|node|hostnames, ping, {', '.join(VERBS)}"
    msg = f"invalid keyword: {' '.join(words)[:80] or '(nothing)'} (there are: {known})"
    raise RefusedError(msg)


def _change(verb: str, jobs: list[str]) -> int:
    from skep_services.cli import main

    command = VERBS[verb]
    if command not in main.COMMANDS:
        msg = f"{verb}: this version of Skep has no `skep {command}`"
        raise RefusedError(msg)
    return main.main([command, *jobs])


def _show_jobs(rest: list[str]) -> int:
    gateway = common.client()
    if rest:
        ids = values.job_ids(rest[0].partition("=")[2] or rest[0])
        found = [common.named(gateway, job) for job in ids]
    else:
        found = [common.row(gateway, one["job"]) for one in common.rows(gateway, "active")]
    there = [one for one in found if one is not None]
    there = common.expanded(gateway, there, "all" if rest else "active", apart=False)
    if rest and not there:
        msg = f"Invalid job id specified: {rest[0]}"
        raise RefusedError(msg)
    if not there:
        print("No jobs in the system")
    for one in there:
        print(_job_text(one, common.records(gateway, [one], whole=True)[0]))
    return exits.OK


def _job_text(row: Mapping[str, Any], record: Record) -> str:
    spec = row.get("spec") or {}
    resources = spec.get("resources") or {}
    per_worker = f"gres:gpu:{resources.get('gpus', 1)}"
    lines = [
        f"JobId={record['own_id']}{_of_array(record)} JobName={record['name']}",
        f"   UserId={record['user']} Account={record['account']} QOS=normal",
        f"   Priority={record['priority']} JobState={record['state']} Reason={record['reason']}",
        f"   Requeue=1 Restarts={max(0, (row.get('attempt') or 1) - 1)} ExitCode={record['exit']}",
        f"   RunTime={record['elapsed_full']} TimeLimit={record['limit_full']}",
        f"   SubmitTime={record['submit']} StartTime={record['start']} EndTime={record['end']}",
        f"   Partition={record['partition']} NodeList={record['nodelist'] or '(null)'}",
        f"   NumNodes={record['nodes']} NumCPUs={record['cpus']} TRES={record['tres']}",
        f"   TresPerNode={per_worker} MinMemoryNode={record['memory']}",
        f"   Comment={record['comment']} WorkDir={record['folder']}",
        "",
    ]
    return "\n".join(lines)


def _of_array(record: Record) -> str:
    if record["array_task"] == "N/A":
        return ""
    return f" ArrayJobId={record['array_id']} ArrayTaskId={record['array_task']}"


def _show_nodes(rest: list[str]) -> int:
    nodes = common.client().get("/v1/nodes")["nodes"]
    nodes = [node for node in nodes if not rest or node["node"] == rest[0]]
    if rest and not nodes:
        msg = f"Node {rest[0]} not found"
        raise RefusedError(msg)
    for node in nodes:
        busy = node["gpus"] - node["free"]
        lines = [
            f"NodeName={node['node']} NodeAddr={node['address']} State={_state(node).upper()}",
            f"   CPUTot={node['cpus']} RealMemory={node['memory'] // 2**20}",
            f"   Gres=gpu:{node['gpu_type'] or 'gpu'}:{node['gpus']} AllocTRES=gres/gpu={busy}",
            "",
        ]
        sys.stdout.write("\n".join(lines) + "\n")
    return exits.OK
