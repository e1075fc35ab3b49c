"""`skep artifacts` and `skep cp`: what a job leaves in its folder, listed and copied here."""

from __future__ import annotations

import hashlib
import os
import time
from argparse import ArgumentParser, Namespace
from typing import Any, NamedTuple

from skep_services.cli import exits, render
from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client, query, quote
from skep_services.cli.connection import Answer
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, job_argument, print_json, say
from skep_services.cli.progress import Transfer

READ_TIMEOUT_S = 60.0
DIGEST_TIMEOUT_S = 630.0
READ_BYTES = 1024 * 1024
BEGUN_AGAIN_MAX = 3
"""How often a file that changes meanwhile is begun anew."""
PART = ".skep-part"


class Source(NamedTuple):
    """A file of a job, and where it goes."""

    job: str
    path: str
    node: str
    attempt: str
    place: str


def options_artifacts(parser: ArgumentParser) -> None:
    """Add what `artifacts` takes."""
    job_argument(parser)
    parser.add_argument("--attempt", metavar="N", help="of this attempt (default: the latest)")


def run_artifacts(arguments: Namespace) -> int:
    """List the files of a job's outputs."""
    found = _listed(client_of(arguments), arguments.job, arguments.attempt)
    if arguments.json:
        print_json(found)
        return exits.OK
    rows = [(str(one["node"]), *each) for one in found["nodes"] for each in one["files"]]
    if rows:
        render.show_table(
            [
                render.Column("PATH", [render.printable(str(row[1])) for row in rows]),
                render.Column("SIZE", [render.size(int(row[2])) for row in rows], right=True),
                render.Column(
                    "WRITTEN", [render.clock_time(row[3] * 10**9, date=True) for row in rows]
                ),
                render.Column("NODE", [row[0] for row in rows]),
            ]
        )
    for one in found["nodes"]:
        if one["away"]:
            say(f"{one['node']} does not answer: what it has is not listed")
        if one["more"]:
            say(f"{one['node']} has more files than are listed")
    if not rows:
        say(f"{found['job']} attempt {found['attempt']} has no outputs (`outputs:` names them)")
    return exits.OK


def options_cp(parser: ArgumentParser) -> None:
    """Add what `cp` takes."""
    parser.add_argument("source", metavar="JOB:PATH", help="a file or folder of a job's folder")
    parser.add_argument("target", metavar="PLACE", help="a file or folder here")
    parser.add_argument("--attempt", metavar="N", help="of this attempt (default: the latest)")
    parser.add_argument("--node", help="of this node (default: the first that has it)")


def run_cp(arguments: Namespace) -> int:
    """Copy a file of a job, or a folder of its outputs.

    Raises:
        CommandError: No file of a job is named, or it cannot be copied.
    """
    job, mark, path = arguments.source.partition(":")
    if not mark or not job or "/" in job:
        if ":" in arguments.target and "/" not in arguments.target.partition(":")[0]:
            text = (
                "copying into a job is not built: give it the file as part of its code "
                "(`--code`), or on storage that the nodes share"
            )
            raise CommandError(exits.USAGE, text, "not-built")
        text = f"{arguments.source}: write JOB:PATH, such as j3:ckpt/model.pt"
        raise CommandError(exits.USAGE, text)
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    path = path.rstrip("/")
    _check_path(path)
    sources = _sources(client, job, path, arguments)
    copied = [_copied(client, one) for one in sources]
    if arguments.json:
        print_json({"copied": copied})
    else:
        for one in copied:
            print(f"{one['path']} -> {one['to']} ({render.size(one['bytes'])})")
    return exits.OK


def _check_path(path: str) -> None:
    from skep.wire.snapshot import unsafe

    if why := unsafe(path):
        text = f"{path or 'the path'!r} is no path in the job's folder: {why}"
        raise CommandError(exits.USAGE, text, "bad-value")


def _listed(client: Client, job: str, attempt: str | None) -> dict[str, Any]:
    found: dict[str, Any] = client.get(
        query(f"/v1/jobs/{quote(job)}/outputs", attempt=attempt), READ_TIMEOUT_S
    )
    return found


def _sources(client: Client, job: str, path: str, arguments: Namespace) -> list[Source]:
    """Return the files to copy: one that has the path, or all those below it.

    Raises:
        CommandError: There are more than are listed.
    """
    listed = _listed(client, job, arguments.attempt)
    attempt, into = str(listed["attempt"]), arguments.target
    is_folder = into.endswith("/") or os.path.isdir(into)
    place = os.path.join(into, os.path.basename(path)) if is_folder else into
    for one in listed["nodes"]:
        if arguments.node not in (None, one["node"]):
            continue
        paths = [str(each[0]) for each in one["files"]]
        if path in paths:
            return [Source(job, path, one["node"], attempt, place)]
        inside = [each for each in paths if each.startswith(f"{path}/")]
        if inside and one["more"]:
            text = f"{one['node']} has more files in {path} than it lists: copy them one by one"
            raise CommandError(exits.FAILED, text, "too-large")
        for each in inside:
            _check_path(each)
        if inside:
            return [
                Source(job, each, one["node"], attempt, os.path.join(place, each[len(path) + 1 :]))
                for each in inside
            ]
    # Whatever is in the folder of a job can be copied, if it is named.
    return [Source(job, path, arguments.node or "", attempt, place)]


def _copied(client: Client, source: Source) -> dict[str, Any]:
    """Copy one file; return what was copied, and where to.

    Raises:
        CommandError: It cannot be had or written, or what came is not what the node has.
        OSError: The gateway is away for too long.
    """
    folder = os.path.dirname(source.place)
    begun = 0
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
        while True:
            try:
                return _once(client, source)
            except CommandError as error:
                begun += 1
                if error.error.get("reason") != "output-changed" or begun == BEGUN_AGAIN_MAX:
                    raise
    except OSError as error:
        if error.filename is None:
            raise
        text = f"{error.filename} cannot be written: {error.strerror}"
        raise CommandError(exits.FAILED, text) from None


def _once(client: Client, source: Source) -> dict[str, Any]:
    first = client.stream(_address(source), READ_TIMEOUT_S)
    size, token = int(first.headers["skep-size"]), first.headers["skep-token"]
    part = f"{source.place}.{token}{PART}"
    line = Transfer(f"copying {os.path.basename(source.path)}")
    with open(part, "ab") as file:
        at = file.tell()
        answer: Answer | None = first
        if at:
            client.close()  # What came before is gone on with.
            answer = None
        deadline = time.monotonic() + client.patience_s
        while at < size:
            try:
                if answer is None:
                    path = _address(source, offset=at, token=token)
                    answer = client.stream(path, READ_TIMEOUT_S)
                for piece in answer.pieces():
                    file.write(piece)
                    at += len(piece)
                    line.tell(at, size)
                    deadline = time.monotonic() + client.patience_s
            except OSError as error:
                if error.filename is not None or time.monotonic() > deadline:
                    raise
                client.pause()
            answer = None
    if not size:
        first.read()
    line.end()
    digest = _digest(part)
    wanted = client.get(_address(source, "digest", token=token), DIGEST_TIMEOUT_S)["sha256"]
    if digest != wanted:
        os.unlink(part)
        text = f"{source.path} came corrupt: its SHA-256 is {digest}, on the node {wanted}"
        raise CommandError(exits.FAILED, f"{text}: copy it again", "corrupt")
    os.replace(part, source.place)
    return {"path": source.path, "to": source.place, "bytes": size, "sha256": digest}


def _address(source: Source, what: str = "file", **more: Any) -> str:
    path = f"/v1/jobs/{quote(source.job)}/outputs/{what}"
    node = source.node or None
    return query(path, path=source.path, attempt=source.attempt, node=node, **more)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


COMMANDS = {
    "artifacts": Command(options_artifacts, run_artifacts),
    "cp": Command(options_cp, run_cp),
}
