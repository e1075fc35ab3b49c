"""Rounds of training as files: of which jobs, from which model, and what came of them.

    log --take--> a round is due: so many jobs have ended --begin--> DIR/round --work--> registry

    DIR/trainer.json           which log, up to where rounds are done, and the latest of them
    DIR/round/                 the round that is under way; it is there as a whole or not at all
        round.json             of what it is
        window.safetensors     the jobs
        present.safetensors    the model that is tuned, if there is one
        run/                   the run (`skep_services.learning.runs`)
    DIR/lock                   held by the process that trains

What a round comes to depends on the log up to its last record, the present model and the settings:
not on when it is read, and not on whether the process was killed between. A round that is there
goes on. One that is done is noted before its folder goes; to add its model again changes nothing.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skep.ledger.job_state import IllegalTransitionError
from skep.wire import subjects
from skep.wire.facts import AllocatorFact
from skep.wire.following import LEARNED
from skep_lab.learn.observed import Observer, Window
from skep_lab.learn.progress import UnfitError
from skep_services import durable
from skep_services.adapters.records import Chain
from skep_services.learning import learners, registry, runs
from skep_services.learning.problems import LearningError, Why, writing
from skep_services.ports import CorruptLogError, Delivery

VERSION = 1
FOLDER, KEPT, ROUND = "trainer", "trainer.json", "round"
ABOUT, WINDOW, PRESENT, RUN = "round.json", "window.safetensors", "present.safetensors", "run"
DRAFT, OVER = "round.draft", "round.over"
ROUNDS_MAX = 50
"""Rounds of which it is kept what came of them, the latest."""
SCALARS = ("gpus", "node_gpus", "untold", "doubt")
"""Of a window: what is no array."""
TUNE = "tune"
SUPERSEDED = "trainer: superseded"
"""Why a candidate is retired."""


class Outcome(StrEnum):
    """What came of a round."""

    CANDIDATE = "candidate"
    NOT_BETTER = "not-better"
    UNFIT = "unfit"
    NO_MODEL = "no-model"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked of the trainer."""

    vcs: tuple[str, ...] = ()
    """Those that it trains for; empty: all with the policy `learned`."""
    every: int = 200
    """Jobs of a VC that end between two rounds."""
    window: int = 1000
    """The latest jobs that a round looks at."""
    models: int = 8
    """Candidates of the trainer's that are kept; older ones are retired and removed."""
    seed: int = 0
    settings: dict[str, Any] = {}
    """Of the learner (`skep_lab.learn.tune.Settings`)."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A round, and what came of it. `sequence` is that of its last record in the log."""

    vc: str
    sequence: int
    at: int
    """When its last record was written, in nanoseconds since 1970."""
    outcome: Outcome
    parent: str = ""
    model: str = ""
    """What was made, also if it is no candidate."""
    report: dict[str, float] = {}
    why: str = ""


class Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the trainer goes on from. `log` is the SHA-256 of the log's first record."""

    log: str = ""
    done: dict[str, int] = {}
    """By VC, the sequence up to which rounds are done."""
    rounds: tuple[Done, ...] = ()
    candidates: tuple[str, ...] = ()
    """Models of all rounds that it has not retired, in order."""
    version: int = VERSION


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of what a round is that is under way."""

    vc: str
    sequence: int
    at: int
    records: int
    sha256: str
    """Of the last record: it names all before it."""
    parent: str
    seed: int
    settings: dict[str, Any]

    @property
    def trained_on(self) -> str:
        """Return it in words, for the header of a model."""
        log = f"records 1 to {self.records} of the allocator's log, the last of SHA-256 "
        return f"jobs of VC {self.vc}, {log}{self.sha256}"


class Due(NamedTuple):
    """A round that has not begun."""

    about: About
    window: Window


class Trainer:
    """Follows a log and trains; it holds no bus, no clock and no thread."""

    def __init__(
        self,
        folder: Path,
        models: Path,
        asked: Asked,
        say: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        """Go on from what a folder has.

        Args:
            folder: Where its files are.
            models: The registry.
            asked: What a person asks of it.
            say: Is told in a line what happens, with values by name.

        Raises:
            LearningError: What is there is damaged, or a setting is wrong.
        """
        tune = learners.imported(f".{TUNE}", "the trainer")
        self._settings = learners.plain(learners.made(tune.Settings, asked.settings))
        self._tune, self._folder, self._models = tune, folder, models
        self._asked, self._say = asked, say
        self.kept = read_kept(folder)
        for name in (DRAFT, OVER):
            shutil.rmtree(folder / name, ignore_errors=True)
        self._chain = Chain(f"fact log {subjects.ALLOC}", AllocatorFact)
        self._observer = Observer()
        self._due: dict[str, Due | Done] = {}
        self._whole = False
        """The log was read to its end: what VCs name is known."""
        self.sequence = 0
        """Of the last message that was taken."""

    # --- the log ---------------------------------------------------------------------------------

    def take(self, delivery: Delivery) -> None:
        """Take over the next message of the allocator's stream.

        Args:
            delivery: The message.

        Raises:
            LearningError: It is another cluster's log.
            CorruptLogError: The log is damaged.
        """
        record = self._chain.read_at(delivery.payload, delivery.sequence)
        self.sequence = delivery.sequence
        if isinstance(record, str):
            return  # Not the allocator's.
        if record.counter == 1:
            self._is_ours(hashlib.sha256(delivery.payload).hexdigest())
        try:
            for vc in self._observer.take(record):
                if self._observer.counts[vc] % self._asked.every == 0:
                    self._is_due(vc, delivery.sequence, record.counter)
        except IllegalTransitionError as error:
            text = f"fact log {subjects.ALLOC}, sequence {delivery.sequence}: {error}"
            raise CorruptLogError(text) from error

    def _is_ours(self, log: str) -> None:
        if self.kept.log and self.kept.log != log:
            text = f"{self._folder} is of another cluster's log ({self.kept.log[:12]}, and this is "
            text += f"{log[:12]}): name another folder, or remove it and training begins anew"
            raise LearningError(Why.OTHER_RUN, text)
        self.kept = msgspec.structs.replace(self.kept, log=log)

    def check_end(self) -> None:
        """See that a log that was read to its end reaches as far as rounds that are done.

        Raises:
            LearningError: It does not, or it is empty.
        """
        if not self._chain.counter:
            text = f"the log {subjects.ALLOC} is empty: no allocator has written it yet"
            raise LearningError(Why.LACKS_FACTS, text)
        self._whole = True
        far = max(self.kept.done.values(), default=0)
        if far > self.sequence:
            text = f"the log ends at {self.sequence}, and a round up to {far} is done: it was cut,"
            raise LearningError(Why.OTHER_RUN, f"{text} or {self._folder} is of another one")

    def _is_due(self, vc: str, sequence: int, records: int) -> None:
        """Note a round; of several rounds of a VC only the latest is worth its time."""
        vcs, at = self._observer.vcs, int(self._observer.at)
        if vc not in vcs:
            return  # It was removed while its jobs went on.
        wanted = vc in (self._asked.vcs or [name for name in vcs if vcs[name].policy == LEARNED])
        if not wanted or sequence <= self.kept.done.get(vc, 0):
            return
        given = vcs[vc].options.get("model") if vcs[vc].policy == LEARNED else ""
        about = About(
            vc=vc,
            sequence=sequence,
            at=at,
            records=records,
            sha256=self._chain.hash,
            parent=given if isinstance(given, str) else "",
            seed=self._asked.seed,
            settings=self._settings,
        )
        try:
            self._due[vc] = Due(about, self._observer.window(vc, self._asked.window))
        except UnfitError as error:
            self._due[vc] = _done(about, Outcome.UNFIT, why=str(error))

    # --- rounds ----------------------------------------------------------------------------------

    def rounds(self, clock: Callable[[], float], goes_on: Callable[[], bool]) -> Iterator[Done]:
        """Yield what comes of the rounds that are under way or due, as each is done.

        Args:
            clock: Returns seconds.
            goes_on: Whether to go on; if not, the round under way goes on another time.

        Raises:
            LearningError: A file is damaged or cannot be written.
        """
        while goes_on():
            if not (self._folder / ROUND).exists():
                if not self._due:
                    return
                vc = next(iter(self._due))
                due = self._due.pop(vc)
                refused = due if isinstance(due, Done) else self._begin(due)
                if refused is not None:
                    self._note(refused)
                    yield refused
                    continue
            done = self._work(clock, goes_on)
            if done is not None:
                yield done

    def _begin(self, due: Due) -> Done | None:
        """Write a round's folder; return its end if there is nothing to begin with."""
        present = b""
        if due.about.parent:
            try:
                present = registry.read_model(self._models, due.about.parent)
                self._start(present)
            except LearningError as error:
                return _done(due.about, Outcome.NO_MODEL, why=error.text)
        draft = self._folder / DRAFT
        with writing(self._folder):
            draft.mkdir(parents=True)
            if present:
                durable.write(str(draft / PRESENT), present, 0o644)
            durable.write(str(draft / WINDOW), packed(due.window), 0o644)
            durable.write(str(draft / ABOUT), _json(due.about), 0o644)
            durable.write(str(self._folder / KEPT), _json(self.kept), 0o644)
            draft.rename(self._folder / ROUND)
            durable.sync_folder(str(self._folder))
        return None

    def _start(self, present: bytes) -> Any:
        """Return what is tuned.

        Raises:
            LearningError: It is no model of this version.
        """
        from skep.learn import modelfile  # noqa: PLC0415 - the rest needs no network

        try:
            return self._tune.start_of(modelfile.load(present) if present else None)
        except modelfile.ModelError as error:
            raise LearningError(Why.DAMAGED_MODEL, str(error)) from None

    def _work(self, clock: Callable[[], float], goes_on: Callable[[], bool]) -> Done | None:
        """Train in the round's folder, to its end; return None if it was to stop before."""
        folder = self._folder / ROUND
        about, window, present = read_round(folder)
        if about.sequence > self.kept.done.get(about.vc, 0):
            done = self._trained(folder, about, window, self._start(present), (clock, goes_on))
            if done is None:
                return None
            self._note(done)
        else:
            done = None  # It was noted, and the process ended before the folder was gone.
        over = self._folder / OVER
        with writing(self._folder):
            folder.rename(over)
            shutil.rmtree(over)
        return done

    def _trained(
        self,
        folder: Path,
        about: About,
        window: Window,
        start: Any,
        by: tuple[Callable[[], float], Callable[[], bool]],
    ) -> Done | None:
        clock, goes_on = by
        tune = self._tune
        learner = learners.Learner(
            TUNE,
            tune.Settings,
            partial(tune.train, window=window, start=start),
            partial(tune.model_of, window=window, start=start, trained_on=about.trained_on),
            frozenset(),
        )
        digest = hashlib.sha256(packed(window)).hexdigest()
        head = runs.Head(TUNE, about.settings, about.seed, digest)
        run = folder / RUN
        runs.begin(run, head, resume=(run / runs.RUN).exists())
        try:
            found = runs.train(
                learner, head, run, clock=clock, tell=lambda _point: goes_on()
            ).result
        except LearningError as error:
            if error.why is not Why.UNFIT:
                raise
            return _done(about, Outcome.UNFIT, why=error.text)
        if found is None:
            return None
        data = (run / f"{found.model}{registry.SUFFIX}").read_bytes()
        from skep.learn.modelfile import read_header  # noqa: PLC0415 - the rest needs no network

        report = read_header(data).report
        if not tune.is_better(report):
            return _done(about, Outcome.NOT_BETTER, model=found.model, report=report)
        why = f"trainer: VC {about.vc}, from {about.parent[:12] or 'the rule'}"
        registry.add(self._models, data, about.at, why)
        return _done(about, Outcome.CANDIDATE, model=found.model, report=report)

    def _note(self, done: Done) -> None:
        """Keep what came of a round, and remove candidates of earlier ones beyond the bound."""
        made = [done.model] if done.outcome is Outcome.CANDIDATE else []
        self.kept = msgspec.structs.replace(
            self.kept,
            done={**self.kept.done, done.vc: done.sequence},
            rounds=(*self.kept.rounds, done)[-ROUNDS_MAX:],
            candidates=tuple(dict.fromkeys((*self.kept.candidates, *made))),
        )
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            durable.write(str(self._folder / KEPT), _json(self.kept), 0o644)
            self._retire()
        values = {key: each for key, each in msgspec.to_builtins(done).items() if each}
        self._say("a round is done", **values)

    def _retire(self) -> None:
        """Remove candidates beyond the bound that no VC names, if it is known what VCs name.

        A name goes from what is kept when its file is gone; that is written with the next round,
        as to remove a file again changes nothing.
        """
        if not self._whole:
            return
        known = registry.read_registry(self._models)
        named = {vc.options.get("model") for vc in self._observer.vcs.values()}
        mine = [name for name in self.kept.candidates if name in known]
        states = registry.State
        open_ = [
            name for name in mine if known[name].state is states.CANDIDATE and name not in named
        ]
        for name in open_[: -self._asked.models]:
            registry.change(self._models, name, states.RETIRED, known[name].at, SUPERSEDED)
        over = {*open_[: -self._asked.models]}
        for name in mine:
            entry = known[name]
            killed = entry.state is states.RETIRED and entry.why == SUPERSEDED
            if name in over or (killed and name not in named):
                (self._models / f"{name}{registry.SUFFIX}").unlink(missing_ok=True)
                over.add(name)
        left = tuple(name for name in mine if name not in over)
        self.kept = msgspec.structs.replace(self.kept, candidates=left)


def _done(about: About, outcome: Outcome, **more: Any) -> Done:
    return Done(
        vc=about.vc,
        sequence=about.sequence,
        at=about.at,
        outcome=outcome,
        parent=about.parent,
        **more,
    )


# --- files ---------------------------------------------------------------------------------------


def _json(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1) + b"\n"


def read_kept(folder: Path) -> Kept:
    """Return what a trainer goes on from.

    Args:
        folder: Where its files are; it may have none.

    Raises:
        LearningError: The file is damaged, or of another version.
    """
    path = folder / KEPT
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()
    except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
        text = f"{path} is damaged ({error}): remove {folder} and training begins anew"
        raise LearningError(Why.DAMAGED_RUN, text) from None
    if found.version != VERSION:
        text = f"{path} is of version {found.version}, and this Skep reads {VERSION}"
        raise LearningError(Why.DAMAGED_RUN, text)
    return found


class Status(NamedTuple):
    """How a trainer goes."""

    runs: bool
    """A process holds its folder."""
    kept: Kept
    round: About | None
    """The round that is under way."""
    step: int
    """How far its run is."""
    of: int


def status(folder: Path) -> Status:
    """Return how a trainer goes.

    Args:
        folder: Where its files are.

    Raises:
        LearningError: There are none, or they are damaged.
    """
    if not (folder / runs.LOCK).exists():
        raise LearningError(Why.NO_RUN, f"{folder} has no trainer's files: `skep-trainer` runs one")
    kept, about, points = read_kept(folder), None, list[runs.Point]()
    if (folder / ROUND).exists():
        about, _, _ = read_round(folder / ROUND)
        points = runs.read_curve(folder / ROUND / RUN)
    step, of = (points[-1].step, points[-1].of) if points else (0, 0)
    try:
        with runs.alone(folder):
            pass
    except LearningError as error:
        if error.why is not Why.OTHER_RUN:
            raise
        return Status(True, kept, about, step, of)
    return Status(False, kept, about, step, of)


def read_round(folder: Path) -> tuple[About, Window, bytes]:
    """Return of what a round is that is under way: its jobs, and the present model, if any.

    Args:
        folder: The round's folder.

    Raises:
        LearningError: A file is missing or damaged.
    """
    try:
        about = msgspec.json.decode((folder / ABOUT).read_bytes(), type=About)
        window = unpacked((folder / WINDOW).read_bytes())
        present = (folder / PRESENT).read_bytes() if about.parent else b""
        whole = registry.name_of(present) == about.parent if about.parent else True
        wrong = "" if whole else f"{PRESENT} is not model {about.parent[:12]}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        about, window, present, wrong = None, None, b"", str(error)
    if about is None or window is None or wrong:
        text = f"{folder} is damaged ({wrong}): remove it, and training goes on"
        raise LearningError(Why.DAMAGED_RUN, text)
    return about, window, present


def packed(window: Window) -> bytes:
    """Return the file of a window, the same bytes for the same jobs."""
    fields = window._asdict()
    about = {name: fields.pop(name) for name in SCALARS}
    return runs.stored(fields, about)


def unpacked(data: bytes) -> Window:
    """Return the window in a file.

    Raises:
        ValueError: It is damaged.
    """
    tensors, about = runs.opened(data)
    if set(tensors) | set(SCALARS) != set(Window._fields):
        reason = "its arrays are not those of a window"
        raise ValueError(reason)
    return Window(**tensors, **{name: about[name] for name in SCALARS})
