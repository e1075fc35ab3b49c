"""What the gateway could not take in: passed over, counted, and reported.

A view is a copy. One message that it cannot take in must not end the process, which would meet the
message again at its next start. So whatever is applied goes through `Intake.take`, one message or
one fact at a time: what raises is left out, and the next one is applied.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from skep_services.ports import Delivery

log = structlog.get_logger(service="gateway")

TEXT_CHARACTERS_MAX = 300
LOGGED_MAX = 1000
"""Messages that are written to the log: the counters go on, the log must not grow for ever."""


class Intake:
    """Counts of what was not taken in, and the latest of it."""

    def __init__(self) -> None:
        """Start with nothing passed over."""
        self.unreadable = 0
        """Messages of others that are not what their subject promises: these change nothing."""
        self.passed_over = 0
        """Messages and facts on which the view itself raised: it may lack what they say."""
        self.latest = ""
        """What was passed over last, and why."""

    def refused(self, delivery: Delivery, why: str) -> None:
        """Note a message that cannot be read."""
        self.unreadable += 1
        if self.unreadable <= LOGGED_MAX:
            log.warning(
                "unreadable",
                stream=delivery.stream,
                sequence=delivery.sequence,
                subject=delivery.subject,
                text=why[:TEXT_CHARACTERS_MAX],
            )

    def take(self, delivery: Delivery, apply: Callable[[], None]) -> None:
        """Apply a message, or a fact of one; pass over it if that raises.

        Args:
            delivery: The message.
            apply: Takes it in.
        """
        try:
            apply()
        except Exception as error:
            place = f"{delivery.stream} {delivery.sequence}" if delivery.stream else "core message"
            text = f"{place} on {delivery.subject}: {type(error).__name__}: {error}"
            self.passed_over += 1
            self.latest = text[:TEXT_CHARACTERS_MAX]
            if self.passed_over <= LOGGED_MAX:
                log.exception("passed over", text=self.latest)
