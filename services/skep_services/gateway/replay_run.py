"""One replay, in a process of its own: the jobs of a span, simulated as it was and otherwise.

    the gateway ── what is asked, one line of JSON ──▶ standard input
                ◀── lines of JSON: how far it is, then its outcome or why there is none

It reads the allocator's log from the bus beside the gateway. It ends when its standard input does,
so it never outlives the gateway. The gateway bounds its memory and its processor time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from skep.units import MIB, Duration, Instant, in_seconds
from skep.wire import subjects
from skep.wire.reasons import Reason
from skep_lab.live_log.live_run import Lived, NothingError, lived
from skep_lab.outcome import RunResult
from skep_lab.simulator.run import run as simulate
from skep_lab.simulator.settings import Settings
from skep_lab.workloads.situation import Steady
from skep_services.adapters.nats_access import REPLAY
from skep_services.adapters.nats_api import stream_info
from skep_services.adapters.nats_bus import NatsBus
from skep_services.adapters.nats_link import LinkOptions
from skep_services.adapters.nats_read import read_each
from skep_services.adapters.wiring import archive_of
from skep_services.gateway.replay_said import Asked, Done, Failed, Progress, Said
from skep_services.ports import CorruptLogError, Delivery, MissingStreamError, RefusedError
from skep_services.replaying import each_record, measures
from skep_services.service import settings as service_settings

LOG_BYTES_MAX = 512 * MIB
"""The whole log is held in memory while it is read."""
JOBS_MAX = 20_000
"""Of one span: two simulations of these take minutes."""
JOBS_SHOWN = 500
"""Jobs in the outcome, those with the largest difference first."""
LATER_S = 0.001
TOLD_EVERY = 0.01
"""A part of a phase: further progress is told after it."""


class _NotPossibleError(Exception):
    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def main() -> int:
    """Do what standard input asks for, and tell on standard output."""
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=Asked)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        _say(Done(outcome=_replay(asked)))
    except _NotPossibleError as error:
        _say(Failed(reason=error.reason, text=str(error)))
    except MemoryError:
        text = "it needs more memory than it may have: ask for a shorter span"
        _say(Failed(reason=Reason.REPLAY_TOO_LARGE, text=text))
    return 0


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


def _progress(phase: str) -> Callable[[int, int], bool]:
    """Return what tells how far a phase is, and that it goes on."""
    told = -1.0

    def tell(done: int, total: int) -> bool:
        nonlocal told
        part = min(1.0, done / max(1, total))
        if part >= told + TOLD_EVERY:
            told = part
            _say(Progress(phase=phase, part=round(1000 * part)))
        return True

    tell(0, 1)
    return tell


def _replay(asked: Asked) -> dict[str, Any]:
    """Return the outcome.

    Raises:
        _NotPossibleError: The log cannot be read, or has nothing to replay in the span.
    """
    messages = asyncio.run(_log(_progress("reading")))
    window = Instant(asked.since), Instant(asked.until)
    try:
        live = lived(each_record(messages, "allocator"), window)
    except NothingError as error:
        raise _NotPossibleError(Reason.NOTHING_TO_REPLAY, f"in that span: {error}") from None
    except CorruptLogError as error:
        raise _NotPossibleError(Reason.REPLAY_FAILED, f"the log is damaged: {error}") from None
    messages.clear()
    if len(live.trace.jobs) > JOBS_MAX:
        text = f"{len(live.trace.jobs):,} jobs are more than {JOBS_MAX:,}: ask for a shorter span"
        raise _NotPossibleError(Reason.REPLAY_TOO_LARGE, text)
    if missing := sorted(set(asked.policies) - set(live.cluster.vcs)):
        text = f"the cluster of that span had no virtual cluster {', '.join(missing)}"
        raise _NotPossibleError(Reason.UNKNOWN_VC, text)
    settings = Settings(costs=live.costs)
    other = Settings(costs=live.costs, policies=asked.policies)
    speeds = Steady()
    before = simulate(live.trace, live.cluster, settings, speeds, watch=_progress("as it was"))
    after = simulate(live.trace, live.cluster, other, speeds, watch=_progress("otherwise"))
    jobs = _jobs(live, before, after)
    return {
        "was": measures(live.result),
        "simulated": measures(before),
        "changed": measures(after),
        "jobs": jobs[:JOBS_SHOWN],
        "jobs_total": len(jobs),
        "moved": sum(_apart(one) > LATER_S for one in jobs),
        "left_out": [one.text for one in (*live.trace.problems, *live.trace.notes)][:JOBS_SHOWN],
    }


async def _log(tell: Callable[[int, int], bool]) -> list[Delivery]:
    """Return the messages of the allocator's log.

    Raises:
        _NotPossibleError: It cannot be read, or is too long.
    """
    chosen = service_settings("gateway")
    options = LinkOptions(
        servers=tuple(chosen.nats_url.split(",")),
        identity=chosen.identity,
        password=chosen.password,
        credentials=chosen.credentials,
        tls=chosen.tls,
        reader=chosen.identity + REPLAY,
    )
    found: list[Delivery] = []
    size = 0

    def take(delivery: Delivery) -> None:
        nonlocal size
        size += len(delivery.payload)
        if size > LOG_BYTES_MAX:
            text = (
                f"the log has more than {LOG_BYTES_MAX // MIB} MiB: replay it where more memory is,"
                " with `skep replay`"
            )
            raise _NotPossibleError(Reason.REPLAY_TOO_LARGE, text)
        found.append(delivery)
        tell(delivery.sequence, last)

    lost: list[Exception] = []
    try:
        bus = await NatsBus.connect(options, lost.append, archive_of(chosen.environment))
        try:
            last = (await stream_info(bus.link, subjects.ALLOC)).state.last_seq
            await read_each(bus, subjects.ALLOC, 0, take)
        finally:
            await bus.close()
    except (ConnectionError, TimeoutError, RefusedError, MissingStreamError) as error:
        text = f"the allocator's log cannot be read: {lost[0] if lost else error}"
        raise _NotPossibleError(Reason.REPLAY_FAILED, text) from None
    return found


def _jobs(live: Lived, before: RunResult, after: RunResult) -> list[dict[str, Any]]:
    """Return each job with its wait and its end in all three runs, the largest difference first."""
    runs = [{one.job.id: one for one in run.jobs} for run in (live.result, before, after)]
    found = []
    for job in live.trace.jobs:
        outcomes = [run.get(job.id) for run in runs]
        found.append(
            {
                "job": job.id,
                "vc": job.vc,
                "gpus": job.gpus,
                "submitted_at": live.begin + job.at,
                "waited_s": [None if one is None else _s(one.waited) for one in outcomes],
                "lasted_s": [
                    None if one is None or one.ended is None else _s(Duration(one.ended - job.at))
                    for one in outcomes
                ],
            }
        )
    return sorted(found, key=lambda one: (-_apart(one), int(one["submitted_at"])))


def _apart(one: dict[str, Any]) -> float:
    """Return by how much the end of a job differs between both simulations (seconds)."""
    _, before, after = one["lasted_s"]
    if before is None or after is None:
        return 0.0 if before is after else float("inf")
    return abs(float(after) - float(before))


def _s(time: Duration) -> float:
    return round(in_seconds(time), 3)


if __name__ == "__main__":
    sys.exit(main())
