"""The workload HiveD was evaluated with, as far as the paper tells it: 141,950 jobs, 11 tenants.

HiveD's trace was never published. The paper (sections 5, 5.1 and 5.2) gives:

- Table 1: how many jobs of 1, 2, 4, 8 and 16 or more GPUs each tenant submitted, its quota in per
  cent; "a 2-month trace from a production cluster of 279 8-GPU nodes";
- section 5.2: on 200 nodes with the same workload "around 90% of the GPUs are used by high-priority
  jobs";
- section 5.1: requirements on affinity are hard for most jobs; GPUs of a job are on as few nodes as
  hold them (1 x 8, 8 x 8); for 96 GPUs "we scale down the number of jobs by randomly sampling from
  the 10-day trace proportionally (96 out of 2,232)"; models of Table 2, NLP : Speech : CV = 6:3:1;
- section 5.2, reshaping: all jobs of a tenant get 8 GPUs, or 1, in such a number that its GPUs in
  all stay the same; submission times are those of randomly sampled jobs of the trace;
- section 5.2, soft affinity: randomly selected multi-GPU jobs relax it, at no loss of speed.

It leaves open what follows. Each choice was made before any run was looked at:

1. *Run times.* The setup is "similar to" the study of Philly, so they are Philly's, by the GPUs of
   a job (`draw.PHILLY`; with a Philly trace at hand, drawn from its jobs with as many GPUs).
2. *Load.* With Philly's run times alone, demand would be more than twice 1,600 GPUs, and
   res-b would ask for ten times its quota. So each tenant's run times are multiplied by one number:
   its work is then `load` (0.9) times its GPUs in the cluster of 200 nodes (choice 6) for 60 days.
   All tenants are equally loaded.
3. *The longest job* takes 10 days (in Philly 0.2 % take longer), so that one job does not occupy a
   small tenant's only node for most of the trace.
4. *Sizes of 16 or more*: 95 % have 16 GPUs, 4 % 32, 1 % 64, a mean of 17.1. Philly's own mean (22)
   contradicts Figure 8: its workload fragmentation of 0.91, when only res-f has 8-GPU jobs, allows
   at most 18. A tenant's jobs have at most the GPUs of its nodes in the cluster of 279 (but 16).
5. *Arrivals*: 60 days, the first a Sunday as in Philly's densest two months. A tenant's days differ
   (`draw.Calendar`), independently of other tenants' and of size. Jobs come in batches of one size:
   4 on average with 1 GPU, 1.4 with more, 10 s apart on average, as in Philly (gaps to a minute).
   With a Philly trace: each tenant has the submission times of the virtual cluster of the same rank
   by number of jobs, in the 60 days with most jobs, drawn with repetition and spread by 10 s.
6. *Quotas to nodes* (`assign`): "a set of node-level cells with a total number of GPUs equal to its
   quota" is no whole number, so nodes go by largest remainder, at least one to each tenant. Where
   a tenant's quota is below half a node (in 12 nodes: five of them) it gets single GPUs instead,
   and those share nodes. Jobs beyond a tenant's nodes (res-a's of 16 GPUs or more, and on 200 nodes
   res-b's) stay in the trace: they can run opportunistically only (option `nodes`).
7. *A hard job* has as few workers as it needs nodes, each with all its GPUs on one of them. A soft
   one is a gang of single GPUs that prefers one node, if one is enough.
8. *Reshaping* keeps a tenant's work, not only its GPUs: jobs are sampled by their GPUs (a job of 8
   GPUs is eight times as likely as one of 1), with their run times, which are then multiplied by
   one number for each tenant so that work is what it was.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skep.units import in_seconds, seconds
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Quota, VirtualCluster
from skep_lab.traces.generators.draw import (
    DAY_S,
    PHILLY,
    PHILLY_DAY_SIGMA,
    Calendar,
    Drawer,
    in_order,
    require,
    scaled_to,
    size_class,
    whole_seconds,
)
from skep_lab.traces.job import Trace, TraceJob


class Tenant(NamedTuple):
    """One row of Table 1: jobs with 1, 2, 4, 8 and 16 or more GPUs, and the quota in per cent."""

    jobs: tuple[int, int, int, int, int]
    quota: float


TENANTS = {
    "res-a": Tenant((429, 14, 260, 625, 40), 0.37),
    "res-b": Tenant((18319, 1593, 931, 148, 238), 0.73),
    "res-c": Tenant((3285, 161, 716, 185, 0), 0.73),
    "res-d": Tenant((1754, 0, 0, 0, 0), 1.47),
    "res-e": Tenant((2682, 110, 3005, 0, 0), 1.83),
    "res-f": Tenant((8181, 88, 618, 1337, 559), 28.57),
    "prod-a": Tenant((227, 54, 23, 1132, 138), 8.79),
    "prod-b": Tenant((16446, 67, 605, 1344, 22), 10.62),
    "prod-c": Tenant((4692, 301, 1905, 4415, 1206), 11.36),
    "prod-d": Tenant((781, 6, 545, 650, 95), 15.75),
    "prod-e": Tenant((58407, 532, 2118, 959, 2), 19.78),
}
"""HiveD, Table 1."""

SIZES = (1, 2, 4, 8, 16)
LARGE = ((16, 0.95), (32, 0.04), (64, 0.01))
"""GPUs of the jobs with 16 or more, and which part of them has so many (choice 4)."""
LEVELS = (("gpu", 1), ("switch", 2), ("socket", 4), ("node", 8))
"""HiveD's levels of cells and their GPUs (section 5.1)."""
NODE_GPUS = 8
CHAIN = "v100"
NODES, NODES_LOADED, NODES_TESTBED = 279, 200, 12
"""The production cluster, the one of section 5.2 with a higher load, and the testbed of 96 GPUs."""
DAYS = 60
LONGEST_S = 10 * DAY_S
BATCH_OF_ONE, BATCH_OF_MORE, BATCH_GAP_S = 4.0, 1.4, 10.0
MODELS = (
    (0.6, ("bi-att-flow", "language-model", "gnmt", "transformer")),
    (0.3, ("wavenet", "deepspeech")),
    (0.1, ("inception3", "resnet50", "alexnet", "vgg16", "vgg19")),
)
"""HiveD, Table 2, with the parts of section 5.1; within a kind they are equally likely."""

assert sum(sum(tenant.jobs) for tenant in TENANTS.values()) == 141_950
assert abs(sum(tenant.quota for tenant in TENANTS.values()) - 100) < 1e-6


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may differ from section 5.2's simulation of the whole trace."""

    load: float = 0.9
    """Work over what the tenants' GPUs in the cluster of 200 nodes could do."""
    loads: tuple[str, ...] = ()
    """Tenants whose load is another, as `prod-a:0.5`."""
    day_sigma: float = PHILLY_DAY_SIGMA
    """How much a tenant's days differ (`draw.Calendar`); 0: but for the day of the week, not."""
    days: float = 0.0
    """Only the jobs of the first so many days; 0: all."""
    part: float = 1.0
    """Only this part of the jobs, at random (section 5.1: 96/2232)."""
    soft: float = 0.0
    """This part of the jobs with more than one GPU relaxes its affinity (Figure 9)."""
    reshaped: tuple[str, ...] = ()
    """These tenants' jobs have 8 GPUs, all others' 1 (Figure 8: res-f, then more)."""
    without: tuple[str, ...] = ()
    """Tenants whose jobs are left out (Figure 7: prod-a, then res-f as well)."""
    models: bool = False
    """Give the jobs models of Table 2 (section 5.1)."""
    nodes: int = 0
    """Jobs beyond their tenant's cells in a cluster of so many nodes are opportunistic; 0: none."""

    def __post_init__(self) -> None:
        for name in (*self.reshaped, *self.without, *self.by_tenant()):
            require(name in TENANTS, f"hived has no tenant {name!r}: {', '.join(TENANTS)}")
        require(0 <= self.part <= 1, "part is from 0 to 1")
        require(0 <= self.soft <= 1, "soft is from 0 to 1")
        require(min((self.load, *self.by_tenant().values())) > 0, "load is above 0")
        require(self.day_sigma >= 0, "day_sigma is 0 or more")
        require(self.days >= 0, "days are 0 or more")
        require(self.nodes == 0 or self.nodes >= NODES_TESTBED, "nodes are 0, or 12 or more")

    def by_tenant(self) -> dict[str, float]:
        """Return the loads of the tenants that have one of their own.

        Raises:
            ValueError: A load is not NAME:NUMBER.
        """
        found: dict[str, float] = {}
        for each in self.loads:
            name, _, load = each.partition(":")
            try:
                found[name] = float(load)
            except ValueError:
                text = f"a tenant's load is NAME:NUMBER, as prod-a:0.5, not {each!r}"
                raise ValueError(text) from None
        return found


DEFAULT = Options()


def generate(seed: int, options: Options = DEFAULT, past: Trace | None = None) -> Trace:
    """Return the workload of a seed.

    Args:
        seed: The seed.
        options: What differs from the simulation of section 5.2.
        past: A Philly trace to draw run times and arrivals from; None: distributions.
    """
    jobs: list[TraceJob] = []
    times = _times_of(past) if past is not None and past.jobs else []
    for rank, name in enumerate(_by_jobs()):
        if name in options.without:
            continue
        rng = random.Random(f"hived {seed} {name}")
        arrivals = times[rank % len(times)] if times else None
        drawn = _tenant(rng, name, options, _lengths(rng, past), arrivals)
        if options.reshaped:
            drawn = _reshape(rng, drawn, NODE_GPUS if name in options.reshaped else 1)
        drawn = _chosen(random.Random(f"hived {seed} {name} chosen"), drawn, options)
        if options.nodes:
            own = gpus_of(assign(options.nodes)[name])
            drawn = [
                msgspec.structs.replace(job, opportunistic=True) if job.gpus > own else job
                for job in drawn
            ]
        jobs += drawn
    source = f"Philly's {len(past.jobs)} jobs" if past is not None else "a fit to Philly"
    notes = (f"HiveD, Table 1, seed {seed}; run times and arrivals of {source}",)
    return in_order(f"hived-{seed}", jobs, "h", notes)


def assign(nodes: int) -> dict[str, dict[str, int]]:
    """Return the cells of every tenant in a cluster of so many 8-GPU nodes: {"node": n}, mostly.

    A tenant with less than half a node has {"gpu": n} (choice 6). All cells fit the cluster.
    """
    gpus = {name: tenant.quota / 100 * nodes * NODE_GPUS for name, tenant in TENANTS.items()}
    small = {name: max(1, round(n)) for name, n in gpus.items() if n < NODE_GPUS / 2}
    left = nodes - -(-sum(small.values()) // NODE_GPUS)
    large = [name for name in TENANTS if name not in small]
    assert left >= len(large), f"{nodes} nodes are too few for {len(TENANTS)} tenants"
    shared = sum(TENANTS[name].quota for name in large)
    exact = {name: TENANTS[name].quota / shared * left for name in large}
    count = {name: max(1, int(exact[name])) for name in large}
    by_need = sorted(large, key=lambda name: count[name] - exact[name])
    for name in by_need[: max(0, left - sum(count.values()))]:
        count[name] += 1
    return {
        name: {"gpu": small[name]} if name in small else {"node": count[name]} for name in TENANTS
    }


def assign_levels(nodes: int) -> dict[str, dict[str, int]]:
    """Return cells of all levels for as many GPUs as `assign` gives every tenant (Figure 11).

    "Each tenant's assignment matches the distribution of its demands on each level": demands are
    GPU-seconds at Philly's mean run times, jobs of several nodes count as nodes. Cells of a level
    are rounded, and what is over or short goes to the next lower one; a tenant that has jobs for a
    level has one cell of it at least, as long as its GPUs last.
    """
    found: dict[str, dict[str, int]] = {}
    for name, cells in assign(nodes).items():
        tenant, left = TENANTS[name], gpus_of(cells)
        demands = [
            count * size * PHILLY[size].mean_s
            for size, count in zip(SIZES, tenant.jobs, strict=True)
        ]
        demands[3] += demands.pop()
        own, level_gpus = left, 0.0
        found[name] = {}
        for index, (level, size) in enumerate(reversed(LEVELS)):
            level_gpus += own * demands[-1 - index] / sum(demands)
            least = 1 if demands[-1 - index] else 0
            count = left if size == 1 else min(max(least, round(level_gpus / size)), left // size)
            if count:
                found[name][level] = count
            left -= count * size
            level_gpus -= count * size
    return found


def cluster(nodes: int, cells: dict[str, dict[str, int]] | None = None) -> Cluster:
    """Return a cluster of 8-GPU nodes with HiveD's levels (section 5.1) and its tenants' cells.

    Args:
        nodes: How many nodes.
        cells: By tenant, its cells; None: those of `assign`.
    """
    own = assign(nodes) if cells is None else cells
    chain = Chain(
        gpu="v100",
        levels=tuple(Level(name=name, fanout=2) for name, size in LEVELS if size > 1),
        node_level="node",
        nodes=tuple(NodeCell(node=f"n{index}") for index in range(1, nodes + 1)),
    )
    vcs = {
        vc: VirtualCluster(
            cells=tuple(
                Quota(chain=CHAIN, level=level, count=count) for level, count in each.items()
            )
        )
        for vc, each in own.items()
    }
    return Cluster(chains={CHAIN: chain}, vcs=vcs)


def cluster_of(options: Options) -> Cluster:
    """Return the cluster for a workload: of `nodes` (279 if 0), less those of tenants left out.

    "Removing its GPUs and workload" is what the paper does to a tenant (section 5.2).
    """
    nodes = options.nodes or NODES
    cells = {vc: own for vc, own in assign(nodes).items() if vc not in options.without}
    return cluster(-(-sum(map(gpus_of, cells.values())) // NODE_GPUS), cells)


def gpus_of(cells: dict[str, int]) -> int:
    """Return the GPUs of a tenant's cells."""
    return sum(dict(LEVELS)[level] * count for level, count in cells.items())


def fragmentation(trace: Trace) -> float:
    """Return the workload fragmentation of section 5.2: jobs over their GPUs, 1 if all have one."""
    return len(trace.jobs) / sum(job.gpus for job in trace.jobs)


def _by_jobs() -> list[str]:
    """Return the tenants, those with most jobs first."""
    return sorted(TENANTS, key=lambda name: -sum(TENANTS[name].jobs))


def _lengths(rng: random.Random, past: Trace | None) -> Drawer:
    if past is None:
        return lambda gpus: PHILLY[size_class(gpus)].draw(rng)
    pools: dict[int, list[float]] = {size: [] for size in SIZES}
    for job in past.jobs:
        pools[size_class(job.gpus)].append(in_seconds(job.run_time))
    empty = [size for size, pool in pools.items() if not pool]
    require(not empty, f"the trace to draw from has no jobs of {empty} GPUs")
    return lambda gpus: rng.choice(pools[size_class(gpus)])


def _times_of(past: Trace) -> list[list[float]]:
    """Return submission times by virtual cluster, in the 60 days with most jobs; largest first."""
    days = [0] * (int(in_seconds(past.jobs[-1].at) // DAY_S) + 1)
    for job in past.jobs:
        days[int(in_seconds(job.at) // DAY_S)] += 1
    begins = range(max(1, len(days) - DAYS + 1))
    begin = max(begins, key=lambda day: sum(days[day : day + DAYS])) * DAY_S
    times: dict[str, list[float]] = {}
    for job in past.jobs:
        at = in_seconds(job.at) - begin
        if 0 <= at < DAYS * DAY_S:
            times.setdefault(job.vc, []).append(at)
    return sorted(times.values(), key=lambda each: -len(each))


def _tenant(
    rng: random.Random, vc: str, options: Options, length: Drawer, past: list[float] | None
) -> list[TraceJob]:
    """Return one tenant's jobs, with the work that the load asks for."""
    tenant, calendar = TENANTS[vc], Calendar(rng, DAYS, options.day_sigma)
    most = assign(NODES)[vc]["node"] * NODE_GPUS
    ats: list[float] = []
    sizes: list[int] = []
    for size, count in zip(SIZES, tenant.jobs, strict=True):
        left = count
        while left:
            batch = min(left, _batch(rng, BATCH_OF_ONE if size == 1 else BATCH_OF_MORE))
            left -= batch
            at = calendar.draw() if past is None else rng.choice(past)
            for _ in range(batch):
                ats.append(min(at, DAYS * DAY_S))
                sizes.append(_large(rng, most) if size == SIZES[-1] else size)
                at += rng.uniform(0, 2 * BATCH_GAP_S)
    lengths = [length(size) for size in sizes]
    own = assign(NODES_LOADED)[vc]["node"] * NODE_GPUS
    work = options.by_tenant().get(vc, options.load) * own * DAYS * DAY_S
    factor = scaled_to(work, sizes, lengths, LONGEST_S)
    return [
        _job(vc, at, min(factor * each, LONGEST_S), size)
        for at, each, size in zip(ats, lengths, sizes, strict=True)
    ]


def _batch(rng: random.Random, mean: float) -> int:
    """Return a geometric number with this mean, at least 1."""
    size = 1
    while rng.random() < 1 - 1 / mean:
        size += 1
    return size


def _large(rng: random.Random, most: int) -> int:
    drawn = rng.choices([size for size, _ in LARGE], [part for _, part in LARGE])[0]
    return max(SIZES[-1], min(drawn, most // SIZES[-1] * SIZES[-1]))


def _job(vc: str, at: float, run_s: float, gpus: int) -> TraceJob:
    return TraceJob(
        id="",
        at=seconds(round(at)),
        run_time=whole_seconds(run_s),
        gpus=gpus,
        workers=-(-gpus // NODE_GPUS),
        vc=vc,
    )


def _reshape(rng: random.Random, jobs: Sequence[TraceJob], size: int) -> list[TraceJob]:
    """Return a tenant's jobs with `size` GPUs each, of the same GPUs and the same work in all."""
    gpus, work = sum(job.gpus for job in jobs), sum(job.gpus * job.run_time for job in jobs)
    drawn = rng.choices(jobs, [job.gpus for job in jobs], k=round(gpus / size))
    factor = work / (size * sum(job.run_time for job in drawn))
    return [
        _job(job.vc, in_seconds(job.at), in_seconds(job.run_time) * factor, size) for job in drawn
    ]


def _chosen(rng: random.Random, jobs: list[TraceJob], options: Options) -> list[TraceJob]:
    """Return the jobs that the options ask for, soft and with models where they are to be."""
    chosen = []
    for job in jobs:
        part, soft, kind, model = (rng.random() for _ in range(4))
        if part >= options.part or (options.days and in_seconds(job.at) >= options.days * DAY_S):
            continue
        changes: dict[str, object] = {}
        if job.gpus > 1 and soft < options.soft:
            changes = {"workers": job.gpus}
            if job.gpus <= NODE_GPUS:
                changes["within"] = "node"
        if options.models:
            changes["model"] = _model(kind, model)
        chosen.append(msgspec.structs.replace(job, **changes) if changes else job)
    return chosen


def _model(kind: float, model: float) -> str:
    for part, names in MODELS:
        if kind < part:
            return names[int(model * len(names))]
        kind -= part
    names = MODELS[-1][1]
    return names[int(model * len(names))]
