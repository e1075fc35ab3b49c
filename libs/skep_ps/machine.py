"""The coordinator's decisions, pure: which members the job has, and when it changes.

    gathering --all are there--> running <--> one scaling at a time --> over | failed

A scaling (server or worker, in or out) goes through five phases; until the third is over it can be
called off by anybody's death or delay, and nothing has happened:

    prepare  everyone connects to the newcomer and lays out its buffers; a new server allocates its
             memory and touches it                                   -> ready
    probe    versions are read, and the round trip is measured       -> probed
    clock    clock = newest version + 2 + ceil(round trip / step): the servers accept if they are
             before it, else again with twice the margin             -> accepted | late
    move     at the clock the servers copy what moves, and keep it   -> moved
             a worker that has everything of that version waits      -> held
    switch   decided: everybody takes the new placement              -> switched

It remembers nothing on disk. Its state is the newest placement that any member has switched to, so
one that is started again asks the members, and repeats `switch` to all: recovery is the last phase
of the latest scaling. A scaling that no member has switched to is called off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from skep_ps.assign import moves, spread
from skep_ps.members import (
    ANSWERS,
    LIMITS,
    Close,
    Effect,
    Finish,
    Key,
    Member,
    Note,
    Request,
    Role,
    Scaling,
    Send,
    Wanted,
    about,
    changed,
    clocks,
    keys_of,
    loads,
    name_of,
    newest,
    outcome,
    roster,
    wire,
)
from skep_ps.placement import Placement, Spec
from skep_ps.wire import Message

SECOND = 1_000_000_000
MARGIN = 2
"""Updates that a clock is ahead of the newest version, beside those of the round trip (DL2)."""
IN_FLIGHT_MAX = 4
"""Of those at most: another try costs a round trip, a far clock all its updates."""
MARGIN_MAX = 1 << 20
TRIES_MAX = 3
"""How often a scaling is begun that somebody's delay or reconnection called off."""
QUEUE_MAX = 64
HISTORY_MAX = 256


class Coordinator:
    """One job's. Every method returns what to do, in order; `now` is in nanoseconds."""

    def __init__(self, wanted: Wanted, now: int) -> None:
        self.wanted = wanted
        self.state: Literal["gathering", "running", "over", "failed"] = "gathering"
        self.spec: Spec | None = None
        self.placement: Placement | None = None
        self.members: dict[Key, Member] = {}
        self.queue: list[Request] = []
        self.scaling: Scaling | None = None
        self.history: list[Message] = []
        self._generation = 0  # the highest ever used
        self._recovering = wanted.recover
        self._since = now
        self._ids: dict[str, int] = {"server": 0, "worker": -1}
        self._early: list[tuple[int, Message]] = []
        self._effects: list[Effect] = []

    # --- the ways in ------------------------------------------------------------------------------

    def heard(self, link: int, message: Message, now: int) -> list[Effect]:
        """Take a message from a connection that has proved itself.

        Args:
            link: The number of the connection.
            message: The message.
            now: The present time (ns).
        """
        if self.state in {"over", "failed"}:
            return []
        kind = message["type"]
        member = self._by_link(link)
        if kind == "hello":
            self._hello(link, message, now)
        elif kind == "status":
            self._send(link, self.status())
        elif kind == "remove":
            self._ask(link, message)
        elif member is None:
            self._send(link, {"type": "refused", "why": f"{kind} before hello"})
        elif kind == "leave":
            self._request(Request("remove", member.key, link))
        elif kind == "bye":
            self._gone(member, "is done", now)
        else:
            self._answer(member, message, now)
        return self._settled(now)

    def lost(self, link: int, now: int) -> list[Effect]:
        """A connection has ended; its member may come back within `lost_s`."""
        member = self._by_link(link)
        self._early = [each for each in self._early if each[0] != link]
        for request in (*self.queue, *((self.scaling.request,) if self.scaling else ())):
            request.asker = None if request.asker == link else request.asker
        if member is None or self.state in {"over", "failed"}:
            return []
        member.link = None
        member.lost_at = now
        if not self._belongs(member):
            self._note(f"{name_of(member.key)} is lost")
            self._forget(member, "the newcomer is lost", now)
        elif self.scaling is not None and self.scaling.phase != "switch":
            self._call_off(f"the connection to {name_of(member.key)} is lost", now, again=True)
        return self._settled(now)

    def tick(self, now: int) -> list[Effect]:
        """Time has passed."""
        if self.state in {"over", "failed"}:
            return []
        for member in list(self.members.values()):
            gone = member.lost_at is not None and now >= member.lost_at + self._ns("lost_s")
            if gone and self.state == "running":
                self._gone(member, "is lost", now, died=True)
        scaling = self.scaling
        if scaling is not None and (due := self._due(scaling)) is not None and now >= due:
            left = ", ".join(name_of(key) for key in scaling.waiting)
            why = f"{scaling.phase}: no answer from {left} in time"
            self._call_off(why, now, again=True)
        if self.state == "gathering" and now >= self._gather_due():
            self._stop_gathering(now)
        return self._settled(now)

    def wake_at(self) -> int | None:
        """Return when `tick` has something to do at the earliest.

        Returns:
            A time (ns); None if it has nothing to do before the next message.
        """
        times = [
            m.lost_at + self._ns("lost_s") for m in self.members.values() if m.lost_at is not None
        ]
        if self.scaling is not None and (due := self._due(self.scaling)) is not None:
            times.append(due)
        if self.state == "gathering":
            times.append(self._gather_due())
            if self._recovering and self._early:
                times.append(self._since + self._recover_ns())
        return min(times, default=None)

    def status(self) -> Message:
        """Return what an operator wants to know."""
        return {
            "type": "status",
            "state": self.state,
            **about(self.placement, self.spec, self.scaling),
            "queued": len(self.queue),
            "history": self.history,
        }

    def check(self) -> None:
        """Assert what holds between two events."""
        assert (self.placement is not None) == (
            self.state == "running" or self._generation > 0
        ) or (self.state != "running")
        if self.placement is not None:
            assert set(self.placement.chunks) <= set(self.placement.servers), self.placement
        if self.scaling is not None:
            assert self.state == "running"
            assert self.scaling.waiting, self.scaling.phase
            decided = self.scaling.phase == "switch"
            assert decided == (self.placement == self.scaling.placement), self.scaling

    # --- members ----------------------------------------------------------------------------------

    def _hello(self, link: int, message: Message, now: int) -> None:
        role: Role = "server" if message["role"] == "server" else "worker"
        generation, process = int(message["generation"]), str(message["process"])
        spec = Spec.of(message["spec"]) if message.get("spec") else None
        if spec is not None and self.spec is not None and spec != self.spec:
            self._refuse(link, "its parameters or options differ from the other workers'")
            return
        known = next((m for m in self.members.values() if m.process == process), None)
        if known:
            known.link, known.lost_at = link, None
            known.generation, known.pending = generation, int(message["pending"])
            self._welcome(known, now)
            return
        unknown = not generation and not int(message["pending"])
        if self._recovering and self.state == "gathering" and unknown:
            self._early.append((link, message))  # Ids are known once the members are.
            return
        if generation and self.state == "running":
            self._refuse(link, "it was given up while it was away; the job goes on without it")
            return
        if self.state == "running" and len(self.queue) >= QUEUE_MAX:
            self._refuse(link, f"{QUEUE_MAX} changes wait already")
            return
        self.spec = self.spec or spec
        member = Member(
            role,
            self._id(role, message.get("id")),
            process,
            link,
            (str(message["host"]), int(message["port"])),
            generation,
            int(message["pending"]),
        )
        if generation:
            member.placement = Placement.of(message["placement"])
            if not self._recovering:
                self._recovering, self._since = True, now
        self.members[member.key] = member
        self._generation = max(self._generation, generation, member.pending)
        self._send(link, {"type": "welcome", "id": member.id})
        if self.state == "running":
            self._request(Request("add", member.key))

    def _welcome(self, member: Member, now: int) -> None:
        """Tell a member that was away what it has missed."""
        self._to(member, {"type": "welcome", "id": member.id})
        placement = self.placement
        if placement is None or not member.generation:
            return  # A newcomer waits for its `prepare`; had it been in one, it was called off.
        if member.pending > placement.generation:
            why = "its connection was lost"
            self._to(member, {"type": "called-off", "generation": member.pending, "why": why})
        if member.key not in keys_of(placement):
            if self.scaling is None:
                self._to(member, {"type": "go"})
        elif member.generation < placement.generation:
            self._to(member, self._switch())
        elif self.scaling is not None and member.key in self.scaling.waiting:
            self._done_with(member, now)
        self._to(member, roster(placement))

    def _id(self, role: Role, wished: object) -> int:
        """Return an id that was never used, the wished one if it is such."""
        taken = [member.id for member in self.members.values() if member.role == role]
        if isinstance(wished, int) and wished not in taken:
            fresh = wished > self._ids[role] or self.state == "gathering"
            if fresh:
                self._ids[role] = max(self._ids[role], wished)
                return wished
        self._ids[role] += 1
        return self._ids[role]

    def _gone(self, member: Member, why: str, now: int, *, died: bool = False) -> None:
        """A member has ended for good."""
        self._note(f"{name_of(member.key)} {why}")
        if not self._belongs(member):
            self._forget(member, f"{name_of(member.key)} {why}", now)
        elif member.role == "server":
            self._fail(f"parameter {name_of(member.key)} {why}, and its parameters with it")
        else:
            if self.scaling is not None and self.scaling.phase != "switch":
                self._call_off(f"{name_of(member.key)} {why}", now, again=True)
            assert self.placement is not None
            self.placement = self.placement.without(member.id)
            if self.scaling is not None:
                self.scaling.placement = self.placement
            self._forget(member, why, now)
            if self.placement.workers:
                self._to_all(roster(self.placement))
            elif died:
                self._fail("every worker is lost")
            else:
                self._end("over", "over: every worker is done", {"type": "over"}, 0)

    def _forget(self, member: Member, why: str, now: int) -> None:
        """Take a process out of the books that keeps no parameters."""
        self.members.pop(member.key, None)
        self.queue = [request for request in self.queue if request.who != member.key]
        scaling = self.scaling
        if scaling is None:
            return
        if scaling.phase == "switch":
            self._done_with(member, now)
        elif scaling.request.who == member.key:
            self._call_off(why, now, again=False)

    def _belongs(self, member: Member) -> bool:
        return self.placement is not None and member.key in keys_of(self.placement)

    # --- beginning and recovery -------------------------------------------------------------------

    def _try_begin(self, now: int) -> None:
        begun = any(member.generation for member in self.members.values())
        if self._recovering and (begun or now < self._since + self._recover_ns()):
            self._try_recover(now, late=False)
            return
        self._let_in_early(now)
        servers = sorted(m.id for m in self.members.values() if m.role == "server")
        workers = sorted(m.id for m in self.members.values() if m.role == "worker")
        if len(servers) < self.wanted.servers or len(workers) < self.wanted.workers:
            return
        assert self.spec is not None
        sizes = [chunk.elements for chunk in self.spec.chunks()]
        self.placement = Placement(
            generation=1,
            servers={server: self.members["server", server].at for server in servers},
            workers=tuple(workers),
            chunks=tuple(spread(sizes, servers)),
        )
        self.state, self._generation = "running", 1
        self._note(f"begins with {len(servers)} servers and {len(workers)} workers")
        begin = {"type": "begin", "spec": self.spec.to_wire(), **wire(self.placement)}
        for role in ("server", "worker"):  # The servers first: they answer the workers.
            for member in self._of_role(role):
                member.generation = 1
                self._to(member, begin)

    def _try_recover(self, now: int, *, late: bool) -> None:
        """Go on from what the members say, once all are there that the newest placement names."""
        placement = newest(self.members.values())
        if placement is None:
            return
        missing = [key for key in keys_of(placement) if key not in self.members]
        if missing and not late:
            return
        lost = [name_of(key) for key in missing if key[0] == "server"]
        for worker in [number for role, number in missing if role == "worker"]:
            placement = placement.without(worker)
        if lost or not placement.workers or self.spec is None:
            self._fail(f"the coordinator came back, {', '.join(lost) or 'every worker'} did not")
            return
        self.state, self.placement = "running", placement
        self._note(f"is back at generation {placement.generation}")
        for member in self.members.values():
            newcomer = not member.generation and not self._belongs(member)
            if member.pending > placement.generation or newcomer:
                self._to(
                    member,
                    {
                        "type": "called-off",
                        "generation": member.pending,
                        "why": "the coordinator was away",
                    },
                )
            if newcomer:
                self._request(Request("add", member.key))
        request = Request("add", ("server", min(placement.servers)))
        everyone = {m.key: None for m in self.members.values() if m.generation or self._belongs(m)}
        self.scaling = Scaling(request, placement, "switch", now, now, everyone)
        for key in everyone:
            self._to(self.members[key], self._switch())
            self._to(self.members[key], roster(placement))
        self._let_in_early(now)

    def _let_in_early(self, now: int) -> None:
        self._recovering = False
        while self._early:
            self._hello(*self._early.pop(0), now)

    def _stop_gathering(self, now: int) -> None:
        if self._recovering:
            self._try_recover(now, late=True)
            if self.state != "gathering":
                return
        found = ", ".join(sorted(name_of(key) for key in self.members)) or "nobody"
        wanted = f"{self.wanted.servers} servers and {self.wanted.workers} workers"
        self._fail(f"not all are there: {wanted} are wanted, and there is {found}")

    def _gather_due(self) -> int:
        hurried = self._recovering and any(m.generation for m in self.members.values())
        return self._since + (self._recover_ns() if hurried else self._ns("wait_s"))

    def _recover_ns(self) -> int:
        return 2 * self._ns("lost_s")

    # --- one scaling ------------------------------------------------------------------------------

    def _ask(self, link: int, message: Message) -> None:
        role: Role = "server" if message.get("role") == "server" else "worker"
        key = (role, int(message.get("id", -1)))
        if self.placement is None:
            self._send(link, outcome("the job has not begun"))
        else:
            self._request(Request("remove", key, link))

    def _request(self, request: Request) -> None:
        if len(self.queue) >= QUEUE_MAX:
            self._send(request.asker, outcome(f"{QUEUE_MAX} changes wait already"))
        elif not any(each.who == request.who for each in self.queue):
            self.queue.append(request)

    def _begin_next(self, now: int) -> None:
        if any(member.link is None for member in self.members.values()):
            return  # Somebody may come back; nothing begins without all.
        while self.queue and self.scaling is None:
            request = self.queue.pop(0)
            assert self.placement is not None
            assert self.spec is not None
            newcomer = self.members.get(request.who)
            at = newcomer.at if newcomer else ("", 0)
            placement = changed(self.placement, self.spec, request, at)
            if isinstance(placement, str):
                self._send(request.asker, outcome(placement))
                continue
            self._generation += 1
            self._prepare(request, placement._replace(generation=self._generation), now)

    def _prepare(self, request: Request, placement: Placement, now: int) -> None:
        assert self.placement is not None
        assert self.spec is not None
        everyone = dict.fromkeys((*keys_of(self.placement), request.who))
        self.scaling = Scaling(request, placement, "prepare", now, now, everyone, margin=MARGIN)
        moved = [list(move) for move in moves(self.placement.chunks, placement.chunks)]
        self._note(
            f"generation {placement.generation}: {request.kind} {name_of(request.who)}, "
            f"{len(moved)} chunks move"
        )
        for key in everyone:
            self._to(
                self.members[key],
                {"type": "prepare", "spec": self.spec.to_wire(), "moves": moved, **wire(placement)},
            )

    def _answer(self, member: Member, message: Message, now: int) -> None:
        scaling, kind = self.scaling, message["type"]
        if scaling is None or message.get("generation") != scaling.placement.generation:
            return  # Of a change that was called off, or is over.
        if kind == "failed":
            if scaling.phase != "switch":
                why = f"{name_of(member.key)}: {message.get('why', '')}"
                self._call_off(why, now, again=True)
            return
        if kind == "held":
            scaling.held[member.key] = int(message["version"])
        if kind not in ANSWERS[scaling.phase] or member.key not in scaling.waiting:
            return
        scaling.take(member, message, now)
        self._done_with(member, now)

    def _done_with(self, member: Member, now: int) -> None:
        scaling = self.scaling
        assert scaling is not None
        scaling.waiting.pop(member.key, None)
        if scaling.waiting:
            return
        phase = scaling.phase
        scaling.phases_ns[phase] = scaling.phases_ns.get(phase, 0) + now - scaling.since
        scaling.since = now
        if phase == "prepare":
            self._enter("probe", self._keys_all(scaling))
            self._to_all({"type": "probe", "generation": scaling.placement.generation})
        elif phase == "probe":
            self._set_clock(scaling)
        elif phase == "clock" and scaling.late:
            self._set_clock_later(scaling)
        elif phase == "clock":
            self._enter("move", self._keys_moving(scaling))
            for server in self._servers_before():
                generation = scaling.placement.generation
                self._to(self.members[server], {"type": "move", "generation": generation})
        elif phase == "move":
            self._decide(scaling)
        else:
            self._finish_scaling(scaling, now)

    def _set_clock(self, scaling: Scaling) -> None:
        assert self.spec is not None
        servers = [self.members[key] for key in self._servers_before()]
        step_ns = min((m.step_ns for m in self.members.values() if m.step_ns), default=SECOND)
        ahead = scaling.margin + min(math.ceil(scaling.round_trip_ns / step_ns), IN_FLIGHT_MAX)
        scaling.clocks = clocks(servers, ahead, asynchronous=self.spec.asynchronous)
        scaling.late = False
        self._enter("clock", self._servers_before())
        generation = scaling.placement.generation
        for server in servers:
            clock = scaling.clocks[server.id]
            self._to(server, {"type": "clock", "clock": clock, "generation": generation})

    def _set_clock_later(self, scaling: Scaling) -> None:
        """A server has passed the clock: try one further ahead; workers that wait there go on."""
        passed = max(scaling.clocks.values())
        scaling.margin = min(scaling.margin * 2, MARGIN_MAX)
        self._set_clock(scaling)
        for worker in self._of_role("worker"):
            self._to(
                worker,
                {"type": "released", "version": passed, "generation": scaling.placement.generation},
            )

    def _decide(self, scaling: Scaling) -> None:
        """All that moves is there twice: from here on the new placement is the job's."""
        everyone = self._keys_all(scaling)
        self.placement = scaling.placement
        self._enter("switch", everyone)
        for key in sorted(everyone):  # "server" before "worker": they answer the workers.
            self._to(self.members[key], self._switch())

    def _finish_scaling(self, scaling: Scaling, now: int) -> None:
        self.scaling = None
        for member in list(self.members.values()):
            if member.generation and not self._belongs(member):
                self._to(member, {"type": "go"})
                self.members.pop(member.key)
        if not scaling.phases_ns.get("move"):
            return  # Of a recovery.
        record = scaling.outcome(now, loads(self.placement, self.spec))
        self.history = [*self.history, record][-HISTORY_MAX:]
        self._note(f"generation {scaling.placement.generation} is in force")
        self._send(scaling.request.asker, record)

    def _call_off(self, why: str, now: int, *, again: bool) -> None:
        """Undo a change that is not decided: everybody goes on with the old placement."""
        scaling = self.scaling
        assert scaling is not None
        assert scaling.phase != "switch", "a decided change is never called off"
        self.scaling = None
        self._note(f"generation {scaling.placement.generation} is called off: {why}")
        request = scaling.request
        self._to_all({"type": "called-off", "generation": scaling.placement.generation, "why": why})
        request.tries += 1
        if again and request.tries < TRIES_MAX:
            self.queue.insert(0, request)
            return
        self.history = [
            *self.history,
            {**outcome(why), "kind": request.kind, "who": name_of(request.who)},
        ][-HISTORY_MAX:]
        self._send(request.asker, outcome(why))
        newcomer = self.members.get(request.who)
        if newcomer is not None and not self._belongs(newcomer):
            self.members.pop(newcomer.key)
            self._to(newcomer, {"type": "fail", "why": f"it could not join: {why}"})

    def _due(self, scaling: Scaling) -> int | None:
        # What is decided has no deadline: who does not answer is lost, and that has one.
        name = LIMITS.get(scaling.phase)
        return scaling.since + self._ns(name) if name else None

    def _fail(self, why: str) -> None:
        self._end("failed", f"failed: {why}", {"type": "fail", "why": why}, 1)

    def _end(
        self, state: Literal["over", "failed"], note: str, message: Message, code: int
    ) -> None:
        self.state = state
        self._note(note)
        self._to_all(message)
        self._effects.append(Finish(code))

    def _settled(self, now: int) -> list[Effect]:
        """Do what has become possible; return all effects."""
        if self.state == "gathering":
            self._try_begin(now)
        if self.state == "running" and self.scaling is None:
            self._begin_next(now)
        effects, self._effects = self._effects, []
        return effects

    def _enter(self, phase: str, waiting: dict[Key, None]) -> None:
        assert self.scaling is not None
        self.scaling.phase, self.scaling.waiting = phase, waiting

    def _servers_before(self) -> dict[Key, None]:
        assert self.placement is not None
        return {key: None for key in keys_of(self.placement) if key[0] == "server"}

    def _keys_moving(self, scaling: Scaling) -> dict[Key, None]:
        """Return the members that a decision waits for.

        A worker that is still receiving would find its chunks gone.
        """
        assert self.placement is not None
        assert self.spec is not None
        clock = max(scaling.clocks.values())
        workers = (
            {}
            if self.spec.asynchronous
            else {
                key: None
                for key in keys_of(self.placement)
                if key[0] == "worker" and scaling.held.get(key) != clock
            }
        )
        return self._servers_before() | workers

    def _keys_all(self, scaling: Scaling) -> dict[Key, None]:
        assert self.placement is not None
        keys = (*keys_of(self.placement), scaling.request.who)
        return {key: None for key in keys if key in self.members}

    def _switch(self) -> Message:
        assert self.placement is not None
        scaling = self.scaling
        more = {"version": scaling.version, "puts": scaling.puts} if scaling else {}
        return {"type": "switch", **more, **wire(self.placement)}

    def _of_role(self, role: str) -> Iterator[Member]:
        return (member for member in list(self.members.values()) if member.role == role)

    def _by_link(self, link: int) -> Member | None:
        return next((member for member in self.members.values() if member.link == link), None)

    def _to_all(self, message: Message) -> None:
        for role in ("server", "worker"):
            for member in self._of_role(role):
                self._to(member, message)

    def _to(self, member: Member, message: Message) -> None:
        self._send(member.link, message)

    def _refuse(self, link: int, why: str) -> None:
        self._note(f"refused: {why}")
        self._send(link, {"type": "fail", "why": why})
        self._effects.append(Close(link))

    def _send(self, link: int | None, message: Message) -> None:
        if link is not None:
            self._effects.append(Send(link, message))

    def _note(self, text: str) -> None:
        self._effects.append(Note(text))

    def _ns(self, name: str) -> int:
        return int(getattr(self.wanted, name) * SECOND)
