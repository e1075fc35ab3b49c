"""Records which modules a run has imported by its first mini-batch, for those after it.

Libraries import much of themselves when it is first needed: PyTorch 800 modules for the first
optimizer. No text of the script tells of that.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping

VARIABLE = "SKEP_IMPORTS"
NAMES_MAX = 8192
RECORD_BYTES_MAX = 512 * 1024


def record(environ: Mapping[str, str] = os.environ) -> None:
    """Write the names of all modules from files, and of the variables that were changed.

    Does nothing where none is wanted, and where it cannot be written.
    """
    path = environ.get(VARIABLE, "")
    if not path:
        return
    modules = [
        name
        for name, module in list(sys.modules.items())
        if isinstance(getattr(module, "__file__", None), str) and _is_of_library(name)
    ]
    import posix

    before = {os.fsdecode(name): os.fsdecode(value) for name, value in posix.environ.items()}
    changed = [name for name in {**before, **environ} if before.get(name) != environ.get(name)]
    text = json.dumps({"modules": modules[:NAMES_MAX], "changed": changed})
    aside = f"{path}.{os.getpid()}"
    try:
        with open(aside, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(aside, path)
    except OSError:
        # No folder, or no room: later runs import it themselves.
        with contextlib.suppress(OSError):
            os.unlink(aside)


def read(path: str) -> tuple[list[str], list[str]]:
    """Return the modules and the changed variables of a record; none where it makes no sense."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(RECORD_BYTES_MAX))
        modules, changed = found["modules"][:NAMES_MAX], found["changed"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return [], []
    names = [each for each in modules if isinstance(each, str) and _is_name(each)]
    return names, [each for each in changed if isinstance(each, str)]


def _is_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _is_of_library(name: str) -> bool:
    top = name.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in {"__main__", "skep_job"}
