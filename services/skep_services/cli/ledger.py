"""`skep ledger`: what was tried, why, and what came of it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import query
from skep_services.cli.options import Command, client_of, print_raw, say
from skep_services.cli.render import Column, clock_time

SHOWN = 100
OPEN = "open"
VERDICTS = (OPEN, "kept", "undone", "void")


def options_ledger(parser: ArgumentParser) -> None:
    """Add what `ledger` takes."""
    parser.add_argument("--vc", help="trials of one virtual cluster")
    parser.add_argument("--job", help="trials that touch one job")
    parser.add_argument("--kind", help="pack, migrate, grow, defrag or probe")
    parser.add_argument("--verdict", help="open, kept, undone or void")
    parser.add_argument(
        "-n",
        "--limit",
        type=_count,
        default=SHOWN,
        metavar="N",
        help=f"the newest N rows (default {SHOWN}; 0: totals only)",
    )


def run_ledger(arguments: Namespace) -> int:
    """List trials and what they came to.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments)
    path = query(
        "/v1/trials",
        vc=arguments.vc,
        job=arguments.job,
        kind=arguments.kind,
        verdict=arguments.verdict,
        limit=arguments.limit,
    )
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    answer = client.get(path)
    for each in answer.get("following", ()):
        say(f"{each['text']} (since {clock_time(each['since'])})")
        if stage := each["stage"]:
            say(f"  {stage['text']} (since {clock_time(stage['since'])})")
    if not answer["total"]:
        say("no trials")
        return exits.OK
    if answer["trials"]:
        render.show_table(trial_columns(answer["trials"]))
        print()
    render.show_table(_total_columns(answer["totals"]))
    for each in answer.get("probes", ()):
        why = f" ({each['why']})" if each["why"] else ""
        used = f"{each['used_s']:,} of {each['most_s']:,} GPU-seconds in 24 hours{why}"
        say(f"probes of {each['vc']}: {each['probes']}, {used}")
    shown, total = len(answer["trials"]), answer["total"]
    if shown < total:
        say(f"{shown} of {total} trials; -n {total} shows all")
    if answer["forgotten"]:
        say(f"{answer['forgotten']} older trials are not counted here")
    return exits.OK


def trial_columns(trials: list[dict[str, Any]]) -> list[Column]:
    """Return the table of trials, one list per column."""
    return [
        Column("TRIAL", [str(one["trial"]) for one in trials], right=True),
        Column("KIND", [one["kind"] for one in trials]),
        Column("JOBS", [_jobs(one) for one in trials], narrow=8),
        Column("BEGUN", [clock_time(one["begun_at"]) for one in trials], drop=3),
        Column("VERDICT", [one["verdict"] or OPEN for one in trials]),
        Column(
            "NEEDED", [f"{one['needed_milli'] / 1000:.2f}x" for one in trials], right=True, drop=2
        ),
        Column("GAIN", [gain(one) for one in trials], right=True),
        Column("WHY", [_why(one) for one in trials], narrow=14, drop=4),
    ]


def gain(trial: dict[str, Any]) -> str:
    """Return what was gained over what was needed, and in which interval that lies."""
    if trial["gain_milli"] is None:
        return "-"
    low, high = trial["low_milli"] / 10, trial["high_milli"] / 10
    return f"{trial['gain_milli'] / 10:+.1f}% ({low:+.1f} to {high:+.1f})"


def _jobs(trial: dict[str, Any]) -> str:
    """Return which jobs a trial touches, and to which size a gang is to grow."""
    sizes = f" ({trial['workers']} to {trial['grown']} workers)" if trial.get("grown") else ""
    return " ".join(trial["jobs"]) + sizes


def _why(trial: dict[str, Any]) -> str:
    why = trial["why"] or trial["begun_why"]
    return f"{why}: {trial['detail']}" if trial["detail"] else why


def _total_columns(totals: list[dict[str, Any]]) -> list[Column]:
    gains = [one["kept_gain_milli"] for one in totals]
    return [
        Column("KIND", [one["kind"] for one in totals]),
        *(
            Column(word.upper(), [str(one[word]) for one in totals], right=True)
            for word in VERDICTS
        ),
        Column(
            "MEAN GAIN KEPT",
            ["-" if each is None else f"{each / 10:+.1f}%" for each in gains],
            right=True,
        ),
    ]


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


COMMANDS = {"ledger": Command(options_ledger, run_ledger)}
