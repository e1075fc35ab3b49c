"""`skep experiment`: one of the papers' experiments end to end, with a report."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, say
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skep.experiments.catalogue import Experiment, Line, Results

ABOUT = """\
  skep experiment list
  skep experiment hived-fig7 --seeds 10 --out report

The same seeds give the same figures. An interrupted run (Ctrl-C) reports the seeds that are whole,
says so, and ends with 130.
"""


def options(parser: ArgumentParser) -> None:
    """Add what `experiment` takes."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument("name", help="`list`, or the experiment's name")
    parser.add_argument("--seeds", metavar="SEEDS", default="10",
                        help="10 (that is 0 to 9), 3-12 or 1,5,9; default 10")  # fmt: skip
    parser.add_argument("--days", metavar="N", type=float, default=None,
                        help="days of submissions; default a week with cells, two months with "
                             "quotas, ten days on the testbed")  # fmt: skip
    parser.add_argument("--processes", metavar="N", type=int, default=0,
                        help="runs at a time; default as many as processors")  # fmt: skip
    parser.add_argument("--keep", metavar="DIR", type=Path,
                        help="keep there what each run came to, and run nothing again that this "
                             "very program has kept")  # fmt: skip
    parser.add_argument("--out", metavar="DIR", type=Path,
                        help="write NAME.html, NAME.svg and NAME.json there")  # fmt: skip


def run(arguments: Namespace) -> int:
    """Run the experiment, tell, and return the exit code."""
    from skep.experiments.catalogue import EXPERIMENTS
    from skep_services.simulations import inputs

    if arguments.name == "list":
        return _list(arguments, list(EXPERIMENTS.values()))
    experiment = EXPERIMENTS.get(arguments.name)
    if experiment is None:
        hint = inputs.like(arguments.name, EXPERIMENTS)
        raise CommandError(exits.USAGE, f"no experiment is called {arguments.name}{hint}")
    days: float | None = arguments.days
    if (days is not None and days <= 0) or arguments.processes < 0:
        raise CommandError(exits.USAGE, "--days is above 0, and --processes 1 or more")
    try:
        seeds = inputs.seeds(arguments.seeds)
    except inputs.WrongError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    results, interrupted = _play(experiment, seeds, days, arguments.processes, arguments.keep)
    whole = len(next(iter(results.values())))
    told = f"{render.plural(whole, 'seed')}{'' if days is None else f', {days:g} days'}."
    if interrupted:
        told += f" Interrupted: {whole} of {len(seeds)} seeds are whole."
    lines = experiment.lines(results) if whole else []
    if arguments.out is not None:
        _write(arguments.out, experiment, results, lines, told)
    _tell(arguments, experiment, lines, told)
    return exits.INTERRUPTED if interrupted else exits.OK


def _list(arguments: Namespace, experiments: Sequence[Experiment]) -> int:
    if arguments.json:
        _print_json([{"name": each.name, "title": each.title, "source": each.source}
                     for each in experiments])  # fmt: skip
    else:
        render.show_table([Column("NAME", [each.name for each in experiments]),
                           Column("WHAT", [each.title for each in experiments]),
                           Column("SOURCE", [each.source for each in experiments])])  # fmt: skip
    return exits.OK


def _play(
    experiment: Experiment,
    seeds: Sequence[int],
    days: float | None,
    processes: int,
    folder: Path | None,
) -> tuple[Results, bool]:
    from skep_services.experiments import play
    from skep_services.simulations import pool

    todo = play.tasks(experiment, seeds, days)
    began = time.monotonic()
    shown = render.is_terminal(sys.stderr)

    def tell(done: int) -> None:
        if shown and done:
            left = (time.monotonic() - began) / done * (len(todo) - done)
            sys.stderr.write(f"\r{done} of {len(todo)} runs done, about "
                             f"{render.duration(round(left * 1e9))} left   ")  # fmt: skip
            sys.stderr.flush()

    with pool.Stop().on_interrupt() as stop:
        done = play.run_all(todo, processes or pool.processors(), tell, stop, folder)
    if shown:
        sys.stderr.write("\n")
    say(f"{render.plural(len(done), 'run')} in "
        f"{render.duration(round((time.monotonic() - began) * 1e9))}")  # fmt: skip
    return play.results(experiment.settings(days), done), stop.asked


def _write(
    folder: Path, experiment: Experiment, results: Results, lines: Sequence[Line], told: str
) -> None:
    import msgspec

    from skep_services.experiments import page
    from skep_services.simulations import plots

    folder.mkdir(parents=True, exist_ok=True)
    html = page.page(experiment, results, lines, told)
    (folder / f"{experiment.name}.html").write_text(html)
    drawn = page.pictures(experiment, results)[:6]
    (folder / f"{experiment.name}.svg").write_text(plots.stacked(experiment.title, drawn))
    (folder / f"{experiment.name}.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(_as_data(experiment, lines, told)), indent=1)
    )
    say(f"written: {folder / experiment.name}.html, .svg, .json")


def _as_data(experiment: Experiment, lines: Sequence[Line], told: str) -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "source": experiment.source,
        "run": told,
        "figures": [{"what": line.what, "paper": line.paper, "unit": line.unit.strip(),
                     "ours": line.ours} for line in lines],
    }  # fmt: skip


def _tell(arguments: Namespace, experiment: Experiment, lines: Sequence[Line], told: str) -> None:
    if arguments.json:
        _print_json(_as_data(experiment, lines, told))
        return
    print(f"{experiment.title} ({experiment.source}); {told}")
    render.show_table([Column("FIGURE", [line.what for line in lines]),
                       Column("PAPER", [line.paper for line in lines]),
                       Column("OURS", [line.spread() for line in lines])])  # fmt: skip


def _print_json(found: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())


COMMANDS = {"experiment": Command(options, run)}
