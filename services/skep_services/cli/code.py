"""`code:` and `--code`: the folder that travels with a job. It is taken first, and sent at the end.

So are the files of an `environment`.

A spec names a folder; what is submitted names a snapshot of it, by its digest. So a job that waits
runs what the folder had when it was submitted.
"""

from __future__ import annotations

import os
import struct
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from skep_services.cli import environments, exits
from skep_services.cli.client import Client, decoded, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.progress import Transfer

if TYPE_CHECKING:
    from skep_services.cli.snapshots import Taken

BODY_BYTES = 4 * 1024 * 1024
"""What one request sends: a gateway that dies costs no more."""
SEND_TIMEOUT_S = 120.0
ROUNDS_MAX = 4
"""How often a gateway may find more to be missing: once is usual, a restart under it is another."""
PATIENCE_S = 30.0
"""How long a gateway may be away amid the sending."""
LENGTH = struct.Struct(">I")
DIGITS = frozenset("0123456789abcdef")

HELP = (
    "send this folder, without what its .skepignore names, and run there: the job runs what the "
    "folder has now, whatever becomes of it"
)


def options_code(parser: ArgumentParser) -> None:
    """Add what names a folder that travels."""
    parser.add_argument("--code", metavar="DIR", help=HELP)
    environments.options_environment(parser)
    parser.set_defaults(snapshots=None)


def settle(tree: dict[str, Any], arguments: Namespace) -> bool:
    """Have a spec name a snapshot in place of its folder; return whether it has code.

    `workdir` becomes relative to the folder; without one it is the current folder if that is in it,
    and else the folder itself.

    Args:
        tree: The spec; it is changed.
        arguments: The command line; it keeps what is taken, for `send`.

    Raises:
        CommandError: The folder cannot be taken, or the spec names what is not in it.
    """
    environments.settle(tree, arguments)
    if getattr(arguments, "code", None):
        tree["code"] = arguments.code
    code = tree.get("code")
    if not isinstance(code, str) or not code:
        return False
    if _is_digest(code):
        return True
    folder = os.path.realpath(os.path.expanduser(code))
    taken = _taken(folder, arguments)
    tree["code"] = taken.digest
    _settle_workdir(tree, folder)
    _check_script(tree, taken)
    return True


def _is_digest(text: str) -> bool:
    return len(text) == 64 and not set(text) - DIGITS


def _taken(folder: str, arguments: Namespace) -> Taken:
    from skep_services.cli.options import say
    from skep_services.cli.snapshots import take

    if getattr(arguments, "snapshots", None) is None:
        arguments.snapshots = {}
    taken: Taken | None = arguments.snapshots.get(folder)
    if taken is None:
        taken = take(folder, beside=getattr(arguments, "beside", ()))
        arguments.snapshots[folder] = taken
        if taken.skipped:
            say(f"code: {taken.skipped} sockets, pipes or devices in {folder} are left out")
    return taken


def _settle_workdir(tree: dict[str, Any], folder: str) -> None:
    """Have the workdir be relative to the folder.

    Raises:
        CommandError: It is not in the folder.
    """
    given = tree.get("workdir")
    if given is not None and not isinstance(given, str):
        return  # What is wrong with it is said by the check of the spec.
    place = os.path.realpath(os.path.expanduser(given or "."))
    inside = os.path.relpath(place, folder)
    if inside == ".." or inside.startswith("../"):
        if given is not None:
            text = f"workdir {given} is not in the folder of `code`, {folder}: leave it out"
            raise CommandError(exits.FAILED, text, "bad-value")
        inside = "."
    tree["workdir"] = inside


def _check_script(tree: dict[str, Any], taken: Taken) -> None:
    """Have the script be relative to the folder.

    Raises:
        CommandError: It does not travel.
    """
    script, workdir = tree.get("script"), tree.get("workdir")
    if not isinstance(script, str) or not script or not isinstance(workdir, str):
        return
    if os.path.isabs(script):
        inside = os.path.relpath(os.path.realpath(script), taken.folder)
        if inside.startswith(".."):
            return  # The nodes have it.
        tree["script"] = os.path.relpath(inside, workdir)
    path = os.path.normpath(os.path.join(workdir, tree["script"]))
    if path not in taken.paths:
        there = os.path.exists(os.path.join(taken.folder, path))
        why = "is left out of the snapshot (.skepignore)" if there else "does not exist"
        raise CommandError(exits.FAILED, f"script {path} {why} in {taken.folder}", "bad-value")


def send(client: Client, trees: Iterable[Any], arguments: Namespace) -> None:
    """Send the snapshots that specs name, as far as the cluster does not have them.

    Args:
        client: The gateway.
        trees: The specs, whose folders `settle` took.
        arguments: The command line.

    Raises:
        CommandError: The cluster refuses one, or cannot be reached.
    """
    taken = {one.digest: one for one in (getattr(arguments, "snapshots", None) or {}).values()}
    wanted = {
        (str(tree["vc"]), digest): taken[digest]
        for tree in trees
        if isinstance(tree, dict)
        for digest in _named(tree)
        if digest in taken
    }
    for (vc, _), one in wanted.items():
        _send(client, vc, one)


def _named(tree: dict[str, Any]) -> list[str]:
    """Return the snapshots that a spec names."""
    environment = tree.get("environment")
    files = environment.get("files") if isinstance(environment, dict) else None
    return [digest for digest in (tree.get("code"), files) if isinstance(digest, str)]


def _send(client: Client, vc: str, taken: Taken) -> None:
    """Send one snapshot, as far as the cluster does not have it.

    Raises:
        CommandError: The cluster does not keep it.
    """
    patience_s, client.patience_s = client.patience_s, max(client.patience_s, PATIENCE_S)
    path = f"/v1/code/{quote(vc)}"
    line = Transfer("sending code")
    try:
        for _ in range(ROUNDS_MAX):
            _, data = client.send("PUT", f"{path}/{taken.digest}", taken.raw)
            answer = decoded(data)
            if answer.get("kept"):
                return
            missing = [str(digest) for digest in answer.get("missing", ())]
            total = sum(taken.sizes.get(digest, 0) for digest in missing)
            sent = 0
            for body, size in bodies(taken, missing):
                line.tell(sent, total)
                client.send("POST", path, body, timeout_s=SEND_TIMEOUT_S)
                sent += size
    finally:
        line.end()
        client.patience_s = patience_s
    text = "the cluster does not keep the code that it was sent: repeat the command"
    raise CommandError(exits.UNREACHABLE, text)


def bodies(taken: Taken, missing: list[str]) -> Iterator[tuple[bytes, int]]:
    """Yield bodies of requests that send chunks, and how many bytes of chunks each has.

    Raises:
        CommandError: One is not of the snapshot.
    """
    body, size = bytearray(), 0
    for digest in missing:
        if digest not in taken.sizes:
            text = "the cluster asks for code that is not in the snapshot"
            raise CommandError(exits.FAILED, text)
        data = taken.chunk(digest)
        if body and len(body) + len(data) + LENGTH.size > BODY_BYTES:
            yield bytes(body), size
            body, size = bytearray(), 0
        body += LENGTH.pack(len(data)) + data
        size += len(data)
    if body:
        yield bytes(body), size
