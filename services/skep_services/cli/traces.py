"""`skep traces`: look at traces of jobs, convert them, and make those that papers describe."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from skep_services.cli import badtraces, exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say

if TYPE_CHECKING:
    from skep_lab.traces.job import Trace
    from skep_lab.traces.summary import Summary

VERBS = ("check", "convert", "generate", "list")
SHOWN_MAX = 10
"""Sizes, virtual clusters and models that are listed; the rest are counted."""


def options_traces(parser: ArgumentParser) -> None:
    """Add what `traces` takes."""
    from skep_lab.traces.generators.registry import GENERATORS
    from skep_lab.traces.read import FORMATS

    parser.epilog = "\n".join(
        [
            "formats that are read:",
            *(f"  {name:13} {about}" for name, about in FORMATS.items()),
            "generators (options after a colon, as in hived:days=10,part=0.04):",
            *(f"  {name:13} {each.about}" for name, each in GENERATORS.items()),
            "",
            parser.epilog or "",
        ]
    )
    parser.add_argument(
        "verb",
        choices=VERBS,
        help="check: say what is in it and what is wrong; convert: write it in Skep's form; "
        "generate: write one; list: the formats and generators, with their options",
    )
    parser.add_argument(
        "what", nargs="?", metavar="FILE | GENERATOR", help="- is standard input; .gz is unpacked"
    )
    parser.add_argument("--format", help="the file's; default: as its first line tells")
    parser.add_argument(
        "--lenient", action="store_true", help="leave out the rows that cannot be used, and say so"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default 0")
    parser.add_argument("--out", metavar="FILE", help="where to write; default standard output")
    parser.add_argument("--to", default="skep", metavar="FORMAT", help="skep, the default")
    parser.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="check: also name jobs of more GPUs"
    )
    parser.add_argument(
        "--measured",
        metavar="PATH",
        help="measurements that give Gavel's and Pollux's jobs their run times; "
        "default the folder SKEP_SHARED_DATA",
    )
    parser.add_argument(
        "--cluster", metavar="FILE", help="generate: also write the cluster file of the paper"
    )
    parser.add_argument(
        "--past", metavar="FILE", help="generate: a trace of Philly to draw run times from"
    )


def run_traces(arguments: Namespace) -> int:
    """Do what the verb says.

    Returns:
        The exit code: 1 if `check` finds anything wrong without `--lenient`, else 0.

    Raises:
        CommandError: The command line is wrong, or there is no such file or generator.
        refused: A CommandError: the trace cannot be used.
    """
    from skep_lab.traces.heldout import HELD_OUT_FROM, is_held_out
    from skep_lab.traces.problems import BadTraceError
    from skep_services.trace_files import NoTraceError

    if arguments.verb == "list":
        return _list(arguments)
    if is_held_out(arguments.seed):
        text = (
            f"--seed {arguments.seed} is held out for evaluation, which `skep sim --held-out` "
            f"draws: write one below {HELD_OUT_FROM:,}"
        )
        raise CommandError(exits.USAGE, text)
    if arguments.what is None:
        kind = "a generator" if arguments.verb == "generate" else "a file"
        raise CommandError(exits.USAGE, f"{arguments.verb} needs {kind}")
    try:
        match arguments.verb:
            case "check":
                return _check(arguments)
            case "convert":
                return _convert(arguments)
            case _:
                return _generate(arguments)
    except NoTraceError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    except BadTraceError as error:
        raise badtraces.refused(error, whole=arguments.verb == "check") from None


def _check(arguments: Namespace) -> int:
    """Print what is in a trace; 1 if anything is wrong with it without --lenient."""
    from itertools import chain

    from skep_lab.traces.formats.skep import NAME
    from skep_lab.traces.problems import suit, told
    from skep_lab.traces.read import read, recognise
    from skep_lab.traces.summary import summary
    from skep_services import trace_files

    what = arguments.what
    if trace_files.is_generated(what):
        trace, form = trace_files.load(what, seed=arguments.seed), "generated"
    else:
        lines = trace_files.lines_of(what)
        first = next((line for line in lines if line.strip()), "")
        table = recognise(first.lstrip("\ufeff"), what, arguments.format)
        form = NAME if table is None else table.name
        trace = read(
            chain([first], lines),
            what,
            form,
            lenient=True,
            lengths=trace_files.lengths_in(arguments.measured),
        )
    if arguments.gpus:
        trace = suit(trace, gpus=arguments.gpus, lenient=True)
    found = summary(trace)
    if arguments.json:
        print_json(
            {
                "format": form,
                **_plain(found),
                "problems": badtraces.as_data(trace.problems),
                "rows_with_problems": sum(problem.row > 0 for problem in trace.problems),
                "rows_of_others": trace.parts,
                "notes": [note.text for note in trace.notes],
            }
        )
    else:
        _show(form, found)
        for note in trace.notes:
            print(f"note: {note.text}")
        for line in told(trace.problems):
            print(f"problem: {line}")
        if trace.problems:
            hint = "; --lenient leaves those out (rows count from 1, after the header)"
            print(badtraces.rows_told(trace) + ("" if arguments.lenient else hint))
    return exits.OK if arguments.lenient or not trace.problems else exits.FAILED


def _show(form: str, found: Summary) -> None:
    from skep_services.cli.render import plural

    print(f"{found.name}: format {form}, {found.jobs:,} jobs over {_time(found.span_s)}")
    print(f"GPUs of a job: {_counts(found.gpus)}")
    usual = f"median {_time(found.run_median_s)}, mean {_time(found.run_mean_s)}"
    rare = f"99th percentile {_time(found.run_p99_s)}, longest {_time(found.run_max_s)}"
    print(f"run time: {usual}, {rare}")
    print(f"work: {found.gpu_hours:,.0f} GPU-hours, {found.demand:,.1f} GPUs on average")
    if found.vcs:
        print(f"{plural(len(found.vcs), 'virtual cluster')}: {_counts(found.vcs)}")
    if found.models:
        print(f"{plural(len(found.models), 'model')}: {_counts(found.models)}")
    for count, about in (
        (found.deadlines, "to end by a deadline"),
        (found.elastic, "elastic"),
        (found.opportunistic, "opportunistic"),
    ):
        if count:
            print(f"{count:,} of the jobs are {about}")


def _counts(counts: dict[Any, int]) -> str:
    shown = [f"{key} ({count:,})" for key, count in list(counts.items())[:SHOWN_MAX]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _time(value: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} s"


def _convert(arguments: Namespace) -> int:
    from skep_lab.traces.formats.row import near
    from skep_services import trace_files

    if arguments.to != "skep":
        hint = near(arguments.to, ["skep"]) or "only skep is written"
        raise CommandError(exits.USAGE, f"--to {arguments.to}: {hint}")
    trace = trace_files.load(
        arguments.what,
        form=arguments.format,
        seed=arguments.seed,
        lenient=arguments.lenient,
        measured=arguments.measured,
        past=arguments.past,
    )
    return _write(trace, arguments)


def _generate(arguments: Namespace) -> int:
    from skep_lab.traces.generators.registry import WrongGeneratorError, make
    from skep_services import trace_files

    past = (
        trace_files.load(arguments.past, form=arguments.format, lenient=arguments.lenient)
        if arguments.past
        else None
    )
    try:
        trace = make(arguments.what, arguments.seed, past)
        if arguments.cluster:
            _write_cluster(arguments.what, arguments.cluster)
    except WrongGeneratorError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    return _write(trace, arguments)


def _write_cluster(words: str, out: str) -> None:
    """Write the cluster that a paper ran its workload on; one VC owns it but for HiveD's."""
    from skep.cells.clustertext import to_yaml
    from skep_lab.simulator.build import of_types
    from skep_lab.traces.generators import hived
    from skep_lab.traces.generators.registry import parse

    generator, options = parse(words)
    if isinstance(options, hived.Options):
        cluster = hived.cluster_of(options)
    else:
        cluster = of_types(generator.nodes, generator.node_gpus)
    with open(out, "w", encoding="utf-8", newline="\n") as file:
        file.write(to_yaml(cluster))


def _write(trace: Trace, arguments: Namespace) -> int:
    """Write a trace in Skep's form and say on standard error what was left out."""
    from skep_lab.traces.formats.skep import write
    from skep_lab.traces.problems import told

    for line in told(trace.problems):
        say(f"left out: {line}")
    if arguments.out is None:
        sys.stdout.writelines(write(trace))
        return exits.OK
    with open(arguments.out, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(write(trace))
    left_out = sum(problem.row > 0 for problem in trace.problems)
    if arguments.json:
        print_json(
            {
                "out": arguments.out,
                "name": trace.name,
                "jobs": len(trace.jobs),
                "left_out": left_out,
            }
        )
    else:
        print(f"{arguments.out}: {len(trace.jobs):,} jobs")
    return exits.OK


def _list(arguments: Namespace) -> int:
    import msgspec

    from skep_lab.traces.generators.registry import GENERATORS
    from skep_lab.traces.read import FORMATS

    options = {
        name: {field.name: field.default for field in msgspec.structs.fields(each.options)}
        for name, each in GENERATORS.items()
    }
    if arguments.json:
        generators = {
            name: {"about": each.about, "options": options[name]}
            for name, each in GENERATORS.items()
        }
        print_json({"formats": FORMATS, "generators": generators})
        return exits.OK
    for name, about in FORMATS.items():
        print(f"format     {name:13} {about}")
    for name, each in GENERATORS.items():
        told = ", ".join(
            f"{option}={'+'.join(value) if isinstance(value, tuple) else value}"
            for option, value in options[name].items()
        )
        print(f"generator  {name:13} {each.about}\n{'':25}{told}")
    return exits.OK


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value, str_keys=True)


COMMANDS = {"traces": Command(options_traces, run_traces)}
