"""SCHED²'s figures 7 to 10 and Table III: trained networks beside the baselines, and the paper.

Starts and ends of jobs come from the fast environment, which starts the same jobs at the same
times as the production simulator: the table of figure 9 says of how many. Which GPUs jobs had, and
so fragmentation and reuse of locality, comes from the production simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from skep.policy.api import Policy
from skep_lab.fast_env import sched2_rules
from skep_lab.fast_env.arrays import JOB, Floats, Ints
from skep_lab.fast_env.sched2 import Batch, Options
from skep_lab.fast_env.sched2_rules import NAMES, Played, Rule
from skep_lab.learn import sched2_play, sched2_policy
from skep_lab.learn.progress import Tensors
from skep_lab.learn.sched2_protocol import (
    FEW,
    INTERVALS_S,
    JUDGED,
    READINGS,
    REALISTIC,
    RULES,
    SENSITIVE,
    SINGLE,
    Reading,
    Setting,
    settings,
)
from skep_lab.measures.paired import Paired, paired
from skep_lab.outcome import RunResult
from skep_lab.simulator.build import ALL
from skep_lab.simulator.run import run
from skep_lab.simulator.settings import Settings

PAPER_TIMES = {0.6: ("", "", "1.64"), 0.68: ("4.6", "2.1", "1.6"), 0.75: ("", "", "1.09")}
"""By how many times it is better than the best baseline: completion time, makespan, effectiveness
(section IV-B); the rest is in figure 7 only, which has no numbers."""
PAPER_RULES = ("fifo", "sif", "dsif", "saf", "lrf", "spf")
IN_PRODUCTION = 2
"""Traces that are played in the production simulator."""
EVERY_S = 3600.0
"""How often fragmentation is looked at."""
SLOWER = 1.001
"""A job that runs for so much longer than its ideal time was on more nodes than necessary."""
SAME_S = 1e-6
"""Starts in both simulators are the same if they differ by less: rounding is a nanosecond."""
NAME = "SCHED²"
KINDS = ("sensitive", "insensitive")


class Table(NamedTuple):
    """One of the report's tables; every cell is text."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Chart(NamedTuple):
    """Lines to be drawn: by name, points of x and y."""

    name: str
    title: str
    x_title: str
    y_title: str
    lines: dict[str, list[tuple[float, float]]]


class Report(NamedTuple):
    """Tables and charts of a judgement."""

    tables: list[Table]
    charts: list[Chart]


class Measures(NamedTuple):
    """Of each trace: seconds, and parts from 0 to 1."""

    jct: Floats
    makespan: Floats
    effectiveness: Floats
    waiting: Floats
    running: Floats


def measures(played: Played) -> Measures:
    """Return the measures of each trace."""
    took = played.ended - played.at
    return Measures(
        jct=took.mean(1),
        makespan=played.ended.max(1),
        effectiveness=(played.run / took).mean(1),
        waiting=(played.first - played.at).mean(1),
        running=(played.ended - played.first).mean(1),
    )


def localities(played: Played, options: Options) -> dict[str, tuple[float, float]]:
    """Return by sensitivity the part of the larger jobs with relaxed locality, and their waiting.

    Args:
        played: What became of jobs.
        options: The setting, for the slowdowns of models.
    """
    slow = np.array(options.slowdown)[played.model] > SENSITIVE
    large, found = played.gpus > 1, {}
    for name, kind in (("sensitive", slow), ("insensitive", ~slow)):
        these = large & kind
        relaxed = (played.ended - played.first > SLOWER * played.run)[these]
        found[name] = float(relaxed.mean()), float((played.first - played.at)[these].mean())
    return found


# --- fragmentation and reuse ---------------------------------------------------------------------


def fragmentation(result: RunResult, until_s: float) -> list[tuple[float, float]]:
    """Return the mean of equation 1 over nodes, every hour, in hours.

    A free GPU has 0 left to run; a node without jobs is not fragmented.

    Args:
        result: A run in which every job ended.
        until_s: To when, in seconds.
    """
    spans = [span for job in result.jobs for span in job.spans]
    nodes = {name: place for place, name in enumerate(result.nodes)}
    size, points = result.node_gpus, []
    for hour in range(int(until_s / EVERY_S) + 1):
        now = hour * EVERY_S * 1e9
        left, squares = np.zeros(len(nodes)), np.zeros(len(nodes))
        for span in spans:
            if span.began <= now < span.ended:
                rest = (span.ended - now) / 1e9
                for node, gpus in zip(span.nodes, span.spread, strict=True):
                    left[nodes[node]] += gpus * rest
                    squares[nodes[node]] += gpus * rest * rest
        each = np.where(squares > 0, 1.0 - left**2 / np.maximum(size * squares, 1e-9), 0.0)
        points.append((float(hour), float(each.mean())))
    return points


class _Node:
    """The free GPUs of a node: blocks that larger jobs left whole, and loose ones."""

    def __init__(self, gpus: int) -> None:
        self.loose, self.blocks = gpus, list[int]()

    def take(self, gpus: int, *, whole: bool) -> bool:
        """Take GPUs; return whether they were one block. `whole`: the job has several, all here."""
        fits = sorted(each for each in self.blocks if each >= gpus)
        if whole and fits:
            self.blocks.remove(fits[0])
            self.loose += fits[0] - gpus
            return True
        while self.loose < gpus and self.blocks:
            self.loose += self.blocks.pop(self.blocks.index(min(self.blocks)))
        self.loose -= gpus
        return False


def reuse(result: RunResult) -> float:
    """Return the part of the jobs with several GPUs that have reused locality (`sched2_protocol`).

    One that needs several nodes counts if it is on as few as possible and has a block on each.
    """
    nodes = {name: _Node(gpus) for name, gpus in result.nodes.items()}
    events = []
    for number, job in enumerate(result.jobs):
        for span in job.spans:
            events += [(span.began, 1, number, span), (span.ended, 0, number, span)]
    large, reused = 0, 0
    for _, begins, number, span in sorted(events, key=lambda event: event[:3]):
        several = result.jobs[number].job.gpus > 1
        fewest = len(span.nodes) == -(-span.gpus // result.node_gpus)
        blocks = 0
        for node, gpus in zip(span.nodes, span.spread, strict=True):
            there = nodes[node]
            if begins:
                blocks += there.take(gpus, whole=several and fewest)
            elif several and gpus > 1:
                there.blocks.append(gpus)
            else:
                there.loose += gpus
        large += begins and several
        reused += begins and several and fewest and blocks == len(span.nodes)
    return reused / max(large, 1)


# --- runs ----------------------------------------------------------------------------------------


def in_production(policy: Policy, jobs: Ints, options: Options) -> RunResult:
    """Return what becomes of an episode's jobs in the production simulator.

    Args:
        policy: A network (`sched2_policy`) or a rule (`rule_policy`).
        jobs: [J, JOB] of one episode.
        options: The setting.
    """
    cluster, table = sched2_policy.cluster_of(options), sched2_policy.table_of(options)
    trace = sched2_policy.trace_of(jobs, "sched2")
    return run(trace, cluster, Settings(), table, policies={ALL: policy})


class _Judged(NamedTuple):
    """One setting: every rule in every reading, and every network."""

    rules: dict[tuple[str, Reading], Played]
    models: dict[str, Played]

    def best(self, reading: Reading) -> str:
        """Return the paper's rule with the shortest mean completion time in a reading."""
        return min(PAPER_RULES, key=lambda name: _jct(self.rules[name, reading]))


def _jct(played: Played) -> float:
    return float((played.ended - played.at).mean())


Rules = dict[str, Played]
"""By setting, rule and reading."""


def play_rules(traces: int = len(JUDGED)) -> Rules:
    """Return what becomes of jobs under every rule in every reading, in all settings.

    Args:
        traces: How many of the traces are played, the first ones.
    """
    return {
        _key(setting, name, reading): sched2_rules.play(
            _rule(name, reading), np.array(each.seeds), each.options
        )
        for setting, each in settings(traces).items()
        for name in RULES
        for reading in READINGS
    }


def _rule(name: str, reading: Reading) -> Rule:
    skips = reading.skips or name in ("random", "hold")
    return NAMES[name]._replace(window=reading.window, skips=skips)


def _key(setting: str, name: str, reading: Reading) -> str:
    return f"{setting}|{name}|{reading.name}"


def figures(
    models: Mapping[str, Tensors],
    traces: int = len(JUDGED),
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Judge networks beside all baselines.

    Args:
        models: By name, weights of networks that were trained with equal settings.
        traces: How many of the traces are played, the first ones.
        progress: Is told what has been done.
    """
    played = dict[str, dict[str, Played]]()
    for name, weights in models.items():
        played[name] = sched2_play.judge(sched2_play.greedy(REALISTIC, weights), traces)
        progress(name)
    return report(models, played, play_rules(traces), traces, progress)


def report(
    models: Mapping[str, Tensors],
    played: Mapping[str, Mapping[str, Played]],
    rules: Rules,
    traces: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Return the figures of what has been played; a few traces are played in production.

    Args:
        models: By name, weights of networks.
        played: What became of jobs, by network and setting.
        rules: The same under the rules, from `play_rules`.
        traces: How many of the traces have been played.
        progress: Is told what has been done.
    """
    judged = {
        setting: _Judged(
            {
                (name, reading): rules[_key(setting, name, reading)]
                for name in RULES
                for reading in READINGS
            },
            {name: each[setting] for name, each in played.items()},
        )
        for setting in settings(traces)
    }
    real = judged[f"single {SINGLE[1]}"]
    tables = [_figure_7(judged[f"single {part}"], part) for part in SINGLE]
    tables += [_against(real), _all_rules(real), _figure_10(real), _table_3(real)]
    table_8, chart_8 = _figure_8(judged)
    table_9, chart_9 = _figure_9(models, real, settings(traces), progress)
    return Report([*tables, table_8, table_9], [chart_8, chart_9])


def _over_models(values: Iterable[float], digits: int = 0) -> str:
    """Return mean, deviation and range over training seeds."""
    each = list(values)
    if not each:
        return "-"
    if len(each) == 1:
        return f"{each[0]:,.{digits}f}"
    spread = stdev(each)
    return (
        f"{fmean(each):,.{digits}f} ± {spread:,.{digits}f}"
        f" ({min(each):,.{digits}f} to {max(each):,.{digits}f})"
    )


def _cells(played: Sequence[Played]) -> tuple[str, ...]:
    found = [measures(each) for each in played]
    return (
        _over_models(each.jct.mean() for each in found),
        _over_models(each.makespan.mean() for each in found),
        _over_models((each.effectiveness.mean() for each in found), 3),
    )


def _single(played: Played) -> tuple[str, ...]:
    found = measures(played)
    return (
        f"{found.jct.mean():,.0f}",
        f"{found.makespan.mean():,.0f}",
        f"{found.effectiveness.mean():.3f}",
    )


def _figure_7(judged: _Judged, single: float) -> Table:
    """Return the measures, and by how much SCHED² is better than the best rule of each reading."""
    rows: list[tuple[str, ...]] = [
        ("the paper: SCHED² against its best baseline", "", "", "", *PAPER_TIMES[single]),
        (NAME, *_cells(list(judged.models.values())), "", "", ""),
    ]
    for reading in READINGS:
        best = judged.best(reading)
        base = judged.rules[best, reading]
        rows.append((f"{best}, {reading.name}", *_single(base), *_ratios(judged, base)))
    hold = judged.rules["hold", READINGS[1]]
    rows.append(("hold, first 10", *_single(hold), *_ratios(judged, hold)))
    return Table(
        f"Figure 7: {single:.0%} of the jobs have one GPU",
        (
            "",
            "JCT (s)",
            "Makespan (s)",
            "Effectiveness",
            "JCT, times",
            "Makespan, times",
            "EE, times",
        ),
        rows,
    )


def _ratios(judged: _Judged, base: Played) -> tuple[str, ...]:
    """Return by how many times the networks are better than a rule: their mean over seeds."""
    if not judged.models:
        return ("-", "-", "-")
    ours, theirs = [measures(each) for each in judged.models.values()], measures(base)
    return (
        f"{fmean(theirs.jct.mean() / each.jct.mean() for each in ours):.2f}",
        f"{fmean(theirs.makespan.mean() / each.makespan.mean() for each in ours):.2f}",
        f"{fmean(each.effectiveness.mean() / theirs.effectiveness.mean() for each in ours):.2f}",
    )


def _against(judged: _Judged) -> Table:
    """Return paired differences of mean completion time, for each network."""
    rows = []
    bases = [(judged.best(reading), reading) for reading in READINGS] + [("hold", READINGS[1])]
    for name, reading in bases:
        base = measures(judged.rules[name, reading]).jct.tolist()
        for model, played in judged.models.items():
            found = paired(base, measures(played).jct.tolist())
            rows.append((f"{name}, {reading.name}", model, _interval(found)))
    return Table(
        "Differences of mean completion time, paired by trace (s); below 0: SCHED² is better",
        ("Baseline", "Network", "Difference (95 %)"),
        rows,
    )


def _interval(found: Paired) -> str:
    if found.low is None or found.high is None:
        return f"{found.mean:,.0f}"
    sure = "" if found.sure else ", not sure"
    return f"{found.mean:,.0f} ({found.low:,.0f} to {found.high:,.0f}){sure}"


def _all_rules(judged: _Judged) -> Table:
    rows = [
        (name, reading.name, *_single(judged.rules[name, reading]))
        for name in RULES
        for reading in READINGS
        if reading.skips or name not in ("random", "hold")
    ]
    heads = ("Rule", "Reading", "JCT (s)", "Makespan (s)", "Effectiveness")
    return Table("All baselines, 68 % with one GPU", heads, rows)


def _figure_10(judged: _Judged) -> Table:
    ours = [measures(each) for each in judged.models.values()]
    rows = [
        ("the paper: SCHED²", "5,422", "557"),
        ("the paper: its best baseline", "8,427", "19,075"),
        (
            NAME,
            _over_models(each.running.mean() for each in ours),
            _over_models(each.waiting.mean() for each in ours),
        ),
    ]
    bases = [(judged.best(reading), reading) for reading in READINGS]
    for name, reading in [*bases, ("hold", READINGS[1])]:
        found = measures(judged.rules[name, reading])
        rows.append(
            (
                f"{name}, {reading.name}",
                f"{found.running.mean():,.0f}",
                f"{found.waiting.mean():,.0f}",
            )
        )
    return Table("Figure 10", ("", "Running (s)", "Waiting (s)"), rows)


def _table_3(judged: _Judged) -> Table:
    found = [localities(each, REALISTIC) for each in judged.models.values()]
    rows = [
        ("the paper", "15.4 %", "32.5 %", "1,466", "741"),
        (
            NAME,
            *(_over_models((100 * each[kind][0] for each in found), 1) + " %" for kind in KINDS),
            *(_over_models(each[kind][1] for each in found) for kind in KINDS),
        ),
    ]
    for name, reading in ((judged.best(READINGS[0]), READINGS[0]), ("hold", READINGS[1])):
        theirs = localities(judged.rules[name, reading], REALISTIC)
        rows.append(
            (
                f"{name}, {reading.name}",
                *(f"{100 * theirs[kind][0]:.1f} %" for kind in KINDS),
                *(f"{theirs[kind][1]:,.0f}" for kind in KINDS),
            )
        )
    heads = (
        "",
        "Relaxed, sensitive",
        "Relaxed, insensitive",
        "Waiting (s)",
        "Waiting, insens. (s)",
    )
    return Table("Table III: jobs with more than one GPU", heads, rows)


def _figure_8(judged: Mapping[str, _Judged]) -> tuple[Table, Chart]:
    """Return execution effectiveness by mean interval."""
    rows, lines = [], dict[str, list[tuple[float, float]]]()
    for interval_s in INTERVALS_S:
        here = judged[f"interval {interval_s:.0f}"]
        values = {
            NAME: [float(measures(each).effectiveness.mean()) for each in here.models.values()]
        }
        for reading in (READINGS[0], READINGS[3]):
            best = here.rules[here.best(reading), reading]
            values[f"best rule, {reading.name}"] = [float(measures(best).effectiveness.mean())]
        held = here.rules["hold", READINGS[1]]
        values["hold, first 10"] = [float(measures(held).effectiveness.mean())]
        for name, each in values.items():
            if each:
                lines.setdefault(name, []).append((interval_s, fmean(each)))
        rows.append((f"{interval_s:.0f}", *(_over_models(each, 3) for each in values.values())))
    heads = ("Interval (s)", NAME, *(name for name in lines if name != NAME))
    title = f"Figure 8: effectiveness by mean interval, {FEW} traces each"
    chart = Chart(
        "sched2-fig8",
        "Execution effectiveness by mean interval",
        "mean interval",
        "effectiveness",
        lines,
    )
    return Table(title, heads, rows), chart


def _figure_9(
    models: Mapping[str, Tensors],
    judged: _Judged,
    known: Mapping[str, Setting],
    progress: Callable[[str], None],
) -> tuple[Table, Chart]:
    """Return fragmentation over time and reuse of locality, and whether both simulators agree."""
    seeds = np.array(known[f"single {SINGLE[1]}"].seeds[:IN_PRODUCTION])
    jobs = sched2_rules.jobs_of(Batch(len(seeds), REALISTIC), seeds)
    until_s = float(jobs[:, :, JOB.at].max() / 1e9)
    policies: dict[str, tuple[Policy, Played]] = {}
    shown = [(name, reading) for reading in (READINGS[0], READINGS[3]) for name in PAPER_RULES]
    for name, reading in [*shown, ("hold", READINGS[1])]:
        policies[f"{name}, {reading.name}"] = (
            sched2_policy.rule_policy(REALISTIC, _rule(name, reading)),
            judged.rules[name, reading],
        )
    for name, weights in models.items():
        act = sched2_play.greedy(REALISTIC, weights)
        policies[f"{NAME}, {name}"] = (
            sched2_policy.sched2_policy(REALISTIC, act),
            judged.models[name],
        )
    rows, lines = [], dict[str, list[tuple[float, float]]]()
    for name, (policy, played) in policies.items():
        results = [in_production(policy, each, REALISTIC) for each in jobs]
        points = [fragmentation(each, until_s) for each in results]
        mean = [(each[0][0], fmean(y for _, y in each)) for each in zip(*points, strict=True)]
        lines[name] = mean
        rows.append(
            (
                name,
                f"{100 * fmean(reuse(each) for each in results):.1f} %",
                f"{fmean(y for _, y in mean):.3f}",
                f"{100 * _same(played, results):.2f} %",
            )
        )
        progress(f"figure 9, {name}")
    heads = ("", "Reused locality", "Mean fragmentation", "Starts as in the fast environment")
    title = f"Figure 9 and reuse, in the production simulator, {len(seeds)} traces"
    chart = Chart("sched2-fig9", "Mean fragmentation of nodes", "hours", "fragmentation", lines)
    return Table(title, heads, rows), chart


def _same(played: Played, results: Sequence[RunResult]) -> float:
    """Return which part of the jobs started at the same time in both simulators."""
    began = np.array([[job.began or 0 for job in each.jobs] for each in results]) / 1e9
    return float((np.abs(began - played.first[: len(results)]) < SAME_S).mean())


def markdown(report: Report) -> str:
    """Return the tables of a report."""
    parts = []
    for each in report.tables:
        head = f"| {' | '.join(each.heads)} |\n|{'---|' * len(each.heads)}"
        body = "\n".join(f"| {' | '.join(row)} |" for row in each.rows)
        parts.append(f"### {each.title}\n\n{head}\n{body}\n")
    return "\n".join(parts)
