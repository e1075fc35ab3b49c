"""`skep explain`: what a reason code means, and what to do about it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.render import Column


def options_explain(parser: ArgumentParser) -> None:
    """Add what `explain` takes."""
    parser.add_argument(
        "codes", metavar="CODE", nargs="*", help="reason codes (default: list every code)"
    )
    parser.add_argument("--grep", metavar="TEXT", help="list codes in whose texts this occurs")


def run_explain(arguments: Namespace) -> int:
    """Explain reason codes. No cluster is asked.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: There is no such code.
    """
    codes = texts()
    for code in arguments.codes:
        if code not in codes:
            raise CommandError(exits.NOT_FOUND, f"no reason {code[:60]!r}: {_hint(code, codes)}")
    chosen = arguments.codes or list(codes)
    if arguments.grep is not None:
        wanted = arguments.grep.casefold()
        chosen = [
            code for code in chosen if wanted in " ".join((code, *codes[code].values())).casefold()
        ]
    told = [{"code": code, **codes[code]} for code in dict.fromkeys(chosen)]
    if arguments.json:
        print_json({"reasons": told})
    elif arguments.codes:
        for one in told:
            print(f"{one['code']}: {one['text']}")
            if one["help"]:
                print(f"  what to do: {one['help']}")
    elif not told:
        say(f"no reason has {arguments.grep!r} in its texts")
    else:
        render.show_table(
            [
                Column("CODE", [one["code"] for one in told]),
                Column("TEXT", [one["text"] for one in told], narrow=24),
            ]
        )
    return exits.OK


def texts() -> dict[str, dict[str, str]]:
    """Return every reason: its text, and what to do about it (empty: nothing)."""
    from skep.ledger.blame import causes
    from skep.wire.reasons import TEXT
    from skep.wire.remedies import REMEDIES

    found = {
        reason.value: {"text": text, "help": REMEDIES.get(reason, "")}
        for reason, text in TEXT.items()
    }
    for cause, text in causes.TEXT.items():
        where = "a cause of `skep blame`, which says where a job's time went"
        found.setdefault(str(cause), {"text": text, "help": where})
    return found


def _hint(code: str, codes: dict[str, dict[str, str]]) -> str:
    import difflib

    close = difflib.get_close_matches(code, codes, n=1)
    return f"did you mean {close[0]}?" if close else "`skep explain` lists them"


COMMANDS = {"explain": Command(options_explain, run_explain)}
