"""`skep cluster`: the cluster file, proposed from what joined, checked, or imported."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any, NoReturn

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.problems import problem_text
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skep.wire.cluster import Cluster
    from skep.wire.node import NodeJoined
    from skep.wire.spec import Problem
    from skep_services.cli.specs import Document
    from skep_services.supervisor.config import Retention


def options_cluster(parser: ArgumentParser) -> None:
    """Add what `cluster` takes."""
    parser.add_argument("verb", choices=("init", "check", "import"), help="what to do")
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="check: a cluster file; import: a configuration of HiveD's; - is standard input",
    )
    parser.add_argument("--out", metavar="FILE", help="where init and import write, if not here")


def run_cluster(arguments: Namespace) -> int:
    """Propose a cluster file, check one, or make one of a configuration of HiveD's.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, no node has joined, or the file cannot be read,
            written or used.
    """
    verb = arguments.verb
    if verb == "init" and arguments.file:
        raise CommandError(exits.USAGE, "`skep cluster init` takes no file but by --out")
    if verb != "init" and not arguments.file:
        raise CommandError(exits.USAGE, f"which file? (skep cluster {verb} FILE)")
    if verb == "check" and arguments.out:
        raise CommandError(exits.USAGE, "`skep cluster check` writes nothing: leave --out away")
    if verb == "init":
        return _init(arguments)
    if verb == "import":
        return _import(arguments)
    return check(arguments)


# --- init -----------------------------------------------------------------------------------------


def _init(arguments: Namespace) -> int:
    from skep.cells.propose import propose

    inventory = _inventory(arguments)
    if not inventory:
        text = "no node with a GPU has joined (`skep node ls`, `skep doctor`)"
        raise CommandError(exits.FAILED, text)
    return _write(arguments, propose(inventory), [], explain=True)


def _inventory(arguments: Namespace) -> list[NodeJoined]:
    """Return the nodes in use and their GPUs, as the gateway knows them."""
    from skep.wire.node import Gpu, NodeJoined

    gpus: dict[str, list[Gpu]] = {}
    for row in client_of(arguments).get("/v1/gpus")["gpus"]:
        gpu = Gpu(index=row["index"], type=row["type"], memory=row["memory"])
        gpus.setdefault(row["node"], []).append(gpu)
    return [
        NodeJoined(
            node=node,
            identity="",
            incarnation=1,
            address="",
            ports=(1, 1),
            gpus=tuple(each),
            cpus=0,
            memory=0,
        )
        for node, each in gpus.items()
    ]


# --- import ---------------------------------------------------------------------------------------


def _import(arguments: Namespace) -> int:
    from skep.cells.hived import import_hived

    document = read_document(arguments.file)
    read = import_hived(document.tree)
    if isinstance(read, list):
        refuse_document(document, read, "nothing was imported, because the configuration is wrong:")
    cluster, warnings = read
    return _write(arguments, cluster, [_told(document, one) for one in warnings])


def _write(
    arguments: Namespace, cluster: Cluster, warnings: list[dict[str, Any]], *, explain: bool = False
) -> int:
    import msgspec

    from skep.cells.clustertext import to_yaml

    text = to_yaml(cluster, explain=explain)
    if arguments.out:
        try:
            with open(arguments.out, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            told = f"{arguments.out} is there already; name another file"
            raise CommandError(exits.FAILED, told) from None
        except OSError as error:
            raise CommandError(exits.FAILED, f"{arguments.out}: {error.strerror}") from None
    if arguments.json:
        print_json({"yaml": text, "cluster": msgspec.to_builtins(cluster), "warnings": warnings})
        return exits.OK
    _warn(warnings)
    if arguments.out:
        say(f"written to {arguments.out}; next: skep cluster check {arguments.out}")
    else:
        print(text, end="")
    return exits.OK


# --- check ----------------------------------------------------------------------------------------


def check(arguments: Namespace) -> int:
    """Say everything that is wrong with a cluster file, or what it comes to.

    A file without chains is measured by the nodes that have joined, if a cluster can be asked.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The file cannot be read or has mistakes; the text names all of them.
    """
    from skep.cells.clustercheck import cluster_remarks

    document = read_document(arguments.file)
    cluster = _parsed(document)
    warnings = [_told(document, one) for one in cluster_remarks(cluster)]
    if not cluster.chains:
        cluster = _with_nodes(arguments, document, cluster, warnings)
    report = _report(cluster)
    if arguments.json:
        print_json({"ok": True, **report, "warnings": warnings})
        return exits.OK
    _warn(warnings)
    _show(report)
    return exits.OK


def read(name: str) -> Cluster:
    """Return the cluster that a file describes.

    Args:
        name: The file; `-` is standard input.

    Raises:
        CommandError: The file cannot be read or has mistakes; the text names all of them.
    """
    return _parsed(read_document(name))


def read_kept(name: str) -> tuple[Cluster, Retention | None]:
    """Return the cluster that a file describes, and how long things are kept, if it says so.

    Args:
        name: The file; `-` is standard input.

    Raises:
        CommandError: The file cannot be read or has mistakes; the text names all of them.
    """
    import msgspec

    from skep_services.supervisor.config import Retention

    document = read_document(name)
    kept = None
    if isinstance(document.tree, dict) and "retention" in document.tree:
        try:
            kept = msgspec.convert(document.tree["retention"], Retention)
        except msgspec.ValidationError as error:
            text = f"{document.where('$.retention')}: retention: {error}"
            raise CommandError(exits.USAGE, text) from None
        rest = {key: value for key, value in document.tree.items() if key != "retention"}
        document = document._replace(tree=rest)
    return _parsed(document), kept


def _parsed(document: Document) -> Cluster:
    from skep_services.cluster_files import cluster_of

    cluster = cluster_of(document.tree)
    if isinstance(cluster, list):
        refuse_document(document, cluster, f"{document.source} is wrong:")
    return cluster


def _with_nodes(
    arguments: Namespace, document: Document, cluster: Cluster, warnings: list[dict[str, Any]]
) -> Cluster:
    """Return the cluster with chains of what joined.

    Raises:
        CommandError: The virtual clusters own more GPUs than have joined, or the gateway refuses.
    """
    from skep.cells.clustercheck import problem
    from skep.cells.propose import resolve
    from skep.wire.reasons import Reason

    try:
        inventory = _inventory(arguments)
    except CommandError as error:
        if error.code != exits.UNREACHABLE:
            raise
        text = "no chains in the file, and no cluster to ask for its nodes: quotas are not checked"
        one = problem("$.chains", Reason.MISSING_KEY, text)
        warnings.append(_told(document, one))
        return cluster
    there = sum(len(node.gpus) for node in inventory)
    wanted = sum(vc.gpus for vc in cluster.vcs.values())
    if wanted > there:
        text = (
            f"the virtual clusters own {wanted} GPUs; {there} have joined: {wanted - there} short"
        )
        one = problem("$.vcs", Reason.INFEASIBLE, text, "take some away, or add nodes")
        refuse_document(document, [one], f"{document.source} is wrong:")
    return resolve(cluster, inventory)


def _report(cluster: Cluster) -> dict[str, Any]:
    """Return what a good cluster comes to: cells there, owned and left by level, and by owner."""
    from skep.cells.feasible import stocks
    from skep.cells.levels import cells_by_level, gpus_owned, level_names
    from skep.cells.propose import resolve

    resolved = resolve(cluster, ()) if cluster.chains else cluster
    chains: dict[str, Any] = {}
    for name, stock in stocks(resolved).items():
        chain = cluster.chains[name]
        counts = cells_by_level(chain)
        chains[name] = {
            "gpu": chain.gpu,
            "nodes": len(chain.nodes),
            "gpus": counts[0],
            "levels": [
                {
                    "level": level,
                    "cells": counts[at],
                    "owned": stock.taken[at],
                    "left": stock.usable(at),
                }
                for at, level in enumerate(level_names(chain))
            ],
        }
    vcs = {
        name: {
            "gpus": gpus_owned(resolved, name),
            "cells": {f"{one.chain}/{one.level}": one.count for one in vc.cells},
            "pinned": list(vc.pinned),
            "weight": vc.weight,
            "jobs_max": vc.jobs_max,
            "policy": vc.policy,
            "options": vc.options,
            "priorities": vc.priorities,
        }
        for name, vc in resolved.vcs.items()
    }
    return {"chains": chains, "vcs": vcs}


def _show(report: dict[str, Any]) -> None:
    rows = [
        (name, chain["gpu"], one)
        for name, chain in report["chains"].items()
        for one in reversed(chain["levels"])
    ]
    if rows:
        render.show_table(
            [
                Column("CHAIN", [name for name, _, _ in rows]),
                Column("GPU", [gpu for _, gpu, _ in rows], drop=1),
                Column("LEVEL", [one["level"] for _, _, one in rows]),
                Column("CELLS", [str(one["cells"]) for _, _, one in rows], right=True),
                Column("OWNED", [str(one["owned"]) for _, _, one in rows], right=True),
                Column("LEFT", [str(one["left"]) for _, _, one in rows], right=True),
            ]
        )
        print()
    vcs = report["vcs"]
    if vcs:
        cells = [
            " ".join([*(f"{count}×{cell}" for cell, count in vc["cells"].items()), *vc["pinned"]])
            for vc in vcs.values()
        ]
        render.show_table(
            [
                Column("VC", list(vcs)),
                Column("GPUS", [str(vc["gpus"]) for vc in vcs.values()], right=True),
                Column("WEIGHT", [f"{vc['weight']:g}" for vc in vcs.values()], right=True, drop=1),
                Column("POLICY", [vc["policy"] for vc in vcs.values()], drop=2),
                Column("CELLS", [text or "-" for text in cells], narrow=20),
            ]
        )
    gpus = sum(chain["gpus"] for chain in report["chains"].values())
    owned = sum(vc["gpus"] for vc in vcs.values())
    of = f"{owned} of {render.plural(gpus, 'GPU')}" if rows else render.plural(owned, "GPU")
    say(f"no mistake: {of} owned")


# --- what they share ------------------------------------------------------------------------------


def read_document(name: str) -> Document:
    """Return the one document of a file; an empty one is a document without anything.

    Args:
        name: The file; `-` is standard input.

    Raises:
        CommandError: The file cannot be read or parsed, or holds several documents.
    """
    from skep_services.cli import specs
    from skep_services.cluster_files import HOSTS_HINT

    try:
        documents = specs.read_any(name)
    except CommandError as error:
        if error.error["reason"] == "not-json" and _bare_hosts(name):
            text = f"{error.text}\n  {HOSTS_HINT}"
            raise CommandError(error.code, text, "not-json") from None
        raise
    if len(documents) > 1:
        raise CommandError(exits.USAGE, f"{name} holds {len(documents)} documents, not 1")
    source = "standard input" if name == "-" else name
    return documents[0] if documents else specs.Document(source, None, {})


def _bare_hosts(name: str) -> bool:
    from skep_services.cluster_files import BARE_HOSTS

    if name == "-":
        return False
    with open(name, encoding="utf-8", errors="replace") as file:
        return any(BARE_HOSTS.search(line) for line in file)


def _told(document: Document, one: Problem) -> dict[str, Any]:
    return {
        "path": one.path,
        "reason": str(one.reason),
        "text": one.text,
        "suggestion": one.suggestion,
        "where": document.where(one.path),
    }


def refuse_document(document: Document, problems: Sequence[Problem], head: str) -> NoReturn:
    """Tell everything wrong with a document, each with its line, by an error.

    Args:
        document: The document.
        problems: What is wrong, one at least.
        head: The first line of the text.

    Raises:
        CommandError: Always.
    """
    told = [_told(document, one) for one in problems]
    lines = [f"{one['where']}: {problem_text(one)}" for one in told]
    text = "\n  ".join([head, *lines])
    raise CommandError(exits.FAILED, text, told[0]["reason"], problems=told)


def _warn(warnings: Sequence[dict[str, Any]]) -> None:
    for one in warnings:
        say(f"{one['where']}: {problem_text(one)}")


COMMANDS = {"cluster": Command(options_cluster, run_cluster)}
