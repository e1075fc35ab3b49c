"""Stored command lines and scripts name `skep_job.ps`: what is there now is `skep_ps`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import skep_job.ps
import skep_ps
from skep_ps.errors import ParameterServerError

LIBS = Path(skep_ps.__file__).parents[1]

AS_THE_HOOK_DOES = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
folder = sys.argv[1]
spec = spec_from_file_location(
    "skep_job", folder + "/__init__.py", submodule_search_locations=[folder]
)
module = module_from_spec(spec)
sys.modules["skep_job"] = module
spec.loader.exec_module(module)
import skep_job.ps
print(skep_job.ps.ParameterServerError.__module__, sys.modules["skep_ps"].__file__)
"""


@pytest.mark.parametrize("program", ["launch", "server", "coordinator", "ask"])
def test_a_stored_command_line_starts_the_program(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"skep_job.ps.{program}", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: python -m skep_ps.{program} "), done.stdout


def test_both_names_have_the_same_errors() -> None:
    assert skep_job.ps.ParameterServerError is ParameterServerError
    with pytest.raises(AttributeError, match="'skep_ps' has no attribute 'absent'"):
        _ = skep_job.ps.absent


def test_a_script_finds_them_where_neither_is_on_the_import_path() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", AS_THE_HOOK_DOES, str(LIBS / "skep_job")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"skep_ps.errors {LIBS / 'skep_ps' / '__init__.py'}\n", done.stderr
