"""`skep plan`, and what `skep why --what-if` prints: what would be, without doing it."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from skep_services.cli import exits, pipelines, render, specs
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json
from skep_services.cli.render import duration, plural, printable
from skep_services.cli.stake import at_stake_of

SECOND = 1_000_000_000
OTHERS_NAMED = 6

WHAT = {
    "stops": "stops {}",
    "suspends": "suspends {}",
    "moves": "moves {}",
    "resizes": "changes the size of {}",
    "shares": "shares GPUs with {}",
    "stores": "has {} store its state and leave",
    "borrows": "leaves {} without its cells: it goes on, borrowing",
    "unclaims": "takes from {} what was reserved for it",
    "starts": "starts {} as well",
}
"""What happens to another job, by the allocator's word for it."""
LEAVES = ("stops", "stores")
"""After these a job's processes are gone."""


def options_plan(parser: ArgumentParser) -> None:
    """Add what `plan` takes."""
    from skep_services.cli.submit import options_spec

    options_spec(parser)


def run_plan(arguments: Namespace) -> int:
    """Say of each spec what would become of it if it alone were submitted now.

    Returns:
        The exit code: 0, or that of the last spec that would be refused.

    Raises:
        CommandError: A spec cannot be read or is wrong, or the cluster cannot be reached.
    """
    from skep_services.cli.submit import check, encode, prepare, where

    read = [document for name in arguments.files for document in specs.read(name)]
    documents, bounds = pipelines.split(read)
    client = client_of(arguments)
    for document in documents:
        prepare(document, arguments, client)
    bound = pipelines.bind(documents, bounds, None)
    if not arguments.no_check:
        check(documents, "planned")
    answers: list[dict[str, Any]] = []
    worst = exits.OK
    for document in documents:
        try:
            answers.append(client.post_bytes("/v1/plan", encode(document.tree)))
        except CommandError as error:
            if error.code == exits.UNREACHABLE:
                raise
            worst = max(worst, error.code)
            answers.append({"accepted": False, **error.error, "where": where(document, error)})
    stakes = at_stake_of(client, _leaving(answers))
    if arguments.json:
        print_json(
            {"plans": answers, "if_stopped": stakes, **({"pipelines": bound} if bound else {})}
        )
        return worst
    for answer in answers:
        if answer.get("accepted") is False:
            print("\n".join(f"would be refused: {printable(line)}" for line in answer["where"]))
        else:
            _tell(answer, stakes)
    for one in bound:
        print(printable(f"{pipelines.told(one)}; each is planned as if it alone were submitted"))
    return worst


def _leaving(answers: Sequence[dict[str, Any]]) -> list[str]:
    """Return the jobs that some plans would stop."""
    others = [one for answer in answers for one in (answer.get("outcome") or {}).get("others", ())]
    return [one["job"] for one in others if one["what"] in LEAVES and one["job"]]


def _tell(answer: dict[str, Any], stakes: Mapping[str, str]) -> None:
    outcome, now_ns = answer["outcome"], time.time_ns()
    print(
        printable(
            f"{answer['name']}  {plural(answer['gpus'], 'GPU')} of {answer['vc']}, "
            f"{answer['service_class']}"
        )
    )
    estimate = answer.get("estimate") or {}
    lines = [start_text(outcome, now_ns), *effects(outcome)]
    lines += [f"  {job}: {stakes[job]}" for job in _leaving([answer]) if job in stakes]
    if estimate.get("start"):
        times = render.between(estimate["start"], now_ns)
        lines.append(f"it starts {times}, within the brackets eight times in ten")
    if estimate.get("end"):
        times = render.between(estimate["end"], now_ns)
        lines.append(f"it ends {times}, likewise ({estimate['basis']}){_latest(outcome, now_ns)}")
    else:
        lines.append(end_text(outcome, now_ns))
    for line in lines:
        print(printable(f"  {line}"))


def tell_what_if(answer: dict[str, Any]) -> None:
    """Print what would start a job that waits, the smallest change first, and what would not."""
    if answer["problem"]:
        print(printable(f"what if: {answer['problem']}"))
        return
    now_ns = time.time_ns()
    if answer["outcome"]["start"] in ("now", "after"):
        print(printable(f"what if: {start_text(answer['outcome'], now_ns)}"))
        return
    print("what would start it:" if answer["options"] else "nothing that was tried starts it now")
    for option in answer["options"]:
        print(printable(f"  {option['rank']}. {_named(option)}"))
        for line in (start_text(option["outcome"], now_ns), *effects(option["outcome"])):
            print(printable(f"       {line}"))
    if answer["in_vain"]:
        print("what would not:")
    for option in answer["in_vain"]:
        print(printable(f"  {_named(option)}: {_waits(option['outcome'])}"))


def _named(option: dict[str, Any]) -> str:
    return f"{option['text']}: {option['value']} ({option['reason']})"


def start_text(outcome: dict[str, Any], now_ns: int) -> str:
    """Return when and where a job would start.

    Args:
        outcome: The allocator's word on a start, as the gateway tells it.
        now_ns: The time (ns since 1970).
    """
    borrowed = ", on borrowed GPUs" if outcome["borrows"] else ""
    more = outcome["nodes"] - len(outcome["place"].split())
    others = f" and {more} more nodes" if more > 0 else ""
    on = f" on {outcome['place']}{others}{borrowed}" if outcome["place"] else ""
    why = f": {outcome['text']} ({outcome['why']})" if outcome["why"] else ""
    match outcome["start"]:
        case "now":
            return f"it would start now{on}{why}"
        case "after":
            return f"it would start{on} as soon as others have made room{why}"
        case "later":
            awaits = f", after {' '.join(outcome['awaits'])}" if outcome["awaits"] else ""
            left = duration(max(0, outcome["at"] - now_ns))
            about = "at most" if outcome["limits"] else "about"
            return f"it would wait for {about} {left}{awaits}, then start{on}; {_waits(outcome)}"
        case _:
            unknown = outcome["unknown"]
            many = f": the end of {plural(unknown, 'job')} is not known" if unknown else ""
            return f"it would wait, for how long is not known{many}; {_waits(outcome)}"


def end_text(outcome: dict[str, Any], now_ns: int) -> str:
    """Return when a job would end.

    Args:
        outcome: The allocator's word on an end, as the gateway tells it.
        now_ns: The time (ns since 1970).
    """
    latest = _latest(outcome, now_ns)
    if outcome["ends_at"]:
        return f"it would end in about {duration(max(0, outcome['ends_at'] - now_ns))}{latest}"
    return f"when it would end is not known{latest}"


def _latest(outcome: dict[str, Any], now_ns: int) -> str:
    most = outcome["ends_most"]
    return f", or in {duration(most - now_ns)} at the latest (its limit)" if most else ""


def effects(outcome: dict[str, Any]) -> list[str]:
    """Return a line for each way in which other jobs are touched."""
    lines = []
    for what, text in WHAT.items():
        touched = [one for one in outcome["others"] if one["what"] == what]
        if touched:
            named = ", ".join(_other(one) for one in touched[:OTHERS_NAMED])
            more = len(touched) - OTHERS_NAMED
            lines.append("it " + text.format(named + (f" and {more} more" if more > 0 else "")))
    if outcome["others_more"]:
        lines.append(f"and touches {plural(outcome['others_more'], 'further job')}")
    return lines


def _other(one: dict[str, Any]) -> str:
    name = one["job"] or "a job of another virtual cluster"
    parts = [plural(one["gpus"], "GPU")]
    if one["what"] != "starts":
        if one["rate_milli"] is None:
            parts.append("its rate is unknown")
        else:
            then = one["then_milli"]
            after = "unknown" if then is None else render.rate(then) if then else "0"
            parts.append(f"{render.rate(one['rate_milli'])} now, {after} then")
    return f"{name} ({', '.join(parts)})"


def _waits(outcome: dict[str, Any]) -> str:
    needs = f": {outcome['needs']}" if outcome["needs"] else ""
    return f"{outcome['text']}{needs} ({outcome['why']})"


COMMANDS = {"plan": Command(options_plan, run_plan)}
