"""What a warm process may import before a script, by the script's text."""

import re
from pathlib import Path

import pytest

from skep_job.warm.late_imports import why_late_imports_differ
from skep_job.warm.leading_imports import UnreadableError, leading_imports

TEXTS = {
    "import torch\nimport numpy as np, os\nfrom torch import nn, optim": [
        "torch", "numpy", "torch.nn", "torch.optim"
    ],
    "'''Doc.'''\nfrom __future__ import annotations\nimport torch": ["torch"],
    "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch": [],
    "import torch\ntorch.backends.cudnn.benchmark = True\nimport numpy": ["torch"],
    "import matplotlib\nmatplotlib.use('Agg')\nimport torch": ["matplotlib"],
    "import sys\nsys.path.insert(0, '..')\nimport torch": [],
    "RATE = 0.1\nx: int = -1\ndef f(a=1): import pandas\nimport torch": ["torch"],
    "def f(a=g()): pass\nimport torch": [],
    "@wrap\ndef f(): pass\nimport torch": [],
    "class A: x = f()\nimport torch": [],
    "class A(nn.Module):\n def f(self): g()\nimport torch": ["torch"],
    "try:\n import wandb\nexcept ImportError:\n wandb = None\nimport torch": ["wandb", "torch"],
    "try:\n f()\nexcept OSError: pass\nimport torch": [],
    "import typing\nif typing.TYPE_CHECKING:\n import pandas\nimport torch": ["torch"],
    "import torch\nif __name__ == '__main__':\n import numpy\n main()\n import pandas": [
        "torch", "numpy"
    ],
    "if f:\n import torch": [],
    "from data import Set\nimport torch": ["pandas", "torch"],
    "import model\nimport torch": ["numpy"],
    "from nets.small import Net\nimport torch": ["scipy", "torch"],
    "import json\nimport random": [],
}  # fmt: skip
"""Scripts, and what is imported before them. `data`, `model` and `nets` are beside them."""


@pytest.mark.parametrize("text", [pytest.param(text, id=text[:40]) for text in TEXTS])
def test_imports_up_to_the_first_effect(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.py").write_text("import pandas\nclass Set: pass")
    (tmp_path / "model.py").write_text("import numpy\nprint('here')\nimport scipy")
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("")
    (tmp_path / "nets" / "small.py").write_text("from . import base\nNet = 1")
    (tmp_path / "nets" / "base.py").write_text("import scipy")
    script = tmp_path / "train.py"
    script.write_text(text)
    found = [f"{one.module}.{one.name}".strip(".") for one in leading_imports(str(script))]
    assert found == TEXTS[text]


@pytest.mark.parametrize("text", [b"import (", b"\0", b"(" * 5000, b"x = 1\n" * 200_000])
def test_what_is_no_script_is_said(tmp_path: Path, text: bytes) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(text)
    with pytest.raises(UnreadableError, match=r"train\.py (cannot be read|has more than)"):
        leading_imports(str(script))


SETS = {
    "import os\nos.environ['A'] = '1'": "line 2 of .* sets the environment",
    "from os import environ\nenviron['A'] = '1'": "line 2 of .* sets the environment",
    "import os\nos.environ.update(A='1')": "sets the environment",
    "import os\nf(os.environ)": "sets the environment",
    "import torch\ntorch.set_default_dtype(torch.float64)": "sets the default type of tensors",
    "import sys\nsys.modules['a'] = None": "sets sys.modules",
    "import os\nos.environ['RANK'] = '1'; os.environ.setdefault('MASTER_PORT', '1')": "",
    "import os\nprint(os.environ['A'], os.environ.get('B'), 'C' in os.environ)": "",
    "import os\nrun(x, env={**os.environ}); a = dict(os.environ)": "",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=text[:40]) for text in SETS])
def test_what_late_imports_may_look_at(tmp_path: Path, text: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    why = why_late_imports_differ(str(script), lambda name: name in {"RANK", "MASTER_PORT"})
    if SETS[text]:
        assert re.search(SETS[text], why)
    else:
        assert why == ""
