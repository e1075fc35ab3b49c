"""`skep learn`: train models, draw their curves, and learn from what a cluster did."""

from __future__ import annotations

import io
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, on, render
from skep_services.cli.exits import CommandError
from skep_services.cli.models import problems
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.progress import Progress, time_text
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from skep_lab.learn.pairs import Pairs
    from skep_services.engines.stop import Stop
    from skep_services.learning.learners import Learner
    from skep_services.learning.runs import Point, Trained

VERBS = {
    "list": "the learners and their settings; with a name, of this one",
    "train": "LEARNER: train it, or with --resume go on",
    "curves": "DIR...: the curves of runs, as a table or (--svg) a picture",
    "play": "DIR...: episodes under what runs have learned, for each of --seeds; also --on others",
    "clone": "pairs of what a scheduler saw and did: --from a log, or a simulated --policy",
    "figures": "NAME [-- OPTIONS]: train and judge as a paper's figures need it; alone: which",
    "average": "MODEL...: the mean of models of one form, for clusters that learn as one",
    "status": "how the trainer of this cluster goes (`skep-trainer`)",
    "judge": "MODEL: how often it would have done what the scheduler of --pairs did",
}
ONLY: dict[str, tuple[str, ...]] = {
    "assignments": ("train",),
    "resume": ("train",),
    "tensorboard": ("train",),
    "out": ("train", "clone", "average"),
    "svg": ("curves",),
    "source": ("clone",),
    "policy": ("clone",),
    "trace": ("clone",),
    "cluster": ("clone",),
    "models": ("clone",),
    "seed": ("train", "clone"),
    "seeds": ("play",),
    "parts": ("average",),
    "pairs": ("train", "judge"),
}
"""Options that belong to some verbs only."""
ABOUT = f"""\
  skep learn list
  skep learn train LEARNER --set steps=20000 --seed 1 --out runs/1
  skep learn train LEARNER --set steps=20000 --seed 1 --out runs/1 --resume
  skep learn curves runs/1 runs/2 --svg curves.svg
  skep learn play runs/1 runs/2 --seeds 20 --on ray
  skep models add runs/1/MODEL.safetensors
  skep learn clone --from week.jsonl.gz --out pairs
  skep learn clone --policy srtf --trace hived:days=1 --cluster 40x8 --out pairs
  skep learn train imitate --pairs pairs --out runs/clone
  skep learn judge MODEL --pairs pairs
  skep learn figures dl2 -- --help
  skep learn status
  skep learn average MODEL MODEL --parts 800,200 --out mean.safetensors

A run keeps all that it goes on from, every half minute and when it is interrupted (Ctrl-C). Stopped
and resumed or not, the same settings and seed give the same model on one machine.

{on.HELP}"""
ROWS = 20
SHOWN = 4
"""Values on the line that tells how far a run is."""


def options(parser: ArgumentParser) -> None:
    """Add what `learn` takes."""
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    verbs = "; ".join(f"{verb}: {text}" for verb, text in VERBS.items())
    parser.add_argument("verb", choices=tuple(VERBS), help=verbs)
    parser.add_argument(
        "what", metavar="LEARNER|DIR|MODEL", nargs="*", help="what the verb is about"
    )
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting (`skep learn list LEARNER`); repeatable",
    )
    parser.add_argument("--seed", metavar="N", type=int, help="train, clone: default 0")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where the files go")
    parser.add_argument("--resume", action="store_true", help="train: go on with the run in --out")
    parser.add_argument(
        "--tensorboard", action="store_true", help="train: also write events for TensorBoard"
    )
    parser.add_argument("--svg", metavar="FILE", type=Path, help="curves: draw them into a file")
    parser.add_argument(
        "--from", dest="source", metavar="live|FILE", help="clone: the cluster here, or an export"
    )
    parser.add_argument("--policy", help="clone: a simulated policy, as in `skep sim`")
    parser.add_argument("--trace", metavar="FILE|GENERATOR", help="clone: its jobs")
    parser.add_argument("--cluster", metavar="FILE|SHAPE", help="clone: where they run")
    parser.add_argument("--models", metavar="NAME", help="clone: as in `skep sim`; default steady")
    parser.add_argument(
        "--seeds", metavar="SEEDS", help="play: 10 (that is 0 to 9), 3-12 or 1,5,9; default 10"
    )
    parser.add_argument(
        "--parts", metavar="N,N", help="average: how much each counts; default all the same"
    )
    parser.add_argument(
        "--pairs", metavar="DIR", type=Path, help="train, judge: what `clone` wrote"
    )
    on.options(parser)


def run(arguments: Namespace) -> int:
    """Do what the verb says.

    Returns:
        The exit code.

    Raises:
        CommandError: The command line, a file or a folder is wrong.
    """
    for name, verbs in ONLY.items():
        value = getattr(arguments, name)
        given = value not in (None, []) and value is not False
        if given and arguments.verb not in verbs:
            option = {"assignments": "set", "source": "from"}.get(name, name)
            text = f"--{option} is of {' and '.join(verbs)}, not of {arguments.verb}"
            raise CommandError(exits.USAGE, text)
    if (arguments.seed or 0) < 0:
        raise CommandError(exits.USAGE, f"--seed {arguments.seed}: seeds count from 0")
    with problems(), on.errors():
        return _VERBS[arguments.verb](arguments)


def _one(arguments: Namespace, what: str) -> str:
    if len(arguments.what) != 1:
        raise CommandError(exits.USAGE, f"{arguments.verb} takes one {what}")
    name: str = arguments.what[0]
    return name


# --- list -----------------------------------------------------------------------------------------


def _list(arguments: Namespace) -> int:
    from skep_services.learning import learners
    from skep_services.learning.problems import LearningError

    names = arguments.what or list(learners.LEARNERS)
    rows = []
    for name in names:
        row: dict[str, Any] = {"learner": name}
        try:
            row["settings"] = learners.fields(learners.find(name).settings)
        except LearningError as error:
            if arguments.what:
                raise
            row["unusable"] = error.text
        rows.append({**row, "about": learners.LEARNERS[name].about})
    if arguments.json:
        print_json({"learners": rows})
    elif arguments.what:
        for row in rows:
            print(f"{row['learner']}: {row['about']}")
            for key, value in learners.flat(row["settings"]).items():
                print(f"  {key}={_text(value)}")
    else:
        render.show_table(
            [
                Column("LEARNER", [row["learner"] for row in rows]),
                Column("WHAT", [row.get("unusable") or row["about"] for row in rows], narrow=20),
            ]
        )
    return exits.OK


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


# --- train ----------------------------------------------------------------------------------------


def _train(arguments: Namespace) -> int:
    from skep_services.engines.stop import Stop
    from skep_services.learning import curves, learners, runs

    name = _one(arguments, "LEARNER")
    learner = learners.find(name)
    settings = learners.plain(learners.chosen(learner.settings, arguments.assignments))
    elsewhere = arguments.on != on.HERE or arguments.processes
    if elsewhere and learners.SPREAD not in learner.takes:
        text = f"{name} plays in this process only: leave --on and --processes out"
        raise CommandError(exits.USAGE, text, "not-offered")
    given, digest = _pairs(arguments, learner)
    seed = arguments.seed or 0
    head = runs.Head(name, settings, seed, digest)
    folder: Path = arguments.out or Path(f"{name}-{seed}")
    with runs.alone(folder):
        runs.begin(folder, head, resume=arguments.resume)
        events = curves.tensorboard(folder) if arguments.tensorboard else None
        with Stop().on_interrupt() as stop:
            shown = Progress([f"{name}, seed {seed}"])
            if learners.SPREAD in learner.takes:
                given[learners.SPREAD] = _spread(arguments, stop, shown)
            try:
                done = runs.train(
                    learner,
                    head,
                    folder,
                    clock=time.monotonic,
                    tell=_tell(shown, stop, events),
                    given=given,
                )
            finally:
                shown.end()
            _draw(folder, f"{name}, seed {seed}")
    return _over(arguments, folder, done, shown.passed_s(), stop)


def _pairs(arguments: Namespace, learner: Learner) -> tuple[dict[str, Any], str]:
    """Return the pairs that a learner takes, and their digest.

    Raises:
        CommandError: It takes pairs and there are none, or the other way round.
    """
    from skep_services.learning import cloning, learners

    wants = learners.PAIRS in learner.takes
    if wants != (arguments.pairs is not None):
        text = f"{learner.name} learns from pairs: --pairs DIR has what `skep learn clone` wrote"
        if not wants:
            text = f"{learner.name} learns from no pairs: leave --pairs out"
        raise CommandError(exits.USAGE, text, "not-offered")
    if not wants:
        return {}, ""
    pairs = cloning.load(arguments.pairs)
    return {learners.PAIRS: pairs}, cloning.digest(pairs)


def _spread(arguments: Namespace, stop: Stop, shown: Progress) -> Any:
    from skep_services.engines.deal import Ear
    from skep_services.learning import rollouts

    if arguments.on == on.HERE and not arguments.processes:
        return rollouts.here
    ear = Ear(lambda _place, _data: None, lambda _parts: None, shown.say)
    return rollouts.spread(on.engine(arguments), ear, stop)


def _tell(
    shown: Progress, stop: Stop, events: Callable[[Point], None] | None
) -> Callable[[Point], bool]:
    first = shown.labels[0]

    def tell(point: Point) -> bool:
        values = [(key, value) for key, value in point.values.items() if value is not None]
        said = ", ".join(f"{key} {value:.4g}" for key, value in values[:SHOWN])
        shown.labels = [f"{first}: {said}" if said else first]
        shown.tell([min(max(point.step, 0) / max(point.of, 1), 1.0)])
        if events is not None:
            events(point)
        return not stop.asked

    return tell


def _draw(folder: Path, title: str) -> None:
    from skep_services import durable
    from skep_services.learning import curves, runs

    points = runs.read_curve(folder)
    if points:
        text = curves.picture(title, {title: points})
        durable.write(str(folder / "curves.svg"), text.encode(), 0o644, sync=False)


def _over(arguments: Namespace, folder: Path, done: Trained, passed_s: float, stop: Stop) -> int:
    result = done.result
    if arguments.json:
        print_json(
            {
                "folder": str(folder),
                "model": result.model if result is not None else None,
                "step": done.step,
                "of": done.of,
                "values": result.values if result is not None else {},
                "interrupted": result is None and stop.asked,
            }
        )
    elif result is not None:
        print(f"{result.model}  {folder / result.model}.safetensors")
        say(f"{done.step} steps in {time_text(passed_s)}; curves: {folder / 'curves.svg'}")
    else:
        say(f"{folder}: {done.step} of {done.of} steps; --resume goes on from there")
    if result is None:
        return exits.INTERRUPTED if stop.asked else exits.FAILED
    return exits.OK


# --- curves ---------------------------------------------------------------------------------------


def _curves(arguments: Namespace) -> int:
    from skep_services import durable
    from skep_services.learning import curves, runs

    if not arguments.what:
        raise CommandError(exits.USAGE, "curves takes the folders of runs")
    found: dict[str, list[Point]] = {}
    for name in arguments.what:
        runs.read_head(Path(name))
        found[name] = runs.read_curve(Path(name))
    if arguments.svg is not None:
        title = ", ".join(found) if len(found) < 4 else f"{len(found)} runs"
        durable.write(str(arguments.svg), curves.picture(title, found).encode(), 0o644, sync=False)
        say(f"wrote {arguments.svg}")
    elif arguments.json:
        print_json({name: _plain(points) for name, points in found.items()})
    else:
        for name, points in found.items():
            _table(name, points)
    return exits.OK


def _plain(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [{"step": each.step, "of": each.of, "values": each.values} for each in points]


def _table(name: str, points: Sequence[Point]) -> None:
    print(f"{name}: {render.plural(len(points), 'point')}")
    every = -(-len(points) // ROWS) or 1
    rows = [*points[::every], *(points[-1:] if points and (len(points) - 1) % every else [])]
    names = list(dict.fromkeys(key for point in points for key in point.values))
    render.show_table(
        [
            Column("STEP", [str(point.step) for point in rows], right=True),
            *(
                Column(key.upper(), [_number(point.values.get(key)) for point in rows], right=True)
                for key in names
            ),
        ]
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


# --- play -----------------------------------------------------------------------------------------


def _play(arguments: Namespace) -> int:
    from skep_services.engines.deal import Ear
    from skep_services.engines.stop import Stop
    from skep_services.learning import rollouts, runs
    from skep_services.simulations import inputs

    if not arguments.what:
        raise CommandError(exits.USAGE, "play takes the folders of runs")
    try:
        seeds = inputs.seeds(arguments.seeds or "10")
    except inputs.WrongError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    asked = []
    for name in arguments.what:
        head, saved = runs.finished(Path(name))
        asked.append(rollouts.of_run(head.learner, head.settings, saved.tensors, seeds))
    engine = on.engine(arguments)
    with Stop().on_interrupt() as stop:
        shown = Progress([task.label for each in asked for task in rollouts.tasks(each)])
        ear = Ear(lambda _place, _data: None, shown.tell, shown.say)
        try:
            found = rollouts.spread(engine, ear, stop)(asked)
        except rollouts.StoppedError:
            return exits.INTERRUPTED
        finally:
            shown.end()
    if arguments.json:
        print_json({"seeds": seeds, "runs": dict(zip(arguments.what, found, strict=True))})
    else:
        _played(arguments.what, seeds, found)
    return exits.OK


def _played(
    names: Sequence[str], seeds: Sequence[int], found: Sequence[Sequence[dict[str, float]]]
) -> None:
    from skep_lab.measures.stat import stat

    keys = list(dict.fromkeys(key for rows in found for row in rows for key in row))
    columns = [Column("RUN", list(names)), Column("SEEDS", [str(len(seeds))] * len(names))]
    for key in keys:
        told = [stat([row[key] for row in rows if key in row]) for rows in found]
        columns.append(Column(key.upper(), [_number(each.mean) for each in told], right=True))
    render.show_table(columns)


# --- clone ----------------------------------------------------------------------------------------


def _clone(arguments: Namespace) -> int:
    """Make pairs out of a log or a simulation, and keep them.

    Raises:
        CommandError: The command line is wrong, or the log or the trace cannot be used.
        refused: A CommandError: the trace cannot be used.
    """
    from skep_lab.traces.problems import BadTraceError
    from skep_services.cli import badtraces
    from skep_services.learning import cloning
    from skep_services.replaying import UNREADABLE, UnreachableError
    from skep_services.simulations.inputs import WrongError
    from skep_services.simulations.sources import LiveError

    simulated = bool(arguments.policy or arguments.trace or arguments.cluster)
    if bool(arguments.source) == simulated or arguments.what:
        text = "clone takes --from live|FILE, or --policy, --trace and --cluster"
        raise CommandError(exits.USAGE, text)
    try:
        pairs = _simulated(arguments) if simulated else _logged(arguments)
    except WrongError as error:
        raise CommandError(exits.USAGE, str(error)) from None
    except UnreachableError as error:
        raise CommandError(exits.UNREACHABLE, str(error), "no-cluster") from None
    except (*UNREADABLE, LiveError) as error:
        raise CommandError(exits.FAILED, str(error), "bad-log") from None
    except BadTraceError as error:
        raise badtraces.refused(error) from None
    folder: Path = arguments.out or Path("pairs")
    digest = cloning.keep(pairs, folder)
    told = cloning.counts(pairs)
    if arguments.json:
        print_json({"folder": str(folder), "sha256": digest, **told, "about": pairs.about})
    else:
        print(f"{folder}: {_counted(told)}")
    return exits.OK


def _counted(told: dict[str, Any]) -> str:
    marks = ", ".join(f"{count} {name}" for name, count in told["marks"].items())
    words = f"{told['pairs']} pairs with {told['moves']} moves, {told['clean']} of them a policy's"
    return f"{words} own choice" + (f"; marked: {marks}" if marks else "")


def _logged(arguments: Namespace) -> Pairs:
    from skep_services import replaying
    from skep_services.learning import cloning

    streams = replaying.read_from(arguments.source, arguments.home)
    return cloning.of_log(streams, arguments.source, say)


def _simulated(arguments: Namespace) -> Pairs:
    from skep_lab.simulator.settings import Settings
    from skep_services.cli.sim import place
    from skep_services.learning import cloning
    from skep_services.simulations import inputs, models, order, sources

    if not (arguments.trace and arguments.cluster):
        raise CommandError(exits.USAGE, "clone --policy: --trace has the jobs, --cluster the nodes")
    where = place(arguments.cluster, arguments.home)
    trace = sources.load(
        arguments.trace, form=None, seed=arguments.seed or 0, lenient=True, home=arguments.home
    )
    if where.pooled:
        trace = order.pooled(trace)
    chosen = inputs.policies(arguments.policy, where.cluster.vcs) if arguments.policy else {}
    shown = Progress([arguments.policy or "the cluster's policies"])

    def watch(ended: int, jobs: int) -> bool:
        shown.tell([ended / max(jobs, 1)])
        return True

    try:
        return cloning.of_policy(
            trace,
            where.cluster,
            Settings(seed=arguments.seed or 0, policies=chosen),
            models.speeds(arguments.models or "steady", where.cluster),
            watch=watch,
        )
    finally:
        shown.end()


# --- judge ----------------------------------------------------------------------------------------


def _judge(arguments: Namespace) -> int:
    from skep.learn import modelfile
    from skep_services.learning import cloning, judging, modelfiles

    if arguments.pairs is None:
        raise CommandError(exits.USAGE, "judge needs --pairs, which `skep learn clone` makes")
    name, data = _model(arguments)
    modelfiles.check(data, name)
    pairs = cloning.load(arguments.pairs)
    found = judging.by_vc(pairs, modelfile.load(data))
    rows = [(vc or "all", each) for vc, estimates in found.items() for each in estimates]
    if arguments.json:
        told = [{"vc": vc or None, **each._asdict()} for vc, each in rows]
        print_json({"model": modelfile.name_of(data), "estimates": told, "about": pairs.about})
        return exits.OK
    render.show_table(
        [
            Column("VC", [vc for vc, _ in rows]),
            Column("METHOD", [each.method.value for _, each in rows]),
            Column("VALUE", [_number(each.value) for _, each in rows], right=True),
            Column("LOW", [_number(each.low) for _, each in rows], right=True),
            Column("HIGH", [_number(each.high) for _, each in rows], right=True),
            Column("DECISIONS", [str(each.decisions) for _, each in rows], right=True),
            Column("BLOCKS", [str(each.blocks) for _, each in rows], right=True, drop=1),
            Column("WHY NOT", [each.why.value if each.why else "-" for _, each in rows]),
        ]
    )
    return exits.OK


def _model(arguments: Namespace) -> tuple[str, bytes]:
    """Return a model by its file or by its name in the registry."""
    return _read_model(arguments, _one(arguments, "MODEL"))


def _read_model(arguments: Namespace, name: str) -> tuple[str, bytes]:
    from skep_services.learning import registry
    from skep_services.supervisor.home import home_folder

    if Path(name).is_file():
        return name, registry.read_file(name)
    folder = registry.folder_of(home_folder(arguments.home))
    entry = registry.find(registry.read_registry(folder), name)
    return entry.model[:12], registry.read_model(folder, entry.model)


# --- average --------------------------------------------------------------------------------------


def _average(arguments: Namespace) -> int:
    from skep.learn import modelfile
    from skep_lab.learn import federated
    from skep_lab.learn.progress import UnfitError
    from skep_services import durable
    from skep_services.learning import modelfiles
    from skep_services.learning.problems import LearningError, Why, writing

    if arguments.out is None:
        raise CommandError(exits.USAGE, "average needs --out, the file that it writes")
    words = arguments.parts.split(",") if arguments.parts else []
    try:
        parts = [float(word) for word in words]
    except ValueError:
        text = f"--parts {arguments.parts}: write a number for each model, as 3,1"
        raise CommandError(exits.USAGE, text) from None
    models = []
    for word in arguments.what:
        name, data = _read_model(arguments, word)
        modelfiles.check(data, name)
        models.append(modelfile.load(data))
    try:
        made = federated.average(models, parts)
    except UnfitError as error:
        raise LearningError(Why.UNFIT, str(error)) from None
    with writing(arguments.out):
        durable.write(str(arguments.out), made, 0o644)
    name = modelfile.name_of(made)
    if arguments.json:
        print_json(
            {"model": name, "file": str(arguments.out), "of": [each.name for each in models]}
        )
    else:
        print(f"{name}  {arguments.out}")
    return exits.OK


# --- figures --------------------------------------------------------------------------------------


def _figures(arguments: Namespace) -> int:
    from skep_services.learning import learners
    from skep_services.learning.problems import LearningError, Why

    if not arguments.what:
        names = list(learners.FIGURES)
        if arguments.json:
            print_json({"figures": {name: learners.FIGURES[name].about for name in names}})
            return exits.OK
        render.show_table(
            [
                Column("FIGURES", names),
                Column("WHAT", [each.about for each in learners.FIGURES.values()], narrow=20),
            ]
        )
        return exits.OK
    name, *words = arguments.what
    if name not in learners.FIGURES:
        text = f"no figures are called {name}: there are {', '.join(learners.FIGURES)}"
        raise LearningError(Why.NO_FIGURES, text)
    module = learners.imported(learners.FIGURES[name].module, name)
    if not arguments.json:
        return int(module.main(words) or exits.OK)
    heard = _Heard()
    with redirect_stdout(heard):
        code = int(module.main(words) or exits.OK)
    lines = heard.getvalue().splitlines()
    print_json({"figures": name, "options": words, "exit": code, "lines": lines})
    return code


class _Heard(io.StringIO):
    """What figures print: kept for a document, and shown meanwhile where errors are."""

    def write(self, text: str) -> int:
        """Keep and show a part."""
        sys.stderr.write(text)
        return super().write(text)


# --- status ---------------------------------------------------------------------------------------


def _status(arguments: Namespace) -> int:
    import msgspec

    from skep_services.supervisor.home import home_folder
    from skep_services.trainer import rounds

    if arguments.what:
        raise CommandError(exits.USAGE, "status takes nothing")
    folder = Path(home_folder(arguments.home)) / rounds.FOLDER
    found = rounds.status(folder)
    under_way = found.round
    if arguments.json:
        print_json(
            {
                "folder": str(folder),
                "runs": found.runs,
                "round": None
                if under_way is None
                else {**msgspec.to_builtins(under_way), "step": found.step, "of": found.of},
                "rounds": msgspec.to_builtins(found.kept.rounds),
            }
        )
        return exits.OK
    say(f"{folder}: a trainer {'runs' if found.runs else 'does not run'}")
    if under_way is not None:
        far = f"{found.step} of {found.of} steps" if found.of else "just begun"
        say(f"VC {under_way.vc}, records 1 to {under_way.records}: {far}")
    rows = found.kept.rounds[-ROWS:]
    render.show_table(
        [
            Column("VC", [row.vc for row in rows]),
            Column("UP TO", [render.clock_time(row.at, date=True) for row in rows]),
            Column("OUTCOME", [row.outcome.value for row in rows]),
            Column("MODEL", [row.model[:12] or "-" for row in rows]),
            *(
                Column(f"OVER {name.upper()}", [_gain(row.report, name) for row in rows])
                for name in ("present", "rule")
            ),
            Column("WHY", [row.why or "-" for row in rows], narrow=20),
        ]
    )
    return exits.OK


def _gain(report: Mapping[str, float], name: str) -> str:
    """Return by how much lower completion times are, and at least, in per cent."""
    gain, low = report.get(f"{name}_gain_milli"), report.get(f"{name}_low_milli")
    return "-" if gain is None or low is None else f"{gain / 10:.1f} % (>= {low / 10:.1f} %)"


_VERBS = {
    "average": _average,
    "status": _status,
    "list": _list,
    "train": _train,
    "curves": _curves,
    "play": _play,
    "clone": _clone,
    "figures": _figures,
    "judge": _judge,
}
COMMANDS = {"learn": Command(options, run)}
