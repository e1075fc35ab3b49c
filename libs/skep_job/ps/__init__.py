"""The name under which stored jobs know `skep_ps`; the one place that leads from here to it.

Command lines in logs, journals and job specs say `python -m skep_job.ps.launch`, and scripts say
`from skep_job.ps import SGD`. Both go on: the modules of `skep_ps` are found under this name too.
Nothing else in `skep_job` imports this package.
"""

import os
import sys


def _load() -> None:
    """Load the package from beside this one, which need not be on the import path.

    The agent's hook gives `skep_job` no place there (see `start_up`).
    """
    from importlib.util import module_from_spec, spec_from_file_location

    libraries = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folder = os.path.join(libraries, "skep_ps")
    file = os.path.join(folder, "__init__.py")
    spec = spec_from_file_location("skep_ps", file, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["skep_ps"] = module
    spec.loader.exec_module(module)


if "skep_ps" not in sys.modules:
    _load()

import skep_ps  # noqa: E402  found by now

__path__ = skep_ps.__path__


def __getattr__(name: str) -> object:
    return getattr(skep_ps, name)
