"""What the papers print about speeds: enough to simulate with where no table of measurements is.

Only numbers that stand in a text, a table or beside a figure are here, each with its place. Bars
and curves without numbers are not read off, so GENIE (figures 4 to 8 and 18) and DL² (figures 1, 2
and 13) add the shape of things and no speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from skep.perf.interference import COPIES_MAX, TABLE_1, Load, contention
from skep.perf.loads import GAVEL
from skep_lab.workloads.names import normalised
from skep_lab.workloads.table import Place, Spread, Table, Work


class Printed(NamedTuple):
    """One printed number. `used` is False for what no situation can express."""

    model: str
    what: str
    number: float
    unit: str
    where: str
    used: bool = True


LOCALITY: Mapping[str, float] = {
    "vgg16": 5.9,
    "transformer": 2.7,
    "deepspeech": 1.6,
    "inception3": 1.4,
}
"""How many times as long a mini-batch takes on 4 GPUs of two servers as of one (SCHED², Figure 1
and section II-A). Taken for every split of a job that one node could hold."""

NETWORK: Mapping[str, float] = {"resnet50": 0.47, "inception3": 0.30, "deepspeech": 0.05}
"""Slowdown of a 2-GPU job with one GPU on each of two 4-GPU servers, "up to" (Gandiva, Figure 4 and
section 3.2): read as that beside three jobs of its own kind, which is when the servers are full."""
NETWORK_NEIGHBOURS = 3

SWITCH: Mapping[tuple[str, str], float] = {("lm", "lm"): 0.19, ("resnet50", "lm"): 0.0}
"""Slowdown of the first beside the second under one PCIe switch (Gandiva, Figure 3, section 3.2).
That of GNMT is called modest, without a number."""

WITHIN: Mapping[str, float] = {"vgg16": 0.60, "resnet50": 1.0}
"""Rate of 2 P100s on two sockets relative to one switch (Gandiva, Figure 1 and section 3.1). A
situation does not see sockets."""

MEMORY: Mapping[str, int] = {"resnet50": 23_000_000_000 // 4, "gnmt": 1_200_000_000}
"""Peak bytes of a GPU: ResNet-50 uses 23 GB on four K80s; GNMT 0.4 GB at its lowest, and three
times as much at its highest (Gandiva, Figure 5 and section 3.3)."""

MINI_BATCH_S: Mapping[str, tuple[str, int, float]] = {"resnet50": ("k80", 4, 1.5)}
"""Type, GPUs and seconds of one mini-batch (Gandiva, Figure 5a and section 3.3)."""

BEST_RATIO: Mapping[str, tuple[int, int]] = {"seq2seq": (4, 8), "vgg16": (6, 6)}
"""The fastest of 4:8, 6:6 and 8:4 servers and workers (DL², Figure 2): an order, and no speed."""

_ROWS = {normalised(name).model: row for name, row in TABLE_1.items()}


def own_contention(gain: float) -> float:
    """Return what copies of a job add to one another, of what packing them gains at best.

    n copies reach n / (1 + (n - 1) c) together: at best with COPIES_MAX of them where that grows
    with n, and with two where it falls. So `skep.perf.interference.packing_max` gives the gain
    back, to the digit, for every row of Gandiva's Table 1.
    """
    return (COPIES_MAX / gain - 1) / (COPIES_MAX - 1) if gain > 1 else 2 / gain - 1


LOADS: Mapping[str, Load] = {
    model: Load(used, demand=math.sqrt(own_contention(packed / sliced)))
    for model, (used, sliced, packed) in _ROWS.items()
}
"""The jobs of Gandiva's Table 1."""


class Figures(Table):
    """The papers' numbers as a table. Pairs of Gavel's models are known by their fitted loads."""

    name = "figures"
    origin = "numbers printed in the papers of Gandiva, SCHED² and DL²"

    def models(self) -> tuple[str, ...]:
        pairs = (normalised(name).model for loads in GAVEL.values() for name in loads)
        known = {*LOCALITY, *NETWORK, *_ROWS, *(one for one, _ in SWITCH), *MEMORY, *pairs}
        return tuple(sorted(known))

    def locality(self, work: Work, place: Place, fewest: Spread) -> float | None:
        times = LOCALITY.get(work.model)
        if times is None or len(fewest) > 1:
            return None
        return 1 / times if len(place.spread) > 1 else 1.0

    def packed(self, work: Work, partner: Work, place: Place) -> float | None:
        own, other = load_of(work, place.gpu_type), load_of(partner, place.gpu_type)
        if own is None or other is None:
            return None
        return 1 / (1 + contention(own, other))

    def beside(self, work: Work, neighbour: Work, place: Place) -> float | None:
        if len(place.spread) == 1:
            slowdown = SWITCH.get((work.model, neighbour.model))
            return None if slowdown is None else 1 - slowdown
        slowdown = NETWORK.get(work.model)
        if slowdown is None:
            return None
        return 1 / (1 + (1 / (1 - slowdown) - 1) / NETWORK_NEIGHBOURS)

    def utilisation(self, work: Work, place: Place) -> float | None:
        row = _ROWS.get(work.model)
        return None if row is None else row[0]

    def memory(self, work: Work) -> int | None:
        return MEMORY.get(work.model)

    def seconds(self, work: Work, place: Place) -> float | None:
        if (row := _ROWS.get(work.model)) and place.gpus == 1 and place.gpu_type in ("", "p40"):
            return 1 / row[1]
        kind, gpus, seconds = MINI_BATCH_S.get(work.model, ("", 0, 0.0))
        return seconds if (kind, gpus) == (place.gpu_type, place.gpus) else None


def load_of(work: Work, gpu_type: str) -> Load | None:
    """Return what a model does to a GPU: by Gandiva's Table 1, or as fitted to Gavel's pairs.

    Of a model that Gavel measured at several batch sizes, the nearest; of types that it did not
    measure, the V100's.

    Args:
        work: The job.
        gpu_type: The type of the GPU.

    Returns:
        None if neither paper has the model.
    """
    if load := LOADS.get(work.model):
        return load
    loads = GAVEL.get(gpu_type, GAVEL["v100"])
    near: list[tuple[float, int, tuple[float, float, float]]] = []
    for text, numbers in loads.items():
        name = normalised(text)
        if name.model == work.model:
            batch = max(name.batch, 1)
            off = abs(math.log(batch / work.worker_batch)) if work.batch else 0.0
            near.append((off, batch, numbers))
    return Load(0.0, *min(near)[2]) if near else None


def printed() -> tuple[Printed, ...]:
    """Return every number above with its place, in the order of the papers."""
    rows = [
        Printed(
            model,
            "rate, two sockets against one switch",
            rate,
            "x",
            "Gandiva, Figure 1",
            used=False,
        )
        for model, rate in WITHIN.items()
    ]
    rows += [
        Printed(
            one, f"slowdown beside {other}, one PCIe switch", slowdown, "part", "Gandiva, Figure 3"
        )
        for (one, other), slowdown in SWITCH.items()
    ]
    rows += [
        Printed(model, "slowdown, network shared", slowdown, "part", "Gandiva, Figure 4")
        for model, slowdown in NETWORK.items()
    ]
    rows += [
        Printed(model, "peak memory of a GPU", float(size), "bytes", "Gandiva, Figure 5")
        for model, size in MEMORY.items()
    ]
    rows += [
        Printed(model, f"mini-batch on {gpus} {kind}", seconds, "s", "Gandiva, Figure 5a")
        for model, (kind, gpus, seconds) in MINI_BATCH_S.items()
    ]
    for model, (used, sliced, packed) in _ROWS.items():
        rows += [
            Printed(model, "utilisation", used, "part", "Gandiva, Table 1"),
            Printed(model, "mini-batches, time-sliced", sliced, "1/s", "Gandiva, Table 1"),
            Printed(model, "mini-batches, packed at best", packed, "1/s", "Gandiva, Table 1"),
        ]
    rows += [
        Printed(model, "mini-batch, two servers against one", times, "x", "SCHED², Figure 1")
        for model, times in LOCALITY.items()
    ]
    rows += [
        Printed(
            model,
            f"servers for {workers} workers, the best of 12 in all",
            servers,
            "",
            "DL², Figure 2",
            used=False,
        )
        for model, (servers, workers) in BEST_RATIO.items()
    ]
    return tuple(rows)
