"""`skep submit`, and handing in one spec on behalf of `skep run`."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import code, exits, files, pipelines, render, specs, templates
from skep_services.cli.client import Client, is_header_text
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, print_json, say
from skep_services.cli.problems import problem_text
from skep_services.cli.specs import Document


def options_submit(parser: ArgumentParser) -> None:
    """Add what `submit` takes."""
    options_spec(parser)
    parser.add_argument(
        "--key", help="idempotency key: submitted again with it, it is the same job"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print job ids only")


def options_spec(parser: ArgumentParser) -> None:
    """Add what every command takes that reads specs as `submit` does."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="specs; - is standard input")
    parser.add_argument("--name", help="name of the jobs, in place of what the files say")
    parser.add_argument("--vc", help="virtual cluster, in place of what the files say")
    parser.add_argument(
        "--template", metavar="NAME", help="begin from this template of the virtual cluster"
    )
    parser.add_argument(
        "--array", metavar="TASKS", help="make it an array, such as 0-99, 0-9:2, 1,3,7 or 0-99%%8"
    )
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key, as resources.gpus=2 or env.LR=0.1 (repeatable)",
    )
    parser.add_argument(
        "--no-check", action="store_true", help="leave all checks of the specs to the cluster"
    )
    code.options_code(parser)


def run_submit(arguments: Namespace) -> int:
    """Hand in specs: all of them are checked before the first one is sent.

    Returns:
        The exit code: 1 if the cluster refused one, else 0.
    """
    read = [document for name in arguments.files for document in specs.read(name)]
    documents, bounds = pipelines.split(read)
    client = client_of(arguments)
    for document in documents:
        prepare(document, arguments, client)
    bound = pipelines.bind(documents, bounds, arguments.key)
    if not arguments.no_check:
        check(documents)
        files.check_files(documents, local=client.target.local())
    code.send(client, [document.tree for document in documents], arguments)
    named = pipelines.pipelines_of(documents)
    results = pipelines.send_all(client, named, arguments.key, send)
    if arguments.json:
        print_json({"jobs": results, **({"pipelines": bound} if bound else {})})
    else:
        for result in results:
            tell(result, quiet=arguments.quiet)
        for one in bound if not arguments.quiet else ():
            print(render.printable(pipelines.told(one)))
    refused = [result for result in results if result["accepted"] is False]
    return exits.FAILED if refused else exits.OK


def prepare(document: Document, arguments: Namespace, client: Client) -> None:
    """Apply the command line to a spec, and fill in its virtual cluster and folder.

    Args:
        document: The spec; its tree is changed.
        arguments: The command line.
        client: The gateway, which is asked for the virtual cluster where none is named.
    """
    tree = document.tree
    if not isinstance(tree, dict):
        return
    for assignment in arguments.assignments:
        specs.put(tree, assignment)
    for key in ("name", "vc", "array", "template"):
        if (value := getattr(arguments, key)) is not None:
            tree[key] = value
    if tree.get("vc") is None:
        tree["vc"] = default_vc(client)
    if tree.get("template"):
        templates.fill(document, tree["vc"], client)
    specs.settle_paths(tree, keeps_workdir=code.settle(tree, arguments))


def default_vc(client: Client) -> str:
    """Return the VC of a job that names none: `SKEP_VC`, the only one there is, or `default`.

    Raises:
        CommandError: There are several and none is called `default`, or there is none.
    """
    if named := os.environ.get("SKEP_VC"):
        return named
    vcs = [str(one["vc"]) for one in client.get("/v1/vcs")["vcs"]]
    if len(vcs) == 1:
        return vcs[0]
    if "default" in vcs:
        return "default"
    listed = ", ".join(vcs) or "there is none (skep vc apply FILE)"
    text = f"which virtual cluster? say `vc:` in the spec, --vc or SKEP_VC; there are: {listed}"
    raise CommandError(exits.USAGE, text, "missing-key")


def check(documents: list[Document], done: str = "submitted") -> None:
    """Check specs as the cluster will, before anything is `done` with them.

    Args:
        documents: The specs.
        done: The participle in the text of the error.

    Raises:
        CommandError: A spec is wrong; the error has every problem of every spec.
    """
    from skep.vault.looks_secret import looks_secret, warning
    from skep.wire.parse import parse_tree
    from skep.wire.spec import SPEC_BYTES_MAX

    told: list[str] = []
    found: list[dict[str, Any]] = []
    for document in documents:
        read = parse_tree(document.tree)
        if not isinstance(read, list) and (names := looks_secret(read.env)):
            say(f"{document.where('$.env')}: warning: {warning(names)}")
        if isinstance(read, list):
            for problem in read:
                one = {
                    "path": problem.path,
                    "reason": str(problem.reason),
                    "text": problem.text,
                    "suggestion": problem.suggestion or _suggestion(problem.path, problem.text),
                }
                found.append(one)
                told.append(f"{document.where(problem.path)}: {problem_text(one)}")
        elif (size := len(encode(document.tree))) > SPEC_BYTES_MAX:
            text = f"the spec has {size} bytes; at most {SPEC_BYTES_MAX} are accepted"
            found.append({"path": "$", "reason": "too-large", "text": text})
            told.append(f"{document.where('$')}: {text}")
    if told:
        count = "a spec is" if len(documents) == 1 else "specs are"
        text = "\n  ".join([f"nothing was {done}, because {count} wrong:", *told])
        raise CommandError(exits.FAILED, text, str(found[0]["reason"]), problems=found)


def _suggestion(path: str, text: str) -> str:
    """Say what YAML did to a value that looks like text to a person."""
    if path.startswith(("$.env", "$.labels", "$.args", "$.command")) and "Expected `str" in text:
        return "put the value into quotes"
    return ""


def send(client: Client, document: Document, key: str | None) -> dict[str, Any]:
    """Submit one spec; return `{name, job, accepted, ...}`, where `accepted` is None until judged.

    Args:
        client: The gateway.
        document: The spec.
        key: The idempotency key; None: a random one. Either makes repeating safe: however often the
            request is sent, it makes one job.

    Raises:
        CommandError: The gateway cannot be reached, or the key or TRACEPARENT is not printable
            ASCII.
    """
    headers = {"Idempotency-Key": key or os.urandom(16).hex()}
    if trace := os.environ.get("TRACEPARENT"):
        headers["traceparent"] = trace
    if not all(map(is_header_text, headers.values())):
        raise CommandError(exits.USAGE, "--key and TRACEPARENT are printable ASCII")
    name = document.tree.get("name", "") if isinstance(document.tree, dict) else ""
    try:
        answer = client.post_bytes("/v1/jobs", encode(document.tree), headers)
    except CommandError as error:
        if error.code == exits.UNREACHABLE:
            hint = f"\n  to be sure it is one job, repeat with --key {headers['Idempotency-Key']}"
            raise CommandError(error.code, error.text + hint, error.error["reason"]) from None
        result = {"name": name, "job": None, "accepted": False, **error.error}
        result["where"] = where(document, error)
        return result
    return {"name": name, **answer}


def where(document: Document, error: CommandError) -> list[str]:
    """Return what the cluster has against a spec, each with its line."""
    return [
        f"{document.where(str(problem.get('path', '$')))}: {problem_text(problem)}"
        for problem in error.error.get("problems") or ()
    ] or [f"{document.source}: {error.text}"]


def encode(tree: Any) -> bytes:
    """Return a spec as JSON. What JSON does not know (YAML's dates) becomes text."""
    return json.dumps(tree, separators=(",", ":"), default=str).encode()


def tell(result: dict[str, Any], *, quiet: bool) -> None:
    """Print what became of a submission.

    Args:
        result: What `send` returned.
        quiet: Print no more than the job's id.
    """
    job = result.get("job")
    if result["accepted"] is False:
        say("\n".join(f"refused: {line}" for line in result["where"]))
        if job:
            say(f"  (it is known as {job})")
        return
    if quiet:
        print(job)
    elif result["accepted"]:
        print(f"{job} {result['name']} submitted")
        judged = result.get("judged") or {}
        for text in (judged.get("text"), judged.get("note")):
            if text:
                print(f"  {text}")
    else:
        print(
            f"{job} {result['name']} is stored; admission has not judged it yet (skep show {job})"
        )
    sys.stdout.flush()


COMMANDS = {"submit": Command(options_submit, run_submit)}
