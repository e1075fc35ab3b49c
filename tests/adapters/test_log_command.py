"""`skep log` on a real bus: foreign messages are found and taken out, records never."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from skep.units import Instant
from skep.wire import subjects
from skep.wire.bearing import RULES
from skep.wire.facts import AllocatorFact, CancelAsked, EpochBegan
from skep_services.adapters import exported
from skep_services.adapters.nats_access import BOOTSTRAP, in_one_account
from skep_services.adapters.nats_api import Answer, StreamInfo, ask, stream_info
from skep_services.adapters.nats_facts import NatsFactLog
from skep_services.cli import exits
from skep_services.cli.main import main
from skep_services.links import Followed
from skep_services.ports import Delivery
from tests.adapters.worlds import DEADLINE_S, RealCluster, eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]

AT = Instant(1_800_000_000_000_000_000)
FORGED = {"v": 1, "prev": "0" * 64, "epoch": 1, "at": 5, "pos": {}, "facts": []}


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RealCluster]:
    """Yield a cluster whose tenants are in the services' account, as they once were."""
    made = RealCluster(tmp_path, in_one_account)
    await made.start()
    monkeypatch.setenv("SKEP_NATS_URL", made.server.url)
    monkeypatch.setenv("SKEP_NATS_USER", BOOTSTRAP)
    monkeypatch.setenv("SKEP_NATS_PASSWORD", made.passwords[BOOTSTRAP])
    monkeypatch.setenv("SKEP_HOME", str(tmp_path))
    yield made
    await made.close()


class Owner:
    """The allocator's log, as its process has it."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.foreign: list[int] = []
        self.facts: list[Any] = []

    async def begin(self, owner: str) -> NatsFactLog:
        """Start a process: replay, and win the epoch."""
        bus = await self.cluster.bus("allocator")
        log = NatsFactLog(
            bus,
            stream=subjects.ALLOC,
            subject=subjects.ALLOC_FACTS,
            service="allocator",
            facts=AllocatorFact,
            end=self.folder / "log-end",
            foreign=lambda _, sequence, __: self.foreign.append(sequence),
        )
        self.facts = [fact async for record in log.replay() for fact in record.facts]
        self.facts += (await log.begin_epoch(owner, AT)).facts
        return log

    async def attack(self) -> None:
        """Have JetStream write its answer into ALLOC: a tenant names that as reply subject."""
        tenant = await self.cluster.bus("vc-ml")
        before = await self.last()
        await tenant.link.send(
            subjects.submit("ml"), b"{}", {"Nats-Expected-Stream": "NOPE"}, subjects.ALLOC_FACTS
        )
        while await self.last() == before:  # noqa: ASYNC110
            await asyncio.sleep(0)  # tidy: allow sleep because the server tells nobody
        await tenant.close()

    async def write(self, payload: bytes) -> None:
        """Write into ALLOC with the rights of its owner."""
        bus = await self.cluster.bus("allocator")
        await bus.publish(subjects.ALLOC_FACTS, payload, "", {})
        await bus.close()

    async def last(self) -> int:
        """Return where ALLOC ends."""
        bus = await self.cluster.bus("operator")
        info: StreamInfo = await stream_info(bus.link, subjects.ALLOC)
        await bus.close()
        return info.state.last_seq


def cancelled(*numbers: int) -> list[CancelAsked]:
    return [CancelAsked(job=f"j{number}") for number in numbers]


async def skep(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Run `skep log` and return its exit code and answer."""
    code = await asyncio.to_thread(main, ["log", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


async def test_an_attack_is_survived_found_and_repaired(
    cluster: RealCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner(cluster, tmp_path)
    log = await owner.begin("o1")
    taken: list[int] = []
    foreign: list[int] = []
    followed = Followed(subjects.ALLOC, 0, lambda _, sequence, __: foreign.append(sequence))

    async def follow(delivery: Delivery) -> None:
        if followed.takes(delivery.payload, delivery.sequence):
            taken.append(delivery.sequence)

    follower = await cluster.bus("advisor")
    await follower.follow(subjects.ALLOC, followed.begin, follow)
    assert await skep(capsys, "check", "--stream", "ALLOC") == (
        exits.OK,
        {
            "ok": True,
            "logs": [
                {
                    "stream": "ALLOC",
                    "messages": 1,
                    "records": 1,
                    "epoch": 1,
                    "sequence": 1,
                    "hash": log._chain.hash,
                    "gaps": 0,
                    "odd": [],
                    "broken": "",
                }
            ],
        },
    )

    await owner.attack()
    await log.append(cancelled(1), {}, AT)
    await owner.attack()
    log = await owner.begin("o2")
    await log.append(cancelled(2), {}, AT)
    await owner.attack()  # The owner does not know of the last one.
    assert owner.foreign == [2, 2, 4]
    await eventually(lambda: taken == [1, 3, 5, 6] and foreign == [2, 4, 7])

    code, told = await skep(capsys, "check")
    odd = {each["stream"]: [one["sequence"] for one in each["odd"]] for each in told["logs"]}
    assert (code, odd) == (
        exits.FAILED,
        {"ADMISSION": [], "ALLOC": [2, 4, 7], "SEARCH": [], "PROFILES": [], "ACCESS": []},
    )
    assert {one["why"] for one in told["logs"][1]["odd"]} == {"it is no record"}
    assert '"err_code":10060' in told["logs"][1]["odd"][0]["begins"]

    code, told = await skep(capsys, "repair")
    assert code == exits.FAILED
    assert [each["sequence"] for each in told["would_take_out"]] == [2, 4, 7]
    assert told["taken_out"] == []

    code, told = await skep(capsys, "repair", "--yes")
    assert (code, told["ok"]) == (exits.OK, True)
    assert [each["sequence"] for each in told["taken_out"]] == [2, 4, 7]
    copies = exported.read(Path(told["copy"]))["ALLOC"]
    assert [each.sequence for each in copies] == [2, 4, 7]
    assert b"10060" in copies[0].payload
    code, told = await skep(capsys, "check", "--stream", "ALLOC")
    assert (code, told["logs"][0]["records"], told["logs"][0]["gaps"]) == (exits.OK, 4, 2)

    await log.append(cancelled(3), {}, AT)
    await owner.begin("o3")
    assert owner.facts == [
        EpochBegan(epoch=1, owner="o1", rules=RULES),
        *cancelled(1),
        EpochBegan(epoch=2, owner="o2", rules=RULES),
        *cancelled(2),
        *cancelled(3),
        EpochBegan(epoch=3, owner="o3", rules=RULES),
    ]
    await eventually(lambda: taken == [1, 3, 5, 6, 8, 9])
    assert not cluster.fatal


async def test_a_damaged_log_is_left_as_it_is(
    cluster: RealCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner(cluster, tmp_path)
    log = await owner.begin("o1")
    for number in range(3):
        await log.append(cancelled(number), {}, AT)
    await owner.attack()
    bootstrap = await cluster.bus(BOOTSTRAP)
    await ask(bootstrap.link, "STREAM.MSG.DELETE.ALLOC", {"seq": 2}, Answer)
    code, told = await skep(capsys, "check", "--stream", "ALLOC")
    assert code == exits.FAILED
    assert "records 3 and 4 at sequences 3 and 4 continue each other" in told["logs"][0]["broken"]
    code, told = await skep(capsys, "repair", "--yes")
    assert code == exits.FAILED
    assert "nothing was taken out: ALLOC is damaged" in told["error"]["text"]
    assert await owner.last() == 5


async def test_what_is_doubtful_is_taken_out_only_if_that_is_said(
    cluster: RealCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner(cluster, tmp_path)
    await owner.begin("o1")
    await owner.write(msgspec.json.encode({**FORGED, "n": 2}))
    code, told = await skep(capsys, "repair", "--yes", "--stream", "ALLOC")
    assert (code, told["taken_out"]) == (exits.FAILED, [])
    assert [one["kind"] for one in told["logs"][0]["odd"]] == ["doubtful"]
    with pytest.raises(Exception, match="`skep log check` shows it"):
        await owner.begin("o2")
    code, told = await skep(capsys, "repair", "--yes", "--doubtful")
    assert (code, [each["kind"] for each in told["taken_out"]]) == (exits.OK, ["doubtful"])
    await owner.begin("o2")


async def test_what_stands_before_the_first_record_stays(
    cluster: RealCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner(cluster, tmp_path)
    await owner.attack()
    await owner.begin("o1")
    code, told = await skep(capsys, "repair", "--yes", "--stream", "ALLOC")
    assert (code, told["taken_out"]) == (exits.OK, [])
    assert [one["removable"] for one in told["logs"][0]["odd"]] == [False]


async def test_only_bootstrap_may_take_anything_out(
    cluster: RealCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    owner = Owner(cluster, tmp_path)
    await owner.begin("o1")
    await owner.attack()
    monkeypatch.setenv("SKEP_NATS_USER", "operator")
    monkeypatch.setenv("SKEP_NATS_PASSWORD", cluster.passwords["operator"])
    code, told = await skep(capsys, "repair", "--yes")
    assert (code, told["error"]["reason"]) == (exits.FAILED, "refused")
    assert "The message stays, and harms nothing" in told["error"]["text"]


async def test_the_tables_are_for_people(
    cluster: RealCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = Owner(cluster, tmp_path)
    await owner.begin("o1")
    await owner.attack()
    assert await asyncio.to_thread(main, ["log", "check"]) == exits.FAILED
    told = capsys.readouterr().out
    assert "ALLOC 2" in told
    assert "`skep log repair` takes out what is foreign" in told
    assert await asyncio.to_thread(main, ["log", "repair"]) == exits.FAILED
    assert "would take out 1 message: say --yes to do it" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["log", "repair", "--yes"]) == exits.OK
    assert "took out 1 message; a copy is in" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["log", "repair", "--yes"]) == exits.OK
    assert capsys.readouterr().err == "nothing to repair\n"


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--yes"),
        ("check", "--doubtful"),
        ("repair", "--from", "x.jsonl"),
        ("repair", "j1"),
        ("mend",),
    ],
)
async def test_wrong_words(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", *words]) == exits.USAGE
    assert capsys.readouterr().err


async def test_no_bus_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SKEP_NATS_URL", raising=False)
    monkeypatch.setenv("SKEP_HOME", str(tmp_path))
    for verb in ("check", "repair"):
        code = await asyncio.wait_for(asyncio.to_thread(main, ["log", verb]), DEADLINE_S)
        assert code == exits.UNREACHABLE
        assert "no cluster runs in" in capsys.readouterr().err
