"""The sum of a chunk of a state: what it must find, whatever the chunk's length and address."""

import socket

import pytest

from skep_job.state.checksum import ROW_BYTES, checksum
from skep_job.state.transfer import Broken, Wire

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


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def test_a_damaged_state_is_refused_once_all_of_it_is_read() -> None:
    import torch

    state = {"a": torch.arange(100.0), "b": torch.arange(7, dtype=torch.int8)}
    size = sum(each.nbytes + 4 for each in state.values())
    for damaged in (None, 0, 399, 400, 404, 410, size - 1):
        into = {name: torch.zeros_like(each) for name, each in state.items()}
        (first, second), (third, fourth) = connected(), connected()
        with first, second, third, fourth:
            assert Wire(first).send_tensors(state) == size - 8
            data = bytearray(second.recv(size, socket.MSG_WAITALL))
            if damaged is not None:
                data[damaged] ^= 1
            third.sendall(data)
            third.shutdown(socket.SHUT_WR)
            wire = Wire(fourth)
            if damaged is None:
                assert wire.receive_tensors(into) == size - 8
                assert all(torch.equal(into[name], state[name]) for name in state)
                continue
            with pytest.raises(Broken, match="some of the state was damaged on its way"):
                wire.receive_tensors(into)
            assert not fourth.recv(1)
