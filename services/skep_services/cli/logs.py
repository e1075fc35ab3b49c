"""`skep logs` and `skep events`, which both can follow.

A followed log is read attempt by attempt, and the command counts the bytes it got: after a lost
connection it goes on at exactly the byte where it stopped. Of lines that are chosen by a text, the
gateway says with them how far it has read.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from skep_services.cli import exits, render
from skep_services.cli.client import (
    PATIENCE_FOLLOWING_S,
    PATIENCE_S,
    Client,
    EventParser,
    decoded,
    query,
    quote,
)
from skep_services.cli.connection import Answer
from skep_services.cli.exits import CommandError
from skep_services.cli.jobs import ENDED, POLL_S, poll, positive, seconds
from skep_services.cli.options import Command, client_of, job_argument, print_raw, say

RANKS_MAX = 64
RANK_DIGITS_MAX = 9
"""Ranks followed at once with `--rank all`: one connection and one thread each."""

BETWEEN_ATTEMPTS_S = 1
"""After an attempt's log ended: how long to wait for the job's end before looking for a retry."""

JOIN_S = 0.2

LINES_MAX = 100_000
GREP_CHARS_MAX = 256
"""What the gateway takes."""

Take = Callable[[bytes], None]


def options_logs(parser: ArgumentParser) -> None:
    """Add what `logs` takes."""
    job_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    parser.add_argument("--rank", default="0", help="one process of the gang, or all (default 0)")
    parser.add_argument(
        "--attempt", type=positive, metavar="N", help="one attempt (default: the latest)"
    )
    parser.add_argument(
        "-n", "--tail", type=lines_count, metavar="N", help="the last N lines of each rank"
    )
    parser.add_argument(
        "--since", type=whole_seconds, metavar="TIME", help="what was written since, such as 10m"
    )
    parser.add_argument("--grep", metavar="TEXT", help="only lines in which a plain text occurs")
    parser.add_argument(
        "-i", "--ignore-case", action="store_true", help="--grep: capitals are as small letters"
    )


class View(NamedTuple):
    """Which part of an output is asked for; None: all of it."""

    tail: int | None = None
    since_s: int | None = None
    text: str | None = None
    any_case: bool = False


ALL = View()


def lines_count(text: str) -> int:
    """Return a number of lines from the command line.

    Raises:
        ValueError: The text is no whole number from 0 to LINES_MAX.
    """
    count = int(text)
    if not 0 <= count <= LINES_MAX:
        raise ValueError(text)
    return count


def whole_seconds(text: str) -> int:
    """Return a length of time from the command line in whole seconds, at least one."""
    return max(1, round(seconds(text)))


def run_logs(arguments: Namespace) -> int:
    """Print a job's output. Its owner and the managers of its VC may read it.

    `--json` prints one object per piece, with rank and text.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments, PATIENCE_FOLLOWING_S if arguments.follow else PATIENCE_S)
    row = client.get(f"/v1/jobs/{quote(arguments.job)}")
    arguments.job = row["job"]  # Another job may get the same name meanwhile.
    ranks = ranks_of(arguments.rank, row)
    take = json_takers(ranks) if arguments.json else takers(ranks)
    view = view_of(arguments)
    if arguments.follow and not row.get("tasks"):
        follow_ranks(arguments, client, ranks, take, view)
        return exits.OK
    # What an array has no output of, the gateway says.
    if not row["attempt"] and not row.get("attempts") and not row.get("tasks"):
        say(f"{row['job']} has no output: it is {row['state']} and was not started yet")
        return exits.OK
    for rank in ranks:
        attempt = arguments.attempt or "latest"
        path = logs_path(row["job"], rank, attempt, follow=False, view=view)
        for piece, _ in output(client.stream(path, 60), view):
            take[rank](piece)
        take[rank](b"")
    return exits.OK


def view_of(arguments: Namespace) -> View:
    """Return which part of an output the command line asks for.

    Raises:
        CommandError: The text that is looked for is none, or has several lines.
    """
    text = arguments.grep
    if text is not None and (not text or "\n" in text or len(text) > GREP_CHARS_MAX):
        told = f"--grep: a text of one line, of 1 to {GREP_CHARS_MAX} characters"
        raise CommandError(exits.USAGE, told)
    if arguments.ignore_case and text is None:
        raise CommandError(exits.USAGE, "--ignore-case is about --grep TEXT")
    return View(arguments.tail, arguments.since, text, arguments.ignore_case)


def output(answer: Answer, view: View, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield an output piece by piece, each with the offset at which one would go on behind it.

    Args:
        answer: The gateway's.
        view: What was asked for: of lines with a text the gateway itself says the offset.
        offset: Where it begins, unless the gateway says something else.

    Raises:
        LostError: The connection ended before the output did.
        CommandError: The gateway's answer cannot be read.
    """
    if view.text is None:
        offset = int(answer.headers.get("skep-offset", offset))
        for piece in answer.pieces():
            offset += len(piece)
            yield piece, offset
        return
    rest = b""
    for piece in answer.pieces():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            told = decoded(line)
            yield told["text"].encode(), told["offset"]


def check_rank(text: str, workers: int | None = None) -> None:
    """Check what a person wrote as a rank.

    Args:
        text: The number of a rank, or `all`.
        workers: How many workers the job has; None: not known yet.

    Raises:
        CommandError: The text is neither, or such a job has no such rank.
    """
    if text == "all":
        return
    if not text.isascii() or not text.isdecimal() or len(text) > RANK_DIGITS_MAX:
        raise CommandError(exits.USAGE, f"--rank {text}: a number from 0, or all")
    if workers is not None and int(text) >= max(workers, 1):
        told = f"--rank {text}: it has {render.plural(max(workers, 1), 'worker')}, from 0 on"
        raise CommandError(exits.USAGE, told)


def ranks_of(text: str, row: dict[str, Any]) -> list[int]:
    """Return the ranks a person asked for.

    Args:
        text: The number of a rank, or `all`, which is the first RANKS_MAX at most.
        row: The job as the gateway shows it.

    Raises:
        CommandError: The text is neither, or the job has no such rank.
    """
    if text == "all":
        return list(range(min(max(row["workers"], 1), RANKS_MAX)))
    check_rank(text)
    if int(text) >= max(row["workers"], 1):
        told = f"{row['job']} has no rank {text}: it has {render.plural(row['workers'], 'worker')}"
        raise CommandError(exits.NOT_FOUND, told)
    return [int(text)]


def logs_path(
    job: str, rank: int, attempt: int | str, *, follow: bool, offset: int = 0, view: View = ALL
) -> str:
    """Return where a rank's output is read.

    Args:
        job: The job's id.
        rank: The rank.
        attempt: The number of the attempt, or `latest`.
        follow: The answer goes on until the output ends.
        offset: How many bytes of the output are passed over.
        view: Which part of it is asked for.
    """
    return query(
        f"/v1/jobs/{quote(job)}/logs",
        rank=rank,
        attempt=attempt,
        follow=int(follow),
        offset=offset or None,
        tail=view.tail,
        since_s=view.since_s,
        grep=view.text,
        any_case=1 if view.any_case else None,
    )


def takers(ranks: list[int]) -> dict[int, Take]:
    """Return what writes each rank's output: as it comes, or line by line with the rank before.

    Args:
        ranks: The ranks, in ascending order.
    """
    if len(ranks) == 1:
        return {ranks[0]: _write}
    return {rank: Prefixed(rank, len(str(ranks[-1]))) for rank in ranks}


def json_takers(ranks: list[int]) -> dict[int, Take]:
    """Return what writes each rank's output as JSON lines."""

    def taker(rank: int) -> Take:
        def take(piece: bytes) -> None:
            if piece:
                line = {"rank": rank, "text": piece.decode("utf-8", "replace")}
                _write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

        return take

    return {rank: taker(rank) for rank in ranks}


def _write(piece: bytes) -> None:
    # Past Python's buffer: a thread that holds its lock when the command ends is a crash.
    view = memoryview(piece)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]


class Prefixed:
    """Writes whole lines with their rank in front. An empty piece means that nothing follows."""

    def __init__(self, rank: int, digits: int) -> None:
        self._prefix = f"[{rank:{digits}}] ".encode()
        self._rest = b""

    def __call__(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if not piece and self._rest:
            lines, self._rest = [self._rest], b""
        if lines:
            # One write per piece: lines of several threads do not mix.
            _write(b"".join(self._prefix + line + b"\n" for line in lines))


def follow_ranks(
    arguments: Namespace, client: Client, ranks: list[int], take: dict[int, Take], view: View = ALL
) -> None:
    """Follow ranks until their job has ended.

    Args:
        arguments: The `job`, and the one `attempt` that is asked for (None: all).
        client: The gateway; each of several ranks has a connection of its own.
        ranks: The ranks.
        take: What gets the output, by rank.
        view: Which part of it is asked for.

    Raises:
        Exception: What stopped the first rank that failed.
    """
    if len(ranks) == 1:
        follow(client, arguments.job, ranks[0], take[ranks[0]], arguments.attempt, view)
        return
    import threading

    failures: list[Exception] = []

    def one(rank: int) -> None:
        try:
            own = Client(client.target, client.patience_s)
            follow(own, arguments.job, rank, take[rank], arguments.attempt, view)
        except Exception as error:  # It is raised again where it is waited for.
            failures.append(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        # One that failed ends the command: the others may be silent for hours.
        while thread.is_alive() and not failures:
            thread.join(JOIN_S)
    if failures:
        raise failures[0]


def follow(
    client: Client, job: str, rank: int, take: Take, only: int | None = None, view: View = ALL
) -> None:
    """Give a rank's output to `take` until the job has ended, or the one attempt asked for.

    Args:
        client: The gateway.
        job: The job's id.
        rank: The rank.
        take: What gets the output; an empty piece is the end of an attempt's.
        only: The number of the one attempt; None: the current one and all that follow.
        view: Which part of it is asked for; of attempts that follow only the text matters.
    """
    row = poll(client, job, "started", None)
    number = only or max(row["attempt"], 1)
    while row["attempt"]:
        if number > row["attempt"] and row["state"] in ENDED:
            return
        if number <= row["attempt"]:
            _follow_attempt(client, job, rank, number, take, view)
            if only:
                return
            number += 1
            view = View(text=view.text, any_case=view.any_case)
        row = client.get(
            query(f"/v1/jobs/{quote(job)}", wait="ended", timeout_s=BETWEEN_ATTEMPTS_S),
            BETWEEN_ATTEMPTS_S + POLL_S,
        )
        if number <= row["attempt"]:
            say(f"--- {job}: attempt {number} ---")


def _follow_attempt(
    client: Client, job: str, rank: int, attempt: int, take: Take, view: View
) -> None:
    offset = 0
    while True:
        path = logs_path(job, rank, attempt, follow=True, offset=offset, view=view)
        answer = client.stream(path, None)
        try:
            for piece, at in output(answer, view, offset):
                offset = at
                if piece:
                    take(piece)
            take(b"")
        except OSError:
            # The connection ended before the log did: go on where it stopped.
            client.pause()
            if offset:
                view = View(text=view.text, any_case=view.any_case)
        else:
            return


def _next(pieces: Iterator[bytes]) -> bytes | None:
    """Return the next piece, an empty one at the end, None where the connection was lost."""
    try:
        return next(pieces, b"")
    except OSError:
        return None


# --- events ---------------------------------------------------------------------------------------


def options_events(parser: ArgumentParser) -> None:
    """Add what `events` takes."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what happens")
    parser.add_argument("--since", type=int, metavar="ID", help="events after this one")
    parser.add_argument("--job", help="events of one job")
    parser.add_argument("--vc", help="events of one virtual cluster")


def run_events(arguments: Namespace) -> int:
    """Print what happened. With `-f`, `--json` prints one event per line.

    Returns:
        The exit code: always 0.
    """
    client = client_of(arguments, PATIENCE_FOLLOWING_S if arguments.follow else PATIENCE_S)
    if arguments.follow:
        return _follow_events(client, arguments)
    path = query("/v1/events", since=arguments.since, job=arguments.job, vc=arguments.vc)
    if arguments.json:
        print_raw(client.get_bytes(path))
        return exits.OK
    colour = render.colour_wanted()
    lines = [event_line(event, colour=colour) for event in client.get(path)["events"]]
    if lines:
        print("\n".join(lines))
    return exits.OK


def _follow_events(client: Client, arguments: Namespace) -> int:
    since = arguments.since
    colour = render.colour_wanted()
    while True:
        path = query("/v1/events", follow=1, since=since, job=arguments.job, vc=arguments.vc)
        parser = EventParser()
        pieces = client.stream(path, None).pieces()
        while piece := _next(pieces):
            for identity, data in parser.feed(piece):
                since = int(identity) if identity.isdecimal() else since
                line = data if arguments.json else event_line(json.loads(data), colour=colour)
                sys.stdout.write(line + "\n")
            sys.stdout.flush()
        # The gateway ends a stream only because it ends itself: go on with the next one.
        client.pause()


def event_line(event: dict[str, Any], *, colour: bool) -> str:
    """Return one line about an event."""
    about = event.get("job") or event.get("node") or event.get("vc") or "-"
    at = render.paint(render.clock_time(event["at"]), "2", colour=colour)
    attempt = f" (attempt {event['attempt']})" if event.get("attempt", 0) > 1 else ""
    return f"{at}  {about:8}  {render.printable(event['text'])}{attempt}"


COMMANDS = {"logs": Command(options_logs, run_logs), "events": Command(options_events, run_events)}
