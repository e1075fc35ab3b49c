"""`skep speeds`: which models' speeds are known and from where; the speeds of one by placement.

The tables are those of papers and of public measurements. `--measured` asks the cluster instead,
for what its own jobs took. With `--errors`, how wrong predictions of such speeds are.
"""

from __future__ import annotations

import difflib
import math
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import errors, exits, render
from skep_services.cli.client import query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from skep_lab.traces.job import TraceJob
    from skep_lab.workloads.models import Models
    from skep_services.workload_tables import Tables

VARIABLE = "SKEP_SHARED_DATA"
GPUS_MAX = 1024
"""More than any table has, and few enough to print."""


def options(parser: ArgumentParser) -> None:
    """Add what `speeds` takes."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="such as resnet50; else a list")
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        help=f"the folder with the public measurements (default {VARIABLE}); "
        "without one, what the papers print",
    )
    parser.add_argument(
        "--gpus", metavar="N", type=_count, default=16, help="up to so many GPUs (default 16)"
    )
    parser.add_argument(
        "--node-gpus", metavar="N", type=_count, default=8, help="GPUs of a node (default 8)"
    )
    parser.add_argument("--gpu-type", metavar="TYPE", default="", help="such as v100")
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=_count,
        default=0,
        help="of the whole gang; else a middling one",
    )
    parser.add_argument("--servers", metavar="N", type=_count, default=0, help="parameter servers")
    parser.add_argument(
        "--with",
        metavar="MODEL",
        dest="partners",
        action="append",
        default=[],
        help="packed with it on the same GPUs; repeatable",
    )
    parser.add_argument(
        "--beside",
        metavar="MODEL",
        dest="neighbours",
        action="append",
        default=[],
        help="on the same network; repeatable",
    )
    parser.add_argument(
        "--measured",
        action="store_true",
        help="what mini-batches of this cluster's jobs took; of one model, also what it borrows",
    )
    parser.add_argument("--vc", default="", help="--measured: by jobs of this virtual cluster")
    parser.add_argument(
        "--errors",
        choices=errors.WHICH,
        help="instead, how wrong predictions of mini-batches are: of models for judging, for "
        "tuning, or of all",
    )
    parser.add_argument(
        "--svg", metavar="FILE", type=Path, help="draw the speeds, or the errors, into a file"
    )


def run(arguments: Namespace) -> int:
    """List the models, or print the speeds of one.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: `--svg` comes without a model, or the folder of measurements cannot be read.
        _unknown: A CommandError: no table knows the model.
    """
    if arguments.measured:
        return _measured(arguments)
    from skep_lab.workloads.models import Models

    folder, read = _read(arguments)
    if arguments.errors:
        return errors.run(arguments, read.tables)
    models = Models(read.tables, node_gpus=arguments.node_gpus)
    if arguments.model is None:
        if arguments.svg:
            raise CommandError(exits.USAGE, "--svg draws one model: name it")
        return _list(arguments, models, folder, read)
    if not models.sources_of(arguments.model):
        raise _unknown(arguments.model, models)
    speeds = speeds_of(models, arguments)
    if arguments.svg:
        arguments.svg.write_text(picture(speeds), encoding="utf-8")
        say(f"wrote {arguments.svg}")
    elif arguments.json:
        print_json(speeds)
    else:
        _show(speeds)
    return exits.OK


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= GPUS_MAX * 64):
        reason = f"a whole number from 1 on, not {text!r}"
        raise ArgumentTypeError(reason)
    return int(text)


def _read(arguments: Namespace) -> tuple[Path | None, Tables]:
    from skep_services import workload_tables

    named = os.environ.get(VARIABLE, "")
    folder = arguments.data or (Path(named) if named else None)
    if folder is not None and not folder.is_dir():
        source = "--data" if arguments.data else VARIABLE
        raise CommandError(exits.USAGE, f"{source} names no folder: {folder}")
    try:
        return folder, workload_tables.read(folder)
    except workload_tables.TableError as error:
        raise CommandError(exits.FAILED, str(error)) from error


def _unknown(model: str, models: Models) -> CommandError:
    from skep_lab.workloads.names import normalised

    known = list(models.sources())
    close = difflib.get_close_matches(normalised(model).model, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "`skep speeds` lists those that are known"
    return CommandError(exits.NOT_FOUND, f"no table knows {model!r}: {hint}", "unknown-model")


def _list(arguments: Namespace, models: Models, folder: Path | None, read: Tables) -> int:
    sources = models.sources()
    if arguments.json:
        print_json(
            {
                "data": None if folder is None else str(folder),
                "tables": [
                    {"table": table.name, "origin": table.origin, "models": len(table.models())}
                    for table in models.tables
                ],
                "absent": read.absent,
                "models": sources,
            }
        )
        return exits.OK
    render.show_table(
        [
            Column("MODEL", list(sources)),
            Column(
                "TABLES, THE FIRST ASKED FIRST", [", ".join(names) for names in sources.values()]
            ),
        ]
    )
    for table in models.tables:
        say(f"{table.name}: {table.origin} ({render.plural(len(table.models()), 'model')})")
    if folder is None:
        say(f"only what the papers print: {VARIABLE} or --data names the folder with more")
    elif read.absent:
        say(f"not in {folder}: {', '.join(read.absent.values())}")
    return exits.OK


def speeds_of(models: Models, arguments: Namespace) -> dict[str, Any]:
    """Return the speeds of a model at every number of GPUs and even split, as printed by --json."""
    from skep_lab.workloads.figures import printed
    from skep_lab.workloads.names import normalised

    model = normalised(arguments.model).model
    job = _job(arguments, arguments.gpus)
    return {
        "model": model,
        "tables": models.sources_of(arguments.model),
        "known": models.knows(arguments.model),
        "gpu_type": arguments.gpu_type,
        "node_gpus": arguments.node_gpus,
        "with": sorted(arguments.partners),
        "beside": sorted(arguments.neighbours),
        "memory": models.memory(job),
        "placements": [
            _placement(models, arguments, spread)
            for spread in splits(arguments.gpus, arguments.node_gpus)
        ],
        "types": _types(models, arguments),
        "printed": [row._asdict() for row in printed() if row.model == model],
    }


def splits(gpus_max: int, node_gpus: int) -> list[tuple[int, ...]]:
    """Return even spreads of 1, 2, 4, ... GPUs: over as few nodes as hold them, and doublings.

    Args:
        gpus_max: The most GPUs of a spread.
        node_gpus: GPUs of a node.

    Returns:
        The GPUs on each node, of every spread.
    """
    from skep_lab.workloads.table import fewest

    found = []
    gpus = 1
    while gpus <= min(gpus_max, GPUS_MAX):
        spread = fewest(gpus, node_gpus)
        nodes = len(spread)
        found.append(spread)
        while (nodes := 1 << nodes.bit_length()) <= gpus:
            found.append((gpus // nodes,) * nodes)
        gpus *= 2
    return found


def _job(arguments: Namespace, gpus: int) -> TraceJob:
    from skep.units import Duration
    from skep_lab.traces.job import TraceJob

    return TraceJob(
        id="j1",
        at=Duration(0),
        run_time=Duration(0),
        gpus=gpus,
        model=arguments.model,
        batch_size=arguments.batch_size,
        gpu_type=arguments.gpu_type,
        servers=arguments.servers,
    )


def _placement(models: Models, arguments: Namespace, spread: tuple[int, ...]) -> dict[str, Any]:
    from skep_lab.workloads.situation import Situation

    gpus = sum(spread)
    where = Situation(
        arguments.gpu_type,
        spread,
        gpus,
        arguments.servers,
        tuple(sorted(arguments.partners)),
        tuple(sorted(arguments.neighbours)),
    )
    job, single = _job(arguments, gpus), _job(arguments, 1)
    return {
        "gpus": gpus,
        "nodes": len(spread),
        "spread": spread,
        "speed": models.speed(job, where),
        "against_one_gpu": models.speed(single, where),
        "mini_batch_s": models.mini_batch_s(job, where),
        "utilisation": models.utilisation(job, where),
        "parts": [part._asdict() for part in models.parts(single, where)],
    }


def _types(models: Models, arguments: Namespace) -> list[dict[str, Any]]:
    """Return how fast one GPU of each type is against the slowest that the model is known on."""
    from skep_lab.workloads.names import GPU_TYPES
    from skep_lab.workloads.situation import Situation

    found: dict[str, dict[str, Any]] = {}
    job = _job(arguments, 1)
    for kind in GPU_TYPES:
        for other in GPU_TYPES:
            parts = (
                models.parts(_typed(job, kind), Situation(other, (1,), 1, arguments.servers))
                if kind != other
                else ()
            )
            if parts and parts[0].what == "type" and parts[0].table:
                row = found.setdefault(kind, {"gpu_type": kind, "table": parts[0].table})
                row["speed"] = max(row.get("speed", 1.0), 1 / parts[0].factor)
    return sorted(found.values(), key=lambda row: (-row["speed"], row["gpu_type"]))


def _typed(job: TraceJob, kind: str) -> TraceJob:
    import msgspec

    return msgspec.structs.replace(job, gpu_type=kind)


def picture(speeds: dict[str, Any]) -> str:
    """Return a plot as SVG: nodes across, speed up, a line for each number of GPUs."""
    from skep_services.simulations import plots

    rows = [row for row in speeds["placements"] if row["gpus"] > 1]
    drawn = [
        plots.Line(
            f"{gpus} GPUs",
            [(math.log2(row["nodes"]), row["speed"]) for row in rows if row["gpus"] == gpus],
        )
        for gpus in dict.fromkeys(row["gpus"] for row in rows)
    ]
    about = " ".join(
        filter(
            None,
            [
                speeds["model"],
                speeds["gpu_type"],
                *(f"with {name}" for name in speeds["with"]),
                *(f"beside {name}" for name in speeds["beside"]),
                f"({', '.join(speeds['tables'])})",
            ],
        )
    )
    title = f"speed by nodes: 1 on as few nodes of {speeds['node_gpus']} GPUs as hold it"
    plot = plots.lines(
        title, drawn, _doublings, plots.number_text, x_title="nodes", y_title="relative speed"
    )
    return plots.stacked(about, [plot])


def _doublings(value: float) -> str:
    return str(2 ** round(value)) if abs(value - round(value)) < 1e-6 else ""


def _show(speeds: dict[str, Any]) -> None:
    rows = speeds["placements"]
    render.show_table(
        [
            Column("GPUS", [str(row["gpus"]) for row in rows], right=True),
            Column(
                "ON NODES",
                [
                    "+".join(map(str, row["spread"]))
                    if row["nodes"] <= 4
                    else f"{row['nodes']} x {row['spread'][0]}"
                    for row in rows
                ],
            ),
            Column("SPEED", [f"{row['speed']:.3f}" for row in rows], right=True),
            Column("AGAINST 1 GPU", [f"{row['against_one_gpu']:.2f}" for row in rows], right=True),
            Column(
                "MINI-BATCH", [_seconds(row["mini_batch_s"]) for row in rows], right=True, drop=2
            ),
            Column("BUSY", [f"{row['utilisation']:.0%}" for row in rows], right=True, drop=1),
            Column(
                "FROM",
                [
                    ", ".join(
                        f"{part['what']} {part['table'] or 'nobody'}" for part in row["parts"]
                    )
                    or "-"
                    for row in rows
                ],
                narrow=20,
            ),
        ]
    )
    for row in speeds["types"]:
        print(f"one {row['gpu_type']}: {row['speed']:.2f} times the slowest ({row['table']})")
    if speeds["memory"]:
        print(f"memory of a GPU: {render.size(speeds['memory'])}")
    for number in speeds["printed"]:
        print(
            f"{number['where']}: {number['what']} {number['number']:g} {number['unit']}"
            + ("" if number["used"] else " (not used)")
        )
    if not speeds["known"]:
        say("no table says anything about its speed: it goes as in the trace")


def _measured(arguments: Namespace) -> int:
    """Show what the cluster's own jobs took."""
    path = f"/v1/models/{quote(arguments.model)}" if arguments.model else "/v1/models"
    answer = client_of(arguments).get(query(path, vc=arguments.vc or None))
    if arguments.json:
        print_json(answer)
        return exits.OK
    models = answer["models"]
    if not models:
        say("no mini-batch was timed yet: a running job is timed within 100 mini-batches or 30 s")
        return exits.OK
    rows = [
        (model, point, point.get("p50_ns", point.get("step_ns", 0)))
        for model in models
        for point in (*model["measured"], *model["borrowed"])
    ]
    render.show_table(
        [
            Column("MODEL", [render.printable(model["model"]) for model, _, _ in rows], narrow=12),
            Column("TYPE", [render.printable(model["gpu_type"]) or "-" for model, _, _ in rows]),
            Column("GPUS", [str(point["gpus"]) for _, point, _ in rows], right=True),
            Column("NODES", [str(point["nodes"]) for _, point, _ in rows], right=True),
            Column("BATCH", [str(point["batch"] or "-") for _, point, _ in rows], right=True),
            Column("P50", [_seconds(p50 / 1e9) for _, _, p50 in rows], right=True),
            Column(
                "P10 TO P90",
                [
                    f"{_seconds(point['p10_ns'] / 1e9)} to {_seconds(point['p90_ns'] / 1e9)}"
                    if "p10_ns" in point
                    else "-"
                    for _, point, _ in rows
                ],
                drop=3,
            ),
            Column("SAMPLES", [str(point.get("samples", "-")) for _, point, _ in rows], right=True),
            Column("JOBS", [str(point.get("jobs", "-")) for _, point, _ in rows], right=True),
            Column(
                "SPREAD",
                [
                    f"{point['spread_milli'] / 1000:.1%}" if "spread_milli" in point else "-"
                    for _, point, _ in rows
                ],
                right=True,
                drop=2,
            ),
            Column("HOW", [_how(model, point) for model, point, _ in rows]),
        ]
    )
    if answer.get("left_out"):
        say(f"{answer['left_out']} more models: name one, or --vc")
    return exits.OK


def _how(model: dict[str, Any], point: dict[str, Any]) -> str:
    if "p50_ns" in point:
        return "measured, shared" if point["shared"] else "measured"
    return render.printable(model["borrowed_from"]["text"])


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value else "-"


COMMANDS = {"speeds": Command(options, run)}
