"""`skep top`: the cluster on one screen, live. Textual (the extra `tui`) draws it."""

from __future__ import annotations

import importlib.util
import os
import sys
from argparse import ArgumentParser, Namespace

from skep_services.cli import exits, render
from skep_services.cli.client import PATIENCE_FOLLOWING_S
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of

MISSING = "skep top needs Textual, which is not installed: pip install 'skep[tui]'"
ABOUT = """keys:
  1 2 3      jobs, nodes, virtual clusters with their cells
  up down    choose a row (also j, k, PgUp, PgDn, Home, End)
  w l d      of the chosen job: why it is so, its output, its details
  s r        sort by the next column; the other way round
  a          jobs that have ended, too
  /          only jobs whose name, user, VC or id has a text (Esc: all again)
  p          the lower pane: away, and back
  q          leave
"""


def options_top(parser: ArgumentParser) -> None:
    """Add what `top` takes."""
    parser.add_argument("--vc", help="jobs of one virtual cluster")
    parser.add_argument("-a", "--all", action="store_true", help="ended jobs too")
    parser.epilog = f"{ABOUT}\n{exits.HELP}"


def run_top(arguments: Namespace) -> int:
    """Show the cluster until the person leaves.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: There is no terminal, or Textual is missing.
    """
    if arguments.json:
        text = "skep top is for a terminal: `skep ps --json` prints JSON"
        raise CommandError(exits.USAGE, text)
    if not (render.is_terminal(sys.stdout) and render.is_terminal(sys.stdin)):
        text = "skep top needs a terminal: `skep ps -w` prints what changes"
        raise CommandError(exits.USAGE, text)
    if os.environ.get("TERM", "") in {"", "dumb"}:
        text = "skep top needs a terminal that can move its cursor (TERM): use `skep ps -w`"
        raise CommandError(exits.USAGE, text)
    if importlib.util.find_spec("textual") is None:
        raise CommandError(exits.FAILED, MISSING, "not-installed")
    client = client_of(arguments, PATIENCE_FOLLOWING_S)
    client.get("/v1/jobs?limit=0")  # What is wrong is said before the screen is taken.

    from skep_services.cli.top.app import Top
    from skep_services.cli.top.feed import Feed

    failed = Top(Feed(client.target, arguments.vc, ended=arguments.all)).run()
    if failed is not None:
        raise failed
    return exits.OK


COMMANDS = {"top": Command(options_top, run_top)}
