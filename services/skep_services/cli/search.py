"""`skep search`: many trials of one job as one object: begun, watched, told and ended together."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skep_services.cli import code, exits, render, specs
from skep_services.cli.client import query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.problems import refuse_wrong
from skep_services.cli.render import Column, duration, printable
from skep_services.cli.submit import default_vc, encode

FIGURES = 4
"""Significant figures of metrics and parameters: more would not tell trials apart."""

VERBS = {
    "submit": "FILE: begin the search in a spec (YAML or JSON, - for standard input)",
    "list": "searches, the oldest first",
    "show": "SEARCH: all of its trials",
    "cancel": "SEARCH: end it, and every trial of it",
    "ask": "SEARCH: another trial, with --param NAME=VALUE or drawn parameters",
    "tell": "SEARCH TRIAL: how a trial goes that runs outside (--step, --value, --over)",
    "plot": "SEARCH: the curves and rungs as a picture (-o FILE)",
    "demote": "SEARCH TRIAL: put it behind all others of its search",
    "promote": "SEARCH TRIAL: put it among the others again",
}
TAKES = {
    "submit": 1,
    "list": 0,
    "show": 1,
    "cancel": 1,
    "ask": 1,
    "tell": 2,
    "plot": 1,
    "demote": 2,
    "promote": 2,
}
ONLY: dict[str, tuple[str, ...]] = {
    "vc": ("submit", "list"),
    "assignments": ("submit",),
    "key": ("submit", "ask"),
    "state": ("list",),
    "params": ("ask",),
    "outside": ("ask",),
    "step": ("tell",),
    "value": ("tell",),
    "over": ("tell",),
    "out": ("plot",),
}
"""Options that belong to some verbs only."""


def options(parser: ArgumentParser) -> None:
    """Add what it takes."""
    verbs = "; ".join(f"{verb}: {text}" for verb, text in VERBS.items())
    parser.add_argument("verb", choices=tuple(VERBS), help=verbs)
    parser.add_argument("what", metavar="FILE|SEARCH", nargs="*", help="what the verb is about")
    parser.add_argument("--vc", help="submit, list: the virtual cluster")
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="submit: change a key, as budget.trials=20 (repeatable)",
    )
    parser.add_argument("--key", help="submit, ask: idempotency key: said again, it is the same")
    parser.add_argument("--state", choices=("active", "over", "all"), help="list: these only")
    parser.add_argument(
        "--param",
        dest="params",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="ask: a parameter (repeatable)",
    )
    parser.add_argument(
        "--outside", action="store_true", help="ask: the client that asks runs the trial"
    )
    parser.add_argument("--step", type=int, help="tell: mini-batches so far")
    parser.add_argument("--value", type=float, help="tell: the metric")
    parser.add_argument("--over", choices=("done", "failed"), help="tell: the trial has ended")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="plot: where the SVG goes")


def run(arguments: Namespace) -> int:
    """Do what the verb says.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line or the spec is wrong, or the gateway refuses.
    """
    verb = arguments.verb
    if len(arguments.what) != TAKES[verb]:
        takes = VERBS[verb].split(":")[0] if TAKES[verb] else "nothing more"
        raise CommandError(exits.USAGE, f"`skep search {verb}` takes {takes}")
    for name, verbs in ONLY.items():
        if getattr(arguments, name) and verb not in verbs:
            option = {"assignments": "set", "params": "param"}.get(name, name)
            raise CommandError(exits.USAGE, f"--{option} is for {' and '.join(verbs)}")
    return RUN[verb](arguments)


# --- beginning ------------------------------------------------------------------------------------


def _submit(arguments: Namespace) -> int:
    """Begin one search; its spec is checked here first.

    Raises:
        CommandError: The file does not hold exactly one search, or the search is wrong.
    """
    client = client_of(arguments)
    documents = specs.read(arguments.what[0])
    if len(documents) != 1:
        raise CommandError(exits.USAGE, f"{arguments.what[0]}: one search at a time, please")
    document = documents[0]
    tree = document.tree
    if isinstance(tree, dict):
        for assignment in arguments.assignments:
            specs.put(tree, assignment)
        if arguments.vc is not None:
            tree["vc"] = arguments.vc
        if tree.get("vc") is None:
            tree["vc"] = default_vc(client)
        if isinstance(tree.get("job"), dict):
            keeps_workdir = code.settle(tree["job"], arguments)
            specs.settle_paths(tree["job"], keeps_workdir=keeps_workdir)
    check(document)
    code.send(client, [{**tree["job"], "vc": tree["vc"]}], arguments)
    headers = {"Idempotency-Key": arguments.key or os.urandom(16).hex()}
    answer = client.post_bytes("/v1/searches", encode(tree), headers)
    if arguments.json:
        print_json(answer)
    else:
        again = ", as before" if answer["repeated"] else ""
        print(f"{answer['search']} {printable(tree['name'])} submitted{again}")
    return exits.OK


def check(document: specs.Document) -> None:
    """Check a spec as the cluster will.

    Raises:
        CommandError: The spec is wrong; the error has every problem.
    """
    from skep.wire.search import parse_search_tree

    refuse_wrong(document, parse_search_tree(document.tree), "search")


# --- showing --------------------------------------------------------------------------------------


def _list(arguments: Namespace) -> int:
    path = query("/v1/searches", vc=arguments.vc, state=arguments.state)
    client = client_of(arguments)
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    found = client.get(path)["searches"]
    if not found:
        say("no searches: skep search submit FILE")
        return exits.OK
    render.show_table(
        [
            Column("SEARCH", [one["search"] for one in found]),
            Column("NAME", [one["name"] for one in found], narrow=8),
            Column("VC", [one["vc"] for one in found], drop=3),
            Column("STATE", [one["state"] for one in found], coloured=True),
            Column("WHY", [one["why"] or "-" for one in found], drop=2),
            Column("TRIALS", [f"{one['trials']}/{one['trials_max']}" for one in found], right=True),
            Column("RUNNING", [str(one["stands"].get("running", 0)) for one in found], right=True),
            Column("METRIC", [one["metric"] for one in found], narrow=6, drop=4),
            Column(
                "BEST", [_number(one["best"] and one["best"]["value"]) for one in found], right=True
            ),
            Column(
                "BY",
                [str(one["best"]["trial"]) if one["best"] else "-" for one in found],
                right=True,
                drop=5,
            ),
            Column("GPU TIME", [duration(one["gpu_ns"]) for one in found], right=True, drop=1),
        ]
    )
    return exits.OK


def _show(arguments: Namespace) -> int:
    client = client_of(arguments)
    path = f"/v1/searches/{quote(arguments.what[0])}"
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    for line in _head(found := client.get(path)):
        print(line)
    rows = found["rows"]
    if not rows:
        return exits.OK
    print()
    top = found["spec"]["metric"].upper()
    render.show_table(
        [
            Column("TRIAL", [str(row["trial"]) for row in rows], right=True),
            Column("JOB", [row["job"] or "-" for row in rows]),
            Column("STATE", [row["end"] or row["stand"] for row in rows], coloured=True),
            Column("WHY", [row["why"] or "-" for row in rows], narrow=10, drop=3),
            Column("STEPS", [str(row["step"]) for row in rows], right=True),
            Column(top, [_number(row["value"]) for row in rows], right=True),
            Column("BEST", [_number(row["best"]) for row in rows], right=True, drop=2),
            Column("PREDICTED", [_number(row["promise"]) for row in rows], right=True),
            Column("RUNG", [_rung(row) for row in rows], right=True, drop=4),
            Column("RAN", [duration(row["ran_ns"]) for row in rows], right=True, drop=1),
            Column("PARAMETERS", [_params(row["params"]) for row in rows], narrow=16),
        ]
    )
    return exits.OK


def _head(found: dict[str, Any]) -> list[str]:
    """Return a search without its trials in a few lines."""
    best, spec = found["best"], found["spec"]
    why = f" ({found['why']})" if found["why"] else ""
    state = render.state_text(found["state"], colour=render.colour_wanted())
    lines = [f"{found['search']}  {printable(found['name'])}  {state}{why}"]
    aim = f", to reach {found['target']:g}" if found["target"] is not None else ""
    limit = f" of {duration(found['gpu_time_s'] * 10**9)}" if found["gpu_time_s"] else ""
    stands = ", ".join(f"{count} {stand}" for stand, count in found["stands"].items())
    place = f"the {spec['exclusive']} best keep their GPUs, " if spec.get("exclusive") else ""
    lines += [
        f"  {'metric':11} {printable(found['metric'])}, {found['direction']}{aim}",
        f"  {'method':11} {found['method']}: {place}{spec.get('parallel', 1)} run at a time",
        f"  {'trials':11} {found['trials']} of {found['trials_max']} ({stands or 'none yet'})",
        f"  {'GPU time':11} {duration(found['gpu_ns'])}{limit}",
    ]
    if best:
        lines.append(
            f"  {'best':11} {_number(best['value'])} by trial {best['trial']} "
            f"({best['job'] or 'outside'}) at mini-batch {best['step']}: "
            f"{_params(best['params'])}"
        )
    return lines


def _rung(row: dict[str, Any]) -> str:
    """Return how many rungs a trial came to, of those of its bracket."""
    if not row["rungs"]:
        return "-"
    bracket = f" b{row['bracket']}" if row["bracket"] else ""
    return f"{len(row['reached'])}/{len(row['rungs'])}{bracket}"


def _params(params: dict[str, Any]) -> str:
    return " ".join(
        f"{name}={value:.{FIGURES}g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in params.items()
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.{FIGURES}g}"


def _plot(arguments: Namespace) -> int:
    from skep_services.cli.searchplot import picture

    found = client_of(arguments).get(f"/v1/searches/{quote(arguments.what[0])}")
    out = arguments.out or Path(f"{found['search']}.svg")
    out.write_text(picture(found), encoding="utf-8")
    if arguments.json:
        print_json({"search": found["search"], "svg": str(out)})
    else:
        say(f"wrote {out}")
    return exits.OK


# --- changing -------------------------------------------------------------------------------------


def _cancel(arguments: Namespace) -> int:
    name = arguments.what[0]
    _, data = client_of(arguments).send("DELETE", f"/v1/searches/{quote(name)}")
    if arguments.json:
        print_raw(data)
    else:
        print(f"{name} is being cancelled, with every trial of it")
    return exits.OK


def _ask(arguments: Namespace) -> int:
    body: dict[str, Any] = {"outside": True} if arguments.outside else {}
    if arguments.params:
        body["params"] = dict(map(_assigned, arguments.params))
    headers = {"Idempotency-Key": arguments.key or os.urandom(16).hex()}
    path = f"/v1/searches/{quote(arguments.what[0])}/trials"
    answer = client_of(arguments).post(path, body, headers)
    if arguments.json:
        print_json(answer)
    else:
        print(f"trial {answer['trial']} of {answer['search']}: {_params(answer['params'])}")
    return exits.OK


def _assigned(text: str) -> tuple[str, Any]:
    """Return a parameter's name and value, which is JSON where it is valid JSON.

    Raises:
        CommandError: The text is not NAME=VALUE.
    """
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise CommandError(exits.USAGE, f"--param {text}: write NAME=VALUE, as lr=0.1")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _tell(arguments: Namespace) -> int:
    if arguments.value is None and not arguments.over:
        raise CommandError(exits.USAGE, "say --value (with --step), or --over, or both")
    body = {"step": arguments.step or 0, "value": arguments.value, "over": arguments.over or ""}
    search, trial = arguments.what
    path = f"/v1/searches/{quote(search)}/trials/{quote(trial)}"
    answer = client_of(arguments).post(path, body)
    if arguments.json:
        print_json(answer)
    else:
        print(f"trial {trial} of {search}: taken")
    return exits.OK


def _rank(arguments: Namespace) -> int:
    (search, trial), verb = arguments.what, arguments.verb
    path = f"/v1/searches/{quote(search)}/trials/{quote(trial)}/{verb}"
    answer = client_of(arguments).post(path, {})
    if arguments.json:
        print_json(answer)
    else:
        where = "is behind all others" if verb == "demote" else "is among the others again"
        print(f"trial {trial} of {search} {where}")
    return exits.OK


RUN: dict[str, Callable[[Namespace], int]] = {
    "submit": _submit,
    "list": _list,
    "show": _show,
    "cancel": _cancel,
    "ask": _ask,
    "tell": _tell,
    "plot": _plot,
    "demote": _rank,
    "promote": _rank,
}

COMMANDS = {"search": Command(options, run)}
