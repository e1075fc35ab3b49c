"""`skep blame`: where the time of a job, or of the jobs of a virtual cluster, went."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.client import query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column, clock_time, duration, printable

if TYPE_CHECKING:
    from skep.ledger.blame.state import Blame
    from skep.ledger.blame.told import Told
    from skep_services.replaying import Streams

ABOUT = """\
Each stretch of a job's time, from its submission to its end or to now, has one cause, so the shares
come to 100 %. The causes are in docs/reference/reasons.md.

  skep blame j17                          # a job, with the jobs that it waited behind
  skep blame j17 --spans                  # stretch by stretch
  skep blame --vc nlp                     # all jobs of a virtual cluster, and its useful GPU hours
  skep blame                              # of each virtual cluster that you may see
  skep blame j17 --from week.jsonl.gz     # from an export of `skep replay --export`
"""
HOUR_NS = 3600 * 1_000_000_000
OTHERS = {"others": "others", "other-tenants": "other tenants"}
"""What parties without a name are called."""
DAMAGED = "export the log again (`skep replay --export FILE`), or see `skep log check --from FILE`"
JOBS_NAMED = 3


def options(parser: ArgumentParser) -> None:
    """Add what `blame` takes."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument(
        "job", metavar="JOB", nargs="?", default="", help="a job's id or name; none: whole VCs"
    )
    parser.add_argument("--vc", default="", help="one virtual cluster")
    parser.add_argument("--spans", action="store_true", help="also list the stretches of the job")
    parser.add_argument("--from", dest="source", metavar="FILE", help="an export, not the cluster")


def run(arguments: Namespace) -> int:
    """Print where time went.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, the export cannot be read, or it has no such job.
    """
    job, vc = arguments.job, arguments.vc
    if job and vc:
        raise CommandError(exits.USAGE, "give a job or --vc, not both")
    if arguments.spans and not job:
        raise CommandError(exits.USAGE, "--spans is of one job: skep blame JOB --spans")
    if arguments.source is not None:
        answer = _offline(arguments.source, job, vc)
    else:
        path = f"/v1/jobs/{quote(job)}/blame" if job else query("/v1/blame", vc=vc or None)
        answer = client_of(arguments).get(path)
    if arguments.json:
        print_json(answer)
    elif job:
        _tell_job(answer, spans=arguments.spans)
    else:
        _tell_vcs(answer["vcs"])
    return exits.OK


# --- an export ------------------------------------------------------------------------------------


def _offline(source: str, job: str, vc: str) -> dict[str, Any]:
    """Return what the gateway would answer, from an export.

    Raises:
        CommandError: The export cannot be read, or has no such job or virtual cluster.
    """
    from skep_services import replaying

    if source == replaying.LIVE:
        raise CommandError(exits.USAGE, "--from takes a file: without it the cluster is asked")
    try:
        streams = replaying.read_from(source, None)
        blame, ended, at = _folded(streams)
    except replaying.UNREADABLE as error:
        text = f"{str(error).rstrip('.')}: {DAMAGED}"
        raise CommandError(exits.FAILED, text, "bad-log") from None
    except OSError as error:
        text = f"{source}: {error.strerror}: name an export of `skep replay --export`"
        raise CommandError(exits.FAILED, text, "bad-log") from None
    if not ended and not blame.lives:
        text = (
            f"{source}: the allocator's log there holds no job, so no time went anywhere: name an "
            f"export of a cluster that had jobs (`skep replay --export FILE`)"
        )
        raise CommandError(exits.FAILED, text, "bad-log")
    return _plain(_job_of(source, job, blame, ended, at) if job else _vcs_of(source, vc, blame, at))


def _folded(streams: Streams) -> tuple[Blame, dict[str, Told], int]:
    """Return the fold of the allocator's records, its ended jobs, and the latest instant."""
    from skep.ledger.blame import fold
    from skep.ledger.blame.state import Blame
    from skep_services import replaying

    blame, ended, at = Blame(), dict[str, Any](), 0
    for record in replaying.records(streams, "allocator"):
        at = max(at, record.at)
        for fact in record.facts:
            told = fold.apply(blame, fact, record.at)
            if told is not None:
                ended[told.job] = told
    return blame, ended, at


def _job_of(source: str, name: str, blame: Blame, ended: dict[str, Told], at: int) -> Told:
    from skep.ledger.blame.fold import told_of
    from skep.units import Instant

    found = [job for job, told in ended.items() if name in {job, told.name}]
    found += [job for job, life in blame.lives.items() if name in {job, life.name}]
    if name in found:
        found = [name]
    if not found:
        have = sorted([*ended, *blame.lives], key=lambda job: (len(job), job))
        some = ", ".join(have[:JOBS_NAMED]) + (" and more" if len(have) > JOBS_NAMED else "")
        text = f"{source}: there is no job {name} in its log; there are {some}"
        raise CommandError(exits.NOT_FOUND, text, "unknown-job")
    if len(found) > 1:
        some = ", ".join(found[:JOBS_NAMED])
        text = f"{source}: {len(found)} jobs have the name {name}: {some}; give the id of one"
        raise CommandError(exits.NOT_FOUND, text, "ambiguous-name")
    told = ended.get(found[0]) or told_of(blame, found[0], Instant(at))
    assert told is not None, found
    return told


def _vcs_of(source: str, vc: str, blame: Blame, at: int) -> dict[str, Any]:
    from skep.ledger.blame.fold import told_of
    from skep.ledger.blame.told import Total, tell_vc
    from skep.units import Instant

    for name in blame.lives:
        told = told_of(blame, name, Instant(at))
        if told is not None:
            blame.totals.setdefault(told.vc, Total()).add(told)
    if vc and vc not in blame.totals:
        text = f"{source}: no job of virtual cluster {vc} is in its log; there are jobs of "
        raise CommandError(exits.NOT_FOUND, text + ", ".join(sorted(blame.totals)), "unknown-vc")
    return {
        "at": at,
        "vcs": [
            tell_vc(name, total) for name, total in sorted(blame.totals.items()) if vc in {"", name}
        ],
    }


def _plain(answer: Any) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(answer)
    return plain


# --- for people -----------------------------------------------------------------------------------


def _tell_job(told: dict[str, Any], *, spans: bool) -> None:
    ended = told["end"] or "not over"
    gpus = render.plural(told["gpus"], "GPU")
    print(
        printable(
            f"{told['job']}  {told['name']}  {told['vc']}, {gpus}, {ended}: "
            f"{duration(told['elapsed_ns'])} since {clock_time(told['submitted_at'], date=True)}"
        )
    )
    render.show_table(_share_columns(told["shares"], told["elapsed_ns"]))
    print(_held(told))
    if spans:
        print()
        if told["earlier_ns"]:
            print(f"after {duration(told['earlier_ns'])} that are only summed up:")
        render.show_table(_span_columns(told["spans"]))


def _tell_vcs(vcs: list[dict[str, Any]]) -> None:
    if not vcs:
        say("no jobs")
        return
    for told in vcs:
        jobs = render.plural(told["jobs"], "job")
        print(f"{told['vc']}  {jobs}, {told['unfinished']} not over: {_time(told['elapsed_ns'])}")
        render.show_table(_share_columns(told["shares"], told["elapsed_ns"]))
        print()
    render.show_table(_useful_columns(vcs))


def _time(elapsed_ns: int) -> str:
    return f"{duration(elapsed_ns)} of jobs' time"


def _share_columns(shares: list[dict[str, Any]], elapsed_ns: int) -> list[Column]:
    shown = [*shares, {"cause": "total", "ns": elapsed_ns, "gpu_ns": _sum(shares), "parties": ()}]
    return [
        Column("CAUSE", [one["cause"] for one in shown]),
        Column("TIME", [duration(one["ns"]) for one in shown], right=True),
        Column("SHARE", [percent(one["ns"], elapsed_ns) for one in shown], right=True),
        Column("GPU HOURS", [hours(one["gpu_ns"]) for one in shown], right=True, drop=2),
        Column("BEHIND IT", [parties_text(one["parties"], one["ns"]) for one in shown], narrow=20),
    ]


def _sum(shares: list[dict[str, Any]]) -> int:
    return sum(one["gpu_ns"] for one in shares)


def _span_columns(spans: list[dict[str, Any]]) -> list[Column]:
    return [
        Column("FROM", [clock_time(one["begin"]) for one in spans]),
        Column("TO", [clock_time(one["end"]) for one in spans], drop=2),
        Column("TIME", [duration(one["end"] - one["begin"]) for one in spans], right=True),
        Column("CAUSE", [one["cause"] for one in spans]),
        Column(
            "BEHIND IT",
            [parties_text(one["parties"], one["end"] - one["begin"]) for one in spans],
            narrow=20,
        ),
    ]


def _useful_columns(vcs: list[dict[str, Any]]) -> list[Column]:
    def part(key: str) -> list[str]:
        return [percent(one[key], one["held_gpu_ns"]) for one in vcs]

    return [
        Column("VC", [one["vc"] for one in vcs]),
        Column("HELD GPU HOURS", [hours(one["held_gpu_ns"]) for one in vcs], right=True),
        Column("USEFUL", part("useful_gpu_ns"), right=True),
        Column("SLOWED", part("slowed_gpu_ns"), right=True, drop=1),
        Column("LOST", part("lost_gpu_ns"), right=True),
        Column("CANCELLED", part("cancelled_gpu_ns"), right=True, drop=2),
        Column("REST", [_rest(one) for one in vcs], right=True, drop=3),
    ]


def _rest(told: dict[str, Any]) -> str:
    """Return the part of held GPU time in which nothing trained: starts, stops, suspensions."""
    trained = sum(told[f"{kind}_gpu_ns"] for kind in ("useful", "lost", "cancelled"))
    return percent(told["held_gpu_ns"] - trained, told["held_gpu_ns"])


def _held(told: dict[str, Any]) -> str:
    held = told["held_gpu_ns"]
    if not held:
        return "it held no GPUs"
    slowed = told["slowed_gpu_ns"]
    of_it = f" ({percent(slowed, held)} by being slow)" if slowed else ""
    return (
        f"held {hours(held)} GPU hours: {percent(told['useful_gpu_ns'], held)} useful{of_it}, "
        f"{percent(told['lost_gpu_ns'], held)} lost"
    )


def parties_text(parties: list[dict[str, Any]], whole_ns: int) -> str:
    """Return whose doing a share was: `j3 61%, j9 20%, others 19%`.

    Args:
        parties: As the gateway answers them.
        whole_ns: The time of the share.
    """
    texts = []
    for one in parties:
        name = OTHERS.get(one["kind"]) or one["name"]
        texts.append(f"{name} {percent(one['ns'], whole_ns, 0)}" if len(parties) > 1 else name)
    return ", ".join(texts)


def percent(part: int, whole: int, digits: int = 1) -> str:
    """Return a part in per cent; `-` of nothing."""
    return f"{100 * part / whole:.{digits}f}%" if whole else "-"


def hours(gpu_ns: int) -> str:
    """Return GPU time in hours; with more digits where they are few."""
    if not gpu_ns:
        return "-"
    return f"{gpu_ns / HOUR_NS:.2f}" if gpu_ns * 10 >= HOUR_NS else f"{gpu_ns / HOUR_NS:.4f}"


COMMANDS = {"blame": Command(options, run)}
