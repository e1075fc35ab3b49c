"""`%load_ext skep`: cells of a notebook as jobs. It is a client, and needs IPython only to be used.

%%skep run --gpus 1 --name fit
... Python, which runs as a job, and whose output comes here

%skep ps | logs JOB | why JOB | wait JOB | cancel JOB
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from skep_client.client import Client
from skep_client.errors import BadCallError, SkepError

CELL = "cell.py"
VERBS = ("ps", "logs", "why", "wait", "cancel")


class _Parser(ArgumentParser):
    """A parser whose errors are one line, and end nothing."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong.

        Raises:
            BadCallError: Always.
        """
        text = f"{self.prog}: {message} (%%skep run -h tells more)"
        raise BadCallError(text)


def options_run() -> ArgumentParser:
    """Return the parser of `%%skep run`."""
    parser = _Parser(prog="%%skep run", description="Run the cell as a job, its output here.")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs per worker")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--gpu-type", metavar="TYPE", help="only GPUs of this type")
    parser.add_argument("--name", default="cell", help="the job's name (default cell)")
    parser.add_argument("--vc", help="virtual cluster")
    parser.add_argument("--time", metavar="TIME", help="limit, such as 90s, 15m, 2h")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--output", action="append", default=[], metavar="PATH", help="keep it")
    parser.add_argument(
        "--python",
        metavar="PYTHON",
        help="interpreter (default: on a cluster of this machine the kernel's, else the cluster's)",
    )
    parser.add_argument("-d", "--detach", action="store_true", help="submit only")
    return parser


def spec_of(given: Namespace, folder: str, *, local: bool) -> dict[str, Any]:
    """Return the spec of a cell that is in a folder.

    Args:
        given: The options.
        folder: What the cell alone is in.
        local: The cluster is this machine.

    Raises:
        BadCallError: A variable has no value.
    """
    for each in given.env:
        if "=" not in each:
            text = f"--env {each}: give NAME=VALUE"
            raise BadCallError(text)
    tree: dict[str, Any] = {
        "name": given.name,
        "script": os.path.join(folder, CELL),
        "code": folder,
        "workdir": folder,
        "resources": {"gpus": given.gpus, "workers": given.workers},
        "env": dict(each.split("=", 1) for each in given.env),
        "outputs": given.output,
        "vc": given.vc,
        "python": given.python or (sys.executable if local else None),
        "limits": {"time": given.time} if given.time else None,
    }
    if given.gpu_type:
        tree["resources"]["gpu_type"] = given.gpu_type
    return {name: value for name, value in tree.items() if value}


def skep(line: str, cell: str | None = None) -> str | None:
    """Run a cell as a job (`%%skep run`), or ask for jobs (`%skep ps`).

    Returns:
        The job's id, where a cell was run or a job was cancelled.

    Raises:
        _failed: IPython's UsageError, one line: it was refused, or the job failed.
    """
    try:
        words = shlex.split(line)
        # A client for each line: the environment may name another cluster by now.
        with Client() as client:
            return _asked(client, words) if cell is None else _run(client, words, cell)
    except SystemExit:
        return None  # -h has printed its help.
    except (ValueError, SkepError) as error:
        # What is wrong with the line itself needs no code.
        reason = "" if isinstance(error, ValueError) else getattr(error, "reason", "")
        text = f"skep: {error}" + (f" ({reason})" if reason else "")
        raise _failed(text) from None


def _run(client: Client, words: list[str], cell: str) -> str:
    if words[:1] != ["run"]:
        text = f"%%skep {' '.join(words[:1])}: a cell is run: %%skep run [options]"
        raise BadCallError(text)
    given = options_run().parse_args(words[1:])
    with tempfile.TemporaryDirectory(prefix="skep-cell-") as folder:
        place = os.path.realpath(folder)
        Path(place, CELL).write_text(cell, encoding="utf-8")
        made = client.submit(spec_of(given, place, local=client.is_local))
    if not given.detach:
        try:
            for text in client.logs(made, follow=True):
                _tell(text)
            _ended(client, made.job)
        except KeyboardInterrupt:
            client.cancel(made)
            _tell(f"{made.job} is being cancelled")
    return made.job


def _ended(client: Client, job: str) -> None:
    """Wait for a job's end.

    Raises:
        _failed: It ended otherwise than well.
    """
    row = client.wait(job)
    why = row.detail or row.why
    if row.state != "succeeded":
        text = f"{row.job} {row.state}" + (f" ({why})" if why else "")
        raise _failed(text)
    _tell(f"{row.job} succeeded")


def _asked(client: Client, words: list[str]) -> str | None:
    if not words or words[0] not in VERBS or len(words) != 1 + (words[0] != "ps"):
        text = f"%skep ps, or one of {', '.join(VERBS[1:])} and a job; %%skep run runs a cell"
        raise BadCallError(text)
    verb, job = words[0], words[-1]
    match verb:
        case "ps":
            for row in client.jobs():
                _tell(f"{row.job:6} {row.name:20.20} {row.state:10} {row.gpus} GPUs")
        case "logs":
            for text in client.logs(job):
                _tell(text)
        case "why":
            for reason in client.why(job).reasons:
                _tell(reason.text)
        case "wait":
            _ended(client, job)
        case _:
            return client.cancel(job).job
    return None


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _failed(text: str) -> Exception:
    """Return what IPython shows as one line, and after which it runs no further cell."""
    try:
        found: Exception = import_module("IPython.core.error").UsageError(text)
    except ImportError:
        return RuntimeError(text)
    return found


def load_ipython_extension(ipython: Any) -> None:
    """Register `%skep` and `%%skep`: IPython calls it for `%load_ext skep`."""
    ipython.register_magic_function(skep, magic_kind="line_cell", magic_name="skep")
