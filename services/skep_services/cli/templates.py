"""Filling in the template that a spec, or a command line, names before it is checked and sent."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits
from skep_services.cli.client import Client, query
from skep_services.cli.exits import CommandError
from skep_services.cli.specs import Document


def fill(document: Document, vc: str, client: Client) -> None:
    """Fill in the template that a spec names.

    Args:
        document: The spec; its tree is changed.
        vc: Its virtual cluster.
        client: The gateway, which is asked for the templates.

    Raises:
        CommandError: There is no such template, or it fixes what the spec says otherwise.
    """
    from skep.wire.cluster import Template
    from skep.wire.spec import Problem
    from skep.wire.templates import filled

    templates = {
        one["name"]: Template(spec=one["spec"], fixed=tuple(one.get("fixed", ())))
        for one in known(client, vc)
    }
    whole = filled(document.tree, templates)
    if isinstance(whole, Problem):
        hint = f" ({whole.suggestion})" if whole.suggestion else ""
        text = f"{document.where(whole.path)}: {whole.path}: {whole.text}{hint}"
        raise CommandError(exits.FAILED, text, str(whole.reason))
    document.tree.clear()
    document.tree.update(whole)


def option_template(parser: ArgumentParser) -> None:
    """Add the option of commands that make a spec of their own."""
    parser.add_argument(
        "--template",
        metavar="NAME",
        help="begin from this template of the virtual cluster; other options go before it",
    )


def begin(tree: dict[str, Any], name: str, client: Client) -> None:
    """Have a spec that a command made begin from a template.

    A command line is taken whole: what the template would run is taken out where the spec says it.

    Args:
        tree: The spec, with its virtual cluster and what the command line says; it is changed.
        name: The template.
        client: The gateway.

    Raises:
        CommandError: There is no such template, or it fixes what the spec says otherwise.
    """
    if "command" in tree:
        tree |= {"script": None, "args": None}
    elif "script" in tree:
        tree["command"] = None
    tree["template"] = name
    fill(Document("the command line", tree, {}), tree["vc"], client)
    for key in ("command", "script", "args"):
        if tree.get(key, "") is None:
            del tree[key]


def resources(arguments: Namespace) -> dict[str, Any]:
    """Return the GPUs and workers that a command line asks for; without a template 1 each."""
    given = {key: getattr(arguments, key, None) for key in ("gpus", "workers", "gpu_type")}
    asked = {key: value for key, value in given.items() if value is not None}
    if not arguments.template:
        asked = {key: 1 for key in ("gpus", "workers") if hasattr(arguments, key)} | asked
    return {"resources": asked} if asked else {}


def known(client: Client, vc: str | None) -> list[dict[str, Any]]:
    """Return the templates of one virtual cluster, or of all that may be seen.

    Raises:
        CommandError: There is no such virtual cluster.
    """
    found: list[dict[str, Any]] = client.get(query("/v1/templates", vc=vc))["templates"]
    if vc and not found:
        there = [str(row["vc"]) for row in client.get("/v1/vcs")["vcs"]]
        if vc not in there:
            text = f"no virtual cluster {vc}; there are: {', '.join(there) or 'none'}"
            raise CommandError(exits.NOT_FOUND, text, "unknown-vc")
    return found
