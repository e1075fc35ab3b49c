"""What the judgement comes to: the learned policy against the better rule, by scenario and bar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from skep_lab.learn.protocol import (
    BARS,
    FAMILIES,
    HELD_OUT,
    METRICS,
    RULES,
    SCENARIOS,
    WORSE_MAX,
    Setting,
)
from skep_lab.measures.paired import Paired, paired

LEARNED = "learned"
FIELDS = ("mean_jct_s", "p99_jct_s", "p99_wait_s", "makespan_s", "effectiveness")
"""What rows have of `METRICS`, in their order."""
assert len(FIELDS) == len(METRICS)


class Row(NamedTuple):
    """One policy on one trace."""

    scenario: Setting
    policy: str
    number: int
    mean_jct_s: float


class Compared(NamedTuple):
    """The learned policy and the better rule of a scenario, over traces that all have played."""

    scenario: Setting
    rule: str
    rule_s: float
    learned_s: float
    others_s: Mapping[str, float]
    gains: Mapping[int, float]
    """By trace: 1 - learned / rule."""

    @property
    def ratio(self) -> float:
        """Return the mean JCT of the learned policy over that of the rule."""
        return self.learned_s / self.rule_s


def rows_of(played: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return rows as `beat_main` writes them."""
    return [
        Row(Setting(**each["scenario"]), each["policy"], each["number"], each["mean_jct_s"])
        for each in played
    ]


def mixed(played: Iterable[Mapping[str, Any]]) -> str:
    """Return why rows cannot be judged: those of the learned policy are by several models; or "".

    Args:
        played: Rows as `beat_main` writes them.
    """
    models = sorted({row.get("model", "") for row in played if row["policy"] == LEARNED})
    if len(models) < 2:
        return ""
    names = ", ".join(each[:12] or "one without a name" for each in models)
    return f"rows of {LEARNED} are by {len(models)} models ({names}): judge each in its own folder"


def compared(rows: Sequence[Row], scenario: Setting) -> Compared | None:
    """Return a scenario; None: there is no trace that all have played."""
    mine: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.scenario == scenario:
            mine.setdefault(row.policy, {})[row.number] = row.mean_jct_s
    needed = (*RULES, LEARNED)
    numbers = sorted(set.intersection(*({*mine.get(name, {})} for name in needed)))
    if not numbers:
        return None

    def mean(policy: str) -> float:
        return sum(mine[policy][number] for number in numbers) / len(numbers)

    rule = min(RULES, key=mean)
    gains = {each: 1.0 - mine[LEARNED][each] / mine[rule][each] for each in numbers}
    others = {name: mean(name) for name in mine if {*numbers} <= {*mine[name]}}
    return Compared(scenario, rule, mean(rule), mean(LEARNED), others, gains)


def all_compared(rows: Sequence[Row]) -> list[Compared]:
    """Return all scenarios that can be compared, in their order."""
    scenarios = dict.fromkeys([*SCENARIOS, *(each for group in BARS.values() for each in group)])
    found = (compared(rows, scenario) for scenario in scenarios)
    return [each for each in found if each is not None]


def pooled(found: Iterable[Compared]) -> Paired | None:
    """Return the mean gain over all traces of some scenarios, with its interval.

    Traces of one family and number have the same jobs in every scenario, so they are no independent
    samples: the interval counts them once, by their mean.
    """
    alike: dict[tuple[str, int], list[float]] = {}
    for each in found:
        for number, gain in each.gains.items():
            alike.setdefault((each.scenario.family, number), []).append(gain)
    gains = [fmean(each) for each in alike.values()]
    return paired([0.0] * len(gains), gains) if gains else None


def bars(found: Sequence[Compared]) -> dict[str, Paired | None]:
    """Return the gain of each bar, and by family."""
    made: dict[str, Paired | None] = {}
    for name, group in BARS.items():
        mine = [each for each in found if each.scenario in group]
        made[name] = pooled(mine)
        for family in FAMILIES:
            made[f"{name}, {family}"] = pooled(
                [each for each in mine if each.scenario.family == family]
            )
    return made


def worse(found: Sequence[Compared]) -> list[Compared]:
    """Return the scenarios in which the learned policy is worse by more than is allowed."""
    return [each for each in found if each.ratio > 1.0 + WORSE_MAX]


def table(found: Sequence[Compared]) -> str:
    """Return scenarios as a table."""
    lines = ["| scenario | traces | look-ahead | hold | learned | against the better rule |"]
    lines.append("|---|---|---|---|---|---|")
    for each in found:
        both = each.others_s
        gain = pooled([each])
        assert gain is not None
        lines.append(
            f"| {each.scenario.name} | {len(each.gains)} | {both['look-ahead']:,.0f}"
            f" | {both['hold']:,.0f} | {each.learned_s:,.0f} | {percent(gain)} |"
        )
    return "\n".join(lines)


def report(played: Sequence[Mapping[str, Any]]) -> str:
    """Return all that was judged as tables: bars, scenarios, and each policy's measures.

    Args:
        played: Rows as `beat_main` writes them.
    """
    found = all_compared(rows_of(played))
    needed = ", ".join((*RULES, LEARNED))
    parts = [f"No trace was played by all of {needed}."]
    if found:
        parts = [_bars_table(found), table(found), _worse_text(found)]
    return "\n\n".join([*parts, measures(played)])


def _bars_table(found: Sequence[Compared]) -> str:
    lines = ["| bar | traces | gain over the better rule, 95 % interval | reached |"]
    lines.append("|---|---|---|---|")
    for name, gain in bars(found).items():
        bar, _, family = name.partition(", ")
        group = [each for each in BARS[bar] if family in ("", each.family)]
        traces = sum(len(each.gains) for each in found if each.scenario in group)
        whole = len(group) * len(HELD_OUT)
        above = gain is not None and gain.low is not None and gain.low > 0
        reached = ("yes" if above else "no") if traces == whole else "not all traces were played"
        text = "-" if gain is None else percent(gain)
        lines.append(f"| {name} | {traces} of {whole} | {text} | {reached} |")
    return "\n".join(lines)


def _worse_text(found: Sequence[Compared]) -> str:
    names = [f"{each.scenario.name} ({each.ratio:.3f})" for each in worse(found)]
    told = f"Of {len(SCENARIOS)} scenarios {len(found)} were played"
    return f"{told}; worse by more than {WORSE_MAX:.0%}: {'; '.join(names) or 'none'}."


def measures(played: Iterable[Mapping[str, Any]]) -> str:
    """Return the measures of each policy in each scenario as a table, means over its traces.

    Args:
        played: Rows as `beat_main` writes them.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in played:
        name = Setting(**row["scenario"]).name
        groups.setdefault((name, row["policy"]), []).append(row)
    lines = [f"| scenario | policy | traces | {' | '.join(METRICS)} | unfinished |"]
    lines.append("|---" * (len(METRICS) + 4) + "|")
    for (name, policy), rows in sorted(groups.items()):
        means = [fmean(row[field] for row in rows) for field in FIELDS]
        told = " | ".join([f"{mean:,.0f}" for mean in means[:-1]] + [f"{means[-1]:.3f}"])
        unfinished = sum(row["unfinished"] for row in rows)
        lines.append(f"| {name} | {policy} | {len(rows)} | {told} | {unfinished} |")
    return "\n".join(lines)


def percent(gain: Paired) -> str:
    """Return a gain as text: `+8.1 % (5.0 to 11.3)`."""
    if gain.low is None or gain.high is None:
        return f"{100 * gain.mean:+.1f} %"
    return f"{100 * gain.mean:+.1f} % ({100 * gain.low:.1f} to {100 * gain.high:.1f})"
