"""What the gateway knows of people, tokens and nodes: a copy of the access service's state."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from skep.access.people import People
from skep.wire import codec
from skep.wire.access import AccessFact, Audited
from skep_services.gateway.index import one_by_one
from skep_services.gateway.intake import Intake
from skep_services.gateway.watch import Watch
from skep_services.ports import Delivery

LINES_MAX = 50_000
"""Lines of the audit log that are kept to be asked for, the latest: some 30 MB."""
SLICE = 32
"""Records taken over before others may run."""
NEWS = "access"
"""What is woken when something of people or tokens has changed."""


class PeopleView:
    """People, rebuilt from the access service's log at every start."""

    def __init__(self, intake: Intake, watch: Watch) -> None:
        """Begin without anything; `intake` counts what cannot be read, `watch` is woken by news."""
        self.people = People()
        self.lines: deque[Audited] = deque(maxlen=LINES_MAX)
        self.older = 0
        """Lines of the audit log that are not kept here any more."""
        self.position = 0
        """How far the log was read, with what others wrote into it."""
        self._intake, self._watch = intake, watch

    async def deliver(self, delivery: Delivery) -> None:
        """Take over a record."""
        event = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        if isinstance(event, codec.Unreadable):
            self._intake.refused(delivery, event.text)
            return
        for each in one_by_one(event):
            for fact in each.facts:
                self._intake.take(delivery, partial(self.apply, fact))
        self.read(delivery.sequence)
        if delivery.sequence % SLICE == 0:
            await asyncio.sleep(0)

    def read(self, sequence: int) -> None:
        """Note how far the log was read."""
        self.position = sequence
        self._watch.wake((NEWS,))

    def apply(self, fact: AccessFact) -> None:
        """Take over a fact."""
        if isinstance(fact, Audited):
            self.older += len(self.lines) == LINES_MAX
            self.lines.append(fact)
            return
        self.people.apply(fact)
