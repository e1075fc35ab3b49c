"""`skep replay`: a live cluster's decisions made again from its log, as they were or otherwise."""

from __future__ import annotations

import re
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skep.units import Instant
    from skep_lab.live_log.decide_again import Comparison, Difference
    from skep_lab.live_log.live_run import Lived
    from skep_services.replaying import Choice, Streams

ABOUT = """\
Reads a cluster's streams, makes every decision of admission and allocator again from the inputs
alone, and compares. With --policy, --cluster or --what-if it also tells what would have been: where
the first decision differs, and what the same jobs, with the run times they had, come to in a
simulated cluster as it was and as changed.

  skep replay                                    # the cluster that runs here
  skep replay --export week.jsonl.gz             # and keep its log
  skep replay --from week.jsonl.gz --policy vision=srtf
  skep replay --from week.jsonl.gz --what-if "nlp.nodes+=1"
  skep replay --from week.jsonl.gz --trace week.trace.jsonl    # for `skep sim run --trace`

times: 2026-11-22T08:00 (UTC), or 2h, 7d: so long ago
"""
AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
SHOWN = 10
TEXT_MAX = 160


def options(parser: ArgumentParser) -> None:
    """Add what `replay` takes."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument(
        "--from",
        dest="source",
        metavar="live|FILE",
        default="live",
        help="the cluster here (default), or an export",
    )
    parser.add_argument("--since", metavar="TIME", help="compare only what was decided since")
    parser.add_argument("--until", metavar="TIME", help="compare only what was decided until")
    parser.add_argument(
        "--policy",
        metavar="VC=NAME",
        action="append",
        default=[],
        help="a VC's policy, as in `skep sim`; repeatable",
    )
    parser.add_argument("--cluster", metavar="FILE", help="other cells, and their owners")
    parser.add_argument(
        "--what-if",
        metavar="CHANGE",
        action="append",
        default=[],
        help="as in `skep sim compare`: VC.nodes+=2",
    )
    parser.add_argument(
        "--hints",
        choices=("exact", "none", "noisy"),
        default="exact",
        help="what policies are told of run times in simulation",
    )
    parser.add_argument(
        "--differences",
        metavar="N",
        type=int,
        default=SHOWN,
        help=f"how many to tell (default {SHOWN})",
    )
    parser.add_argument("--export", metavar="FILE", type=Path, help="write the streams there")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write the jobs as a trace")


def run(arguments: Namespace) -> int:
    """Replay, tell, and return the exit code: 1 if a decision came out otherwise.

    Raises:
        CommandError: The command line is wrong, or the log cannot be read or used.
    """
    from skep_lab.live_log.live_run import NothingError
    from skep_services.replaying import UNREADABLE, UnreachableError
    from skep_services.simulations.inputs import WrongError

    try:
        report, equal = _replay(arguments)
    except WrongError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    except UnreachableError as error:
        raise CommandError(exits.UNREACHABLE, str(error), "no-cluster") from None
    except (*UNREADABLE, NothingError) as error:
        raise CommandError(exits.FAILED, str(error), "bad-log") from None
    if arguments.json:
        print_json(report)
    else:
        _show(report)
    return exits.OK if equal else exits.FAILED


def _replay(arguments: Namespace) -> tuple[dict[str, Any], bool]:
    from skep_lab.live_log.decide_again import Again
    from skep_services import replaying

    window = _window(arguments)
    streams = replaying.read_from(arguments.source, arguments.home)
    report: dict[str, Any] = {
        "from": arguments.source,
        "services": {},
        "bytes": replaying.noted_bytes(streams),
    }
    equal = True
    for name, service in replaying.SERVICES.items():
        began = time.process_time()
        found = Again(service.make, replaying.log_of(streams, name), window=window).run()
        told = _comparison(found, arguments.differences)
        report["services"][name] = {**told, "cpu_s": round(time.process_time() - began, 3)}
        equal = equal and not found.differences
    if arguments.export is not None:
        from skep_services.adapters import exported

        exported.write(arguments.export, streams)
        report["export"] = {"file": str(arguments.export), "bytes": arguments.export.stat().st_size}
    changed = bool(arguments.policy or arguments.cluster or arguments.what_if)
    if changed or arguments.trace is not None:
        _tell_life(arguments, streams, window, report, changed=changed)
    return report, equal


def _tell_life(
    arguments: Namespace,
    streams: Streams,
    window: tuple[Instant, Instant] | None,
    report: dict[str, Any],
    *,
    changed: bool,
) -> None:
    from skep_lab.live_log.live_run import lived
    from skep_lab.traces.formats import skep as form
    from skep_services import replaying

    live = lived(replaying.records(streams, "allocator"), window)
    if arguments.trace is not None:
        arguments.trace.write_text("".join(form.write(live.trace)), encoding="utf-8")
        report["trace"] = {"file": str(arguments.trace), "jobs": len(live.trace.jobs)}
    if changed:
        report["what_if"] = _what_if(arguments, streams, live, window)


# --- what would have been -------------------------------------------------------------------------


def _what_if(
    arguments: Namespace, streams: Streams, live: Lived, window: tuple[Instant, Instant] | None
) -> dict[str, Any]:
    """Return the first decisions that would differ, and both simulations beside what was."""
    from skep_lab.live_log.live_run import starts
    from skep_lab.simulator.run import run as simulate
    from skep_lab.simulator.settings import Settings
    from skep_lab.workloads.situation import Steady
    from skep_services.replaying import measures

    cluster, policies, words = _changed(arguments, live)
    told: dict[str, Any] = {"changes": words}
    if policies and not arguments.cluster:
        told["decisions"] = _other_decisions(streams, policies, window, arguments.differences)
    settings = Settings(costs=live.costs, hints=arguments.hints)
    other = Settings(costs=live.costs, hints=arguments.hints, policies=policies)
    before = simulate(live.trace, live.cluster, settings, Steady())
    after = simulate(live.trace, cluster, other, Steady())
    moved = starts(before, after)
    told["runs"] = {
        "live": measures(live.result),
        "simulated": measures(before),
        "changed": measures(after),
    }
    told["starts"] = {
        "jobs": len(live.trace.jobs),
        "moved": len(moved),
        "first": [_plain(one) for one in moved[: arguments.differences]],
    }
    told["costs"] = {"start_s": live.costs.start_s, "stop_s": live.costs.stop_s}
    told["jobs_left_out"] = [one.text for one in live.trace.problems]
    told["left_out"] = [one.text for one in live.trace.notes]
    return told


def _changed(arguments: Namespace, live: Lived) -> tuple[Any, dict[str, Choice], list[str]]:
    """Return the changed cluster, policies, and every change in words."""
    from skep_services.cli import clusters
    from skep_services.simulations import inputs, whatif

    cluster = live.cluster
    policies: dict[str, Choice] = {}
    words: list[str] = []
    if arguments.cluster:
        cluster = inputs.file_place(arguments.cluster, clusters.read(arguments.cluster)).cluster
        words.append(f"cells of {arguments.cluster}")
    for text in arguments.what_if:
        made = whatif.apply(whatif.parse(text, cluster), cluster)
        cluster, policies = made.cluster, {**policies, **made.policies}
        words += made.changes
    for text in arguments.policy:
        policies |= inputs.policies(text, cluster.vcs)
        words.append(f"policy {text}")
    return cluster, policies, words


def _other_decisions(
    streams: Streams,
    policies: Mapping[str, Choice],
    window: tuple[Instant, Instant] | None,
    shown: int,
) -> dict[str, Any]:
    """Return what the allocator would have decided at each step of the history as it was."""
    from skep_lab.live_log.decide_again import Again
    from skep_services import replaying

    log = replaying.log_of(streams, "allocator")
    change = replaying.with_policies(policies)
    make = replaying.SERVICES["allocator"].make
    return _comparison(Again(make, log, change=change, window=window).run(), shown)


# --- telling --------------------------------------------------------------------------------------


def _comparison(found: Comparison, shown: int) -> dict[str, Any]:
    told = {
        name: getattr(found, name)
        for name in (
            "records",
            "inputs",
            "inputs_by_kind",
            "decisions",
            "equal",
            "facts",
            "starts",
            "not_comparable",
            "given",
            "stopped",
        )
    }
    told["different"] = len(found.differences)
    told["reasons_only"] = sum(one.reasons for one in found.differences)
    deeds_first = sorted(found.differences, key=lambda one: one.reasons)
    told["differences"] = [_difference(one) for one in deeds_first[:shown]]
    return told


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "record": one.record,
        "at": one.at,
        "event": type(one.event).__name__,
        "reasons_only": one.reasons,
        "recorded": [_plain(fact) for fact in one.recorded],
        "recomputed": [_plain(fact) for fact in one.recomputed],
    }


def _plain(thing: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(thing)


def _show(report: dict[str, Any]) -> None:
    for name, told in report["services"].items():
        size = report["bytes"][name]
        print(
            f"{name}: {told['decisions']:,} decisions compared, {told['equal']:,} equal "
            f"({told['facts']:,} facts of {told['inputs']:,} inputs, {told['starts']} starts; "
            f"inputs noted: {size['noted']:,} of {size['log']:,} bytes)"
        )
        for kind, count in told["given"].items():
            print(f"  given, not decided again: {kind} ({count})")
        for why, count in told["not_comparable"].items():
            print(f"  not comparable: {why} ({count})")
        _show_differences(told)
    if "export" in report:
        print(f"exported to {report['export']['file']}: {report['export']['bytes']:,} bytes")
    if "trace" in report:
        print(f"{report['trace']['jobs']} jobs written to {report['trace']['file']}")
    if "what_if" in report:
        _show_what_if(report["what_if"])


def _show_differences(told: dict[str, Any]) -> None:
    for one in told["differences"]:
        when = render.clock_time(one["at"], date=True)
        print(f"  {when} record {one['record']}, on {one['event']}:")
        for sign, facts in (("-", one["recorded"]), ("+", one["recomputed"])):
            for fact in facts:
                print(f"    {sign} {_words(fact)}")
    left = told["different"] - len(told["differences"])
    if left:
        print(f"  and {left} more")
    if told["stopped"]:
        print("  too many differences: the rest was not compared")


def _words(fact: dict[str, Any]) -> str:
    rest = " ".join(
        f"{key}={_value(value)}"
        for key, value in fact.items()
        if key not in ("type", "at", "trace", "spec")
    )
    text = f"{fact.get('type', '')} {rest}"
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def _value(value: Any) -> str:
    if (
        isinstance(value, list | tuple)
        and value
        and isinstance(value[0], dict)
        and "node" in value[0]
    ):
        return ",".join(f"{part['node']}:{_devices(part.get('devices', ()))}" for part in value)
    return str(value)


def _devices(ranks: Any) -> str:
    return "+".join(str(device) for rank in ranks for device in rank)


def _show_what_if(told: dict[str, Any]) -> None:
    print(f"\nwhat if: {'; '.join(told['changes'])}")
    if "decisions" in told:
        found = told["decisions"]
        print(
            f"of {found['decisions']:,} decisions on the history as it was, "
            f"{found['different']:,} would have been others "
            f"({found['reasons_only']:,} of them only in their reasons)"
        )
        _show_differences(found)
    rows = ("jobs", "ended", "refused", "jct_s", "queue_s", "makespan_s", "allocated", "preempted")
    print()
    render.show_table(
        [
            Column("", list(rows)),
            *(
                Column(title, [_number(run_[row]) for row in rows], right=True)
                for title, run_ in zip(
                    ("LIVE", "SIMULATED", "CHANGED"), told["runs"].values(), strict=True
                )
            ),
        ]
    )
    moved = told["starts"]
    print(f"\n{moved['moved']} of {moved['jobs']} jobs would have started at another time")
    if moved["first"]:
        render.show_table(
            [
                Column("JOB", [one["job"] for one in moved["first"]]),
                *(
                    Column(title, [_number(one.get(key)) for one in moved["first"]], right=True)
                    for title, key in (
                        ("START_S", "before"),
                        ("CHANGED", "after"),
                        ("JCT_S", "jct_before"),
                        ("CHANGED", "jct_after"),
                    )
                ),
            ]
        )
    if told["jobs_left_out"]:
        count = render.plural(len(told["jobs_left_out"]), "job")
        print(f"note: {count} not in the trace: {told['jobs_left_out'][0]}, ...")
    for text in told["left_out"]:
        print(f"note: {text}")


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


# --- times ----------------------------------------------------------------------------------------


def _window(arguments: Namespace) -> tuple[Instant, Instant] | None:
    from skep.units import Instant

    if arguments.since is None and arguments.until is None:
        return None
    since = _time(arguments.since, "--since") if arguments.since is not None else 0
    until = _time(arguments.until, "--until") if arguments.until is not None else 2**62
    if since > until:
        raise CommandError(exits.USAGE, "--since is after --until")
    return Instant(since), Instant(until)


def _time(text: str, option: str) -> int:
    """Return an instant (ns) of a time of day or a length of time ago.

    Raises:
        CommandError: The text is neither.
    """
    ago = AGO.fullmatch(text)
    if ago is not None:
        return time.time_ns() - round(float(ago[1]) * UNIT_S[ago[2]] * 1e9)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = f"{option} {text}: write 2026-11-22T08:00 (UTC), or 2h for two hours ago"
        raise CommandError(exits.USAGE, hint) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1e9)


COMMANDS = {"replay": Command(options, run)}
