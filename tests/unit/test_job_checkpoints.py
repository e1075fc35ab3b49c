"""The folder of checkpoints: what is kept, what is passed over, and who may write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from skep_job.cooperate.begin import seconds
from skep_job.observe.metrics import NAMES_MAX, Metrics
from skep_job.state import checkpoint_file, snapshot
from skep_job.state.checkpoint_file import Unreadable, read_header, read_tensors
from skep_job.state.checkpoint_folder import Checkpoints, Superseded
from skep_job.state.snapshot import Another, Snapshot, place_of
from skep_job.state.state_tree import Encoder, Unsaveable, decode

pytestmark = pytest.mark.torch


def state(value: float = 1.0) -> Snapshot:
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value)
    return snapshot.take({"model": model}, {"steps": 4, "state": {"best": value}})


def folder(path: Path, attempt: int = 1, rank: int = 0, world: int = 1) -> Checkpoints:
    return Checkpoints(path, "j1", attempt, rank, world)


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.name not in ("lock", "fence"))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path, size = folder(tmp_path).save(state(0.1), 7)
    assert (size, path.name) == (path.stat().st_size, "a00001-s000000000007-r0of1.safetensors")
    (entry,) = folder(tmp_path, 2).steps(print)
    header = folder(tmp_path, 2).read(entry)
    tensors = read_tensors(path, header)
    assert place_of(header.plain, tensors) == {"steps": 4, "state": {"best": 0.1}}
    model = torch.nn.Linear(3, 2)
    snapshot.load({"model": model}, header.plain, tensors)
    assert model.weight.tolist() == [[torch.tensor(0.1).item()] * 3] * 2


@pytest.mark.parametrize("at", [0, 9, 60, 200, -1, "cut", "more", "version"])
def test_damage_is_seen(tmp_path: Path, at: int | str) -> None:
    path, _ = folder(tmp_path).save(state(), 7)
    content = bytearray(path.read_bytes())
    if isinstance(at, int):
        content[at] ^= 0x10
    elif at == "cut":
        content = content[:-3]
    elif at == "more":
        content += b"\0"
    else:
        content = content.replace(rb"\"version\":2", rb"\"version\":9", 1)
    path.write_bytes(content)
    with pytest.raises(Unreadable):
        read_tensors(path, read_header(path))


def test_two_are_kept_and_leftovers_removed(tmp_path: Path) -> None:
    (tmp_path / "a00001-s000000000001-r0of1.safetensors.77.part").write_bytes(b"torn")
    (tmp_path / "notes.txt").write_text("not ours")
    for step in (5, 10, 15):
        folder(tmp_path).save(state(), step)
    kept = ["a00001-s000000000010-r0of1.safetensors", "a00001-s000000000015-r0of1.safetensors"]
    assert names(tmp_path) == [*kept, "notes.txt"]
    with pytest.raises(OSError, match="File exists"):  # One that cannot be written ...
        checkpoint_file.write(tmp_path / kept[0], state(), {})
    assert names(tmp_path) == [*kept, "notes.txt"]  # ... costs none that is there.


def test_a_later_attempt_keeps_an_earlier_one_from_writing(tmp_path: Path) -> None:
    stale, later = folder(tmp_path, 3), folder(tmp_path, 4)
    stale.raise_fence()
    stale.save(state(), 5)
    later.raise_fence()
    with pytest.raises(Superseded, match="attempt 4 of this job has trained; attempt 3 is over"):
        stale.save(state(), 6)
    with pytest.raises(Superseded):
        stale.raise_fence()
    later.save(state(), 2)
    entries = later.steps(print)
    assert [(entry.attempt, entry.step) for entry in entries] == [(4, 2), (3, 5)]
    assert not any(name.endswith(".part") for name in names(tmp_path))


def test_a_gangs_checkpoint_is_whole_with_all_its_files(tmp_path: Path) -> None:
    one, other = folder(tmp_path, 1, 0, 2), folder(tmp_path, 1, 1, 2)
    one.save(state(), 5)
    (entry,) = one.steps(print)
    assert not one.is_whole(entry)
    other.save(state(), 5)
    assert one.is_whole(entry)
    told: list[str] = []
    assert folder(tmp_path, 2, 0, 3).steps(told.append) == []
    assert "is continued by as many ranks as wrote it" in told[0]


def test_a_file_of_another_job_is_refused(tmp_path: Path) -> None:
    folder(tmp_path).save(state(), 5)
    other = Checkpoints(tmp_path, "j2", 2, 0, 1)
    with pytest.raises(Unreadable, match="its header says job j1"):
        other.read(other.steps(print)[0])


def test_the_state_of_another_optimizer_is_known() -> None:
    model = torch.nn.Linear(3, 2)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(model.parameters()),
        torch.optim.SGD(model.parameters(), 0.1),
        torch.optim.Adam([{"params": [each]} for each in model.parameters()]),
    ]
    torch.optim.lr_scheduler.StepLR(optimizers[0], 5)
    plain = snapshot.take({"opt": optimizers[0]}, {}).plain
    snapshot.require_optimizers({"opt": optimizers[0]}, plain)
    del optimizers[0].param_groups[0]["fused"]  # As an older PyTorch may have it, or a newer one.
    snapshot.require_optimizers({"opt": optimizers[0]}, plain)
    with pytest.raises(
        Another, match=r"opt is another optimizer: it has amsgrad, .* nesterov here"
    ):
        snapshot.require_optimizers({"opt": optimizers[1]}, plain)
    with pytest.raises(Another, match=r"steps groups of \[2\] parameters there, and of \[1, 1\]"):
        snapshot.require_optimizers({"opt": optimizers[2]}, plain)


def test_the_state_of_an_optimizer_keeps_its_types() -> None:
    was, now = (torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)) for _ in range(2))
    optimizers = [torch.optim.NAdam([each], 0.1) for each in (was, now)]
    was.grad = torch.ones_like(was)
    optimizers[0].step()
    state = snapshot.take({"opt": optimizers[0]}, {})
    snapshot.load({"opt": optimizers[1]}, state.plain, state.tensors)
    theirs, ours = optimizers[0].state[was], optimizers[1].state[now]
    assert ours["mu_product"].dtype == torch.float32
    assert {name: each.tolist() for name, each in ours.items()} == {
        name: each.tolist() for name, each in theirs.items()
    }


def test_state_of_every_kind_comes_back_as_it_was() -> None:
    shared = torch.arange(3)
    value = {
        "a": [1, 2.5, float("inf"), None, True, "x", b"\0y", (1, (2,))],
        3: {"t": shared, "same": shared, "empty": torch.zeros(0, 2)},
        ("k", 1): {1, 2},
        "torch": [torch.float16, torch.device("cpu"), torch.Size([1, 2])],
    }
    encoder = Encoder()
    node = encoder.encode(value, "v")
    back = decode(node, encoder.tensors)
    assert len(encoder.tensors) == 2
    assert back[3]["t"] is back[3]["same"]
    assert (back["a"], back[("k", 1)]) == (value["a"], {1, 2})
    for bad in (object(), torch.zeros(2, dtype=torch.complex128), print):
        with pytest.raises(Unsaveable, match=r"^v\.0 is a "):
            Encoder().encode([bad], "v")
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(Unsaveable, match="levels deep"):
        Encoder().encode(loop, "v")
    with pytest.raises(ValueError, match="unknown kind of node: 'pickle'"):
        decode({"pickle": "x"}, {})


def test_reports_are_few_and_bounded() -> None:
    said: list[dict[str, object]] = []
    now = 0.0
    metrics = Metrics(lambda _, **fields: said.append(fields), lambda: now)
    for step in range(1, 6):
        metrics.take({"loss": torch.tensor(1.0 / step), "tokens": 10, "bad": float("nan")}, step)
    metrics.send()
    first, last = said
    assert first == {"step": 1, "values": {"loss": 1.0, "tokens": 10}}
    assert last["values"] == {"loss": pytest.approx(0.2), "tokens": 50}
    metrics.send()
    metrics.take({f"n{i}": i for i in range(100)} | {"x" * 65: 1}, 6)
    assert len(said) == 2
    now = 2.0
    metrics.take({"loss": 3}, 7)
    values = said[2]["values"]
    assert isinstance(values, dict)
    assert (values["loss"], len(values)) == (3, NAMES_MAX - 1)  # One is not a finite number.
    assert metrics.left_out == 101 - (NAMES_MAX - 3)


@pytest.mark.parametrize(
    "text,value", [("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), (3, 3.0), (0.5, 0.5)]
)
def test_durations(text: float | str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["10", "m", "-1s", "1d", 0, -3, float("nan"), float("inf")])
def test_what_is_no_duration(text: float | str) -> None:
    with pytest.raises(ValueError, match="is no duration; give seconds, or text such as"):
        seconds(text)


def frozen(step: int, frozen_value: float = 7.0, more: int = 0) -> Snapshot:
    """Return a state with a large frozen tensor and one that is trained."""
    large = torch.full((400_000,), frozen_value)
    large[more] = 1.0
    trained = torch.full((400_000,), float(step))
    return snapshot.take({}, {"steps": step, "state": {"frozen": large, "trained": trained}})


def incremental(path: Path, attempt: int = 1, keep: int = 2) -> Checkpoints:
    return Checkpoints(path, "j1", attempt, 0, 1, keep, incremental=True)


def loaded(path: Path, file: Path) -> dict[str, float]:
    """Return the last element of both tensors, as a later attempt reads them."""
    entry = next(each for each in folder(path, 9).steps(print) if each.path == file)
    header = folder(path, 9).read(entry)
    state = place_of(header.plain, read_tensors(file, header))["state"]
    return {name: float(tensor[-1]) for name, tensor in state.items()}


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    sizes = [incremental(tmp_path).save(frozen(step), step) for step in (1, 2, 3, 4, 5)]
    large = 400_000 * 4
    assert [size > 2 * large for _, size in sizes] == [True, True, False, False, False]
    assert sizes[4][1] < large + 10_000, "what is trained, and a header"
    assert read_header(sizes[4][0]).files == {sizes[1][0].name}, "the file that has the bytes"
    assert loaded(tmp_path, sizes[4][0]) == {"frozen": 7.0, "trained": 5.0}
    assert names(tmp_path) == [sizes[at][0].name for at in (1, 3, 4)], "it stays while it is needed"
    later, size = incremental(tmp_path, 2).save(frozen(9), 9)
    assert size < large + 10_000, "a later attempt goes on with it"
    assert loaded(tmp_path, later) == {"frozen": 7.0, "trained": 9.0}


def test_a_change_of_one_element_is_written(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        incremental(tmp_path).save(frozen(step), step)
    # No sample is there: only the digest tells.
    path, size = incremental(tmp_path).save(frozen(4, more=123_457), 4)
    assert size > 2 * 400_000 * 4
    assert read_header(path).files == set()
    assert loaded(tmp_path, path) == {"frozen": 7.0, "trained": 4.0}
    for step in (5, 6, 7):
        path, _ = incremental(tmp_path).save(frozen(step, more=123_457), step)
    assert len(names(tmp_path)) == 3, "the older file goes once nothing needs it"


def test_an_older_file_that_is_gone_or_damaged_is_seen(tmp_path: Path) -> None:
    files = [incremental(tmp_path).save(frozen(step), step)[0] for step in (1, 2, 3)]
    content = bytearray(files[1].read_bytes())
    content[-100] ^= 1
    content[len(content) // 3] ^= 1
    files[1].write_bytes(content)
    with pytest.raises(Unreadable, match="are not those that were written"):
        loaded(tmp_path, files[2])
    files[1].unlink()
    with pytest.raises(Unreadable, match=f"are in {files[1].name}, which is not there"):
        loaded(tmp_path, files[2])
    path, size = incremental(tmp_path).save(frozen(4), 4)
    assert size > 2 * 400_000 * 4, "it is written anew"
    assert loaded(tmp_path, path) == {"frozen": 7.0, "trained": 4.0}


def test_a_script_that_stores_in_full_again_keeps_what_is_needed(tmp_path: Path) -> None:
    files = [incremental(tmp_path).save(frozen(step), step)[0] for step in (1, 2, 3)]
    path, size = folder(tmp_path).save(frozen(4), 4)
    assert size > 2 * 400_000 * 4
    assert names(tmp_path) == [each.name for each in (files[1], files[2], path)]
    assert loaded(tmp_path, files[2]) == {"frozen": 7.0, "trained": 3.0}
    folder(tmp_path).save(frozen(5), 5)
    assert len(names(tmp_path)) == 2


def test_a_file_that_names_another_place_is_refused(tmp_path: Path) -> None:
    import json
    import zlib

    files = [incremental(tmp_path).save(frozen(step), step)[0] for step in (1, 2, 3)]
    content = files[2].read_bytes()
    size = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + size])
    ours = json.loads(entries["__metadata__"]["skep"])
    (named,) = ours["elsewhere"].values()
    named[2] = "../../etc/passwd"
    entries["__metadata__"] = {"header_crc32": "0" * 8, "skep": json.dumps(ours)}
    text = json.dumps(entries).encode()
    text = text.replace(b"0" * 8, f"{zlib.crc32(text):08x}".encode(), 1)
    files[2].write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    with pytest.raises(Unreadable, match="which is no checkpoint"):
        read_header(files[2])
