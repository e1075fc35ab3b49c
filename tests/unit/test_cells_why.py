"""Why a request is refused for ever, and why it waits, in terms of cells."""

from __future__ import annotations

import pytest

from skep.cells.decide import placement
from skep.cells.decide.explain import explain_wait
from skep.cells.holds import OPPORTUNISTIC, Request
from skep.cells.legal import impossible
from skep.cells.state import Cells
from skep.ids import AttemptId
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.reasons import Reason

LEVELS = (
    Level(name="switch", fanout=2),
    Level(name="socket", fanout=2),
    Level(name="node", fanout=2),
    Level(name="rack", fanout=2),
)
V100 = Chain(
    gpu="v100",
    levels=LEVELS,
    node_level="node",
    nodes=tuple(NodeCell(node=f"n{index}") for index in range(4)),
)
K80 = Chain(
    gpu="k80",
    levels=(Level(name="node", fanout=4),),
    node_level="node",
    nodes=(NodeCell(node="k0"), NodeCell(node="k1")),
)


def quota(**levels: int) -> tuple[Quota, ...]:
    return tuple(Quota(chain="v100", level=level, count=count) for level, count in levels.items())


CLUSTER = Cluster(
    chains={"v100": V100, "k80": K80},
    pins={"mine": Pin(chain="v100", level="switch", index=15)},
    vcs={
        "nlp": VirtualCluster(cells=quota(socket=1, switch=2)),
        "cv": VirtualCluster(cells=quota(node=1), pinned=("mine",)),
        "none": VirtualCluster(),
    },
)


def ask(
    vc: str,
    *members: tuple[int, int],
    priority: int = 0,
    gpu: str = "",
    pin: str = "",
    within: str = "",
) -> Request:
    return Request(AttemptId("j"), vc, priority, members, gpu, pin, within, hard=bool(within))


@pytest.mark.parametrize(
    "request_, reason, text, hint",
    [
        (
            ask("nlpp", (1, 1)),
            Reason.UNKNOWN_VC,
            "there is no virtual cluster `nlpp`",
            "did you mean `nlp`?",
        ),
        (
            ask("nlp", (1, 1), gpu="v10"),
            Reason.NO_SUCH_GPU_TYPE,
            "no chain has GPUs of the type `v10`",
            "did you mean `v100`?",
        ),
        (
            ask("nlp", (1, 1), gpu="k80"),
            Reason.TYPE_NOT_OWNED,
            "nlp owns no cells of `k80`",
            "it owns `v100`, or ask for an opportunistic run",
        ),
        (
            ask("none", (1, 1)),
            Reason.QUOTA_TOO_SMALL,
            "none owns no cells",
            "ask for an opportunistic run",
        ),
        (
            ask("nlp", (1, 9)),
            Reason.NODE_TOO_SMALL,
            "a worker needs 9 GPUs, and a node of v100 has 8",
            "ask for at most 8 GPUs per worker, and more workers",
        ),
        (
            ask("nlp", (1, 8)),
            Reason.CELL_TOO_SMALL,
            "a worker needs 8 GPUs; largest cell of nlp for v100: socket, 4 GPUs",
            "ask for at most 4 GPUs per worker",
        ),
        (
            ask("nlp", (3, 3)),
            Reason.QUOTA_TOO_SMALL,
            "the gang needs 9 GPUs, and nlp for v100 has 8",
            "ask for at most 8 GPUs in all",
        ),
        (
            ask("nlp", (2, 3)),
            Reason.CELLS_DO_NOT_PACK,
            "workers of 2 x 3 GPUs do not fit what nlp for v100 consists of: 1 x 4, 2 x 2 GPUs",
            "ask for smaller workers, so that they fill cells",
        ),
        (
            ask("nlp", (2, 4)),
            Reason.CELLS_DO_NOT_PACK,
            "workers of 2 x 4 GPUs do not fit what nlp for v100 consists of: 1 x 4, 2 x 2 GPUs",
            "ask for smaller workers, so that they fill cells",
        ),
        (
            ask("nlp", (4, 2), within="node"),
            Reason.WITHIN_TOO_SMALL,
            "8 GPUs in one node: the largest that nlp owns is socket, 4 GPUs",
            "ask for at most 4 GPUs in all, a wider level, or make the wish soft",
        ),
        (
            ask("cv", (1, 4), (1, 3), (1, 1), within="socket"),
            Reason.WITHIN_TOO_SMALL,
            "8 GPUs in one socket: the largest that cv owns is socket, 4 GPUs",
            "ask for at most 4 GPUs in all, a wider level, or make the wish soft",
        ),
        (
            ask("nlp", (1, 1), within="rck"),
            Reason.UNKNOWN_LEVEL,
            "no cell has the level `rck`",
            "did you mean `rack`?",
        ),
        (ask("nlp", (1, 1), pin="mine"), Reason.UNKNOWN_PIN, "nlp owns no pinned cell `mine`", ""),
        (
            ask("cv", (1, 1), pin="min"),
            Reason.UNKNOWN_PIN,
            "cv owns no pinned cell `min`",
            "did you mean `mine`?",
        ),
        (
            ask("cv", (1, 4), pin="mine"),
            Reason.CELL_TOO_SMALL,
            "a worker needs 4 GPUs; largest cell of the pinned cell mine for v100: switch, 2 GPUs",
            "ask for at most 2 GPUs per worker",
        ),
        (
            ask("cv", (1, 1), pin="mine", priority=-1),
            Reason.PIN_NEEDS_GUARANTEE,
            "`mine` is a pinned cell: opportunistic jobs run anywhere",
            "leave the pinned cell out, or make the job guaranteed",
        ),
        (
            ask("none", (41, 1), priority=-1),
            Reason.TOO_MANY_GPUS,
            "the gang needs 41 GPUs, and the cluster for v100 has 32",
            "ask for at most 32 GPUs in all",
        ),
        (
            ask("none", (2, 8), priority=-1, within="node"),
            Reason.WITHIN_TOO_SMALL,
            "16 GPUs in one node: the largest that the cluster owns is node, 8 GPUs",
            "ask for at most 8 GPUs in all, a wider level, or make the wish soft",
        ),
    ],
)
def test_refused_for_ever(request_: Request, reason: Reason, text: str, hint: str) -> None:
    assert impossible(CLUSTER, request_) == (reason, text, hint)


def run(cells: Cells, request: Request) -> None:
    found = placement.find_placement(cells, request)
    assert found is not None, request
    cells.carry_out(request, found)


def why(cells: Cells, request: Request) -> tuple[Reason, str]:
    assert placement.find_placement(cells, request) is None
    return explain_wait(cells, request)


def test_it_waits_for_cells_that_others_use() -> None:
    cells = Cells(CLUSTER)
    run(cells, ask("cv", (1, 6), priority=3)._replace(job=AttemptId("j1")))
    run(cells, ask("cv", (1, 2), priority=0)._replace(job=AttemptId("j2")))
    assert why(cells, ask("cv", (1, 8), priority=2)) == (
        Reason.WAITS_FOR_CELLS,
        "to be had in the cells of cv with priority 2: 2 of 8 GPUs; "
        "in use: j1 (6 GPUs, priority 3)",
    )


def test_it_waits_because_idle_gpus_are_scattered_over_cells() -> None:
    cells = Cells(CLUSTER)
    run(cells, ask("nlp", (1, 3))._replace(job=AttemptId("j1")))
    assert why(cells, ask("nlp", (1, 4))) == (
        Reason.WAITS_FOR_AFFINITY,
        "to be had in the cells of nlp: 5 GPUs, at most 2 on one node; "
        "in use: j1 (3 GPUs, priority 0)",
    )
    run(cells, ask("cv", (1, 3))._replace(job=AttemptId("j2")))
    run(cells, ask("cv", (1, 3))._replace(job=AttemptId("j3")))
    assert why(cells, ask("cv", (2, 1), within="socket")) == (
        Reason.WAITS_FOR_AFFINITY,
        "to be had in the cells of cv: 2 GPUs, at most 1 in one socket; "
        "in use: j2 (3 GPUs, priority 0), j3 (3 GPUs, priority 0)",
    )


def test_it_waits_for_hardware_that_its_tenant_has_to_bear() -> None:
    cells = Cells(CLUSTER)
    run(cells, ask("cv", (1, 1))._replace(job=AttemptId("j1")))
    node = cells.chains["v100"].topology.node(cells.holds[AttemptId("j1")].spots[0].leaves[0])
    cells.set_bad(node, (7,), bad=True)
    assert why(cells, ask("cv", (1, 7))) == (
        Reason.WAITS_FOR_REPAIR,
        f"it would fit but for 1 bad GPU on {node} in the cells of cv: hardware that cv has to "
        "bear",
    )


def test_it_waits_for_other_resources() -> None:
    cells = Cells(CLUSTER)
    assert explain_wait(cells, ask("cv", (1, 8))) == (
        Reason.WAITS_FOR_NODES,
        "the cells of cv have room, but their nodes lack CPUs or memory for the workers",
    )


def test_what_was_legal_once_may_fit_no_cell_now() -> None:
    assert why(Cells(CLUSTER), ask("nlp", (1, 8))) == (
        Reason.FITS_NO_CELL,
        "a worker needs 8 GPUs; largest cell of nlp for v100: socket, 4 GPUs; "
        "ask for at most 4 GPUs per worker",
    )


def test_an_opportunistic_job_waits_for_idle_gpus() -> None:
    cells = Cells(CLUSTER)
    for number in range(5):
        run(
            cells,
            ask("none", (1, 6), priority=OPPORTUNISTIC)._replace(job=AttemptId(f"o{number}"))
            if number < 4
            else ask("none", (2, 2), priority=OPPORTUNISTIC, gpu="k80"),
        )
    assert why(cells, ask("none", (1, 4), priority=OPPORTUNISTIC, gpu="v100")) == (
        Reason.WAITS_FOR_AFFINITY,
        "idle (v100): 8 GPUs, at most 2 on one node",
    )
    assert why(cells, ask("none", (5, 2), priority=OPPORTUNISTIC, gpu="v100")) == (
        Reason.WAITS_FOR_GPUS,
        "10 GPUs wanted; idle (v100): 8 GPUs, at most 2 on one node",
    )
