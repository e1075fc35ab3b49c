"""Runs that are forked from a warm process, beside the same runs executed."""

import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio

from skep.wire.runs import RunPlan, Warm
from skep_services.ports import NodeRuntime
from tests.node_runtimes import PATH, Node, process_node, started, until

pytestmark = pytest.mark.adapters

LIBRARIES = str(Path(__file__).parents[2] / "libs")
SLOW = "import time; time.sleep(0.12)\n"
"""What makes a module worth a warm process (`runner_warm.SECONDS_MIN`)."""

PROBE = """
import {first}
import fcntl, gc, json, os, random, resource, signal, sys, threading

def where(name):
    try:
        number = int(name)
        flags = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
        return [os.readlink(f"/proc/self/fd/{{name}}"), *flags]
    except OSError:
        return "closed"

def of_status(*names):
    with open("/proc/self/status") as file:
        return [line for line in file if line.startswith(names)]

def file(name):
    with open(f"/proc/self/{{name}}", "rb") as file:
        return file.read().decode()

def limits():
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    found = {{name: resource.getrlimit(getattr(resource, name)) for name in names}}
    soft, hard = found.pop("RLIMIT_RTTIME")
    return found, hard, soft >= 1 << 60

main = sys.modules["__main__"]
stat = file("stat").rpartition(")")[2].split()
seen = {{
    "main": {{name: repr(value) for name, value in list(vars(main).items())[:8]
             if name not in ("__builtins__", "__loader__")}},
    "loader": [type(main.__loader__).__name__, main.__loader__.path],
    "arguments": [sys.argv, sys.orig_argv, sys.path, sys.executable, str(sys.flags)],
    "signals": {{str(each): str(signal.getsignal(each)) for each in signal.valid_signals()}},
    "status": of_status("SigB", "SigI", "SigC", "Umask", "Threads", "Cap", "NoNewPrivs"),
    "limits": limits(),
    "processors": [sorted(os.sched_getaffinity(0)), os.nice(0), os.sched_getscheduler(0)],
    "folder": os.getcwd(),
    "variables": list(os.environ.items()),
    "files": {{name: where(name) for name in os.listdir("/proc/self/fd")}},
    "session": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid(), stat[4], os.getppid()],
    "shown": [file(name) for name in ("comm", "cmdline", "environ", "cgroup", "oom_score_adj")],
    "program": os.readlink("/proc/self/exe"),
    "threads": [str(each.name) for each in threading.enumerate()],
    "thread": [threading.main_thread() is threading.current_thread(),
               threading.get_native_id() == os.getpid()],
    "hash": hash("text"),
    "hooks": [repr(type(sys.excepthook)), repr(sys.gettrace()), gc.isenabled(), gc.get_threshold()],
    "streams": [[type(each).__name__, each.name, each.mode, each.encoding, each.errors,
                 each.line_buffering, each.write_through, type(each.buffer).__name__]
                for each in (sys.stdin, sys.stdout, sys.stderr)],
    "stdin": sys.stdin.read(),
}}
seen["modules"] = sorted(name for name in sys.modules if not name.startswith("skep_job"))
seen["drawn"] = random.random()
print(json.dumps(seen))
sys.stderr.write("to stderr\\n")
random.seed(3)
print(random.random())
raise SystemExit(int(sys.argv[1]))
"""


class Ended(NamedTuple):
    """A run that has ended; `how`: why it was not forked, empty if it was."""

    code: int
    log: str
    how: str
    leftovers: int


class Site:
    """A node, and an environment of Python in which modules are installed."""

    def __init__(self, node: Node, caplog: pytest.LogCaptureFixture) -> None:
        self.node, self._caplog = node, caplog
        self.folder = node.folder / "env"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.packages = self.folder / "lib" / version / "site-packages"
        self.packages.mkdir(parents=True)
        real = Path(sys.executable).resolve()
        (self.folder / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "python").symlink_to(real)
        self.program = str(self.folder / "bin" / "python")
        (node.folder / "job").mkdir()
        self.runtime: NodeRuntime | None = None
        self.count = 0
        self.wait_s = 60
        self.bytes = 2**31

    def module(self, name: str, text: str = SLOW) -> str:
        (self.packages / f"{name}.py").write_text(text)
        return name

    def script(self, text: str, name: str = "train.py") -> str:
        path = self.node.folder / "job" / name
        path.write_text(text)
        return str(path)

    def plan(self, script: str, *more: str, owner: str = "o", **env: str) -> RunPlan:
        self.count += 1
        token = f"j{self.count}.1.0"
        variables = {
            "PATH": PATH,
            "PYTHONPATH": LIBRARIES,
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "SKEP_RANK": str(self.count),
            **env,
        }
        plan = self.node.plan(token, self.program, "-m", "skep_job", script, *more, env=variables)
        warm = Warm(
            processes=2,
            bytes=self.bytes,
            idle_s=60,
            whose=("vc", owner),
            script=script,
            wait_s=self.wait_s,
        )
        return msgspec.structs.replace(plan, warm=warm)

    async def run(self, script: str, *more: str, owner: str = "o", **env: str) -> Ended:
        """Run a script to its end."""
        plan = self.plan(script, *more, owner=owner, **env)
        if self.runtime is None:
            self.runtime = await self.node.open()
        await started(self.runtime, plan)
        end = await self.node.end_of(plan.token)
        assert end.code is not None
        forked = f"run {plan.token} was forked from a warm process"
        said = [each.getMessage() for each in self._caplog.records]
        begins = f"run {plan.token} was executed, not forked: "
        why = [each.removeprefix(begins) for each in said if each.startswith(begins)]
        assert bool(why) != (forked in said)
        return Ended(end.code, self.node.log(plan.token), why[0] if why else "", end.leftovers)

    def said(self) -> str:
        return (self.node.state / "runner.log").read_text()

    async def warm(self, count: int = 1) -> int:
        """Return the pid of the warm process that became ready as the last of `count`."""
        await until(lambda: self.said().count("and 0 imports") >= count)
        line = [line for line in self.said().splitlines() if "and 0 imports" in line][count - 1]
        return int(line.split()[2])

    async def useless(self, why: str) -> None:
        await until(lambda: f"is of no use: {why}" in self.said())


@pytest_asyncio.fixture
async def site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Site]:
    caplog.set_level("INFO", "skep_services.adapters.process_runtime")
    async with process_node(tmp_path) as node:
        yield Site(node, caplog)


def same(output: str, number: int) -> dict[str, Any]:
    """Return what a probe saw, without what names the run and what is drawn."""
    text = output.splitlines()[0].replace(f"j{number}.1.0", "RUN")
    seen: dict[str, Any] = json.loads(text.replace(f"SKEP_RANK={number}", "RANK"))
    seen["variables"] = [each for each in seen["variables"] if each[0] != "SKEP_RANK"]
    return seen


@pytest.mark.asyncio
async def test_a_forked_run_sees_what_an_executed_one_sees(site: Site) -> None:
    script = site.script(PROBE.format(first=site.module("slow")))
    executed = await site.run(script, "3", "é")
    pid = await site.warm()
    first, second = await site.run(script, "3", "é"), await site.run(script, "3", "é")
    assert [executed.how, first.how, second.how] == ["there is no warm process for it yet", "", ""]
    assert [executed.code, first.code, second.code] == [3, 3, 3]
    seen = [same(each.log, i) for i, each in enumerate((executed, first, second), 1)]
    drawn = [each.pop("drawn") for each in seen]
    modules = [each.pop("modules") for each in seen]
    assert seen[1] == seen[0] == seen[2]
    assert len({*drawn}) == 3, "what is not seeded differs"
    more = {name.partition(".")[0] for name in set(modules[1]) - set(modules[0])}
    assert set(modules[0]) <= set(modules[1])
    assert more <= {*sys.stdlib_module_names, *(each for each in more if "sysconfig" in each)}
    random.seed(3)
    assert executed.log.splitlines()[1:] == ["to stderr", str(random.random())]
    assert executed.log.splitlines()[1:] == first.log.splitlines()[1:]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert (await site.run(script, "4")).code == 4, "what ended is not asked, or not waited for"


WAYS = {
    "exec": "import os, sys; sys.stdout.flush(); os.execv('/bin/sh', ['sh', '-c', 'exit 5'])",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)",
    "raise": "raise ValueError('so')",
    "spawn": """
import multiprocessing as mp, os

def told(queue):
    queue.put([__name__, os.environ["SKEP_RANK"]])

if __name__ == "__main__":
    for kind in ("fork", "spawn"):
        context = mp.get_context(kind)
        queue = context.SimpleQueue()
        one = context.Process(target=told, args=(queue,))
        one.start()
        print(queue.get(), flush=True)
        one.join()
    raise SystemExit(one.exitcode + 6)
""",
}
ENDS = {"exec": 5, "signal": -signal.SIGUSR1, "raise": 1, "spawn": 6}


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_forked_run_ends_as_an_executed_one(site: Site) -> None:
    script = f"import {site.module('slow')}, sys\nexec(WAYS[sys.argv[1]])\n"
    text = script.replace("exec(WAYS[sys.argv[1]])", "exec(open(sys.argv[1]).read())")
    train = site.script(text)
    ways = {name: site.script(code, f"{name}.txt") for name, code in WAYS.items()}
    executed = {name: await site.run(train, way) for name, way in list(ways.items())[:3]}
    assert {name: each.code for name, each in executed.items()} == {
        name: ENDS[name] for name in executed
    }
    await site.warm()
    forked = {name: await site.run(train, way) for name, way in list(ways.items())[:3]}
    assert {name: (each.how, each.code) for name, each in forked.items()} == {
        name: ("", ENDS[name]) for name in executed
    }
    assert forked["raise"].log == executed["raise"].log, "the traceback too"


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_forked_run_starts_processes(site: Site) -> None:
    script = site.script(f"import {site.module('slow')}\n" + WAYS["spawn"])
    executed = await site.run(script)
    await site.warm()
    forked = await site.run(script)
    assert (forked.how, forked.code, forked.leftovers) == ("", 6, executed.leftovers)
    assert forked.log == executed.log.replace("'1'", "'2'")


BAD = {
    "threads": ("import threading; threading.Thread(target=time.sleep, args=(9,), daemon=True)"
                ".start()", "import of bad: it changes the number of threads"),
    "prints": ("print('hello')", "import of bad: it changes what was written"),
    "fails": ("raise ValueError('broken')", "import of bad: ValueError: broken"),
    "exits": ("raise SystemExit(3)", "import of bad: SystemExit: 3"),
    "opens": ("kept = open('/dev/null')", "import of bad: it changes which files are open"),
    "handles": ("import signal; signal.signal(signal.SIGTERM, print)",
                "import of bad: it changes the handlers of signals"),
    "arguments": ("import sys; print(sys.argv[0]) if not sys.argv else 0",
                  "import of bad: it looks at sys.argv"),
    "keeps": ("from sys import argv", "import of bad: it changes sys.argv"),
    "script": ("import __main__; n = __main__.__file__", "import of bad: it looks at the script"),
    "number": ("import os; number = os.getpid()",
                "import of bad: it looks at the number of the process"),
    "seeds": ("import random; random.seed(5)", "import of bad: it seeds random numbers"),
    "dies": ("import os; os.name == 'posix' and os._exit(4)", "its warm process ended by itself")
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name", ["prints", *(pytest.param(each, marks=pytest.mark.nightly) for each in BAD)]
)
async def test_an_import_that_is_no_mere_import_is_left_to_the_runs(site: Site, name: str) -> None:
    code, why = BAD[name]
    site.module("bad", SLOW + code)
    script = site.script("import bad\nprint('ran')")
    before = await site.run(script)
    await site.useless(why)
    after = await site.run(script)
    assert (after.code, after.log) == (before.code, before.log)
    assert why in after.how


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_imports_before_a_bad_one_are_kept(site: Site) -> None:
    site.module("bad", "print('hello')")
    script = site.script(f"import {site.module('slow')}\nimport bad\n")
    await site.run(script)
    await site.warm()
    assert "import of bad: it changes what was written" in site.said()
    forked = await site.run(script)
    assert (forked.how, forked.log) == ("", "hello\n")


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_what_may_differ_starts_cold(site: Site) -> None:
    slow = site.module("slow", SLOW + "import os; rank = os.environ.get('RANK')")
    script = site.script(f"import {slow}\nprint({slow}.rank)")
    await site.run(script)
    await site.warm()
    assert (await site.run(script)).how == ""
    cold = "there is no warm process for it yet"
    ranked = await site.run(script, RANK="2")
    assert (ranked.how, ranked.log) == (
        "an import looks at RANK, which differs between runs", "2\n"
    )  # fmt: skip
    assert (await site.run(script, owner="another")).how == cold
    assert (await site.run(script, OMP_NUM_THREADS="2")).how == cold
    assert (await site.run(script, PYTHONHASHSEED="random")).how.startswith("PYTHONHASHSEED")
    assert (await site.run(script, PYTHONPATH=f"lib:{LIBRARIES}")).how.startswith("PYTHONPATH")
    other = site.script("import os\nos.environ['A'] = 'b'\nimport slow\n", "other.py")
    assert "begins with other imports" in (await site.run(other)).how
    site.script("here = True", "slow.py")
    beside = await site.run(script)
    assert "begins with other imports" in beside.how, "a file of the job is no installed module"
    assert beside.code == 1


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_changed_environment_ends_a_warm_process(site: Site) -> None:
    script = site.script(f"import {site.module('slow')}\nprint(getattr(slow, 'new', 0))")
    await site.run(script)
    pid = await site.warm()
    site.module("slow", SLOW + "new = 1")
    later = await site.run(script)
    assert later.log == "1\n"
    assert "has changed" in later.how
    await until(lambda: not os.path.exists(f"/proc/{pid}"))
    await site.warm(2)
    assert (await site.run(script)).how == ""


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_forked_run_warns_as_an_executed_one(site: Site) -> None:
    script = site.script(f"import {site.module('slow')}\nprint('ran')")
    executed = await site.run(script, PYTHONWARNINGS="always")
    await site.warm()
    forked = await site.run(script, PYTHONWARNINGS="always")
    assert (forked.how, forked.log) == ("", executed.log)


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_what_came_to_the_path_meanwhile_is_found(site: Site) -> None:
    more = site.node.folder / "more"
    path = f"{more}:{LIBRARIES}"
    late = "try:\n import late\nexcept ImportError:\n late = None\n"
    script = site.script(f"import {site.module('slow')}\n{late}print(late, slow.__file__)")
    cold = await site.run(script, PYTHONPATH=path)
    await site.warm()
    assert cold.log.startswith("None ")
    more.mkdir()
    (more / "late.py").write_text("")
    forked = await site.run(script, PYTHONPATH=path)
    assert (forked.how, "late.py" in forked.log) == ("", True)
    (more / "slow.py").write_text("")
    executed = await site.run(script, PYTHONPATH=path)
    assert executed.log.endswith(f"{more}/slow.py\n")
    assert executed.how.startswith(f"slow.py in {more} has the name")


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_warm_process_that_grows_while_it_loads_is_ended(site: Site) -> None:
    waits = "kept = bytearray(300 << 20)\nimport os\n"
    waits += "os.environ.get('SKEP_RANK') or time.sleep(99)"
    script = site.script(f"import {site.module('large', SLOW + waits)}\nprint('ran')")
    site.bytes = 200 << 20
    assert (await site.run(script)).code == 0
    await site.useless("it takes ")
    assert (await site.run(script)).log == "ran\n"


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_warm_process_that_hangs_is_ended(site: Site) -> None:
    script = site.script(f"import {site.module('slow')}\nprint('ran')")
    await site.run(script)
    pid = await site.warm()
    os.kill(pid, signal.SIGSTOP)
    site.wait_s = 1
    again = await site.run(script)
    assert (again.code, again.log) == (0, "ran\n")
    assert again.how == "its warm process has died, or was silent for too long"
    await until(lambda: not os.path.exists(f"/proc/{pid}"))


TORCH = """
import torch

print(torch.initial_seed())
model = torch.nn.Linear(2, 2)
torch.manual_seed(3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.rand(4, 2)).sum()
loss.backward()
optimizer.step()
torch.manual_seed(4)
print(torch.rand(4).tolist(), torch.get_num_threads())
"""


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_pytorch_draws_its_seed_in_each_fork(site: Site) -> None:
    site.program = sys.executable  # PyTorch is installed there.
    script = site.script(TORCH)
    runs = [await site.run(script, OMP_NUM_THREADS="1")]
    await until(lambda: " imports, " in site.said())
    runs += [await site.run(script, OMP_NUM_THREADS="1") for _ in range(2)]
    assert [each.how for each in runs[1:]] == ["", ""]
    assert len({each.log.splitlines()[0] for each in runs}) == 3
    assert len({each.log.splitlines()[1] for each in runs}) == 1
