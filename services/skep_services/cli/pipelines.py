"""Specs of one file that name one another in `after`: submitted in their order, all or none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from skep_services.cli import exits
from skep_services.cli.client import Client
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import ask_cancel
from skep_services.cli.problems import problem_text
from skep_services.cli.specs import Document

Send = Callable[[Client, Document, str | None], dict[str, Any]]
"""Submits one spec with its idempotency key: `submit.send`."""


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
