"""`skep backup` and `skep restore`: a cluster as one file, and a cluster from such a file."""

from __future__ import annotations

import asyncio
import os
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skep_services.cli import exits, render
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json, say
from skep_services.cli.progress import Progress
from skep_services.cli.render import Column

if TYPE_CHECKING:
    from skep_services.adapters.nats_bus import NatsBus
    from skep_services.backups.container import BackupError
    from skep_services.backups.restoring import Verified
    from skep_services.backups.taking import Counted
    from skep_services.servers.files import ServerFile

ABOUT = """\
A backup has the streams of the bus (every submission, fact and event, with its place) and the files
of the state folder, credentials included: encrypt it. The cluster may run meanwhile. Processes and
logs of services are not in it; jobs that run are as after the loss of all nodes.

  skep backup /mnt/backups                              # a file named after the time
  skep backup week.backup --encrypt --passphrase-file FILE
  skep backup --check week.backup                       # hashes; and restores it aside to see
  skep restore week.backup --home /var/lib/skep         # it says what to type next
"""
VARIABLE = "SKEP_BACKUP_PASSPHRASE"
TRIES = 3
"""How often a backup is begun anew because messages were taken out while it was made."""


def options_backup(parser: ArgumentParser) -> None:
    """Add what `backup` takes."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument("target", metavar="FILE|DIR", type=Path, help="where it goes")
    parser.add_argument("--check", action="store_true", help="say whether a backup is good")
    parser.add_argument("--encrypt", action="store_true", help="with a passphrase")
    _passphrase_option(parser)
    parser.add_argument("--with-checkpoints", action="store_true", help="those of jobs too")
    parser.add_argument("--with-job-logs", action="store_true", help="what jobs wrote, too")


def options_restore(parser: ArgumentParser) -> None:
    """Add what `restore` takes."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = f"{ABOUT}\n{exits.HELP}"
    parser.add_argument("source", metavar="FILE", type=Path, help="a backup")
    _passphrase_option(parser)
    parser.add_argument(
        "--bus",
        action="store_true",
        help="only the streams, into the bus of the servers, or the one that SKEP_NATS_URL names",
    )
    parser.add_argument(
        "--replicas",
        type=int,
        choices=(1, 3),
        help="--bus: servers of each stream (default: as many as the cluster has)",
    )
    parser.add_argument(
        "--servers",
        type=int,
        choices=(1, 3),
        help="of a cluster of servers: how many there will be (default 1)",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST",
        help="of a cluster of servers: a name or address of this machine; the first is the one "
        "that others use (default: the machine's own)",
    )


def _passphrase_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--passphrase-file",
        metavar="FILE",
        type=Path,
        help=f"its first line is the passphrase (else {VARIABLE}, else it is asked for)",
    )


def run_backup(arguments: Namespace) -> int:
    """Take a backup, or check one.

    Returns:
        The exit code: 1 if a checked backup has a damaged log.

    Raises:
        CommandError: It cannot be taken, or is not a good one.
    """
    with _errors(arguments.target):
        return _check(arguments) if arguments.check else _backup(arguments)


def run_restore(arguments: Namespace) -> int:
    """Make a cluster from a backup.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: The backup is not a good one, or the target cannot be used.
    """
    with _errors(arguments.source):
        return _restore_bus(arguments) if arguments.bus else _restore(arguments)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Have each error be one line.

    Raises:
        CommandError: What was raised, in words.
    """
    from skep_services.backups.container import BackupError
    from skep_services.backups.locks import BusyError
    from skep_services.backups.restoring import TargetError
    from skep_services.ports import MissingStreamError, RefusedError
    from skep_services.replaying import UnreachableError
    from skep_services.servers.files import FilesError

    try:
        yield
    except FilesError as error:
        raise CommandError(exits.FAILED, str(error)) from None
    except BackupError as error:
        raise CommandError(exits.FAILED, str(error), error.reason) from None
    except TargetError as error:
        raise CommandError(exits.FAILED, str(error), "not-empty") from None
    except BusyError as error:
        raise CommandError(exits.FAILED, str(error), "busy") from None
    except UnreachableError as error:
        raise CommandError(exits.UNREACHABLE, str(error), "no-cluster") from None
    except RefusedError as error:
        raise CommandError(exits.FAILED, f"the bus refuses: {error}", "refused") from None
    except (MissingStreamError, RuntimeError) as error:
        raise CommandError(exits.FAILED, str(error), "bad-log") from None
    except TimeoutError:
        text = "the bus does not answer: see `skep doctor`"
        raise CommandError(exits.UNREACHABLE, text, "no-cluster") from None
    except OSError as error:
        text = f"{error.filename or path}: {error.strerror or error}"
        raise CommandError(exits.FAILED, text) from None


# --- backup ---------------------------------------------------------------------------------------


def _backup(arguments: Namespace) -> int:
    from skep_services.supervisor import home as folder

    home = Path(folder.cluster_folder(arguments.home))
    passphrase = _passphrase(arguments, new=True) if arguments.encrypt else ""
    path = arguments.target
    if path.is_dir():
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = path / f"skep-{stamp}.backup"
    elif not path.parent.is_dir():
        text = f"{path.parent} is no folder: make it first"
        raise CommandError(exits.USAGE, text)
    if not passphrase:
        say("it is not encrypted, and holds credentials: keep it as you would keep these")
    began = time.monotonic()
    counted = asyncio.run(_taken(arguments, home if home.is_dir() else None, path, passphrase))
    took_s = time.monotonic() - began
    size = path.stat().st_size
    if arguments.json:
        print_json(
            {
                "file": str(path),
                "bytes": size,
                "files": counted.files,
                "streams": counted.streams,
                "left": counted.left,
                "encrypted": bool(passphrase),
            }
        )
        return exits.OK
    messages = sum(counted.streams.values())
    print(
        f"{path}: {render.plural(messages, 'message')} of {len(counted.streams)} streams, "
        f"{render.plural(counted.files, 'file')}, {_size(size)}, {took_s:.1f} s"
    )
    return exits.OK


async def _taken(arguments: Namespace, home: Path | None, path: Path, passphrase: str) -> Counted:
    """Take it; again if messages were taken out meanwhile.

    Raises:
        CommandError: The cluster changes all the time.
        AssertionError: Never.
    """
    from skep.units import Instant
    from skep_services.backups.container import Writer
    from skep_services.backups.files import Kind
    from skep_services.backups.taking import ChangedError, take

    kinds = {Kind.KEPT}
    kinds |= {Kind.CHECKPOINT} if arguments.with_checkpoints else set()
    kinds |= {Kind.JOB_LOG} if arguments.with_job_logs else set()
    progress = _Progress()
    async with _bus_of(arguments.home, home) as bus:
        for left in reversed(range(TRIES)):
            writer = Writer(path, passphrase)
            try:
                counted = await take(
                    bus,
                    home,
                    writer,
                    kinds=frozenset(kinds),
                    now=Instant(time.time_ns()),
                    told=progress.told_bytes,
                )
                writer.close()
            except ChangedError as error:
                writer.drop()
                if not left:
                    raise CommandError(exits.FAILED, f"{error}: try again", "changed") from None
            except BaseException:
                writer.drop()
                raise
            else:
                return counted
            finally:
                progress.end()
    text = "the last try returned or raised"
    raise AssertionError(text)


@asynccontextmanager
async def _bus_of(given: str | None, home: Path | None) -> AsyncIterator[NatsBus]:
    """Yield a connection to the cluster's bus; of one that does not run, to a server of our own.

    Nothing is archived meanwhile, and a cluster that does not run is not started.

    Raises:
        UnreachableError: There is neither a bus nor a folder of streams.
    """
    from skep_services.adapters.nats_access import BOOTSTRAP
    from skep_services.adapters.nats_bus import NatsBus
    from skep_services.backups.aside import bus_aside
    from skep_services.backups.files import account_of
    from skep_services.backups.locks import held, keeping
    from skep_services.replaying import UnreachableError, link_options
    from skep_services.supervisor import home as folder

    with keeping(home):
        try:
            options = link_options(given, BOOTSTRAP)
        except UnreachableError:
            store, account = account_of(home) if home is not None else ("", "")
            if home is None or not store:
                raise
            with held(Path(folder.lock_path(str(home))), "the cluster is being started"):
                async with bus_aside((home / store).parent, account) as bus:
                    yield bus
            return
        bus = await NatsBus.connect(options, lambda _: None)
        try:
            yield bus
        finally:
            await bus.close()


# --- check and restore ----------------------------------------------------------------------------


def _check(arguments: Namespace) -> int:
    from skep_services.backups.checking import check

    progress = _Progress()
    try:
        found = asyncio.run(
            check(arguments.target, _passphrase_of(arguments.target, arguments), progress.told_part)
        )
    finally:
        progress.end()
    if arguments.json:
        import msgspec

        print_json(
            {"ok": found.well, **_told(found.verified), "logs": msgspec.to_builtins(found.logs)}
        )
        return exits.OK if found.well else exits.FAILED
    _tell(found.verified)
    render.show_table(
        [
            Column("LOG", [log.stream for log in found.logs]),
            Column("RECORDS", [str(log.messages - len(log.odd)) for log in found.logs], right=True),
            Column("LAST", [str(log.sequence) for log in found.logs], right=True),
            Column("", ["damaged" if log.broken else "ok" for log in found.logs], coloured=True),
        ]
    )
    for log in found.logs:
        if log.broken:
            print(f"\n{log.stream} is damaged: {log.broken}")
    return exits.OK if found.well else exits.FAILED


def _restore(arguments: Namespace) -> int:
    from skep_services.backups.restoring import refuse_unless_empty, restore
    from skep_services.supervisor import home as folder

    home = Path(folder.home_folder(arguments.home))
    refuse_unless_empty(home)
    passphrase = _passphrase_of(arguments.source, arguments)
    progress = _Progress()
    made: list[ServerFile] = []
    try:
        done = asyncio.run(
            restore(
                arguments.source,
                home,
                passphrase=passphrase,
                adopt=lambda draft: _adopt(arguments, draft, made),
                told=progress.told_part,
            )
        )
    finally:
        progress.end()
    server = made[0] if made else None
    if arguments.json:
        of = {"server": server.name, "servers": server.size} if server else {}
        print_json({"home": str(home), **_told(done), **of})
        return exits.OK
    _tell(done)
    if server is None:
        print(f"restored into {home}: start it with `skep up --home {home}`")
        return exits.OK
    here = f" --home {home}"
    print(f"restored into {home}: this is {server.name} of {server.size}, known by ", end="")
    print(server.me.hosts[0])
    print(f"  next here        skep server install --start{here}    (or: skep server run{here})")
    if server.awaits_streams:
        print(
            f"  on two others    skep server join TOKEN@{server.me.hosts[0]}    (skep server token)"
        )
        print(f"  then here        skep restore {arguments.source} --bus{here}")
    print(f"  on each node     skep node renew --at {server.me.hosts[0]}    if the name is another")
    say("the servers of before must not run any more: both would believe that they own the jobs")
    return exits.OK


def _adopt(arguments: Namespace, draft: Path, made: list[ServerFile]) -> bool:
    """Have the folder of a server be one of this machine; return whether it gets the streams.

    Raises:
        CommandError: It cannot be one, or options are for what it is not.
    """
    from skep_services.servers import files, moving, setup

    if not files.has_server(str(draft)):
        if arguments.host or arguments.servers:
            text = "--host and --servers: the backup is not of a cluster of servers"
            raise CommandError(exits.USAGE, text)
        return True
    hosts = tuple(arguments.host) or setup.default_hosts()
    made.append(moving.adopt(str(draft), hosts, arguments.servers or 1))
    return not made[0].awaits_streams


def _restore_bus(arguments: Namespace) -> int:
    from skep_services.adapters.nats_access import BOOTSTRAP
    from skep_services.adapters.nats_bus import NatsBus
    from skep_services.backups.restoring import restore_streams, verify
    from skep_services.replaying import link_options
    from skep_services.servers import files, moving
    from skep_services.supervisor import home as folder

    if arguments.host or arguments.servers:
        raise CommandError(exits.USAGE, "--host and --servers go with a restore into a folder")
    home = folder.home_folder(arguments.home)
    # A server knows how many there are; of another bus somebody has to say so.
    server = files.read_server(home) if files.has_server(home) else None
    replicas = arguments.replicas or (server.size if server else 1)
    passphrase = _passphrase_of(arguments.source, arguments)
    progress = _Progress()

    async def restored() -> Verified:
        verified = verify(arguments.source, passphrase, progress.told_part)
        bus = await NatsBus.connect(link_options(arguments.home, BOOTSTRAP), lambda _: None)
        try:
            await restore_streams(
                bus,
                arguments.source,
                verified,
                passphrase=passphrase,
                replicas=replicas,
                told=progress.told_part,
            )
        finally:
            await bus.close()
        return verified

    try:
        done = asyncio.run(restored())
    finally:
        progress.end()
    if server is not None:
        moving.streams_came(home)
    if arguments.json:
        print_json(_told(done))
        return exits.OK
    _tell(done)
    if server is not None:
        print("the streams are in the bus, and the servers go on: skep server status")
    return exits.OK


def _told(verified: Verified) -> dict[str, Any]:
    return {
        "made_at": verified.about.made_at,
        "skep": verified.about.skep,
        "bytes": verified.bytes,
        "files": len(verified.files),
        "streams": {name: one.state.get("messages", 0) for name, one in verified.streams.items()},
        "left": {name: one.last - one.cut for name, one in verified.streams.items()},
    }


def _tell(verified: Verified) -> None:
    about = verified.about
    print(
        f"made by Skep {about.skep} at {render.clock_time(about.made_at, date=True)}: "
        f"{render.plural(len(verified.files), 'file')}, {len(verified.streams)} streams"
    )


# --- passphrases and progress ---------------------------------------------------------------------


def _passphrase_of(path: Path, arguments: Namespace) -> str:
    """Return the passphrase of a backup; it is not asked for one that is not encrypted.

    Raises:
        BackupError: The file is no backup.
    """
    from skep_services.backups.container import BackupError, Reader

    try:
        Reader(path).close()
    except BackupError as error:
        if error.reason != "needs-passphrase":
            raise
        return _passphrase(arguments, new=False, needed=error)
    return ""


def _passphrase(arguments: Namespace, *, new: bool, needed: BackupError | None = None) -> str:
    """Return the passphrase that is given, or typed.

    Raises:
        CommandError: There is none.
    """
    import getpass
    import sys

    path = arguments.passphrase_file
    if path is not None:
        try:
            found = path.read_text(encoding="utf-8").partition("\n")[0].strip()
        except UnicodeDecodeError:
            raise CommandError(exits.USAGE, f"{path}: not a text") from None
        if not found:
            raise CommandError(exits.USAGE, f"{path}: its first line is empty")
        return str(found)
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE]
    if not sys.stdin.isatty():
        if needed is not None:
            raise needed
        text = f"--encrypt needs a passphrase: --passphrase-file FILE, or {VARIABLE}"
        raise CommandError(exits.USAGE, text)
    typed = getpass.getpass("passphrase of the backup: ")
    if new and (not typed or typed != getpass.getpass("the same once more: ")):
        raise CommandError(exits.USAGE, "the passphrase is empty, or was not typed alike twice")
    return typed


class _Progress:
    """One line on a terminal, at most a few times a second."""

    def __init__(self) -> None:
        self._line = Progress(["backup"])
        self._at = 0.0

    def told_part(self, _what: str, part: float) -> None:
        if time.monotonic() - self._at > 0.2:
            self._at = time.monotonic()
            self._line.tell([part])

    def told_bytes(self, what: str, size: int) -> None:
        if self._line.shown and time.monotonic() - self._at > 0.2:
            import sys

            self._at = time.monotonic()
            text = f"{what}: {_size(size)} so far"[: render.terminal_width(sys.stderr) - 1]
            sys.stderr.write("\r" + text.ljust(self._line.width))
            sys.stderr.flush()
            self._line.width = len(text)

    def end(self) -> None:
        self._line.end()


def _size(size: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size //= 1024
    return f"{size} {unit}"


COMMANDS = {
    "backup": Command(options_backup, run_backup),
    "restore": Command(options_restore, run_restore),
}
