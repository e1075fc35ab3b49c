"""The five lines with which a training script makes itself movable.

    import skep_job
    run = skep_job.init()
    run.track(model=model, opt=optimizer, sched=schedule)
    for epoch in run.epochs(90):
        for x, y in run.batches(loader):
            ...

Between two mini-batches the script can then be checkpointed, moved to another node, or ended and
begun again, and goes on to the same bits: `epochs` and `batches` pass over what is done, and state
and random generators are what they were. Under no agent the loops are plain loops.

What has to be saved lives in tracked things or in `run.state`; local variables are not seen. Only
the thread that trains may use the run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sized
from typing import Any, NamedTuple, NoReturn, Protocol

from skep_job.data.data_position import Feed, Generators
from skep_job.data.own_counts import Known
from skep_job.data.pass_counters import counter_around
from skep_job.link.orders import describe
from skep_job.observe.reporter import complain
from skep_job.state.load_guard import Landing
from skep_job.state.outside_state_dict import Beside
from skep_job.state.own_numbers import begun_anew, numbers_around
from skep_job.state.piece import is_shard
from skep_job.state.random_state import State
from skep_job.state.transfer import Broken
from skep_job.state.untracked import untracked

OVER = "only the first training of a process is stored, and it is over"
NAME_MAX = 64
"""Characters of a tracked thing's name; they begin the names of its tensors."""


class UsageError(RuntimeError):
    """The script uses the run in a way that it cannot have meant."""


NAMED_MAX = 4
"""Names in one line of the job's log."""


class Extra(NamedTuple):
    """Something small of a library's own that is saved with the place and put back there."""

    take: Callable[[], Any]
    put: Callable[[Any], None]


class Under(Protocol):
    """What is below a run. Nothing here raises but for what a signal's handler raised."""

    active: bool
    """Whether the run may have to be continued elsewhere, so that its place must be known."""

    def start(self, run: Run) -> dict[str, Any] | None:
        """Load what an earlier process left; return its place with `chance`, or None."""
        ...

    def tell_can(self) -> None:
        """Tell what the run can do once more: it has become more, or less."""
        ...

    def arrive(self, chance: State) -> None:
        """Set the random generators to what they were at the place."""
        ...

    def see(self, batch: object) -> None:
        """Look at a batch before the training has it."""
        ...

    def count(self) -> None:
        """Note that a mini-batch is done."""
        ...

    def boundary(self) -> None:
        """Do what is due: the training is between two mini-batches."""
        ...

    def report(self, values: dict[str, Any]) -> None:
        """Tell numbers about the training."""
        ...

    def sums(self) -> dict[str, float]:
        """Return those of the told numbers that count in sum, so far."""
        ...

    def go_on_from(self, sums: dict[str, float]) -> None:
        """Count on from what another rank has counted."""
        ...

    def shield(self, on: bool) -> None:
        """Do nothing at boundaries until this is taken back.

        Args:
            on: Whether it begins; else one call with True is taken back.
        """
        ...

    def notice(self, text: str) -> None:
        """Tell the reader of the job's log."""
        ...


class Alone:
    """A run outside Skep: loops are loops."""

    active = False

    def start(self, run: Run) -> dict[str, Any] | None:
        return None

    def tell_can(self) -> None: ...

    def arrive(self, chance: State) -> None: ...

    def see(self, batch: object) -> None: ...

    def count(self) -> None: ...

    def boundary(self) -> None: ...

    def report(self, values: dict[str, Any]) -> None: ...

    def sums(self) -> dict[str, float]:
        return {}

    def go_on_from(self, sums: dict[str, float]) -> None: ...

    def shield(self, on: bool) -> None: ...

    def notice(self, text: str) -> None:
        complain(text)


class Run:
    """One job's training, as the script drives it."""

    def __init__(self, under: Under | None = None) -> None:
        """Not for scripts: `init` makes the run."""
        self.state: dict[str, Any] = {}
        """Plain values of the script's own that are saved and come back: numbers, text, lists,
        dicts, tensors. What was saved is here once the first loop has begun."""
        self._under: Under = under or Alone()
        self._tracked: dict[str, Any] = {}
        self._started = False
        self._steps = 0
        # Where the training is: which loop of the script, which epoch, which pass over data in it.
        self._section = -1
        self._epoch = 0
        self._pass = 0
        self._feed: Feed | None = None
        self._generators = Generators()
        self._known = Known()
        self._by_step = False
        self._in_epochs = False
        self._in_batches = False
        self._counted = False  # in this epoch
        self._aim: dict[str, Any] | None = None  # a place to get to, after a restart
        self._landing: Landing | None = None
        self._beside: Beside | None = None
        self._extras: dict[str, Extra] = {}
        self._looked = False  # for what counts around it

    # --- what scripts call ----------------------------------------------------------------------

    def track(self, **parts: Any) -> None:
        """Name what makes up the training state: models, optimizers, schedulers, scalers, ...

        Args:
            parts: By name. Each has `state_dict` and `load_state_dict`, or is a generator of torch
                or NumPy.

        Raises:
            UsageError: The first loop has begun, a name or a thing is tracked already, or a name is
                longer than NAME_MAX characters.
            TypeError: The state of a thing cannot be saved and loaded.
        """
        if self._started:
            _refuse("track() comes before the first loop: what it adds would not have been loaded")
        for name, part in parts.items():
            if name in self._tracked:
                _refuse(f"{name!r} is tracked already; give each thing a name of its own")
            twin = next((n for n, each in self._tracked.items() if each is part), None)
            if twin is not None:
                _refuse(f"{name!r} is tracked already, as {twin!r}")
            if len(name) > NAME_MAX:
                _refuse(f"the name {name[:NAME_MAX]!r}... is longer than {NAME_MAX} characters")
            _check_part(name, part)
            self._tracked[name] = part

    def epochs(self, count: int) -> Iterator[int]:
        """Yield 0 to `count` - 1, but not the epochs that are done.

        Args:
            count: The epochs of the whole training, those that are done included.

        Raises:
            TypeError: `count` is no whole number from 0.
            UsageError: It is called within another loop of the run.
        """
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            message = f"epochs({count!r}): expected how many, a whole number"
            raise TypeError(message)
        if self._in_epochs or self._in_batches:
            _refuse("epochs() within another loop of the run; there is one loop over epochs")
        return self._epochs(count)

    def batches(self, source: Any) -> Batches:
        """Iterate over a DataLoader (or anything iterable), from where the training is.

        Only for training data: a validation loop uses its loader as it is.

        Args:
            source: A pass over it begins each time the result is iterated.

        Raises:
            TypeError: `source` cannot be iterated.
            UsageError: It is called within another loop over batches.
        """
        if self._in_batches:
            _refuse("batches() within another batches() loop; iterate a validation set as it is")
        if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
            message = f"batches() of a {type(source).__name__}, which cannot be iterated"
            raise TypeError(message)
        return Batches(self, source)

    def enumerate(self, source: Any, start: int = 0) -> Numbered:
        """Iterate over pairs of a number and a batch: `enumerate(run.batches(source), start)`.

        The numbers go on in a process that goes on in the middle of a pass, where `enumerate`
        begins at `start` again.

        Args:
            source: As for `batches`.
            start: The number of the first batch of a pass.
        """
        return Numbered(self.batches(source), start)

    def step(self) -> None:
        """Say that a mini-batch is done, in a loop of the script's own: `while run.steps < n`.

        Raises:
            UsageError: It is called within `epochs` or `batches`, which count by themselves.
        """
        if self._in_batches:
            _refuse("step() within batches(), which counts each batch by itself")
        if self._in_epochs:
            _refuse(
                "step() within epochs(): a later process could not tell how far the epoch is; "
                "iterate run.batches(range(n)) there"
            )
        self._settle()
        self._by_step = True
        self._count()

    @property
    def steps(self) -> int:
        """The mini-batches of this training so far, those of earlier processes included."""
        if not self._in_epochs and not self._in_batches:
            self._settle()
        return self._steps

    def report(self, **values: Any) -> None:
        """Tell Skep numbers about the training: `tokens` adds up, of others the latest counts.

        A tensor is looked at only when the number leaves, about once a second.

        Args:
            values: Numbers by name, or tensors of one element. `samples` adds up, too.

        Raises:
            TypeError: A value is no number, or a tensor that is split over ranks.
        """
        for name, value in values.items():
            if not hasattr(value, "__float__"):
                message = f"report({name}=...) of a {type(value).__name__}, expected a number"
                raise TypeError(message)
            if is_shard(value) and not all(each.is_replicate() for each in value.placements):
                # It is looked at when the number leaves, on each rank at a time of its own.
                message = f"report({name}=...) of a tensor that is split: give its full_tensor()"
                raise TypeError(message)
        self._under.report(values)

    @contextlib.contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """Have nothing done to the training inside: what is due is done after it."""
        self._under.shield(True)
        try:
            yield
        finally:
            self._under.shield(False)

    # --- what is underneath calls -----------------------------------------------------------------

    @property
    def done(self) -> int:
        """The mini-batches so far, wherever the script is."""
        return self._steps

    @property
    def in_batches(self) -> bool:
        """Whether a pass over training data is under way."""
        return self._in_batches

    @property
    def reported(self) -> int:
        """The mini-batch that a report is about: the one that is worked on."""
        return self._steps + 1

    @property
    def tracked(self) -> dict[str, Any]:
        """What was tracked, by name."""
        return self._tracked

    def keep(self, name: str, extra: Extra) -> None:
        """Save something more with the place; a state that was saved without it is still read.

        Args:
            name: It tells this from all else that is saved so.
            extra: How it is taken, and put back at the place.
        """
        self._extras[name] = extra

    def close(self) -> None:
        """Store nothing from here on: the training that was tracked is over.

        Mini-batches of another one are counted as before.
        """
        self._beside = None
        self._extras.clear()
        self._tracked.clear()
        self._tracked["over"] = _Over()
        self._under.notice("only the first training of a process is stored and moved")

    def place(self) -> dict[str, Any]:
        """Return where the training is, for `_aim` of a later process; the chance is added."""
        return {
            "section": self._section,
            "epoch": self._epoch,
            "pass": self._pass,
            "feed": self._feed.position() if self._feed is not None else None,
            "by_step": self._by_step,
            "generators": self._generators.save(),
            "known": self._known.save(),
            "steps": self._steps,
            "state": self.state,
            "beside": self._beside.take() if self._beside is not None else {},
            "extras": {name: extra.take() for name, extra in self._extras.items()},
            "numbers": numbers_around(LOOPS),
        }

    # --- inside -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Take over what an earlier process left, before the first mini-batch."""
        if self._started:
            return
        self._started = True
        if self._under.active:
            self._beside = Beside(self._tracked)
            names = untracked(self._tracked)
            if names:
                self._under.notice(
                    f"not tracked, and begun anew wherever the job goes on: {', '.join(names)}; "
                    "name them in run.track()"
                )
        aim = self._under.start(self)
        if aim is not None:
            self._aim = aim
            self._steps = aim["steps"]
            self._generators.load(aim["generators"])
            self._known.load(aim.get("known", {}))
            self.state.clear()
            self.state.update(aim["state"])
            self._put_beside(aim, gradients=False)
            self._landing = Landing(self._tracked, self.state)

    def _epochs(self, count: int) -> Iterator[int]:
        self._start()
        self._open_section()
        aim = self._aim
        first = 0
        if aim is not None:
            if aim["section"] > self._section:
                return
            first = aim["epoch"] if aim["section"] == self._section else 0
        self._in_epochs = True
        try:
            for epoch in range(first, count):
                self._epoch, self._pass, self._counted = epoch, 0, False
                if self._aim is not None and self._aim["feed"] is None:
                    self._arrive()
                yield epoch
                self._epoch, self._pass = epoch + 1, 0
                if not self._counted:
                    self._count()
                else:
                    self._under.boundary()
        finally:
            self._in_epochs = False
        aim = self._aim
        if aim is not None and aim["section"] == self._section and not aim["by_step"]:
            self._arrive()  # It was over already.

    def _pass_over(self, source: Any, start: int | None) -> Iterator[Any]:
        """Yield the batches of one pass over `source` that are not done.

        Unless `start` is None each comes with its number in the pass, counted from `start`.
        """
        if self._in_batches:
            _refuse("two batches() loops at once; iterate a validation set as it is")
        self._start()
        alone = not self._in_epochs
        if alone:
            self._open_section()
        aim, met = self._aim, None
        self._counted = True
        if self._under.active:
            where = f"{self._section}.{self._pass}"
            self._generators.meet(where, source)
            met = self._known.meet(where, source)
        if aim is not None:
            there, here = (
                (aim["section"], aim["epoch"], aim["pass"]),
                (self._section, self._epoch, self._pass),
            )
            if there > here:
                self._pass += 1
                return
            if there < here:
                self._under.notice("the script's loops are not those that the state was saved in")
                aim = self._landing = None
        saved = aim["feed"] if aim is not None else None
        self._aim = None
        feed = self._feed = Feed(source, self._under.notice, saved, met)
        self._in_batches = True
        try:
            if self._under.active:
                self._look_for_counters(start)
                now = aim["chance"] if aim is not None else None
                batches = feed.batches(now, functools.partial(self._land, aim))
            else:
                batches = iter(source)
            for batch in batches:
                self._under.see(batch)
                yield batch if start is None else (start + feed.consumed, batch)
                feed.consumed += 1
                self._count()
        finally:
            self._in_batches = False
            self._feed = None
            self._pass += 1
        if alone:
            self._epoch, self._pass = 1, 0

    def _look_for_counters(self, start: int | None) -> None:
        """Tell the user once of a counter around `batches` that would begin anew."""
        if self._looked or start is not None:
            return
        self._looked = True
        counter = counter_around()
        if counter:
            self._under.notice(
                f"{counter}() around run.batches() counts from its start again in a process that "
                "goes on in the middle of a pass; use run.enumerate() in its place"
            )

    def _open_section(self) -> None:
        self._section += 1
        self._epoch, self._pass, self._by_step = 0, 0, False

    def _settle(self) -> None:
        """Be ready for a loop of the script's own that counts `steps`."""
        self._start()
        aim = self._aim
        if aim is not None and aim["by_step"] and aim["section"] == self._section:
            self._epoch, self._pass = aim["epoch"], aim["pass"]
            self._arrive()

    def _arrive(self) -> None:
        aim, self._aim = self._aim, None
        assert aim is not None
        self._under.arrive(aim["chance"])
        self._land(aim)

    def _done_of_pass(self) -> int:
        """Return how many batches of the pass that begins next are done."""
        self._start()
        aim = self._aim
        if aim is None or aim["feed"] is None:
            return 0
        section = self._section if self._in_epochs else self._section + 1
        epoch, pass_ = (self._epoch, self._pass) if self._in_epochs else (0, 0)
        here = (section, epoch, pass_) == (aim["section"], aim["epoch"], aim["pass"])
        return int(aim["feed"]["consumed"]) if here else 0

    def _land(self, aim: dict[str, Any] | None) -> None:
        """Have everything as it was at the place, whatever the script has done on its way there."""
        landing, self._landing = self._landing, None
        if aim is None or landing is None:
            return
        lost = landing.arrive()
        if lost:
            self._under.notice(
                f"the script changes {', '.join(lost[:NAMED_MAX])} before its loop; that had been "
                "done already, and is now done twice: do it within the loop"
            )
        numbers = begun_anew(aim.get("numbers"), numbers_around(LOOPS))
        if numbers:
            self._under.notice(
                "the script's own numbers begin anew where the job goes on: "
                f"{', '.join(numbers[:NAMED_MAX])}; what has to go on belongs into run.state"
            )
        for name, extra in self._extras.items():
            if name in aim.get("extras", {}):
                extra.put(aim["extras"][name])
        self._put_beside(aim, gradients=True)

    def _put_beside(self, aim: dict[str, Any], *, gradients: bool) -> None:
        if self._beside is not None:
            self._beside.put(aim.get("beside", {}), gradients=gradients)

    def _count(self) -> None:
        self._steps += 1
        self._under.count()
        self._under.boundary()


LOOPS = frozenset({Run._epochs.__code__, Run._pass_over.__code__})
"""What a script's loops run in."""


class Batches:
    """What `Run.batches` returns: an iterable with the length of its source."""

    def __init__(self, run: Run, source: Any) -> None:
        self._run = run
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return self._run._pass_over(self._source, None)

    @property
    def first(self) -> int:
        """How many batches of this pass are done: of use as `initial` of a progress bar.

        Above 0 only in a process that goes on in the middle of the pass. Begins the first loop,
        so that everything has to be tracked before.
        """
        return self._run._done_of_pass()

    def __len__(self) -> int:
        if not isinstance(self._source, Sized):
            message = f"a {type(self._source).__name__} has no length"
            raise TypeError(message)
        return len(self._source)


class Numbered:
    """What `Run.enumerate` returns: an iterable with the length of its source."""

    def __init__(self, batches: Batches, start: int) -> None:
        self._batches = batches
        self._start = start

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self._batches._run._pass_over(self._batches._source, self._start)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first(self) -> int:
        """How many batches of this pass are done (see `Batches.first`)."""
        return self._batches.first


class _Over:
    """Stands for a training that is over."""

    def state_dict(self) -> NoReturn:
        """Refuse.

        Raises:
            Broken: Always.
        """
        raise Broken(OVER)

    def load_state_dict(self, _state: object) -> None: ...


def _check_part(name: str, part: Any) -> None:
    """Check that the state of a thing can be saved and loaded.

    Args:
        name: The name under which it is to be tracked, for messages.
        part: The thing.

    Raises:
        TypeError: A method is missing or fails, or its state has a value that cannot be saved.
    """
    from skep_job.state.snapshot import state_of
    from skep_job.state.state_tree import Encoder

    has: Callable[[str], bool] = lambda method: callable(getattr(part, method, None))  # noqa: E731
    if has("state_dict") != has("load_state_dict"):
        lacking = "load_state_dict" if has("state_dict") else "state_dict"
        message = f"{name!r} is a {type(part).__name__} without {lacking}()"
        raise TypeError(message)
    generator = (has("get_state") and has("set_state")) or hasattr(part, "bit_generator")
    if not has("state_dict") and not generator:
        message = (
            f"{name!r} is a {type(part).__name__}; tracked are things with state_dict() and "
            "load_state_dict(), such as models, optimizers and schedulers. Plain values belong "
            "into run.state"
        )
        raise TypeError(message)
    try:
        state = state_of(part)
    except Exception as error:  # ZeroRedundancyOptimizer, for one, has it after a collective only.
        message = (
            f"{name!r} is a {type(part).__name__}, which does not say its state on each rank by "
            f"itself ({describe(error)}); split the model with fully_shard in its place"
        )
        raise TypeError(message) from error
    Encoder().encode(state, name)


def _refuse(reason: str) -> NoReturn:
    raise UsageError(reason)
