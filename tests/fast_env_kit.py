"""The fast environment in tests: interpreted, so that tests need no half minute of compilation.

Import this module before `skep_lab.fast_env`. The compiled kernels are tested in processes of their
own (`make test-all`).
"""

from __future__ import annotations

from tests import needs

needs.require("lab")

import numba  # noqa: E402

numba.config.DISABLE_JIT = True  # type: ignore[attr-defined]
