"""`skep sim`: what a trace would do on a cluster: one run, several side by side, many seeds."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import badtraces, exits, on, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, say
from skep_services.cli.progress import Progress, time_text
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from skep_lab.traces.job import Trace
    from skep_services.simulations.order import Played
    from skep_services.simulations.report import Report, Row
    from skep_services.simulations.terms import Term

ABOUT = f"""\
verbs:
  run      simulate a trace on a cluster
  compare  the same for several policies, clusters or what-ifs, side by side
  sweep    the same for several seeds and policies, with the spread

traces:   a file in any form that `skep traces` reads, GENERATOR[:option=value,...], or live: the
          jobs that ran on the cluster here
clusters: a cluster file with chains, live, or NODESxGPUS[:TYPE][/VC=NODES,...], such as 80x8 or
          100x8:a100/nlp=60,vision=40; without VCs all jobs share one queue
policies: NAME[:option=value,...] for everyone, or VC=NAME[:...]+VC=NAME[:...]
what-ifs: VC.nodes+=2  VC.nodes-=2  cluster.nodes+=4  VC.policy=NAME[:...]  VC.weight=2

  skep sim run --trace philly.csv --cluster 80x8 --out report
  skep sim compare --trace philly.csv --cluster 80x8 --policy fifo --policy tiresias-l
  skep sim compare --trace live --cluster live --what-if "B.nodes+=2"

Without a trace and a cluster of one's own (each line takes seconds to a minute):

  skep traces generate hived:days=7 --out week.jsonl --cluster vcs.yaml
  skep sim compare --trace week.jsonl --cluster vcs.yaml --lenient --what-if "res-e.nodes+=2"
  skep sim compare --trace week.jsonl --cluster vcs.yaml --lenient \\
    --what-if "res-e.policy=tiresias-l"
  skep sim sweep --trace hived:days=2 --cluster vcs.yaml --lenient --seeds 5 \\
    --policy fifo --policy srtf

{on.HELP}
How far it is and how long it may still take is on standard error, if that is a terminal. An
interrupted run (Ctrl-C) tells what it has until then, says so, and ends with 130.
"""


def options(parser: ArgumentParser) -> None:
    """Add what `sim` takes."""
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument("verb", choices=("run", "compare", "sweep"), help="what to do")
    parser.add_argument("--trace", metavar="FILE|GENERATOR", required=True, help="the jobs")
    parser.add_argument("--format", metavar="FORM", help="the trace's form, if not told by itself")
    parser.add_argument(
        "--cluster",
        metavar="FILE|SHAPE",
        action="append",
        required=True,
        help="where they run; several for compare",
    )
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        action="append",
        default=[],
        help="the order of jobs; else the cluster file's (or fifo)",
    )
    parser.add_argument(
        "--what-if",
        metavar="CHANGE",
        action="append",
        default=[],
        help="compare: the cluster as it is, and changed",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="default 0")
    parser.add_argument(
        "--held-out",
        action="store_true",
        help="jobs that no training has seen: seeds count from 1,000,000,000, and of a file the "
        "last 3 of 10 jobs run",
    )
    parser.add_argument(
        "--seeds",
        metavar="SEEDS",
        default="5",
        help="sweep: 10 (that is 0 to 9), 3-12 or 1,5,9; default 5",
    )
    parser.add_argument(
        "--models",
        metavar="NAME",
        default="steady",
        help="how fast jobs go where: steady (as in the trace; default), papers, "
        "measured, or one table's (`skep speeds`)",
    )
    parser.add_argument(
        "--elastic",
        choices=("no", "size", "batch"),
        default="no",
        help="whether jobs may change their number of GPUs (size), and their batch size as well "
        "(batch), as far as --models has measurements; default no",
    )
    parser.add_argument(
        "--tick",
        metavar="TIME",
        help="policies decide only at multiples of this, as published simulators do: 60",
    )
    parser.add_argument("--until", metavar="TIME", help="end after so long: 14d")
    parser.add_argument(
        "--hints",
        choices=("exact", "none", "noisy"),
        default="exact",
        help="what owners say of run times; default exact",
    )
    parser.add_argument(
        "--costs",
        metavar="COSTS",
        default="none",
        help="start=30,stop=5,checkpoint_every=1h; default none",
    )
    parser.add_argument(
        "--noise",
        metavar="PART",
        type=float,
        default=0.0,
        help="relative spread of speeds; default 0",
    )
    parser.add_argument(
        "--audit", action="store_true", help="also run every VC on its cells alone, to compare"
    )
    parser.add_argument(
        "--lenient", action="store_true", help="leave out what of the trace makes no sense"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write report.html, summary.svg, results.json, jobs"
    )
    on.options(parser)


def run(arguments: Namespace) -> int:
    """Simulate, tell, and return the exit code.

    Raises:
        CommandError: The command line is wrong, the log of the cluster here cannot be used, or what
            runs the simulations fails.
        refused: A CommandError: the trace cannot be used.
    """
    from skep_lab.traces.problems import BadTraceError
    from skep_services.engines.stop import Stop
    from skep_services.replaying import UnreachableError
    from skep_services.simulations.inputs import WrongError
    from skep_services.simulations.sources import LiveError

    try:
        with Stop().on_interrupt() as stop, on.errors():
            report = _simulate(arguments, stop)
            if arguments.out is not None:
                _write(arguments.out, report)
    except WrongError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    except UnreachableError as error:
        raise CommandError(exits.UNREACHABLE, str(error), "no-cluster") from None
    except LiveError as error:
        raise CommandError(exits.FAILED, str(error), "bad-log") from None
    except BadTraceError as error:
        raise badtraces.refused(error) from None
    if arguments.json:
        sys.stdout.write(_json(report, curves=False))
    else:
        _tell(report)
    return exits.INTERRUPTED if report.interrupted else exits.OK


def _simulate(arguments: Namespace, stop: Any) -> Report:
    from skep_services.simulations import ordering, pool
    from skep_services.simulations.report import Report, against, base, sweep
    from skep_services.simulations.terms import with_refused

    asked = _asked(arguments)
    engine = on.engine(arguments)
    places = [place(each, arguments.home) for each in arguments.cluster]
    traces = ordering.traces_for(asked, places)
    trace = traces[asked.seeds[0]]
    orders, changes = ordering.orders(asked, places, traces)
    orders, made_alike = ordering.alike(orders)
    if made_alike:
        say(made_alike)
    for line in (remarks := ordering.remarks(asked)):
        say(line)
    _warn(trace)
    if arguments.out is not None:
        _make(arguments.out)
        orders = ordering.with_files(orders, arguments.out)
    progress = Progress([order.label for order in orders])
    try:
        played = pool.play_all(orders, traces, engine, progress.tell, stop, progress.say)
    finally:
        progress.end()
    done = [each for each in played if each is not None]
    _tell_time(done, progress.passed_s())
    labels = list(dict.fromkeys(base(order.label) for order in orders))
    known = ordering.terms_of(asked, labels, orders, traces)
    if asked.verb == "compare":
        known = with_refused(known, done)
    return Report(
        verb=asked.verb,
        trace=trace.name,
        jobs=len(trace.jobs),
        problems=trace.problems,
        notes=trace.notes,
        changes=changes,
        settings=ordering.settings_told(asked) | ({"alike": made_alike} if made_alike else {}),
        runs=tuple(done),
        interrupted=stop.asked,
        not_run=tuple(
            order.label for order, each in zip(orders, played, strict=True) if each is None
        ),
        swept=sweep(done, labels) if asked.verb == "sweep" else (),
        terms=known,
        paired=against(done, labels) if asked.verb == "sweep" else (),
        remarks=remarks,
    )


def _make(folder: Path) -> None:
    """Make the folder of a report.

    Raises:
        CommandError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"--out {folder}: no folder can be made there: {error.strerror}"
        raise CommandError(exits.USAGE, text) from None


def _asked(arguments: Namespace) -> Any:
    """Return what the command line asks for.

    Raises:
        CommandError: Options do not go together.
        WrongError: The value of an option makes no sense.
    """
    from skep_services.simulations import inputs
    from skep_services.simulations.ordering import Asked

    verb = arguments.verb
    several = len(arguments.cluster) > 1 or len(arguments.policy) > 1
    if verb != "compare" and len(arguments.cluster) > 1:
        raise CommandError(exits.USAGE, f"{verb} takes one --cluster; compare takes several")
    if verb == "run" and several:
        raise CommandError(exits.USAGE, "run takes one --policy; compare and sweep take several")
    if arguments.what_if and (verb != "compare" or several):
        text = "--what-if belongs to compare, with one --cluster and at most one --policy"
        raise CommandError(exits.USAGE, text)
    if verb == "compare" and not several and not arguments.what_if:
        raise CommandError(
            exits.USAGE, "compare what? Give --policy or --cluster twice, or --what-if"
        )
    until = arguments.until
    return Asked(
        verb=verb,
        trace=arguments.trace,
        form=arguments.format,
        clusters=tuple(arguments.cluster),
        policies=tuple(arguments.policy),
        what_if=tuple(arguments.what_if),
        seeds=inputs.drawn(
            inputs.seeds(arguments.seeds) if verb == "sweep" else (arguments.seed,),
            held_out=arguments.held_out,
        ),
        held_out=arguments.held_out,
        models=arguments.models,
        until=None if until is None else inputs.duration(until, "--until"),
        hints=arguments.hints,
        costs=inputs.costs(arguments.costs),
        costs_text=arguments.costs,
        noise=arguments.noise,
        audit=arguments.audit,
        lenient=arguments.lenient,
        home=arguments.home,
        elastic=arguments.elastic,
        tick=None if arguments.tick is None else inputs.duration(arguments.tick, "--tick"),
    )


def place(text: str, home: str | None) -> Any:
    """Return the cluster of a shape or file.

    Raises:
        CommandError: The file cannot be read or has mistakes.
        WrongError: The cluster cannot be simulated.
    """
    from skep_services.cli import clusters
    from skep_services.simulations import inputs, sources

    if text == sources.LIVE:
        return sources.live_place(home)
    if inputs.is_shape(text):
        return inputs.shape(text)
    try:
        return inputs.file_place(text, clusters.read(text))
    except CommandError as error:
        if error.code == exits.USAGE and not os.path.exists(text):
            hint = f"--cluster {error.text}; or is it a shape? Write it as 80x8"
            raise CommandError(exits.USAGE, hint) from None
        raise


def _tell_time(played: Sequence[Played], passed_s: float) -> None:
    events = sum(each.measures.events for each in played)
    cpu_s = sum(each.cpu_s for each in played)
    if cpu_s > 0:
        say(
            f"{render.plural(len(played), 'run')} in {time_text(passed_s)}: "
            f"{events:,} starts and ends, {events / cpu_s:,.0f} in a processor second"
        )


def _warn(trace: Trace) -> None:
    from skep_lab.traces.problems import told

    if trace.problems:
        say(
            f"{trace.name}: {render.plural(len(trace.problems), 'row')} left out, "
            f"{len(trace.jobs):,} jobs remain:"
        )
        for line in badtraces.shown(trace.problems):
            say(f"  {line}")
    for line in told(trace.notes):
        say(f"{trace.name}: {line}")


# --- what comes of it -----------------------------------------------------------------------------


def _json(report: Report, *, curves: bool) -> str:
    import msgspec

    from skep_services.simulations.report import without_clock

    tree: dict[str, Any] = msgspec.to_builtins(without_clock(report))
    for one in tree["runs"]:
        del one["cpu_s"], one["completion_s"], one["job_lines"]
        if not curves:
            del one["curves"], one["series"]
    return msgspec.json.encode(tree).decode() + "\n"


def _write(folder: Path, report: Report) -> None:
    from skep_services import durable
    from skep_services.simulations import page

    texts = {"results.json": _json(report, curves=True), "report.html": page.page(report)}
    if report.runs:
        texts["summary.svg"] = page.summary(report)
    for name, text in texts.items():
        durable.write(str(folder / name), text.encode(), 0o666, sync=False)
    say(
        f"wrote {folder}/report.html ({', '.join(name for name in texts if name[0] != 'r')}"
        f"{', ' if report.runs else ''}results.json)"
    )


def _tell(report: Report) -> None:
    from skep_services.simulations.page import CUTS
    from skep_services.simulations.report import base, left_out, run_rows, shown_runs

    runs = shown_runs(report.runs)
    for label, changes in report.changes.items():
        print(f"{label}: {'; '.join(changes)}")
    if report.changes:
        print()
    if not runs:
        say("interrupted before any run began")
        return
    _tell_terms(report)
    if report.swept:
        _tell_swept(report)
    elif report.changes and len(runs) == 2:
        _tell_difference(runs[0], runs[1], report.terms.differ)
    else:
        labels = [run.label for run in runs]
        _tell_rows(run_rows(runs), labels, report.terms.of(list(map(base, labels))))
        if len(report.runs) == 1:
            _tell_groups(runs[0])
    for run in runs:
        if run.audit is not None:
            _tell_audit(run)
        if run.cut and not report.swept:
            unfinished = run.measures.all.unfinished
            say(f"{run.label}: {CUTS[run.cut]}; {unfinished:,} jobs not finished, in no mean")
    for line in left_out(report.runs):
        say(line)
    if report.interrupted:
        left = f"; never begun: {', '.join(report.not_run)}" if report.not_run else ""
        say(f"interrupted: the figures above are of what had happened until then{left}")


def _tell_terms(report: Report) -> None:
    """Print what is equal in all runs."""
    for line in report.terms.equal:
        print(f"in every run: {line}")
    if report.terms.equal:
        if not report.terms.differ:
            print("nothing but the order of jobs differs")
        print()


def _tell_rows(shown: Sequence[Row], labels: Sequence[str], head: Sequence[Term]) -> None:
    """Print a table of measures, with what differs between the runs in its head."""
    cells = [*(list(each.values) for each in head), *(row.cells() for row in shown)]
    render.show_table(
        [
            Column("MEASURE", [*(each.title for each in head), *(row.title for row in shown)]),
            *(
                Column(label, [each[place] for each in cells], right=True)
                for place, label in enumerate(labels)
            ),
        ]
    )


def _tell_difference(before: Played, after: Played, head: Sequence[Term]) -> None:
    """Print both runs, of all jobs and of each tenant for which something differs."""
    from skep_services.simulations.report import group_rows, run_rows

    shown = run_rows([before, after])
    titles = [*(each.title for each in head), *(row.title for row in shown)]
    cells = [*(list(each.values) for each in head), *(row.cells() for row in shown)]
    columns = [Column("MEASURE", titles)]
    columns += [
        Column(label, [each[place] for each in cells], right=True)
        for place, label in enumerate((before.label, after.label))
    ]
    differences = ["" for _ in head] + [_difference(row) for row in shown]
    columns.append(Column("DIFFERENCE", differences, right=True))
    render.show_table(columns)
    vcs = list(dict.fromkeys([*before.measures.by_vc, *after.measures.by_vc]))
    told = {"jct_mean_s", "jct_p99_s", "queue_mean_s", "preempted"}
    lines: list[tuple[str, Row]] = []
    same: list[str] = []
    for vc in vcs:
        pair = [run.measures.by_vc.get(vc) for run in (before, after)]
        if None not in pair:
            groups = [each for each in pair if each is not None]
            found = [(vc or "-", row) for row in group_rows(groups) if row.key in told]
            if any(len(set(row.values)) > 1 for _, row in found):
                lines += found
            else:
                same.append(vc or "-")
    print()
    if same:
        print(f"the same for {', '.join(same)}" + ("\n" if lines else ""))
    if not lines:
        return
    render.show_table(
        [
            Column("TENANT", [vc for vc, _ in lines]),
            Column("MEASURE", [row.title for _, row in lines]),
            *(
                Column(label, [row.cells()[place] for _, row in lines], right=True)
                for place, label in enumerate((before.label, after.label))
            ),
            Column("DIFFERENCE", [_difference(row) for _, row in lines], right=True),
        ]
    )


def _difference(row: Row) -> str:
    from skep_services.simulations.report import signed

    before, after = row.values
    if before is None or after is None:
        return "-"
    if after == before:
        return "="
    part = f" ({(after - before) / before:+.1%})" if before else ""
    return f"{signed(row, after - before)}{part}"


def _tell_groups(run: Played) -> None:
    for title, groups in (("TENANT", run.measures.by_vc), ("SIZE", run.measures.by_size)):
        if len(groups) < 2:
            continue
        print()
        each = list(groups.values())
        render.show_table(
            [
                Column(title, [name or "-" for name in groups]),
                Column("JOBS", [f"{one.jobs:,}" for one in each], right=True),
                Column("JCT MEAN", [f"{one.jct_s.mean:,.0f} s" for one in each], right=True),
                Column("JCT 99 %", [f"{one.jct_s.p99:,.0f} s" for one in each], right=True),
                Column("QUEUE MEAN", [f"{one.queue_s.mean:,.0f} s" for one in each], right=True),
                Column("EFFECTIVE", [f"{one.effectiveness.mean:.3f}" for one in each], right=True),
                Column("RHO 50 %", [f"{one.rho.median:.2f}" for one in each], right=True),
                Column("PREEMPTED", [f"{one.preempted:,}" for one in each], right=True),
                Column("GPU HOURS", [f"{one.gpu_hours:,.0f}" for one in each], right=True),
            ]
        )


def _tell_swept(report: Report) -> None:
    from skep_services.simulations.report import INTERVALS, PAIRED, paired_text, rows

    shown = rows([run.measures for run in report.runs])
    head = report.terms.of([each.label for each in report.swept])
    columns = [Column("MEASURE", [*(each.title for each in head), *(row.title for row in shown)])]
    for place, each in enumerate(report.swept):
        cells = [term.values[place] for term in head]
        for row in shown:
            one = each.spreads.get(row.key)
            cells.append(
                "-" if one is None else f"{row.text(one.mean)} ± {row.text(one.deviation)}"
            )
        columns.append(Column(f"{each.label} ({len(each.seeds)} seeds)", cells, right=True))
    render.show_table(columns)
    if not report.paired:
        return
    print(f"\ndifference from {report.paired[0].base}, seed by seed: {INTERVALS}")
    main = [row for row in shown if row.key in PAIRED]
    columns = [Column("MEASURE", [row.title for row in main])]
    columns += [
        Column(
            f"{each.label} ({len(each.seeds)} pairs)",
            [paired_text(row, each.differences.get(row.key)) for row in main],
            right=True,
        )
        for each in report.paired
    ]
    render.show_table(columns)


def _tell_audit(run: Played) -> None:
    assert run.audit is not None
    tenants = run.audit.tenants
    each = list(tenants.values())
    print(f"\nsharing safety of {run.label}: {run.audit.anomalies} anomalies")
    render.show_table(
        [
            Column("TENANT", list(tenants)),
            Column("JOBS", [f"{one.jobs:,}" for one in each], right=True),
            Column("QUEUE HERE", [f"{one.shared_s:,.1f} s" for one in each], right=True),
            Column("ALONE", [f"{one.private_s:,.1f} s" for one in each], right=True),
            Column("JOBS WORSE", [f"{one.jobs_worse:,}" for one in each], right=True),
            Column("BY AT MOST", [f"{one.excess_s:,.0f} s" for one in each], right=True),
            Column(
                "WINDOWS WORSE",
                [f"{one.windows_worse} of {one.windows}" for one in each],
                right=True,
            ),
            Column("RHO 50 %", [f"{one.rho.median:.2f}" for one in each], right=True),
        ]
    )


COMMANDS = {"sim": Command(options, run)}
