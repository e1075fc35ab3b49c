"""`skep template`: list and show templates; managers set and remove those of their VC."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, render, specs, templates
from skep_services.cli.client import Client, decoded, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.render import Column
from skep_services.cli.specs import Document
from skep_services.cli.submit import default_vc, encode, where

VERBS = {
    "ls": "takes no name",
    "show": "takes a NAME",
    "set": "takes a NAME and a FILE",
    "rm": "takes a NAME",
}
"""What each verb takes."""


def options_template(parser: ArgumentParser) -> None:
    """Add what `template` takes."""
    parser.usage = "skep template ls | show NAME | set NAME FILE | rm NAME  [--vc VC]"
    parser.epilog = (
        "FILE is YAML or JSON: `spec:`, and perhaps `fixed:` and `about:`, as in a cluster file;\n"
        "- is standard input. A manager of a virtual cluster sets and removes its templates;\n"
        "those in the cluster file are the operator's.\n\n" + exits.HELP
    )
    parser.add_argument(
        "verb",
        choices=tuple(VERBS),
        help="ls: the templates; show: what one says; set: add or change one; rm: remove one",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="a template")
    parser.add_argument("file", metavar="FILE", nargs="?", help="set: what it says")
    parser.add_argument("--vc", help="only those of this virtual cluster")


def run_template(arguments: Namespace) -> int:
    """List templates, show one as YAML, set or remove one.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The command line is wrong, there is no such template, or it is refused.
    """
    verb, name = arguments.verb, arguments.name
    given = [word for word in (name, arguments.file) if word]
    if len(given) != {"ls": 0, "set": 2}.get(verb, 1):
        raise CommandError(exits.USAGE, f"`skep template {verb}` {VERBS[verb]}")
    if verb in ("set", "rm"):
        return _change(arguments, client_of(arguments))
    known = templates.known(client_of(arguments), arguments.vc)
    found = [one for one in known if not name or one["name"] == name]
    if name and not found:
        text = _unknown(name, [one["name"] for one in known], arguments.vc)
        raise CommandError(exits.NOT_FOUND, text, "unknown-template")
    if arguments.json:
        print_json({"templates": found})
    elif name:
        _show(found)
    elif not found:
        say("no templates: a manager adds one with `skep template set NAME FILE`")
    else:
        render.show_table(
            [
                Column("TEMPLATE", [one["name"] for one in found]),
                Column("VC", [one["vc"] for one in found]),
                Column("OF", [_of(one) for one in found], drop=2),
                Column("FIXED", [", ".join(one.get("fixed", ())) or "-" for one in found], drop=1),
                Column("ABOUT", [one.get("about") or "-" for one in found], narrow=20),
            ]
        )
    return exits.OK


def _of(one: dict[str, Any]) -> str:
    """Return whose a template is: the operator's, or of managers, and by whom it was set last."""
    by = one.get("by")
    return f"{one['of']} ({by})" if by else str(one["of"])


def _change(arguments: Namespace, client: Client) -> int:
    """Set or remove a template of a virtual cluster's managers.

    Raises:
        CommandError: The file is wrong, or the cluster refuses it.
    """
    vc, name = arguments.vc or default_vc(client), arguments.name
    path = f"/v1/templates/{quote(vc)}/{quote(name)}"
    if arguments.verb == "rm":
        answer = decoded(client.send("DELETE", path)[1])
    else:
        documents = specs.read(arguments.file)
        if len(documents) != 1:
            raise CommandError(exits.USAGE, f"{arguments.file}: one template at a time, please")
        (document,) = documents
        _check_file(document)
        try:
            answer = decoded(client.send("PUT", path, encode(document.tree))[1])
        except CommandError as error:
            lines = where(document._replace(lines=_beneath(document.lines)), error)
            told = "\n  ".join(["refused:", *lines])
            raise CommandError(error.code, told, str(error.error.get("reason"))) from None
    what = "removed" if arguments.verb == "rm" else "set"
    if arguments.json:
        print_json(answer)
    elif answer["accepted"]:
        print(f"template {name} of {vc} is {what}")
    else:
        print(f"template {name} of {vc}: admission has not answered yet (skep template ls)")
    return exits.OK


def _check_file(document: Document) -> None:
    """Stop at what cannot be a template: the cluster judges what its spec says.

    Raises:
        CommandError: It has other keys, or no `spec`.
    """
    tree = document.tree
    keys = ("spec", "fixed", "about")
    if not isinstance(tree, dict) or not isinstance(tree.get("spec"), dict):
        text = "a template has `spec:`, and perhaps `fixed:` and `about:`"
        raise CommandError(exits.FAILED, f"{document.where('$')}: {text}", "missing-key")
    for key in tree:
        if key not in keys:
            text = f"unknown key `{str(key)[:60]}`: a template has `spec`, `fixed` and `about`"
            raise CommandError(exits.FAILED, f"{document.where(f'$.{key}')}: {text}", "unknown-key")


def _beneath(lines: dict[str, int]) -> dict[str, int]:
    """Return the lines of a file whose paths are said from a request that the file is a part of."""
    return {f"$.template{path[1:]}": line for path, line in lines.items()}


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
