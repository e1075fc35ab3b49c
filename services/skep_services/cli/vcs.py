"""`skep vc`: which VC owns which cells, the jobs in them, and what another division would mean."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import query, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, print_raw, say
from skep_services.cli.render import Column, plural

EPILOG = {
    "ls": "the virtual clusters and what they own",
    "show": "VC: where its cells are, which jobs are in them, which bad ones it bears",
    "usage": "[VC]: which jobs use whose GPUs",
    "tree": "the cells as a picture (--out cells.svg)",
    "check": "FILE: what is wrong with a cluster file",
    "plan": "FILE: what it would mean for the jobs that run",
    "apply": "FILE: plan, then put it in force; no job is stopped by it",
}

FATES = {
    "kept": "stays guaranteed",
    "opportunistic": "stays opportunistic",
    "demoted": "goes on as opportunistic",
    "released": "gets other cells reserved",
}
"""What becomes of a job, by the gateway's word for it."""


def options_vc(parser: ArgumentParser) -> None:
    """Add what `vc` takes."""
    verbs = "; ".join(f"{verb}: {text}" for verb, text in EPILOG.items())
    parser.add_argument("verb", choices=tuple(EPILOG), help=verbs)
    parser.add_argument("what", metavar="VC|FILE", nargs="?", help="a virtual cluster, or a file")
    parser.add_argument("--out", metavar="FILE", help="tree: where the SVG goes, if not here")
    parser.add_argument("--chain", metavar="NAME", help="tree: this chain only")


def run_vc(arguments: Namespace) -> int:
    """Show virtual clusters and cells, or check, plan and apply a cluster file.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, the file has mistakes, or the gateway refuses.
    """
    verb, what = arguments.verb, arguments.what
    if verb in ("ls", "tree") and what:
        raise CommandError(exits.USAGE, f"`skep vc {verb}` takes no file and no name")
    if verb != "tree" and (arguments.out or arguments.chain):
        raise CommandError(exits.USAGE, f"`skep vc {verb}` takes no --out and no --chain")
    if verb == "show" and not what:
        raise CommandError(exits.USAGE, "which one? (skep vc show VC; `skep vc ls` lists them)")
    if verb in ("check", "plan", "apply") and not what:
        raise CommandError(exits.USAGE, f"which file? (skep vc {verb} FILE)")
    return RUN[verb](arguments)


# --- showing --------------------------------------------------------------------------------------


def _list(arguments: Namespace) -> int:
    client = client_of(arguments)
    if arguments.json:
        print_raw(client.get_bytes("/v1/usage"))
        return exits.OK
    answer = client.get("/v1/usage")
    vcs = answer["vcs"]
    for alarm in answer.get("alarms", ()):
        say(f"ALARM: {alarm['text']}")
    if not vcs:
        say("no virtual clusters yet: skep vc apply FILE")
        return exits.OK
    render.show_table(
        [
            Column("VC", [one["vc"] for one in vcs]),
            Column("GPUS", [_gpus(one) for one in vcs], right=True),
            Column("USED", [str(one["used"]) for one in vcs], right=True),
            Column("BORROWED", [str(one["borrowed"]) for one in vcs], right=True),
            Column("RUNNING", [str(one["running"]) for one in vcs], right=True, drop=2),
            Column("SUSPENDED", [str(one["suspended"]) for one in vcs], right=True, drop=5),
            Column("QUEUED", [str(one["queued"]) for one in vcs], right=True),
            Column("POLICY", [one["policy"] for one in vcs], drop=4),
            Column("WEIGHT", [f"{one['weight']:g}" for one in vcs], right=True, drop=3),
            Column("JOBS MAX", [str(one["jobs_max"]) for one in vcs], right=True, drop=1),
            Column("CELLS IN USE", [_kinds(one["cells"]) for one in vcs], narrow=20),
        ]
    )
    return exits.OK


def _named(one: dict[str, Any]) -> str:
    """Return a job, with those that share its GPUs: `j3+j5`."""
    return "+".join([one["job"], *one.get("beside", ())])


def _gpus(vc: dict[str, Any]) -> str:
    """Return the GPUs a VC owns, and of how many where nodes for them have yet to join."""
    return str(vc["gpus"]) if vc["gpus"] >= vc["asked"] else f"{vc['gpus']} of {vc['asked']}"


def _policy(vc: dict[str, Any]) -> str:
    """Return which policy a VC has, unless it is the usual one."""
    told = ", ".join(f"{key}: {json.dumps(value)}" for key, value in vc["options"].items())
    name = f", policy {vc['policy']}" if vc["policy"] != "fifo" else ""
    return f"{name} ({told})" if told else name


def _kinds(cells: Sequence[dict[str, Any]]) -> str:
    """Return `1/2 v100/node`: of two cells one is bound."""
    told = []
    for one in cells:
        name = one["pin"] or f"{one['chain']}/{one['level']}"
        bad = f" ({one['bad']} bad)" if one["bad"] else ""
        told.append(f"{one['bound']}/{one['owned']} {name}{bad}")
    return ", ".join(told) or "-"


def _show(arguments: Namespace) -> int:
    client = client_of(arguments)
    path = f"/v1/vcs/{quote(arguments.what)}/usage"
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    vc = client.get(path)
    owned = plural(vc["gpus"], "GPU")
    missing = f" ({vc['asked']} asked for)" if vc["asked"] > vc["gpus"] else ""
    jobs = f"{vc['running']} running, {vc['suspended']} suspended, {vc['queued']} queued"
    used = f"{vc['used']} used in its cells, {vc['borrowed']} borrowed"
    print(f"{vc['vc']}: {owned}{missing}, weight {vc['weight']:g}{_policy(vc)}; {used}; {jobs}")
    kinds = vc["cells"]
    if kinds:
        print()
        render.show_table(
            [
                Column("CHAIN", [one["chain"] for one in kinds]),
                Column("LEVEL", [one["level"] for one in kinds]),
                Column("PINNED", [one["pin"] or "-" for one in kinds], drop=1),
                Column("GPUS", [str(one["gpus"]) for one in kinds], right=True),
                Column("OWNED", [str(one["owned"]) for one in kinds], right=True),
                Column("BOUND", [str(one["bound"]) for one in kinds], right=True),
                Column("FREE", [str(one["free"]) for one in kinds], right=True),
                Column("BAD", [str(one["bad"]) for one in kinds], right=True),
            ]
        )
    if vc["bound"]:
        print()
        render.show_table(
            [
                Column("CELL", [one["address"] for one in vc["bound"]]),
                Column("CHAIN", [one["chain"] for one in vc["bound"]], drop=2),
                Column("LEVEL", [one["level"] for one in vc["bound"]], drop=1),
                Column("IDLE", [f"{one['idle']}/{one['gpus']}" for one in vc["bound"]], right=True),
                Column("BAD", [str(one["bad"] or "-") for one in vc["bound"]], right=True),
                Column("INSIDE", [_inside(one) for one in vc["bound"]], narrow=12),
            ]
        )
    for one in vc["borrowers"]:
        print(f"{one['job']} borrows {plural(one['gpus'], 'GPU')} on {' '.join(one['nodes'])}")
    return exits.OK


def _inside(cell: dict[str, Any]) -> str:
    jobs = [
        f"({_named(one)})" if one["borrowed"] else f"→{one['job']}" * one["reserved"] or _named(one)
        for one in cell["jobs"]
    ]
    if cell["pin"]:
        jobs.insert(0, f"[{cell['pin']}]")
    if cell["doomed"]:
        jobs.append("borne by this VC: bad")
    return " ".join(jobs) or "-"


def _usage(arguments: Namespace) -> int:
    client = client_of(arguments)
    if arguments.what:
        path = f"/v1/vcs/{quote(arguments.what)}/usage"
        vcs = [client.get(path)]
    else:
        vcs = client.get("/v1/usage")["vcs"]
    if arguments.json:
        print_json({"vcs": vcs})
        return exits.OK
    rows = [row for vc in vcs for row in _uses(vc)]
    if not rows:
        say("no job holds GPUs")
        return exits.OK
    render.show_table(
        [
            Column("VC", [row[0] for row in rows]),
            Column("JOB", [row[1] for row in rows]),
            Column("GPUS", [str(row[2]) for row in rows], right=True),
            Column("RIGHT", [row[3] for row in rows]),
            Column("WHERE", [row[4] for row in rows], narrow=12),
        ]
    )
    return exits.OK


def _uses(vc: dict[str, Any]) -> list[tuple[str, str, int, str, str]]:
    """Return (VC, job, GPUs, by which right, where) for each cell and job, own cells first."""
    rows = [
        (
            vc["vc"],
            one["job"],
            one["gpus"],
            "reserved" if one["reserved"] else "owned",
            cell["address"],
        )
        for cell in vc["bound"]
        for one in cell["jobs"]
        if not one["borrowed"]
    ]
    rows += [
        (vc["vc"], one["job"], one["gpus"], "borrowed", " ".join(one["nodes"]))
        for one in vc["borrowers"]
    ]
    return rows


def _tree(arguments: Namespace) -> int:
    client = client_of(arguments)
    if arguments.json:
        print_raw(client.get_bytes(query("/v1/cells", chain=arguments.chain)))
        return exits.OK
    svg = client.get_bytes(query("/v1/cells.svg", chain=arguments.chain))
    if not arguments.out:
        print_raw(svg)
        return exits.OK
    try:
        with open(arguments.out, "wb") as file:
            file.write(svg)
    except OSError as error:
        raise CommandError(exits.FAILED, f"{arguments.out}: {error.strerror}") from None
    say(f"written to {arguments.out}")
    return exits.OK


# --- changing -------------------------------------------------------------------------------------


def _check(arguments: Namespace) -> int:
    from skep_services.cli import clusters

    arguments.file = arguments.what
    return clusters.check(arguments)


def _plan(arguments: Namespace) -> int:
    asked = _asked(arguments)
    plan = client_of(arguments).post("/v1/cells/plan", asked)
    if arguments.json:
        print_json(plan)
    else:
        _tell_plan(plan)
    return exits.OK


def _apply(arguments: Namespace) -> int:
    asked = _asked(arguments)
    client = client_of(arguments)
    plan = client.post("/v1/cells/plan", asked)
    client.post("/v1/admin/vcs", asked)
    if arguments.json:
        print_json({**plan, "asked": asked})
        return exits.OK
    _tell_plan(plan)
    say("asked for; `skep events` tells when it is in force")
    return exits.OK


def _asked(arguments: Namespace) -> Any:
    import msgspec

    from skep_services.cli import clusters

    return msgspec.to_builtins(clusters.read(arguments.what))


def _tell_plan(plan: dict[str, Any]) -> None:
    jobs, changed = plan["jobs"], [one for one in plan["jobs"] if _changes(one)]
    if changed:
        render.show_table(
            [
                Column("JOB", [one["job"] for one in changed]),
                Column("VC", [one["vc"] for one in changed]),
                Column("GPUS", [str(one["gpus"]) for one in changed], right=True),
                Column("THE JOB", [_becomes(one) for one in changed]),
                Column("PLACE", [one["place"] or "-" for one in changed], narrow=12, drop=1),
            ]
        )
        print()
    vcs = plan["vcs"]
    if vcs:
        render.show_table(
            [
                Column("VC", [one["vc"] for one in vcs]),
                Column("GPUS NOW", [_side(one["before"]) for one in vcs], right=True),
                Column("THEN", [_side(one["after"]) for one in vcs], right=True),
                Column("CELLS THEN", [_cells(one["after"]) for one in vcs], narrow=20),
            ]
        )
    for one in vcs:
        if one["after"] is not None and one["asked"] > one["after"]["gpus"]:
            say(
                f"{one['vc']} asks for {one['asked']} GPUs and gets {one['after']['gpus']} "
                "until more nodes join"
            )
    if plan["missing"]:
        say(f"not joined yet, and bad until then: {' '.join(plan['missing'])}")
    stay = len(jobs) - len(changed)
    say(f"{plural(len(changed), 'job')} affected, {stay} stay as they are, none is stopped")


def _changes(job: dict[str, Any]) -> bool:
    return job["fate"] not in ("kept", "opportunistic") or bool(job["astray"])


def _becomes(job: dict[str, Any]) -> str:
    fate = FATES.get(job["fate"], str(job["fate"]))
    return fate + (f", on {' '.join(job['astray'])} outside its cells" if job["astray"] else "")


def _side(vc: dict[str, Any] | None) -> str:
    return "-" if vc is None else str(vc["gpus"])


def _cells(vc: dict[str, Any] | None) -> str:
    if vc is None:
        return "gone"
    return (
        " ".join([*(f"{count}×{cell}" for cell, count in vc["cells"].items()), *vc["pinned"]])
        or "-"
    )


RUN: dict[str, Callable[[Namespace], int]] = {
    "ls": _list,
    "show": _show,
    "usage": _usage,
    "tree": _tree,
    "check": _check,
    "plan": _plan,
    "apply": _apply,
}
assert set(RUN) == set(EPILOG)

COMMANDS = {"vc": Command(options_vc, run_vc)}
