"""A report as one HTML file: no script, nothing loaded from anywhere, for light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from skep_lab.measures.summary import Group
from skep_services.simulations import plots
from skep_services.simulations.order import Played
from skep_services.simulations.report import Report, Row, group_rows, problem_text, rows, run_rows

PLOTTED_MAX = 12
"""Lines in a plot: no reader tells more apart."""
TENANTS_MAX = 60
PROBLEMS_MAX = 200

STYLE = """
:root { color-scheme: light dark; --text: #1d2327; --faint: #667; --grid: #ddd; --back: #fff;
        --panel: #f6f7f8; --warn: #fff4d6; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8ea; --faint: #9aa3ab; --grid: #3a4046; --back: #15181b; --panel: #1e2226;
          --warn: #4a3b10; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back);
       max-width: 1360px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p.about { color: var(--faint); margin-top: 0; }
p.warn { background: var(--warn); padding: .6rem .9rem; border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--grid);
         white-space: nowrap; }
th { color: var(--faint); font-weight: 600; }
th:first-child, td:first-child, td.words { text-align: left; }
td.words { white-space: normal; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.plots figure { margin: 0; background: var(--panel); border-radius: 8px; padding: .6rem;
                flex: 1 1 520px; max-width: 660px; }
.plots svg { width: 100%; height: auto; }
small { color: var(--faint); } details { margin-top: .6rem; }
""".strip()


def page(report: Report) -> str:
    """Return the report as HTML."""
    runs = report.runs
    parts = [
        _head(report),
        _table([run.label for run in runs], run_rows(runs)) if runs else "",
        _swept(report),
        f'<h2>Pictures</h2><div class="plots">{_figures(runs)}</div>' if runs else "",
        _groups("Tenants", runs, lambda run: run.measures.by_vc),
        _groups("Sizes of jobs", runs, lambda run: run.measures.by_size),
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
    return plots.stacked(_title(report), pictures(report.runs)[:4])


def _title(report: Report) -> str:
    return f"{report.trace}: {', '.join(dict.fromkeys(run.label for run in report.runs[:4]))}"


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
        for run in report.runs
        if run.cut
    ]
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


def _table(labels: Sequence[str], shown: Sequence[Row], head: str = "Measure") -> str:
    lines = ["".join(f"<th>{escape(each)}</th>" for each in (head, *labels))]
    for row in shown:
        source = f" <small>{escape(row.source)}</small>" if row.source else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells())
        lines.append(f"<td>{escape(row.title)}{source}</td>{cells}")
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _swept(report: Report) -> str:
    if not report.swept:
        return ""
    keys = rows([run.measures for run in report.runs])
    lines = [
        "<th>Measure</th>"
        + "".join(
            f"<th>{escape(each.label)}<br/>{len(each.seeds)} seeds</th>" for each in report.swept
        )
    ]
    for row in keys:
        cells = []
        for each in report.swept:
            told = each.spreads.get(row.key)
            cells.append(
                "<td>-</td>"
                if told is None
                else (
                    f"<td>{escape(row.text(told.mean))} ± {escape(row.text(told.deviation))}<br/>"
                    f"<small>{escape(row.text(told.least))} to "
                    f"{escape(row.text(told.most))}</small></td>"
                )
            )
        lines.append(f"<td>{escape(row.title)}</td>{''.join(cells)}")
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return (
        "<h2>Over the seeds</h2><p class='about'>mean ± standard deviation; least to most</p>"
        f'<div class="wide"><table>\n{body}\n</table></div>'
    )


# --- pictures -------------------------------------------------------------------------------------


def _figures(runs: Sequence[Played]) -> str:
    return "".join(f"<figure>{each}</figure>" for each in pictures(runs))


def pictures(runs: Sequence[Played]) -> list[str]:
    """Return every plot that these runs have something for."""
    shown = runs[:PLOTTED_MAX]
    drawn = [
        plots.lines(
            "Job completion time: part of jobs that took at most so long",
            [plots.Line(run.label, run.curves["jct"]) for run in shown],
            plots.seconds_text,
            plots.part_text,
            x_log=True,
            y_max=1.0,
        ),
        plots.lines(
            "GPUs in use",
            _over_time(shown, lambda run: run.series.allocated),
            plots.seconds_text,
            plots.number_text,
        ),
        _bars(
            "Mean completion time by tenant",
            shown,
            lambda run: {
                vc: group.jct_s.mean for vc, group in run.measures.by_vc.items() if group.ended
            },
        ),
        plots.lines(
            "Queueing: part of jobs that waited at most so long",
            [plots.Line(run.label, run.curves["queue"]) for run in shown],
            plots.seconds_text,
            plots.part_text,
            x_log=True,
            y_max=1.0,
        ),
        plots.lines(
            "Jobs that wait",
            _over_time(shown, lambda run: run.series.waiting),
            plots.seconds_text,
            plots.number_text,
        ),
        _bars(
            "Mean queueing by tenant",
            shown,
            lambda run: {
                vc: group.queue_s.mean for vc, group in run.measures.by_vc.items() if group.ended
            },
        ),
        _bars(
            "Mean completion time by size of job",
            shown,
            lambda run: {
                size: group.jct_s.mean
                for size, group in run.measures.by_size.items()
                if group.ended
            },
        ),
    ]
    for title, get in (
        ("Fragmentation (SCHED², eq. 1)", lambda run: run.series.fragmentation),
        (
            "Nodes that give no whole-node affinity (HiveD, section 5.2)",
            lambda run: run.series.no_affinity,
        ),
    ):
        over_time = _over_time(shown, get)
        if over_time:
            drawn.append(
                plots.lines(title, over_time, plots.seconds_text, plots.part_text, y_max=1.0)
            )
    for run in shown[:4]:
        if run.series.busy:
            at = run.series.at
            drawn.append(
                plots.lines(
                    f"GPUs allocated, busy, useful: {run.label}",
                    [
                        plots.Line("allocated", list(zip(at, run.series.allocated, strict=True))),
                        plots.Line("busy", list(zip(at, run.series.busy, strict=True))),
                        plots.Line("useful", list(zip(at, run.series.useful, strict=True))),
                    ],
                    plots.seconds_text,
                    plots.number_text,
                )
            )
    return drawn


def _over_time(
    runs: Sequence[Played], get: Callable[[Played], Sequence[float]]
) -> list[plots.Line]:
    return [
        plots.Line(run.label, list(zip(run.series.at, get(run), strict=True)), stepped=True)
        for run in runs
        if get(run)
    ]


def _bars(title: str, runs: Sequence[Played], get: Callable[[Played], dict[str, float]]) -> str:
    told = [get(run) for run in runs]
    names = list(dict.fromkeys(name for each in told for name in each))[:TENANTS_MAX]
    shown = [
        plots.Bars(run.label, [each.get(name) for name in names])
        for run, each in zip(runs, told, strict=True)
    ]
    return plots.bars(title, [name or "(none)" for name in names], shown, plots.seconds_text)


# --- tables ---------------------------------------------------------------------------------------


def _groups(title: str, runs: Sequence[Played], get: Callable[[Played], dict[str, Group]]) -> str:
    names = list(dict.fromkeys(name for run in runs for name in get(run)))
    if len(names) < 2:
        return ""
    parts = [f"<h2>{escape(title)}</h2>"]
    opened = ' open="open"' if len(runs) == 1 else ""
    for run in runs:
        groups = get(run)
        shown = group_rows([groups[name] for name in names if name in groups])
        table = _table([name or "(none)" for name in names if name in groups], shown)
        parts.append(f"<details{opened}><summary>{escape(run.label)}</summary>{table}</details>")
    return "\n".join(parts)


def _audits(runs: Sequence[Played]) -> str:
    parts = []
    for run in runs:
        if run.audit is None:
            continue
        lines = [
            "<th>Tenant</th><th>jobs</th><th>queueing here</th><th>in its own cluster</th>"
            "<th>jobs worse</th><th>worst by</th><th>12-hour windows worse</th>"
            "<th>worst by</th><th>rho, median</th>"
        ]
        for vc, one in run.audit.tenants.items():
            cells = (
                vc,
                f"{one.jobs:,}",
                f"{one.shared_s:,.1f} s",
                f"{one.private_s:,.1f} s",
                f"{one.jobs_worse:,}",
                f"{one.excess_s:,.0f} s",
                f"{one.windows_worse} of {one.windows}",
                f"{one.window_excess_s:,.0f} s",
                plots.number_text(one.rho.median),
            )
            lines.append("".join(f"<td>{escape(each)}</td>" for each in cells))
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        parts.append(
            f"<h2>Sharing safety: {escape(run.label)}</h2>"
            f'<p class="about">{run.audit.anomalies} anomalies. Every guaranteed job\'s '
            "time in the queue here and in its tenant's private cluster; longer by "
            f"{run.audit.slack_s:g} s is worse (HiveD, section 5).</p>"
            f'<div class="wide"><table>\n{body}\n</table></div>'
        )
    return "\n".join(parts)


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
