"""A script run by `python -m skep_job` cannot tell it from `python`: both runs are compared."""

import py_compile
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.job_agent import JobAgent, environment, job_agent, launch, python

SHOW = """
import sys, __main__
shown = {
    name: value if isinstance(value, (str, dict, type(None))) else type(value).__name__
    for name, value in vars(__main__).items()
}
print(sorted(shown.items()))
print(vars(__main__) is globals(), __spec__ and (__spec__.name, __spec__.origin))
print(sys.argv, sys.path, sys.modules["__main__"] is __main__)
"""

SCRIPTS = {
    "an exception": """
        def fail(): raise ValueError("this")
        fail()
        """,
    "a chain of exceptions": """
        try:
            {}["key"]
        except KeyError as error:
            raise RuntimeError("that") from error
        """,
    "a group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "a syntax error": "x = (",
    "a syntax error on import": "import broken",
    "a status": "raise SystemExit(7)",
    "a message as status": "import sys; sys.exit('that is all')",
    "no status": "raise SystemExit",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "a hook for exceptions": """
        import sys, traceback
        def hook(kind, error, trace):
            print(kind, error, traceback.extract_tb(trace), error.__traceback__ is trace)
            print(sys.excepthook is hook)
        sys.excepthook = hook
        raise ValueError("this")
        """,
    "last words": """
        import atexit
        @atexit.register
        def last(): print("last", __name__, fail.__name__)
        def fail(): raise ValueError("this")
        fail()
        """,
    "a thread that stays": """
        import threading, time
        def later():
            threading.main_thread().join()
            print("later", __name__)
        threading.Thread(target=later).start()
        """,
    "a deprecation in the script": "import warnings; warnings.warn('old', DeprecationWarning)",
    "futures of the launcher": "x: undefined_name = 1",
    "pickles of what it defines": """
        import pickle
        class Point:
            def __init__(self, x): self.x = x
            def __eq__(self, other): return self.x == other.x
        assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
        print(pickle.dumps(Point(1)))
        """,
    "children": """
        import multiprocessing, sys
        class Point:
            def __init__(self, x): self.x = x
        def double(point):
            return Point(point.x * 2)
        if __name__ == "__main__":
            for method in ("spawn", "fork", "forkserver"):
                pool = multiprocessing.get_context(method).Pool(1)
                print(method, [point.x for point in pool.map(double, [Point(1), Point(2)])])
                pool.close()
                pool.join()
        """,
}


class Case:
    """Runs the same arguments with the interpreter and with the launcher."""

    def __init__(self, folder: Path, agent: JobAgent) -> None:
        self.folder = folder
        self.agent = agent

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def assert_same(self, *arguments: str, options: tuple[str, ...] = ()) -> str:
        """Compare what both print and how they end, unobserved and observed; return the output."""
        plain = python([*options, *arguments], environment(), cwd=self.folder)
        for env in (environment(), self.agent.environment()):
            launched = python([*options, "-m", "skep_job", *arguments], env, cwd=self.folder)
            assert launched.stdout == plain.stdout
            assert launched.stderr == plain.stderr
            assert launched.returncode == plain.returncode
        return plain.stdout + plain.stderr


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    with job_agent() as agent:
        yield Case(tmp_path, agent)


@pytest.mark.parametrize("name", SCRIPTS)
def test_how_a_script_ends(case: Case, name: str) -> None:
    case.write("script.py", SCRIPTS[name])
    case.write("broken.py", "x = (")
    case.assert_same("script.py")


def test_what_a_script_sees(case: Case) -> None:
    case.write("jobs/script.py", SHOW)
    (case.folder / "link.py").symlink_to("jobs/script.py")
    output = case.assert_same("jobs/script.py", "-m", "--lr", "0.1")
    assert "['jobs/script.py', '-m', '--lr', '0.1']" in output
    case.assert_same("link.py")
    case.assert_same("jobs/../link.py", "")
    case.assert_same(str(case.folder / "jobs" / "script.py"))


def test_what_a_module_sees(case: Case) -> None:
    case.write("package/__init__.py", "")
    case.write("package/__main__.py", SHOW)
    case.write("package/script.py", SHOW)
    assert "/package/script.py', 'a', '-b']" in case.assert_same("-m", "package.script", "a", "-b")
    case.assert_same("-m", "package")
    case.write("package/script.py", "raise ValueError('this')")
    case.assert_same("-m", "package.script")


def test_directories_archives_and_bytecode(case: Case) -> None:
    case.write("folder/__main__.py", SHOW)
    case.assert_same("folder", "a")
    case.assert_same("./folder/")
    with zipfile.ZipFile(case.folder / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    case.assert_same("archive.zip", "a")
    py_compile.compile(str(case.folder / "folder" / "__main__.py"), str(case.folder / "code.pyc"))
    case.assert_same("code.pyc", "a")


def test_a_safe_path_stays_safe(case: Case) -> None:
    case.write("jobs/script.py", SHOW)
    output = case.assert_same("jobs/script.py", options=("-P",))
    assert f"'{case.folder}" not in output.splitlines()[-1]
    case.assert_same("-m", "platform", options=("-P",))


def test_what_is_not_there(case: Case) -> None:
    (case.folder / "empty").mkdir()
    assert "can't open file" in case.assert_same("nothing.py")
    assert "can't find '__main__' module" in case.assert_same("empty")
    assert "No module named nothing" in case.assert_same("-m", "nothing")


@pytest.mark.parametrize("arguments", [[], ["-m"], ["-c", "pass"], ["--help"]])
def test_a_wrong_command_line(arguments: list[str]) -> None:
    outcome = launch(arguments, environment())
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("usage: python -m skep_job script.py")


def test_nothing_of_the_working_directory_replaces_what_the_launcher_needs(case: Case) -> None:
    for name in ("json", "socket", "pkgutil", "select", "threading"):
        case.write(f"{name}.py", "raise SystemExit('the wrong one')")
    case.write("jobs/script.py", "print('ran')")
    assert case.assert_same("jobs/script.py") == "ran\n"
    case.agent.wait_until(lambda agent: agent.of_type("bye"))


def test_a_working_directory_that_was_deleted(case: Case) -> None:
    case.write("script.py", SHOW)
    script = str(case.folder / "script.py")
    command = 'd=$(mktemp -d) && cd "$d" && rmdir "$d" && exec "$0" "$@"'
    shown = []
    for arguments in ([], ["-m", "skep_job"]):
        outcome = subprocess.run(
            ["/bin/sh", "-c", command, sys.executable, *arguments, script],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        shown.append((outcome.returncode, outcome.stdout, outcome.stderr))
    assert shown[0] == shown[1]


def test_outside_skep_nothing_is_added(case: Case) -> None:
    case.write(
        "script.py",
        """
        import sys
        modules = sorted(sys.modules)
        import threading
        print(threading.active_count(), [f for f in sys.meta_path if "skep" in repr(f)])
        print(*modules)
        """,
    )
    plain = python(["script.py"], environment(), cwd=case.folder).stdout.splitlines()
    launched = launch(["script.py"], environment(), cwd=case.folder).stdout.splitlines()
    assert launched[0] == plain[0]
    added = set(launched[1].split()) - set(plain[1].split())
    assert {name for name in added if name.startswith("skep")} == {"skep_job", "skep_job.launch"}
    assert not added & {
        "json",
        "select",
        "signal",
        "socket",
        "threading",
        "skep_job.observe.observation",
    }


def test_wrong_settings_are_told_and_the_script_runs(case: Case) -> None:
    case.write("script.py", "print('ran')")
    env = case.agent.environment() | {"SKEP_GEN": "two"}
    outcome = launch(["script.py"], env, cwd=case.folder)
    assert outcome.stdout == "ran\n"
    assert outcome.returncode == 0
    assert outcome.stderr == (
        "skep_job: not observed: SKEP_GEN is 'two', expected a whole number from 0\n"
    )
    assert case.agent.accepted == 0


def test_importing_the_package_imports_nothing() -> None:
    code = "import sys; n = set(sys.modules); import skep_job; print(set(sys.modules) - n)"
    assert python(["-c", code], environment()).stdout == "{'skep_job'}\n"


def test_a_process_without_descriptors_runs_unobserved(case: Case) -> None:
    case.write("script.py", "print('ran')")
    code = (
        "import os\n"
        "import skep_job.launch, skep_job.observe.observation, skep_job.observe.reporter\n"
        "os.pipe = lambda: 1 / 0\n"
        "skep_job.launch.main(['script.py'])"
    )
    outcome = python(["-c", code], case.agent.environment(), cwd=case.folder)
    assert outcome.stdout == "ran\n"
    assert outcome.stderr == "skep_job: not observed: ZeroDivisionError: division by zero\n"
