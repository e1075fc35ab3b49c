"""What a command tells of its runs: which measures, in which order, in which units."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from skep_lab.measures.paired import Paired, paired
from skep_lab.measures.summary import Group, Measures
from skep_lab.traces.job import RowProblem, Trace
from skep_services.simulations.order import Played
from skep_services.simulations.plots import part_text
from skep_services.simulations.terms import Terms


class Spread(msgspec.Struct, frozen=True):
    """One measure of the same run under several seeds."""

    mean: float
    deviation: float
    """Of the sample: 0 of one seed."""
    least: float
    most: float


class Swept(msgspec.Struct, frozen=True):
    """One policy on one cluster over all seeds that were played to the end."""

    label: str
    seeds: tuple[int, ...]
    spreads: dict[str, Spread]


class Against(msgspec.Struct, frozen=True):
    """How one policy differs from the first one, seed by seed."""

    label: str
    base: str
    seeds: tuple[int, ...]
    differences: dict[str, Paired]
    """By measure."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is told, the same bytes for the same command line and trace."""

    verb: str
    trace: str
    jobs: int
    problems: tuple[RowProblem, ...] = ()
    notes: tuple[RowProblem, ...] = ()
    settings: dict[str, str]
    changes: dict[str, tuple[str, ...]] = {}
    """By run: what was changed in the cluster."""
    runs: tuple[Played, ...] = ()
    not_run: tuple[str, ...] = ()
    """Runs that were ordered, and never begun: somebody interrupted."""
    interrupted: bool = False
    unknown_models: dict[str, int] = {}
    swept: tuple[Swept, ...] = ()
    terms: Terms = Terms()
    """On what terms the runs compete; empty of a single run."""
    paired: tuple[Against, ...] = ()
    """Of a sweep: each policy against the first one."""
    remarks: tuple[str, ...] = ()
    """What readers have to know of the runs as a whole, in sentences."""


def without_clock(report: Report) -> Report:
    """Return a report without how long it took: the rest is the same every time."""
    runs = tuple(msgspec.structs.replace(run, cpu_s=0.0) for run in report.runs)
    return msgspec.structs.replace(report, runs=runs)


class Shown(NamedTuple):
    """One measure as people see it."""

    key: str
    title: str
    get: Callable[[Group], float | None]
    text: Callable[[float], str]
    source: str = ""


class ShownOfAll(NamedTuple):
    """The same of a run as a whole."""

    key: str
    title: str
    get: Callable[[Measures], float | None]
    text: Callable[[float], str]
    source: str = ""


def seconds_exactly(value: float) -> str:
    """Return seconds with their decimals and thousands apart: what is compared with others."""
    return f"{value:,.2f} s"


def ratio_text(value: float) -> str:
    """Return a ratio with three digits, however large it is."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def count_text(value: float) -> str:
    """Return a count."""
    return f"{value:,.0f}"


def _some(value: float, count: int) -> float | None:
    return value if count else None


GROUP = (
    Shown("jct_mean_s", "JCT, mean", lambda g: _some(g.jct_s.mean, g.ended), seconds_exactly),
    Shown("jct_median_s", "JCT, median", lambda g: _some(g.jct_s.median, g.ended), seconds_exactly),
    Shown("jct_p95_s", "JCT, 95 %", lambda g: _some(g.jct_s.p95, g.ended), seconds_exactly),
    Shown("jct_p99_s", "JCT, 99 %", lambda g: _some(g.jct_s.p99, g.ended), seconds_exactly),
    Shown(
        "queue_mean_s", "queueing, mean", lambda g: _some(g.queue_s.mean, g.ended), seconds_exactly
    ),
    Shown(
        "queue_p99_s", "queueing, 99 %", lambda g: _some(g.queue_s.p99, g.ended), seconds_exactly
    ),
    Shown(
        "first_wait_mean_s",
        "wait for the first run, mean",
        lambda g: _some(g.first_wait_s.mean, g.first_wait_s.count),
        seconds_exactly,
    ),
    Shown(
        "effectiveness",
        "execution effectiveness, mean",
        lambda g: _some(g.effectiveness.mean, g.ended),
        ratio_text,
        "SCHED², eq. 2",
    ),
    Shown(
        "normalised",
        "normalised latency, mean",
        lambda g: _some(g.normalised.mean, g.normalised.count),
        ratio_text,
        "GENIE, eq. 15",
    ),
    Shown("qos", "QoS guaranteed", lambda g: g.qos, part_text, "GENIE, eq. 14"),
    Shown(
        "rho_median",
        "finish-time fairness, median",
        lambda g: _some(g.rho.median, g.rho.count),
        ratio_text,
        "Themis, section 3.2",
    ),
    Shown(
        "rho_p99",
        "finish-time fairness, 99 %",
        lambda g: _some(g.rho.p99, g.rho.count),
        ratio_text,
        "Themis, section 3.2",
    ),
    Shown(
        "hundred_mean_s",
        "time to 100 mini-batches, mean",
        lambda g: _some(g.hundred_s.mean, g.hundred_s.count),
        seconds_exactly,
        "Gandiva, section 6.3",
    ),
    Shown("preempted", "preemptions", lambda g: g.preempted, count_text),
    Shown("suspended", "suspensions", lambda g: g.suspended, count_text),
    Shown("migrated", "migrations", lambda g: g.migrated, count_text),
    Shown("resized", "changes of size", lambda g: g.resized, count_text),
    Shown("packed", "packings", lambda g: g.packed, count_text),
    Shown("lost_s", "work done twice", lambda g: g.lost_s, seconds_exactly),
    Shown("overhead_s", "spent on changes", lambda g: g.overhead_s, seconds_exactly),
    Shown("gpu_hours", "GPU hours held", lambda g: g.gpu_hours, count_text),
    Shown("ended", "jobs that ended", lambda g: g.ended, count_text),
    Shown("refused", "jobs refused", lambda g: g.refused, count_text),
    Shown("unfinished", "jobs not finished", lambda g: g.unfinished, count_text),
)

ALL = (
    ShownOfAll("makespan_s", "makespan", lambda m: m.makespan_s, seconds_exactly),
    ShownOfAll("allocated", "GPU time allocated", lambda m: m.allocated, part_text),
    ShownOfAll("busy", "GPU time busy", lambda m: m.busy, part_text),
    ShownOfAll("useful", "GPU time useful", lambda m: m.useful, part_text),
    ShownOfAll(
        "fragmentation", "fragmentation", lambda m: m.fragmentation, part_text, "SCHED², eq. 1"
    ),
    ShownOfAll(
        "no_affinity",
        "nodes without affinity",
        lambda m: m.no_affinity,
        part_text,
        "HiveD, section 5.2",
    ),
)

ALWAYS = ("jct_mean_s", "queue_mean_s", "preempted", "migrated", "ended")
"""Measures that are told even where they are 0 or unknown in every run."""


class Row(NamedTuple):
    """A measure of every run."""

    key: str
    title: str
    values: tuple[float | None, ...]
    text: Callable[[float], str]
    source: str

    def cells(self) -> list[str]:
        """Return the values as people see them."""
        return ["-" if value is None else self.text(value) for value in self.values]


def run_rows(runs: Sequence[Played]) -> list[Row]:
    """Return the measures of runs side by side, all of the same jobs.

    A run that was cut has averages only of jobs that happened to end before, which are the short
    ones: it is left out of these (None). In their place all runs are told by the jobs that ended
    in every one of them.
    """
    found = rows([run.measures for run in runs])
    if len(runs) < 2 or not any(run.cut for run in runs):
        return found
    told = [_without_cut(row, runs) for row in found]
    return [*_common_rows(runs), *(row for row in told if _says(row))]


def shown_runs(runs: Sequence[Played]) -> list[Played]:
    """Return the runs that are columns of a comparison: none that was interrupted beside others.

    Runs that were all interrupted are shown, as far as they went.
    """
    complete = [run for run in runs if run.cut != INTERRUPTED]
    return complete or list(runs)


def left_out(runs: Sequence[Played]) -> list[str]:
    """Return a sentence for each run that is not a column because it was interrupted."""
    shown = {run.label for run in shown_runs(runs)}
    return [
        f"{run.label} was interrupted when {run.measures.all.ended:,} of "
        f"{run.measures.all.jobs:,} jobs had ended: it is not compared"
        for run in runs
        if run.label not in shown
    ]


INTERRUPTED = "interrupted"
COUNTS = ("ended", "refused", "unfinished")
"""Measures that mean the same for a run that was cut."""


def _without_cut(row: Row, runs: Sequence[Played]) -> Row:
    if row.key in COUNTS:
        return row
    pairs = zip(row.values, runs, strict=True)
    return row._replace(values=tuple(None if run.cut else value for value, run in pairs))


def _common_rows(runs: Sequence[Played]) -> list[Row]:
    """Return the completion times of the jobs that ended in every run.

    Nothing of runs with several seeds: their traces may have other jobs.
    """
    if len({run.measures.seed for run in runs}) > 1:
        return []
    ended = [
        times
        for times in zip(*(run.completion_s for run in runs), strict=False)
        if None not in times
    ]
    if not ended:
        return []
    means = tuple(
        statistics.fmean(one for one in times if one is not None)
        for times in zip(*ended, strict=True)
    )
    title = f"JCT, mean of the {len(ended):,} jobs that ended in every run"
    return [Row("jct_common_mean_s", title, means, seconds_exactly, "")]


def rows(measures: Sequence[Measures]) -> list[Row]:
    """Return the measures of runs as wholes, without those that say nothing in any."""
    found = group_rows([each.all for each in measures])
    over_all = [
        Row(each.key, each.title, tuple(each.get(m) for m in measures), each.text, each.source)
        for each in ALL
    ]
    place = next((at for at, row in enumerate(found) if row.key == "effectiveness"), len(found))
    return [*found[:place], *(row for row in over_all if _says(row)), *found[place:]]


def group_rows(groups: Sequence[Group]) -> list[Row]:
    """Return the measures of one group of jobs in every run."""
    made = (
        Row(each.key, each.title, tuple(each.get(g) for g in groups), each.text, each.source)
        for each in GROUP
    )
    return [row for row in made if _says(row) or row.key in ALWAYS]


def _says(row: Row) -> bool:
    return any(row.values)


def sweep(runs: Sequence[Played], labels: Sequence[str]) -> tuple[Swept, ...]:
    """Return the spread of every measure over the seeds of each kind of run.

    Args:
        runs: The runs; those that were cut are left out.
        labels: The kinds: what runs are called without their seeds.
    """
    found = []
    for label in labels:
        mine = [run for run in runs if base(run.label) == label and not run.cut]
        if not mine:
            continue
        spreads = {
            row.key: spread([value for value in row.values if value is not None])
            for row in rows([run.measures for run in mine])
            if None not in row.values
        }
        found.append(Swept(label, tuple(run.seed for run in mine), spreads))
    return tuple(found)


def against(runs: Sequence[Played], labels: Sequence[str]) -> tuple[Against, ...]:
    """Return how each kind of run differs from the first one over the seeds that both have.

    Args:
        runs: The runs; those that were cut are left out, with their partners.
        labels: The kinds, without their seeds.
    """
    by_kind = {
        label: {run.seed: run for run in runs if base(run.label) == label and not run.cut}
        for label in labels
    }
    first, *others = labels
    found = []
    for label in others:
        seeds = tuple(seed for seed in by_kind[first] if seed in by_kind[label])
        if not seeds:
            continue
        whole = [by_kind[first][seed] for seed in seeds] + [by_kind[label][seed] for seed in seeds]
        count = len(seeds)
        differences = {
            row.key: paired(told[:count], told[count:])
            for row in rows([run.measures for run in whole])
            if len(told := [value for value in row.values if value is not None]) == 2 * count
        }
        found.append(Against(label, first, seeds, differences))
    return tuple(found)


PAIRED = (
    "jct_mean_s",
    "jct_median_s",
    "jct_p99_s",
    "queue_mean_s",
    "queue_p99_s",
    "makespan_s",
    "allocated",
    "effectiveness",
    "rho_p99",
    "preempted",
    "suspended",
)
"""Measures whose differences are read by people; `results.json` has all of them."""
INTERVALS = "mean [95 % of bootstrap resamples] (part of the base); under 5 pairs no interval"
"""What `paired_text` tells."""


def paired_text(row: Row, found: Paired | None) -> str:
    """Return a difference as people see it: the mean, its interval, and the part of the base.

    Args:
        row: The measure.
        found: The difference; None: there is none.
    """
    if found is None:
        return "-"
    if not found.mean and not found.low and not found.high:
        return "="
    text = signed(row, found.mean)
    if found.low is not None and found.high is not None:
        text += f" [{signed(row, found.low)}, {signed(row, found.high)}]"
    if found.base and row.text is not part_text:
        text += f" ({found.mean / found.base:+.1%})"
    return text


def signed(row: Row, value: float) -> str:
    """Return a difference in the unit of a measure, with its sign."""
    sign = "+" if value > 0 else "-" if value < 0 else ""
    few = row.text is count_text and value % 1
    text = ratio_text(abs(value)) if few else row.text(abs(value))
    return f"{sign}{text.replace(' %', ' points')}"


def spread(values: Sequence[float]) -> Spread:
    """Return mean, standard deviation of the sample, least and most of some numbers.

    Args:
        values: The numbers, one at least; the deviation of one is 0.
    """
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), deviation, min(values), max(values))


SEED_MARK = " · seed "


def with_seed(label: str, seed: int) -> str:
    """Return the name of one of several runs that differ by their seeds."""
    return f"{label}{SEED_MARK}{seed}"


def base(label: str) -> str:
    """Return what such runs have in common."""
    return label.rpartition(SEED_MARK)[0] or label


def told_problems(trace: Trace, most: int) -> list[str]:
    """Return the first of a trace's problems in words, and how many there are besides.

    Args:
        trace: The trace.
        most: How many are told in words.
    """
    lines = [problem_text(each) for each in trace.problems[:most]]
    left = len(trace.problems) - most
    return [*lines, f"and {left:,} more"] if left > 0 else lines


def problem_text(problem: RowProblem) -> str:
    """Return what is wrong with a row, where, and what to do."""
    where = f"row {problem.row}" if problem.row else "the whole"
    column = f", {problem.column}" if problem.column else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    return f"{where}{column}: {problem.text}{hint}"
