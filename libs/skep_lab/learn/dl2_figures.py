"""DL²'s figures and Table 2: the paper's numbers beside those of runs here, as text and as curves.

`lines` takes what `dl2_main` stored, one result for each training seed, and what the baselines
reached on the same held-out episodes (`ruled`). Figures 13 and 14, the cost of scaling, are no
matter of learning: they are measured with real parameter servers (`tests/e2e/test_ps_resize.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from skep_lab.fast_env import dl2_rules
from skep_lab.learn import dl2_protocol, dl2_runs
from skep_lab.learn.dl2_protocol import HELD_OUT, World
from skep_lab.measures.paired import RESAMPLES, Paired, paired

Ruled = Mapping[str, Mapping[str, list[list[float]]]]
"""Scores by rule, by `large`, `small` and the conditions of `dl2_runs`."""
Result = Mapping[str, Any]
"""What `dl2_main` stored of a seed: by run, `points` and `scores`."""
Curves = dict[str, list[tuple[float, float]]]

COMPARED = ("drf", "optimus", "look-ahead")
"""Rules under other conditions."""
WAYS = ("sampled", "likeliest")
ERRORS = (0.05, 0.1, 0.3)
"""Of the speeds that Optimus and look-ahead believe."""
SIZES = {"large": "500 servers, 200 jobs", "small": "24 servers, 60 jobs"}


def completions(scores: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean completion time of each episode."""
    return [row[0] for row in scores]


def seeds_of(results: Sequence[Result], run: str, way: str) -> list[list[list[float]]]:
    """Return the scores of a run by seed, of the seeds that reached it."""
    found = [each[run]["scores"] for each in results if run in each]
    return [scores[way] for scores in found if way in scores]


def learned(results: Sequence[Result], run: str, way: str) -> list[float]:
    """Return the mean completion time of a run for each seed."""
    return [fmean(completions(scores)) for scores in seeds_of(results, run, way)]


def spread(values: Sequence[float]) -> str:
    """Return mean, standard deviation and range over seeds, as text."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.2f} (one seed)"
    deviation = stdev(values)
    return f"{fmean(values):.2f} ± {deviation:.2f} ({min(values):.2f} to {max(values):.2f})"


def rules(world: World) -> dict[str, list[list[float]]]:
    """Return the scores of every rule on the held-out episodes; wrong beliefs, of five seeds."""
    found = {name: dl2_runs.ruled(name, world, HELD_OUT) for name in dl2_rules.NAMES}
    for name in ("optimus", "look-ahead"):
        for error in ERRORS:
            tables = [dl2_rules.misestimated(world.speed, error, seed) for seed in range(5)]
            played = [dl2_runs.ruled(name, world, HELD_OUT, table) for table in tables]
            found[f"{name}, speeds wrong by {error:.0%}"] = np.mean(played, axis=0).tolist()
    table = dl2_protocol.fitted(world.speed)
    found["optimus, its form fitted"] = dl2_runs.ruled("optimus", world, HELD_OUT, table)
    return found


def ruled(worlds: Mapping[str, World]) -> Ruled:
    """Return the scores of all rules everywhere: some minutes."""
    found = {size: rules(world) for size, world in worlds.items()}
    for condition in dl2_runs.CONDITIONS:
        there = dl2_runs.under(worlds["small"], condition)
        found[condition] = {name: dl2_runs.ruled(name, there, HELD_OUT) for name in COMPARED}
    return found


def ruled_once(file: Path, worlds: Mapping[str, World]) -> Ruled:
    """Return what `ruled` does, from a file if it has that of these settings; else it is written.

    Args:
        file: Scores, and a digest of the settings that they are of.
        worlds: By `large` and `small`.
    """
    digest = digest_of(worlds)
    if file.exists():
        kept = json.loads(file.read_text())
        if isinstance(kept, dict) and kept.get("digest") == digest:
            known: Ruled = kept["scores"]
            return known
    scores = ruled(worlds)
    file.write_text(json.dumps({"digest": digest, "scores": scores}))
    return scores


def digest_of(worlds: Mapping[str, World]) -> str:
    """Return what changes with all that the scores of rules depend on, but the rules themselves."""
    made = hashlib.sha256(
        repr((HELD_OUT, dl2_runs.CONDITIONS, dl2_rules.NAMES, COMPARED, ERRORS)).encode()
    )
    for name, world in sorted(worlds.items()):
        made.update(repr((name, world.options, world.speed.shape)).encode())
        made.update(np.ascontiguousarray(world.speed).tobytes())
    return made.hexdigest()


def gain(
    before: Sequence[Sequence[Sequence[float]]], after: Sequence[Sequence[Sequence[float]]]
) -> Paired:
    """Return how much longer jobs take than before, with an interval over seeds and episodes.

    Each resample draws seeds of both, apart from each other, and episodes, the same ones for both
    (percentile bootstrap, 95 %). Of one seed it is an interval over episodes alone.

    Args:
        before: Scores by seed; those of a rule are a single one.
        after: The others, on the same episodes.
    """
    early, late = (np.array([completions(each) for each in rows]) for rows in (before, after))
    rng, found = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        episodes = rng.integers(early.shape[1], size=early.shape[1])
        drawn = [
            rows[rng.integers(len(rows), size=len(rows))][:, episodes].mean()
            for rows in (early, late)
        ]
        found.append(drawn[1] - drawn[0])
    low, high = np.quantile(found, (0.025, 0.975))
    base = float(early.mean())
    return Paired(float(late.mean()) - base, float(low), float(high), early.shape[1], base)


def interval(found: Paired) -> str:
    """Return a difference in percent, with its interval if there is one."""
    low, high = (None if each is None else each / found.base for each in (found.low, found.high))
    if low is None or high is None:
        return f"{found.mean / found.base:+.1%}"
    return f"{found.mean / found.base:+.1%} ({low:+.1%} to {high:+.1%})"


def comparison(
    results: Sequence[Result], size: str, known: Mapping[str, list[list[float]]]
) -> Iterator[str]:
    """Yield Figure 9's table of a setting: rules and learners, with intervals against DRF."""
    yield f"| {SIZES[size]} | JCT (slots) | against DRF | makespan (slots) | GPUs given |"
    yield "| --- | --- | --- | --- | --- |"
    for name, scores in known.items():
        row = np.mean(scores, axis=0)
        told = interval(paired(completions(known["drf"]), completions(scores)))
        yield f"| {name} | {row[0]:.2f} | {told} | {row[1]:.1f} | {row[2]:.1%} |"
    for run in dl2_runs.RUNS:
        if run != size and not run.startswith(f"{size}-"):
            continue
        for way in WAYS:
            if by_seed := seeds_of(results, run, way):
                row = np.mean(by_seed, axis=(0, 1))
                told = interval(gain([known["drf"]], by_seed))
                ours = spread(learned(results, run, way))
                yield (
                    f"| learned: {run}, {way} | {ours}, seeds: {len(by_seed)} "
                    f"| {told} | {row[1]:.1f} | {row[2]:.1%} |"
                )


TABLE_2 = (
    ("small-shaped", "5.724 ± 0.844", 0.0),
    ("small-shaped-no-bundle", "7.734 ± 0.339", 35.1),
    ("small-shaped-no-critic", "6.929 ± 0.477", 21.1),
    ("small-shaped-no-exploration", "7.372 ± 0.548", 28.8),
    ("small-shaped-no-replay", "7.988 ± 0.102", 39.6),
)
"""Runs, and the paper's completion times and slowdowns in percent."""


def ablations(results: Sequence[Result]) -> Iterator[str]:
    """Yield Table 2: what training without a technique costs; sampled actions."""
    yield "| run | paper: JCT | paper: slower by | JCT here | slower by |"
    yield "| --- | --- | --- | --- | --- |"
    whole = seeds_of(results, "small-shaped", "sampled")
    for run, told, slower in TABLE_2:
        if by_seed := seeds_of(results, run, "sampled"):
            ours = spread(learned(results, run, "sampled"))
            found = interval(gain(whole, by_seed)) if whole and run != "small-shaped" else ""
            yield f"| {run} | {told} | {slower} % | {ours} | {found} |"


def conditions(results: Sequence[Result], known: Ruled) -> Iterator[str]:
    """Yield Figures 12, 15 and 16: the small setting's policies under other conditions."""
    runs = [run for run in ("small", "small-shaped") if seeds_of(results, run, "poisson")]
    yield f"| condition | {' | '.join([*COMPARED, *runs])} |"
    yield "| --- " * (1 + len(COMPARED) + len(runs)) + "|"
    for condition in ("as trained", *dl2_runs.CONDITIONS):
        there, way = ("small", "sampled") if condition == "as trained" else (condition,) * 2
        cells = [f"{fmean(completions(known[there][name])):.2f}" for name in COMPARED]
        cells += [spread(learned(results, run, way)) for run in runs]
        yield f"| {condition.replace('told', 'epochs')} | {' | '.join(cells)} |"


FEDERATED = ("small-shaped", "small-shaped-two-clusters", "small-shaped-four-clusters")


def federated(results: Sequence[Result]) -> Iterator[str]:
    """Yield federated training: completion on the tuning episodes by what each cluster trained."""
    yield "| clusters | steps of each | completion at each sixth of them (slots) | held-out |"
    yield "| --- | --- | --- | --- |"
    for run, points in curves(results, FEDERATED, "sampled").items():
        clusters = dl2_runs.RUNS[run].settings.clusters
        shown = ", ".join(f"{value:.2f}" for _, value in points)
        ours = spread(learned(results, run, "sampled"))
        yield f"| {clusters} | {points[-1][0]:.0f} | {shown} | {ours} |"


def lines(results: Sequence[Result], known: Ruled) -> Iterator[str]:
    """Yield all tables as Markdown."""
    for size, told in SIZES.items():
        yield from ["", f"### Figure 9: {told}", ""]
        yield from comparison(results, size, known[size])
    yield from ["", "### Table 2", ""]
    yield from ablations(results)
    yield from ["", "### Federated training", ""]
    yield from federated(results)
    yield from ["", "### Figures 12, 15 and 16", ""]
    yield from conditions(results, known)


def curves(results: Sequence[Result], runs: Sequence[str], way: str) -> Curves:
    """Return the completion time over steps of runs, the means over seeds: Figures 10 and 17.

    A point comes with the first step that is due, which differs a little between seeds.
    """
    found: Curves = {}
    for run in runs:
        by_point: dict[int, list[tuple[float, float]]] = {}
        for each in results:
            for at, (step, values) in enumerate(each.get(run, {}).get("points", [])):
                by_point.setdefault(at, []).append((float(step), values[way]))
        if by_point:
            found[run] = [
                (fmean(step for step, _ in each), fmean(value for _, value in each))
                for _, each in sorted(by_point.items())
            ]
    return found


def sizes(results: Sequence[Result], run: str) -> Curves:
    """Return workers and servers of a Seq2Seq job over time, of the first seed: Figure 11."""
    for each in results:
        rows = each.get(run, {}).get("scores", {}).get("sizes", [])
        if rows:
            return {
                name: [(float(slot), float(row[at])) for slot, row in enumerate(rows)]
                for at, name in enumerate(("workers", "servers"))
            }
    return {}
