"""`skep artifacts` and `skep cp`: what a job leaves in its folder, listed and copied here."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
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
    parser.usage = (
        "skep cp [options] JOB:PATH PLACE        (out of the job; PLACE `-`: standard output)\n"
        "       skep cp [options] PLACE JOB:PATH        (into a running job's folder)"
    )
    parser.epilog = (
        "Paths are those of the job's folder, and lead nowhere else. What is cut off goes on when\n"
        "it is repeated; every copy is verified.\n\n" + exits.HELP
    )
    parser.add_argument("source", metavar="SOURCE", help="a file or folder: JOB:PATH, or one here")
    parser.add_argument("target", metavar="TARGET", help="where it goes: PLACE here, or JOB:PATH")
    parser.add_argument("--attempt", metavar="N", help="of this attempt (default: the latest)")
    parser.add_argument("--node", help="of this node (default: the first that has it)")
    parser.add_argument(
        "--rank", type=int, default=0, metavar="N", help="into the folder of this rank (default 0)"
    )


def run_cp(arguments: Namespace) -> int:
    """Copy a file or a folder into a job, or out of it.

    Raises:
        CommandError: No file of a job is named, or it cannot be copied.
    """
    job, path = _of_job(arguments.source)
    to_job, place = _of_job(arguments.target)
    if arguments.rank < 0:
        raise CommandError(exits.USAGE, f"--rank {arguments.rank}: a number from 0")
    if job and to_job:
        text = "copying from job to job is not built: copy it here first, or use a volume"
        raise CommandError(exits.USAGE, text, "not-built")
    if to_job:
        return _into(arguments, to_job, place)
    if not job:
        text = f"{arguments.source}: write JOB:PATH for one of the two, such as j3:ckpt/model.pt"
        raise CommandError(exits.USAGE, text)
    if arguments.json and arguments.target == "-":
        raise CommandError(exits.USAGE, "--json is not for a copy to standard output")
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    path = path.rstrip("/")
    _check_path(path)
    copied = _out_of(client, job, path, arguments)
    if arguments.json:
        print_json({"copied": copied})
    elif arguments.target != "-":
        for one in copied:
            print(f"{one['path']} -> {one['to']} ({render.size(one['bytes'])})")
    return exits.OK


def _of_job(text: str) -> tuple[str, str]:
    """Return job and path of `j3:ckpt`; no job: it is a place here, as `./a:b` is."""
    job, mark, path = text.partition(":")
    return (job, path) if mark and job and "/" not in job else ("", text)


def _into(arguments: Namespace, job: str, place: str) -> int:
    from skep_services.cli import copying

    if arguments.source == "-":
        text = "standard input has no length: give a file, or skep exec JOB -- sh -c 'cat > PATH'"
        raise CommandError(exits.USAGE, text, "not-built")
    if arguments.attempt or arguments.node:
        raise CommandError(exits.USAGE, "--attempt and --node are for copies out of a job: --rank")
    if place.rstrip("/") not in ("", "."):
        _check_path(place.rstrip("/"))
    elif place.startswith("/"):
        _check_path(place)
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    row = client.get(f"/v1/jobs/{quote(job)}")
    copied = copying.put(client, row["job"], arguments.source, place, arguments.rank)
    if arguments.json:
        print_json({"job": row["job"], "copied": copied})
        return exits.OK
    for one in copied:
        print(f"{one['path']} -> {row['job']}:{one['to']} ({render.size(one['bytes'])})")
    return exits.OK


def _out_of(client: Client, job: str, path: str, arguments: Namespace) -> list[dict[str, Any]]:
    """Copy out of a job: what its nodes keep, or in a session what only its processes reach.

    Raises:
        CommandError: It cannot be had.
    """
    into = arguments.target
    try:
        sources = _sources(client, job, path, arguments)
        if into == "-":
            if len(sources) != 1:
                text = f"{path} is a folder: only a file can be copied to standard output"
                raise CommandError(exits.USAGE, text, "bad-value")
            _to_stdout(client, sources[0])
            return []
        return [_copied(client, one) for one in sources]
    except CommandError as error:
        if error.error.get("reason") != "no-output" or arguments.attempt or arguments.node:
            raise
        row = client.get(f"/v1/jobs/{quote(job)}")
        if row["state"] != "running" or (row.get("spec") or {}).get("code"):
            raise
    from skep_services.cli import copying

    def place_of(inner: str, folder: bool) -> str:
        if into == "-":
            return ""
        is_folder = into.endswith("/") or os.path.isdir(into)
        place = os.path.join(into, os.path.basename(path)) if is_folder else into
        return os.path.join(place, inner) if folder else place

    return copying.get(client, row["job"], path, arguments.rank, place_of)


def _to_stdout(client: Client, source: Source) -> None:
    """Write one file to standard output, and verify it.

    Raises:
        CommandError: What came is not what the node has: it was written, and must not be used.
    """
    first = client.stream(_address(source), READ_TIMEOUT_S)
    size, token = int(first.headers["skep-size"]), first.headers["skep-token"]
    digest = hashlib.sha256()

    def write(piece: bytes) -> None:
        digest.update(piece)
        sys.stdout.buffer.write(piece)

    _fetch(client, source, first, (size, token, 0), write)
    sys.stdout.buffer.flush()
    wanted = client.get(_address(source, "digest", token=token), DIGEST_TIMEOUT_S)["sha256"]
    if digest.hexdigest() != wanted:
        text = f"{source.path} came corrupt: its SHA-256 on the node is {wanted}: copy it again"
        raise CommandError(exits.FAILED, text, "corrupt")


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
    with open(part, "ab") as file:
        at = file.tell()
        if at:
            client.close()  # What came before is gone on with.
        _fetch(client, source, None if at else first, (size, token, at), file.write)
    digest = _digest(part)
    wanted = client.get(_address(source, "digest", token=token), DIGEST_TIMEOUT_S)["sha256"]
    if digest != wanted:
        os.unlink(part)
        text = f"{source.path} came corrupt: its SHA-256 is {digest}, on the node {wanted}"
        raise CommandError(exits.FAILED, f"{text}: copy it again", "corrupt")
    os.replace(part, source.place)
    return {"path": source.path, "to": source.place, "bytes": size, "sha256": digest}


def _fetch(
    client: Client,
    source: Source,
    answer: Answer | None,
    content: tuple[int, str, int],
    write: Callable[[bytes], object],
) -> None:
    """Have what is missing of a file written; it goes on after a connection is cut.

    Args:
        client: The gateway.
        source: The file.
        answer: What comes of it already; None: nothing does.
        content: How large it is, which content it is, and how much of it is there.
        write: Takes the bytes.

    Raises:
        CommandError: It cannot be had.
        OSError: The gateway is away for too long, or it cannot be written.
    """
    size, token, at = content
    line = Transfer(f"copying {os.path.basename(source.path)}")
    first, deadline = answer, time.monotonic() + client.patience_s
    while at < size:
        try:
            if answer is None:
                path = _address(source, offset=at, token=token)
                answer = client.stream(path, READ_TIMEOUT_S)
            for piece in answer.pieces():
                _written(write, piece)
                at += len(piece)
                line.tell(at, size)
                deadline = time.monotonic() + client.patience_s
        except OSError:
            if time.monotonic() > deadline:
                raise
            client.pause()
        answer = None
    if not size and first is not None:
        first.read()
    line.end()


def _written(write: Callable[[bytes], object], piece: bytes) -> None:
    """Write some bytes: what goes wrong here is no trouble of the connection.

    Raises:
        CommandError: They cannot be written.
    """
    try:
        write(piece)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise CommandError(exits.FAILED, "standard output was closed") from None
        text = f"it cannot be written here: {error.strerror}"
        raise CommandError(exits.FAILED, text) from None


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
