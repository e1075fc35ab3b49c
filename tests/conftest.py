"""What every test shares: how hard hypothesis tries, and a port to listen on."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Kernels of the fast environment are interpreted, whatever imports them first: compiling takes half
# a minute in each process. What tests the compiled ones has processes of its own.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")

from tests import needs
from tests.support import ports
from tests.support.embedded import Embedded

# Inputs are drawn afresh on every run and the failing one is printed as a blob that replays it;
# only `ci` draws the same ones every time, so that what it says of a change is about the change.
# Wall time says nothing about a property on a machine that also does other work: no deadline.
# `make test` tries as often as `dev` says, `make test-all` as `all` or, in CI, as `ci`: the same
# inputs again and again need not be many. Only a person chooses `nightly`.
for _name, _examples in {"dev": 15, "all": 60, "ci": 20, "nightly": 5_000}.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        derandomize=_name == "ci",
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)


# As in a job of an agent: threads of PyTorch that wait for one another take twice the CPU time, and
# many times that on a machine that also does other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test run that a script starts in the background has SIGINT ignored, and every process it starts
# would inherit that: no Ctrl-C could be tested. A handled signal is at its default in children.
signal.signal(signal.SIGINT, signal.default_int_handler)


Embedded.ports = ports.gangs()


@pytest.fixture
def free_port() -> int:
    """Return a loopback TCP port that nothing listens on."""
    return ports.free_port()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what this machine lacks, before any fixture of it is made."""
    needs.require(*needs.of_item(item))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line for each missing thing how many tests it was missing to."""
    reports = terminalreporter.stats.get("skipped", [])
    for line in needs.summary(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports
    ):
        terminalreporter.write_line(line)
