"""A report as one HTML file: no script, nothing loaded from anywhere, for light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import islice

from skep_lab.measures.summary import Group
from skep_services.simulations import plots
from skep_services.simulations.order import Played
from skep_services.simulations.report import (
    INTERVALS,
    PAIRED,
    Report,
    Row,
    Spread,
    base,
    group_rows,
    left_out,
    paired_text,
    problem_text,
    rows,
    run_rows,
    shown_runs,
)

PLOTTED_MAX = 12
"""Lines in a plot: no reader tells more apart."""
NAMED_MAX = 8
"""Runs in the title."""
TENANTS_MAX = 60
BARS_MAX = 2
"""Runs that are drawn as bars; more of them are marks, which need less room."""
PROBLEMS_MAX = 200

STYLE = """
:root { color-scheme: light dark; --text: #1d2327; --faint: #596069; --grid: #ddd; --back: #fff;
        --panel: #f6f7f8; --warn: #fff4d6; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8ea; --faint: #9aa3ab; --grid: #3a4046; --back: #15181b; --panel: #1e2226;
          --warn: #4a3b10; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back);
       max-width: 1460px; margin: 2rem auto; padding: 0 1.2rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p.about { color: var(--faint); margin-top: 0; }
p.warn { background: var(--warn); padding: .6rem .9rem; border-radius: 6px; }
ul.terms { margin: .3rem 0 1rem; padding-left: 1.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--grid);
         white-space: nowrap; }
thead th { white-space: normal; overflow-wrap: anywhere; min-width: 5.5em; max-width: 13em;
           vertical-align: bottom; color: var(--faint); }
tbody th { font-weight: 400; white-space: normal; min-width: 11em; }
th:first-child, td:first-child, td.words { text-align: left; }
tr.term > * { background: var(--panel); }
td.words { white-space: normal; overflow-wrap: anywhere; }
table.long td { white-space: normal; }
.plots { columns: 3 340px; column-gap: 1rem; }
.plots figure { margin: 0 0 1rem; background: var(--panel); border-radius: 8px; padding: .6rem;
                break-inside: avoid; }
.plots svg { display: block; width: 100%; max-width: 640px; height: auto; margin: auto; }
small { color: var(--faint); } details { margin-top: .6rem; } summary { cursor: pointer; }
@media (max-width: 600px) { body { margin: 1rem auto; padding: 0 .8rem; } }
""".strip()
CARDS = """
@media (max-width: WIDTH) {
  TABLE thead { display: none; }
  TABLE, TABLE tbody { display: block; }
  TABLE tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5em, 1fr));
             gap: 0 1.2rem; padding: .45rem .4rem; border-bottom: 1px solid var(--grid); }
  TABLE tr > * { padding: 0; border: 0; text-align: left; background: none; }
  TABLE tbody th { grid-column: 1 / -1; font-weight: 600; }
  TABLE td { white-space: normal; display: flex; flex-wrap: wrap; gap: 0 .5em;
             justify-content: flex-end; align-items: baseline; }
  TABLE td::before { content: attr(data-label); color: var(--faint); font-size: .85rem;
                     overflow-wrap: anywhere; margin-right: auto; }
  TABLE tr.term { background: var(--panel); }
  TABLE.long tr { grid-template-columns: repeat(auto-fill, minmax(17em, 1fr)); }
}
""".strip()
"""On a page that is narrower than a table, a row is a card, and each cell says what it is of."""
CELL_MAX = 26
"""Longer cells are broken into lines."""
MANY = 4
"""With more columns beside the first a table is as wide as a large screen."""
STYLE += "".join(
    "\n" + CARDS.replace("WIDTH", width).replace("TABLE", table)
    for width, table in (("600px", "table.few"), ("1150px", "table.many"))
)


def page(report: Report) -> str:
    """Return the report as HTML."""
    runs = shown_runs(report.runs)
    drawn = [run for run in runs if run.seed == runs[0].seed] if report.swept else runs
    figures = _figures(drawn)
    seed = f" of seed {runs[0].seed}" if report.swept and runs else ""
    parts = [
        _head(report),
        _terms(report),
        _measures(report, runs) if runs and not report.swept else "",
        _swept(report),
        _paired(report),
        f'<h2>Pictures{seed}</h2><div class="plots">{figures}</div>' if figures else "",
        _groups("Tenants", "Tenant", runs, lambda run: run.measures.by_vc),
        _groups("Sizes of jobs", "Size", runs, lambda run: run.measures.by_size),
        _each_run(report, runs) if report.swept else "",
        _audits(runs),
        _settings(report),
        _problems(report),
    ]
    title = escape(_title(report))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style></head><body>",
            *filter(None, parts),
            "</body></html>\n",
        ]
    )


def summary(report: Report) -> str:
    """Return the pictures of a report as one SVG."""
    runs = shown_runs(report.runs)
    drawn = [run for run in runs if run.seed == runs[0].seed]
    return plots.stacked(_title(report), pictures(drawn)[:4])


def _title(report: Report) -> str:
    names = list(dict.fromkeys(base(run.label) for run in shown_runs(report.runs)))
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{report.trace}: {', '.join(names[:NAMED_MAX])}{more}"


def _head(report: Report) -> str:
    parts = [
        f"<h1>{escape(_title(report))}</h1>",
        f'<p class="about">{report.jobs:,} jobs of {escape(report.trace)}; '
        f"{len(report.runs)} simulated runs by skep sim {escape(report.verb)}. "
        "Times are the trace's; means are over jobs that ended.</p>",
    ]
    if report.interrupted:
        left = f" Never begun: {', '.join(report.not_run)}." if report.not_run else ""
        parts.append(
            f'<p class="warn"><b>Interrupted.</b> Figures of runs that were cut are of '
            f"what had happened until then.{escape(left)}</p>"
        )
    parts += [
        f'<p class="warn">{escape(run.label)}: {escape(CUTS[run.cut])}; '
        f"{run.measures.all.unfinished:,} jobs were not finished and are in no mean.</p>"
        for run in shown_runs(report.runs)
        if run.cut
    ]
    parts += [f'<p class="warn">{escape(line)}.</p>' for line in left_out(report.runs)]
    parts += [f'<p class="warn">{escape(line)}.</p>' for line in report.remarks]
    parts += [
        f"<p><b>{escape(label)}</b>: {escape('; '.join(changes))}.</p>"
        for label, changes in report.changes.items()
    ]
    return "\n".join(parts)


CUTS = {
    "interrupted": "interrupted",
    "until": "ended at --until",
    "stuck": "ended while jobs waited for what never came",
}
"""Why a run ended before its trace did."""


def _terms(report: Report) -> str:
    if not report.terms.equal:
        return ""
    lines = "".join(f"<li>{escape(each)}</li>" for each in report.terms.equal)
    differ = (
        "What differs is in the head of the table."
        if report.terms.differ
        else "Nothing but the order of jobs differs."
    )
    return f"<p>In every run:</p><ul class='terms'>{lines}</ul><p>{differ}</p>"


Line = tuple[str, Sequence[str]]
"""The first cell of a row, as HTML, and the others, as text."""


def _grid(head: Sequence[str], lines: Sequence[Line], terms: Sequence[Line] = ()) -> str:
    """Return a table; on a narrow page each row is a card whose cells have the head's words.

    Args:
        head: The names of the columns.
        lines: The rows.
        terms: Rows above them that are told apart.
    """
    columns = "".join(f"<th>{escape(each)}</th>" for each in head)
    rows = [
        *(_line(head, line, ' class="term"') for line in terms),
        *(_line(head, line) for line in lines),
    ]
    body = "\n".join(rows)
    size = "many" if len(head) - 1 > MANY else "few"
    if any(len(cell) > CELL_MAX for _, cells in lines for cell in cells):
        size += " long"
    return (
        f'<div class="wide"><table class="{size}">\n<thead><tr>{columns}</tr></thead>\n'
        f"<tbody>{body}</tbody>\n</table></div>"
    )


def _line(head: Sequence[str], line: Line, more: str = "") -> str:
    first, others = line
    cells = "".join(
        f'<td data-label="{escape(name)}">{escape(cell)}</td>'
        for name, cell in zip(head[1:], others, strict=True)
    )
    return f"<tr{more}><th>{first}</th>{cells}</tr>"


def _row_title(row: Row) -> str:
    source = f" <small>{escape(row.source)}</small>" if row.source else ""
    return f"{escape(row.title)}{source}"


def _measures(report: Report, runs: Sequence[Played]) -> str:
    labels = [run.label for run in runs]
    head = report.terms.of([base(label) for label in labels])
    return _grid(
        ["Measure", *labels],
        [(_row_title(row), row.cells()) for row in run_rows(runs)],
        [(escape(term.title), term.values) for term in head],
    )


def _each_run(report: Report, runs: Sequence[Played]) -> str:
    if not runs:
        return ""
    return (
        f"<h2>Every run</h2><details><summary>measures</summary>{_measures(report, runs)}</details>"
    )


def _swept(report: Report) -> str:
    if not report.swept:
        return ""
    lines = [
        (_row_title(row), [_spread(row, each.spreads.get(row.key)) for each in report.swept])
        for row in rows([run.measures for run in report.runs])
    ]
    head = report.terms.of([each.label for each in report.swept])
    return (
        "<h2>Over the seeds</h2><p class='about'>mean ± standard deviation (least to most)</p>"
        + _grid(
            ["Measure", *(f"{each.label}, {len(each.seeds)} seeds" for each in report.swept)],
            lines,
            [(escape(term.title), term.values) for term in head],
        )
    )


def _spread(row: Row, told: Spread | None) -> str:
    if told is None:
        return "-"
    around = f"{row.text(told.mean)} ± {row.text(told.deviation)}"
    return f"{around} ({row.text(told.least)} to {row.text(told.most)})"


def _paired(report: Report) -> str:
    if not report.paired:
        return ""
    lines = [
        (
            _row_title(row),
            [paired_text(row, each.differences.get(row.key)) for each in report.paired],
        )
        for row in rows([run.measures for run in report.runs])
        if row.key in PAIRED
    ]
    return (
        f"<h2>Differences from {escape(report.paired[0].base)}, seed by seed</h2>"
        f"<p class='about'>{escape(INTERVALS)}</p>"
        + _grid(
            ["Measure", *(f"{each.label}, {len(each.seeds)} pairs" for each in report.paired)],
            lines,
        )
    )


# --- pictures -------------------------------------------------------------------------------------


def _figures(runs: Sequence[Played]) -> str:
    return "".join(f"<figure>{each}</figure>" for each in pictures(runs))


def pictures(runs: Sequence[Played]) -> list[str]:
    """Return every plot in which there is something to see in these runs."""
    shown = runs[:PLOTTED_MAX]
    gpus = max((run.measures.gpus for run in shown), default=0)
    drawn = [
        _distribution(
            "Job completion time",
            shown,
            "jct",
            "time from submission to end",
            "jobs that took less",
        ),
        _over("GPUs that jobs have", shown, lambda run: run.series.allocated, gpus),
        _by_name(
            "Mean completion time by tenant",
            "time from submission to end",
            shown,
            _means(lambda run: run.measures.by_vc, lambda group: group.jct_s.mean),
        ),
        _distribution(
            "Queueing time", shown, "queue", "time in the queue", "jobs that waited less"
        ),
        _over("Jobs that wait", shown, lambda run: run.series.waiting, None),
        _by_name(
            "Mean queueing time by tenant",
            "time in the queue",
            shown,
            _means(lambda run: run.measures.by_vc, lambda group: group.queue_s.mean),
        ),
        _by_name(
            "Mean completion time by size of job",
            "time from submission to end",
            shown,
            _means(lambda run: run.measures.by_size, lambda group: group.jct_s.mean),
        ),
        _over(
            "Fragmentation (SCHED², eq. 1)", shown, lambda run: run.series.fragmentation, "level"
        ),
        _over(
            "Nodes without whole-node affinity (HiveD, section 5.2)",
            shown,
            lambda run: run.series.no_affinity,
            "nodes",
        ),
    ]
    parts = filter(None, (_parts_of_time(run, gpus) for run in shown))
    return [*filter(None, drawn), *islice(parts, PARTS_MAX)]


PARTS_MAX = 4
"""Runs of which it is shown what their GPUs do."""
APART = 0.02
"""Lines that are less apart, in all and as a part of one of them, are seen as one."""


HALF = 0.5
"""Below this part of the whole an axis does not reach up to the whole: more is seen."""
SUBMITTED = "time since the first submission"


def _distribution(title: str, runs: Sequence[Played], key: str, x_title: str, y_title: str) -> str:
    found = [plots.Line(run.label, run.curves.get(key, ())) for run in runs]
    if not any(x > 0 for line in found for x, _ in line.points):
        return ""
    return plots.lines(
        title,
        found,
        plots.seconds_text,
        plots.part_text,
        x_log=True,
        y_max=1.0,
        y_min=min(_floor(line.points) for line in found if line.points),
        x_title=x_title,
        y_title=y_title,
    )


def _floor(points: plots.Points) -> float:
    """Return where the axis of a distribution may begin: what lies above 80 % is seen closely."""
    least = points[0][0]
    part = max(part for value, part in points if value <= least)
    return next((low for low in (0.99, 0.95, 0.9, 0.8) if part >= low), 0.0)


def _over(
    title: str,
    runs: Sequence[Played],
    get: Callable[[Played], Sequence[float]],
    most: int | str | None,
) -> str:
    """Return a plot over time; nothing where all is 0 or unknown.

    Args:
        title: What stands above.
        runs: The runs.
        get: Returns the values.
        most: How many GPUs there are; what values are parts of; None: they are jobs.
    """
    found = [
        plots.Line(run.label, list(zip(run.series.at, get(run), strict=True)), stepped=True)
        for run in runs
        if get(run)
    ]
    if not any(y for line in found for _, y in line.points):
        return ""
    parts = isinstance(most, str)
    whole = float(most) if isinstance(most, int) else 1.0 if parts else None
    top = max(y for line in found for _, y in line.points)
    y_title = most if isinstance(most, str) else "jobs" if most is None else f"GPUs, of {most:,}"
    return plots.lines(
        title,
        found,
        plots.seconds_text,
        plots.part_text if parts else plots.number_text,
        y_max=whole if whole is not None and top > whole * HALF else None,
        x_title=SUBMITTED,
        y_title=y_title,
    )


def _parts_of_time(run: Played, gpus: int) -> str:
    """Return what a run's GPUs did; nothing where about all that were allocated were useful."""
    told = run.series
    apart = sum(
        max(three) - min(three)
        for three in zip(told.allocated, told.busy, told.useful, strict=False)
    )
    if not told.busy or apart <= APART * sum(told.allocated):
        return ""
    named = (("allocated", told.allocated), ("busy", told.busy), ("useful", told.useful))
    return plots.lines(
        f"What GPUs do: {run.label}",
        [plots.Line(name, list(zip(told.at, values, strict=True))) for name, values in named],
        plots.seconds_text,
        plots.number_text,
        x_title=SUBMITTED,
        y_title=f"GPUs, of {gpus:,}",
    )


def _means(
    groups: Callable[[Played], dict[str, Group]], get: Callable[[Group], float]
) -> Callable[[Played], dict[str, float]]:
    return lambda run: {name: get(group) for name, group in groups(run).items() if group.ended}


def _by_name(
    title: str, x_title: str, runs: Sequence[Played], get: Callable[[Played], dict[str, float]]
) -> str:
    """Return bars or marks by name; nothing where there are not two names, or all is 0."""
    told = [get(run) for run in runs]
    names = list(dict.fromkeys(name for each in told for name in each))[:TENANTS_MAX]
    if len(names) < 2 or not any(value for each in told for value in each.values()):
        return ""
    shown = [
        plots.Bars(run.label, [each.get(name) for name in names])
        for run, each in zip(runs, told, strict=True)
    ]
    draw = plots.bars if len(runs) <= BARS_MAX else plots.dots
    labels = [name or "(none)" for name in names]
    return draw(title, labels, shown, plots.seconds_text, x_title=x_title)


# --- tables ---------------------------------------------------------------------------------------


GROUP_COLUMNS = (
    "jct_mean_s",
    "jct_p99_s",
    "queue_mean_s",
    "effectiveness",
    "rho_median",
    "preempted",
    "suspended",
    "gpu_hours",
    "ended",
    "unfinished",
)
"""What is told of each group of jobs; `results.json` has all measures."""
COMPARED = ("jct_mean_s", "jct_p99_s", "queue_mean_s")
"""What is compared between runs by group."""


def _groups(
    title: str, what: str, runs: Sequence[Played], get: Callable[[Played], dict[str, Group]]
) -> str:
    """Return a table with a row for each group: its measures, or those of each run."""
    names = list(dict.fromkeys(name for run in runs for name in get(run)))
    if len(names) < 2:
        return ""
    parts = [f"<h2>{escape(title)}</h2>"]
    if len(runs) == 1:
        groups = get(runs[0])
        told = [row for row in group_rows(list(groups.values())) if row.key in GROUP_COLUMNS]
        lines = [
            (escape(name or "(none)"), [row.cells()[place] for row in told])
            for place, name in enumerate(groups)
        ]
        return parts[0] + _grid([what, *(row.title for row in told)], lines)
    for number, key in enumerate(COMPARED):
        by_name = {
            name: row
            for name in names
            for row in group_rows([get(run).get(name, Group()) for run in runs])
            if row.key == key
        }
        if not any(value for row in by_name.values() for value in row.values):
            continue
        opened = ' open="open"' if number == 0 else ""
        heading = next(iter(by_name.values())).title
        table = _grid(
            [what, *(run.label for run in runs)],
            [(escape(name or "(none)"), row.cells()) for name, row in by_name.items()],
        )
        parts.append(f"<details{opened}><summary>{escape(heading)}</summary>{table}</details>")
    return "\n".join(parts)


def _audits(runs: Sequence[Played]) -> str:
    parts = []
    for run in runs:
        if run.audit is None:
            continue
        lines = [
            (
                escape(vc),
                [
                    f"{one.jobs:,}",
                    f"{one.shared_s:,.1f} s",
                    f"{one.private_s:,.1f} s",
                    f"{one.jobs_worse:,}",
                    f"{one.excess_s:,.0f} s",
                    f"{one.windows_worse} of {one.windows}",
                    f"{one.window_excess_s:,.0f} s",
                    plots.number_text(one.rho.median),
                ],
            )
            for vc, one in run.audit.tenants.items()
        ]
        parts.append(
            f"<h2>Sharing safety: {escape(run.label)}</h2>"
            f'<p class="about">{run.audit.anomalies} anomalies. Every guaranteed job\'s '
            "time in the queue here and in its tenant's private cluster; longer by "
            f"{run.audit.slack_s:g} s is worse (HiveD, section 5).</p>"
            f"{_grid(AUDITED, lines)}"
        )
    return "\n".join(parts)


AUDITED = (
    "Tenant",
    "jobs",
    "queueing here",
    "in its own cluster",
    "jobs worse",
    "worst by",
    "12-hour windows worse",
    "worst window by",
    "rho, median",
)


def _settings(report: Report) -> str:
    lines = [
        f'<td>{escape(name)}</td><td class="words">{escape(value)}</td>'
        for name, value in report.settings.items()
    ]
    for run in report.runs:
        about = (
            f"{run.measures.cluster}, {run.measures.gpus:,} GPUs, {run.measures.policy}, seed "
            f"{run.seed}, {run.measures.events:,} starts and ends, decisions "
            f"{run.measures.decisions[:16]}"
        )
        lines.append(f'<td>{escape(run.label)}</td><td class="words">{escape(about)}</td>')
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<h2>Settings</h2><div class="wide"><table>\n{body}\n</table></div>'


def _problems(report: Report) -> str:
    parts = []
    for title, told in (
        ("Rows that were left out", report.problems),
        ("What was made good", report.notes),
    ):
        if told:
            lines = "".join(
                f"<li>{escape(problem_text(each))}</li>" for each in told[:PROBLEMS_MAX]
            )
            more = len(told) - PROBLEMS_MAX
            lines += f"<li>and {more:,} more</li>" if more > 0 else ""
            parts.append(f"<h2>{title}: {len(told):,}</h2><ul>{lines}</ul>")
    if report.unknown_models:
        told_models = ", ".join(
            f"{model or '(none)'} ({count:,} jobs)"
            for model, count in report.unknown_models.items()
        )
        parts.append(
            f"<h2>Models without measurements</h2><p>{escape(told_models)}: they go "
            "everywhere as fast as in the trace.</p>"
        )
    return "\n".join(parts)
