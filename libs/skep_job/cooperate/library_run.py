"""A run whose loop a library owns: the library's own checkpoint is the state, as bytes of files.

    begin     what an earlier process left is put into files again, from which the library goes on
    tick      a mini-batch is over
    between   the training is between two of them: checkpoint, move, suspension, end

The library knows best what its state is, so it writes and reads it. Storing, sending and fencing
are those of any run. Where each rank's process writes a part, the parts are put together again when
they are read: no storage has to be common to the nodes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from skep_job.cooperate.run import Run, Under
from skep_job.elastic.rank_files import of_all_ranks, with_others
from skep_job.link.orders import describe
from skep_job.process.rank_part import ranks_here
from skep_job.state.random_state import State
from skep_job.state.snapshot import host_bytes, is_released
from skep_job.state.transfer import Broken

if TYPE_CHECKING:
    from skep_job.elastic.library import LibraryGang

Save = Callable[[Path], None]
"""Has the library write its checkpoint into an empty folder. Called on every rank alike."""

FAST = Path("/dev/shm")  # noqa: S108  memory: it is written and read once
FILES_MAX = 10_000
"""Files of one rank: a checkpoint in shards has hundreds."""


class Files:
    """What is tracked: its state is what the library writes."""

    def __init__(self) -> None:
        self.save: Save | None = None
        """None: there is nothing to write yet, or no more."""
        self.model: Any = None
        """The module that is trained."""
        self.found: dict[str, Any] | None = None
        """The bytes of files by their paths, as an earlier process left them."""
        self.training = False
        self.group: Any = None
        """A process group of gloo's, by which the first rank gets the files of all ranks: the next
        ranks may be others. None: each rank keeps its own, or is alone."""

    def state_dict(self) -> dict[str, Any]:
        """Have the library write, and return the bytes of each file by its path.

        Raises:
            Broken: The training is over, or the memory of the model was given back; in a gang, any
                rank could not write its files.
        """
        if self.save is None and not self.training:
            return {}
        if self.group is None:
            return self._written()
        files: dict[str, Any] = {}
        failed = ""
        try:
            files = self._written()
        except Exception as error:  # The others wait: they hear of it, and fail alike.
            failed = describe(error)
        return with_others(files, failed, self.group)

    def _written(self) -> dict[str, Any]:
        """Have the library write; return the files of this rank.

        Raises:
            Broken: The training is over, or the memory of the model was given back.
        """
        if self.save is None:
            reason = "only the first training of a process is stored, and it is over"
            raise Broken(reason)
        if is_released(dict(self.model.named_parameters())):
            reason = "the job's memory is released: resume it first"
            raise Broken(reason)
        with _folder(_size(self.model)) as folder:
            self.save(folder)
            return dict(_read(folder))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the bytes of files until the library asks for them."""
        self.found = dict(state)


class LibraryRun(Run):
    """A run that a library's callback drives."""

    def __init__(self, under: Under | None = None) -> None:
        """Not for scripts: `skep_job.cooperate.begin` makes the run."""
        super().__init__(under)
        self.files = Files()
        self._tracked = {"library": self.files}
        self.gang: LibraryGang | None = None
        """What changes the size of the job, if that may be changed."""
        self._chance: State | None = None
        self._taken: dict[str, Any] = {}
        self._folder: Path | None = None
        self._ready: Path | None = None
        """Where the files are that the training will go on from in another gang."""

    def join(self, gang: LibraryGang, under: Under | None) -> None:
        """Be a rank of a gang that may change its size. Called once, before all else.

        Args:
            gang: The gang.
            under: The agent's side of the run; None: there is no agent.

        Raises:
            ValueError: The rules of the gang do not allow the size that it has.
        """
        if under is not None:
            self._under, self.gang = under, gang
            gang.open()

    @property
    def active(self) -> bool:
        """Whether there is an agent."""
        return self._under.active

    def begin(self, save: Save, model: Any) -> Path | None:
        """Begin the training: find what an earlier process left.

        Args:
            save: Writes the library's checkpoint.
            model: The module that is trained.

        Returns:
            The folder of the checkpoint to go on from; None at the first attempt, and in a second
            training of the process, of which nothing is stored.
        """
        if self._started:
            self.files.save = None
            self._under.notice("only the first training of a process is stored and moved")
            return None
        self._started = True
        self.files.model = model
        joined = self.gang is not None and self.gang.joins()
        place = self._under.start(self)
        self.files.save, self.files.training = save, True
        if place is None:
            return None
        if self.gang is not None and joined:
            self.gang.parts.taken()
        else:
            found = of_all_ranks(self.files.found or {}, self.files.group)
            self.put(found, ranks_here(os.environ))
        return self._go_on(place)

    def again(self) -> Path:
        """Begin the training anew in another gang, behind `Regrouped`; return the folder."""
        assert self.gang is not None, "no gang was changed"
        return self._go_on(self.gang.parts.taken())

    def put(self, files: dict[str, Any], near: int) -> None:
        """Put files where the library will read them.

        Args:
            files: Their bytes by their paths.
            near: How many ranks of this host do so at once.

        Raises:
            OSError: There is no room for them.
            Broken: A path leads out of the folder.
        """
        self.drop()
        self._ready = _write(files, near)

    def drop(self) -> None:
        """Remove what was put, if the training has not gone on from there."""
        folder, self._ready = self._ready, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _go_on(self, place: dict[str, Any]) -> Path:
        """Be at a place, whose files are put where the library reads them."""
        assert self._ready is not None, "no files were put"
        self._steps, self._chance = place["steps"], place["chance"] or None
        self._taken = place["extras"]
        self.files.found = None
        self.forget()
        self._folder, self._ready = self._ready, None
        return self._folder

    def offer(self, sizes: tuple[int, ...], backend: str) -> None:
        """Say which sizes the job can have, and tell the agent if it knew others.

        Args:
            sizes: Numbers of ranks with which the global batch stays as it is.
            backend: The backend of the process group.
        """
        assert self.gang is not None, "the size of the job is fixed"
        self.gang.offer(sizes, backend)
        if self._started:
            self._under.tell_can()

    def look(self) -> None:
        """See what is due, where nothing can be done: the training is between two mini-batches."""
        if self.gang is not None:
            self.gang.look()

    def sums(self) -> dict[str, float]:
        """Return the sums that were reported."""
        return self._under.sums()

    def go_on_from(self, sums: dict[str, float]) -> None:
        """Count on from the sums of another rank."""
        self._under.go_on_from(sums)

    def end(self) -> None:
        """Take it that the training is over: nothing is stored from here on."""
        self.files.save = None
        self.forget()

    def taken(self, name: str) -> Any:
        """Return what was kept with the place under `name`; None if nothing was."""
        return self._taken.get(name)

    def found(self, name: str) -> Path | None:
        """Return a file of the checkpoint that the library goes on from, if there is one."""
        file = None if self._folder is None else self._folder / name
        return file if file is not None and file.exists() else None

    def arrive(self) -> None:
        """Set the random generators to what they were at the place, once."""
        chance, self._chance = self._chance, None
        if chance is not None:
            self._under.arrive(chance)

    def forget(self) -> None:
        """Remove the files that the library has read."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def tick(self) -> None:
        """Note that a mini-batch is over."""
        self._steps += 1
        self._under.count()

    def between(self) -> None:
        """Do what is due: the training is between two mini-batches.

        Raises:
            Regrouped: The job has another size: the library's loop is to begin anew.
        """
        self._under.boundary()
        if self.gang is not None:
            self.gang.boundary()

    def tell(self, values: Mapping[str, Any]) -> None:
        """Tell Skep what of `values` is a number."""
        self._under.report({name: v for name, v in values.items() if hasattr(v, "__float__")})

    @property
    def reported(self) -> int:
        """The mini-batch that a report is about: a library logs when it is over."""
        return self._steps

    def place(self) -> dict[str, Any]:
        """Return where the training is."""
        extras = {name: extra.take() for name, extra in self._extras.items()}
        return {"steps": self._steps, "extras": extras}


def _size(model: Any) -> int:
    """Return about how many bytes a checkpoint of a module has, with two moments of gradients."""
    return 4 * sum(int(each.numel() * each.element_size()) for each in model.parameters())


@contextlib.contextmanager
def _folder(size: int) -> Iterator[Path]:
    """Yield an empty folder that is in memory if there is room; it is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="skep-library-", dir=_place(size)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _place(size: int) -> Path | None:
    """Return where `size` bytes fit twice over; None: wherever temporary files belong."""
    checkpoints = os.environ.get("SKEP_CHECKPOINTS", "")
    for place in (FAST, Path(checkpoints) if checkpoints else FAST):
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK) and shutil.disk_usage(place).free > 2 * size:
                return place
    return None


def _read(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each file's path in `folder` and its bytes, mapped: they outlive the file's name.

    Raises:
        Broken: There are more than FILES_MAX files.
    """
    import torch

    files = sorted(each for each in folder.rglob("*") if each.is_file())
    if len(files) > FILES_MAX:
        reason = f"the library's checkpoint has {len(files)} files, at most are {FILES_MAX}"
        raise Broken(reason)
    for file in files:
        size = file.stat().st_size
        data = torch.empty(0, dtype=torch.uint8)
        if size:
            data = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
        yield file.relative_to(folder).as_posix(), data


def _write(found: Mapping[str, Any], near: int) -> Path:
    """Put files into a new folder; return it.

    Args:
        found: Their bytes by their paths.
        near: How many ranks of this host do so at once.

    Raises:
        Broken: A path leads out of the folder.
        OSError: There is no room for them.
    """
    size = near * sum(int(data.numel()) for data in found.values())
    folder = Path(tempfile.mkdtemp(prefix="skep-library-", dir=_place(size)))
    try:
        _fill(folder, found)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _fill(folder: Path, found: Mapping[str, Any]) -> None:
    for name, data in found.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            reason = f"the checkpoint has a file {name!r}, which is not below its folder"
            raise Broken(reason)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        view, alive = host_bytes(data)
        (folder / path).write_bytes(view)
        del view, alive
