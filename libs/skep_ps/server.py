"""A parameter server: keeps chunks, sums gradients, steps. `python -m skep_ps.server`.

One thread per connection receives straight into the worker's gradient buffers. In a synchronous
job the thread that completes the set of pushes updates every chunk, in fixed worker order, and all
of them answer. In an asynchronous one each push is an update of its own.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from skep_ps.assign import Move
from skep_ps.control import Control
from skep_ps.copying import copy_out
from skep_ps.errors import Broken, ParameterServerError, Refused, RequestFailed
from skep_ps.peers import Peers
from skep_ps.placement import Placement, Spec
from skep_ps.store import Hyper, Kept, Store, view
from skep_ps.wire import Channel, Late, Message, Patience, Settings, admit, expect, settings

if TYPE_CHECKING:
    from torch import Tensor

DIRECT = -1
HOPS_MAX = 8
"""How often a late push may be handed on: it is at most one for each scaling it is late for."""
LAYOUTS_MAX = 64
"""Earlier placements that late pushes of an asynchronous job may still be laid out for."""
ENDING_S = 2.0
"""How long the threads may take to tell their workers why a server ends."""


class _Pending:
    """A change that is not decided."""

    def __init__(self, placement: Placement, moves: Sequence[Move]) -> None:
        self.placement, self.moves = placement, moves
        self.incoming: dict[int, Kept] = {}
        self.gradients: dict[int, dict[int, Tensor]] = {}
        self.clock: int | None = None
        self.told = False  # every server has accepted the clock
        self.started = False  # what moves is frozen and on its way
        self.version = self.puts = 0  # of whom it comes from


class Server:
    """One server process."""

    def __init__(self, where: Settings) -> None:
        """Register with the coordinator.

        Raises:
            Broken: The coordinator is away.
            Refused: The token or the attempt is not that of the job.
        """
        self._settings = where
        self._changed = threading.Condition()
        self._store: Store | None = None
        self._placement: Placement | None = None
        self._layouts: dict[int, list[int]] = {}  # own chunks by generation
        self._pending: _Pending | None = None
        self._version = self._puts = 0
        self._pushed: dict[int, list[Hyper]] = {}
        self._seen: dict[tuple[int, int], int] = {}
        """The latest push of each worker, by way of which server (DIRECT: none)."""
        self._hold: list[int] | None = None
        self._failed = ""
        self._id: int | None = None
        self._code: int | None = None
        self._ended = threading.Event()
        self._leaving = False
        self._forwarded: dict[int, int] = {}  # where chunks went that were here
        self._peers = Peers(where)
        self._control = Control(where, self._hello, self._take, self._down)
        self._listener = socket.create_server((self._control.host, 0), backlog=128)

    def run(self) -> int:
        """Serve until the job is over, this server has left, or all is lost; return the code."""
        threading.Thread(target=self._accept, daemon=True, name="skep-ps-accept").start()
        self._control.start()
        while not self._ended.wait(1.0):
            pass  # Short waits: a signal handler runs between them.
        if self._failed:
            _say(f"server {self._id}: {self._failed}")
            self._ended.clear()
            self._ended.wait(min(ENDING_S, self._settings.lost_s))
        for each in (self._control, self._listener, self._peers):
            each.close()
        return self._code or 0

    def leave(self) -> None:
        """Ask the coordinator to move everything elsewhere; `run` returns once that is done."""
        self._leaving = True
        self._control.say("leave")

    # --- the coordinator --------------------------------------------------------------------------

    def _hello(self) -> Message:
        placement, pending = self._placement, self._pending
        return {
            "role": "server",
            "id": self._id,
            "host": self._control.host,
            "port": self._listener.getsockname()[1],
            "generation": placement.generation if placement else 0,
            "pending": pending.placement.generation if pending else 0,
            "placement": placement.to_wire() if placement else None,
            "spec": self._store.spec.to_wire() if placement and self._store else None,
        }

    def _down(self, why: str) -> None:
        self._end(1, why)

    def _end(self, code: int, failed: str = "") -> None:
        with self._changed:
            self._failed = self._failed or failed
            self._code = code
            self._changed.notify_all()
        self._ended.set()

    def _take(self, message: Message) -> None:
        match message["type"]:
            case "welcome":
                if self._id is None:
                    host, port = self._listener.getsockname()[:2]
                    _say(f"server {message['id']} serves at {host}:{port}")
                self._id = int(message["id"])
                if self._leaving:
                    self._control.say("leave")
            case "begin":
                self._begin(Spec.of(message["spec"]), Placement.of(message["placement"]))
            case "prepare":
                self._prepare(message)
            case "probe":
                self._control.say("probed", **self._stand(message))
            case "clock":
                self._take_clock(message)
            case "move":
                self._take_move(message)
            case "switch":
                self._switch(message)
            case "called-off":
                self._called_off(int(message["generation"]))
            case "roster":
                self._roster(message)
            case "outcome":
                _say(f"server {self._id} stays: {message['why']}")
            case "go" | "over":
                self._end(0)
            case "fail":
                self._end(1, str(message["why"]))
            case _:
                pass  # A later coordinator may say more.

    def _stand(self, message: Message) -> Message:
        return {"generation": message["generation"], "version": self._version}

    def _begin(self, spec: Spec, placement: Placement) -> None:
        assert self._id is not None
        store = Store(spec)
        own = placement.of_server(self._id)
        store.kept = {chunk: store.fresh(chunk) for chunk in own}
        store.gradients = {
            worker: {chunk: store.empty(chunk) for chunk in own} for worker in placement.workers
        }
        with self._changed:
            self._store, self._placement = store, placement
            self._layouts[placement.generation] = own
            self._changed.notify_all()

    def _prepare(self, message: Message) -> None:
        """Get everything ready that a change needs, so that the change itself only copies."""
        assert self._id is not None
        placement = Placement.of(message["placement"])
        pending = _Pending(placement, [Move(*move) for move in message["moves"]])
        store = self._store or Store(Spec.of(message["spec"]))
        arriving = [move.chunk for move in pending.moves if move.target == self._id]
        pending.incoming = {chunk: store.fresh(chunk) for chunk in arriving}
        for worker in placement.workers:
            known = store.gradients.get(worker, {})
            pending.gradients[worker] = {
                chunk: known[chunk] if chunk in known else store.empty(chunk)
                for chunk in placement.of_server(self._id)
            }
        with self._changed:
            self._store, self._pending = store, pending
        try:
            for target in {move.target: None for move in pending.moves if move.source == self._id}:
                self._peers.connect(target, placement)
        except (Broken, Refused) as error:
            self._control.say("failed", why=str(error), **self._stand(message))
            return
        self._control.say("ready", **self._stand(message))

    def _take_clock(self, message: Message) -> None:
        with self._changed:
            pending, clock = self._pending, int(message["clock"])
            if pending is None or pending.placement.generation != message["generation"]:
                return
            accepted = self._version < clock
            if accepted:
                pending.clock = clock
            self._update_if_complete()  # A clock further ahead lets those go on who wait here.
        self._control.say("accepted" if accepted else "late", **self._stand(message))

    def _take_move(self, message: Message) -> None:
        with self._changed:
            pending = self._pending
            if pending is not None and pending.placement.generation == message["generation"]:
                pending.told = True
                self._move_if_due()

    def _called_off(self, generation: int) -> None:
        with self._changed:
            pending = self._pending
            if pending is None or pending.placement.generation != generation:
                return
            self._pending = None
            self._update_if_complete()
            self._changed.notify_all()
            if self._placement is None:
                self._store = None

    def _roster(self, message: Message) -> None:
        with self._changed:
            placement = self._placement
            if placement is None or placement.generation != message["generation"]:
                return
            gone = [worker for worker in placement.workers if worker not in message["workers"]]
            for worker in gone:
                self._placement = placement = placement.without(worker)
                self._pushed.pop(worker, None)
            self._update_if_complete()
            self._changed.notify_all()

    def _switch(self, message: Message) -> None:
        assert self._id is not None
        placement = Placement.of(message["placement"])
        freed: list[object] = []
        with self._changed:
            before, pending, store = self._placement, self._pending, self._store
            if before is None or before.generation < placement.generation:
                assert pending is not None, "decided without this server"
                assert pending.placement.generation == placement.generation
                assert store is not None
                own = placement.of_server(self._id)
                for move in pending.moves:
                    if move.source == self._id:
                        freed.append(store.kept.pop(move.chunk))
                        self._forwarded[move.chunk] = move.target
                    elif move.target == self._id:
                        store.kept[move.chunk] = pending.incoming[move.chunk]
                        self._forwarded.pop(move.chunk, None)
                freed.append(store.gradients)
                store.gradients = pending.gradients
                if before is None:
                    # A coordinator that came back does not know where the sources stood.
                    self._version = max(int(message["version"]), pending.version)
                    self._puts = max(int(message["puts"]), pending.puts)
                self._layouts[placement.generation] = own
                for old in list(self._layouts)[:-LAYOUTS_MAX]:
                    del self._layouts[old]
                self._placement, self._pending = placement, None
                kept = before.workers if before else ()
                self._seen = {by: number for by, number in self._seen.items() if by[0] in kept}
            self._changed.notify_all()
        self._control.say("switched", pause_ns=0, **self._stand(message))
        freed.clear()  # Giving 100 MB back takes milliseconds, and nobody waits for it here.

    def _move_if_due(self) -> None:
        """Begin to copy once the clock is reached and everybody has accepted it; locked."""
        pending = self._pending
        if pending is None or pending.clock is None or not pending.told or pending.started:
            return
        if self._version >= pending.clock:
            pending.started = True
            threading.Thread(target=self._move, args=(pending,), daemon=True).start()

    def _move(self, pending: _Pending) -> None:
        began = time.monotonic_ns()
        assert self._store is not None
        own = [move for move in pending.moves if move.source == self._id]
        stand = {"version": self._version, "puts": self._puts}
        count, wrong = copy_out(self._store, self._peers, pending.placement, own, stand)
        fields = {"generation": pending.placement.generation, **stand}
        if wrong:
            self._control.say("failed", why=wrong, **fields)
        else:
            copy_ns = time.monotonic_ns() - began
            self._control.say("moved", bytes=count, copy_ns=copy_ns, **fields)

    # --- connections ------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        channel = admit(connection, self._settings.secret)
        if channel is None:
            return
        try:
            while True:
                message = channel.receive(Patience(math.inf, "a request"))
                try:
                    self._answer(channel, message)
                except (RequestFailed, Refused, Late) as error:
                    channel.skip(Patience(self._settings.wait_s, "the payload"))
                    channel.send({"type": "error", "why": self._failed or str(error)})
        except (Broken, Late):
            pass
        channel.close()

    def _answer(self, channel: Channel, message: Message) -> None:
        patience = Patience(self._settings.wait_s, f"server {self._id}: the other workers")
        match message["type"]:
            case "push":
                self._push(channel, message, patience)
            case "pull":
                self._pull(channel, message, patience)
            case "put":
                self._put(channel, message, patience)
            case "chunks":
                self._take_chunks(channel, message, patience)
            case "late":
                self._take_late(channel, message, patience)
            case _:
                pass  # `i-am`, and what a later version says.

    def _wait(self, condition: object, patience: Patience) -> None:
        """Wait until `condition()` holds; locked.

        Raises:
            RequestFailed: This server has failed meanwhile.
            Late: It does not hold in time.
        """
        assert callable(condition)
        while not condition():
            if self._failed:
                raise RequestFailed(self._failed)
            self._changed.wait(patience.slice_s())

    def _reached(self, generation: int, patience: Patience) -> tuple[Store, Placement]:
        """Wait for a placement that the other side has heard of already; locked."""
        self._wait(
            lambda: self._placement is not None and self._placement.generation >= generation,
            patience,
        )
        assert self._store is not None
        assert self._placement is not None
        return self._store, self._placement

    # --- values out and in ------------------------------------------------------------------------

    def _pull(self, channel: Channel, message: Message, patience: Patience) -> None:
        generation, puts = int(message["generation"]), int(message["puts"])
        with self._changed:
            store, _ = self._reached(generation, patience)
            self._wait(lambda: self._puts >= puts or self._is_first(message["worker"]), patience)
            answer, own = self._stand_for(generation)
            answer["updates"] = max((kept.updates for kept in own), default=0)
            parts: list[memoryview] = []
            if self._puts < puts:
                answer["type"] = "again"  # Whoever was to put them has ended: it is the first now.
            elif answer["type"] == "values":
                parts = [part for kept in own for part in kept.parts(state=message["state"])]
            if store.spec.asynchronous:  # Others go on meanwhile.
                parts = [memoryview(bytes(part)) for part in parts]
        channel.send(answer, parts)

    def _put(self, channel: Channel, message: Message, patience: Patience) -> None:
        generation, state = int(message["generation"]), bool(message["state"])
        with self._changed:
            store, _ = self._reached(generation, patience)
            incoming = {chunk: store.fresh(chunk) for chunk in self._layouts[generation]}
        parts = [part for kept in incoming.values() for part in kept.parts(state=state)]
        expect(message, parts)
        channel.read_into(parts, patience)
        with self._changed:
            self._wait(lambda: not self._frozen(incoming), patience)
            answer, _ = self._stand_for(generation)
            if answer["type"] == "values":
                for chunk, kept in incoming.items():
                    store.kept[chunk].take(kept, int(message["updates"]), state=state)
                self._puts = answer["puts"] = int(message["puts"])
                self._changed.notify_all()
        channel.send(answer)

    def _stand_for(self, generation: int) -> tuple[Message, list[Kept]]:
        """Return the answer to a request laid out for `generation`, and what it is about; locked.

        Without common steps a request may be overtaken by a change: it is for the worker to repeat.
        """
        assert self._store is not None
        assert self._placement is not None
        answer = {
            "type": "values" if self._placement.generation == generation else "again",
            "generation": self._placement.generation,
            "workers": list(self._placement.workers),
            "version": self._version,
            "puts": self._puts,
        }
        own = self._layouts[self._placement.generation]
        return answer, [self._store.kept[chunk] for chunk in own]

    def _is_first(self, worker: int) -> bool:
        return self._placement is not None and self._placement.workers[:1] == (worker,)

    def _push(self, channel: Channel, message: Message, patience: Patience) -> None:
        worker, generation = int(message["worker"]), int(message["generation"])
        with self._changed:
            store, placement = self._reached(generation, patience)
            seen = self._seen.get((worker, DIRECT), 0) >= message["seq"]
        hypers = [Hyper(*hyper) for hyper in message["hypers"]]
        if store.spec.asynchronous:
            self._push_async(channel, message, hypers, patience)
            return
        if generation != placement.generation or worker not in placement.workers:
            reason = f"worker {worker} pushes in generation {generation}, which is over"
            raise RequestFailed(reason)
        own = self._layouts[generation]
        parts = [view(store.gradients[worker][chunk]) for chunk in own]
        if seen:  # Its connection broke after we had everything: what it waits for is the answer.
            channel.skip(patience)
        else:
            expect(message, parts)
            channel.read_into(parts, patience)
        with self._changed:
            if not seen:
                if message["version"] != self._version:
                    reason = f"worker {worker} is at version {message['version']}, server "
                    raise RequestFailed(f"{reason}{self._id} at {self._version}")  # noqa: EM102
                self._seen[worker, DIRECT] = message["seq"]
                self._pushed[worker] = hypers
                self._update_if_complete()
            self._wait(lambda: self._version > message["version"], patience)
            answer = {"type": "values", "version": self._version, "hold": self._hold}
        channel.send(answer, [view(store.kept[chunk].values) for chunk in own])

    def _update_if_complete(self) -> None:
        """Do the step once every worker has pushed, unless the clock holds it; locked."""
        store, placement, pending = self._store, self._placement, self._pending
        if store is None or placement is None or store.spec.asynchronous or not placement.workers:
            return
        if any(worker not in self._pushed for worker in placement.workers):
            return
        if pending is not None and pending.clock is not None and self._version >= pending.clock:
            return
        hypers = self._pushed[placement.workers[0]]
        if any(self._pushed[worker] != hypers for worker in placement.workers):
            self._failed = "the workers' learning rates or other options differ"
            self._changed.notify_all()
            return
        divisor = len(placement.workers) if store.spec.average else 1
        for chunk in store.kept:
            gradients = [store.gradients[worker][chunk] for worker in placement.workers]
            store.update(chunk, gradients, hypers, divisor)
        self._version += 1
        self._pushed.clear()
        self._hold = None
        if pending is not None and pending.clock == self._version:
            self._hold = [pending.placement.generation, self._version]
        self._move_if_due()
        self._changed.notify_all()

    # --- asynchronous pushes ----------------------------------------------------------------------

    def _push_async(
        self, channel: Channel, message: Message, hypers: list[Hyper], patience: Patience
    ) -> None:
        with self._changed:
            store = self._store
            assert store is not None
            layout = self._layouts[int(message["generation"])]
            known = store.gradients.get(int(message["worker"]), {})
            buffers = {
                chunk: known[chunk] if chunk in known else store.empty(chunk) for chunk in layout
            }
        parts = [view(buffers[chunk]) for chunk in layout]
        expect(message, parts)
        channel.read_into(parts, patience)
        version = self._apply(buffers, message, hypers, patience)
        channel.send({"type": "values", "version": version, "hold": None}, parts)

    def _apply(
        self, buffers: dict[int, Tensor], message: Message, hypers: list[Hyper], patience: Patience
    ) -> int:
        """Update the chunks in `buffers` with them, and fill them with the newest values.

        A push that reaches chunks on their way waits here until they have arrived ("the PS buffers
        push or pull requests from workers"), and what is elsewhere by then is asked of that server
        ("and redirects them to the new PS": DL2, footnote 2). One that was here before (its
        connection broke) only asks for the values.

        Returns:
            The version of this server afterwards.

        Raises:
            RequestFailed: The push was handed on too often, or this server has failed meanwhile.
        """
        by, hops = (int(message["worker"]), int(message.get("via", DIRECT))), message.get("hops", 0)
        with self._changed:
            self._wait(lambda: not self._frozen(buffers), patience)
            store, placement = self._store, self._placement
            assert store is not None
            assert placement is not None
            fresh = self._seen.get(by, 0) < message["seq"]
            self._seen[by] = max(self._seen.get(by, 0), message["seq"])
            away: dict[int, list[int]] = {}
            for chunk, buffer in buffers.items():
                if chunk not in store.kept:
                    away.setdefault(self._forwarded[chunk], []).append(chunk)
                    continue
                if fresh:
                    store.update(chunk, [buffer], hypers, 1)
                buffer.copy_(store.kept[chunk].values)
            if fresh and not hops:  # A server without chunks has a clock as well.
                self._version += 1
                self._move_if_due()
            version = self._version
        for server, chunks in away.items():
            if hops >= HOPS_MAX:
                reason = f"a late push was handed on {hops} times"
                raise RequestFailed(reason)
            header = {
                "type": "late",
                "generation": placement.generation,
                "chunks": chunks,
                "worker": by[0],
                "via": self._id,
                "seq": message["seq"],
                "hypers": hypers,
                "hops": hops + 1,
            }
            parts = [view(buffers[chunk]) for chunk in chunks]
            self._peers.ask(server, placement, header, parts, parts)
        return version

    def _frozen(self, chunks: Mapping[int, object]) -> bool:
        pending = self._pending
        return (
            pending is not None
            and pending.started
            and any(move.source == self._id and move.chunk in chunks for move in pending.moves)
        )

    def _take_late(self, channel: Channel, message: Message, patience: Patience) -> None:
        with self._changed:
            store, _ = self._reached(int(message["generation"]), patience)
            buffers = {chunk: store.empty(chunk) for chunk in message["chunks"]}
        parts = [view(buffer) for buffer in buffers.values()]
        expect(message, parts)
        channel.read_into(parts, patience)
        hypers = [Hyper(*hyper) for hyper in message["hypers"]]
        self._apply(buffers, message, hypers, patience)
        channel.send({"type": "values"}, parts)

    def _take_chunks(self, channel: Channel, message: Message, patience: Patience) -> None:
        with self._changed:
            pending = self._pending
            if pending is None or pending.placement.generation != message["generation"]:
                reason = f"generation {message['generation']} is called off"
                raise RequestFailed(reason)
            kept = [pending.incoming[chunk] for chunk in message["chunks"]]
        parts = [part for each in kept for part in each.parts(state=True)]
        expect(message, parts)
        channel.read_into(parts, patience)
        for each, updates in zip(kept, message["updates"], strict=True):
            each.updates = updates
        pending.version = max(pending.version, int(message["version"]))
        pending.puts = max(pending.puts, int(message["puts"]))
        channel.send({"type": "took", "generation": message["generation"]})


def _say(text: str) -> None:
    print(f"skep ps: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Serve; SIGTERM moves everything elsewhere first, a second one ends at once."""
    parser = argparse.ArgumentParser(prog="python -m skep_ps.server", description=main.__doc__)
    parser.add_argument("--coordinator", help="HOST:PORT, instead of SKEP_PS")
    parser.add_argument("--exit-on-term", action="store_true", help="SIGTERM ends it at once")
    options = parser.parse_args()
    environ = dict(os.environ)
    if options.coordinator:
        environ["SKEP_PS"] = options.coordinator
    torch.set_num_threads(1)  # One server is one core; there are as many servers as wanted.
    try:
        server = Server(settings(environ))
    except (ParameterServerError, Broken, Refused) as error:
        _say(str(error))
        return 1

    def leave(_signal: int, _frame: object) -> None:
        if options.exit_on_term:
            os._exit(128 + signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Thread(target=server.leave, daemon=True).start()

    signal.signal(signal.SIGTERM, leave)
    os._exit(server.run())  # Without waiting for threads in a send to somebody who does not read.


if __name__ == "__main__":
    sys.exit(main())
