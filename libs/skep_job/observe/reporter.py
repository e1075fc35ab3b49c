"""The thread that tells the agent how far the job is.

    away --connected, hello sent--> reporting --link lost--> away
    away | reporting --interpreter exits--> bye (within FAREWELL_S) --> over

Messages to the agent, each with `type`, `job`, `attempt` and `rank`, and with `part` where several
processes share a rank (`parts` of them):

    hello  pid, world, token, parts              first on every connection
    error  error                                 after hello, once counting has failed
    stats  steps, step_ns, monotonic_ns, last_step_monotonic_ns, source, memory_bytes
           timing (how its durations are spread; absent while there are fewer than two)
           own (of a gang: what of them is its own time, and what its data loader's)
           at hello, then every `report_every_s`, and at once when the first mini-batch is done
    fingerprint  fingerprint                     on every connection, once the model was seen
    bye    steps                                 the final count

`steps` is cumulative within one source; when `source` goes from "dataloader" to "backward", or from
one of these to "optimizer", it may be smaller than before. It is "cooperative" where the script
itself says what a mini-batch is. After a failure `source` is "none". What the agent sends, and the
answers, are `skep_job.link.orders`'s: after hello the job says again what it can and how it stands.
If the agent is away, the thread tries again for ever, and the training does not notice. An agent
that does not let the process speak for its rank sends `not-heard` with the reason in `why`, which
is printed once.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from skep_job.link.apart import LOOK_S, Apart
from skep_job.link.connection import WAIT_S, Link, LinkLost
from skep_job.link.descriptors import WakePipe
from skep_job.link.orders import Control, describe
from skep_job.link.settings import Settings
from skep_job.observe.fingerprint import Fingerprint
from skep_job.observe.flight_record import FlightRecord
from skep_job.observe.step_counter import Count, Tally

RETRY_MIN_S = 0.1
RETRY_MAX_S = 2.0
"""Pauses between attempts to reach the agent double from the one to the other."""
assert RETRY_MIN_S < RETRY_MAX_S

GREETING_S = 0.1
"""How long the start of the script may be held up by an agent that is there and does not answer."""

FAREWELL_S = 1.0
"""How long the end of the interpreter may be held up for the final count to leave."""

_REFUSAL_CHARACTERS_MAX = 500

STANDS_NS = 10_000_000_000
"""Without a mini-batch for so long, and for STANDS_STEPS usual ones, it is told where it stands: a
third of the shortest silence that counts as a stall."""
STANDS_STEPS = 10
QUIET_S = 60.0
"""How long a script that uses PyTorch may show no mini-batch until its reader is told."""

_LAST_WAIT_S = 0.01
"""A socket's timeout must be positive, even when no time is left."""

# Faults of the thread itself; blocking those would only hide them from faulthandler.
_OWN_SIGNALS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}


class Reporter:
    """Reports one tally to one agent, from the process that created it and from no fork of it."""

    def __init__(
        self,
        settings: Settings,
        tally: Tally,
        memory: Callable[[], int],
        control: Control | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        self._settings = settings
        self._tally = tally
        self._control = control or Control()
        self._memory = memory
        self._fingerprint = fingerprint or Fingerprint()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="skep-reporter", daemon=True)
        self._link: Link | None = None
        self._linked_at = 0.0
        self._retry_at = 0.0
        self._retry_s = RETRY_MIN_S
        self._report_at = 0.0
        self._urgent = False
        self._failure_told = False  # on this connection
        self._fingerprint_told = False  # on this connection
        self._refusal_told = False
        self._closing_by: float | None = None
        self._pipe = WakePipe()
        self._began_at = time.monotonic()
        self._silence_told = False
        self._apart: Apart | None = None
        self._record = _flight_record(settings)

    def start(self) -> None:
        """Greet the agent, if it is there, and start the thread.

        So the agent knows of the process before the script begins, however short the script is.
        No signal meant for the process is ever delivered to the thread.
        """
        try:
            self._connect_and_report(GREETING_S)
            self._start_thread()
        except Exception as error:
            self._end(error)

    def is_own(self) -> bool:
        """Return whether this is the process that reports, and no fork of it."""
        return os.getpid() == self._pid

    def wake(self) -> None:
        """Have the next stats sent at once. Neither blocks nor raises; does nothing in a fork."""
        self._urgent = True
        self._pipe.wake()

    def wake_to_send(self) -> None:
        """Have what control says sent at once. Neither blocks nor raises."""
        self._pipe.wake()

    def close(self) -> None:
        """Send the final count and stop, within FAREWELL_S. Does nothing in a fork."""
        if os.getpid() != self._pid or self._closing_by is not None or not self._thread.ident:
            return
        self._closing_by = time.monotonic() + FAREWELL_S
        self.wake()
        self._thread.join(FAREWELL_S)

    def abandon(self) -> None:
        """Give up the connection without a word: called in a fork, where it is not ours."""
        if self._link is not None:
            # The agent must see the connection end when the training process ends.
            self._link.drop()
            self._link = None

    def _start_thread(self) -> None:
        blocked = signal.valid_signals() - _OWN_SIGNALS
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            self._thread.start()  # The thread inherits the mask.
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        try:
            while self._closing_by is None:
                self._turn()
            self._take_leave(self._closing_by)
            self._end()
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception | None = None) -> None:
        if error is not None:
            complain(f"reports end here: {describe(error)}")
            self._control.lose()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _turn(self) -> None:
        """Connect or report if it is time to, then wait for whatever comes first."""
        self._connect_and_report(WAIT_S)
        self._tell_of_silence(time.monotonic())
        self._wait()

    def _tell_of_silence(self, now: float) -> None:
        """Say once what a script can do that trains in a way which shows no mini-batches."""
        tally = self._tally
        shown = tally.reached() or tally.batches or tally.first_backward_ns
        if self._silence_told or shown or "torch" not in sys.modules:
            return
        if now - self._began_at < QUIET_S or tally.source == "cooperative":
            return
        self._silence_told = True
        complain(
            "no mini-batch has been seen so far. If this process trains, but without an optimizer "
            "of PyTorch and without backward(), have it say run = skep_job.init(), and run.step() "
            "after each mini-batch"
        )

    def _connect_and_report(self, wait_s: float) -> None:
        now = time.monotonic()
        try:
            if self._link is None and now >= self._retry_at and self._is_back(now):
                self._link = self._connect(wait_s)
            if self._link is not None and (self._urgent or now >= self._report_at):
                self._report_at = now + self._settings.report_every_s
                self._urgent = False  # Before the count is taken: a later wake counts again.
                self._report(self._link)
            if self._link is not None:
                self._send_answers(self._link)
        except LinkLost:
            self._lose_link()

    def _go_apart(self, message: dict[str, object]) -> None:
        """Give the connection up until the agent says in a file as what to take it up again."""
        path, within_ms = message.get("path"), message.get("within_ms")
        if not isinstance(path, str) or not isinstance(within_ms, int):
            return
        self._apart = Apart(path, within_ms / 1000)
        self._lose_link()
        self._retry_at = time.monotonic()

    def _is_back(self, now: float) -> bool:
        """Return whether this process may connect: always, but while it is apart."""
        if self._apart is None:
            return True
        settings = self._apart.back(self._settings)
        if settings is None:
            self._retry_at = now + LOOK_S
            return False
        if settings != self._settings:
            self._control.begin_anew()
            self._record = _flight_record(settings)
        self._settings, self._apart = settings, None
        self._retry_s = RETRY_MIN_S
        return True

    def _connect(self, wait_s: float) -> Link:
        """Return a link on which hello has been sent.

        Args:
            wait_s: How long the agent may take to accept (seconds).

        Raises:
            LinkLost: The agent is away.
        """
        link = Link(self._settings.socket_path, connect_s=wait_s)
        self._linked_at = time.monotonic()
        self._failure_told = self._fingerprint_told = False
        self._urgent = True
        try:
            link.send(
                self._message(
                    "hello",
                    pid=self._pid,
                    world=self._settings.world,
                    token=self._settings.secret,
                    **({"parts": self._settings.parts} if self._settings.parts > 1 else {}),
                )
            )
            self._control.greet()
            self._send_answers(link)
        except LinkLost:
            link.close()
            raise
        return link

    def _lose_link(self) -> None:
        """Forget the link, if there was one, and set the time of the next attempt."""
        now = time.monotonic()
        if self._link is not None:
            self._link.close()
            self._link = None
            # An agent that accepts and hangs up at once must not be asked ten times a second.
            if now - self._linked_at >= RETRY_MAX_S:
                self._retry_s = RETRY_MIN_S
        self._retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _wait(self) -> None:
        """Sleep until the next report or attempt, a wake, or something from the agent.

        Raises:
            OSError: The script closed the descriptor that wakes the thread.
        """
        poller = select.poll()
        poller.register(self._pipe, select.POLLIN)
        until = self._retry_at
        if self._link is not None:
            poller.register(self._link, select.POLLIN)
            until = self._report_at
        wait_ms = max(0, math.ceil((until - time.monotonic()) * 1_000))
        poller.poll(wait_ms)
        if self._apart is not None:
            self._pipe.renew()
        if not self._pipe.clear():
            reason = "the script closed the reporter's descriptors"
            raise OSError(reason)
        if self._link is not None:
            try:
                messages = self._link.receive()
            except LinkLost:
                self._lose_link()
                return
            for message in messages:
                if message.get("type") == "not-heard":
                    self._tell_refusal(str(message.get("why", "")))
                elif message.get("type") == "apart":
                    self._go_apart(message)
                    return
                elif message.get("attempt", self._settings.attempt) == self._settings.attempt:
                    self._control.take(message)

    def _tell_refusal(self, why: str) -> None:
        if not self._refusal_told:
            self._refusal_told = True
            complain(f"the agent does not listen to this process: {why[:_REFUSAL_CHARACTERS_MAX]}")

    def _send_answers(self, link: Link) -> None:
        """Send what control has said so far. Raises LinkLost; what has not left stays."""
        while (message := self._control.unsent()) is not None:
            link.send({**self._message(str(message["type"])), **message})
            self._control.sent(message)

    def _take_leave(self, deadline: float) -> None:
        """Send the final count, trying again until `deadline` (monotonic seconds)."""
        while True:
            try:
                if self._link is None:
                    self._link = self._connect(max(deadline - time.monotonic(), _LAST_WAIT_S))
                self._send_answers(self._link)
                self._report(self._link, ended=True)
                steps = self._tally.count(ended=True).steps
                self._link.send(self._message("bye", steps=steps))
            except LinkLost:
                self._lose_link()
            else:
                return
            if time.monotonic() + RETRY_MIN_S > deadline:
                return
            time.sleep(RETRY_MIN_S)

    def _report(self, link: Link, *, ended: bool = False) -> None:
        """Send stats, and before them the failure if there is one to tell. Raises LinkLost."""
        failure = self._tally.failure
        if failure is not None and not self._failure_told:
            link.send(self._message("error", error=failure))
            self._failure_told = True
        count, timing = self._tally.count(ended=ended), self._tally.timing()
        self._tally.time_again()
        gang = self._settings.world > 1
        self._tally.own.turn(on=gang)
        own = self._tally.own.medians() if gang else None
        link.send(
            self._message(
                "stats",
                steps=count.steps,
                step_ns=count.step_ns,
                monotonic_ns=time.monotonic_ns(),
                last_step_monotonic_ns=count.last_step_ns,
                source=count.source,
                memory_bytes=self._memory(),
                **({} if timing is None else {"timing": timing}),
                **({} if own is None else {"own": own.told()}),
                **self._standing(count),
            )
        )
        if not self._fingerprint_told:
            shown = self._fingerprint.told(count.steps, ended=ended)
            if shown is not None:
                parts = {"processes": self._settings.parts}
                link.send(self._message("fingerprint", fingerprint={**shown, **parts}))
                self._fingerprint_told = True

    def _standing(self, count: Count) -> dict[str, object]:
        """Return where the training stands, once it has made no mini-batch for a while."""
        if not count.last_step_ns:
            return {}
        silent_ns = time.monotonic_ns() - count.last_step_ns
        if silent_ns < max(STANDS_NS, STANDS_STEPS * count.step_ns) or self._control.stands:
            self._record.over()
            return {}
        from skep_job.observe.standstill import main_thread, standing

        return {"stands": standing(main_thread(), self._record).told()}

    def _message(self, kind: str, **fields: object) -> dict[str, object]:
        settings = self._settings
        return {
            "type": kind,
            "job": settings.job,
            "attempt": settings.attempt,
            "rank": settings.rank,
            **({"part": settings.part} if settings.part else {}),
            **fields,
        }


def _flight_record(settings: Settings) -> FlightRecord:
    folder = os.environ.get("SKEP_CHECKPOINTS", "")
    return FlightRecord(folder, settings.attempt, settings.rank)


def complain(text: str) -> None:
    """Write one line for the person who reads the job's log. Never raises."""
    try:
        print(f"skep_job: {text}", file=sys.stderr, flush=True)
    except Exception:  # noqa: S110
        pass  # The script may have closed or replaced its standard error.
