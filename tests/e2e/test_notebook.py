"""Standard input, notebooks and cells, by the commands and by a kernel."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import skep
from tests.support.embedded import SKEP, Embedded, until

pytestmark = pytest.mark.e2e

DEADLINE_S = 120.0
CELLS = Path(__file__).parents[2] / "docs" / "examples" / "cells.ipynb"
JUPYTER = """
import datetime, http.server, json, os, sys

last, served = datetime.datetime.now(datetime.timezone.utc), 0
port = int(next(each for each in sys.argv if "ServerApp.port=" in each).partition("=")[2])

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global last, served
        good = self.path.endswith("token=" + os.environ["JUPYTER_TOKEN"])
        told = self.headers["Authorization"] == "token " + os.environ["JUPYTER_TOKEN"]
        self.send_response(200 if good or told else 403)
        self.end_headers()
        if good:
            last, served = datetime.datetime.now(datetime.timezone.utc), served + 1
            self.wfile.write(b"a page" if "count" not in self.path else b"page %d" % served)
        elif told:
            kernels = self.path.startswith("/api/kernels")
            about = [] if kernels else {"last_activity": last.isoformat()}
            self.wfile.write(json.dumps(about).encode())

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Page).serve_forever()
"""
"""Stands in for Jupyter: it listens where it is told, wants the token, counts pages, and says when
it gave the last one."""
FAILS_ONCE = (
    "import os, sys; print(len(sys.stdin.read())); "
    "sys.exit(os.environ['SKEP_RUN'].split('.')[1:] == ['1', '0'])"
)
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def words(*more: str) -> list[str]:
    return [*SKEP, *more]


def test_every_attempt_of_rank_0_reads_what_was_piped_in(cluster: Embedded) -> None:
    options = ("--vc", "nlp", "--workers", "2", "--retries", "1")
    done = subprocess.run(
        words("run", *options, "--", sys.executable, "-c", FAILS_ONCE, "-"),
        env=cluster.environment,
        input="x" * 100_000,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    of_rank_0 = [line for line in done.stdout.splitlines() if line.startswith("[0]")]
    assert of_rank_0 == ["[0] 100000"] * 2
    assert set(done.stdout.splitlines()) - set(of_rank_0) == {"[1] 0"}


def page(url: str) -> tuple[int, bytes]:
    try:
        with DIRECT.open(url, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def opened(cluster: Embedded, *more: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    made = subprocess.Popen(
        words("notebook", "--json", *more),
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None
    return made, json.loads(made.stdout.readline())


def arguments_of_all_processes() -> bytes:
    found = b""
    for each in os.listdir("/proc"):
        try:
            found += Path("/proc", each, "cmdline").read_bytes() if each.isdecimal() else b""
        except OSError:
            continue  # It has ended.
    return found


def stand_in(cluster: Embedded, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a folder be found that stands in for Jupyter."""
    package = folder / "jupyterlab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(JUPYTER)
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setitem(cluster.environment, "PYTHONPATH", path)


@pytest.mark.nightly
def test_an_idle_notebook_gives_its_gpu_back_and_the_next_request_has_it_go_on(
    cluster: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(cluster, tmp_path, monkeypatch)
    idle = ("python3", "-m", "skep_job.notebook", "--python", sys.executable, "--idle", "2")
    job = cluster.skep("run", "-d", "--vc", "nlp", "--env", "PYTHONPATH", "--", *idle).strip()

    def suspended() -> bool:
        found = cluster.get(f"/v1/jobs/{job}")
        return (found["state"], found["why"], found["released"]) == ("suspended", "idle", True)

    made, told = opened(cluster, job)
    url = told["url"].replace("/lab?", "/count?")
    assert page(url) == (200, b"page 1")
    # One connection that stays, as those of a browser do.
    port = int(url.split(":")[2].partition("/")[0])
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    kept.connect()
    until(suspended, "its suspension")
    full = ("run", "--vc", "nlp", "--gpus", "4", "--", "true")
    assert cluster.skep(*full) == "", "all GPUs of its VC are free"
    headers = {"User-Agent": "a browser, and more than a pong of a WebSocket has of bytes"}
    kept.request("GET", f"/count?{url.partition('?')[2]}", headers=headers)
    assert kept.getresponse().read() == b"page 2", "it is the process that it was"
    until(suspended, "its suspension")
    assert page(url) == (200, b"page 3"), "a new connection waits for it too"
    until(suspended, "its suspension")
    again, told_again = opened(cluster, job)
    assert page(told_again["url"].replace("/lab?", "/count?")) == (200, b"page 4")
    kept.close()
    cluster.skep("cancel", job)
    for one in (made, again):
        assert f"{job} cancelled after" in one.communicate(timeout=DEADLINE_S)[1]


def test_a_notebook_outlives_its_client_and_keeps_its_token(
    cluster: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(cluster, tmp_path, monkeypatch)
    made, told = opened(cluster, "--vc", "nlp", "--env", "PYTHONPATH", "--python", sys.executable)
    token = told["url"].rpartition("token=")[2]
    assert len(token) == 48
    assert page(told["url"]) == (200, b"a page")
    assert page(told["url"].replace(token, "x"))[0] == 403
    job = told["job"]
    assert token not in json.dumps(cluster.get(f"/v1/jobs/{job}"))
    assert token not in cluster.log(job)
    assert token.encode() not in arguments_of_all_processes()
    made.send_signal(signal.SIGINT)
    assert f"{job} goes on: skep notebook {job}" in made.communicate(timeout=DEADLINE_S)[1]
    assert made.returncode == 0

    again, told_again = opened(cluster, job)
    assert told_again["url"].rpartition("token=")[2] == token
    assert page(told_again["url"]) == (200, b"a page")
    cluster.skep("cancel", job)
    assert f"{job} cancelled after" in again.communicate(timeout=DEADLINE_S)[1]
    assert again.returncode == 1
    over = subprocess.run(
        words("notebook", job), env=cluster.environment, capture_output=True, text=True, check=False
    )
    assert over.returncode == 1
    assert over.stderr == f"skep notebook: {job} has ended: it is cancelled\n"


class Kernel:
    """What `%load_ext` has an extension register at."""

    def register_magic_function(self, function: Any, magic_kind: str, magic_name: str) -> None:
        assert (magic_kind, magic_name) == ("line_cell", "skep")
        self.skep = function


def test_a_cell_runs_as_a_job(
    cluster: Embedded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKEP_HOME", str(cluster.home))
    monkeypatch.setenv("SKEP_VC", "nlp")
    monkeypatch.delenv("SKEP_API", raising=False)
    kernel: Any = Kernel()
    skep.load_ipython_extension(kernel)
    job = kernel.skep("run --name fit", "print('from a cell')")
    assert capsys.readouterr().out == f"from a cell\n{job} succeeded\n"
    assert cluster.get(f"/v1/jobs/{job}")["name"] == "fit"
    kernel.skep(f"logs {job}")
    assert capsys.readouterr().out == "from a cell\n"
    for line, cell, said in (
        ("run", "raise SystemExit(3)", "failed .*exit status 3"),
        ("run --cats 3", "", "unrecognized arguments: --cats 3"),
        ("run --gpus 40", "", "`gpus` must be 1 to 16"),
        ("run --env X", "", "--env X: give NAME=VALUE"),
        ("go", "", "a cell is run"),
        ("logs", None, "and a job"),
        ("logs j999999", None, "there is no job j999999"),
        ("'", None, "No closing quotation"),
    ):
        with pytest.raises(Exception, match=said) as refused:
            kernel.skep(line, cell)
        assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.needs("nbclient")
def test_the_notebook_of_cells_runs_in_a_kernel(
    cluster: Embedded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import nbformat  # type: ignore[import-not-found, unused-ignore]
    from nbclient import NotebookClient  # type: ignore[import-not-found, unused-ignore]

    monkeypatch.setenv("SKEP_HOME", str(cluster.home))
    monkeypatch.setenv("SKEP_VC", "nlp")
    monkeypatch.delenv("SKEP_API", raising=False)
    book = nbformat.read(CELLS, as_version=4)  # type: ignore[no-untyped-call, unused-ignore]
    assert all(cell["outputs"] == [] for cell in book.cells if cell["cell_type"] == "code")
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=DEADLINE_S, kernel_name="python3", resources=place).execute()
    assert book.cells[-1]["outputs"][0]["data"]["text/plain"].endswith("exit status 3)'")
