"""Copies of split state in the memory of a gang's nodes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skep_job.cooperate.cooperation import Cooperation, Options
from skep_job.replicas import exchange, memory, replicas, ring
from skep_job.replicas.exchange import Address, Server
from skep_job.replicas.memory import Key, Memory
from skep_job.replicas.replicas import Replicas, Where
from skep_job.state import checkpoint_file
from skep_job.state.checkpoint_folder import Checkpoints, Entry, Superseded, entries_of
from skep_job.state.snapshot import Snapshot
from skep_job.state.transfer import Broken, Wire

pytestmark = pytest.mark.torch
LIMIT = 64 * 1024 * 1024
KEY = Key(3, 12, 4)


def test_a_copy_is_on_the_next_node_of_the_ring() -> None:
    assert [ring.keeper(rank, [7, 7, 9, 9]) for rank in range(4)] == [2, 3, 0, 1]
    assert [ring.keeper(rank, [5, 6, 7]) for rank in range(3)] == [1, 2, 0]
    uneven = [5, 5, 5, 6]
    assert [ring.keeper(rank, uneven) for rank in range(4)] == [3, 3, 3, 0]
    assert [ring.keeper(rank, [1, 2, 1, 2]) for rank in range(4)] == [1, 0, 3, 2]


def test_a_gang_has_copies_on_several_nodes_with_memory_only() -> None:
    assert ring.why_none([4, 5]) == ""
    assert "one node" in ring.why_none([4, 4])
    assert "rank 1" in ring.why_none([4, 0])


def test_the_ranks_of_a_node_share_what_it_fetches() -> None:
    nodes = [8, 8, 9, 9]
    everything, nothing = frozenset(range(4)), frozenset[int]()
    held = [nothing, nothing, everything, everything]
    own = [[rank] for rank in range(4)]
    assert ring.fetches(own, held, nodes, 0) == [(0, 2)]
    assert ring.fetches(own, held, nodes, 1) == [(1, 3)]
    assert ring.fetches(own, held, nodes, 2) == []
    all_ = [[0, 1, 2, 3]] * 4
    shared = [file for rank in (0, 1) for file, _ in ring.fetches(all_, held, nodes, rank)]
    assert sorted(shared) == [0, 1, 2, 3], "each file once for the node"
    assert ring.fetches(own, [nothing] * 4, nodes, 0) == []


def state(value: int = 1, size: int = 1000) -> Snapshot:
    import torch

    return Snapshot({"place": value}, {"w": torch.full((size,), float(value))})


@pytest.fixture
def place(tmp_path: Path) -> Callable[..., Memory]:
    def make(name: str = "n0", attempt: int = 3, limit: int = LIMIT, **more: Any) -> Memory:
        (tmp_path / name).mkdir(mode=0o700, exist_ok=True)
        return Memory(tmp_path / name / "j7", "j7", attempt, limit, **more)

    return make


def test_a_copy_is_a_checkpoint_that_only_its_user_reads(place: Callable[..., Memory]) -> None:
    path, size = place().store(state(), KEY, 2)
    assert path.name == "a00003-s000000000012-r2of4.safetensors"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_size == size
    stored = Checkpoints(path.parent, "j7", 3, 2, 4).read(Entry(3, 12, 2, 4, path))
    assert checkpoint_file.read_tensors(path, stored)["w"].tolist() == [1.0] * 1000


def test_what_does_not_fit_is_refused_and_leaves_nothing(place: Callable[..., Memory]) -> None:
    small = place(limit=1_000_000)
    with pytest.raises(OSError, match="may keep 1000000 bytes in this node's memory"):
        small.store(state(size=250_000), KEY, 0)
    scarce = place("n1", free=lambda: 100_000)
    with pytest.raises(OSError, match="has 100000 bytes of free memory"):
        scarce.store(state(), KEY, 0)
    assert [*small.entries(), *scarce.entries()] == []
    assert list(small.folder.iterdir()) == []


def test_a_file_that_comes_twice_at_once_is_whole(place: Callable[..., Memory]) -> None:
    mine = place()

    def second(part: Path) -> None:
        mine.take_in(KEY, 1, 4, lambda other: other.write_bytes(b"four"))
        part.write_bytes(b"4444")

    path, size = mine.take_in(KEY, 1, 4, second)
    assert (path.read_bytes(), size) == (b"4444", 4)
    assert {each.name for each in mine.folder.iterdir()} == {path.name}


def test_all_jobs_of_a_node_share_the_bound(place: Callable[..., Memory], tmp_path: Path) -> None:
    place(limit=3_000_000).store(state(size=250_000), KEY, 0)
    other = Memory(tmp_path / "n0" / "j8", "j8", 1, 3_000_000)
    with pytest.raises(OSError, match="do not fit beside"):
        other.store(state(size=250_000), Key(1, 1, 2), 0)


def test_jobs_that_take_room_at_once_keep_to_the_bound(
    place: Callable[..., Memory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place()
    jobs = [Memory(tmp_path / "n0" / f"j{n}", f"j{n}", 1, 3000) for n in range(4)]
    reserve, at_once = os.posix_fallocate, threading.Barrier(4)

    def slowly(descriptor: int, start: int, size: int) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            at_once.wait(0.2)  # Together only if several have found room before one has taken it.
        reserve(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", slowly)

    def take(job: Memory) -> bool:
        try:
            job.take_in(Key(1, 1, 2), 0, 1000, lambda path: None)
        except OSError as error:
            return error.errno != errno.ENOSPC
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(take, jobs)) == [False, True, True, True]


@pytest.mark.parametrize("taking", [False, True])
@pytest.mark.parametrize("which", ["n0", "n0/j7"])
def test_a_lock_that_is_not_given_back_costs_one_copy(
    place: Callable[..., Memory],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
    *,
    taking: bool,
) -> None:
    free = itertools.count()
    monkeypatch.setattr(
        os, "fstatvfs", lambda _: SimpleNamespace(f_bfree=next(free) if taking else 0)
    )
    monkeypatch.setattr(memory, "LOCK_S", 1e9 if taking else 0.05)
    monkeypatch.setattr(memory, "LOCK_MOST_S", 0.05 if taking else 1e9)
    mine = place()
    frozen = os.open(tmp_path / which, os.O_RDONLY)
    try:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        with pytest.raises(OSError, match=r"has kept its lock for .* no copy this time"):
            mine.store(state(), KEY, 0)
    finally:
        os.close(frozen)
    assert list(mine.folder.iterdir()) == []
    assert mine.store(state(), KEY, 0)[0].exists()


def test_a_lock_is_waited_for_while_its_process_takes_memory(
    place: Callable[..., Memory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = place()
    frozen = os.open(tmp_path / "n0", os.O_RDONLY)
    fcntl.flock(frozen, fcntl.LOCK_EX)
    clock, free = [0.0], [100]

    def later(_seconds: float) -> None:
        clock[0] += memory.LOCK_S * 0.9
        free[0] -= 1
        if free[0] == 90:
            os.close(frozen)

    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bfree=free[0]))
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=later))
    assert mine.store(state(), KEY, 0)[0].exists()
    assert clock[0] > 2 * memory.LOCK_S


def test_older_boundaries_go_and_those_of_a_later_attempt_stay(
    place: Callable[..., Memory],
) -> None:
    mine = place()
    for step in (1, 2, 3):
        mine.store(state(), Key(3, step, 4), 0)
    (mine.folder / "a00003-s000000000001-r1of4.safetensors.77.part").touch()
    (mine.folder / "a00003-s000000000003-r1of4.safetensors.77.part").touch()
    mine.prune({Key(3, 2, 4), Key(3, 3, 4)})
    assert [entry.step for entry in mine.entries()] == [2, 3]
    assert [path.name.split("-")[1] for path in mine.folder.glob("*.part")] == ["s000000000003"]
    place(attempt=4).store(state(), Key(4, 1, 4), 0)
    mine.prune(set())
    assert [entry.attempt for entry in mine.entries()] == [4]
    with pytest.raises(Superseded, match="attempt 3 is over"):
        mine.store(state(), Key(3, 9, 4), 0)


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="of another account"):
        Memory(tmp_path / "link", "j7", 1, LIMIT)
    with pytest.raises(OSError, match="of another account"):
        Memory(tmp_path / "link" / "j7", "j7", 1, LIMIT)
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720])
def test_a_folder_that_others_could_replace_is_refused(tmp_path: Path, mode: int) -> None:
    parent, folder = tmp_path / "n0", tmp_path / "n0" / "j7"
    parent.mkdir()
    parent.chmod(mode)
    with pytest.raises(OSError, match=r"other accounts may write to it: chmod go-w: '.*/n0'"):
        Memory(folder, "j7", 1, LIMIT)
    assert not folder.exists()
    parent.chmod(0o755)
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(OSError, match="other accounts may write to it"):
        Memory(folder, "j7", 1, LIMIT)


def test_the_folder_above_is_this_users_or_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "n0" / "j7").mkdir(mode=0o700, parents=True)
    real, owners = Path.lstat, {"n0": 0, "j7": 1000}

    def lstat(path: Path) -> os.stat_result:
        fields = list(real(path))
        fields[4] = owners[path.name]
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "lstat", lstat)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    Memory(tmp_path / "n0" / "j7", "j7", 1, LIMIT)
    owners["n0"] = 1001
    with pytest.raises(OSError, match=r"it is of another account.*/n0'"):
        Memory(tmp_path / "n0" / "j7", "j7", 1, LIMIT)


@pytest.fixture
def server(place: Callable[..., Memory]) -> Iterator[tuple[Memory, Server, Address]]:
    there = place("n1")
    found = Server(there, lambda key, rank: key == KEY and rank < 4)
    yield there, found, Address("127.0.0.1", found.port, found.token)
    found.close()


def test_a_copy_goes_to_another_node_and_comes_back(
    place: Callable[..., Memory], server: tuple[Memory, Server, Address]
) -> None:
    here, (there, _, address) = place(), server
    path, size = here.store(state(5), KEY, 1)
    assert exchange.put(address, here, KEY, 1) == size
    assert there.path(KEY, 1).read_bytes() == path.read_bytes()
    path.unlink()
    assert exchange.get(address, here, KEY, 1) == size
    assert path.read_bytes() == there.path(KEY, 1).read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_another_node_refuses_is_said(
    place: Callable[..., Memory], server: tuple[Memory, Server, Address]
) -> None:
    here, (there, _, address) = place(), server
    here.store(state(), KEY, 1)
    here.store(state(), Key(3, 13, 4), 1)
    with pytest.raises(Broken, match="does not know the token"):
        exchange.put(address._replace(token=5), here, KEY, 1)
    with pytest.raises(Broken, match="of another gang"):
        exchange.put(address, here, Key(3, 13, 4), 1)
    there.limit = 100
    with pytest.raises(Broken, match="where 100 are the bound"):
        exchange.put(address, here, KEY, 1)
    with pytest.raises(Broken, match="No such file"):
        exchange.get(address, here, Key(3, 99, 4), 0)
    assert there.entries() == []


def test_a_connection_that_proves_nothing_is_closed_soon(
    server: tuple[Memory, Server, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "PROVE_S", 0.05)
    _, _, address = server
    with socket.create_connection(address[:2], 10.0) as peer:  # A wire waits for 20 s.
        heard = b""
        while more := peer.recv(1024):
            heard += more
    assert len(heard) < 64, "no more than the greeting"


def test_a_file_that_goes_before_it_is_read_is_not_made_anew(
    place: Callable[..., Memory],
    server: tuple[Memory, Server, Address],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, (there, _, address) = place(), server
    path, size = there.store(state(), KEY, 1)
    mapped = exchange._mapped

    def late(file: Path, size: int) -> Any:
        path.unlink()
        return mapped(file, size)

    monkeypatch.setattr(exchange, "_mapped", late)
    with pytest.raises(Broken, match="No such file"):
        exchange.get(address, here, KEY, 1)
    assert [*here.entries(), *there.entries()] == []
    path.write_bytes(b"x" * (size - 1))
    with pytest.raises(OSError, match=f"it has {size - 1} bytes, and {size} are wanted"):
        mapped(path, size)


def test_a_file_is_mapped_for_as_long_as_its_tensor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5000))

    def mappings() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(path))

    tensor = exchange._mapped(path, 5000)
    tensor[4999] = 7
    assert path.read_bytes()[-2:] == b"\0\7"
    assert mappings() == 1
    del tensor
    assert mappings() == 0


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"put": [3, 12, 4]},
        {"put": [3, 12, 4, "../../x"], "bytes": 10},
        {"put": [3, 12, 4, 1], "bytes": True},
        {"put": [3, -1, 4, 1], "bytes": 10},
        {"get": ["a", 1, 2, 3]},
        {"get": None},
    ],
)
def test_a_senseless_request_is_refused(
    server: tuple[Memory, Server, Address], request_: dict[str, Any]
) -> None:
    there, _, address = server
    with socket.create_connection(address[:2], 5.0) as peer:
        wire = Wire(peer)
        wire.prove(f"{address.token:x}", "successor", "source")
        wire.send(request_)
        assert "error" in wire.receive()
    assert there.entries() == []


def test_bytes_that_are_damaged_on_their_way_are_not_kept(
    place: Callable[..., Memory],
    server: tuple[Memory, Server, Address],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, (there, _, address) = place(), server
    here.store(state(), KEY, 1)
    there.store(state(), KEY, 0)
    sums = itertools.count()  # No two are equal: whoever gets a chunk has another one.
    monkeypatch.setattr("skep_job.state.transfer.checksum", lambda chunk: next(sums))
    with pytest.raises(Broken, match="damaged on its way"):
        exchange.put(address, here, KEY, 1)
    with pytest.raises(Broken, match="damaged on its way"):
        exchange.get(address, here, KEY, 0)
    assert [entry.rank for entry in there.entries()] == [0]
    assert [entry.rank for entry in here.entries()] == [1]


class Gang:
    """Ranks on threads, in place of a process group."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world)
        self._rows: list[Any] = [None] * world
        self.world = world

    def rank(self, rank: int) -> Any:
        gang = self

        class Group:
            def of_all(self, numbers: list[int]) -> list[list[int]]:
                return list(gang.gather(rank, numbers))

            def all_well(self, well: bool) -> bool:
                return all(gang.gather(rank, well))

        return Group()

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._rows[rank] = value
        self._barrier.wait(20.0)
        rows = list(self._rows)
        self._barrier.wait(20.0)
        return rows

    def each(self, work: Callable[[int, Any], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(lambda rank: work(rank, self.rank(rank)), range(self.world)))


MADE: list[Replicas] = []


@pytest.fixture(autouse=True)
def nobody_listens_after_a_test() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().part()


def ranks_of(tmp_path: Path, nodes: list[str], attempt: int) -> list[Replicas]:
    found = []
    for node in nodes:
        (tmp_path / node).mkdir(mode=0o700, exist_ok=True)
        where = Where(tmp_path / node / "j7", LIMIT, "127.0.0.1") if node else None
        found.append(Replicas(where, "j7", attempt, 1.0, auto=False))
    MADE.extend(found)
    return found


def meet(ranks: list[Replicas]) -> Gang:
    gang = Gang(len(ranks))
    gang.each(lambda rank, group: ranks[rank].meet(group, rank, len(ranks)))
    return gang


def test_a_gang_finds_what_is_whole_after_the_loss_of_a_node(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks = ranks_of(tmp_path, ["a", "a", "b", "b"], 3)
    gang = meet(ranks)
    assert all(each.active for each in ranks)
    for step in (5, 6):
        for each in ranks:
            each.heard(step - 1)
        gang.each(lambda rank, _: ranks[rank].copying(step)(state(rank)))  # noqa: B023
    ranks[2]._memory.path(Key(3, 6, 4), 3).unlink()  # type: ignore[union-attr]
    for path in (tmp_path / "a" / "j7").iterdir():  # Node a is lost.
        path.unlink()
    later = ranks_of(tmp_path, ["c", "c", "b", "b"], 4)
    gang = meet(later)
    assert [each.found() for each in later] == [[Key(3, 5, 4)]] * 4
    said = capfd.readouterr().err
    assert "after mini-batch 6 of attempt 3 is passed over: the copy of rank 3 of 4" in said
    fetched = gang.each(lambda rank, group: later[rank].fetch(Key(3, 5, 4), group))
    for rank, (folder, entry) in enumerate(fetched):
        stored = folder.read(entry)
        assert checkpoint_file.read_tensors(entry.path, stored)["w"][0] == float(rank)
    assert sorted(os.listdir(tmp_path / "c" / "j7"))[:2] == [
        "a00003-s000000000005-r0of4.safetensors",
        "a00003-s000000000005-r1of4.safetensors",
    ]


def test_another_number_of_ranks_gets_all_files(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["a", "b"], 3)
    meet(ranks).each(lambda rank, _: ranks[rank].copying(5)(state(rank)))
    later = ranks_of(tmp_path, ["a", "b", "c"], 4)
    gang = meet(later)
    assert later[0].found() == [Key(3, 5, 2)]
    for folder, entry in gang.each(lambda rank, group: later[rank].fetch(Key(3, 5, 2), group)):
        assert sorted(folder.files_of(entry)) == [0, 1]


def test_a_file_that_does_not_come_has_the_boundary_passed_over_by_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks = ranks_of(tmp_path, ["a", "b"], 3)
    meet(ranks).each(lambda rank, _: ranks[rank].copying(5)(state(rank)))
    later = ranks_of(tmp_path, ["c", "b"], 4)
    gang = meet(later)
    assert later[0].found() == [Key(3, 5, 2)]
    later[1]._memory.path(Key(3, 5, 2), 0).unlink()  # type: ignore[union-attr]
    assert gang.each(lambda rank, group: later[rank].fetch(Key(3, 5, 2), group)) == [None, None]
    assert "is passed over: the copy of rank 0 does not come" in capfd.readouterr().err


def test_a_rank_without_memory_leaves_all_without_copies(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks = ranks_of(tmp_path, ["a", ""], 3)
    gang = meet(ranks)
    assert not any(each.active for each in ranks)
    assert "rank 1 has no folder in its node's memory" in capfd.readouterr().err
    assert gang.each(lambda rank, _: ranks[rank].found()) == [[], []]


def agree(ranks: list[Replicas]) -> None:
    """Have the ranks hear what `Together.boundary` makes of what they say."""
    lowest, *_, highest = sorted(each.say(False)[1] for each in ranks)
    for each in ranks:
        each.heard(lowest if lowest == highest else -1)


def test_the_only_whole_boundary_stays_while_ranks_fail_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = ranks_of(tmp_path, ["a", "b"], 3)
    gang = meet(ranks)
    fails: set[tuple[int, int]] = {(5, 0), (10, 1), (15, 0), (15, 1)}
    store = Memory.store

    def full(self: Memory, snapshot: Snapshot, key: Key, rank: int) -> Any:
        if (key.step, rank) in fails:
            raise OSError(errno.ENOSPC, "it does not fit")
        return store(self, snapshot, key, rank)

    monkeypatch.setattr(Memory, "store", full)

    def copy(rank: int, step: int) -> None:
        with contextlib.suppress(OSError):
            ranks[rank].copying(step)(state())

    for step in (3, 5, 10, 15, 20):
        agree(ranks)
        gang.each(lambda rank, _: copy(rank, step))  # noqa: B023
        later = ranks_of(tmp_path, ["a", "b"], 3)
        meet(later)
        whole = 20 if step == 20 else 3
        assert later[0].found()[0] == Key(3, whole, 2)


def test_two_boundaries_at_most_are_kept(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["a", "b"], 3)
    gang = meet(ranks)

    def copy(step: int) -> None:
        agree(ranks)
        gang.each(lambda rank, _: ranks[rank].copying(step)(state()))

    for step in (3, 4, 5):
        copy(step)
    folders = [tmp_path / node / "j7" for node in ("a", "b")]
    steps = {entry.step for folder in folders for entry in entries_of(folder)}
    assert steps == {4, 5}


def test_a_copy_of_a_gang_that_is_no_more_does_not_count(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["a", "b"], 3)
    meet(ranks).each(lambda rank, _: ranks[rank].copying(4)(state()))
    late = ranks[0].copying(5)
    meet(ranks)
    late(state())
    assert ranks[0].say(False)[1] == -1
    three = ranks + ranks_of(tmp_path, ["b"], 3)
    late = ranks[0].copying(6)
    meet(three)
    with pytest.raises(Broken, match="of another gang"):
        late(state())


def test_a_rank_that_is_alone_copies_no_more_and_keeps_what_it_has_until_a_checkpoint(
    tmp_path: Path,
) -> None:
    ranks = ranks_of(tmp_path, ["a", "b"], 3)
    meet(ranks).each(lambda rank, _: ranks[rank].copying(4)(state()))
    one = ranks[0]

    def files() -> list[Entry]:
        return entries_of(tmp_path / "a" / "j7")

    one.on_disk()
    assert len(files()) == 2, "a gang keeps its copies"
    port = one._server.port  # type: ignore[union-attr]
    alone = SimpleNamespace(
        _options=Options(replicas_every="auto"),
        _split=True,
        _elastic=None,
        _together=SimpleNamespace(alone=True),
        _replicas=one,
    )
    Cooperation._meet(alone)  # type: ignore[arg-type]
    assert not one.active
    assert one.say(False) == (False, -1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5.0)
    assert len(files()) == 2
    one.on_disk()
    assert files() == []
    meet(ranks).each(lambda rank, _: ranks[rank].copying(5)(state()))
    assert one.say(False) == (False, 5)
    assert {entry.rank for entry in files()} == {0, 1}


def test_a_newcomer_keeps_what_its_node_has_of_the_gang_before_until_a_newer_one_is_whole(
    tmp_path: Path,
) -> None:
    ranks = ranks_of(tmp_path, ["a", "b"], 3)
    meet(ranks).each(lambda rank, _: ranks[rank].copying(4)(state()))
    ranks += ranks_of(tmp_path, ["b"], 3)
    meet(ranks)

    def steps() -> set[tuple[int, int]]:
        return {(entry.step, entry.rank) for entry in entries_of(tmp_path / "b" / "j7")}

    ranks[2].copying(5)(state())
    assert steps() == {(4, 0), (4, 1), (5, 2)}
    for rank in (0, 1):
        ranks[rank].copying(5)(state())
    agree(ranks)
    ranks[2].copying(6)(state())
    assert steps() == {(5, 0), (5, 1), (5, 2), (6, 2)}


def test_the_time_between_copies_follows_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    one = Replicas(None, "j7", 3, None, auto=True)
    one._active = True
    one.finished(3, 0.2, 10_000_000)
    assert one._next_at == 105.0
    one.finished(4, 4.0, 10_000_000)
    assert one._next_at == 180.0
    one.finished(5, 0.5, 400_000_000)
    assert one._next_at == 120.0
    assert one.say(False) == (False, -1)
    now[0] = 120.0
    assert one.say(False) == (True, -1)
    assert one.say(True) == (False, -1), "the one before is still on its way"
    one.finished(6, Superseded("attempt 4 of this job has trained"), 0)
    now[0] = 1e9
    assert one.say(False) == (False, -1)


@pytest.mark.parametrize("every_s, then", [(1800.0, 1800.0), (400.0, 600.0), (1.0, 5.0)])
def test_the_time_between_copies_grows_while_they_fail(
    monkeypatch: pytest.MonkeyPatch, every_s: float, then: float
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    one = Replicas(None, "j7", 3, every_s, auto=False)
    one.finished(3, OSError(errno.ENOSPC, "it does not fit"), 0)
    assert one._next_at == 100.0 + then
    one.finished(4, 0.5, 0)
    assert one._next_at == 100.0 + every_s


def test_each_kind_of_failure_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    one = Replicas(None, "j7", 3, 1.0, auto=False)
    for step in (3, 4):
        one.finished(step, OSError(errno.ENOSPC, f"{step}000 bytes do not fit"), 0)
        one.finished(step, OSError(errno.ECONNREFUSED, "nobody listens"), 0)
        one.finished(step, Broken(f"{step} was damaged on its way"), 0)
    said = capfd.readouterr().err
    assert said.count("no copy in memory after mini-batch 3: ") == 3
    assert "mini-batch 4" not in said


def test_addresses_and_files_go_over_as_numbers() -> None:
    path = Path("unused")
    for host in ("10.1.2.3", "2001:db8::17"):
        address = Address(host, 4321, 2**124 - 5)
        row = replicas._row(77, address, [Entry(3, 9, 1, 4, path)])
        assert all(0 <= number < 2**63 for number in row)
        assert replicas._parse(row) == (77, address, frozenset({(Key(3, 9, 4), 1)}))


def test_the_others_hear_of_what_is_whole_on_a_node_first() -> None:
    path, most = Path("unused"), replicas.FILES_MAX
    whole = [Entry(3, step, rank, 8, path) for step in (1, 2) for rank in range(8)]
    parts = [Entry(4, step, 0, 3, path) for step in range(most)]
    files = replicas._first([*parts, *whole])
    assert len(files) == most
    assert [entry.step for entry in files[:17]] == [2] * 8 + [1] * 8 + [most - 1]
    row = replicas._row(7, Address("127.0.0.1", 1, 1), files)
    assert (Key(3, 2, 8), 7) in replicas._parse(row).files


def test_what_the_agent_says_is_read(tmp_path: Path) -> None:
    told = {"SKEP_REPLICAS": str(tmp_path), "SKEP_REPLICA_BYTES": "1000"}
    assert replicas.where(told.get) == Where(tmp_path, 1000, "127.0.0.1")
    for bad in ({"SKEP_REPLICAS": "relative"}, {"SKEP_REPLICA_BYTES": "-1"}):
        assert replicas.where((told | bad).get) is None
    empty: dict[str, str] = {}
    assert replicas.where(empty.get) is None


def test_free_memory_is_read_from_the_kernel(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    own = groups / "jobs" / "one"
    own.mkdir(parents=True)
    assert memory.available(str(proc), str(groups)) == 0
    (proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   5 kB\n")
    (proc / "self" / "cgroup").write_text("1:name=systemd:/x\n0::/jobs/one\n")
    assert memory.available(str(proc), str(groups)) == 5 * 1024

    def bound(folder: Path, most: str, used: int, inactive: int) -> None:
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 7\ninactive_file {inactive}\n")

    bound(own, "max", 4000, 0)
    assert memory.available(str(proc), str(groups)) == 5 * 1024
    bound(own.parent, "6000", 4000, 500)
    assert memory.available(str(proc), str(groups)) == 2500
    bound(own, "1000", 4000, 0)
    assert memory.available(str(proc), str(groups)) == 0


# --- beside what is on disk ---------------------------------------------------------------------

STATES = [Key(3, 4, 2), Key(3, 8, 2), Key(4, 5, 2)]
"""In the order in which they are preferred: a later attempt knows more, at whatever mini-batch."""


def going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: set[Path] | None = None
) -> list[Path]:
    """Return the file that each rank of attempt 5 goes on from."""

    def read(run: object, folder: Checkpoints, entry: Entry, seat: object) -> Any:
        return "it is damaged" if entry.path in (damaged or ()) else (None, None)

    monkeypatch.setattr("skep_job.cooperate.cooperation._read", read)
    ranks = ranks_of(tmp_path, ["a", "b"], 5)
    gang = meet(ranks)

    def newest(rank: int, group: Any) -> Path:
        group.common = lambda entries, _: entries
        cooperation = Cooperation.__new__(Cooperation)
        cooperation._replicas, cooperation._together = ranks[rank], group
        cooperation._elastic, cooperation._split = None, False
        cooperation._seat = lambda: (rank, 2)  # type: ignore[method-assign]
        found = cooperation._newest(None, disk(tmp_path, 5, rank))  # type: ignore[arg-type]
        return found[0].path if found is not None else Path()

    return list(gang.each(newest))


def disk(tmp_path: Path, attempt: int, rank: int) -> Checkpoints:
    return Checkpoints(tmp_path / "disk", "j7", attempt, rank, 2, keep=9)


def keep(tmp_path: Path, key: Key, *, on_disk: bool) -> None:
    """Have both ranks keep a state on disk, or in memory."""
    ranks = ranks_of(tmp_path, ["a", "b"], key.attempt)
    gang = meet(ranks)

    def store(rank: int, _: object) -> None:
        if on_disk:
            disk(tmp_path, key.attempt, rank).save(state(), key.step)
            return
        ranks[rank].found()
        ranks[rank]._memory.store(state(), key, rank)  # type: ignore[union-attr]

    gang.each(store)


@pytest.mark.parametrize(
    "places", list(itertools.product(("", "disk", "memory", "both"), repeat=len(STATES)))
)
def test_the_newest_state_is_gone_on_from_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: tuple[str, ...]
) -> None:
    for key, place in zip(STATES, places, strict=True):
        for where in ("memory", "disk"):
            if place in (where, "both"):
                keep(tmp_path, key, on_disk=where == "disk")
    had = [(key, place) for key, place in zip(STATES, places, strict=True) if place]
    found = going_on(tmp_path, monkeypatch)
    if not had:
        assert found == [Path(), Path()]
        return
    key, place = had[-1]
    names = [f"a{key.attempt:05}-s{key.step:012}-r{rank}of2.safetensors" for rank in range(2)]
    assert [path.name for path in found] == names
    assert {path.parent.name for path in found} == {"disk" if place == "disk" else "j7"}


def test_a_state_in_memory_that_cannot_be_read_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, STATES[0], on_disk=True)
    keep(tmp_path, STATES[1], on_disk=True)
    keep(tmp_path, STATES[1], on_disk=False)
    keep(tmp_path, STATES[2], on_disk=False)
    damaged = set((tmp_path / "b" / "j7").iterdir())
    found = going_on(tmp_path, monkeypatch, damaged)
    assert {path.parent.name for path in found} == {"disk"}
    assert {path.name.split("-r")[0] for path in found} == {"a00003-s000000000008"}


def test_a_checkpoint_that_not_every_rank_has_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for step in (4, 8):
        disk(tmp_path, 3, 0).save(state(), step)
    monkeypatch.setattr("skep_job.cooperate.cooperation._read", lambda *_: (None, None))
    group: Any = type("Group", (), {"all_well": lambda _, well: well})()
    group.common = lambda entries, _: entries[1:]  # The file of the other rank is gone.
    cooperation = Cooperation.__new__(Cooperation)
    cooperation._replicas = Replicas(None, "j7", 5, None, auto=False)
    cooperation._together, cooperation._elastic, cooperation._split = group, None, False
    found = cooperation._newest(None, disk(tmp_path, 5, 0))  # type: ignore[arg-type]
    assert found is not None
    assert found[0].step == 4
    said = capfd.readouterr().err
    assert "a00003-s000000000008-r0of2.safetensors is passed over: not every rank has" in said


def test_a_checkpoint_on_disk_does_not_wait_for_copies_that_fail(tmp_path: Path) -> None:
    ranks = ranks_of(tmp_path, ["a", "b"], 3)
    meet(ranks)
    one = ranks[0]
    written: list[str] = []

    def save() -> None:
        later = SimpleNamespace(begin=lambda state, _, write, *more, at_once: write(state))
        saves = SimpleNamespace(save=lambda *more: written.append("disk"))
        cooperation = SimpleNamespace(
            _split=True,
            _may_save=lambda _: saves,
            _snapshot=state,
            _steps=lambda: 4,
            _require_memory=lambda _: None,
            _run=SimpleNamespace(tracked={}),
            _replicas=one,
            _together=SimpleNamespace(alone=False),
            _later=later,
            _copy_first=lambda *more: written.append("memory"),
        )
        Cooperation._save_later(cooperation, None, lambda *more: None)  # type: ignore[arg-type]

    save()
    one.finished(4, OSError(errno.ETIMEDOUT, "the other node does not answer"), 0)
    save()
    one.finished(5, 0.5, 0)
    save()
    assert written == ["memory", "disk", "disk", "memory", "disk"]
