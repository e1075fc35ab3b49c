"""A store of a version without accounts is taken over whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from skep.units import Instant
from skep.wire import subjects
from skep_services.adapters.nats_access import (
    ADMISSION_SERVICE,
    BOOTSTRAP,
    OPERATOR,
    SERVICES_ACCOUNT,
    in_one_account,
)
from skep_services.adapters.nats_facts import NatsFactLog
from skep_services.adapters.nats_store import StoreError, move_streams
from skep_services.adapters.nats_streams import STREAM_PLANS, bootstrap_streams
from tests.adapters.worlds import Inbox, Placed, RealCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.adapters]


def log_of(cluster: RealCluster, bus: object) -> NatsFactLog:
    return NatsFactLog(
        bus,  # type: ignore[arg-type]
        stream=subjects.ADMISSION,
        subject=subjects.ADMISSION_FACTS,
        service=ADMISSION_SERVICE,
        facts=Placed,
        end=cluster.marker.parent / "log-end",
    )


async def test_streams_of_an_earlier_version_stay_readable_and_grow_on(tmp_path: Path) -> None:
    before = RealCluster(tmp_path, in_one_account)
    await before.start()
    tenant = await before.bus("vc-ml")
    for number in range(3):
        await tenant.publish(subjects.submit("ml"), b"spec", f"k{number}", {})
    log = log_of(before, await before.bus(ADMISSION_SERVICE))
    assert [record async for record in log.replay()] == []
    await log.begin_epoch("o1", Instant(1))
    await log.append([Placed("j1")], {"SUBMIT": 1}, Instant(2))
    await before.close()
    store = before.server.folder / "store"
    assert (store / "jetstream" / "$G").is_dir()

    after = RealCluster(tmp_path)
    assert move_streams(store)
    assert not move_streams(store), "nothing is left to be moved"
    await after.start()
    try:
        tenant = await after.bus("vc-ml")
        assert await tenant.publish(subjects.submit("ml"), b"spec", "k3", {}) == 4
        read = Inbox()
        admission = await after.bus(ADMISSION_SERVICE)
        await admission.follow("SUBMIT", 0, read.deliver)
        assert [one.sequence for one in await read.wait(4)] == [1, 2, 3, 4]
        log = log_of(after, admission)
        facts = [fact async for record in log.replay() for fact in record.facts]
        assert Placed("j1") in facts
        await log.begin_epoch("o2", Instant(3))
        await log.append([Placed("j2")], {"SUBMIT": 2}, Instant(4))
        assert not after.fatal
    finally:
        await after.close()


async def test_two_sets_of_streams_are_left_alone(tmp_path: Path) -> None:
    accounts = [tmp_path / "jetstream" / name for name in ("$G", SERVICES_ACCOUNT)]
    for account in accounts:
        (account / "streams" / "SUBMIT").mkdir(parents=True)
    with pytest.raises(StoreError, match="both hold streams"):
        move_streams(tmp_path)
    assert all((account / "streams" / "SUBMIT").is_dir() for account in accounts)


async def test_an_empty_account_gives_way(tmp_path: Path) -> None:
    (tmp_path / "jetstream" / "$G" / "streams" / "SUBMIT").mkdir(parents=True)
    (tmp_path / "jetstream" / SERVICES_ACCOUNT / "streams").mkdir(parents=True)
    assert move_streams(tmp_path)
    assert (tmp_path / "jetstream" / SERVICES_ACCOUNT / "streams" / "SUBMIT").is_dir()


async def test_a_new_store_has_nothing_to_move(tmp_path: Path) -> None:
    assert not move_streams(tmp_path)


async def test_a_store_that_was_not_moved_is_an_alarm(tmp_path: Path) -> None:
    """Nothing begins anew beside streams that the new account does not see."""
    before = RealCluster(tmp_path, in_one_account)
    await before.start()
    await before.close()
    after = RealCluster(tmp_path)
    await after.server.start()
    await after.server.wait_healthy(BOOTSTRAP)
    with pytest.raises(Exception, match="does not exist"):
        await bootstrap_streams(await after.bus(BOOTSTRAP), after.marker)
    await after.close()


async def test_a_stream_of_submissions_without_people_takes_their_subjects_in(
    tmp_path: Path,
) -> None:
    """A store of a version that knew only virtual clusters is widened, and refused by nobody."""
    cluster = RealCluster(tmp_path)
    await cluster.server.start()
    await cluster.server.wait_healthy(BOOTSTRAP)
    bus = await cluster.bus(BOOTSTRAP)
    by_vc = tuple(f"skep.v1.{kind}.*" for kind in ("submit", "cancel", "ask", "search"))
    earlier = tuple(
        msgspec.structs.replace(plan, subjects=by_vc) if plan.name == subjects.SUBMIT else plan
        for plan in STREAM_PLANS
        if plan.name != subjects.ACCESS
    )
    await bootstrap_streams(bus, cluster.marker, plans=earlier)
    tenant = await cluster.bus("vc-ml")
    assert await tenant.publish(subjects.submit("ml"), b"spec", "k1", {}) == 1

    await bootstrap_streams(bus, cluster.marker)
    operator = await cluster.bus(OPERATOR)
    try:
        assert await operator.publish(subjects.submit("ml", "ann"), b"spec", "k2", {}) == 2
        read = Inbox()
        admission = await cluster.bus(ADMISSION_SERVICE)
        await admission.follow(subjects.SUBMIT, 0, read.deliver)
        assert [one.subject for one in await read.wait(2)] == [
            subjects.submit("ml"),
            subjects.submit("ml", "ann"),
        ]
        assert not cluster.fatal
    finally:
        await cluster.close()
