"""Which epochs may follow one another in a log: the next, or the late one of a restore."""

from __future__ import annotations

import pytest

from skep.wire.bearing import RULES
from skep.wire.commands import RESTORE_STEP
from skep.wire.facts import EpochBegan
from skep_services.adapters.nats_api import FIRST_EPOCH, first_epoch
from skep_services.adapters.records import Chain
from skep_services.ports import CorruptLogError
from tests.kit import T0

EPOCH = 5


def read(epoch: int) -> int:
    """Return the epoch that a chain is in once it has read the beginning of one behind EPOCH."""
    writer, reader = Chain("ALLOC", EpochBegan), Chain("ALLOC", EpochBegan)
    for chain in (writer, reader):
        chain.resume(9, EPOCH, "0" * 64)
    _, payload = writer.encode((EpochBegan(epoch=epoch, owner="o", rules=RULES),), {}, T0, epoch)
    return reader.read(payload, "record 10").epoch


@pytest.mark.parametrize("epoch", [EPOCH + 1, EPOCH + RESTORE_STEP, 10**15])
def test_the_next_epoch_and_that_of_a_restore_go_on(epoch: int) -> None:
    assert read(epoch) == epoch


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 2, EPOCH + RESTORE_STEP - 1])
def test_any_other_epoch_is_damage(epoch: int) -> None:
    with pytest.raises(CorruptLogError, match=f"epoch {epoch} follows {EPOCH}"):
        read(epoch)


@pytest.mark.parametrize(
    "said, least",
    [("1795714424705916", 1795714424705916), ("9" * 16, 2**53), ("9" * 17, 0), ("-1", 0), ("", 0)],
)
def test_what_a_stream_says_of_its_next_epoch_is_bounded(said: str, least: int) -> None:
    assert first_epoch({"metadata": {FIRST_EPOCH: said}}) == least
    assert first_epoch({}) == first_epoch({"metadata": None}) == 0
