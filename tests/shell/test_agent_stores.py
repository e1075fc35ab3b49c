"""Meeting places of gangs: real processes, but for PyTorch, that end with whoever opened them."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from skep.machines.agent import OpenStore, StoreOpened
from skep_services.agent import stores
from skep_services.agent.stores import Stores
from tests.shell.test_agent_parts import Hands

STORE = """
import json, sys
if "7" in sys.argv:
    sys.exit("skep_job.store: cannot listen on h:7: in use")
print(json.dumps(sys.argv[1:]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have another script run in the store's place; return the processes that are started."""
    (tmp_path / "store.py").write_text(STORE)
    processes: list[Any] = []
    create = asyncio.create_subprocess_exec

    async def begin(program: str, *arguments: str, **settings: Any) -> Any:
        assert arguments[:2] == ("-m", "skep_job.store")
        made = await create(sys.executable, str(tmp_path / "store.py"), *arguments[2:], **settings)
        processes.append(made)
        return made

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin)
    return processes


@pytest.mark.asyncio
async def test_a_store_is_opened_once_and_ends_with_the_agent(
    tmp_path: Path, started: list[Any]
) -> None:
    hands = Hands(tmp_path)
    opened = StoreOpened("j1", 1)
    for _ in range(2):
        assert await hands.ask(OpenStore("j1", 1, "h", 5)) == opened
    assert len(started) == 1
    busy = await hands.ask(OpenStore("j1", 1, "h", 7))
    assert busy.trouble == "the gang cannot meet: skep_job.store: cannot listen on h:7: in use"
    started[0].kill()
    await started[0].wait()
    assert await hands.ask(OpenStore("j1", 1, "h", 5)) == opened
    assert len(started) == 3
    await hands.calls._stores.close()
    assert all(process.returncode is not None for process in started)


@pytest.mark.asyncio
async def test_the_oldest_store_makes_room(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "STORES_MAX", 1)
    some = Stores()
    assert await some.open("h", 1) == await some.open("h", 2) == ""
    assert [process.returncode is None for process in started] == [False, True]
    await some.close()


@pytest.mark.asyncio
async def test_one_that_never_listens_is_given_up(
    tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "OPEN_SECONDS_MAX", 0.2)
    (tmp_path / "store.py").write_text("import sys; sys.stdin.read()")
    some = Stores()
    assert await some.open("h", 1) == "the gang cannot meet: it did not listen within 0 s"
    assert started[0].returncode is not None


@pytest.mark.asyncio
async def test_a_gang_that_begins_on_a_port_finds_no_store_of_another_there(
    started: list[Any],
) -> None:
    open_stores = Stores()
    for port in (5, 6):
        assert await open_stores.open("h", port) == ""
    await open_stores.free(5)
    assert [process.returncode is None for process in started] == [False, True]
    await open_stores.close()
