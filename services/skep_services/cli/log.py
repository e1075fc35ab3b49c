"""`skep log`: verify the fact logs, and take out what is no record of them."""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from skep_services.archiving import Moved
    from skep_services.examining import Examined, Odd
    from skep_services.ports import Delivery
    from skep_services.replaying import Streams

ABOUT = """\
Each service that decides keeps its facts in one log on the bus: ADMISSION, ALLOC, SEARCH
and PROFILES. Each record names the hash of the record before it. What does not continue this chain
is foreign: the services pass over it, and it harms nothing.

  skep log check                        # the cluster that runs here
  skep log check --from week.jsonl.gz   # an export of `skep replay --export`
  skep log repair                       # say what would be taken out
  skep log repair --yes                 # take it out; a copy is kept in a file
  skep log archive --older 30           # what is older than 30 days goes to packed files

A record is never taken out. A log whose records are damaged is not repaired: restore a backup.
A message is doubtful if it is the last one and could be a record of a damaged log; if you know that
it is foreign, --doubtful takes it out, too. (`skep logs` prints what a job wrote.)

Archived messages are read with the stream by every service and command here. None goes that a
service needs: the owner of a log has two snapshots behind it, and all readers have read it.
"""
STREAMS = ("ADMISSION", "ALLOC", "SEARCH", "PROFILES", "ACCESS")
SHOWN = 20
DAYS_MAX = 36_500
REPAIRS = "bootstrap"
"""The identity on the bus that may take out messages of fact logs."""


def options(parser: ArgumentParser) -> None:
    """Add what `log` takes."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument("verb", choices=("check", "repair", "archive"), help="what to do")
    parser.add_argument("--stream", choices=STREAMS, default="", help="one log (default: all)")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="live|FILE",
        default="live",
        help="check: the cluster here (default), or an export",
    )
    parser.add_argument("--yes", action="store_true", help="repair: do it")
    parser.add_argument(
        "--doubtful", action="store_true", help="repair: also what is doubtful at the end of a log"
    )
    parser.add_argument(
        "--keep",
        metavar="FILE",
        type=Path,
        help="repair: where the copy goes (default: the state folder)",
    )
    parser.add_argument(
        "--older", metavar="DAYS", type=float, help="archive: how old a message is that goes"
    )


def run(arguments: Namespace) -> int:
    """Check or repair; exit code 1 if something is left to do.

    Raises:
        CommandError: The command line is wrong, the logs cannot be read, or a message cannot be
            taken out.
    """
    from skep_services.replaying import UNREADABLE, UnreachableError

    if arguments.verb == "check" and (arguments.yes or arguments.doubtful or arguments.keep):
        text = "`skep log check` changes nothing: --yes, --doubtful and --keep are of `repair`"
        raise CommandError(exits.USAGE, text)
    if arguments.verb != "check" and arguments.source != "live":
        raise CommandError(exits.USAGE, "only `check` reads an export: leave --from away")
    if (arguments.verb == "archive") != (arguments.older is not None):
        text = "`skep log archive` needs --older DAYS, and no other verb takes it"
        raise CommandError(exits.USAGE, text)
    if arguments.older is not None and not 0 <= arguments.older < DAYS_MAX:
        raise CommandError(
            exits.USAGE, f"--older {arguments.older:g}: a number of days of 0 or more"
        )
    try:
        match arguments.verb:
            case "check":
                return _check(arguments)
            case "repair":
                return _repair(arguments)
            case _:
                return _archive(arguments)
    except UnreachableError as error:
        raise CommandError(exits.UNREACHABLE, str(error), "no-cluster") from None
    except UNREADABLE as error:
        raise CommandError(exits.FAILED, str(error), "bad-log") from None


def _check(arguments: Namespace) -> int:
    from skep_services import replaying
    from skep_services.examining import examine_all

    if arguments.source == replaying.LIVE:
        streams = asyncio.run(_read(arguments.home, "operator"))
    else:
        streams = replaying.read_from(arguments.source, arguments.home)
    found = examine_all(streams, arguments.stream)
    well = all(each.well for each in found)
    if arguments.json:
        print_json({"ok": well, "logs": [_told(each) for each in found]})
        return exits.OK if well else exits.FAILED
    _show(found)
    for each in found:
        if each.broken:
            print(f"\n{each.stream} is damaged: {each.broken}")
    if any(odd.removable for each in found for odd in each.odd):
        print("\n`skep log repair` takes out what is foreign")
    return exits.OK if well else exits.FAILED


def _repair(arguments: Namespace) -> int:
    from skep_services.examining import FOREIGN, examine_all

    streams = asyncio.run(_read(arguments.home, REPAIRS))
    found = examine_all(streams, arguments.stream)
    broken = [each for each in found if each.broken]
    if broken:
        text = f"nothing was taken out: {broken[0].stream} is damaged: {broken[0].broken}"
        raise CommandError(exits.FAILED, text, "bad-log")
    wanted = [
        (each.stream, odd)
        for each in found
        for odd in each.odd
        if odd.removable and (odd.kind == FOREIGN or arguments.doubtful)
    ]
    if wanted and arguments.yes:
        kept = _keep(arguments, streams, wanted)
        asyncio.run(_take_out(arguments.home, wanted))
        found = examine_all(asyncio.run(_read(arguments.home, REPAIRS)), arguments.stream)
    else:
        kept = ""
    done = wanted if arguments.yes else []
    left = any(not each.well for each in found)
    if arguments.json:
        print_json(
            {
                "ok": not left,
                "taken_out": [_where(*each) for each in done],
                "would_take_out": [_where(*each) for each in wanted if not arguments.yes],
                "copy": kept,
                "logs": [_told(each) for each in found],
            }
        )
        return exits.FAILED if left else exits.OK
    _show(found)
    if done:
        print(f"\ntook out {render.plural(len(done), 'message')}; a copy is in {kept}")
    elif wanted:
        print(f"\nwould take out {render.plural(len(wanted), 'message')}: say --yes to do it")
    elif not left:
        say("nothing to repair")
    return exits.FAILED if left else exits.OK


def _archive(arguments: Namespace) -> int:
    """Move old messages to the archive.

    Raises:
        CommandError: Another process is at it, or the bus refuses.
    """
    from skep_services.adapters.nats_access import ARCHIVED
    from skep_services.backups.locks import BusyError, keeping
    from skep_services.supervisor import home as folder

    home = Path(folder.cluster_folder(arguments.home))
    names = (arguments.stream,) if arguments.stream else ARCHIVED
    try:
        with keeping(home):
            moved = asyncio.run(_move(arguments, names))
    except BusyError as error:
        raise CommandError(exits.FAILED, str(error), "busy") from None
    if arguments.json:
        import msgspec

        print_json({"moved": [msgspec.to_builtins(each) for each in moved]})
        return exits.OK
    render.show_table(
        [
            Column("STREAM", [each.stream for each in moved]),
            Column("ARCHIVED", [str(each.messages) for each in moved], right=True),
            Column("BYTES", [str(each.bytes) for each in moved], right=True),
            Column("PACKED", [str(each.packed) for each in moved], right=True),
            Column("BEGINS", [str(each.keep_from) for each in moved], right=True),
            Column("IT KEEPS WHAT FOLLOWS", [each.why for each in moved], narrow=20),
        ]
    )
    return exits.OK


async def _move(arguments: Namespace, names: Sequence[str]) -> list[Moved]:
    from skep.units import Instant, seconds
    from skep_services import archiving
    from skep_services.adapters.nats_bus import NatsBus
    from skep_services.cli.progress import Progress
    from skep_services.ports import RefusedError
    from skep_services.replaying import archive_here, link_options

    older, now = seconds(arguments.older * 86_400), Instant(time.time_ns())
    progress = Progress(names)
    asker = await NatsBus.connect(link_options(arguments.home, "operator"), lambda _: None)
    try:
        keeper = await NatsBus.connect(link_options(arguments.home, REPAIRS), lambda _: None)
        try:
            found = []
            for number, name in enumerate(names):
                progress.tell([float(each < number) for each in range(len(names))])
                bound = await archiving.bound_of(name, keeper, asker)
                archive = archive_here(arguments.home)
                found.append(await archiving.move(bound, keeper, archive, older, now))
            return found
        finally:
            await keeper.close()
    except archiving.AwayError as error:
        raise CommandError(exits.FAILED, str(error), "service-away") from None
    except RefusedError as error:
        text = f"{error}: a bus that an earlier version configured allows it after `skep up`"
        raise CommandError(exits.FAILED, text, "refused") from None
    finally:
        progress.end()
        await asker.close()


async def _read(home: str | None, identity: str) -> Streams:
    from skep_services.adapters.nats_bus import NatsBus
    from skep_services.adapters.nats_read import read_stream
    from skep_services.ports import RefusedError
    from skep_services.replaying import UnreachableError, archive_here, link_options

    options = link_options(home, identity)
    try:
        bus = await NatsBus.connect(options, lambda _: None, archive_here(home))
        try:
            return {stream: await read_stream(bus, stream) for stream in STREAMS}
        finally:
            await bus.close()
    except (TimeoutError, ConnectionError) as error:
        text = f"the bus at {','.join(options.servers)} cannot be read: {error!r}"
        raise UnreachableError(text) from error
    except RefusedError as error:
        text = (
            f"{options.identity} may not read the logs: set SKEP_NATS_USER and SKEP_NATS_PASSWORD "
            f"(check: operator, repair: {REPAIRS}): {error}"
        )
        raise CommandError(exits.FAILED, text, "refused") from None


async def _take_out(home: str | None, wanted: list[tuple[str, Odd]]) -> None:
    """Delete messages, one after the other.

    Raises:
        CommandError: The bus refuses to delete a message; it stays, and so do those after it.
    """
    from skep_services.adapters.nats_bus import NatsBus
    from skep_services.adapters.nats_read import take_out
    from skep_services.ports import RefusedError
    from skep_services.replaying import link_options

    bus = await NatsBus.connect(link_options(home, REPAIRS), lambda _: None)
    try:
        for stream, odd in wanted:
            await take_out(bus, stream, odd.sequence)
    except RefusedError as error:
        text = (
            f"{error}\nThe message stays, and harms nothing: every service passes over it. A log "
            f"that an earlier version created denies deletion for ever."
        )
        raise CommandError(exits.FAILED, text, "refused") from None
    finally:
        await bus.close()


def _keep(arguments: Namespace, streams: Streams, wanted: list[tuple[str, Odd]]) -> str:
    """Write a copy of what is taken out, as an export; return where it is.

    Raises:
        CommandError: The copy cannot be written.
    """
    from skep_services.adapters import exported
    from skep_services.supervisor import home as folder

    path = arguments.keep
    if path is None:
        where = Path(folder.cluster_folder(arguments.home))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = (where if where.is_dir() else Path()) / f"foreign-{stamp}.jsonl"
    places = {(stream, odd.sequence) for stream, odd in wanted}
    copies: dict[str, list[Delivery]] = {
        stream: [each for each in messages if (stream, each.sequence) in places]
        for stream, messages in streams.items()
    }
    try:
        exported.write(path, copies)
    except OSError as error:
        text = f"nothing was taken out: no copy can be kept in {path}: {error.strerror}"
        raise CommandError(exits.FAILED, text) from None
    return str(path)


def _told(log: Examined) -> dict[str, Any]:
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(log)
    return told


def _where(stream: str, odd: Odd) -> dict[str, Any]:
    return {"stream": stream, "sequence": odd.sequence, "kind": odd.kind, "why": odd.why}


def _show(found: list[Examined]) -> None:
    render.show_table(
        [
            Column("LOG", [each.stream for each in found]),
            Column("RECORDS", [str(each.records) for each in found], right=True),
            Column("EPOCH", [str(each.epoch) for each in found], right=True),
            Column("LAST", [str(each.sequence) for each in found], right=True),
            Column("TAKEN OUT", [str(each.gaps) for each in found], right=True),
            Column("FOREIGN", [str(len(each.odd)) for each in found], right=True),
            Column("", ["damaged" if each.broken else "ok" for each in found], coloured=True),
        ]
    )
    odd = [(each.stream, one) for each in found for one in each.odd]
    if odd:
        print()
        render.show_table(
            [
                Column("MESSAGE", [f"{stream} {one.sequence}" for stream, one in odd[:SHOWN]]),
                Column("IS", [one.kind for _, one in odd[:SHOWN]], coloured=True),
                Column("WHY", [one.why for _, one in odd[:SHOWN]]),
                Column("BEGINS", [one.begins for _, one in odd[:SHOWN]], narrow=20),
            ]
        )
    if len(odd) > SHOWN:
        print(f"and {len(odd) - SHOWN} more; --json lists all")


COMMANDS = {"log": Command(options, run)}
