"""What runs of experiments came to, in a folder: for going on later, and for other experiments.

A file's name is a digest of the setting, the seed, and the text of the program that simulates:
after any change to `skep` nothing that was kept before is found.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import msgspec

import skep.experiments
from skep.experiments.catalogue import Setting
from skep.experiments.hived import Outcome

PROGRAM = Path(skep.experiments.__file__).parents[1]


def get(folder: Path, setting: Setting, seed: int) -> Outcome | None:
    """Return what was kept, if it was."""
    try:
        return msgspec.json.decode(_file(folder, setting, seed).read_bytes(), type=Outcome)
    except FileNotFoundError:
        return None


def put(folder: Path, setting: Setting, seed: int, outcome: Outcome) -> None:
    """Keep an outcome; the folder is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    file = _file(folder, setting, seed)
    whole = file.with_suffix(".new")
    whole.write_bytes(msgspec.json.encode(outcome))
    whole.rename(file)


def _file(folder: Path, setting: Setting, seed: int) -> Path:
    what = msgspec.json.encode((setting._replace(label=""), seed))
    return folder / f"{hashlib.sha256(_program() + what).hexdigest()[:32]}.json"


@cache
def _program() -> bytes:
    digest = hashlib.sha256()
    for file in sorted(PROGRAM.rglob("*.py")):
        digest.update(str(file.relative_to(PROGRAM)).encode() + b"\0" + file.read_bytes())
    return digest.digest()
