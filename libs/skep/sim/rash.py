"""An introspector that judges trials without looking: in a history nothing runs for long enough."""

from __future__ import annotations

from skep.machines.base import Effect, Send
from skep.machines.introspector import IntrospectorMachine
from skep.units import Instant
from skep.wire import subjects
from skep.wire.trials import Judged

UNDECIDED = 4
"""Every so manyth trial is never judged; of the others every second one is kept."""


class Rash(IntrospectorMachine):
    """Says of open trials what their numbers tell, and of trials that no service has asked for."""

    def _judge(self, now: Instant) -> list[Effect]:
        said: list[Effect] = []
        for number, window in self._trials.items():
            for trial in (number, number + 1) if number % UNDECIDED else ():
                kept = trial % 2 == 0
                gain = 100 if kept else -100
                said.append(
                    Send(
                        subjects.JUDGED,
                        Judged(
                            at=now,
                            trial=trial,
                            kept=kept,
                            gain_milli=gain,
                            low_milli=gain - 50,
                            high_milli=gain + 50,
                            after=window.after(),
                        ),
                    )
                )
        return said
