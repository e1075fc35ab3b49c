"""What is sent and copied piece by piece: folders of code to the cluster, files of jobs from it."""

from __future__ import annotations

import hashlib
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from skep.wire.service import ServiceSpec
from skep_client import calls
from skep_client.calls import JobLike, Spec
from skep_client.errors import BAD_ANSWER, BadAnswerError, BadCallError, SkepError
from skep_client.steps import Do, Next, Open, Out, Pause, Steps, Stream, whole_of
from skep_services.cli import code
from skep_services.cli.client import query
from skep_services.cli.exits import CommandError
from skep_services.cli.snapshots import Taken
from skep_services.gateway.answers import CodeKept, JobDetail, OutputDigest, ServiceTaken, Submitted

SILENT_S = 60.0
"""A node reads a piece of a file in milliseconds; its disk may be busy."""
BEGUN_AGAIN_MAX = 3
PART = ".skep-part"
OUTPUT_CHANGED = "output-changed"


def submitted(
    spec: Spec | None, more: Mapping[str, Any], key: str | None, vc: str | None
) -> Steps[Submitted]:
    """Submit a spec, and before that the folder that its `code` names."""
    whole = yield from whole_of(spec, more, vc)
    taken: Any = (yield Do(lambda: take(whole))) if whole.get("code") else None
    if taken is not None:
        yield from sent(str(whole["vc"]), taken)
    answer: Submitted = yield calls.submit(whole, calls.new_key(key))
    return answer


def served(
    spec: Mapping[str, Any] | ServiceSpec, key: str | None, vc: str | None, name: str | None = None
) -> Steps[ServiceTaken]:
    """Begin a service, or update the one of this name; before that send its replicas' code."""
    whole = yield from whole_of(spec, {}, vc)
    job = whole.get("job")
    if isinstance(job, dict) and job.get("code"):
        whole["job"] = tree = dict(job)
        taken: Any = yield Do(lambda: take(tree))
        if taken is not None:
            yield from sent(str(whole["vc"]), taken)
    answer: ServiceTaken = yield (
        calls.serve(whole, calls.new_key(key))
        if name is None
        else calls.update_service(name, whole)
    )
    return answer


def take(tree: dict[str, Any]) -> Taken | None:
    """Have a spec name a snapshot in place of the folder of its `code`; return the snapshot.

    Raises:
        BadCallError: The folder cannot be taken.
    """
    given = Namespace(code=None, snapshots=None)
    try:
        code.settle(tree, given)
    except CommandError as error:
        raise BadCallError(error.text) from None
    found: list[Taken] = list((given.snapshots or {}).values())
    return found[0] if found else None


def sent(vc: str, taken: Taken) -> Steps[None]:
    """Send a snapshot, as far as the cluster does not have it.

    Raises:
        BadCallError: The folder changes meanwhile.
        BadAnswerError: The cluster does not keep it.
    """
    for _ in range(code.ROUNDS_MAX):
        answer: CodeKept = yield calls.keep_code(vc, taken.digest, taken.raw)
        if answer.kept:
            return
        for body in _bodies(taken, answer.missing):
            yield calls.keep_chunks(vc, body)
    text = "the cluster does not keep the code that it was sent: submit again"
    raise BadAnswerError(BAD_ANSWER, text)


def _bodies(taken: Taken, missing: list[str]) -> Iterator[bytes]:
    try:
        for body, _ in code.bodies(taken, missing):
            yield body
    except CommandError as error:
        raise BadCallError(error.text) from None


def copied(job: JobLike, path: str, to: str | os.PathLike[str], where: dict[str, Any]) -> Stream:
    """Copy a file of a job here, and give its place once its SHA-256 is verified.

    After a lost connection it goes on at the same byte.

    Args:
        job: The job.
        path: The file, relative to the job's folder.
        to: A file or a folder here.
        where: The `attempt` and the `node` it is of; None: the latest, and the first that has it.

    Raises:
        BadCallError: It cannot be written here.
        SkepError: It changes all the time.
    """
    row: JobDetail = yield calls.job(job)
    target = Path(to)
    if target.is_dir():
        target = target / os.path.basename(path)
    part = target.with_name(target.name + PART)
    asked = {"path": path, **where}
    try:
        for _ in range(BEGUN_AGAIN_MAX):
            seen = hashlib.sha256()
            with open(part, "wb") as file:
                while True:
                    offset = file.tell() or None
                    about = query(calls.of_job(row.job, "/outputs/file"), **asked, offset=offset)
                    yield Open(about, SILENT_S)
                    while piece := (yield Next()):
                        file.write(piece)
                        seen.update(piece)
                    if piece is not None:
                        break
                    yield Pause()
            digest: OutputDigest = yield calls.output_digest(row.job, asked)
            if digest.sha256 == seen.hexdigest():
                os.replace(part, target)
                yield Out(target)
                return
    except OSError as error:
        text = f"{error.filename or target} cannot be written: {error.strerror}"
        raise BadCallError(text) from None
    finally:
        part.unlink(missing_ok=True)
    text = f"{path} of {row.job} changes while it is copied: try again when the job is done with it"
    raise SkepError(OUTPUT_CHANGED, text)
