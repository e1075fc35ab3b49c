"""Asks a job's coordinator: `python -m skep_ps.ask status | remove server 2`. Prints JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys

from skep_ps.errors import Broken, ParameterServerError, Refused
from skep_ps.wire import Late, Message, Patience, Settings, dial, settings


def ask(where: Settings, message: Message) -> Message:
    """Return the answer of the coordinator.

    Args:
        where: Where it is, and what lets us in.
        message: The question.

    Raises:
        Broken: The coordinator is away, or the connection failed.
        Refused: The token or the attempt is not that of the job.
        Late: There is no answer within `where.wait_s`.
    """
    channel = dial(where.host, where.port, where.secret)
    try:
        channel.send(message)
        return channel.receive(Patience(where.wait_s, "the coordinator answers"))
    finally:
        channel.close()


def main() -> int:
    """Ask one thing; return 1 if it was not done."""
    parser = argparse.ArgumentParser(prog="python -m skep_ps.ask", description=__doc__)
    parser.add_argument("--coordinator", help="HOST:PORT, instead of SKEP_PS")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("status", help="who is in, and what has changed")
    remove = verbs.add_parser("remove", help="take a server or worker out of the job")
    remove.add_argument("role", choices=("server", "worker"))
    remove.add_argument("id", type=int)
    options = parser.parse_args()
    environ = dict(os.environ)
    if options.coordinator:
        environ["SKEP_PS"] = options.coordinator
    message: Message = {"type": options.verb}
    if options.verb == "remove":
        message |= {"role": options.role, "id": options.id}
    try:
        answer = ask(settings(environ), message)
    except (Broken, Refused, Late, ParameterServerError) as error:
        answer = {"done": False, "why": str(error)}
    answer.pop("type", None)
    json.dump(answer, sys.stdout, indent=2)
    print()
    return 0 if answer.get("done", True) else 1


if __name__ == "__main__":
    sys.exit(main())
