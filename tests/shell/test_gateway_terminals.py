"""Sessions at the gateway: WebSockets, a memory bus, and an agent that says what a test wants."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from skep.wire import codec, subjects, terminal
from skep.wire.roles import Role
from skep.wire.terminal import DATA_BYTES_MAX, Frame, Kind, Open, Over
from skep_services.gateway import limits, terminals
from skep_services.gateway.authentication import BEARER_PROTOCOL, TERMINAL_PROTOCOL
from skep_services.ports import Delivery
from tests.gateway_kit import DEADLINE_S, Client, House, error, opened, submitted

pytestmark = pytest.mark.asyncio


class Agent:
    """The agent of a node: it keeps what it hears, and says what a test wants."""

    def __init__(self, house: House, node: str = "node-1") -> None:
        self._house, self._node = house, node
        self._heard: asyncio.Queue[Frame] = asyncio.Queue()
        self._number = 0
        self.session = self.asker = ""

    async def open(self) -> None:
        await self._house.cluster.bus.listen(subjects.terminal(self._node), self._take)

    async def _take(self, delivery: Delivery) -> None:
        frame = terminal.unpack_from_bus(delivery.payload)
        assert frame is not None
        if frame.kind is Kind.OPEN:
            self.session, self._number = frame.session, 0
            self.asker = terminal.OPEN.decode(frame.body).asker
        self._heard.put_nowait(frame)

    async def hear(self, kind: Kind) -> Frame:
        """Return the next frame, which must be of a kind; signs of life are passed over."""
        async with asyncio.timeout(DEADLINE_S):
            while (frame := await self._heard.get()).kind is Kind.ALIVE and kind is not Kind.ALIVE:
                pass
        assert frame.kind is kind
        return frame

    async def say(
        self, kind: Kind, body: bytes = b"", *, number: int = 0, session: str = ""
    ) -> None:
        self._number = number or self._number + 1
        name = session or self.session
        frame = Frame(kind, body, name, self._number)
        subject = subjects.session(self.asker, self._node, self.session)
        await self._house.cluster.bus.send(subject, terminal.pack_for_bus(frame), {})


class Person:
    """A client's end of a session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, kind: Kind, body: bytes = b"") -> None:
        await self.socket.send_bytes(terminal.pack(Frame(kind, body)))

    async def hear(self, kind: Kind) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            message = await self.socket.receive()
        assert message.type is aiohttp.WSMsgType.BINARY, message
        frame = terminal.unpack(message.data)
        assert frame is not None
        assert frame.kind is kind, frame
        return frame.body

    async def over(self) -> Over:
        over = terminal.OVER.decode(await self.hear(Kind.OVER))
        async with asyncio.timeout(DEADLINE_S):
            assert (await self.socket.receive()).type is aiohttp.WSMsgType.CLOSE
        return over


@pytest_asyncio.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        await made.with_nodes(nodes=1)
        yield made


@pytest_asyncio.fixture
async def agent(house: House) -> Agent:
    made = Agent(house)
    await made.open()
    return made


async def running(house: House, **changes: Any) -> str:
    job = await submitted(house, **changes)
    house.cluster.runs(job)
    await house.caught_up()
    return job


def entering(house: House, client: Client, job: str) -> Any:
    return house.session.ws_connect(f"{house.base}/v1/jobs/{job}/terminal", headers=client.headers)


async def begun(person: Person, agent: Agent, **wanted: Any) -> Open:
    """Have a command begin; return what the agent was asked for."""
    await person.say(Kind.OPEN, codec.encode(Open(**{"argv": ("ls",), **wanted})))
    asked = terminal.OPEN.decode((await agent.hear(Kind.OPEN)).body)
    await agent.say(Kind.OPENED)
    await person.hear(Kind.OPENED)
    return asked


async def test_a_session_is_carried_from_end_to_end(house: House, agent: Agent) -> None:
    job = await running(house)
    async with entering(house, house.op, job) as socket:
        person = Person(socket)
        # Where it goes is the gateway's to say, whatever a client says.
        asked = await begun(person, agent, job="j999", attempt=7, asker="operator", rank=0)
        assert (asked.job, asked.attempt, asked.asker, asked.argv) == (job, 1, "gateway", ("ls",))
        await person.say(Kind.INPUT, b"keys")
        assert (await agent.hear(Kind.INPUT)).body == b"keys"
        await person.say(Kind.RESIZE, terminal.SIZE.pack(50, 100))
        assert (await agent.hear(Kind.RESIZE)).number == 3
        await agent.say(Kind.OUTPUT, b"\x1b[31mred")
        assert await person.hear(Kind.OUTPUT) == b"\x1b[31mred"
        await person.say(Kind.USED_UP, terminal.USED.pack(terminal.cost(b"\x1b[31mred")))
        await agent.hear(Kind.USED_UP)
        # Another session's name does not open this one's ear.
        await agent.say(Kind.OUTPUT, b"forged", session="f" * 32, number=3)
        await agent.say(Kind.OVER, codec.encode(Over(code=7)), number=3)
        assert await person.over() == Over(code=7)


async def test_a_client_that_goes_is_told_to_the_agent(house: House, agent: Agent) -> None:
    job = await running(house)
    async with entering(house, house.op, job) as socket:
        await begun(Person(socket), agent)
    await agent.hear(Kind.CLOSE)


@pytest.mark.parametrize(
    "said, why",
    [
        ([(Kind.OUTPUT, b"x", 3)], "the bus lost a part of what node-1 said"),
        ([(Kind.OUTPUT, bytes(DATA_BYTES_MAX), 0)] * 8, "node-1 said more than it may"),
        ([(Kind.OVER, b"{", 0)], "cannot be read"),
    ],
)
async def test_an_agent_that_says_what_cannot_be_ends_its_session(
    house: House, agent: Agent, said: list[tuple[Kind, bytes, int]], why: str
) -> None:
    job = await running(house)
    async with entering(house, house.op, job) as socket:
        person = Person(socket)
        await begun(person, agent)
        for kind, body, number in said:
            await agent.say(kind, body, number=number)
        while True:
            message = await socket.receive(DEADLINE_S)
            frame = terminal.unpack(message.data)
            assert frame is not None
            if frame.kind is Kind.OVER:
                break
        assert why in terminal.read_over(frame.body).text


@pytest.mark.parametrize(
    "kind, body, why",
    [
        (Kind.OUTPUT, b"x", "no part of this"),
        (Kind.OPEN, b"{}", "no part of this"),
        (Kind.USED_UP, terminal.USED.pack(1), "used more than it got"),
        (Kind.USED_UP, b"?", "used more than it got"),
    ],
)
async def test_a_client_that_says_what_cannot_be_is_cut(
    house: House, agent: Agent, kind: Kind, body: bytes, why: str
) -> None:
    job = await running(house)
    async with entering(house, house.op, job) as socket:
        person = Person(socket)
        await begun(person, agent)
        await person.say(kind, body)
        over = await person.over()
        assert over.reason == "bad-value"
        assert why in over.text
    await agent.hear(Kind.CLOSE)


async def test_more_input_than_the_agent_takes_ends_the_session(house: House, agent: Agent) -> None:
    job = await running(house)
    async with entering(house, house.op, job) as socket:
        person = Person(socket)
        await begun(person, agent)
        for _ in range(8):
            await person.say(Kind.INPUT, bytes(DATA_BYTES_MAX))
        assert (await person.over()).text == "the client said more than it may"


async def test_silence_of_either_end_ends_a_session(
    house: House, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await running(house)
    monkeypatch.setattr(terminal, "ALIVE_EVERY_S", 0.02)
    monkeypatch.setattr(terminal, "OPEN_WITHIN_S", 0.05)
    async with entering(house, house.op, job) as socket:
        person = Person(socket)
        await person.say(Kind.OPEN, codec.encode(Open(argv=("ls",))))
        over = await person.over()
        assert (over.reason, over.text) == ("node-away", "node-1 does not answer")
    await agent.hear(Kind.OPEN)
    await agent.hear(Kind.CLOSE)
    monkeypatch.setattr(terminal, "OPEN_WITHIN_S", 10.0)
    monkeypatch.setattr(terminal, "SILENT_S", 0.1)
    async with entering(house, house.op, job) as socket:
        person = Person(socket)
        await begun(person, agent)
        over = await person.over()
        assert over.reason == "session-lost"
        assert over.text in {"the client is silent", "node-1 has not been heard for 0 s"}


async def test_what_cannot_be_entered_is_said_in_one_line(house: House, agent: Agent) -> None:
    waiting = await submitted(house, name="waits")
    job = await running(house, name="runs")

    async def refused(name: str, wanted: bytes) -> Over:
        async with entering(house, house.op, name) as socket:
            person = Person(socket)
            await person.say(Kind.OPEN, wanted)
            return await person.over()

    ls = codec.encode(Open(argv=("ls",)))
    over = await refused(waiting, ls)
    assert over.reason == "not-running"
    assert over.text.endswith(f": it has no process that runs (skep why {waiting})")
    over = await refused(job, codec.encode(Open(argv=("ls",), rank=4)))
    assert (over.reason, over.text) == ("no-rank", f"{job} has no rank 4: it has ranks 0 to 0")
    assert (await refused(job, b"{}")).text == "there is no command to run"
    assert (await refused(job, b"[")).reason == "bad-value"
    told = error(await house.op.get(f"/v1/jobs/{job}/terminal", 400))
    assert told[0] == "bad-value"
    assert error(await house.op.get("/v1/jobs/j999/terminal", 404))[0] == "unknown-job"


async def test_only_who_may_enters(house: House, agent: Agent) -> None:
    ann = await house.as_person("ann", {"nlp": Role.SUBMITTER})
    job = (await ann.json("POST", "/v1/jobs", 201, {"name": "anns", "vc": "nlp", "command": "x"}))[
        "job"
    ]
    house.cluster.runs(job)
    of_vc = await running(house, name="ours", vc="nlp")
    await house.caught_up()
    manager = await house.as_person("meg", {"nlp": Role.MANAGER})
    viewer = await house.as_person("vic", {"nlp": Role.VIEWER})
    path = "/v1/jobs/{}/terminal"
    for client, name, status in (
        (ann, job, 400),  # No WebSocket; it may.
        (house.op, job, 400),
        (manager, job, 403),  # It would read what ann keeps secret.
        (house.nlp, job, 403),
        (viewer, job, 403),
        (house.nlp, of_vc, 400),  # Its own: nobody else submitted it.
        (manager, of_vc, 403),
        (house.vision, of_vc, 404),
        (house.nobody, of_vc, 401),
    ):
        await client.get(path.format(name), status)
    told = error(await manager.get(path.format(job), 403))
    assert told[0] == "not-its-owner"


async def test_sessions_are_counted(
    house: House, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await running(house, vc="nlp")
    monkeypatch.setattr(terminals, "SESSIONS_MAX", 1)
    async with entering(house, house.nlp, job) as socket:
        await begun(Person(socket), agent)
        with pytest.raises(aiohttp.WSServerHandshakeError, match="429"):
            async with entering(house, house.nlp, job):
                pass
        near = await house.nlp.get("/v1/limits")
        assert near["near"] == ["VC nlp met its limits at the gateway 1 times since its start"]
        monkeypatch.setattr(terminals, "ALL_MAX", 1)
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            async with entering(house, house.op, job):
                pass
    assert limits.MOST["sessions"] == limits.SESSIONS_MAX


async def test_a_gateway_that_ends_says_so(house: House, agent: Agent) -> None:
    job = await running(house)
    async with entering(house, house.op, job) as socket:
        person = Person(socket)
        await begun(person, agent)
        stopping = asyncio.create_task(house.stop())
        over = await person.over()
        assert (over.reason, over.text) == ("session-lost", "the gateway is being ended")
        await stopping
    await house.start()


def told_by(token: str) -> str:
    """Return the name of the protocol in which a browser sends a token."""
    return BEARER_PROTOCOL + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


async def test_a_browser_names_its_token_as_a_protocol(house: House, agent: Agent) -> None:
    job = await running(house)
    path = f"{house.base}/v1/jobs/{job}/terminal"
    offered = (TERMINAL_PROTOCOL, told_by("nlp-token"))
    async with house.session.ws_connect(path, protocols=offered) as socket:
        # The one that has the token is not said back.
        assert socket.protocol == TERMINAL_PROTOCOL
        await begun(Person(socket), agent)
    for wrong in (told_by("nobody"), BEARER_PROTOCOL + "!", BEARER_PROTOCOL, "other"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await house.session.ws_connect(path, protocols=(TERMINAL_PROTOCOL, wrong))
        assert refused.value.status == 401
    # A request that opens no session has no use for it.
    told = {"Sec-WebSocket-Protocol": told_by("op")}
    async with house.session.get(f"{house.base}/v1/jobs", headers=told) as answer:
        assert answer.status == 401
