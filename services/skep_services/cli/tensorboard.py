"""`skep tensorboard`: a TensorBoard beside a running job, and a port here that leads to it."""

from __future__ import annotations

import re
import sys
import threading
from argparse import ArgumentParser, Namespace
from typing import Any

from skep_services.cli import exits, forwarding, session
from skep_services.cli.client import Client, quote
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, client_of, job_argument, print_json, say
from skep_services.cli.render import printable

SERVES = re.compile(rb"http://(?:localhost|127\.0\.0\.1|\[::1\]):(\d{1,5})")
BEGIN_WITHIN_S = 120.0
"""TensorBoard imports for seconds, from a file server for a minute."""
SAID_BYTES_MAX = 64 * 1024
ARGUMENTS = ("--host", "127.0.0.1", "--port", "0")


def options(parser: ArgumentParser) -> None:
    """Add what `tensorboard` takes."""
    parser.usage = "skep tensorboard [--logdir DIR] [--local PORT] JOB"
    parser.epilog = (
        "The job's own `tensorboard` is run in it, as its account. It ends with this command.\n\n"
        + exits.HELP
    )
    job_argument(parser)
    parser.add_argument(
        "--logdir", metavar="DIR", help="the folder there (default: what `skep show` finds)"
    )
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="which rank (default 0)")
    parser.add_argument(
        "--local", type=int, default=0, metavar="PORT", help="the port here (default: any free)"
    )


def run(arguments: Namespace) -> int:
    """Start a TensorBoard in a job and lead a local port to it, until interrupted.

    Returns:
        The exit code: 130 after an interrupt.

    Raises:
        CommandError: It is not known what to show, or there is no TensorBoard in the job.
    """
    if arguments.rank < 0:
        raise CommandError(exits.USAGE, f"--rank {arguments.rank}: a number from 0")
    if not 0 <= arguments.local <= 65535:
        raise CommandError(exits.USAGE, f"--local {arguments.local}: a port is 1 to 65535")
    client = client_of(arguments)
    row = client.get(f"/v1/jobs/{quote(arguments.job)}")
    folder = arguments.logdir or _folder(client, row["job"])
    if not folder or folder.startswith("-") or not folder.isprintable():
        text = f"--logdir {printable(folder)}: the folder with the events of the training"
        raise CommandError(exits.USAGE, text)
    board = _Board(Client(client.target, client.patience_s), row["job"], folder, arguments.rank)
    port = board.begin()
    forwarder = forwarding.Forwarder(client, row["job"], arguments.rank)
    local = forwarder.listen(port, arguments.local)
    url = f"http://{forwarding.HOST}:{local}/"
    if arguments.json:
        print_json({"job": row["job"], "logdir": folder, "url": url})
        sys.stdout.flush()
    say(f"{url} shows {folder} of {row['job']}; Ctrl-C ends it")
    threading.Thread(target=forwarder.serve, daemon=True).start()
    board.wait()
    raise CommandError(exits.FAILED, board.why(), "cannot-execute")


def _folder(client: Client, job: str) -> str:
    found = client.get(f"/v1/jobs/{quote(job)}/links")["links"]
    folders = [str(one["folder"]) for one in found if one.get("folder")]
    if len(folders) == 1:
        return folders[0]
    if folders:
        shown = ", ".join(map(printable, folders))
        text = f"{job} writes to several folders: name one by --logdir: {shown}"
        raise CommandError(exits.USAGE, text, "bad-value")
    text = f"{job} has not said where it writes events for TensorBoard: name it by --logdir DIR"
    raise CommandError(exits.USAGE, text, "bad-value")


class _Board:
    """A TensorBoard in the job, carried by a thread of its own."""

    def __init__(self, client: Client, job: str, folder: str, rank: int) -> None:
        self._client, self._job = client, job
        argv = ["tensorboard", "--logdir", folder, *ARGUMENTS]
        self._wanted: dict[str, Any] = {"what": "exec", "argv": argv, "rank": rank}
        self._said = bytearray()
        self._port = 0
        self._known = threading.Event()
        self._over = threading.Event()
        self._error: CommandError | None = None

    def begin(self) -> int:
        """Return the port that it listens on there.

        Raises:
            CommandError: It does not begin.
        """
        threading.Thread(target=self._run, daemon=True).start()
        if not self._known.wait(BEGIN_WITHIN_S) or not self._port:
            raise CommandError(exits.FAILED, self.why(), "cannot-execute")
        return self._port

    def wait(self) -> None:
        """Return when it has ended."""
        while not self._over.wait(1.0):
            pass

    def why(self) -> str:
        """Return why it has ended, or has not begun."""
        if self._error is not None:
            missing = "not found in PATH" in self._error.text
            hint = ": install tensorboard in the environment of the job" if missing else ""
            return f"{printable(self._error.text)}{hint}"
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        last = printable(lines[-1])[:300] if lines else "it said nothing"
        return f"tensorboard in {self._job} ended: {last}"

    def _run(self) -> None:
        try:
            session.Session(self._client, self._job, self._wanted, stdin=-1, write=self._hear).run()
        except CommandError as error:
            self._error = error
        except OSError as error:
            self._error = CommandError(exits.UNREACHABLE, str(error))
        self._over.set()
        self._known.set()

    def _hear(self, number: int, data: bytes) -> int:
        del number
        self._said += data
        found = SERVES.search(self._said)
        if found is not None and not self._port and int(found[1]) <= 65535:
            self._port = int(found[1])
            self._known.set()
        del self._said[:-SAID_BYTES_MAX]
        return len(data)


COMMANDS = {"tensorboard": Command(options, run)}
