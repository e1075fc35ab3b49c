"""Runs as tasks of an engine: several at a time, with progress and an orderly stop.

What comes of a run depends on its order and the trace alone, so neither the engine nor the number
of its workers changes anything but the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from skep_lab.traces.job import Trace
from skep_services import durable
from skep_services.engines.deal import Ear, Engine
from skep_services.engines.stop import Stop
from skep_services.engines.task import Task, Watch
from skep_services.simulations.models import measured_digest, speeds
from skep_services.simulations.order import Order, Played, play

Tell = Callable[[Sequence[float]], None]
"""Told how far each run is, 0 to 1, in their order."""
WORK = f"{__name__}:work"


class ElsewhereError(Exception):
    """A worker has other measurements than the command."""


class _Sent(msgspec.Struct, frozen=True):
    """What a worker gets beside the trace: an order, and the digest of the measurements."""

    order: Order
    measured: str


def play_all(
    orders: Sequence[Order],
    traces: Mapping[int, Trace],
    engine: Engine,
    tell: Tell,
    stop: Stop,
    say: Callable[[str], None],
) -> list[Played | None]:
    """Return what comes of each order, None where it was never begun because of `stop`.

    Args:
        orders: The runs.
        traces: The jobs by seed.
        engine: What runs them.
        tell: Told how far each run is, 0 to 1, in their order.
        stop: Once it is asked for, no further run begins, and those that go on end early.
        say: Told what a person should know meanwhile.

    Raises:
        EngineError: A run failed, or the engine cannot be used.
    """
    found: list[Played | None] = [None] * len(orders)

    def take(place: int, data: bytes) -> None:
        played = msgspec.msgpack.decode(data, type=Played)
        if orders[place].jobs_to:
            lines = played.job_lines.encode()
            durable.write(orders[place].jobs_to, lines, 0o666, sync=False)
        found[place] = msgspec.structs.replace(played, job_lines="")

    engine.run(_tasks(orders, traces), Ear(take, tell, say), stop)
    return found


def _tasks(orders: Sequence[Order], traces: Mapping[int, Trace]) -> list[Task]:
    encoded: dict[int, bytes] = {}
    """By identity: the seeds of a file share one trace, which is sent once."""
    tasks = []
    for order in orders:
        trace = traces[order.settings.seed]
        if id(trace) not in encoded:
            encoded[id(trace)] = msgspec.msgpack.encode(trace)
        sent = _Sent(order, measured_digest(order.models))
        tasks.append(Task(order.label, WORK, (msgspec.msgpack.encode(sent), encoded[id(trace)])))
    return tasks


def work(inputs: Sequence[bytes], watch: Watch) -> bytes:
    """Play one order: what an engine's worker calls.

    Args:
        inputs: The order and the trace.
        watch: Told which part of the jobs is over.

    Raises:
        ElsewhereError: The measurements here are not those of the command.
    """
    sent = msgspec.msgpack.decode(inputs[0], type=_Sent)
    trace = msgspec.msgpack.decode(inputs[1], type=Trace)
    order = sent.order
    if measured_digest(order.models) != sent.measured:
        text = f"--models {order.models}: SKEP_SHARED_DATA has other measurements there than here"
        raise ElsewhereError(text)

    def told(over: int, jobs: int) -> bool:
        return watch(over / max(jobs, 1))

    return msgspec.msgpack.encode(play(order, trace, speeds(order.models, order.cluster), told))
