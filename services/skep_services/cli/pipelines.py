"""Specs of one file as a pipeline: they name one another in `after`, and have a bound together.

They are submitted in their order, all or none.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from skep_services.cli import exits
from skep_services.cli.client import Client
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import ask_cancel
from skep_services.cli.problems import problem_text
from skep_services.cli.specs import Document

Send = Callable[[Client, Document, str | None], dict[str, Any]]
"""Submits one spec with its idempotency key: `submit.send`."""


HEAD_KEYS = ("pipeline", "max_parallel")
"""What the document says that is about the jobs of a file together."""
MARK_CHARS = 8


class Bound(NamedTuple):
    """How many jobs of a file may be at work at the same time.

    `name` is that of the pipeline, if the file says one: it holds for every file that says it.
    """

    document: Document
    max_parallel: int
    name: str = ""


def split(documents: list[Document]) -> tuple[list[Document], dict[str, Bound]]:
    """Return the jobs among the documents, and the bounds by the files that say one.

    A bound is a document of its own: `max_parallel: 4`, perhaps with `pipeline: NAME`.

    Raises:
        _wrong: A CommandError: a bound is wrong, or bounds no more than one job.
    """
    jobs: list[Document] = []
    heads: dict[str, Document] = {}
    for document in documents:
        if not _is_head(document.tree):
            jobs.append(document)
        elif document.source in heads:
            raise _wrong(document, "$", "the file has one such document already: leave one out")
        else:
            heads[document.source] = document
    bounds = {source: _bound(head) for source, head in heads.items()}
    for source, bound in bounds.items():
        own = [job for job in jobs if job.source == source]
        if not own:
            raise _wrong(bound.document, "$", "it bounds the jobs of its file, and there is none")
        if len(own) == 1 and not bound.name:
            text = "`max_parallel` bounds the jobs of a pipeline, and the file has one job"
            hint = "leave it out; the tasks of an array are bounded by `%8` in `array: 0-99%8`"
            raise _wrong(bound.document, "$.max_parallel", f"{text} ({hint})")
    return jobs, bounds


def _is_head(tree: Any) -> bool:
    return isinstance(tree, dict) and bool(tree) and all(key in HEAD_KEYS for key in tree)


def _bound(head: Document) -> Bound:
    """Return what a document says of the jobs of its file.

    Raises:
        _wrong: A CommandError: it is no bound.
    """
    from skep.wire.parse import pipeline_problems

    most, name = head.tree.get("max_parallel"), head.tree.get("pipeline")
    if most is None:
        raise _wrong(head, "$", "`max_parallel` is required beside `pipeline`, such as 4")
    if not isinstance(most, int) or isinstance(most, bool):
        raise _wrong(head, "$.max_parallel", f"`max_parallel` must be a number, not {_shown(most)}")
    if name is not None and not isinstance(name, str):
        raise _wrong(head, "$.pipeline", f"`pipeline` must be a name, not {_shown(name)}")
    for problem in pipeline_problems("p" if name is None else name, most):
        path = "$.max_parallel" if problem.path.endswith("max_parallel") else "$.pipeline"
        raise _wrong(head, path, problem.text)
    return Bound(head, most, name or "")


def _shown(value: Any) -> str:
    return repr(value)[:40]


def _wrong(document: Document, path: str, text: str) -> CommandError:
    return CommandError(exits.FAILED, f"{document.where(path)}: {path}: {text}", "bad-value")


def bind(
    documents: list[Document], bounds: dict[str, Bound], key: str | None
) -> list[dict[str, Any]]:
    """Have each job say the pipeline that it is of; return the pipelines with their bounds.

    Args:
        documents: The jobs; their trees are changed.
        bounds: By file.
        key: The idempotency key of the command: submitted again with it, they are of the same
            pipeline.
    """
    bound_ones: list[dict[str, Any]] = []
    for source, bound in bounds.items():
        own = [each.tree for each in documents if each.source == source]
        own = [tree for tree in own if isinstance(tree, dict)]
        name = bound.name or _made_name(own, key, source)
        for tree in own:
            tree.setdefault("pipeline", {"name": name, "max_parallel": bound.max_parallel})
        found = {"pipeline": name, "max_parallel": bound.max_parallel}
        bound_ones.append({**found, "file": source, "jobs": len(own), "shared": bool(bound.name)})
    return bound_ones


def told(pipeline: dict[str, Any]) -> str:
    """Return what is said of a pipeline with a bound."""
    jobs = (
        "its jobs" if pipeline["shared"] else f"the {pipeline['jobs']} jobs of {pipeline['file']}"
    )
    most = f"at most {pipeline['max_parallel']} of {jobs} at the same time"
    return f"pipeline {pipeline['pipeline']}: {most}"


def _made_name(trees: list[dict[str, Any]], key: str | None, source: str) -> str:
    """Return a name that no other pipeline has: what the file begins with, and a mark."""
    first = re.sub(r"[^A-Za-z0-9_-]", "-", str(trees[0].get("name", "")))[:40].strip("-_")
    chance = f"{key}/{source}".encode() if key else os.urandom(16)
    return f"{first or 'jobs'}-{hashlib.sha256(chance).hexdigest()[:MARK_CHARS]}"


class Pipeline:
    """The documents of one file, in the order in which they are submitted.

    `documents` are by their place among all of the command line. `tied`: some name others.
    """

    def __init__(self, documents: dict[int, Document]) -> None:
        """Find the order.

        Raises:
            CommandError: The documents wait for one another, or a name means several of them.
        """
        from skep.wire.pipeline import order_of

        self.documents, self._places = documents, list(documents)
        order = order_of([document.tree for document in documents.values()])
        if isinstance(order, list):
            wrong = [(documents[self._places[each.spec]], each.problem) for each in order]
            refusal = _refusal(wrong)
            raise refusal
        self._order = order
        self.tied = any(order.named)

    def submit(
        self, client: Client, send: Send, keys: dict[int, str | None]
    ) -> dict[int, dict[str, Any]]:
        """Submit the documents; return what became of each, by place.

        Where some name others and the cluster refuses one, those that were taken are cancelled.

        Args:
            client: The gateway.
            send: Submits one.
            keys: The idempotency keys, by place.
        """
        from skep.wire.pipeline import resolved

        results: dict[int, dict[str, Any]] = {}
        jobs: dict[int, str] = {}
        for number in self._order.specs:
            place = self._places[number]
            document = self.documents[place]
            tree = resolved(document.tree, self._order.named[number], jobs)
            results[place] = send(client, document._replace(tree=tree), keys[place])
            if results[place]["accepted"] is False and self.tied:
                return self._undone(client, place, results)
            jobs[number] = str(results[place].get("job"))
        return results

    def _undone(
        self, client: Client, refused: int, results: dict[int, dict[str, Any]]
    ) -> dict[int, dict[str, Any]]:
        """Cancel what was taken of a pipeline of which a job was refused."""
        name = results[refused]["name"]
        for place, document in self.documents.items():
            taken = results.get(place)
            if place == refused or (taken is not None and taken.get("repeated")):
                continue
            tree = document.tree
            own = tree.get("name", "") if isinstance(tree, dict) else ""
            text = f"`{name}` of the same file was refused"
            if taken is not None:
                text += f": {_cancelled(client, str(taken['job']))}"
            results[place] = {
                "name": own,
                "job": None if taken is None else taken["job"],
                "accepted": False,
                "reason": "cancelled",
                "text": text,
                "where": [f"{document.where('$')}: {text}"],
            }
        return results


def _cancelled(client: Client, job: str) -> str:
    """Cancel a job; return what became of that."""
    try:
        ask_cancel(client, job)
    except CommandError as error:
        return f"{job} is not cancelled: {error.text}"
    return f"{job} is cancelled"


def pipelines_of(documents: list[Document]) -> list[Pipeline]:
    """Return the documents by the files that they are of.

    Raises:
        CommandError: The documents of a file wait for one another, or a name means several.
    """
    files: dict[str, dict[int, Document]] = {}
    for place, document in enumerate(documents):
        files.setdefault(document.source, {})[place] = document
    return [Pipeline(each) for each in files.values()]


def send_all(
    client: Client, pipelines: list[Pipeline], key: str | None, send: Send
) -> list[dict[str, Any]]:
    """Submit the documents of all files; return what became of each, as they were given.

    Args:
        client: The gateway.
        pipelines: The documents of each file.
        key: The idempotency key of the command; None: a random one. Every document has its own.
        send: Submits one.

    Raises:
        CommandError: The cluster cannot be reached.
    """
    results: dict[int, dict[str, Any]] = {}
    count = sum(len(each.documents) for each in pipelines)
    base = key or (os.urandom(16).hex() if count > 1 else None)
    keys = {place: base and (f"{base}-{place}" if place else base) for place in range(count)}
    for pipeline in pipelines:
        try:
            results |= pipeline.submit(client, send, keys)
        except CommandError as error:
            if error.code != exits.UNREACHABLE or count == 1:
                raise
            text = f"{error.text.partition(chr(10))[0]}\n  to go on, repeat with --key {base}"
            raise CommandError(error.code, text, error.error["reason"]) from None
    return [results[place] for place in sorted(results)]


def _refusal(wrong: list[tuple[Document, Any]]) -> CommandError:
    """Return the error for documents that name one another wrongly, with every problem."""
    told, found = [], []
    for document, problem in wrong:
        one = {
            "path": problem.path,
            "reason": str(problem.reason),
            "text": problem.text,
            "suggestion": problem.suggestion,
        }
        found.append(one)
        told.append(f"{document.where(problem.path)}: {problem_text(one)}")
    text = "\n  ".join(["nothing was submitted, because of what the specs name:", *told])
    return CommandError(exits.FAILED, text, found[0]["reason"], problems=found)
