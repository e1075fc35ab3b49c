"""What runs of experiments came to, in a folder: for going on later, and for other experiments.

A file's name is a digest of the setting, the seed, and the text of the program that simulates:
after any change to `skep` or `skep_lab` nothing that was kept before is found. What is plain is
simulated without the production machines, and found until the text of experiments or generators
changes.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from skep_lab.experiments.gandiva import Played
from skep_lab.experiments.hived import Outcome
from skep_lab.experiments.setting import AnySetting, Setting
from skep_lab.measures import program

PLAIN = (
    "skep/units.py",
    "skep/wire/cluster.py",
    "skep_lab/experiments/",
    "skep_lab/traces/generators/",
    "skep_lab/traces/job.py",
)
SAID = tuple(
    f"skep_lab/experiments/{name}.py"
    for name in ("catalogue", "deadlinefigures", "gandivafigures", "geniefigures", "report")
)
"""The lists of settings, and what is told of them: it changes no outcome of a setting."""


def get(folder: Path, setting: AnySetting, seed: int) -> Outcome | Played | None:
    """Return what was kept, or None if nothing was.

    Args:
        folder: Where outcomes are kept.
        setting: What was run.
        seed: The seed of that run.
    """
    kind: type[Any] = Outcome if isinstance(setting, Setting) else Played
    try:
        found: Outcome | Played = msgspec.json.decode(
            _file(folder, setting, seed).read_bytes(), type=kind
        )
    except FileNotFoundError:
        return None
    return found


def put(folder: Path, setting: AnySetting, seed: int, outcome: Outcome | Played) -> None:
    """Keep an outcome; the folder is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    file = _file(folder, setting, seed)
    whole = file.with_suffix(".new")
    whole.write_bytes(msgspec.json.encode(outcome))
    whole.rename(file)


def _file(folder: Path, setting: AnySetting, seed: int) -> Path:
    what = msgspec.json.encode((setting._replace(label=""), seed))
    return folder / f"{hashlib.sha256(_program(plain=setting.plain) + what).hexdigest()[:32]}.json"


@cache
def _program(*, plain: bool) -> bytes:
    return program.digest(lambda path: path not in SAID and (not plain or path.startswith(PLAIN)))
