"""A node fetches, unpacks and keeps what jobs bring and leave; on real processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from skep.wire.commands import RESTORE_STEP
from skep.wire.reasons import Reason
from skep_services.agent import code as node_code
from skep_services.agent.code import work_path
from skep_services.agent.outputs import DIGEST, REASON, REFUSED, TOKEN
from skep_services.cli.snapshots import take
from skep_services.ports import RunExited
from tests.code_kit import CodeNode
from tests.node_runtimes import process_runtime

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[CodeNode]:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "train.py").write_text("print()")
    (source / "big").write_bytes(os.urandom(1_200_000))
    state = tmp_path / "state"
    state.mkdir()
    runtime = process_runtime(state)
    made = CodeNode(runtime, state, state, take(str(source), ""))
    await made.open()

    async def ended(run: RunExited) -> None:
        await made.code.ended(run)

    await runtime.open(ended)
    yield made
    await made.close()
    await runtime.shutdown(0.0)
    await runtime.close()


def folder(tmp_path: Path, attempt: int = 1) -> Path:
    return work_path(tmp_path / "state", "j1", attempt)


async def test_an_attempt_has_what_was_submitted_and_the_next_fetches_nothing(
    node: CodeNode, tmp_path: Path
) -> None:
    assert await node.provide(node.bind()) is None
    assert (folder(tmp_path) / "train.py").read_text() == "print()"
    assert take(str(folder(tmp_path)), "").digest == node.taken.digest
    asked = len(node.gateway.asked)
    (folder(tmp_path) / "train.py").write_text("written by the job")
    both = await asyncio.gather(node.provide(node.bind()), node.provide(node.bind(2)))
    assert list(both) == [None, None]
    assert (folder(tmp_path) / "train.py").read_text() == "written by the job"
    assert (folder(tmp_path, 2) / "train.py").read_text() == "print()"
    assert all(not ask.chunk for ask in node.gateway.asked[asked:])


async def test_a_folder_of_before_a_restore_is_made_anew(node: CodeNode, tmp_path: Path) -> None:
    first = msgspec.structs.replace(node.bind(), epoch=1)
    assert await node.provide(first) is None
    (folder(tmp_path) / "train.py").write_text("written before")
    again = msgspec.structs.replace(first, epoch=1 + RESTORE_STEP)
    assert await node.provide(again) is None
    assert (folder(tmp_path) / "train.py").read_text() == "print()"


async def test_what_lies_here_and_is_corrupt_by_now_is_fetched_anew(
    node: CodeNode, tmp_path: Path
) -> None:
    assert await node.provide(node.bind()) is None
    kept = node.code.place(node.taken.digest)
    raw = bytearray(kept.read_bytes())
    raw[-1] ^= 1
    kept.write_bytes(raw)
    assert await node.provide(node.bind(2)) is None
    assert take(str(folder(tmp_path, 2)), "").digest == node.taken.digest


async def test_a_chunk_that_comes_corrupt_is_this_nodes_trouble_and_leaves_nothing(
    node: CodeNode, tmp_path: Path
) -> None:
    last = node.taken.snapshot.chunks[-1].digest
    node.gateway.changed[last] = b"other"
    refused = await node.provide(node.bind())
    assert refused is not None
    assert refused.of_node
    assert refused.detail == f"chunk {last[:12]} of the code came corrupt"
    assert not folder(tmp_path).exists()
    assert os.listdir(tmp_path / "state" / "code") == []


async def test_a_gateway_that_is_away_is_asked_again(
    node: CodeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_code, "ASK_WITHIN_S", 0.01)
    monkeypatch.setattr(node_code, "ASK_AGAIN_S", 0.0)
    node.gateway.silent = 3
    assert await node.provide(node.bind()) is None
    monkeypatch.setattr(node_code, "ASKED_FOR_S", 0.05)
    node.code.place(node.taken.digest).unlink()
    node.gateway.silent = 10**6
    refused = await node.provide(node.bind(2))
    assert refused is not None
    assert refused.of_node
    assert "no gateway answered for the code of j1.2" in refused.detail


async def test_why_there_is_no_code_is_told_to_the_owner(
    node: CodeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_code, "ASK_AGAIN_S", 0.0)
    node.gateway.refused = (Reason.NO_CODE, "VC nlp has no such snapshot any more")
    refused = await node.provide(node.bind())
    assert refused is not None
    assert not refused.of_node
    assert refused.detail == "VC nlp has no such snapshot any more (no-code)"
    node.gateway.refused = (Reason.NOT_BOUND_HERE, "not here")
    refused = await node.provide(node.bind())
    assert refused is not None
    assert refused.of_node
    assert len(node.gateway.asked) == 2 + node_code.NOT_BOUND_TIMES


async def test_a_folder_goes_with_its_attempt_unless_it_has_outputs(
    node: CodeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.provide(node.bind())
    await node.provide(node.bind(2, ".", "ckpt/"))
    await node.code.over("j1", 1)
    await node.code.over("j1", 2)
    assert not folder(tmp_path).exists()
    assert folder(tmp_path, 2).exists()
    assert await node.code.sweep(lambda job, attempt: False) == []
    monkeypatch.setattr(node_code, "KEPT_BYTES_MAX", 0)
    assert await node.code.sweep(lambda job, attempt: True) == []
    assert [work.attempt for work in await node.code.sweep(lambda job, attempt: False)] == [2]
    assert not folder(tmp_path, 2).parent.exists()


async def test_outputs_are_listed_and_given_and_nothing_else_can_be_reached(
    node: CodeNode, tmp_path: Path
) -> None:
    await node.provide(node.bind(1, "sub", "ckpt", "one.txt"))
    inside = folder(tmp_path) / "sub"
    (inside / "ckpt").mkdir()
    (inside / "ckpt" / "model.pt").write_bytes(b"m" * 600_000)
    (inside / "one.txt").write_text("1")
    (inside / "else").write_text("not named")
    (inside / "ckpt" / "etc").symlink_to("/etc")
    os.mkfifo(inside / "ckpt" / "pipe")
    (tmp_path / "state" / "rank-key").write_text("secret")
    listed = json.loads((await node.ask()).payload)
    assert [each[:2] for each in listed["files"]] == [["ckpt/model.pt", 600_000], ["one.txt", 1]]
    first = await node.ask("ckpt/model.pt")
    second = await node.ask("ckpt/model.pt", offset=len(first.payload), token=first.headers[TOKEN])
    assert first.payload + second.payload == b"m" * 600_000
    found: dict[str, str] = {}
    async with asyncio.timeout(10):
        while DIGEST not in found:
            found = dict((await node.ask("ckpt/model.pt", digest=True)).headers)
    assert found[DIGEST] == hashlib.sha256(b"m" * 600_000).hexdigest()
    for path, reason in (
        ("../../../rank-key", Reason.BAD_VALUE),
        ("/etc/passwd", Reason.BAD_VALUE),
        ("ckpt/etc/passwd", Reason.NO_OUTPUT),
        ("ckpt/etc", Reason.NO_OUTPUT),
        ("ckpt/pipe", Reason.NO_OUTPUT),
        ("ckpt", Reason.NO_OUTPUT),
        ("none", Reason.NO_OUTPUT),
    ):
        answer = await node.ask(path)
        assert (answer.payload, answer.headers[REASON]) == (b"", reason), path
        assert "\n" not in answer.headers[REFUSED]
    (inside / "one.txt").write_text("22")
    changed = await node.ask("one.txt", token=first.headers[TOKEN])
    assert changed.headers[REASON] == Reason.OUTPUT_CHANGED
