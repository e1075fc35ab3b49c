"""What the hooks do to a script, with a small package named torch on its path."""

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from skep_job.observe.import_watcher import ImportWatcher
from tests.support.job_agent import JobAgent, job_agent, launch

FAKE_TORCH = {
    "torch/__init__.py": "",
    "torch/autograd/__init__.py": """
        def backward(tensors, then=None):
            if then is not None:
                then()
        """,
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": """
        hooks = []
        def register_optimizer_step_post_hook(hook):
            hooks.append(hook)
        class Optimizer:
            def step(self):
                for hook in hooks:
                    hook(self, (), {})
        """,
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "",
    "torch/utils/data/dataloader.py": """
        class _BaseDataLoaderIter:
            def __init__(self, items): self.items = iter(items)
            def __iter__(self): return self
            def __next__(self): return next(self.items)
        """,
}

TRAIN = """
        from torch.optim.optimizer import Optimizer
        optimizer = Optimizer()
        for _ in range(20):
            optimizer.step()
        """


class Job:
    """A folder with scripts and the small torch, and an agent to run them under."""

    def __init__(self, folder: Path, agent: JobAgent) -> None:
        self.folder = folder
        self.agent = agent
        for name, text in FAKE_TORCH.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def run(self, text: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the script to its end and until its last word has arrived."""
        script = self.write("script.py", text)
        outcome = launch([script], self.agent.environment(**env), cwd=self.folder)
        assert outcome.stderr == ""
        self.agent.wait_until(lambda agent: agent.accepted and agent.open_connections == 0)
        return outcome

    def final_steps(self) -> list[int]:
        return [bye["steps"] for bye in self.agent.of_type("bye")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with job_agent() as agent:
        yield Job(tmp_path, agent)


def test_steps_are_counted_and_told(job: Job) -> None:
    job.run(TRAIN, RANK="1", WORLD_SIZE="2", SKEP_REPORT_S="60")
    hello = job.agent.received[0]
    assert (hello["type"], hello["rank"], hello["world"]) == ("hello", 1, 2)
    assert job.final_steps() == [20]
    last = job.agent.of_type("stats")[-1]
    assert (last["steps"], last["source"]) == (20, "optimizer")
    assert last["last_step_monotonic_ns"] <= last["monotonic_ns"]


def test_the_shortest_script_is_known_before_it_begins(job: Job) -> None:
    job.run("import os; os._exit(0)")
    assert [message["type"] for message in job.agent.received[:2]] == ["hello", "stats"]
    assert job.final_steps() == []  # Nothing was left to say it.


def test_the_first_step_is_told_at_once(job: Job) -> None:
    script = job.write(
        "script.py",
        """
        import sys
        from torch.optim.optimizer import Optimizer
        Optimizer().step()
        sys.stdin.read()
        """,
    )
    env = job.agent.environment(SKEP_REPORT_S="60")
    command = [sys.executable, "-m", "skep_job", str(script)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as process:
        job.agent.wait_until(lambda agent: agent.of_type("stats", steps=1, source="optimizer"))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


def test_training_goes_on_while_the_agent_is_away(job: Job) -> None:
    script = job.write(
        "script.py",
        """
        import sys
        from torch.optim.optimizer import Optimizer
        optimizer = Optimizer()
        for line in sys.stdin:
            optimizer.step()
            print("stepped", flush=True)
        """,
    )
    env = job.agent.environment()
    command = [sys.executable, "-m", "skep_job", str(script)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, **pipes) as process:  # type: ignore[call-overload]
        for action in (job.agent.stop, job.agent.listen, job.agent.stop, job.agent.listen):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "stepped\n"
            action()
        job.agent.wait_until(lambda agent: agent.of_type("stats", steps=4))
        process.stdin.close()
        assert process.wait() == 0
    job.agent.wait_until(lambda agent: agent.of_type("bye", steps=4))
    assert job.agent.greetings == ["hello"] * len(job.agent.of_type("hello"))


@pytest.mark.parametrize(
    "loop", ["for _ in batches: pass", "for n, _ in enumerate(batches):\n    if n == 19: break"]
)
def test_batches_count_when_no_optimizer_steps(job: Job, loop: str) -> None:
    job.run(
        f"""
import torch.optim.optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter
batches = _BaseDataLoaderIter(range(20))
{loop}
"""
    )
    assert job.final_steps() == [20]
    assert job.agent.of_type("stats")[-1]["source"] == "dataloader"


BY_HAND = """
        import sys
        import torch.optim.optimizer
        from torch import autograd
        class Scalar:
            def numel(self): return 1
        class Many:
            def numel(self): return 2
        """


def test_backward_passes_count_when_no_optimizer_steps(job: Job) -> None:
    """Of scalars, none within another, and not the batches of a validation."""
    job.run(
        BY_HAND
        + """
        from torch.utils.data.dataloader import _BaseDataLoaderIter
        for _ in _BaseDataLoaderIter(range(3)):
            pass
        for _ in range(20):
            autograd.backward([Many()])
            autograd.backward(Scalar(), then=lambda: autograd.backward(Scalar()))
            list(_BaseDataLoaderIter(range(3)))
        """
    )
    assert job.final_steps() == [20]
    last = job.agent.of_type("stats")[-1]
    assert (last["source"], last["step_ns"] > 0) == ("backward", True)
    assert len(job.agent.of_type("can")) == 1


def test_backward_passes_do_not_count_once_an_optimizer_steps(job: Job) -> None:
    outcome = job.run(
        BY_HAND
        + """
        from torch.optim.optimizer import Optimizer
        plain = autograd.backward.__wrapped__
        optimizer = Optimizer()
        for number in range(20):
            counting = autograd.backward
            counting(Scalar())
            counting(Scalar())
            if number % 4 == 3:
                optimizer.step()
        print(autograd.backward is plain)
        """
    )
    assert outcome.stdout == "True\n"
    assert job.final_steps() == [5]
    assert job.agent.of_type("stats")[-1]["source"] == "optimizer"


def test_a_backward_pass_that_fails_or_is_a_workers_does_not_count(job: Job) -> None:
    outcome = job.run(
        BY_HAND
        + """
        from types import SimpleNamespace
        def fail(): raise ValueError("mine")
        try:
            autograd.backward(Scalar(), then=fail)
        except ValueError as error:
            print(error)
        sys.modules["torch.utils.data._utils.worker"] = SimpleNamespace(_worker_info=object())
        autograd.backward(Scalar())
        sys.modules["torch.utils.data._utils.worker"] = SimpleNamespace(_worker_info=None)
        autograd.backward(Scalar())
        autograd.backward(tensors=Scalar())
        """
    )
    assert outcome.stdout == "mine\n"
    assert job.final_steps() == [2]


def test_an_optimizer_that_steps_within_a_backward_pass_counts_alone(job: Job) -> None:
    job.run(
        BY_HAND
        + """
        from torch.optim.optimizer import Optimizer
        optimizer = Optimizer()
        for _ in range(20):
            autograd.backward(Scalar(), then=optimizer.step)
        """
    )
    assert job.final_steps() == [20]
    assert job.agent.of_type("stats")[-1]["source"] == "optimizer"


def test_after_a_step_the_loaders_are_as_torch_made_them(job: Job) -> None:
    outcome = job.run(
        """
        import inspect
        from torch.optim.optimizer import Optimizer
        from torch.utils.data import dataloader
        iterator, plain = dataloader._BaseDataLoaderIter, "def __next__(self): return next"
        counting = iterator.__next__
        print(iterator.__next__ is counting, counting.__name__, hasattr(counting, "__wrapped__"))
        optimizer = Optimizer()
        for _ in iterator(range(20)):
            optimizer.step()
        print(iterator.__next__ is counting, plain in inspect.getsource(iterator.__next__))
        print(list(map(counting, [iterator("ab")])))
        """
    )
    assert outcome.stdout == "True __next__ True\nFalse True\n['a']\n"
    assert job.final_steps() == [20]


def test_a_replacement_by_the_script_is_left_alone(job: Job) -> None:
    outcome = job.run(
        """
        from torch.optim.optimizer import Optimizer
        from torch.utils.data.dataloader import _BaseDataLoaderIter
        mine = lambda self: next(self.items)
        _BaseDataLoaderIter.__next__ = mine
        Optimizer().step()
        print(_BaseDataLoaderIter.__next__ is mine)
        """
    )
    assert outcome.stdout == "True\n"


def test_a_rank_that_says_itself_what_it_can_is_not_observed_by_its_loaders(job: Job) -> None:
    """In a gang a call that is measured may be around the one that counts, which stays then."""
    job.run(
        """
        from torch.utils.data.dataloader import _BaseDataLoaderIter
        from skep_job.observe.observation import current
        observation = current()
        observation.tally.own.turn(on=True)
        observation.hooks.hand_over()
        for _ in _BaseDataLoaderIter(range(3)):
            observation.tally.tick()
        """
    )
    assert job.final_steps() == [3]
    assert not job.agent.of_type("can")


def test_batches_of_loaders_imported_after_the_first_step_are_not_counted(job: Job) -> None:
    outcome = job.run(
        """
        from torch.optim.optimizer import Optimizer
        Optimizer().step()
        from torch.utils.data.dataloader import _BaseDataLoaderIter
        print(hasattr(_BaseDataLoaderIter.__next__, "__wrapped__"))
        """
    )
    assert outcome.stdout == "False\n", "it is torch's own"


def test_torch_looks_as_if_imported_without_skep(job: Job) -> None:
    outcome = job.run(
        """
        import importlib, inspect
        import torch.optim.optimizer as module
        print(type(module.__loader__).__name__, module.__spec__.loader is module.__loader__)
        print("register_optimizer" in inspect.getsource(module), module.__spec__.origin[-12:])
        module = importlib.reload(module)
        optimizer = module.Optimizer()
        for _ in range(20):
            optimizer.step()
        """
    )
    assert outcome.stdout == "SourceFileLoader True\nTrue optimizer.py\n"
    assert job.final_steps() == [20]


def test_without_torch_there_is_nothing_to_count(job: Job) -> None:
    outcome = job.run("import sys; print([name for name in sys.modules if 'torch' in name])")
    assert outcome.stdout == "['skep_job.observe.torch_hooks']\n"
    assert job.final_steps() == [0]
    assert job.agent.of_type("stats")[-1]["source"] == "none"


def test_booting_twice_counts_once(job: Job) -> None:
    job.run(
        """
        import os
        from skep_job.observe.observation import boot
        assert boot(os.environ) is boot(os.environ)
        """
        + TRAIN
    )
    assert job.final_steps() == [20]
    assert job.agent.accepted == 1


def test_torch_imported_before_the_boot_is_hooked_too(job: Job) -> None:
    job.run(
        """
        import os, skep_job.observe.observation as observe
        observe._active.hooks.remove()
        import torch.optim.optimizer, torch.utils.data.dataloader
        observe._active.hooks.install()
        observe._active.hooks.install()
        """
        + TRAIN
    )
    assert job.final_steps() == [20]


def test_forks_do_not_report(job: Job) -> None:
    outcome = job.run(
        """
        import os, sys
        from torch.optim.optimizer import Optimizer
        first = Optimizer()
        first.step()
        def child(number):
            optimizer = Optimizer()
            for _ in range(50):
                first.step(), optimizer.step()
            sys.exit(number)        # Runs the handlers of atexit, unlike os._exit.
        for number in (3, 4):
            pid = os.fork()
            if not pid:
                child(number)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        first.step()
        """
    )
    assert outcome.stdout == "3\n4\n"
    assert job.final_steps() == [2]
    assert {message.get("steps", 0) for message in job.agent.received} <= {0, 1, 2}
    assert job.agent.accepted == 1


def test_the_connection_ends_with_the_process_though_a_fork_lives_on(job: Job) -> None:
    script = job.write(
        "script.py",
        """
        import os
        os.read(0, 1)
        if os.fork():
            os._exit(0)
        os.read(0, 1)  # The fork stays until the test closes this end.
        """,
    )
    command = [sys.executable, "-m", "skep_job", str(script)]
    env = job.agent.environment()
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        job.agent.wait_until(lambda agent: agent.of_type("stats"))
        process.stdin.write(b".")
        assert process.wait() == 0
        job.agent.wait_until(lambda agent: agent.open_connections == 0)


def test_a_failing_hook_is_reported_and_the_script_goes_on(job: Job) -> None:
    job.run(
        """
        import skep_job.observe.observation
        def fail(optimizer): raise LookupError("lost")
        skep_job.observe.observation._active.tally.join = fail
        """
        + TRAIN,
        SKEP_REPORT_S="60",
    )
    errors = [message["error"] for message in job.agent.of_type("error")]
    assert errors == ["optimizer hook: LookupError: lost"]
    assert job.agent.of_type("stats")[-1]["source"] == "none"
    assert job.final_steps() == [0]


@pytest.mark.parametrize(
    "name, broken",
    [
        ("torch/optim/optimizer.py", "hooking into torch.optim.optimizer: AttributeError: "),
        ("torch/utils/data/dataloader.py", "hooking into torch.utils.data.dataloader: Attr"),
    ],
)
def test_another_torch_is_reported_and_left_alone(job: Job, name: str, broken: str) -> None:
    job.write(name, "x = 1")
    module = name.removesuffix(".py").replace("/", ".")
    outcome = job.run(f"import {module} as module\nprint(module.x)")
    assert outcome.stdout == "1\n"
    (error,) = job.agent.of_type("error")
    assert error["error"].startswith(broken)


def test_a_broken_torch_fails_as_it_would_anyway(job: Job) -> None:
    job.write("torch/optim/optimizer.py", "1 / 0")
    outcome = job.run(
        """
        try:
            import torch.optim.optimizer
        except ZeroDivisionError as error:
            print("caught")
        """
    )
    assert outcome.stdout == "caught\n"
    assert job.agent.of_type("error") == []


def test_signals_and_closed_pipes_are_the_scripts_own(job: Job) -> None:
    outcome = job.run(
        """
        import os, signal
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR1)
        print(signal.sigwait([signal.SIGUSR1]).name, signal.pthread_sigmask(signal.SIG_BLOCK, []))
        """
    )
    assert outcome.stdout == "SIGUSR1 {<Signals.SIGUSR1: 10>}\n"


def test_a_lost_agent_does_not_kill_a_script_that_wants_sigpipe(job: Job) -> None:
    script = job.write(
        "script.py",
        "import signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL); sys.stdin.read()",
    )
    env = job.agent.environment(SKEP_REPORT_S="0.05")
    command = [sys.executable, "-m", "skep_job", str(script)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as process:
        for times in (1, 2):
            job.agent.wait_for(times, "hello")
            job.agent.stop()
            job.agent.listen()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


def test_a_script_that_closes_every_descriptor_goes_on(job: Job) -> None:
    script = job.write(
        "script.py",
        """
        import os, threading
        os.closerange(3, 256)
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join(30)
        print(threading.active_count())
        """,
    )
    outcome = launch([script], job.agent.environment(SKEP_REPORT_S="0.05"))
    assert outcome.returncode == 0
    assert outcome.stdout == "1\n"
    assert outcome.stderr.startswith("skep_job: reports end here: ")
    assert outcome.stderr.count("\n") == 1


def test_a_watcher_finds_only_what_others_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen: list[ModuleType] = []
    watcher = ImportWatcher({"no_such_module": seen.append})
    watcher.install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module")
    sys.meta_path.append(OldFinder())  # type: ignore[arg-type]
    assert watcher.find_spec("no_such_module", None) is None
    assert watcher.find_spec("json", None) is None
    watcher.remove()
    watcher.remove()
    assert watcher not in sys.meta_path
    assert seen == []


class OldFinder:
    """A finder without the method that every finder must have."""
