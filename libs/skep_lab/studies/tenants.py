"""Random tenants and the jobs they submit, after the trace that HiveD was evaluated with.

The mix of job sizes is HiveD's Table 1, a row for each tenant; arrivals are Poisson, lengths
log-normal. One tenant floods the cluster with opportunistic jobs beside its own.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec

from skep.units import Duration, Instant, seconds
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep_lab.traces.generators.hived import TENANTS

CHAIN = "c"
FLOOD = "flood"
LEVELS = (("switch", 2), ("socket", 2), ("node", 2), ("rack", 4))
SIZE = {"gpu": 1, "switch": 2, "socket": 4, "node": 8, "rack": 32}
"""GPUs of one cell of each level."""
NODE_GPUS, RACK_NODES = 8, 4
BEGIN = Instant(1_700_000_000 * 10**9)
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

GPUS = {
    "res-a": 4,
    "res-b": 8,
    "res-c": 8,
    "res-d": 16,
    "res-e": 20,
    "res-f": 160,
    "prod-a": 64,
    "prod-b": 80,
    "prod-c": 80,
    "prod-d": 96,
    "prod-e": 128,
}
TABLE_1 = {name: (tenant.jobs, GPUS[name]) for name, tenant in TENANTS.items()}
"""HiveD, Table 1: jobs with 1, 2, 4, 8, and 16 or more GPUs; beside it the tenant's GPUs in a
cluster of 700 or so, which in the paper are a percentage."""

SIZES = (1, 2, 4, 8, 16)
LENGTH_MEDIAN_S, LENGTH_SIGMA, LENGTH_MAX_S = 0.75 * HOUR_S, 1.4, 2 * DAY_S
"""Log-normal lengths: 2 h on average. Lengths in such clusters spread over orders of magnitude."""
TIED = {4: ("socket", 0.2), 16: ("rack", 0.3)}
"""By GPUs of a job: the level that some of these jobs have to share, and which part of them."""


class Job(msgspec.Struct, frozen=True):
    """One submission. `gpus` of each worker; `lasts` is how long it runs if it is left alone."""

    vc: str
    at: Instant
    lasts: Duration
    gpus: int
    workers: int = 1
    within: str = ""
    priority: int = 0
    opportunistic: bool = False

    @property
    def total(self) -> int:
        """Return the GPUs of the gang."""
        return self.gpus * self.workers


class Trouble(NamedTuple):
    """A node (or, with a device, one GPU of it) turns bad or heals."""

    at: Instant
    node: str
    device: int | None
    bad: bool


class Settings(msgspec.Struct, frozen=True):
    """What a random experiment is drawn from. `load` is relative to the tenants' own GPUs."""

    tenants: int = 8
    days: float = 5.0
    load: float = 0.9
    spare_nodes: int = 0
    """Nodes beyond what tenants own; so many at most are bad at a time."""
    priorities: bool = False
    """Whether some jobs have a higher priority within their tenant."""


class Plan(NamedTuple):
    """A cluster with its tenants, their jobs in the order of arrival, and what goes bad when."""

    cluster: Cluster
    jobs: list[Job]
    troubles: list[Trouble]


def draw(seed: int, settings: Settings) -> Plan:
    """Return the experiment of a seed."""
    rng = random.Random(f"tenants {seed}")
    quotas: dict[str, dict[str, int]] = {}
    jobs: list[Job] = []
    for number in range(settings.tenants):
        row = rng.choice(list(TABLE_1))
        name = f"{row}-{number}"
        mix, gpus = TABLE_1[row]
        gpus = max(2, round(gpus * rng.uniform(0.5, 1.2)))
        quotas[name] = _cells(rng, gpus)
        jobs += _jobs(rng, name, quotas[name], mix, settings)
    if settings.tenants > 1:
        quotas[FLOOD] = {"node": 1}
        jobs += _jobs(rng, FLOOD, quotas[FLOOD], (8, 2, 2, 1, 0), settings)
        owned = sum(_gpus(quota) for quota in quotas.values())
        jobs += _flood(rng, owned, settings)
    jobs.sort(key=lambda job: job.at)
    cluster = _cluster(quotas, settings.spare_nodes)
    return Plan(cluster, jobs, _troubles(rng, cluster, settings))


def draw_reshaped(seed: int, settings: Settings) -> Plan:
    """Return HiveD's experiment with reshaped jobs (section 5.2), where quotas in GPUs fail.

    One tenant's jobs have 8 GPUs, all others' one; every tenant owns whole nodes, and only the
    first has GPUs to spare.
    """
    rng = random.Random(f"reshaped {seed}")
    quotas = {"large": {"node": 2 * RACK_NODES}}
    quotas |= {f"small-{number}": {"node": RACK_NODES} for number in range(settings.tenants)}
    jobs = []
    for vc, quota in quotas.items():
        large = vc == "large"
        load = msgspec.structs.replace(settings, load=0.6 if large else 1.3)
        jobs += _jobs(rng, vc, quota, (0, 0, 0, 1, 0) if large else (1, 0, 0, 0, 0), load)
    jobs.sort(key=lambda job: job.at)
    return Plan(_cluster(quotas, 0), jobs, [])


def alone(plan: Plan, vc: str) -> Plan:
    """Return the same tenant in a private cluster: its cells, its jobs for them, nothing else."""
    quota = {each.level: each.count for each in plan.cluster.vcs[vc].cells}
    jobs = [job for job in plan.jobs if job.vc == vc and not job.opportunistic]
    return Plan(_cluster({vc: quota}, 0), jobs, [])


def _gpus(quota: dict[str, int]) -> int:
    return sum(SIZE[level] * count for level, count in quota.items())


def _nodes(quota: dict[str, int]) -> int:
    return quota.get("node", 0) + RACK_NODES * quota.get("rack", 0)


def _cells(rng: random.Random, gpus: int) -> dict[str, int]:
    """Return cells of several levels that make up so many GPUs."""
    quota = {}
    for level in reversed(SIZE):
        most = gpus // SIZE[level]
        count = most if level == "gpu" else round(most * rng.choice((0.4, 0.7, 1.0)))
        if count:
            quota[level] = count
            gpus -= count * SIZE[level]
    return quota


def _cluster(quotas: dict[str, dict[str, int]], spare: int) -> Cluster:
    """Return the smallest cluster of racks that has all these cells, and spare nodes.

    Sizes divide one another, so cells fill racks without gaps.
    """
    gpus = sum(_gpus(quota) for quota in quotas.values()) + spare * NODE_GPUS
    racks = -(-gpus // SIZE["rack"])
    nodes = tuple(NodeCell(node=f"n{index}") for index in range(racks * RACK_NODES))
    chain = Chain(
        gpu="v100",
        levels=tuple(Level(name=name, fanout=fan) for name, fan in LEVELS),
        node_level="node",
        nodes=nodes,
    )
    vcs = {
        vc: VirtualCluster(
            cells=tuple(
                Quota(chain=CHAIN, level=level, count=count) for level, count in quota.items()
            )
        )
        for vc, quota in quotas.items()
    }
    return Cluster(chains={CHAIN: chain}, vcs=vcs)


def _fitting(quota: dict[str, int], mix: tuple[int, ...]) -> list[int]:
    """Return the weights of SIZES, none for jobs that these cells can never hold."""
    nodes = _nodes(quota)
    largest = max(min(SIZE[level], NODE_GPUS) for level in quota)
    return [
        weight if size <= largest or (size > NODE_GPUS and nodes * NODE_GPUS >= size) else 0
        for size, weight in zip(SIZES, mix, strict=True)
    ]


def _jobs(
    rng: random.Random, vc: str, quota: dict[str, int], mix: tuple[int, ...], settings: Settings
) -> list[Job]:
    """Return a tenant's guaranteed jobs: as many as make up about the load on its own GPUs.

    Some tenants have less to do than others: those suffer first where GPUs are shared badly.
    Given their number, the arrivals of a Poisson process are uniform.
    """
    span = settings.days * DAY_S
    wanted, work = settings.load * rng.uniform(0.7, 1.3) * _gpus(quota) * span, 0.0
    weights = _fitting(quota, mix)
    if not any(weights):
        weights = [1, 0, 0, 0, 0]
    jobs = []
    while work < wanted:
        size = rng.choices(SIZES, weights)[0]
        if size == SIZES[-1] and _nodes(quota) >= 2 * RACK_NODES and rng.random() < 0.2:
            size *= 2
        lasts = _length(rng)
        work += size * lasts
        level, part = TIED.get(size, ("", 0.0))
        # One rack alone, or one socket, is no choice: such a job would wait for an empty one.
        places = sum(
            count * SIZE[each]
            for each, count in quota.items()
            if level and SIZE[each] >= SIZE[level]
        )
        tied = rng.random() < part and places >= 2 * SIZE[level]
        jobs.append(
            Job(
                vc=vc,
                at=Instant(BEGIN + seconds(rng.uniform(0, span))),
                lasts=seconds(lasts),
                gpus=min(size, NODE_GPUS),
                workers=max(1, size // NODE_GPUS),
                within=level if tied else "",
                priority=rng.choice((0, 0, 0, 5, 10)) if settings.priorities else 0,
            )
        )
    return jobs


def _flood(rng: random.Random, owned: int, settings: Settings) -> list[Job]:
    """Return opportunistic jobs of all sizes: half the cluster would be busy with them."""
    span = settings.days * DAY_S
    jobs, work = [], 0.0
    while work < 0.5 * owned * span:
        size, lasts = rng.choices(SIZES, (4, 2, 2, 3, 1))[0], 2 * _length(rng)
        work += size * lasts
        jobs.append(
            Job(
                vc=FLOOD,
                at=Instant(BEGIN + seconds(rng.uniform(0, span))),
                lasts=seconds(lasts),
                gpus=min(size, NODE_GPUS),
                workers=max(1, size // NODE_GPUS),
                opportunistic=True,
            )
        )
    return jobs


def _length(rng: random.Random) -> float:
    drawn = LENGTH_MEDIAN_S * rng.lognormvariate(0.0, LENGTH_SIGMA)
    return min(max(drawn, 60.0), LENGTH_MAX_S)


def _troubles(rng: random.Random, cluster: Cluster, settings: Settings) -> list[Trouble]:
    """Return nodes and GPUs that go bad and heal: one place after another for each spare node."""
    nodes = [cell.node for cell in cluster.chains[CHAIN].nodes]
    found = []
    for _ in range(settings.spare_nodes):
        at = rng.expovariate(1 / (6 * HOUR_S))
        while at < settings.days * DAY_S:
            node, ends = rng.choice(nodes), at + rng.uniform(1, 18) * HOUR_S
            device = rng.randrange(NODE_GPUS) if rng.random() < 0.5 else None
            for when, bad in ((at, True), (ends, False)):
                found.append(Trouble(Instant(BEGIN + seconds(when)), node, device, bad))
            at = ends + rng.expovariate(1 / (6 * HOUR_S))
    return sorted(found, key=lambda each: each.at)
