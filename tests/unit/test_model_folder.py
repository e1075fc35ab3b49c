"""The models of a folder: found by their hash, and refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skep.learn.modelfile import Header, dump, name_of
from skep.learn.net import random_weights
from skep_services.advisor.models import ModelFolder

GOOD = dump(random_weights(1), Header())


class Log:
    """What was said."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.lines: list[dict[str, Any]] = []

    def error(self, _event: str, **fields: Any) -> None:
        """Keep a line."""
        self.lines.append(fields)


def put(folder: Path, name: str, data: bytes) -> str:
    (folder / f"{name}.safetensors").write_bytes(data)
    return name


def test_a_model_is_found_by_its_hash(tmp_path: Path) -> None:
    log = Log()
    models = ModelFolder(tmp_path, log)
    name = put(tmp_path, name_of(GOOD), GOOD)
    assert models.seat(name) is not None
    assert models.offers(name)
    assert log.lines == []


@pytest.mark.parametrize(
    "name, data, said",
    [
        ("0" * 64, None, "No such file"),
        ("1" * 64, GOOD, "damaged"),
        ("2" * 64, b"x", "no safetensors file"),
        ("../../etc/passwd", None, "is not the SHA-256 of a file"),
        ("3" * 64, GOOD[:-9], "no safetensors file"),
    ],
)
def test_what_is_no_model_is_told_once_in_one_line(
    tmp_path: Path, name: str, data: bytes | None, said: str
) -> None:
    log = Log()
    models = ModelFolder(tmp_path, log)
    if data is not None:
        put(tmp_path, name, data)
    assert models.seat(name) is None
    assert models.seat(name) is None
    (line,) = log.lines
    assert said in line["why"]
    assert "\n" not in line["why"]


def test_a_model_that_was_retired_is_not_offered(tmp_path: Path) -> None:
    models = ModelFolder(tmp_path, Log())
    name = put(tmp_path, name_of(GOOD), GOOD)
    assert models.offers(name)
    line = '{"model":"%s","state":"%s","at":1,"why":"worse"}\n'
    (tmp_path / "states.jsonl").write_text(line % (name, "retired"))
    assert not models.offers(name)
    with (tmp_path / "states.jsonl").open("a") as file:
        file.write(line % (name, "promoted"))
    assert models.offers(name)
