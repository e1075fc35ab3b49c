"""What the advisor does for VCs that a learned model advises: it follows sights, and answers them.

    Sight --> Seat (one model in one VC) --> LearnedAdvice, again before it expires
    a gap, or a start --> SightWanted

A model is reached by a protocol, so nothing here needs numpy. Whatever is wrong with one is said in
its advice, so that its VC turns to its rule at once. All of it is soft: a process that begins asks
for whole sights and is as before a moment later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from skep.learn.shadow import Shadow
from skep.units import Instant, after, seconds
from skep.wire.cluster import Cluster
from skep.wire.following import explores, models_named
from skep.wire.learned import (
    CHOICES_MAX,
    HOLDS_MAX,
    MOVES_MAX,
    SCHEMA,
    AdvisedMove,
    LearnedAdvice,
    Sight,
    SightWanted,
    Stage,
)
from skep.wire.reasons import Reason

RESEND_AFTER = seconds(5.0)
EXPIRES_AFTER = seconds(15.0)
"""Two messages in a row may be lost: so it is of all advice that expires."""
assert 2 * RESEND_AFTER < EXPIRES_AFTER
ASK_AFTER = seconds(1.0)
"""How often a whole sight is asked for, until one comes: an allocator answers within half of it."""


class Advised(Protocol):
    """What a model would do."""

    @property
    def moves(self) -> Sequence[AdvisedMove]:
        """Moves, in their order."""
        ...

    @property
    def holds(self) -> Sequence[str]:
        """Waiting jobs that might fit and had better wait."""
        ...

    @property
    def reliable(self) -> bool:
        """Whether the model was trained on such sights."""
        ...


class Seat(Protocol):
    """One model in one VC."""

    @property
    def schema(self) -> int:
        """The version of what the model sees."""
        ...

    def follow(self, sight: Sight) -> bool:
        """Take over a sight; return False if a whole one is needed."""
        ...

    def decide(self, now: Instant) -> Advised:
        """Return what the model would do now; it may raise whatever is wrong with it."""
        ...

    def check(self) -> None:
        """Assert what holds of what it was shown."""
        ...


@runtime_checkable
class Explorer(Protocol):
    """A seat that can tell what is nearly as good as its first move."""

    def explore(self, now: Instant, margin_milli: int) -> Advised:
        """Return what the model would do now, and in `choices` what is at most so much worse."""
        ...


class Models(Protocol):
    """The models that there are."""

    def seat(self, model: str) -> Seat | None:
        """Return a new seat of a model; None: there is no such model, or it cannot be read.

        Args:
            model: Its hash.
        """
        ...

    def offers(self, model: str) -> bool:
        """Return whether a model may still advise.

        Args:
            model: Its hash.
        """
        ...


class NoModels:
    """No model at all."""

    def seat(self, _model: str) -> Seat | None:
        """Return None."""
        return None

    def offers(self, _model: str) -> bool:
        """Return False."""
        return False


class Stages(Protocol):
    """What models may do: the guard."""

    def stage(self, vc: str, model: str, now: Instant) -> Stage:
        """Return what a model may do in a VC now."""
        ...

    def turns_at(self, vc: str, model: str, at: Instant) -> Instant | None:
        """Return when that may be otherwise, after an instant; None: not by time."""
        ...

    def compared(
        self, vc: str, begun: Mapping[str, bool], chosen: Sequence[str], at: Instant
    ) -> None:
        """Take over what a rule began, and what its model in shadow would have."""
        ...

    def differs(self, vc: str, jobs: Sequence[str]) -> None:
        """Take over that a model in shadow would change the sizes of these jobs."""
        ...


class ActsAtOnce:
    """No guard: every model acts."""

    def stage(self, _vc: str, _model: str, _now: Instant) -> Stage:
        """Return that it acts."""
        return "on"

    def turns_at(self, _vc: str, _model: str, _at: Instant) -> Instant | None:
        """Return None."""
        return None

    def compared(
        self, vc: str, begun: Mapping[str, bool], chosen: Sequence[str], at: Instant
    ) -> None:
        """Compare nothing."""

    def differs(self, vc: str, jobs: Sequence[str]) -> None:
        """Compare nothing."""


class Post:
    """A VC that a model advises."""

    def __init__(self, vc: str, model: str, seat: Seat | None) -> None:
        """Begin without a sight.

        Args:
            vc: The VC.
            model: The hash of the model that may act there.
            seat: The model; None: it is missing.
        """
        self.vc, self.model, self.seat = vc, model, seat
        self.number = -1
        """Of the latest sight that was followed; -1: a whole one is needed."""
        self.asked_at: Instant | None = None
        """When a whole one was last asked for; None: not since one came."""
        self.said: LearnedAdvice | None = None
        self.shadow = Shadow()
        self.explores = 0
        """How much worse than the best the moves may be that are tried (thousandths); 0: none."""
        self.seen_at = Instant(0)
        """When the latest sight was."""


class Advising:
    """The VCs that are advised, and what is due to be said in each."""

    def __init__(self, models: Models, stages: Stages) -> None:
        """Begin without a VC.

        Args:
            models: The models that there are.
            stages: The guard.
        """
        self.models, self._stages = models, stages
        self.posts: dict[str, Post] = {}
        self.resend_after, self.expires_after = RESEND_AFTER, EXPIRES_AFTER
        """A simulation in which nothing is lost may be less busy."""

    def set_cluster(self, cluster: Cluster) -> None:
        """Follow which VCs have a model, and which."""
        before, self.posts, explored = self.posts, {}, explores(cluster)
        for vc, model in models_named(cluster).items():
            known = before.get(vc)
            if known is None or known.model != model or known.seat is None:
                known = Post(vc, model, self.models.seat(model))
            known.explores = explored.get(vc, 0)
            self.posts[vc] = known

    def sight(self, sight: Sight, now: Instant) -> Iterator[LearnedAdvice | SightWanted]:
        """Yield the answer to a sight."""
        post = self.posts.get(sight.vc)
        if post is None:
            return
        if post.seat is None:
            post.number = sight.number
            yield self._advise(post, now)
            return
        try:
            follows = post.seat.follow(sight)
            if follows:
                self._compare(post, sight, now)
        except Exception:  # A model that ends on a sight is one that cannot be followed.
            post.number = sight.number
            yield self._off(post, Reason.ADVICE_BROKEN, now)
            # What it has taken over is half of a sight, so it begins anew with a whole one.
            post.seat, post.number = self.models.seat(post.model), -1
            follows = False
        if follows:
            post.number, post.asked_at, post.seen_at = sight.number, None, sight.at
            yield self._advise(post, now)
        elif post.asked_at is None or now >= after(post.asked_at, ASK_AFTER):
            yield self._ask(post, now)

    def check(self) -> None:
        """Assert the bounds of what is kept and said.

        Raises:
            AssertionError: One of them does not hold.
        """
        for vc, post in self.posts.items():
            assert post.vc == vc
            assert post.number >= -1, vc
            if post.seat is not None:
                post.seat.check()
            post.shadow.check()
            said = post.said
            if said is not None:
                assert (said.vc, said.model) == (vc, post.model)
                assert said.at < said.expires_at, vc
                assert len(said.moves) <= MOVES_MAX, vc
                assert len(said.holds) <= HOLDS_MAX, vc

    def _compare(self, post: Post, sight: Sight, now: Instant) -> None:
        """Have a model in shadow choose again where its rule has begun jobs."""
        choice = post.shadow.follow(sight)
        if choice is None or self._stages.stage(post.vc, post.model, now) != "shadow":
            return
        begun, before = choice
        again = self.models.seat(post.model)
        if again is not None and again.follow(before):
            made = again.decide(now)
            moves = {move.job: move for move in made.moves} if made.reliable else {}
            alike = {
                name: post.shadow.is_alike(job, moves.get(name), sight.node_gpus)
                for name, job in begun.items()
            }
            self._stages.compared(post.vc, alike, list(moves), now)

    def due(self, now: Instant) -> Iterator[LearnedAdvice | SightWanted]:
        """Yield what is to be said again, and asked for."""
        for post in self.posts.values():
            at = self._due_at(post)
            if at is not None and at <= now:
                yield self._ask(post, now) if post.number < 0 else self._advise(post, now)

    def wake_at(self) -> Instant | None:
        """Return when something is due; None: nothing is."""
        times = map(self._due_at, self.posts.values())
        return min((at for at in times if at is not None), default=None)

    def _due_at(self, post: Post) -> Instant | None:
        if post.number < 0:
            return after(post.asked_at, ASK_AFTER) if post.asked_at is not None else Instant(0)
        if post.said is None:
            return None
        again = after(post.said.at, self.resend_after)
        turns = self._stages.turns_at(post.vc, post.model, post.said.at)
        return again if turns is None else min(again, turns)

    def _ask(self, post: Post, now: Instant) -> SightWanted:
        post.number, post.asked_at = -1, now
        return SightWanted(vc=post.vc, at=now)

    def _advise(self, post: Post, now: Instant) -> LearnedAdvice | SightWanted:
        """Return what a model says now, or that a whole sight is needed as it has just come."""
        if not self.models.offers(post.model):
            post.seat = None
            return self._off(post, Reason.NO_MODEL, now)
        if post.seat is None:
            post.seat = self.models.seat(post.model)
            if post.seat is None:
                return self._off(post, Reason.NO_MODEL, now)
            return self._ask(post, now)
        if post.seat.schema != SCHEMA:
            return self._off(post, Reason.OTHER_SCHEMA, now)
        try:
            made = _decided(post.seat, post.explores, now)
            stage = self._stages.stage(post.vc, post.model, now)
            if stage == "shadow" and made.reliable:
                self._stages.differs(post.vc, post.shadow.wish(made.moves))
            return self._say(
                post,
                now,
                stage=stage,
                moves=tuple(made.moves[:MOVES_MAX]),
                holds=tuple(made.holds[:HOLDS_MAX]),
                reliable=bool(made.reliable),
                **_tried(post, made),
            )
        except Exception:  # Numbers that are not finite, damaged weights: whatever it is.
            return self._off(post, Reason.ADVICE_BROKEN, now)

    def _off(self, post: Post, why: Reason, now: Instant) -> LearnedAdvice:
        return self._say(post, now, stage="off", why=why)

    def _say(self, post: Post, now: Instant, **fields: Any) -> LearnedAdvice:
        post.said = LearnedAdvice(
            vc=post.vc,
            model=post.model,
            schema=SCHEMA,
            number=max(post.number, 0),
            at=now,
            expires_at=after(now, self.expires_after),
            **fields,
        )
        return post.said


def _decided(seat: Seat, explores: int, now: Instant) -> Advised:
    """Return what a model would do, with what is nearly as good if its VC explores."""
    if explores and isinstance(seat, Explorer):
        return seat.explore(now, explores)
    return seat.decide(now)


def _tried(post: Post, made: Advised) -> dict[str, Any]:
    """Return what advice says where its VC explores."""
    choices = tuple(getattr(made, "choices", ())[:CHOICES_MAX])
    return {"choices": choices, "seed": _seed(post)} if choices else {}


def _seed(post: Post) -> int:
    """Return what is drawn by on the latest sight: the same each time that it is answered."""
    told = f"{post.vc}/{post.model}/{post.number}/{post.seen_at}"
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:6], "big") | 1


class GivenModels:
    """Models that are given, by hash."""

    def __init__(self, seats: Mapping[str, Callable[[], Seat]]) -> None:
        """Take what makes a seat of each."""
        self._seats = seats

    def seat(self, model: str) -> Seat | None:
        """Return a new seat of a model; None: it was not given."""
        make = self._seats.get(model)
        return None if make is None else make()

    def offers(self, model: str) -> bool:
        """Return whether it was given."""
        return model in self._seats
