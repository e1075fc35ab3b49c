"""What the gateway makes once for many pages: compressed frames, and trees of cells."""

import asyncio
import gzip
import zlib
from typing import Any

import pytest

from skep_services.gateway import trees
from skep_services.gateway.feed import MEMBER, Frame, Gzip
from skep_services.gateway.trees import Trees


def test_frames_that_were_compressed_apart_are_one_stream_for_each_reader() -> None:
    frames = [Frame(b"data: %d\n\n" % number * 300) for number in range(3)]
    for begin in range(3):
        reader, seen = Gzip(), zlib.decompressobj(wbits=31)
        stream, text = MEMBER, seen.decompress(MEMBER)
        for frame in frames[begin:]:
            piece = reader.add(frame)
            assert seen.decompress(piece) == frame.raw, "a frame is there when it has come"
            stream, text = stream + piece, text + frame.raw
        assert gzip.decompress(stream + reader.end()) == text


@pytest.mark.asyncio
async def test_a_large_tree_is_made_once_for_all_that_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "LARGE_S", -1.0)
    monkeypatch.setattr(trees, "TIMES", 1e9)
    kept, made = Trees(), 0

    def tree() -> Any:
        nonlocal made
        made += 1
        number = made
        return lambda: {"made": number}

    answers = await asyncio.gather(*(kept.answer(("", ""), tree) for _ in range(5)))
    assert {answer.raw for answer in answers} == {b'{"made":1}'}
    assert gzip.decompress(answers[0].packed) == answers[0].raw
    assert (await kept.answer(("lab", ""), tree)).raw == b'{"made":2}', "others see another one"
    assert (await kept.answer(("", ""), tree)).raw == b'{"made":1}'


@pytest.mark.asyncio
async def test_a_small_tree_is_made_of_what_is_known_at_the_request() -> None:
    kept, made = Trees(), iter(range(3))
    for number in range(2):
        answer = await kept.answer(("", ""), lambda: lambda: next(made))
        assert answer.raw == b"%d" % number
