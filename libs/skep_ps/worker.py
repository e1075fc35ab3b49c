"""A worker's connections: one to the coordinator, one to each server."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from skep_ps.control import AGAIN_S_MAX, AGAIN_S_MIN, Control
from skep_ps.errors import Broken, ParameterServerError, Refused
from skep_ps.placement import Placement, Spec
from skep_ps.wire import SLICE_S, Channel, Late, Message, Patience, Settings, dial

RESTART = "the job restarts from its last checkpoint"


class Exchange(NamedTuple):
    """One request to a server, and where its answer belongs."""

    header: Message
    parts: Sequence[memoryview] = ()
    into: Sequence[memoryview] = ()


class Pause(NamedTuple):
    """How long a change of the job stopped this worker."""

    generation: int
    version: int
    ns: int


class Lane(threading.Thread):
    """The connection to one server. Requests that break are repeated: the server knows them."""

    def __init__(
        self,
        server: int,
        at: tuple[str, int],
        worker: int,
        where: Settings,
        failed: Callable[[], str],
    ) -> None:
        """Connect.

        Args:
            server: The id of the server.
            at: Its host and port.
            worker: The id of this worker.
            where: What lets us in, and how long to wait.
            failed: It returns why the job has failed, on any thread; empty: it has not.

        Raises:
            Broken: The server is away.
            Refused: The token or the attempt is not that of the job.
        """
        super().__init__(name=f"skep-ps-server-{server}", daemon=True)
        self.server = server
        self._at, self._worker, self._settings, self._failed = at, worker, where, failed
        self._channel: Channel | None = None
        self._requests: queue.SimpleQueue[tuple[Exchange, Answers] | None] = queue.SimpleQueue()
        self._connect()

    def ask(self, exchange: Exchange, answers: Answers) -> None:
        """Have a request done on the lane's own thread.

        Args:
            exchange: The request.
            answers: It gets the server's id with the answer, or with what to raise.
        """
        self._requests.put((exchange, answers))

    def close(self) -> None:
        """End the connection and the thread; a request in progress fails."""
        self._requests.put(None)
        if self._channel is not None:
            self._channel.close()

    def run(self) -> None:
        """Do what is asked, in order."""
        while (request := self._requests.get()) is not None:
            exchange, answers = request
            answers.put((self.server, self.do(exchange)))

    def do(self, exchange: Exchange) -> Message | ParameterServerError:
        """Return the answer, or what to raise."""
        broken_at: float | None = None
        patience = Patience(self._settings.lost_s, "")
        pause_s = AGAIN_S_MIN
        while True:
            try:
                return self._once(exchange)
            except (Refused, Late, ParameterServerError) as error:
                return ParameterServerError(self._failed() or f"{error}; {RESTART}")
            except Broken as error:
                if self._channel is not None:
                    self._channel.close()
                    self._channel = None
                if broken_at is None:
                    patience = Patience(self._settings.lost_s, "")
                    broken_at = time.monotonic()
                try:
                    patience.slice_s()
                except Late:
                    reason = f"parameter server {self.server} is lost ({error}); {RESTART}"
                    return ParameterServerError(self._failed() or reason)
            if self._failed():
                return ParameterServerError(self._failed())
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, AGAIN_S_MAX)

    def _once(self, exchange: Exchange) -> Message:
        if self._channel is None:
            self._connect()
        channel = self._channel
        if channel is None:
            reason = "closed"
            raise Broken(reason)
        channel.send(exchange.header, exchange.parts)
        patience = Patience(self._settings.wait_s, f"server {self.server} answers")
        answer = channel.receive(patience)
        if answer["type"] == "error":
            raise ParameterServerError(answer["why"])
        if answer["type"] == "again":
            return answer
        channel.read_into(exchange.into, patience)
        return answer

    def _connect(self) -> None:
        channel = dial(*self._at, self._settings.secret)
        channel.send({"type": "i-am", "worker": self._worker})
        self._channel = channel


Answers = queue.SimpleQueue[tuple[int, Message | ParameterServerError]]


class Worker:
    """This process as one of the job's workers."""

    def __init__(self, where: Settings, spec: Spec, rank: int | None) -> None:
        """Join: wait until the job begins, or, if it has begun, until it has changed for us.

        Args:
            where: Where the coordinator is, what lets us in, and how long to wait.
            spec: What the job consists of, as this worker has it.
            rank: The id that it wishes for; None: any.

        Raises:
            ParameterServerError: The coordinator is away or refuses us, or the job does not begin.
        """
        self.spec = spec
        self.id = -1
        self.version = 0
        self.left = False
        self.pauses: list[Pause] = []
        self.step_ns = 0
        self.is_newcomer = False
        self.lay_out: Callable[[Placement], object] | None = None
        """Called with a placement to come, so that nothing is left to compute when it does."""
        self.placement: Placement
        self._settings = where
        self._rank = rank
        self._changed = threading.Condition()
        self._current: Placement | None = None
        self._next: Placement | None = None  # prepared
        self._decided: Placement | None = None  # to be taken at the next boundary
        self._closed = 0  # the latest generation that was decided or called off
        self._released: dict[int, int] = {}
        self._failed = ""
        self._lanes: dict[int, Lane] = {}
        self._sequence = 0
        try:
            self._control = Control(where, self._hello, self._take, self._fail)
        except (Broken, Refused) as error:
            raise ParameterServerError(str(error)) from error
        self._control.start()
        self._wait(
            lambda: self._decided is not None or self._current is not None,
            "the job's other processes",
        )
        self._adopt(0)

    @property
    def world(self) -> int:
        """Return how many workers the next step's gradients come from."""
        return len(self.placement.workers)

    @property
    def rank(self) -> int:
        """Return this worker's place among them, from 0."""
        return self.placement.workers.index(self.id)

    def sequence(self) -> int:
        """Return the number of the next request; a repeated request keeps it."""
        self._sequence += 1
        return self._sequence

    def exchange(self, requests: Mapping[int, Exchange]) -> dict[int, Message]:
        """Ask several servers at once; return the answers.

        Args:
            requests: By the server's id.

        Raises:
            ParameterServerError: The job has failed, or a server is lost or answers with an error.
        """
        self._raise_if_failed()
        answers: Answers = queue.SimpleQueue()
        results: dict[int, Message] = {}
        error: ParameterServerError | None = None
        if len(requests) == 1:
            ((server, only),) = requests.items()
            answers.put((server, self._lanes[server].do(only)))
        else:
            for server, request in requests.items():
                self._lanes[server].ask(request, answers)
        for _ in requests:
            server, answer = self._next_answer(answers)
            if isinstance(answer, ParameterServerError):
                error = error or answer
            else:
                results[server] = answer
        if error is not None:
            self._fail(str(error))
            raise error
        return results

    def _next_answer(self, answers: Answers) -> tuple[int, Message | ParameterServerError]:
        while True:
            try:
                return answers.get(timeout=SLICE_S)  # Each lane answers within its deadlines,
            except queue.Empty:
                self._raise_if_failed()  # but for one that was closed meanwhile.

    def boundary(self, holds: Sequence[Sequence[int] | None]) -> None:
        """Take what was decided; where a clock holds us, wait for what is decided.

        Args:
            holds: From each server the generation and the clock by which it holds; None: it does
                not.

        Raises:
            ParameterServerError: The job has failed, or nothing is decided in time.
        """
        began = time.monotonic_ns()
        for hold in holds:
            if hold is not None:
                self._control.say("held", generation=hold[0], version=self.version)
                self._wait(functools.partial(self._passes, *hold), "a change's outcome")
        if self._decided is not None:
            self._adopt(began)

    def catch_up(self, generation: int, workers: Sequence[int]) -> None:
        """Wait for the placement that a server goes by already, and take it.

        Only without common steps can a server be ahead between two steps.

        Args:
            generation: The generation of that placement.
            workers: The ids of the workers that the server counts.

        Raises:
            ParameterServerError: The job has failed, or the placement does not come in time.
        """
        began = time.monotonic_ns()

        def here() -> bool:
            newest = self._decided or self._current
            return newest is not None and (
                newest.generation > generation
                or (newest.generation == generation and set(newest.workers) <= set(workers))
            )

        self._wait(here, "a change that the servers have made")
        if self._decided is not None:
            self._adopt(began)
        self.roster()

    def leave(self) -> None:
        """Ask to be taken out of the job; `left` tells when that is done."""
        self._control.say("leave")

    def close(self) -> None:
        """Be done."""
        self._control.close("" if self.left or self._failed else "bye")
        for lane in self._lanes.values():
            lane.close()

    # --- the control thread -----------------------------------------------------------------------

    def _hello(self) -> Message:
        placement, following = self._current, self._next
        return {
            "role": "worker",
            "id": self.id if self.id >= 0 else self._rank,
            "host": self._control.host,
            "port": 0,
            "generation": placement.generation if placement else 0,
            "pending": following.generation if following else 0,
            "placement": placement.to_wire() if placement else None,
            "spec": self.spec.to_wire(),
        }

    def _take(self, message: Message) -> None:
        generation = int(message.get("generation", 0))
        match message["type"]:
            case "welcome":
                self.id = int(message["id"])
            case "begin":
                self._begin(Placement.of(message["placement"]))
            case "prepare":
                self.is_newcomer = self._current is None
                why = self._prepare(Placement.of(message["placement"]))
                if why:
                    self._control.say("failed", why=why, generation=generation)
                else:
                    self._control.say("ready", **self._stand(generation))
            case "probe":
                self._control.say("probed", **self._stand(generation))
            case "switch":
                self._switch(Placement.of(message["placement"]))
            case "called-off":
                self._called_off(generation)
            case "released":
                with self._changed:
                    self._released = {generation: int(message["version"])}
                    self._changed.notify_all()
            case "roster":
                self._roster(generation, message["workers"])
            case "fail":
                self._fail(str(message["why"]))
            case _:
                pass  # `go`, `over`: nothing to do; a later coordinator may say more.

    def _stand(self, generation: int) -> Message:
        return {"generation": generation, "version": self.version, "step_ns": self.step_ns}

    def _begin(self, placement: Placement) -> None:
        """Take the first placement here, on the control thread.

        A change may be prepared, decided or called off before the training thread looks: a worker
        that has begun is not a newcomer to it, and keeps its connections.
        """
        why = self._prepare(placement)
        if why:
            self._fail(f"{why}; {RESTART}")
            return
        with self._changed:
            self._current, self._next = placement, None
            self._changed.notify_all()

    def _prepare(self, placement: Placement) -> str:
        """Be ready for a placement; return what keeps us from it, or an empty string."""
        with self._changed:
            self._next = placement
        for server, at in placement.servers.items():
            if server not in self._lanes:
                try:
                    lane = Lane(server, at, self.id, self._settings, lambda: self._failed)
                except (Broken, Refused) as error:
                    with self._changed:
                        self._next = None
                    self._close_lanes()
                    return f"connecting to server {server}: {error}"
                lane.start()
                with self._changed:
                    self._lanes[server] = lane
        if self.lay_out is not None:
            self.lay_out(placement)
        return ""

    def _switch(self, placement: Placement) -> None:
        with self._changed:
            if self._current is not None and self._current.generation >= placement.generation:
                self._control.say("switched", pause_ns=0, **self._stand(placement.generation))
                return
            self._decided, self._next = placement, None
            self._closed = max(self._closed, placement.generation)
            self._changed.notify_all()

    def _called_off(self, generation: int) -> None:
        with self._changed:
            self._closed = max(self._closed, generation)
            self._next = None
            self._changed.notify_all()
        self._close_lanes()

    def _close_lanes(self) -> None:
        """Give up connections to servers that are in no placement, not even one to come."""
        with self._changed:
            placements = (self._current, self._decided, self._next)
            needed = {server: None for each in placements if each for server in each.servers}
            gone = [self._lanes.pop(s) for s in list(self._lanes) if s not in needed]
        for lane in gone:
            lane.close()

    def _roster(self, generation: int, workers: list[int]) -> None:
        with self._changed:
            if self._current is not None and self._current.generation == generation:
                self._current = self._current._replace(workers=tuple(workers))
            if self._decided is not None and self._decided.generation == generation:
                self._decided = self._decided._replace(workers=tuple(workers))

    def _fail(self, why: str) -> None:
        with self._changed:
            self._failed = self._failed or why
            self._changed.notify_all()
        for lane in list(self._lanes.values()):
            lane.close()

    # --- the training thread ----------------------------------------------------------------------

    def _passes(self, generation: int, clock: int) -> bool:
        return self._closed >= generation or self._released.get(generation, -1) >= clock

    def _adopt(self, began_ns: int) -> None:
        with self._changed:
            if self._decided is not None:
                self._current, self._decided = self._decided, None
            assert self._current is not None
            placement = self.placement = self._current
        pause_ns = time.monotonic_ns() - began_ns if began_ns else 0
        if began_ns:
            self.pauses.append(Pause(placement.generation, self.version, pause_ns))
        self.left = self.id not in placement.workers
        self._control.say("switched", pause_ns=pause_ns, **self._stand(placement.generation))
        self._close_lanes()
        if self.left:
            self.close()

    def roster(self) -> None:
        """Take note of workers that have ended, at a boundary."""
        with self._changed:
            if self._current is not None:
                self.placement = self._current

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        patience = Patience(self._settings.wait_s, what)
        with self._changed:
            while not condition():
                self._raise_if_failed()
                try:
                    self._changed.wait(patience.slice_s())
                except Late as late:
                    raise ParameterServerError(f"{late}; {RESTART}") from late  # noqa: EM102

    def _raise_if_failed(self) -> None:
        if self._failed:
            raise ParameterServerError(self._failed)
