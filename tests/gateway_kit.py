"""What the gateway's tests share: machines that tell a fold their facts, and a gateway on a bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from skep.ledger.snapshot import keep
from skep.machines.admission import AdmissionMachine
from skep.machines.allocator import AllocatorMachine
from skep.machines.base import Record, Send
from skep.machines.searches import SearchesMachine
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.facts import JobBound, RolesSeen
from skep.wire.node import MemberStepped, NodeJoined, Outcome, RankExit
from skep.wire.reasons import Reason
from skep.wire.roles import Role, Standing
from skep.wire.search_facts import SearchRequest
from skep.wire.spec import JobSpec
from skep_services.adapters.memory import ManualClock, MemoryBroker, MemoryBus
from skep_services.gateway.api import Tokens
from skep_services.gateway.callers import Caller
from skep_services.gateway.fold import Fold
from skep_services.gateway.rows import Job
from skep_services.gateway.server import Gateway
from skep_services.ports import Delivery
from tests.kit import TRACE, Driver, RecordWriter, at, exited, joined, member, spec, started, vcs

Told = tuple[str, Any]
"""A stream's name and one event read from it."""


CHAINS = {
    "cpu": {
        "gpu": "cpu",
        "levels": [{"name": "node", "fanout": 2}, {"name": "rack", "fanout": 2}],
        "node_level": "node",
        "nodes": [{"node": "node-1"}, {"node": "node-2"}],
        "names": {"rack/0": "left"},
    }
}
QUOTA = {"chain": "cpu", "level": "node", "count": 3}
"""A rack of two nodes with two GPUs each, and more nodes than there are."""


TASKS = subjects.submit("")
"""What the subjects begin with on which admission publishes tasks of arrays."""


class Cluster:
    """Real admission and allocator machines; what they record is told to a fold at once.

    `told` keeps every event in the order it happened, so that a test can tell it in another.
    """

    def __init__(self, fold: Fold | None = None) -> None:
        self.admission = Driver(AdmissionMachine, thorough=False)
        self.allocator = Driver(AllocatorMachine, thorough=False)
        self.fold = fold or fresh_fold()
        self.told: list[Told] = []
        self.submissions = 0

    def tell(self, stream: str, event: Any) -> None:
        self.told.append((stream, event))
        self.fold.apply(event, at(0))

    def set_vcs(self, second: float = 0, **gpus: int) -> None:
        self.set_cluster(SetVcs(vcs=vcs(**gpus)), second)

    def set_cluster(self, asked: SetVcs, second: float = 0) -> None:
        self.tell("ADMIN", asked)
        self._record("ADMISSION", "admission", self.admission(asked, second), second)
        self._record("ALLOC", "allocator", self.allocator(asked, second), second)

    def join(self, event: NodeJoined, second: float = 0) -> None:
        self.node(event, second)

    def submit(self, job: JobSpec | bytes, second: float = 1, key: str = "") -> str:
        """Publish a spec; returns the id of the submission."""
        self.submissions += 1
        raw = job if isinstance(job, bytes) else codec.encode(job)
        vc = job.vc if isinstance(job, JobSpec) else "nlp"
        event = codec.Submission(
            job=f"j{self.submissions}", vc=vc, raw=raw, at=at(second), key=key, trace=TRACE
        )
        self.tell("SUBMIT", event)
        self._record("ADMISSION", "admission", self.admission(event, second), second)
        return event.job

    def cancel(self, job: str, second: float = 2, vc: str = "nlp") -> None:
        event = codec.CancelRequest(vc=vc, raw=codec.encode({"job": job}), at=at(second))
        self.tell("SUBMIT", event)
        self._record("ADMISSION", "admission", self.admission(event, second), second)

    def node(self, event: Any, second: float) -> None:
        """An agent says something durable."""
        self.tell("NODE", event)
        self._record("ALLOC", "allocator", self.allocator(event, second), second)

    def runs(self, job: str, attempt: int = 1, second: float = 3) -> None:
        """Every member of an attempt starts and makes its first mini-batch."""
        for node in list(self.allocator.machine.state.jobs[job].members):
            self.node(started(job, attempt, node, at=at(second)), second)
            stepped = MemberStepped(
                node=node, identity=f"id-{node}", job=job, attempt=attempt, at=at(second + 0.5)
            )
            self.node(stepped, second + 0.5)

    def exits(
        self,
        job: str,
        attempt: int = 1,
        second: float = 9,
        outcome: Outcome = Outcome.SUCCEEDED,
        **fields: Any,
    ) -> None:
        """Every member of an attempt is gone."""
        for node in list(self.allocator.machine.state.jobs[job].members):
            ranks = (RankExit(rank=0, code=0 if outcome is Outcome.SUCCEEDED else 1),)
            event = exited(job, attempt, node, outcome, at=at(second), ranks=ranks, **fields)
            self.node(event, second)

    def heard(self, event: Any, second: float) -> None:
        """The allocator hears something no stream carries."""
        self._record("ALLOC", "allocator", self.allocator(event, second), second)

    def tick(self, second: float) -> None:
        """The allocator's timer rings."""
        self._record("ALLOC", "allocator", self.allocator.tick(second), second)

    def _record(self, stream: str, service: str, effects: Sequence[Any], second: float) -> None:
        facts = tuple(effect.fact for effect in effects if isinstance(effect, Record))
        if facts:
            event = codec.Facts(service=service, at=at(second), facts=facts)
            self.tell(stream, event)
            if service == "admission":
                self._record("ALLOC", "allocator", self.allocator(event, second), second)
            else:
                self._record("ADMISSION", "admission", self.admission(event, second), second)
        for effect in effects:
            if isinstance(effect, Send) and effect.subject.startswith(TASKS):
                self.published(effect, second)

    def published(self, send: Send, second: float) -> None:
        """Admission publishes a task of an array as a submission."""
        self.submissions += 1
        event = codec.Submission(
            job=f"j{self.submissions}",
            vc=send.message["vc"],
            raw=codec.encode(send.message),
            at=at(second),
            key=send.headers[subjects.KEY_HEADER],
            trace=TRACE,
        )
        self.tell("SUBMIT", event)
        self._record("ADMISSION", "admission", self.admission(event, second), second)


def fresh_fold() -> Fold:
    """Return a fold with an empty store behind it."""
    return Fold(lambda _: None)


def facts(service: str, *recorded: Any, second: float = 1) -> codec.Facts:
    """Return facts as a follower reads them."""
    return codec.Facts(service=service, at=at(second), facts=recorded)


def bound(job: str = "j1", attempt: int = 1, node: str = "node-1", **fields: Any) -> JobBound:
    """Return the fact that a job got GPU 0 of a node."""
    given = {
        "order": attempt,
        "members": (member(node, (0,)),),
        "master_port": 20000,
        "why": Reason.BEST_FIT_ONE_NODE,
        "at": at(2),
        **fields,
    }
    return JobBound(job=job, attempt=attempt, **given)


def documents(fold: Fold) -> tuple[Any, ...]:
    """Return everything a fold knows but events and their numbers, comparable."""
    jobs = {**fold.active, **fold.arrays, **fold.recent}
    plain = [msgspec.to_builtins(jobs[name]) for name in sorted(jobs)]
    heard = [msgspec.to_builtins(fold.heard[name]) for name in sorted(fold.heard)]
    return plain, heard, [codec.encode(piece) for piece in keep(fold.state)]


def job_of(fold: Fold, name: str) -> Job:
    """Return a job that must be known."""
    job = fold.find(name)
    assert job is not None, name
    return job


def texts(fold: Fold, job: str = "") -> list[str]:
    """Return what the events not yet taken say, of one job if given."""
    return [event.text for event in fold.take().events if not job or event.job == job]


# --- on a bus ------------------------------------------------------------------------------------

TOKENS = {"op": "operator", "nlp-token": "vc-nlp", "vision-token": "vc-vision"}
DEADLINE_S = 120.0


class Spans:
    """A tracer that keeps what it is given: (name, traceparent, attributes)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, Mapping[str, Any]]] = []
        self.roots: list[tuple[str, str, Mapping[str, Any]]] = []

    def root(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        assert start_ns <= end_ns
        self.roots.append((name, trace, attributes))

    def span(
        self, name: str, trace: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any]
    ) -> None:
        assert start_ns <= end_ns
        self.spans.append((name, trace, attributes))

    async def flush(self) -> None:
        await asyncio.sleep(0)


class BusCluster(Cluster):
    """The same machines behind a memory bus: they answer what is published there.

    `fold` sees it all too. `deaf` makes admission hear nothing more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(at(0))
        self.broker = MemoryBroker(self.clock)
        for stream, patterns in subjects.STREAMS.items():
            self.broker.add_stream(stream, patterns)
        self.broker.add_stream(subjects.SECRETS, subjects.SECRET_SUBJECTS)
        self.broker.add_stream(subjects.CODE, subjects.CODE_SUBJECTS)
        self.bus = MemoryBus(self.broker, "services", _raise)
        self.deaf = False
        self.searches = Driver(SearchesMachine)
        self.searches.restart()
        self._records = 0
        self._published = 0
        self._writers: dict[str, RecordWriter] = {}

    async def open(self) -> None:
        await self.bus.follow(subjects.SUBMIT, 0, self._took)
        await self.bus.follow(subjects.ADMIN, 0, self._took)

    async def close(self) -> None:
        await self.bus.close()

    def tell(self, stream: str, event: Any) -> None:
        """Publish a record or an agent's event; what came from a stream is there already."""
        self.fold.apply(event, at(0))
        match stream:
            case "ADMISSION" | "ALLOC":
                service = "admission" if stream == "ADMISSION" else "allocator"
                subject = f"{subjects.PREFIX}.fact.{service}"
                self.store_record(subject, event.facts, event.at)
            case "NODE":
                tag = event.__struct_config__.tag
                self._store(subjects.node_event(event.node, tag), event)
            case _:
                pass

    async def _took(self, delivery: Delivery) -> None:
        if self.deaf:
            return
        event = codec.read(
            delivery.subject, delivery.payload, delivery.headers, delivery.sequence, delivery.at
        )
        if isinstance(event, SearchRequest):
            await self.searched(event)
            return
        effects = self.admission(event)
        for effect in effects:
            if isinstance(effect, Send) and not effect.subject.startswith(TASKS):
                await self.bus.send(effect.subject, codec.encode(effect.message), effect.headers)
        self._record("ADMISSION", "admission", effects, 1)
        if isinstance(event, SetVcs | DrainNode | QuarantineGpu):
            self._record("ALLOC", "allocator", self.allocator(event), 1)

    def published(self, send: Send, second: float) -> None:
        """The stream keeps it, and gives it to admission in its turn."""
        self.broker.store(send.subject, codec.encode(send.message), send.headers)

    async def grant(self, person: str, standing: Standing) -> None:
        """Let admission and searches take a person for something, as the access service says."""
        seen = RolesSeen(person=person, standing=standing)
        self.admission.machine.apply(seen)
        record = facts("admission", seen)
        self.store_record(subjects.ADMISSION_FACTS, record.facts, at(0))
        await self.searched(record)

    async def searched(self, event: Any, second: float = 1) -> None:
        """Have searches decide on an event, and store and send what comes of it."""
        effects = self.searches(event, second)
        facts = [effect.fact for effect in effects if isinstance(effect, Record)]
        if facts:
            self.store_record(subjects.SEARCH_FACTS, facts, at(second))
        for effect in effects:
            if isinstance(effect, Send) and effect.subject.startswith(f"{subjects.PREFIX}.reply"):
                await self.bus.send(effect.subject, codec.encode(effect.message), effect.headers)

    def store_record(self, subject: str, facts: Sequence[Any], at: Instant) -> None:
        """Publish a record of a service, behind those that it has written here so far."""
        writer = self._writers.setdefault(subject, RecordWriter())
        self._publish(subject, writer.record(facts, at))

    def _store(self, subject: str, body: Any) -> None:
        self._publish(subject, codec.encode(body))

    def _publish(self, subject: str, payload: bytes) -> None:
        self._published += 1
        self.broker.store(subject, payload, {subjects.KEY_HEADER: f"k{self._published}"})


def _raise(error: Exception) -> None:
    raise error


class Client:
    """Requests as somebody; `json` checks the status."""

    def __init__(self, session: aiohttp.ClientSession, base: str, token: str) -> None:
        self.session, self.base = session, base
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def json(
        self, method: str, path: str, status: int = 200, body: Any = None, **headers: str
    ) -> Any:
        data = body if body is None or isinstance(body, bytes) else codec.encode(body)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(
            method, self.base + path, data=data, headers={**self.headers, **given}
        ) as answer:
            assert answer.status == status, (answer.status, await answer.text())
            return await answer.json()

    async def get(self, path: str, status: int = 200) -> Any:
        return await self.json("GET", path, status)

    def open(self, path: str, **headers: str) -> Any:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.get(self.base + path, headers={**self.headers, **given})


class PeopleTokens(Tokens):
    """Tokens of a file, and those of people: their names."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        super().__init__(tokens)
        self.people: dict[str, Standing] = {}

    def caller(self, authorization: str) -> Caller | None:
        name = authorization.removeprefix("Bearer ")
        if name in self.people:
            return Caller(name, "", name, self.people[name])
        return super().caller(authorization)


class House:
    """A gateway over a memory bus, with clients of its HTTP."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "read-model.sqlite"
        self.cluster = BusCluster()
        self.spans = Spans()
        self.fatal: list[Exception] = []
        self.base = ""
        self._closing: list[Callable[[], Awaitable[None]]] = []

    async def open(self) -> None:
        await self.cluster.open()
        self.session = aiohttp.ClientSession()
        await self.start()

    async def start(self, bus: MemoryBus | None = None) -> None:
        self.bus = bus or MemoryBus(self.cluster.broker, "gateway", self.fatal.append)
        clock, self.tokens = self.cluster.clock, PeopleTokens(TOKENS)
        self.gateway = Gateway(self.bus, clock, self.spans, self.tokens, self.path, "gateway")
        port = await self.gateway.open("127.0.0.1", 0)
        self.base = f"http://127.0.0.1:{port}"
        self.serving = asyncio.create_task(self.gateway.serve())
        self.op = Client(self.session, self.base, "op")
        self.nlp = Client(self.session, self.base, "nlp-token")
        self.vision = Client(self.session, self.base, "vision-token")
        self.nobody = Client(self.session, self.base, "")

    async def as_person(
        self, name: str, roles: Mapping[str, Role] | None = None, *, operator: bool = False
    ) -> Client:
        """Let a person have roles, by VC, and return a client that is that person."""
        standing = Standing(granted=dict(roles or {}), operator=operator)
        self.tokens.people[name] = standing
        await self.cluster.grant(name, standing)
        return Client(self.session, self.base, name)

    async def stop(self) -> None:
        self.serving.cancel()
        await asyncio.wait((self.serving,))
        await self.gateway.close()
        await self.bus.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def close(self) -> None:
        await self.stop()
        await self.cluster.close()
        await self.session.close()
        assert not self.fatal

    async def caught_up(self) -> None:
        """Return once the gateway has folded and stored everything on the bus."""
        broker, indexer = self.cluster.broker, self.gateway.indexer
        async with asyncio.timeout(DEADLINE_S):
            while any(
                indexer.positions[name] < len(broker.stream(name).messages)
                for name in indexer.positions
            ):
                await asyncio.sleep(0)
                # A loop that never blocks would starve the thread that writes the database.
                await indexer.settle()
            await indexer.settle()

    async def with_nodes(self, nodes: int = 2, gpus: int = 2) -> None:
        """Give the cluster two tenants and some nodes, all of which nlp owns."""
        self.cluster.set_vcs(nlp=nodes * gpus, vision=0)
        for number in range(1, nodes + 1):
            self.cluster.join(joined(f"node-{number}", gpus))
        await self.caught_up()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[House]:
    """A gateway of the test's own, with its file in `folder`."""
    made = House(folder)
    await made.open()
    yield made
    await made.close()


async def submitted(house: House, **changes: Any) -> str:
    """Submit a job that is admitted, and return its id once the gateway has seen what follows."""
    answer = await house.op.json("POST", "/v1/jobs", 201, spec(**changes))
    await house.caught_up()
    return str(answer["job"])


def error(answer: Any) -> tuple[str, list[str]]:
    """Return the reason of an error and the paths of its problems."""
    told = answer["error"]
    assert told["text"]
    return told["reason"], [problem["path"] for problem in told["problems"]]
