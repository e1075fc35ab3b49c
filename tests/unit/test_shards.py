"""State that is split over ranks: which parts make up another part, and what is stored of it."""

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skep_job.cooperate.run import Run
from skep_job.cooperate.warm_up import make_state
from skep_job.elastic.parts import Clock, Seat
from skep_job.shards.fill import Block, fill, rewrite
from skep_job.shards.later import Later
from skep_job.shards.model import SplitModel
from skep_job.shards.pieces import NotThere, block, copies, shards_in, unsplit
from skep_job.shards.regroup import Regroup
from skep_job.shards.templates import Templates, has_shards, pieces_of, why_not_anew
from skep_job.state import checkpoint_file, snapshot
from skep_job.state.checkpoint_file import Unreadable
from skep_job.state.checkpoint_folder import Checkpoints
from skep_job.state.piece import Piece, piece_of
from skep_job.state.snapshot import Snapshot, layout_of
from skep_job.state.state_tree import Encoder, Unsaveable

pytestmark = pytest.mark.torch


def rows(size: int, ranks: int) -> list[Piece]:
    """Return the pieces of a table of `size` rows of 3, as FSDP2 splits it."""
    each = math.ceil(size / ranks)
    begins = [min(rank * each, size) for rank in range(ranks + 1)]
    return [
        Piece((size, 3), (begin, 0), (end - begin, 3)) for begin, end in itertools.pairwise(begins)
    ]


@pytest.mark.parametrize("size, before, after", [(12, 4, 3), (10, 4, 3), (7, 2, 4), (2, 4, 3)])
def test_parts_of_any_number_of_ranks_make_up_those_of_another(
    size: int, before: int, after: int
) -> None:
    import torch

    whole = torch.arange(size * 3).reshape(size, 3)
    had = rows(size, before)
    for wanted in rows(size, after):
        part = torch.full(wanted.lengths, -1)
        for each in copies("w", had, wanted):
            piece = block(whole, had[each.source].offsets, had[each.source].lengths)
            taken = block(piece, each.source_offsets, each.lengths)
            block(part, each.offsets, each.lengths).copy_(taken)
        assert torch.equal(part, block(whole, wanted.offsets, wanted.lengths))


def test_columns_become_rows() -> None:
    columns = [Piece((4, 6), (0, at), (4, 3)) for at in (0, 3)]
    (one, other) = copies("w", columns, Piece((4, 6), (2, 0), (2, 6)))
    assert (one.source, one.source_offsets, one.offsets, one.lengths) == (0, (2, 0), (0, 0), (2, 3))
    assert (other.source, other.offsets) == (1, (0, 3))


def test_a_part_that_is_nowhere_is_named() -> None:
    had = rows(12, 4)
    with pytest.raises(NotThere, match="w has 12 elements on this rank, of which 9 are there"):
        copies("w", [had[0], had[2], had[3]], rows(12, 3)[0])
    with pytest.raises(NotThere, match=r"w is \[9, 3\] there and \[12, 3\] here"):
        copies("w", rows(9, 3), rows(12, 3)[0])
    assert copies("w", [], Piece((2, 3), (2, 0), (0, 3))) == []


def test_of_equal_parts_the_first_is_taken() -> None:
    whole = Piece((2, 3), (0, 0), (2, 3))
    (only,) = copies("w", [whole, whole], whole)
    assert only.source == 0


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Yield a mesh of this process alone."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def shard(mesh: Any, rows_: int) -> Any:
    import torch
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(torch.arange(rows_ * 3.0).reshape(rows_, 3), mesh, [Shard(0)])


def test_a_part_says_of_which_whole_it_is(mesh: Any) -> None:
    encoder = Encoder()
    node = encoder.encode({"w": shard(mesh, 4)}, "model")
    ((name, piece),) = shards_in(node)
    assert (name, piece) == ("model.w", Piece((4, 3), (0, 0), (4, 3)))
    assert has_shards(node)
    assert unsplit(node) == {"dict": [["w", {"tensor": "model.w"}]]}
    assert type(encoder.tensors[name]).__name__ == "Tensor"
    assert rewrite(unsplit(node), encoder.shards) == node
    assert pieces_of(node, snapshot.layout_of(encoder.tensors)) == {name: piece}
    with pytest.raises(Unsaveable, match=r"place\.state\.average is split over ranks"):
        Encoder().encode(shard(mesh, 4), "place.state.average")


def test_an_optimizer_without_state_gets_it_as_its_parameters_are_split(mesh: Any) -> None:
    import torch

    def made() -> dict[str, Any]:
        model = torch.nn.Linear(3, 4, bias=False)
        model.weight = torch.nn.Parameter(shard(mesh, 4))
        return {"model": model, "opt": torch.optim.Adam(model.parameters(), 0.1)}

    was, now = made(), made()
    was["model"].weight.grad = shard(mesh, 4)
    was["opt"].step()
    state = snapshot.take(was, {"beside": {}})

    class Had:
        pieces = pieces_of(state.plain, snapshot.layout_of(state.tensors))

        def give(self, blocks: Sequence[Block]) -> None:
            for each in blocks:
                each.into.detach().copy_(
                    block(state.tensors[each.name], each.offsets, each.lengths)
                )

    layout = snapshot.layout_of(state.tensors)
    tensors = fill(now, state.plain, layout, [Had()], fresh=True)
    local = {name: getattr(each, "_local_tensor", each) for name, each in tensors.items()}
    snapshot.load(now, rewrite(state.plain, tensors), local)
    assert torch.equal(now["model"].weight.to_local(), was["model"].weight.to_local())
    mine, theirs = (each["opt"].state[each["model"].weight] for each in (now, was))
    assert type(mine["exp_avg"]) is type(theirs["exp_avg"])
    assert torch.equal(mine["exp_avg"].to_local(), theirs["exp_avg"].to_local())
    assert mine["step"] == theirs["step"] == 1


def file_of(folder: Path, rank: int, step: int, attempt: int = 1) -> Checkpoints:
    import torch

    checkpoints = Checkpoints(folder, "j1", attempt, 0, 1).of_part(rank, 2)
    state = Snapshot({"place": None, "tracked": {}}, {"w": torch.zeros(2)})
    checkpoints.save(state, step)
    return checkpoints


def steps_in(folder: Path) -> list[str]:
    return sorted(path.name[8:] for path in folder.glob("*.safetensors"))


def test_a_part_of_one_shape_begins_elsewhere_on_another_rank() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for rank in (0, 2, 1):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=3)
        try:
            mesh = init_device_mesh("cpu", (3,))
            part = DTensor.from_local(torch.zeros(2, 5), mesh, [Shard(0)])
            assert piece_of(part) == Piece((6, 5), (2 * rank, 0), (2, 5))
        finally:
            dist.destroy_process_group()


def test_only_what_needs_no_other_rank_steps_before_a_move(mesh: Any) -> None:
    import torch
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(4, 2)
    fully_shard(model, mesh=mesh)

    class Own(torch.optim.AdamW):
        """What it needs for a step is not known."""

    known = torch.optim.AdamW([model.weight])
    other = Own([model.bias])
    make_state({"model": model, "known": known, "other": other})
    assert set(known.state[model.weight]) == {"step", "exp_avg", "exp_avg_sq"}
    assert piece_of(known.state[model.weight]["exp_avg"]) == piece_of(model.weight)
    assert not other.state
    assert model.weight.grad is None
    assert model.bias.grad is None


def test_an_older_checkpoint_stays_until_two_newer_ones_are_whole(tmp_path: Path) -> None:
    for step in (1, 2):
        for rank in (0, 1):
            file_of(tmp_path, rank, step)
    for step in (3, 4):  # The disk of the other rank is full.
        file_of(tmp_path, 0, step)
    found = file_of(tmp_path, 0, 5)
    told: list[str] = []
    assert [files[0].step for files in found.wholes(complain=told.append)] == [2, 1]
    assert told[0] == (
        "the checkpoint after mini-batch 5 of attempt 1 is passed over: "
        "the file of rank 1 of 2 is not there"
    )
    for step in (5, 6):
        file_of(tmp_path, 1, step)
    file_of(tmp_path, 0, 6)
    assert {name[4:12] for name in steps_in(tmp_path)} == {"00000005", "00000006"}


def test_one_damaged_tensor_is_named(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "x.safetensors"
    checkpoint_file.write(path, Snapshot({}, {"a": torch.ones(4), "b": torch.ones(4)}), {})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    stored = checkpoint_file.read_header(path)
    assert checkpoint_file.read_tensor(path, stored, "a").tolist() == [1.0] * 4
    with pytest.raises(Unreadable, match="the bytes of b are not those that were written"):
        checkpoint_file.read_tensor(path, stored, "b")


def test_what_is_written_later_is_what_was_at_the_boundary() -> None:
    import torch

    weight: Any = torch.nn.Parameter(torch.ones(64, 1024))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    written: list[Any] = []
    later = Later()
    state = Snapshot({}, {"w": weight.detach(), "n": torch.zeros(1)})
    later.begin(state, {"opt": optimizer}, written.append, lambda *_: None, 0)
    state.tensors["n"] += 1
    weight.grad = torch.ones(64, 1024)
    optimizer.step()  # Waits until the copy is made.
    later.settle()
    assert written[0].tensors["w"].unique().tolist() == [1.0]
    assert written[0].tensors["n"].tolist() == [0.0]
    assert weight.detach().unique().tolist() == [0.0]


def test_a_state_that_is_copied_at_once_may_be_changed_by_anything() -> None:
    import torch

    weight = torch.nn.Parameter(torch.ones(64, 1024))
    told: list[Any] = []
    written: list[Any] = []
    go_on = threading.Event()

    def write(state: Snapshot) -> None:
        assert go_on.wait(60)
        written.append(state.tensors["w"].unique().tolist())

    later = Later()
    state = Snapshot({}, {"w": weight.detach()})
    optimizer = torch.optim.SGD([weight], lr=1.0)
    done = lambda *said: told.append(said)  # noqa: E731
    later.begin(state, {"opt": optimizer}, write, done, 0, at_once=True)
    weight.data.fill_(7)  # Without a word to PyTorch.
    weight.grad = torch.ones(64, 1024)
    optimizer.step()  # It does not wait.
    go_on.set()
    later.settle()
    assert (written, told[0][0]) == ([[1.0]], None)


def test_a_version_of_torch_with_other_options_gets_plain_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from torch.distributed.checkpoint import staging

    def of_before(use_pinned_memory: bool) -> None:
        raise AssertionError

    monkeypatch.setattr(staging, "StagingOptions", of_before)
    weight = torch.ones(64, 1024)
    written: list[Any] = []
    later = Later()
    later.begin(Snapshot({}, {"w": weight}), {}, written.append, lambda *_: None, 0, at_once=True)
    later.settle()
    assert written[0].tensors["w"].data_ptr() != weight.data_ptr()


def test_a_state_that_changes_while_it_is_copied_is_not_written() -> None:
    import torch

    weight = torch.nn.Parameter(torch.ones(64, 1024))
    told: list[Any] = []

    class Slow:
        def stage(self, tensors: dict[str, Any]) -> dict[str, Any]:
            with torch.no_grad():
                weight.clamp_(max=0.5)
            return tensors

    later = Later(Slow)
    state = Snapshot({}, {"w": weight.detach()})
    optimizer = torch.optim.SGD([weight], lr=1.0)
    later.begin(state, {"opt": optimizer}, lambda _: None, lambda *said: told.append(said), 0)
    later.settle()
    assert str(told[0][0]).startswith("the script changed w while it was copied")


def test_a_thing_may_be_tracked_as_shard_or_tensor() -> None:
    import torch

    for name in ("shard", "tensor"):
        model = torch.nn.Linear(2, 2)
        state = snapshot.take({name: model}, {"beside": {}})
        assert not has_shards(state.plain)
        assert snapshot.why_unfit({name: model}, state.plain, layout_of(state.tensors)) == ""
        assert rewrite(state.plain, state.tensors) == state.plain


def test_a_model_that_is_made_anew_keeps_its_ties_and_buffers() -> None:
    import torch

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
            self.out.weight = self.words.weight
            self.register_buffer("mask", torch.zeros(0), persistent=False)
            self.register_buffer("scale", None)
            self.register_buffer("count", torch.zeros(()))

    model = SplitModel(Tied(), lambda _: None, lambda: 1.0)
    was: Any = model.module
    was.mask, was.scale, was.count = torch.ones(4), torch.full((2,), 3.0), torch.tensor(7.0)
    model.renew(Seat(1, 0, 1), Clock())
    now: Any = model.module
    assert now is not was
    assert now.out.weight is now.words.weight
    assert [each.tolist() for each in (now.mask, now.scale, now.count)] == [[1] * 4, [3, 3], 7]


def test_an_optimizer_keeps_the_list_of_its_parameters() -> None:
    import torch

    old, new = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(old.parameters())
    regroup = Regroup(dict)
    regroup.models = [new]  # type: ignore[list-item]
    regroup._renew_optimizer(optimizer, [[(0, "weight"), (0, "bias")]])
    held: Any = optimizer
    assert held._params is optimizer.param_groups[0]["params"]
    assert held._params[0] is new.weight


def test_state_of_another_shape_than_its_parameter_is_split_as_it_was() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:
        mesh = init_device_mesh("cpu", (3,))
        weight = torch.nn.Parameter(distribute_tensor(torch.zeros(6, 5), mesh, [Shard(0)]))
        optimizer = torch.optim.SGD([weight], 0.1)
        rows_, columns = Piece((6,), (2,), (2,)), Piece((5,), (0,), (5,))
        other = Piece((6,), (3,), (3,))  # What a rank of two had.
        names = ("rows", "columns", "other")
        nodes = [[name, {"shard": [name, *(list(n) for n in rows_)]}] for name in names]
        state = {"dict": [["state", {"dict": [[0, {"dict": nodes}]]}]]}
        templates = Templates({"opt": optimizer}, {"tracked": {"opt": state}})
        found = [
            templates.make(name, "F32", piece, split=True)
            for name, piece in zip(names, (rows_, columns, other), strict=True)
        ]
        assert [piece_of(each) for each in found] == [rows_, columns, Piece((6,), (0,), (6,))]
        assert [each.placements[0] for each in found] == [Shard(0), Replicate(), Replicate()]
        alone = templates.make("columns", "F32", columns, split=False)
        assert alone.placements == (Replicate(),), "a process that was alone had it plain"
        count = templates.make("columns", "F32", Piece((), (), ()), split=False)
        assert type(count) is torch.Tensor
    finally:
        dist.destroy_process_group()


def test_what_cannot_be_split_over_other_ranks_is_refused_before_a_change(mesh: Any) -> None:
    import torch

    class Average:
        def __init__(self) -> None:
            self.shadow = {"w": shard(mesh, 4)}

        def state_dict(self) -> dict[str, Any]:
            return self.shadow

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.shadow = state

    model = torch.nn.Linear(3, 4, bias=False)
    model.weight = torch.nn.Parameter(shard(mesh, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer.state[model.weight]["momentum_buffer"] = shard(mesh, 4)
    tracked = {"model": model, "opt": optimizer, "ema": Average()}
    plain = snapshot.take(tracked, {}).plain
    why = why_not_anew(tracked, [model], plain)
    assert why.startswith("ema.w is split over the ranks of now, and only models of run.shard()")
    del tracked["ema"]
    assert why_not_anew(tracked, [model], plain) == ""
    optimizer.state[model.weight]["history"] = [shard(mesh, 4)]
    plain = snapshot.take(tracked, {}).plain
    assert "opt.state.0.history.0 is split" in why_not_anew(tracked, [model], plain)


def test_a_number_that_is_split_is_no_report(mesh: Any) -> None:
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate

    run = Run()
    run.report(loss=DTensor.from_local(torch.ones(()), mesh, [Replicate()]))
    with pytest.raises(
        TypeError, match=r"report\(norm=...\) of a tensor that is split: give its f"
    ):
        run.report(norm=DTensor.from_local(torch.ones(()), mesh, [Partial()]))


def test_an_optimizer_that_others_have_to_help_to_say_its_state_is_refused() -> None:
    class Zero:
        def state_dict(self) -> dict[str, Any]:
            raise RuntimeError("not consolidated on this rank")

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    with pytest.raises(TypeError) as caught:
        Run().track(opt=Zero())
    assert str(caught.value) == (
        "'opt' is a Zero, which does not say its state on each rank by itself (RuntimeError: not "
        "consolidated on this rank); split the model with fully_shard in its place"
    )
