"""`skep experiment`: one of the papers' experiments end to end, with a report."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from skep_services.cli import exits, on, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, say
from skep_services.cli.progress import Progress, time_text
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skep_lab.experiments.report import Experiment, Line, Results
    from skep_services.engines.deal import Engine
    from skep_services.engines.stop import Stop

ABOUT = f"""\
  skep experiment list
  skep experiment hived-fig7 --seeds 10 --out report

{on.HELP}
The same seeds give the same figures. An interrupted run (Ctrl-C) reports the seeds that are whole,
says so, and ends with 130.
"""


def options(parser: ArgumentParser) -> None:
    """Add what `experiment` takes."""
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument("name", help="`list`, or the experiment's name")
    parser.add_argument(
        "--seeds",
        metavar="SEEDS",
        default="10",
        help="10 (that is 0 to 9), 3-12 or 1,5,9; default 10",
    )
    parser.add_argument(
        "--days",
        metavar="N",
        type=float,
        default=None,
        help="days of submissions; default a week with cells, two months with "
        "quotas, ten days on the testbed",
    )
    on.options(parser)
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=Path,
        help="keep there what each run came to, and run nothing again that this "
        "very program has kept",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write NAME.html, NAME.svg and NAME.json there"
    )


def run(arguments: Namespace) -> int:
    """Run the experiment, tell, and return the exit code.

    Raises:
        CommandError: The command line is wrong, or what runs it fails.
    """
    from skep_lab.experiments.catalogue import EXPERIMENTS
    from skep_services.engines.stop import Stop
    from skep_services.simulations import inputs

    if arguments.name == "list":
        return _list(arguments, list(EXPERIMENTS.values()))
    experiment = EXPERIMENTS.get(arguments.name)
    if experiment is None:
        hint = inputs.like(arguments.name, EXPERIMENTS)
        raise CommandError(exits.USAGE, f"no experiment is called {arguments.name}{hint}")
    days: float | None = arguments.days
    if days is not None and days <= 0:
        raise CommandError(exits.USAGE, "--days is above 0")
    try:
        seeds = inputs.seeds(arguments.seeds)
    except inputs.WrongError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    engine = on.engine(arguments)
    with Stop().on_interrupt() as stop:
        with on.errors():
            results = _play(experiment, seeds, days, engine, stop, arguments.keep)
        found = _found(experiment, results, seeds, days, interrupted=stop.asked)
        if arguments.out is not None:
            _write(arguments.out, found)
    if arguments.json:
        _print_json(_as_data(found))
    else:
        _tell(found)
    return exits.INTERRUPTED if found.interrupted else exits.OK


def _list(arguments: Namespace, experiments: Sequence[Experiment]) -> int:
    if arguments.json:
        _print_json(
            [
                {"name": each.name, "title": each.title, "source": each.source}
                for each in experiments
            ]
        )
    else:
        render.show_table(
            [
                Column("NAME", [each.name for each in experiments]),
                Column("WHAT", [each.title for each in experiments]),
                Column("SOURCE", [each.source for each in experiments]),
            ]
        )
    return exits.OK


def _play(
    experiment: Experiment,
    seeds: Sequence[int],
    days: float | None,
    engine: Engine,
    stop: Stop,
    folder: Path | None,
) -> Results:
    from skep_services.engines.deal import Ear
    from skep_services.experiments import measured, play

    try:
        rows = measured.rows_for(experiment)
    except measured.MissingError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    todo = play.tasks(experiment, seeds, days, rows)
    progress = Progress([f"seed {task.seed}" for task in todo])
    ear = Ear(lambda _place, _data: None, progress.tell, progress.say)
    try:
        done = play.run_all(todo, engine, ear, stop, folder)
    finally:
        progress.end()
    say(f"{render.plural(len(done), 'run')} in {time_text(progress.passed_s())}")
    return play.results(experiment.settings(days), done)


class Found(NamedTuple):
    """What came of an experiment."""

    experiment: Experiment
    results: Results
    lines: Sequence[Line]
    seeds: tuple[int, ...]
    """Those for which every setting was run."""
    told: str
    interrupted: bool


def _found(
    experiment: Experiment,
    results: Results,
    asked: Sequence[int],
    days: float | None,
    *,
    interrupted: bool,
) -> Found:
    seeds = tuple(each.seed for each in next(iter(results.values())))
    told = f"{render.plural(len(seeds), 'seed')}{'' if days is None else f', {days:g} days'}."
    if interrupted:
        told += f" Interrupted: {len(seeds)} of {len(asked)} seeds are whole."
    lines = experiment.lines(results) if seeds else []
    return Found(experiment, results, lines, seeds, told, interrupted)


def _write(folder: Path, found: Found) -> None:
    import msgspec

    from skep_services import durable
    from skep_services.experiments import page
    from skep_services.simulations import plots

    folder.mkdir(parents=True, exist_ok=True)
    experiment, results = found.experiment, found.results
    drawn = page.pictures(experiment, results)[:6]
    texts = {
        "html": page.page(experiment, results, found.lines, found.told),
        "svg": plots.stacked(experiment.title, drawn),
        "json": msgspec.json.format(msgspec.json.encode(_as_data(found)), indent=1).decode(),
    }
    for kind, text in texts.items():
        path = folder / f"{experiment.name}.{kind}"
        durable.write(str(path), text.encode(), 0o666, sync=False)
    say(f"written: {folder / experiment.name}.html, .svg, .json")


def _as_data(found: Found) -> dict[str, Any]:
    return {
        "experiment": found.experiment.name,
        "source": found.experiment.source,
        "run": found.told,
        "seeds": found.seeds,
        "interrupted": found.interrupted,
        "figures": [
            {"what": line.what, "paper": line.paper, "unit": line.unit.strip(), "ours": line.ours}
            for line in found.lines
        ],
    }


def _tell(found: Found) -> None:
    print(f"{found.experiment.title} ({found.experiment.source}); {found.told}")
    if not found.lines:
        return
    render.show_table(
        [
            Column("FIGURE", [line.what for line in found.lines]),
            Column("PAPER", [line.paper for line in found.lines]),
            Column("OURS", [line.spread() for line in found.lines]),
        ]
    )


def _print_json(found: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())


COMMANDS = {"experiment": Command(options, run)}
