"""A library that owns the loop goes on from every boundary to the same bits, by its own files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from skep_job import accelerate_loop
from skep_job.accelerate_loop import Numbers
from skep_job.cooperate import begin
from skep_job.cooperate.begin import begin_library
from skep_job.cooperate.library_run import FILES_MAX, Files, LibraryRun, _place, _read, _write
from skep_job.cooperate.run import Extra, Run, UsageError
from skep_job.data.loader_place import LoaderPlace, placeable
from skep_job.elastic.library import LibraryGang, _State
from skep_job.elastic.parts import Clock, Seat, rules
from skep_job.state import snapshot
from skep_job.state.transfer import Broken
from tests.run_kit import check

pytestmark = pytest.mark.torch

See = Callable[[object], None]
EPOCHS = 2


def loader(**options: Any) -> DataLoader[Any]:
    made = torch.Generator().manual_seed(5)
    return DataLoader(TensorDataset(torch.randn(10, 4, generator=made)), 2, shuffle=True, **options)


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_library_goes_on_from_its_own_files(own_generator: bool) -> None:
    """The library is a loop that writes what it has; Skep keeps its place and chance."""

    def fit(run: LibraryRun, see: See) -> None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4))
        opt = torch.optim.Adam(model.parameters())
        made = loader(generator=torch.Generator().manual_seed(9) if own_generator else None)
        place, at = LoaderPlace(made), {"epoch": 0, "batch": 0}

        def save(folder: Path) -> None:
            (folder / "parts").mkdir()
            torch.save([model.state_dict(), opt.state_dict()], folder / "parts" / "state.pt")
            (folder / "empty").touch()

        run.keep("at", Extra(lambda: {**at, "loader": place.take(at["batch"])}, lambda _: None))
        folder = run.begin(save, model)
        if folder is not None:
            model_state, opt_state = torch.load(folder / "parts" / "state.pt")
            model.load_state_dict(model_state)
            opt.load_state_dict(opt_state)
            assert (folder / "empty").read_bytes() == b""
            run.forget()
            assert not folder.exists()
            at.update({name: run.taken("at")[name] for name in at})
            place.put(run.taken("at")["loader"], run.arrive)
        for epoch in range(at["epoch"], EPOCHS):
            at["epoch"] = epoch
            for (x,) in made:
                opt.zero_grad()
                loss = (model(x) - x).square().mean()
                torch.autograd.backward(loss)
                opt.step()
                at["batch"] += 1
                see((epoch, x.tolist(), loss.item(), torch.rand(1).item()))
                run.tick()
                if at["batch"] < len(made):  # As libraries do at the end of an epoch.
                    run.between()
            at["batch"] = 0
        run.end()

    seen = check(fit, make=LibraryRun)
    assert len(seen) == EPOCHS * 5


def test_the_own_loop_of_a_script_goes_on_with_one_line() -> None:
    """Training passes are those in which the model is in training mode; others are left alone."""

    class Accelerator:
        """As much of one as is looked at."""

        def __init__(self, model: nn.Module) -> None:
            self._models = [model]

    def script(run: Run, see: See) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        training, validation = loader(), loader()
        run.track(model=model, opt=opt)
        for each in (training, validation):
            accelerate_loop._follow(each, run, Accelerator(model))
        for _ in range(EPOCHS):
            model.train()
            for number, (x,) in Numbers(training):
                loss = (model(x) - x).square().mean()
                torch.autograd.backward(loss)
                if number % 2 == 0:  # A window of accumulation, by the script's own count.
                    opt.step()
                    opt.zero_grad()
                see((number, loss.item()))
            model.eval()
            assert [n for n, _ in Numbers(validation, 1)] == [1, 2, 3, 4, 5]

    assert len(check(script, some="done twice")) == EPOCHS * 5


def test_a_second_training_is_counted_and_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "_run", None)

    class Accelerator:
        """One that was freed of the model before."""

        def __init__(self, model: nn.Module, loader: Any) -> None:
            self._models, self._dataloaders = [model], [loader]
            self._optimizers: list[Any] = []
            self._schedulers: list[Any] = []
            self._custom_objects: list[Any] = []
            self.scaler, self.step = None, 0

    runs = []
    for number in range(1, 4):
        model, batches = nn.Linear(4, 4), loader()
        run = accelerate_loop.follow(Accelerator(model, batches))
        runs.append(run)
        assert [n for n, _ in Numbers(batches)] == [0, 1, 2, 3, 4]
        assert run.done == number * 5
    with pytest.raises(Broken, match="only the first training of a process is stored, and it is"):
        runs[0].tracked["over"].state_dict()


def test_what_is_not_stored_is_refused(tmp_path: Path) -> None:
    files = Files()
    assert files.state_dict() == {}  # A successor, which has nothing yet.
    files.training = True
    with pytest.raises(Broken, match="only the first training of a process is stored, and it is"):
        files.state_dict()
    files.save, files.model = lambda _: None, nn.Linear(2, 2)
    assert files.state_dict() == {}
    files.model.weight.data.untyped_storage().resize_(0)
    with pytest.raises(Broken, match="the job's memory is released: resume it first"):
        files.state_dict()
    data = torch.zeros(1, dtype=torch.uint8)
    for name in ("/etc/passwd", "../above", "a/../../b"):
        with pytest.raises(Broken, match="not below its folder"):
            _write({name: data}, 1)
    assert not placeable([1, 2])
    for number in range(FILES_MAX + 1):
        (tmp_path / str(number)).touch()
    with pytest.raises(Broken, match=f"has {FILES_MAX + 1} files, at most are {FILES_MAX}"):
        dict(_read(tmp_path))


def test_what_a_rank_has_written_stays_until_the_run_goes_on_from_it() -> None:
    run = LibraryRun()
    gang = LibraryGang(run, rules((1, 4), 100))
    run.files.model, run.files.training = nn.Linear(2, 2), True

    def save(folder: Path) -> None:
        (folder / "state").write_bytes(b"weights")

    run.files.save = save
    run.keep("of", Extra(lambda: "the first", lambda _: None))
    parts, seat = gang.parts, Seat(1, 0, 1)

    def offer() -> None:
        state = snapshot.take(run.tracked, _State(gang).place())
        parts.offer(None, None, 0, state)  # type: ignore[arg-type]

    offer()
    parts.close()  # The change was refused: the loop goes on, and needs nothing.
    assert run.files.found is None
    offer()
    assert parts.take(None, seat, Clock()) == (None, 0)  # type: ignore[arg-type]
    parts.close()
    run.gang = gang
    folder = run.again()
    assert (folder / "state").read_bytes() == b"weights"
    assert run.taken("of") == "the first"
    run.forget()


def test_files_that_cannot_be_put_undo_the_change_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skep_job.cooperate.library_run.FAST", tmp_path)
    run = LibraryRun()
    parts = LibraryGang(run, rules((1, 4), 100)).parts
    data = torch.zeros(3, dtype=torch.uint8)
    run.put({"of an earlier change": data}, 1)
    run.put({"state": data}, 1)
    [folder] = tmp_path.iterdir()
    assert [each.name for each in folder.iterdir()] == ["state"]
    files = run.files
    files.found = {"state": data}
    parts.undo()  # The newcomer did not become a member.
    assert not run.files.found
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="File name too long"):
        run.put({"state": data, "x" * 1_000: data}, 1)
    assert list(tmp_path.iterdir()) == []
    room = shutil.disk_usage(tmp_path).free
    assert _place(room // 5) == tmp_path
    assert _place(4 * (room // 5)) is None, "four ranks of a host put so much at once"


def test_a_second_training_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep_job.cooperate.begin._run", None)
    run = begin_library(None, 2)
    assert not run.active
    assert begin_library("10m", 3) is run
    assert run.begin(lambda _: None, nn.Linear(1, 1)) is None
    assert run.begin(lambda _: None, nn.Linear(1, 1)) is None
    with pytest.raises(ValueError, match="keep=0: expected how many checkpoints to keep"):
        begin_library(None, 0)
    monkeypatch.setattr("skep_job.cooperate.begin._run", Run())
    with pytest.raises(UsageError, match="the callback is of no use beside init"):
        begin_library(None, 2)
