"""`skep show` and `skep why`."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.job_table import eta, tasks_text, why_of
from skep_services.cli.jobs import ENDED
from skep_services.cli.ledger import trial_columns
from skep_services.cli.options import Command, client_of, job_argument, print_json
from skep_services.cli.plan import tell_what_if
from skep_services.cli.problems import problem_text
from skep_services.cli.render import Column, clock_time, duration, printable
from skep_services.cli.stake import at_stake, at_stake_of

LABEL_COLUMNS = 11
NS_PER_SECOND = 1_000_000_000


def run_show(arguments: Namespace) -> int:
    """Print everything about one job.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments)
    path = f"/v1/jobs/{quote(arguments.job)}"
    row = client.get(path)
    links = _links(client, row)
    if arguments.json:
        print_json({**row, "links": links})
        return exits.OK
    colour = render.colour_wanted()
    print(
        f"{row['job']}  {printable(row['name'])}  {render.state_text(row['state'], colour=colour)}"
    )
    for label, text in details(row, time.time_ns()):
        if text:
            print(f"  {label:{LABEL_COLUMNS}} {printable(text)}")
    for one in links:
        shown = one.get("url") or f"{one['folder']} (skep tensorboard {row['job']})"
        print(f"  {one['kind']:{LABEL_COLUMNS}} {printable(shown)}")
    for problem in row.get("problems") or ():
        print(f"  {'problem':{LABEL_COLUMNS}} {problem_text(problem)}")
    attempts = row.get("attempts") or []
    if attempts:
        print()
        render.show_table(_attempt_columns(attempts, time.time_ns()))
    if row.get("trials"):
        print()
        render.show_table(trial_columns(row["trials"]))
    return exits.OK


def _links(client: Client, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return where a job shows its training; none where the caller may not read its log."""
    if not row.get("attempts"):
        return []
    try:
        found: list[dict[str, Any]] = client.get(f"/v1/jobs/{quote(row['job'])}/links")["links"]
    except CommandError:
        return []  # The rest is as true without them.
    return found


def details(row: dict[str, Any], now_ns: int) -> list[tuple[str, str]]:
    """Return what `show` says of a job: each label with its text, empty where there is none."""
    spec = row.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    until = row["ended_at"] or now_ns
    queued = _elapsed(row["submitted_at"], row["bound_at"] or until)
    ran = _elapsed(row["started_at"], until)
    steps = render.progress(row["steps"], row["total_steps"])
    left = eta(row["eta_s"])
    speed = f"{render.rate(row['rate_milli'])}, {steps} mini-batches" if row["steps"] else ""
    return [
        ("why", why_of(row)),
        ("task", row.get("task") or ""),
        ("tasks", _tasks(row, spec)),
        ("detail", row.get("detail") or ""),
        ("deadline", _deadline(row)),
        ("vc", f"{row['vc']}, {row['service_class']}, priority {row['priority']}{_right(row)}"),
        ("owner", row.get("owner") or ""),
        ("after", _after(spec.get("after") or {})),
        ("pipeline", _pipeline(spec.get("pipeline") or {})),
        ("begin", _begin(row, spec.get("begin"))),
        ("template", spec.get("from_template") or ""),
        ("wants", _wants(row, spec)),
        ("runs", _command(spec)),
        ("python", spec.get("python") or ""),
        ("environment", _environment(row, spec.get("environment"), now_ns)),
        ("tier", _tier(row, spec)),
        ("goes on", _goes_on(row, spec)),
        ("if stopped", at_stake(row, now_ns)),
        ("changing", _changing(row)),
        ("asked", _asked(row)),
        ("workdir", spec.get("workdir") or ""),
        ("volumes", _volumes(spec)),
        ("place", row["place"]),
        ("shares", _shares(row)),
        ("submitted", clock_time(row["submitted_at"], date=True)),
        ("waited", queued),
        ("started", clock_time(row["started_at"], date=True) if row["started_at"] else ""),
        ("ran", ran),
        ("rate", f"{speed}, {left} left" if speed and left != "-" else speed),
        ("held up", "; ".join(one["text"] for one in row.get("held_up") or ())),
        ("starts", _starts(row, now_ns)),
        ("ends", _ends(row, now_ns)),
        ("limits", _limits(spec.get("limits") or {})),
        ("labels", ", ".join(f"{k}={v}" for k, v in (spec.get("labels") or {}).items())),
        ("key", row.get("key") or ""),
        ("repeated by", ", ".join(row.get("repeated_by") or ())),
        ("trace", row.get("trace") or ""),
    ]


def _volumes(spec: dict[str, Any]) -> str:
    """Return the volumes of a job, and where it sees each."""
    mounts = spec.get("mounts") or ()
    return ", ".join(
        f"{one['name']} at {one['target']} ({one.get('mode', 'ro')})" for one in mounts
    )


def _tasks(row: dict[str, Any], spec: dict[str, Any]) -> str:
    """Return which tasks an array has, and how they stand."""
    counts = row.get("tasks")
    return f"{spec.get('array') or ''}; {tasks_text(counts)}" if counts else ""


def _environment(row: dict[str, Any], given: Any, now_ns: int) -> str:
    """Return what a job has installed, and where that is being built."""
    given = given if isinstance(given, dict) else {}
    kinds = [kind for kind in ("requirements", "uv", "conda") if given.get(kind)]
    parts = [f"{kind} {given[kind]}, {str(given.get('files'))[:12]}" for kind in kinds]
    if given.get("python"):
        parts.append(f"{'with ' if kinds else ''}{given['python']}")
    parts += [
        f"{'fetching' if one.get('text') else 'building'} on {one['node']}, "
        f"{duration(max(0, now_ns - one['since']))}{_told(one)}"
        for one in row.get("building") or ()
    ]
    return "; ".join(parts)


def _told(building: dict[str, Any]) -> str:
    return f": {building['text']}" if building.get("text") else ""


def _starts(row: dict[str, Any], now_ns: int) -> str:
    """Return when a job that waits starts."""
    estimate = row.get("estimate")
    if not estimate or row["started_at"] or row["bound_at"]:
        return ""
    if not estimate["start"]:
        return "when is not known"
    return render.between(estimate["start"], now_ns) + ", eight times in ten"


def _ends(row: dict[str, Any], now_ns: int) -> str:
    """Return when an unfinished job ends, and by what that is estimated."""
    estimate = row.get("estimate")
    if not estimate:
        return ""
    basis = estimate["basis"]
    if not estimate["end"]:
        return f"when is not known ({basis})"
    return f"{render.between(estimate['end'], now_ns)}, eight times in ten ({basis})"


def _right(row: dict[str, Any]) -> str:
    """Return a remark where a guaranteed job holds GPUs that are not of its VC's cells."""
    borrows = row.get("class_in_force") == "opportunistic" and row["state"] != "stopping"
    return "; borrows its GPUs" if borrows and row["service_class"] == "guaranteed" else ""


def _shares(row: dict[str, Any]) -> str:
    """Return with which jobs a job shares its GPUs, and what of their memory it was told to use."""
    others = " ".join(row.get("beside") or ())
    share = row.get("share")
    return (
        f"its GPUs with {others}" + (f", {share:.0%} of their memory" if share else "")
        if others
        else ""
    )


def _elapsed(begin_ns: int | None, end_ns: int) -> str:
    return duration(end_ns - begin_ns) if begin_ns else ""


def _pipeline(bound: dict[str, Any]) -> str:
    """Return the pipeline that a job is of, and its bound."""
    return f"{bound['name']}, at most {bound['max_parallel']} at once" if bound else ""


def _after(after: dict[str, Any]) -> str:
    """Return the jobs that a job waits for, or waited for, by what each has to do."""
    kinds = (("ok", "succeeds"), ("any", "ends"), ("fail", "fails"))
    return ", ".join(f"{job} {does}" for kind, does in kinds for job in after.get(kind) or ())


def _begin(row: dict[str, Any], begin: int | str | None) -> str:
    """Return when a job may begin: a length counts from its submission."""
    if isinstance(begin, int) and row["submitted_at"]:
        return clock_time(row["submitted_at"] + begin * NS_PER_SECOND, date=True)
    return str(begin) if begin is not None else ""


def _wants(row: dict[str, Any], spec: dict[str, Any]) -> str:
    resources = spec.get("resources") or {}
    each = resources.get("gpus") or 1
    share = row.get("gpu_share")
    parts = [f"{share:g} of a GPU" if share else render.plural(row["gpus"], "GPU")]
    if isinstance(resources.get("gpu_memory"), int) and resources["gpu_memory"]:
        parts.append(f"{render.size(resources['gpu_memory'])} of its memory")
    if row["workers"] > 1:
        parts[0] += f" ({row['workers']} workers x {each})"
    if row["gpu_type"]:
        parts.append(f"type {row['gpu_type']}")
    if resources.get("mixed"):
        parts.append("mixed if no chain holds it alone")
    if resources.get("cpus"):
        parts.append(f"{render.plural(resources['cpus'], 'CPU')} per worker")
    if isinstance(resources.get("memory"), int) and resources["memory"]:
        parts.append(f"{render.size(resources['memory'])} per worker")
    if topology := resources.get("topology"):
        hard = "must" if topology.get("hard") else "should"
        parts.append(f"workers {hard} share a {topology.get('within') or 'node'}")
    return ", ".join(parts)


def _command(spec: dict[str, Any]) -> str:
    if spec.get("script"):
        return " ".join([spec["script"], *(spec.get("args") or ())])
    command = spec.get("command") or ""
    if isinstance(command, str):
        return command
    import shlex

    return shlex.join(map(str, command))


ALLOWS = {
    "release": "can make room for others without losing work",
    "migrate": "can move to another node",
    "checkpoint": "can be stored and repeated from there",
    "resize": "can grow and shrink",
    "copies": "can go on from copies in memory after the loss of a node",
}
"""What an ability of a job is good for."""


def _changing(row: dict[str, Any]) -> str:
    changing = row.get("changing")
    if not changing:
        return ""
    left = ", ".join(changing["waits_for"])
    undoing = "undoing " if changing["undoing"] else ""
    return f"{undoing}{changing['goal']}, round {changing['round']}; {left} not answered"


def _asked(row: dict[str, Any]) -> str:
    asks = row.get("asks") or ()
    if not asks:
        return ""
    last = asks[-1]
    why = (
        f" ({last['why']}{': ' + last['detail'] if last['detail'] else ''})" if last["why"] else ""
    )
    return f"{last['ask']}: {last['result'] or 'under way'}{why}"


def _tier(row: dict[str, Any], spec: dict[str, Any]) -> str:
    """Return what the running job can do, as it said itself, or what its spec lets expect."""
    if row.get("tier"):
        can = row["can"]
        allowed = "; ".join(text for name, text in ALLOWS.items() if name in can)
        return f"{row['tier']}: {', '.join(can) or 'start and stop'}" + (
            f" ({allowed})" if allowed else ""
        )
    if not spec or row.get("tasks"):
        return ""
    if row["steps"]:
        return "observed (mini-batches are seen)"
    if row["state"] in ENDED:
        return "opaque (no mini-batch was seen)"
    return "not known before it trains (PyTorch is observed, anything else is opaque)"


def _goes_on(row: dict[str, Any], spec: dict[str, Any]) -> str:
    """Return which checkpoint of a library's own the latest attempt goes on from."""
    last: dict[str, Any] = next(reversed(row.get("attempts") or []), {})
    told = dict.fromkeys(one["resumed"] for one in last.get("members") or () if one.get("resumed"))
    if told:
        return f"attempt {last['attempt']} {'; '.join(told)}"
    looks = "a later attempt looks for a checkpoint, and its log says which"
    return looks if spec.get("resume") else ""


def _limits(limits: dict[str, Any]) -> str:
    parts = []
    if isinstance(limits.get("time"), int):
        parts.append(f"{duration(limits['time'] * 1_000_000_000)} at most")
    if limits.get("retries"):
        parts.append("1 retry" if limits["retries"] == 1 else f"{limits['retries']} retries")
    return ", ".join(parts)


def _attempt_columns(attempts: list[dict[str, Any]], now_ns: int) -> list[Column]:
    def ran(one: dict[str, Any]) -> str:
        return _elapsed(one["started_at"], one["ended_at"] or now_ns) or "-"

    def first(one: dict[str, Any]) -> str:
        begin, step = one["started_at"], one["first_step_at"]
        return duration(step - begin) if begin and step else "-"

    def speed(one: dict[str, Any]) -> str:
        return duration(one["step_ns"]) if one.get("step_ns") else "-"

    return [
        Column("ATTEMPT", [str(one["attempt"]) for one in attempts], right=True),
        Column("BOUND", [clock_time(one["bound_at"]) for one in attempts], drop=4),
        Column("RAN", [ran(one) for one in attempts], right=True),
        Column("1ST STEP", [first(one) for one in attempts], right=True, drop=2),
        Column("STEPS", [str(one["steps"] or "-") for one in attempts], right=True, drop=3),
        Column("STEP", [speed(one) for one in attempts], right=True, drop=1),
        Column("OUTCOME", [one["outcome"] or "-" for one in attempts], coloured=True),
        Column("PLACE", [one["place"] or "-" for one in attempts], narrow=12, drop=6),
        Column("WHY HERE", [one["why"] or "" for one in attempts], narrow=10, drop=5),
        Column("DETAIL", [one["detail"] or "" for one in attempts], narrow=20, drop=7),
    ]


def options_why(parser: ArgumentParser) -> None:
    """Add what `why` takes."""
    job_argument(parser)
    parser.add_argument(
        "--what-if",
        action="store_true",
        help="try what would start it now, on a copy of the cluster's state",
    )


def _deadline(row: dict[str, Any]) -> str:
    """Return what was answered to a job's deadline, and what became of it."""
    pledged = row.get("pledged")
    if not pledged:
        return ""
    due = clock_time(pledged["due"], date=True) if pledged["due"] else "-"
    outcome = f", {pledged['outcome']}" if pledged["outcome"] not in {"", "open"} else ""
    cause = f" ({pledged['cause']}: {pledged['detail']})" if pledged["cause"] else ""
    return f"{due}, {pledged['answer']}{outcome}{cause}"


def run_why(arguments: Namespace) -> int:
    """Print the reasons behind a job's state and what would change it.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments)
    path = f"/v1/jobs/{quote(arguments.job)}/why"
    if arguments.what_if:
        path += "?what_if=1"
    answer = client.get(path)
    stake = at_stake_of(client, [answer["job"]])
    if arguments.json:
        print_json({**answer, "if_stopped": stake.get(answer["job"], "")})
        return exits.OK
    colour = render.colour_wanted()
    print(f"{answer['job']}  {render.state_text(answer['state'], colour=colour)}")
    for one in answer["reasons"]:
        needs = f": {one['needs']}" if one.get("needs") else ""
        print(printable(f"  because {one['text']}{needs} ({one['reason']})"))
    for text in stake.values():
        print(printable(f"  if stopped: {text}"))
    if answer.get("what_if"):
        tell_what_if(answer["what_if"])
    elif answer["would_change"]:
        verb = "what would help:" if answer["state"] in ENDED else "what would change it:"
        print(verb)
        for text in answer["would_change"]:
            print(printable(f"  {text}"))
    if answer.get("trials"):
        print("what was tried with it:")
        render.show_table(trial_columns(answer["trials"]))
    return exits.OK


COMMANDS = {"show": Command(job_argument, run_show), "why": Command(options_why, run_why)}
