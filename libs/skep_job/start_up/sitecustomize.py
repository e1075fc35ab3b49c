"""Runs at the start of every Python interpreter below a job's command, and watches for training.

The agent puts this folder, which holds nothing else, first in PYTHONPATH. What the interpreter
would have run without it, another `sitecustomize`, is run as ever.
"""

import os
import sys


def _chain(here: str) -> None:
    """Run the module of this name that this one hides, in this one's place."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _watch(here: str) -> None:
    """Load the package from beside this folder, without a place for it on the import path."""
    if not os.environ.get("SKEP_SOCK"):
        return
    from importlib.util import module_from_spec, spec_from_file_location

    if "skep_job" not in sys.modules:
        package = os.path.dirname(here)
        file = os.path.join(package, "__init__.py")
        spec = spec_from_file_location("skep_job", file, submodule_search_locations=[package])
        if spec is None or spec.loader is None:
            return
        module = module_from_spec(spec)
        sys.modules["skep_job"] = module
        spec.loader.exec_module(module)
    from skep_job.observe.training_process import watch

    watch()


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        _chain(here)
    finally:
        try:
            _watch(here)
        except Exception:  # noqa: S110
            pass  # The job is then opaque; nothing of it may fail for our sake.


if sys.version_info >= (3, 10):  # noqa: UP036  a job may run on any Python
    _start()
