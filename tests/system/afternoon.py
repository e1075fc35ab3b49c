"""An afternoon's work on Skep, as a transcript with times: `python -m tests.system.afternoon`.

On an embedded cluster with fake GPUs, by the real commands: an environment by uv, where there is
one; a sweep as an array; the best of it resumed, longer and on two GPUs; a job that waits for that
and judges it; a notebook beside them; a shell command in the slow rank, which makes it a quick one;
the outputs copied here; and mail at the end, where there is Apprise. Every command must end as it
is to end. Exits 1 if one does not.

    python -m tests.system.afternoon [--python PYTHON] [--package NAME] [--out FILE]

`--python` is an interpreter with JupyterLab. Without one a stand-in serves the notebook's page, and
the transcript says so. `--package` is what the environment has, from the index that uv knows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from skep_job.notebook import program_of
from tests.support.embedded import SKEP, Embedded
from tests.support.receivers import MailServer

OPTIONS = ("--nodes", "2", "--gpus", "4", "--vc", "lab=8", "--device", "fake", "--port", "0")
DEADLINE_S = 300.0
RATES = (0.001, 0.01, 0.03, 0.06, 0.12, 0.2)
"""What the tasks of the sweep learn with."""
OWNER = "anna@example.org"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

TRAIN = '''"""Fits a line by gradient descent; ranks wait for one another after each step."""
import json, os, random, sys, time

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
steps, rates = int(sys.argv[1]), sys.argv[2].split(",")
rate = float(rates[int(os.environ.get("SKEP_ARRAY_INDEX", 0))])
state = json.load(open("start.json")) if os.path.exists("start.json") else {"step": 0, "w": 0.0}
chance = random.Random(rank)
os.makedirs("ckpt", exist_ok=True)

def at(other):
    path = f"at-{other}"
    return int(open(path).read() or -1) if os.path.exists(path) else -1

for step in range(state["step"], state["step"] + steps):
    x = chance.uniform(-1, 1)
    state["w"] -= rate * 2 * x * (state["w"] * x - 3.0 * x)
    delay = f"delay-{rank}"
    time.sleep(float(open(delay).read()) if os.path.exists(delay) else 0.0)
    open(f"at-{rank}", "w").write(str(step))
    while min(at(each) for each in range(world)) < step:
        time.sleep(0.002)
    if rank == 0 and step % 10 == 0:
        print(f"step {step} loss {(state['w'] - 3.0) ** 2:.2e}", flush=True)
state.update(step=step + 1, loss=(state["w"] - 3.0) ** 2, rate=rate)
if rank == 0:
    json.dump(state, open("ckpt/new.json", "w"))
    os.replace("ckpt/new.json", "ckpt/best.json")
    print(f"loss {state['loss']:.2e}")
'''
JUDGE = "import json,sys; found=json.load(open(sys.argv[1])); sys.exit(found['loss'] > 1e-6)"
STAND_IN = """
import http.server, os, sys
port = int(next(each for each in sys.argv if "ServerApp.port=" in each).partition("=")[2])
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path.endswith(os.environ["JUPYTER_TOKEN"]) else 403)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Page).serve_forever()
"""


class WrongError(Exception):
    """Something did not go as it was to go."""


class Transcript:
    """Runs commands as a person would, and tells what they printed and when."""

    def __init__(self, cluster: Embedded, place: Path, out: Path | None) -> None:
        """Take the cluster, the folder in which everything is typed, and a file for the text."""
        self._cluster, self._place = cluster, place
        self._out = out.open("w") if out else None
        self._began = time.monotonic()
        self.commands = 0

    def say(self, text: str) -> None:
        """Tell a line."""
        print(text, flush=True)
        if self._out:
            print(text, file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Tell what is going on, as a comment."""
        self.say(f"\n{self.at()} # {text}")

    def at(self) -> str:
        """Return the time since the beginning."""
        passed_s = time.monotonic() - self._began
        return f"[{int(passed_s // 60):02}:{passed_s % 60:04.1f}]"

    def type(self, line: str, code: int = 0) -> str:
        """Run a line such as `skep ps`, and return what it printed.

        Raises:
            WrongError: Its exit code is another one.
        """
        self.say(f"{self.at()} $ {line}")
        self.commands += 1
        words = shlex.split(line)
        argv = [*SKEP, *words[1:]] if words[0] == "skep" else words
        done = subprocess.run(
            argv,
            env=self._cluster.environment,
            cwd=self._place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        for text in (done.stdout + done.stderr).rstrip().splitlines():
            self.say(f"          {text}")
        if done.returncode != code:
            text = f"`{line}` returned {done.returncode}, and was to return {code}"
            raise WrongError(text)
        return done.stdout

    def close(self) -> None:
        """Close the file."""
        if self._out:
            self._out.close()


class Afternoon:
    """The work, one step after another; `place` is the folder of the project."""

    def __init__(
        self,
        cluster: Embedded,
        place: Path,
        transcript: Transcript,
        python: str,
        mail: MailServer | None,
    ) -> None:
        """Take what it is done with; `python` has Jupyter, or a stand-in; `mail` takes notices."""
        self._cluster, self._place, self._python = cluster, place, python
        self._do, self._mail = transcript, mail
        self._environment: dict[str, Any] = {}
        self._notebook: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Do it all.

        Raises:
            WrongError: Something went another way.
        """
        try:
            array = self.sweep()
            self.open_notebook()
            self.resume(self.best_of(array))
            self.hurry()
            self.collect()
            self.close_notebook()
        finally:
            if self._notebook is not None:
                self._notebook.kill()
                self._notebook.communicate()

    def spec(self, name: str, **more: Any) -> None:
        """Write a spec, and show it."""
        path = self._place / f"{name}.yaml"
        tree = {"name": name, **more}
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in tree.items())
        path.write_text(text)
        self._do.type(f"cat {path.name}")

    def environment(self, package: str) -> None:
        """Lock an environment for the jobs."""
        self._do.note("an environment by uv: a node builds it once")
        wanted = json.dumps([package] if package else [])
        text = f'[project]\nname = "line"\nversion = "0"\ndependencies = {wanted}\n'
        (self._place / "pyproject.toml").write_text(text)
        self._do.type("cat pyproject.toml")
        self._do.type("uv lock")
        self._environment = {"environment": {"uv": "uv.lock"}}

    def sweep(self) -> str:
        """Run the sweep; return the array."""
        self._do.note("a sweep of learning rates, as an array")
        (self._place / "code").mkdir()
        (self._place / "code" / "train.py").write_text(TRAIN)
        self.spec(
            "sweep",
            code="code",
            command=["python3", "train.py", "40", ",".join(map(str, RATES))],
            array=f"0-{len(RATES) - 1}%4",
            outputs=["ckpt/"],
            **self._environment,
        )
        array = self._do.type("skep submit -q sweep.yaml").strip()
        self._do.type(f"skep wait {array}")
        self._do.type("skep ps -a")
        return array

    def best_of(self, array: str) -> str:
        """Return the job of the task with the smallest loss, and copy what it kept."""
        self._do.note("which one is the best?")
        rows = self._do.type(f"skep ps -a --array {array} -o job,name,state,run,place")
        losses = {
            job: float(self._do.type(f"skep logs {job} --tail 1").split()[-1])
            for job in [line.split()[0] for line in rows.splitlines()[1:]]
        }
        task = min(losses, key=lambda job: losses[job])
        best = str(self._cluster.get(f"/v1/jobs/{task}")["job"])
        self._do.note(f"{task}, as {best}, with a loss of {losses[task]:.2e}: go on from its state")
        self._do.type(f"skep artifacts {best}")
        self._do.type(f"skep cp {best}:ckpt/best.json code/start.json")
        return best

    def resume(self, best: str) -> None:
        """Submit the longer run, and what judges it."""
        self._do.note("longer, on two GPUs; rank 1 has a slow disk")
        rate = json.loads((self._place / "code" / "start.json").read_text())["rate"]
        (self._place / "code" / "delay-1").write_text("0.5")
        self.spec(
            "longer",
            code="code",
            command=["python3", "train.py", "200", str(rate)],
            resources={"workers": 2},
            outputs=["ckpt/"],
            after={"ok": [best]},
            **self._environment,
            **({"notify": {"to": [OWNER]}} if self._mail else {}),
        )
        self._do.type("skep submit longer.yaml")
        self._do.note("what judges it waits for it, and for its outputs to be here")
        (self._place / "judge.py").write_text(JUDGE)
        self._do.type(
            "skep run -d --hold --name judge --after ok:longer -- "
            "python3 judge.py results/ckpt/best.json"
        )
        self._do.type("skep why judge")
        self._do.type("skep wait longer --for started")

    def hurry(self) -> None:
        """Find the slow rank, and make it a quick one."""
        self._do.note("it is slow: which rank keeps the others waiting?")
        for rank in (0, 1):
            command = "sh -c 'echo rank $RANK; cat delay-$RANK || true'"
            self._do.type(f"skep exec --rank {rank} longer -- {command}")
        self._do.note("rank 1; it may be mended while it runs")
        self._do.type("skep exec --rank 1 longer -- sh -c 'echo 0 > delay-1; ls'")
        self._do.type("skep logs longer --tail 1")

    def collect(self) -> None:
        """Copy the outputs, and see that they are good."""
        self._do.type("skep wait longer")
        self._do.type("skep logs longer --tail 1")
        if self._mail is not None:
            _, message = self._mail.until(bool)[0]
            self._do.note(f"{OWNER} has mail")
            for line in message.splitlines():
                if line.startswith("Subject: "):
                    self._do.say(f"          {line}")
        self._do.note("the outputs come here")
        self._do.type("skep cp longer:ckpt results/")
        self._do.type("cat results/ckpt/best.json")
        self._do.type("skep release judge")
        self._do.type("skep wait judge")
        self._do.type("skep blame longer")

    def open_notebook(self) -> None:
        """Begin a notebook, and see its page."""
        self._do.note("a notebook beside it, with a GPU of its own")
        words = f"skep notebook --name nb --idle 1h --json --python {self._python}"
        self._do.say(f"{self._do.at()} $ {words}")
        self._do.commands += 1
        self._notebook = subprocess.Popen(
            [*SKEP, *shlex.split(words)[1:]],
            env=self._cluster.environment,
            cwd=self._place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._notebook.stdout is not None
        told = json.loads(self._notebook.stdout.readline())
        if "url" not in told:
            raise WrongError(str(told))
        with DIRECT.open(told["url"], timeout=DEADLINE_S) as page:
            address, _, token = told["url"].rpartition("token=")
            shown = address + "token=" + "." * len(token)
            self._do.say(f"          {shown} answers {page.status}")

    def close_notebook(self) -> None:
        """End the notebook."""
        assert self._notebook is not None
        self._do.note("the notebook is still there; that is all for today")
        self._do.type("skep cancel nb")
        _, said = self._notebook.communicate(timeout=DEADLINE_S)
        for text in said.splitlines():
            self._do.say(f"          {text}")
        self._do.type("skep ps -a")
        self._do.type("skep report --by vc")


def notices(folder: Path, server: MailServer) -> tuple[str, str]:
    """Write the operator's file of notices; return the options that name it."""
    path = folder / "notify.toml"
    path.touch(mode=0o600)
    url = f"mailto://127.0.0.1:{server.port}?from=skep@example.org"
    path.write_text(f'[mail]\nurl = "{url}"\ndomains = ["example.org"]\n')
    return "--notify", str(path)


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter with JupyterLab")
    parser.add_argument("--package", default="", help="what the environment has (with uv)")
    parser.add_argument("--out", type=Path, help="a file for the transcript")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "project"
        place.mkdir()
        more = {"XDG_CACHE_HOME": str(Path(folder) / "cache")}
        stands_in = not program_of(given.python)
        if stands_in:
            page = Path(folder) / "stand-in" / "jupyterlab"
            page.mkdir(parents=True)
            (page / "__init__.py").touch()
            (page / "__main__.py").write_text(STAND_IN)
        cluster = Embedded(Path(folder) / "home", more)
        transcript = Transcript(cluster, place, given.out)
        if stands_in:
            transcript.say("(no JupyterLab here: a stand-in serves the notebook's page)")
        if not shutil.which("uv"):
            transcript.say("(no uv here: jobs run on the interpreter of the nodes)")
        if not importlib.util.find_spec("apprise"):
            transcript.say("(no Apprise here: nobody gets mail)")
        try:
            with MailServer() as server:
                mail = server if importlib.util.find_spec("apprise") else None
                cluster.up(*OPTIONS, *(notices(Path(folder), server) if mail else ()))
                transcript.note("a cluster of two nodes with four GPUs each")
                work = Afternoon(cluster, place, transcript, given.python, mail)
                if shutil.which("uv"):
                    work.environment(given.package)
                work.run()
        except WrongError as error:
            transcript.say(f"WRONG: {error}")
            return 1
        finally:
            transcript.say(f"{transcript.at()} {transcript.commands} commands")
            transcript.close()
            cluster.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
