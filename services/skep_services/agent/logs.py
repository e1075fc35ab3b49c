"""Answers requests for pieces of job logs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from skep.ids import job_sequence
from skep.wire.bounds import BYTES_MAX, UNDECODABLE, Attempt, Count, Rank, Short
from skep_services.agent.environment import log_path
from skep_services.agent.log_times import LogTimes, since
from skep_services.agent.runner_log import open_file
from skep_services.ports import Bus, Delivery

PIECE_BYTES_MAX = 256 * 1024
SIZE_HEADER = "Skep-Size"
ENDED_HEADER = "Skep-Ended"
BEGIN_HEADER = "Skep-Begin"
AGO_S_MAX = 100 * 365 * 24 * 3600


class LogRequest(msgspec.Struct, frozen=True):
    """Which piece of which rank's log is wanted; `offset` and `limit` are bytes.

    With `ago_s` the answer says where begins what was written in the last so many seconds.
    """

    job: Short
    attempt: Attempt
    rank: Rank
    offset: Annotated[int, Meta(ge=-BYTES_MAX, le=BYTES_MAX)] = 0
    limit: Count = PIECE_BYTES_MAX
    ago_s: Annotated[int, Meta(ge=0, le=AGO_S_MAX)] | None = None


DECODER = msgspec.json.Decoder(LogRequest)


class LogPieces:
    """Serves `skep.v1.logs.<node>` from the node's state folder."""

    def __init__(
        self, bus: Bus, state: Path, lives: Callable[[str, int], bool], times: LogTimes
    ) -> None:
        """Answer on `bus`; `lives` says whether an attempt still has a process here."""
        self._bus, self._state, self._lives, self._times = bus, state, lives, times

    async def answer(self, asked: Delivery) -> None:
        """Answer one request; what cannot be read is answered with an empty piece of size -1."""
        if not asked.reply:
            return
        try:
            wanted = DECODER.decode(asked.payload)
        except UNDECODABLE:
            await self._bus.send(asked.reply, b"", {SIZE_HEADER: "-1", ENDED_HEADER: "1"})
            return
        # Whether it lives is asked first: what an ended attempt wrote is all in the file.
        ended = "0" if self._lives(wanted.job, wanted.attempt) else "1"
        piece, size = self._piece(wanted)
        headers = {SIZE_HEADER: str(size), ENDED_HEADER: ended}
        if wanted.ago_s is not None and size >= 0:
            at = since(wanted.ago_s)
            begin = self._times.begin(wanted.job, wanted.attempt, wanted.rank, at)
            headers[BEGIN_HEADER] = str(begin)
        await self._bus.send(asked.reply, piece, headers)

    def _piece(self, wanted: LogRequest) -> tuple[bytes, int]:
        if job_sequence(wanted.job) is None:
            return b"", -1  # A name made up to reach other files.
        path = log_path(self._state, wanted.job, wanted.attempt, wanted.rank)
        try:
            with os.fdopen(open_file(str(path), os.O_RDONLY), "rb") as file:
                size = file.seek(0, 2)
                file.seek(min(max(wanted.offset, 0), size))
                return file.read(min(max(wanted.limit, 0), PIECE_BYTES_MAX)), size
        except OSError:
            return b"", -1
