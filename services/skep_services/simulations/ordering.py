"""From what a command line asks for to the runs that answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from skep.cells.levels import gpus_owned, gpus_per_node
from skep.cells.propose import resolve
from skep.units import Duration, in_seconds
from skep.wire.cluster import Cluster
from skep_lab.simulator.settings import Costs, Settings
from skep_lab.simulator.world import abilities
from skep_lab.traces.heldout import HELD_OUT_FROM, TRAINING_TENTHS, HeldOutError, split
from skep_lab.traces.job import RowProblem, Trace
from skep_lab.traces.problems import BadTraceError, suit, without
from skep_lab.workloads.elastic import Elasticity, elastic
from skep_lab.workloads.models import Models
from skep_services.simulations import sources, whatif
from skep_services.simulations.inputs import Choice, Place, WrongError, policies
from skep_services.simulations.models import speeds
from skep_services.simulations.order import Order
from skep_services.simulations.report import base, with_seed
from skep_services.simulations.terms import Terms, terms

SAMPLES = 240
"""Looks at a run while its jobs are submitted: as many as a plot can show."""
SAMPLE_S = 60.0
"""Between two looks at least."""

ELASTICITY = {
    "no": "no",
    "size": "jobs may change their number of GPUs, one to a worker",
    "batch": "jobs may change their number of GPUs, one to a worker, and their batch size",
}
"""What jobs may change, in words, for every policy alike."""

Traces = Mapping[int, Trace]
"""By seed."""
Hints = Literal["exact", "none", "noisy"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A command line, read."""

    verb: str
    trace: str
    form: str | None
    clusters: tuple[str, ...]
    policies: tuple[str, ...]
    what_if: tuple[str, ...]
    seeds: tuple[int, ...]
    models: str
    until: Duration | None
    hints: Hints
    costs: Costs
    costs_text: str
    noise: float
    audit: bool
    lenient: bool
    home: str | None = None
    elastic: Elasticity = "no"
    tick: Duration | None = None
    held_out: bool = False
    """Traces of evaluation are drawn, which no training has seen."""


def traces_for(asked: Asked, places: Sequence[Place]) -> dict[int, Trace]:
    """Return by seed the jobs that run on every one of these clusters: of a file the same ones.

    Args:
        asked: The command line.
        places: The clusters.

    Raises:
        WrongError: There is no such trace or workload model.
        OSError: The trace cannot be read.
        BadTraceError: Some jobs do not run on all clusters, and `lenient` was not asked for.
        LiveError: The log of the cluster here cannot be used.
        UnreachableError: There is no cluster here.
    """
    if not sources.by_seed(asked.trace):
        fixed = _trace(asked, places, asked.seeds[0])
        if asked.held_out:
            try:
                _, fixed = split(fixed)
            except HeldOutError as error:
                reason = f"--held-out: {error}"
                raise WrongError(reason) from None
        return dict.fromkeys(asked.seeds, fixed)
    return {seed: _trace(asked, places, seed) for seed in asked.seeds}


def _trace(asked: Asked, places: Sequence[Place], seed: int) -> Trace:
    trace = sources.load(
        asked.trace, form=asked.form, seed=seed, home=asked.home, lenient=asked.lenient
    )
    if asked.elastic != "no":
        trace = _elastic(asked, places, trace)
    unfit: dict[int, RowProblem] = {}
    for place in places:
        unknown = speeds(asked.models, place.cluster).unknown(trace.jobs)
        judged = suit(
            msgspec.structs.replace(trace, problems=()),
            gpus=_gpus(place.cluster),
            vcs=None if place.pooled else _owned(place.cluster),
            unknown=unknown,
            lenient=True,
        )
        unfit |= {problem.row: problem for problem in judged.problems}
    if not unfit:
        return trace
    found = tuple(unfit[row] for row in sorted(unfit))
    left = without(trace, found)
    if not asked.lenient or not left.jobs:
        raise BadTraceError(trace.name, found, len(left.jobs))
    return left


def _elastic(asked: Asked, places: Sequence[Place], trace: Trace) -> Trace:
    """Return a trace whose jobs may change their size, as far as measurements say.

    Raises:
        WrongError: The workload model has no measurements.
    """
    model = speeds(asked.models, places[0].cluster)
    if not isinstance(model, Models):
        reason = (
            f"--elastic {asked.elastic}: --models {asked.models} does not say how jobs scale; "
            "write --models measured, or one table's name"
        )
        raise WrongError(reason)
    return elastic(
        trace,
        model.limits,
        model.own_mini_batch_s,
        min(_gpus(place.cluster) for place in places),
        batch=asked.elastic == "batch",
    )


def _gpus(cluster: Cluster) -> int:

    return sum(len(chain.nodes) * gpus_per_node(chain) for chain in cluster.chains.values())


def _owned(cluster: Cluster) -> dict[str, int]:
    whole = resolve(cluster, ())
    return {vc: gpus_owned(whole, vc) for vc in whole.vcs}


def orders(
    asked: Asked, places: Sequence[Place], traces: Traces
) -> tuple[list[Order], dict[str, tuple[str, ...]]]:
    """Return the runs, and for those of a changed cluster what was changed.

    Args:
        asked: The command line.
        places: The clusters.
        traces: The jobs by seed.

    Returns:
        The runs in their order; and by the label of a run, every change in words.

    Raises:
        WrongError: A run is asked for twice, or what is asked for is not possible.
    """
    if asked.what_if:
        return _what_if(asked, places[0], traces)
    found = []
    for place in places:
        for text in asked.policies or ("",):
            told = [text] if len(asked.policies) > 1 or len(places) == 1 else []
            names = filter(None, [*told, *([place.name] if len(places) > 1 else [])])
            label = " · ".join(names) or text or place.name
            found += _seeded(asked, place, text, label, traces)
    labels = [order.label for order in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        reason = f"{twice} is asked for twice"
        raise WrongError(reason)
    return found, {}


def _seeded(asked: Asked, place: Place, text: str, label: str, traces: Traces) -> list[Order]:
    chosen = policies(text, place.cluster.vcs) if text else {}
    return [
        _order(
            asked,
            place,
            chosen,
            text,
            traces,
            seed=seed,
            label=with_seed(label, seed) if asked.verb == "sweep" else label,
        )
        for seed in asked.seeds
    ]


def _what_if(
    asked: Asked, place: Place, traces: Traces
) -> tuple[list[Order], dict[str, tuple[str, ...]]]:
    text = asked.policies[0] if asked.policies else ""
    chosen = policies(text, place.cluster.vcs) if text else {}
    seed = asked.seeds[0]
    found = [_order(asked, place, chosen, text, traces, seed=seed, label="now")]
    told = {}
    for number, change in enumerate(asked.what_if, 1):
        changed = whatif.apply(whatif.parse(change, place.cluster), place.cluster)
        label = "then" if len(asked.what_if) == 1 else f"then {number}"
        other = Place(place.name, changed.cluster, place.pooled)
        found.append(
            _order(asked, other, chosen | changed.policies, text, traces, seed=seed, label=label)
        )
        told[label] = changed.changes
    return found, told


def _order(
    asked: Asked,
    place: Place,
    chosen: dict[str, Choice],
    text: str,
    traces: Traces,
    *,
    seed: int,
    label: str,
) -> Order:
    trace = traces[seed]
    span = trace.jobs[-1].at - trace.jobs[0].at if trace.jobs else 0
    settings = Settings(
        seed=seed,
        costs=asked.costs,
        policies=chosen,
        until=asked.until,
        noise=asked.noise,
        hints=asked.hints,
        tick_s=in_seconds(asked.tick) if asked.tick is not None else 0.0,
        sample_every_s=max(SAMPLE_S, in_seconds(span) / SAMPLES),
    )
    if asked.audit and place.pooled:
        reason = f"--audit: no VC owns a part of {place.name}; a cluster with VCs is needed"
        raise WrongError(reason)
    return Order(
        label=label or "run",
        policy=text,
        shape=place.name,
        cluster=place.cluster,
        settings=settings,
        models=asked.models,
        pooled=place.pooled,
        audited=asked.audit,
    )


def alike(found: Sequence[Order]) -> tuple[list[Order], str]:
    """Return runs in which jobs can do the same, and what was changed for that (empty: nothing).

    By itself a run under `fifo` has jobs that can only be stopped, and one under a policy that acts
    on running jobs has jobs that can be suspended. Side by side, the difference would be told as
    one of the policies.
    """
    able = {order.label: abilities(order.cluster, order.settings) for order in found}
    most = max(able.values(), key=len, default=())
    if all(can == most for can in able.values()):
        return list(found), ""
    raised = list(dict.fromkeys(base(label) for label, can in able.items() if can != most))
    replace = msgspec.structs.replace
    orders = [replace(each, settings=replace(each.settings, can=most)) for each in found]
    text = f"jobs can be suspended in every run, also under {', '.join(raised)}"
    return orders, text


def terms_of(asked: Asked, labels: Sequence[str], found: Sequence[Order], traces: Traces) -> Terms:
    """Return on what terms runs compete; nothing of a single one.

    Args:
        asked: The command line.
        labels: The kinds of runs, without their seeds.
        found: The runs.
        traces: The jobs by seed.
    """
    if asked.verb == "run" or len(labels) < 2:
        return Terms()
    by_label = {base(order.label): order for order in reversed(found)}
    distinct = list(traces.values()) if sources.by_seed(asked.trace) else list(traces.values())[:1]
    return terms(labels, [by_label[label] for label in labels], distinct)


def remarks(asked: Asked) -> tuple[str, ...]:
    """Return what readers have to know of all runs: whether seeds matter, and what is held out."""
    drawn = sources.by_seed(asked.trace)
    told = []
    if asked.verb == "sweep" and not drawn:
        chance = [
            what
            for what, there in (("speeds", asked.noise), ("hints", asked.hints == "noisy"))
            if there
        ]
        told.append(
            f"{asked.trace} is the same for every seed: seeds change only "
            f"the {' and '.join(chance)}"
            if chance
            else f"{asked.trace} is the same for every seed, and nothing is left to chance: seeds "
            "change nothing, and a spread of 0 says nothing (--noise varies the speeds)"
        )
    if asked.held_out:
        told.append(
            f"held out: drawn by seeds from {HELD_OUT_FROM:,} on, which no training draws"
            if drawn
            else f"held out: the jobs after the first {TRAINING_TENTHS} of 10, which no training "
            "plays; they begin in an empty cluster"
        )
    return tuple(told)


def with_files(found: Sequence[Order], folder: Path) -> list[Order]:
    """Return the runs with a file each for its jobs: jobs-1.csv and so on, in their order."""
    return [
        msgspec.structs.replace(order, jobs_to=str(folder / f"jobs-{number}.csv"))
        for number, order in enumerate(found, 1)
    ]


def settings_told(asked: Asked) -> dict[str, str]:
    """Return what was asked for, for the readers of the report."""
    told = {
        "trace": asked.trace,
        "cluster": ", ".join(asked.clusters),
        "policy": ", ".join(asked.policies) or "as in the cluster file, else fifo",
        "what if": "; ".join(asked.what_if),
        "seeds": ", ".join(map(str, asked.seeds)),
        "held out": "yes" if asked.held_out else "",
        "models": asked.models,
        "costs": asked.costs_text,
        "hints": asked.hints,
        "noise": f"{asked.noise:g}",
        "elastic": "" if asked.elastic == "no" else ELASTICITY[asked.elastic],
        "tick": "" if asked.tick is None else f"{in_seconds(asked.tick):g} s",
        "until": "" if asked.until is None else f"{in_seconds(asked.until):g} s",
        "lenient": "yes" if asked.lenient else "no",
    }
    return {name: value for name, value in told.items() if value}
