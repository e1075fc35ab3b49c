"""The sum of a chunk of a state: what it must find, whatever the chunk's length and address."""

import pytest

from skep_job.state.checksum import ROW_BYTES, checksum

pytestmark = pytest.mark.torch


def chunk(length: int, begin: int = 0) -> memoryview:
    """Return bytes that follow no pattern of the rows, at an address with this remainder."""
    data = bytearray(begin) + bytearray((i * 7 + i // 251) % 256 for i in range(length))
    return memoryview(data)[begin:]


@pytest.mark.parametrize("length", [0, 1, ROW_BYTES - 1, ROW_BYTES, 3 * ROW_BYTES + 13])
@pytest.mark.parametrize("begin", [0, 1, 4])
def test_the_sum_depends_on_the_bytes_and_not_on_where_they_are(length: int, begin: int) -> None:
    assert checksum(chunk(length, begin)) == checksum(chunk(length))


def test_every_bit_counts() -> None:
    data = chunk(ROW_BYTES + 9)
    right = checksum(data)
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            assert checksum(data) != right, (at, bit)
            data[at] ^= 1 << bit
    assert checksum(data) == right


def test_bits_that_are_lost_in_many_words_are_found() -> None:
    data = chunk(4 * ROW_BYTES)
    right = checksum(data)
    for at in range(ROW_BYTES, 2 * ROW_BYTES):
        data[at] &= 0x7F
    assert checksum(data) != right


def test_rows_in_another_order_and_bytes_that_are_missing_are_found() -> None:
    data = chunk(2 * ROW_BYTES)
    swapped = bytearray(data[ROW_BYTES:]) + bytearray(data[:ROW_BYTES])
    assert checksum(memoryview(swapped)) != checksum(data)
    assert checksum(memoryview(bytearray(data[:-8]))) != checksum(data)
