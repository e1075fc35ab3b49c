"""The registry of learned models: what it keeps, what it says, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from skep.learn import modelfile
from skep.learn.net import Sizes, shapes
from skep.learn.shipped import shipped
from skep_services.advisor.models import ModelFolder
from skep_services.cli.main import main
from skep_services.learning import registry
from skep_services.learning.problems import LearningError, Why
from skep_services.learning.registry import State

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["models", *words, "--home", str(tmp_path / "home")])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def model(seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    weights = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes(Sizes(4, 4)).items()
    }
    report = {"jct_better": 0.03}
    header = modelfile.Header(job=4, head=4, seeds=(seed,), trained_on="bursts", report=report)
    return modelfile.dump(weights, header)


def test_states_are_the_last_lines_about_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    assert registry.read_registry(folder).keys() == shipped().keys()
    first = registry.add(folder, b"one", 10, "a run")
    assert registry.add(folder, b"one", 11) == first == registry.name_of(b"one")
    other = registry.add(folder, b"two", 12)
    registry.change(folder, first, State.PROMOTED, 20, "better in bursts")
    registry.change(folder, other, State.PROMOTED, 30)
    registry.change(folder, first, State.RETIRED, 40, "worse on Monday")
    found = registry.read_registry(folder)
    assert list(found) == [first, other, *shipped()]
    states = [(found[name].state, found[name].at, found[name].why) for name in (first, other)]
    assert states == [(State.RETIRED, 40, "worse on Monday"), (State.PROMOTED, 30, "")]
    assert [line.at for line in found[first].history] == [10, 20, 40]
    assert registry.read_model(folder, other) == b"two"


def test_a_line_that_was_cut_short_harms_no_other(tmp_path: Path) -> None:
    name = registry.add(tmp_path, b"one", 10)
    with (tmp_path / registry.STATES).open("ab") as file:
        file.write(b'{"model":"\xff"}\n{"model":"' + name.encode()[:20])
    assert registry.read_registry(tmp_path)[name].state is State.CANDIDATE
    registry.change(tmp_path, name, State.PROMOTED, 20)
    assert registry.read_registry(tmp_path)[name].state is State.PROMOTED
    loose = registry.name_of(b"loose")
    (tmp_path / f"{loose}.safetensors").write_bytes(b"loose")  # Killed before its line was written.
    assert registry.read_registry(tmp_path)[loose].state is State.CANDIDATE
    registry.add(tmp_path, b"loose", 30)
    assert registry.read_registry(tmp_path)[loose].at == 30
    os.unlink(tmp_path / f"{name}.safetensors")
    assert registry.read_registry(tmp_path)[name].size == -1


def test_a_file_is_what_its_name_says_or_is_refused(tmp_path: Path) -> None:
    name = registry.add(tmp_path, b"weights", 1)
    (tmp_path / f"{name}.safetensors").write_bytes(b"other weights")
    with pytest.raises(LearningError, match="is damaged") as found:
        registry.read_model(tmp_path, name)
    assert found.value.why is Why.DAMAGED_MODEL
    assert registry.add(tmp_path, b"weights", 2) == name  # Said again, it is whole again.
    assert registry.read_model(tmp_path, name) == b"weights"


def test_a_damaged_file_is_whole_once_it_is_added_again(tmp_path: Path) -> None:
    name = registry.add(tmp_path, b"content", 10)
    (tmp_path / f"{name}.safetensors").write_bytes(b"CONTENT")
    assert registry.add(tmp_path, b"content", 11) == name
    assert registry.read_model(tmp_path, name) == b"content"
    assert [line.at for line in registry.read_registry(tmp_path)[name].history] == [10]


def test_the_advisor_takes_no_model_that_was_retired(tmp_path: Path) -> None:
    said: list[str] = []

    class Log:
        def error(self, _event: str, **more: str) -> None:
            said.append(more["why"])

    name = registry.add(tmp_path, model(), 1)
    assert ModelFolder(tmp_path, Log()).seat(name) is not None
    registry.change(tmp_path, name, State.RETIRED, 2, "worse on Monday")
    assert ModelFolder(tmp_path, Log()).seat(name) is None
    assert said == ["it was retired: worse on Monday"]
    registry.change(tmp_path, name, State.PROMOTED, 3)
    assert ModelFolder(tmp_path, Log()).seat(name) is not None
    assert registry.BYTES_MAX == modelfile.BYTES_MAX


def test_prefixes_name_one_model(tmp_path: Path) -> None:
    names = ["abcd" + "0" * 60, "abce" + "0" * 60]
    entries = {name: registry.Entry(name, 1, State.CANDIDATE, 0, "", ()) for name in names}
    assert registry.find(entries, "abcd").model == names[0]
    for wrong, why in (("abc", Why.NO_MODEL), ("ffff", Why.NO_MODEL), ("xyzw", Why.NO_MODEL)):
        with pytest.raises(LearningError) as found:
            registry.find(entries, wrong)
        assert found.value.why is why
    entries["abcd1" + "0" * 59] = entries[names[0]]
    with pytest.raises(LearningError, match="2 models begin with abcd") as found:
        registry.find(entries, "abcd")
    assert found.value.why is Why.AMBIGUOUS


def test_a_model_is_added_shown_promoted_and_retired(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(model())
    code, out, _ = run("add", str(file))
    name = out.strip()
    assert (code, name) == (0, registry.name_of(model()))
    assert run("promote", name[:6], "--why", "better in bursts")[0] == 0
    code, out, _ = run("ls")
    assert (code, out.splitlines()[1].split()[:2]) == (0, [name[:12], "promoted"])
    shown = json.loads(run("show", name[:4], "--json")[1])
    assert shown["about"]["report"] == {"jct_better": 0.03}
    assert shown["about"]["seeds"] == [0]
    assert [line["state"] for line in shown["history"]] == ["candidate", "promoted"]
    assert "jct_better: 0.03" in run("show", name[:4])[1]
    assert json.loads(run("promote", name[:4], "--json")[1])["error"]["reason"] == "wrong-state"
    assert json.loads(run("retire", name, "--json")[1])["before"] == "promoted"
    assert json.loads(run("ls", "--json")[1])["models"][0]["state"] == "retired"


def test_the_model_that_comes_with_skep_can_be_promoted_and_used_without_a_file(
    run: Run, tmp_path: Path
) -> None:
    (name,) = shipped()
    code, out, _ = run("ls")
    assert (code, out.splitlines()[1].split()[:2]) == (0, [name[:12], "candidate"])
    assert registry.SHIPPED in out
    about = json.loads(run("show", name[:8], "--json")[1])["about"]
    assert about["report"]["tuning"] < 0
    assert run("promote", name[:8], "--why", "bursts come")[0] == 0
    folder = tmp_path / "home" / "models"
    assert registry.read_registry(folder)[name].state is State.PROMOTED
    assert registry.name_of(registry.read_model(folder, name)) == name
    models = ModelFolder(folder, None)
    assert models.offers(name)
    assert models.seat(name) is not None
    assert run("retire", name[:8], "--why", "they went")[0] == 0
    assert not models.offers(name)


def test_what_it_refuses(run: Run, tmp_path: Path) -> None:
    def reason(code: int, *words: str) -> str:
        found, out, err = run(*words, "--json")
        assert (found, err.count("\n")) == (code, 1), err
        return str(json.loads(out)["error"]["reason"])

    file = tmp_path / "m.safetensors"
    data = model()
    file.write_bytes(data[:-4])
    assert reason(1, "add", str(file)) == "damaged-model"
    file.write_bytes(b"{}")
    assert reason(1, "add", str(file)) == "damaged-model"
    numbers = b'{"__metadata__": {"schema": 1}}'  # Not texts, as safetensors has them.
    file.write_bytes(len(numbers).to_bytes(8, "little") + numbers)
    assert reason(1, "add", str(file)) == "damaged-model"
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes(Sizes(4, 4)).items()}
    weights["job.0.weight"] = np.full_like(weights["job.0.weight"], np.nan)
    file.write_bytes(_stored(weights, modelfile.Header(job=4, head=4)))
    assert reason(1, "add", str(file)) == "damaged-model"
    header = msgspec.structs.replace(modelfile.Header(job=4, head=4), schema=99)
    file.write_bytes(_stored(weights, header))
    assert reason(1, "add", str(file)) == "other-schema"
    assert reason(3, "add", str(tmp_path / "none")) == "no-model"
    with file.open("wb") as large:
        large.truncate(registry.BYTES_MAX + 1)
    assert "has more than 8 MiB" in run("add", str(file))[2]
    file.write_bytes(_stored(weights, header))
    assert reason(3, "promote", "abcd") == "no-model"
    assert reason(3, "show", "abcd") == "no-model"
    # What was put there by hand is looked at again before it may act.
    folder = tmp_path / "home" / "models"
    name = registry.add(folder, file.read_bytes(), 1)
    assert reason(1, "promote", name) == "other-schema"
    assert reason(2, "show") == "usage"


def _stored(weights: dict[str, Any], header: modelfile.Header) -> bytes:
    from safetensors.numpy import save

    return bytes(save(weights, {modelfile.KEY: msgspec.json.encode(header).decode()}))


def test_what_speeds_were_asked_for_by_is_told_their_new_name(run: Run) -> None:
    for words in (("resnet50",), ("--measured",), ("resnet50", "--errors", "all")):
        code, _, err = run(*words)
        assert (code, err.count("\n")) == (2, 1)
        assert "`skep speeds" in err
    assert "`skep speeds resnet50`" in run("resnet50")[2]


def test_a_file_that_is_removed_meanwhile_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [registry.add(tmp_path, data, 10) for data in (b"one", b"two")]
    files = [tmp_path / f"{'0' * 64}.safetensors", *(tmp_path / f"{n}.safetensors" for n in names)]
    monkeypatch.setattr(Path, "iterdir", lambda _folder: iter(files))
    assert [registry.read_registry(tmp_path)[name].size for name in names] == [3, 3]
