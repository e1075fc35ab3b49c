"""A model of a file in one VC: its scene, and what it says."""

from __future__ import annotations

from skep.learn.decide import Decision, decide
from skep.learn.modelfile import Model
from skep.learn.scene import Scene
from skep.units import NS_PER_SECOND, Instant
from skep.wire.learned import Sight


class ModelSeat:
    """The seat of a model (`advising.Seat`)."""

    def __init__(self, model: Model) -> None:
        """Begin without a sight.

        Args:
            model: Its weights are shared by all its seats.
        """
        self._model, self._scene = model, Scene()

    @property
    def schema(self) -> int:
        """Return the version of what the model sees."""
        return self._model.header.schema

    def follow(self, sight: Sight) -> bool:
        """Take over a sight; return False if a whole one is needed."""
        return self._scene.follow(sight)

    def check(self) -> None:
        """Assert what holds of its scene."""
        self._scene.check()

    def decide(self, now: Instant) -> Decision:
        """Return what the model would do now."""
        return decide(self._model, self._scene, now / NS_PER_SECOND)

    def explore(self, now: Instant, margin_milli: int) -> Decision:
        """Return what the model would do now, and what is nearly as good."""
        seconds = now / NS_PER_SECOND
        return decide(self._model, self._scene, seconds, margin_milli=margin_milli)
