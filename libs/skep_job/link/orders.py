"""What the agent asks of a running job, and where in the training it is done.

The reporter's thread hands in what arrives (`take`); the training thread passes by at every
mini-batch boundary (`boundary`) and looks only at `due`. What an order makes the job do is a
handler: either on the training thread at a boundary (`on`), or at once on the reporter's thread
(`at_once`). A handler on the training thread may stand there and `wait` for what comes next.

    running --order due at a boundary--> standing (in a handler) --handler returns--> running

Orders fence: one below the latest taken is passed over, a higher one withdraws what still waits
for its boundary, and one that comes again has its answers said again. A clock (`step` above 0)
that is past when it arrives, or at the next boundary, is answered `past` and never handled.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator

Message = dict[str, object]
Handler = Callable[[Message], object]
"""Runs on the training thread; what it raises is told to the agent as `failed`."""
AtOnce = Callable[[Message], object]
"""Runs on the reporter's thread; returning False leaves the message to the training thread."""

KINDS = frozenset({"suspend", "release", "resume", "checkpoint", "move", "rescale", "share"})
"""What agents send. One of these that this job cannot do is refused; all else is passed over."""
STANDS = frozenset({"suspended", "released", "ready", "sent", "loaded"})
"""Answers that stay true until another follows: said again on every new connection."""
GOES_ON = frozenset({"resumed", "past", "rescaled"})
"""Answers after which the job stands nowhere."""

OUTBOX_MAX = 256
"""Messages kept for an agent that is away. An order has at most three answers, and a new order
makes the older ones worthless."""
INBOX_MAX = 64
"""Messages kept for the training thread; agents send one order at a time."""
ANSWERS_MAX = 8
SIGNALS_S = 0.5
"""Between two looks for a signal: one that comes just before a thread blocks does not wake it."""
TEXT_CHARACTERS_MAX = 2_000
"""Of an error's text: with escapes (6 bytes each) it still fits in a frame."""


class Lost(Exception):  # noqa: N818  a name for what happened
    """The reporter's thread is gone, so nothing can ever end this wait: go on training."""


class Control:
    """The orders of one process. Every method may be called from any thread but where it says."""

    def __init__(self, reached: Callable[[], int] = lambda: 0) -> None:
        """`reached` returns the mini-batches completed, as the agent counts them."""
        self.due = False
        """Whether an order waits for a boundary: all that the hook looks at."""
        self.wake: Callable[[], None] = _nothing
        """Called when there is something to send. Must not raise, must not block."""
        self.cooperative = False
        """Whether the script says itself where its boundaries are: then hooks see none."""
        self.withdrawn: Callable[[], None] = _nothing
        """Called when an order withdraws those before it. Must not raise, must not block."""
        self.held: Message | None = None
        """An order that waits until every rank of the gang has it (`cooperate.gang_barrier`)."""
        self.peek: Callable[[object], object] | None = None
        """While state is in the host's memory: returns the bytes of a storage that is there."""
        self.step = 0
        """The mini-batches completed at the boundary where the training stands, or stood last."""
        self._reached = reached
        self._pid = os.getpid()
        # Reentrant, because a signal's handler may run on the training thread while it is held.
        self._changed = threading.Condition(threading.RLock())
        self._on: dict[str, Handler] = {}
        self._at_once: dict[str, AtOnce] = {}
        self._order = -1
        self._taken: set[str] = set()  # kinds of the latest order
        self._answers: deque[Message] = deque(maxlen=ANSWERS_MAX)  # to the latest order
        self._pending: list[Message] = []  # for a boundary
        self._inbox: deque[Message] = deque(maxlen=INBOX_MAX)  # for who stands at one
        self._outbox: deque[Message] = deque(maxlen=OUTBOX_MAX)
        self._can: Message | None = None
        self._stand: Message | None = None
        self._standing = 0  # handlers on the stack of the training thread
        self._waiting_for: tuple[str, ...] = ()
        self._ended_by: Message | None = None  # what the innermost wait returned last
        self._thrown: BaseException | None = None
        self._lost = False

    # --- what handlers use ------------------------------------------------------------------

    def on(self, kind: str, handler: Handler) -> None:
        """Have `handler` do orders of this kind on the training thread, at their boundary."""
        self._on[kind] = handler

    def at_once(self, kind: str, handler: AtOnce) -> None:
        """Have `handler` see orders of this kind on the reporter's thread as they arrive."""
        self._at_once[kind] = handler

    def seen_by(self, kind: str) -> AtOnce | None:
        """Return the handler that sees such orders at once, for one that comes in its place.

        Returns:
            None if there is none.
        """
        return self._at_once.get(kind)

    def say(self, kind: str, **fields: object) -> None:
        """Queue a message to the agent. Never blocks; does nothing in a fork."""
        if os.getpid() != self._pid:
            return
        message: Message = {"type": kind, **fields}
        with self._changed:
            if kind == "can":
                if message == self._can:
                    return
                self._can = message
            elif kind in STANDS:
                self._stand = message
            elif kind in GOES_ON:
                self._stand = None
            if fields.get("order") == self._order:
                self._answers.append(message)
            self._outbox.append(message)
        self.wake()

    def fail(self, message: Message, error: object) -> None:
        """Say that the order in `message` was not done, and that everything is as before.

        Args:
            message: The order.
            error: An exception, or the reason in words.
        """
        self.say("failed", order=message["order"], what=message["type"], error=describe(error))

    @property
    def stands(self) -> bool:
        """Whether the training thread stands at a boundary, or waits for its state."""
        return self._standing > 0

    @property
    def stands_already(self) -> bool:
        """Whether the handler that asks was called while another one waited."""
        return self._standing > 1

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """Keep what arrives for the `wait` inside. For the training thread.

        Enter it before saying what the agent will answer (`ready`, `loaded`), so that the answer is
        kept for the `wait`; handlers on the training thread are inside already.
        """
        with self._changed:
            self._standing += 1
        try:
            yield
        finally:
            self._leave()

    def wait(self, *kinds: str) -> Message:
        """Block the training thread until the agent sends one of `kinds`; return the message.

        Meanwhile orders of other kinds that have a handler are done in place. If such a handler
        waits too, what ended its wait also ends this one if it is of one of `kinds`. Signals are
        handled as ever, and what their handlers raise passes through.

        Raises:
            Lost: The reporter's thread is gone, so that no message can come.
        """
        with self.standing():
            while True:
                message = self._await(kinds)
                if message["type"] in kinds:
                    self._ended_by = message
                    return message
                inner = self._do_within(message)
                if inner is not None and inner["type"] in kinds:
                    return inner

    # --- what the hooks and the reporter use ---------------------------------------------------

    def boundary(self, step: int, *, cooperative: bool = False) -> None:
        """Do what is due after mini-batch `step`. Called by the training thread when `due`.

        It raises only what a signal's handler raised while a handler was waiting.

        Args:
            step: The mini-batches that are done, as the agent counts them.
            cooperative: Whether the script calls, and not a hook.
        """
        if os.getpid() != self._pid:
            self.due = False  # A fork is another process, of which the agent asked nothing.
            return
        if cooperative != self.cooperative:
            return  # Within a mini-batch, for a script that knows better.
        # A thread that Python did not start is the autograd engine's: its work is half done.
        if self._standing or isinstance(threading.current_thread(), threading._DummyThread):
            return
        while (message := self._next_due(step)) is not None:
            try:
                self._do(message)
            finally:
                self._leave()

    def perform(self, message: Message, step: int) -> None:
        """Do an order that was held back, at a boundary of the script.

        Args:
            message: The order.
            step: The mini-batches that are done, as the agent counts them.
        """
        with self._changed:
            self.step = step
            self._standing += 1
        try:
            self._do(message)
        finally:
            self._leave()

    def take(self, message: Message) -> None:
        """Take in what the agent sent. For the reporter's thread; never raises."""
        kind, order, step = message.get("type"), message.get("order"), message.get("step", 0)
        if not isinstance(kind, str) or not _is_whole(order):
            return
        if kind not in KINDS and kind not in self._on and kind not in self._at_once:
            return
        assert isinstance(order, int)
        with self._changed:
            if order < self._order:
                return
            if order == self._order and kind in self._taken:
                self._outbox.extend(self._answers)  # It is asked again: the answer was lost.
                again, later = True, False
            else:
                again, later = False, order > self._order
                if later:
                    self._begin(order)
                self._taken.add(kind)
        if later:
            self.withdrawn()
        if again:
            self.wake()
        elif _is_whole(step):
            self._route(kind, message)
        else:
            self.fail(message, f"step is {step!r}, expected a whole number from 0")

    def greet(self) -> None:
        """Put first what every new connection begins with: what the job can, and how it stands."""
        with self._changed:
            first = [message for message in (self._can, self._stand) if message is not None]
            rest = [message for message in self._outbox if all(message is not m for m in first)]
            self._outbox.clear()
            self._outbox.extend([*first, *rest])

    def unsent(self) -> Message | None:
        """Return the message to send next, or None. It stays until it is `sent`."""
        with self._changed:
            return self._outbox[0] if self._outbox else None

    def sent(self, message: Message) -> None:
        """Forget `message`, which has left."""
        with self._changed:
            if self._outbox and self._outbox[0] is message:
                self._outbox.popleft()

    def lose(self) -> None:
        """End every wait, now and later: the reporter's thread ends. Never raises."""
        with self._changed:
            self._lost = True
            self._pending.clear()
            self.due = False
            self._changed.notify_all()

    def abandon(self) -> None:
        """Forget everything: called in a fork, which is not the process that the agent means."""
        self._changed = threading.Condition(threading.RLock())  # Who held it is not here.
        self._pending.clear()
        self._outbox.clear()
        self.due = False

    def begin_anew(self) -> None:
        """Forget the orders of an earlier attempt, which this process was: others count anew."""
        with self._changed:
            self._begin(-1)
            self._outbox.clear()

    def adopt(self) -> None:
        """Belong to this process from here on: it may be a fork of the one that made it."""
        self._pid = os.getpid()

    def move_clock(self) -> None:
        """Answer `past` to every order with a step: from here on steps are counted otherwise."""
        with self._changed:
            clocked = [message for message in self._pending if message.get("step", 0)]
            self._pending = [message for message in self._pending if message not in clocked]
            self.due = bool(self._pending)
        for message in clocked:
            self.say("past", order=message["order"], step=self._reached())

    def let_pass(self, error: BaseException) -> None:
        """Let `error`, which a signal's handler raised, through to the script."""
        self._thrown = error

    # --- inside --------------------------------------------------------------------------------

    def _begin(self, order: int) -> None:
        """Withdraw what is left of earlier orders. With the lock held."""
        self._order = order
        self._taken.clear()
        self._answers.clear()
        self._pending.clear()
        self._inbox.clear()
        self.held = None
        self.due = False

    def _route(self, kind: str, message: Message) -> None:
        """Give a message that is new to the handler it is for."""
        at_once = self._at_once.get(kind)
        if at_once is not None:
            try:
                if at_once(message) is not False:
                    return
            except Exception as error:  # Nothing may end the reporter's thread.
                self.fail(message, error)
                return
        with self._changed:
            past = False
            if self._standing:
                self._inbox.append(message)
                self._changed.notify_all()
                return
            if kind in self._on and not self._lost:
                self._pending.append(message)
                self.due = True
                # Only now: a boundary in between has either seen `due` or counted before this.
                past = 0 < _step(message) <= self._reached()
                if past:
                    self._pending.remove(message)
                    self.due = bool(self._pending)
        if past:
            self.say("past", order=message["order"], step=self._reached())
        elif kind not in self._on:
            self.fail(message, f"this job cannot {kind}, or not now")

    def _next_due(self, step: int) -> Message | None:
        """Return an order to be done at this boundary, and stand; None if there is none left."""
        while True:
            with self._changed:
                message = next((m for m in self._pending if _step(m) <= step), None)
                if message is not None:
                    self._pending.remove(message)
                self.due = bool(self._pending)
                if message is None:
                    return None
                if _step(message) in (0, step):
                    self.step = step
                    self._standing += 1
                    return message
            self.say("past", order=message["order"], step=step)

    def _await(self, kinds: tuple[str, ...]) -> Message:
        """Return the next message that is one of `kinds` or has a handler; refuse the others.

        Raises:
            Lost: The reporter's thread is gone, so that no message can come.
        """
        while True:
            try:
                with self._changed:
                    while not self._inbox:
                        if self._lost:
                            raise Lost
                        self._changed.wait(SIGNALS_S)
                    message = self._inbox.popleft()
            except Lost:
                raise
            except BaseException as error:  # Raised by the handler of a signal: the script's own.
                self._thrown = error
                raise
            kind = str(message["type"])
            if kind in kinds or kind in self._on:
                return message
            self.fail(message, f"this job cannot {kind}, or not now")

    def _do_within(self, message: Message) -> Message | None:
        """Do an order in place; return what ended the last wait in it, if it waited."""
        self._ended_by = None
        self._do(message)
        return self._ended_by

    def _do(self, message: Message) -> None:
        try:
            self._on[str(message["type"])](message)
        except Lost:
            pass  # There is nobody to tell; the handler has put everything back.
        except Exception as error:
            if error is self._thrown:
                raise
            self.fail(message, error)

    def _leave(self) -> None:
        """Stand one level less; what no wait took is then for the next boundary, or refused."""
        left: list[Message] = []
        with self._changed:
            self._standing -= 1
            if not self._standing:
                left = list(self._inbox)
                self._inbox.clear()
        for message in left:
            self._route(str(message["type"]), message)


def describe(error: object) -> str:
    """Return an error in one bounded text that is never empty. Never raises.

    An exception without a message, such as a failed assertion, is described by where it was raised.
    """
    try:
        if not isinstance(error, BaseException):
            return str(error)[:TEXT_CHARACTERS_MAX]
        message = str(error) or _raised_at(error)
        return f"{type(error).__name__}: {message}"[:TEXT_CHARACTERS_MAX]
    except Exception:  # Whatever a foreign __str__ raises.
        return type(error).__name__


def _raised_at(error: BaseException) -> str:
    """Return where an exception was raised, in words."""
    trace = error.__traceback__
    if trace is None:
        return "no message"
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"in {code.co_name}, {os.path.basename(code.co_filename)}:{trace.tb_lineno}"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _step(message: Message) -> int:
    step = message.get("step", 0)
    assert isinstance(step, int)
    return step


def _nothing() -> None:
    pass
