"""Scripts of `skep cells replay`, and what comes of each in the `.out` beside it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from skep.cells.check import check_cells
from skep.cells.replay import Replay
from skep.cells.script import Delete, Script, Submit, parse_script
from skep.ids import AttemptId
from skep_services.cli.main import main

HERE = Path(__file__).parent / "cells"
SCRIPTS = sorted(HERE.glob("*.json"))
BLESS = "SKEP_BLESS"


def read(path: Path) -> Any:
    """Return a script with the clusters it names read in."""
    tree = json.loads(path.read_text())
    for part in (tree, *tree["events"]):
        if isinstance(part.get("cluster"), str):
            part["cluster"] = yaml.safe_load((path.parent / part["cluster"]).read_text())
    return tree


def replayed(path: Path) -> str:
    """Return what comes of a script, a line for each event, or what is wrong with it."""
    script = parse_script(read(path))
    if isinstance(script, list):
        return "".join(f"{one.path}: {one.reason}: {one.text}\n" for one in script)
    replay = Replay(script, watch=check_cells)
    return "".join(json.dumps(replay.step(event)) + "\n" for event in script.events)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    told, blessed = replayed(path), path.with_suffix(".out")
    if os.environ.get(BLESS):
        blessed.write_text(told)
    assert told == blessed.read_text(), (
        f"{path.name} comes to something else: run `make bless`, read the difference"
    )


def test_every_script_says_what_it_shows() -> None:
    assert len(SCRIPTS) >= 25
    for path in SCRIPTS:
        assert json.loads(path.read_text())["about"], path.name
    assert sorted(HERE.glob("*.out")) == [path.with_suffix(".out") for path in SCRIPTS]


@pytest.mark.parametrize("seed", range(40))
def test_any_legal_sequence_of_requests_is_served(seed: int) -> None:
    """Figure 3 of HiveD: in whatever order tenants ask for what is theirs, they get it at once."""
    rng = random.Random(seed)
    tree = yaml.safe_load((HERE / "figure3.yaml").read_text())
    script = parse_script({"cluster": tree, "events": []})
    assert isinstance(script, Script)
    replay = Replay(script, watch=check_cells)
    sizes = {"switch": 2, "socket": 4, "node": 8, "gpu": 1}
    cells = [
        (vc, sizes[quota.level])
        for vc, owned in script.cluster.vcs.items()
        for quota in owned.cells
        for _ in range(quota.count)
    ]
    running: dict[str, tuple[str, int]] = {}
    left = list(cells)
    for number in range(80):
        if rng.random() < 0.3:
            flood = Submit(
                job=AttemptId(f"o{number}"),
                vc="A",
                gpus=rng.randint(1, 8),
                service_class="opportunistic",
            )
            replay.step(flood)
        elif running and (not left or rng.random() < 0.4):
            job = rng.choice(list(running))
            left.append(running.pop(job))
            replay.step(Delete(job=AttemptId(job)))
        else:
            cell = left.pop(rng.randrange(len(left)))
            vc, gpus = cell
            told = replay.step(Submit(job=AttemptId(f"j{number}"), vc=vc, gpus=gpus))
            running[f"j{number}"] = cell
            assert told["outcome"] == "bound", f"seed {seed}: {told}"
            assert "opportunistic" not in told, f"seed {seed}: {told}"


def test_the_command_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    path = HERE / "cells_are_bound_in_any_order.json"
    assert main(["cells", "replay", "--json", str(path)]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [json.loads(line) for line in path.with_suffix(".out").read_text().splitlines()]
    assert main(["cells", "replay", str(path)]) == 0
    assert "submit a1: bound on n0:0,1,2,3" in capsys.readouterr().out


def test_the_command_tells_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"cluster": {"chains": {}}, "events": [{"event": "sumbit"}], "evnts": 1}')
    assert main(["cells", "replay", str(path)]) == 1
    assert "$.evnts: unknown key `evnts` (unknown-key): did you mean `events`?" in (
        capsys.readouterr().err
    )
    path.write_text('{"cluster": {"vcs": {}}, "events": [{"event": "sumbit"}, 7, {}]}')
    assert main(["cells", "replay", str(path)]) == 1
    told = capsys.readouterr().err
    assert "$.cluster.chains" in told
    assert "did you mean `submit`?" in told
    assert "an event is an object with keys, not a number" in told
    assert main(["cells", "replay", str(tmp_path / "none.json")]) == 2
    path.write_text('{"cluster": "none.yaml", "events": []}')
    assert main(["cells", "replay", str(path)]) == 2
