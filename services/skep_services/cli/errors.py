"""`skep speeds --errors`: how wrong predictions of mini-batches are on public measurements."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import print_json, say

if TYPE_CHECKING:
    from skep_lab.measures.measured import Families
    from skep_lab.studies.prediction import Case, Found
    from skep_lab.workloads.table import Table

WHICH = ("judged", "tuned", "all")


def run(arguments: Namespace, tables: Sequence[Table]) -> int:
    """Predict what was measured, and print how wrong it was.

    Args:
        arguments: As given.
        tables: The measurements.

    Returns:
        The exit code: always 0; the tables say whether the bars are reached.

    Raises:
        CommandError: No table has times of gangs.
    """
    from skep_lab.measures.measured import families
    from skep_lab.studies.prediction import CHOSEN, came_to, cases, text

    measured = families(tables)
    if arguments.model is not None:
        raise CommandError(exits.USAGE, "--errors is about all models: leave the model out")
    if not measured:
        hint = "SKEP_SHARED_DATA or --data names the folder with measurements"
        raise CommandError(exits.USAGE, f"--errors has nothing to predict: {hint}")
    chosen, about = CHOSEN[arguments.errors]
    done: list[Case] = []
    for case in cases(measured, chosen=chosen):
        if not done or (done[-1].data, done[-1].profile) != (case.data, case.profile):
            say(f"{case.data}, {case.profile}")
        done.append(case)
    found = came_to(done)
    if arguments.svg:
        arguments.svg.write_text(picture(found, about), encoding="utf-8")
        say(f"wrote {arguments.svg}")
    if arguments.json:
        print_json(as_data(found, measured, about))
    else:
        print(text(found, about))
    return exits.OK


def as_data(found: Found, measured: dict[str, Families], about: str) -> dict[str, Any]:
    """Return what --json prints.

    Args:
        found: What the cases came to.
        measured: All families by data set.
        about: Which models were predicted.
    """
    return {
        "predicted": about,
        "points": {name: {m: len(p) for m, p in each.items()} for name, each in measured.items()},
        "cells": [cell._asdict() for cell in found.cells],
        "figures": [figure._asdict() for figure in found.figures],
        "sets_close": found.sets_close,
        "coverage": found.coverage,
        "strata": {each.value: part for each, (part, _) in found.strata.items()},
        "worst": [
            {
                "data": case.data,
                "profile": case.profile,
                "model": case.model,
                "coverage": case.coverage,
            }
            for case in found.worst[:10]
        ],
        "reached": found.reached,
    }


def picture(found: Found, about: str) -> str:
    """Return the table as SVG: a plot for each data set, profiles across, errors along.

    Args:
        found: What the cases came to.
        about: Which models were predicted.
    """
    from skep_lab.studies.prediction import FORMS, TITLES
    from skep_services.simulations import plots

    drawn = []
    for figure in found.figures:
        cells = [cell for cell in found.cells if cell.data == figure.data]
        drawn.append(
            plots.dots(
                figure.data,
                [cell.profile for cell in cells],
                [
                    plots.Bars(title, [cell.mean.get(form) for cell in cells])
                    for form, title in zip(FORMS, TITLES, strict=True)
                ],
                lambda value: f"{value:.3g} %",
                x_title="mean error over models",
            )
        )
    return plots.stacked(f"errors of predicted mini-batches, {about}", drawn)
