"""Transcripts: commands, and below `----` what followed. `make bless` rewrites them for reading."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenarios.world import World

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*.txt"))
BLESS = "SKEP_BLESS"
"""Set to anything but the empty text: write what followed instead of comparing it."""


def commands_in(text: str) -> list[tuple[list[str], str]]:
    """Return a transcript's commands, each with the comment lines above it."""
    found: list[tuple[list[str], str]] = []
    comments: list[str] = []
    for block in text.split("\n\n"):
        for line in block.splitlines():
            if line == "----":
                break
            if line.startswith("#"):
                comments.append(line)
            elif line:
                found.append((comments, line))
                comments = []
    return found


def transcript(text: str) -> str:
    """Return a transcript with what follows from its commands in the world as it is."""
    world = World()
    blocks = []
    for comments, command in commands_in(text):
        blocks.append("\n".join([*comments, command, "----", *world.run(command)]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    told = transcript(text)
    if os.environ.get(BLESS):
        path.write_text(told)
    else:
        assert told == text, (
            f"{path.name} tells another story: run `make bless`, read the difference"
        )


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 5


def test_a_transcript_is_its_commands_and_what_followed() -> None:
    told = transcript("# Hello.\nvcs nlp=1\n----\nanything\n\nwait 5\n")
    assert told == (
        "# Hello.\nvcs nlp=1\n----\n"
        "admission records VcsSet vcs={nlp:(VirtualCluster gpus=1)} gpus={nlp:1}\n"
        "allocator records CellsSet cluster={} {nlp:[]}\n"
        "admission records CellsSeen cluster={} {nlp:[]}\n"
        "\nwait 5\n----\n"
    )
    assert transcript(told) == told
