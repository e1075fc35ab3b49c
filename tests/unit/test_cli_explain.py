"""`skep explain`: every code has its text, and what is advised names commands that there are."""

from __future__ import annotations

import json
import re

import pytest

from skep.wire.reasons import Reason
from skep.wire.remedies import REMEDIES
from skep_services.cli.explain import texts
from skep_services.cli.main import COMMANDS, main


def test_every_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(Reason) <= set(texts())
    assert main(["explain", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["reasons"]
    assert {one["code"] for one in told} == set(texts())
    assert main(["explain", "exited-nonzero", "arrival"]) == 0
    assert capsys.readouterr().out == (
        "exited-nonzero: a process exited with a status other than 0\n"
        "  what to do: `skep logs JOB --tail 50` shows its last words\n"
        "arrival: in order of arrival\n"
    )


def test_what_is_advised_can_be_done() -> None:
    named = {word for text in REMEDIES.values() for word in re.findall(r"`skep ([a-z-]+)", text)}
    assert named <= set(COMMANDS)


def test_codes_are_found_by_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--grep", "Window"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["CODE", "TEXT"]
    assert all("window" in line for line in lines[1:])
    assert len(lines) > 5
    assert main(["explain", "--grep", "zzz"]) == 0
    assert capsys.readouterr().err == "no reason has 'zzz' in its texts\n"


def test_a_code_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "peer-faild"]) == 3
    assert capsys.readouterr().err == (
        "skep explain: no reason 'peer-faild': did you mean peer-failed?\n"
    )
