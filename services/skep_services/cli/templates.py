"""`skep template`, and filling in the template that a spec names before it is checked and sent."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render
from skep_services.cli.client import Client
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column
from skep_services.cli.specs import Document


def options_template(parser: ArgumentParser) -> None:
    """Add what `template` takes."""
    parser.add_argument(
        "verb", choices=("ls", "show"), help="ls: the templates; show NAME: what one says"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="show: a template")
    parser.add_argument("--vc", help="only those of this virtual cluster")


def run_template(arguments: Namespace) -> int:
    """List templates, or show one as YAML.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, or there is no such template.
    """
    verb, name = arguments.verb, arguments.name
    if (verb == "show") is not bool(name):
        text = "`skep template ls` takes no name; `skep template show NAME` takes one"
        raise CommandError(exits.USAGE, text)
    known = _known(client_of(arguments), arguments.vc)
    found = [one for one in known if not name or one["name"] == name]
    if name and not found:
        text = _unknown(name, [one["name"] for one in known], arguments.vc)
        raise CommandError(exits.NOT_FOUND, text, "unknown-template")
    if arguments.json:
        print_json({"templates": found})
    elif name:
        _show(found)
    elif not found:
        say("no templates: an operator writes them into the cluster file, `vcs: {VC: {templates:`")
    else:
        render.show_table(
            [
                Column("TEMPLATE", [one["name"] for one in found]),
                Column("VC", [one["vc"] for one in found]),
                Column("FIXED", [", ".join(one.get("fixed", ())) or "-" for one in found], drop=1),
                Column("ABOUT", [one.get("about") or "-" for one in found], narrow=20),
            ]
        )
    return exits.OK


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
        for one in _known(client, vc)
    }
    whole = filled(document.tree, templates)
    if isinstance(whole, Problem):
        hint = f" ({whole.suggestion})" if whole.suggestion else ""
        text = f"{document.where(whole.path)}: {whole.path}: {whole.text}{hint}"
        raise CommandError(exits.FAILED, text, str(whole.reason))
    document.tree.clear()
    document.tree.update(whole)


def _known(client: Client, vc: str | None) -> list[dict[str, Any]]:
    """Return the templates of one virtual cluster, or of all that may be seen.

    Raises:
        CommandError: There is no such virtual cluster.
    """
    rows = client.get("/v1/vcs")["vcs"]
    if vc and vc not in [row["vc"] for row in rows]:
        listed = ", ".join(row["vc"] for row in rows) or "none"
        text = f"no virtual cluster {vc}; there are: {listed}"
        raise CommandError(exits.NOT_FOUND, text, "unknown-vc")
    return [
        {"name": name, "vc": row["vc"], **template}
        for row in rows
        if vc in (None, row["vc"])
        for name, template in sorted(row.get("templates", {}).items())
    ]


def _show(found: list[dict[str, Any]]) -> None:
    """Print what templates of one name say."""
    import yaml

    for one in found:
        about = f": {one['about']}" if one.get("about") else ""
        print(f"# {one['name']} of {one['vc']}{about}")
        fixed = one.get("fixed", ())
        if fixed:
            print(f"# fixed: {', '.join(fixed)}")
        print(yaml.safe_dump(json.loads(json.dumps(one["spec"])), sort_keys=False), end="")


def _unknown(name: str, names: list[str], vc: str | None) -> str:
    """Return that there is no such template, and which there are."""
    from skep.wire.parse import nearest

    where = f" in {vc}" if vc else ""
    hint = nearest(name, sorted(names)) or f"there are: {', '.join(dict.fromkeys(names)) or 'none'}"
    return f"no template `{name}`{where}; {hint}"


COMMANDS = {"template": Command(options_template, run_template)}
