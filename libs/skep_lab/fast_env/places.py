"""Where a gang goes: the cells' rule for one virtual cluster, and SCHED²'s packing.

The cells' rule (`skep.cells.decide.search`, HiveD section 3.3) for a VC that owns every node: the
tightest used node that holds the gang; else an empty one; else used nodes, the roomiest first, and
then empty ones. Of nodes with equally many free GPUs the one that has had them for longest is
taken. Packing (SCHED², section II-B; `skep.policy.capacity`) chooses nodes, and the cells' rule
puts the gang on these.
"""

from __future__ import annotations

from skep_lab.fast_env.arrays import JOB, NODE, NUM, State
from skep_lab.fast_env.compiled import inner


@inner
def place_in_kind(s: State, b: int, j: int, kind: int, only: bool) -> int:
    """Look for a place on nodes of one type by the cells' rule.

    Args:
        s: The batch; `tmp_node` and `tmp_gpus` are written.
        b: The environment.
        j: The job, with its present number of workers.
        kind: The type.
        only: Whether only nodes with a 1 in `s.only` may be used.

    Returns:
        On how many nodes the gang goes; 0: it does not fit.
    """
    workers, each = s.jobs[b, j, JOB.size_now], s.jobs[b, j, JOB.each]
    need = workers * each
    nodes = s.nodes.shape[1]
    best, best_free, empty = -1, 1 << 60, -1
    whole = False
    for n in range(nodes):
        if (
            s.nodes[b, n, NODE.kind] != kind
            or s.nodes[b, n, NODE.up] == 0
            or (only and s.nodes[b, n, NODE.only] == 0)
        ):
            continue
        free, size = s.nodes[b, n, NODE.free], s.nodes[b, n, NODE.size]
        whole = whole or size >= each
        if free < need:
            continue
        if free == size:
            if empty < 0 or s.nodes[b, n, NODE.stamp] < s.nodes[b, empty, NODE.stamp]:
                empty = n
        elif free < best_free or (
            free == best_free and s.nodes[b, n, NODE.stamp] < s.nodes[b, best, NODE.stamp]
        ):
            best, best_free = n, free
    if best < 0:
        best = empty
    if best >= 0:
        s.spot[b, 0, 0], s.spot[b, 0, 1] = best, need
        return 1
    if workers == 1 or not whole:
        return 0
    return _spread(s, b, kind, workers, each, only)


@inner
def _spread(s: State, b: int, kind: int, workers: int, each: int, only: bool) -> int:
    """Place a gang over several nodes: used ones first, the roomiest first; then empty ones."""
    nodes, count, left = s.nodes.shape[1], 0, workers
    for n in range(nodes):
        if (
            s.nodes[b, n, NODE.kind] != kind
            or s.nodes[b, n, NODE.up] == 0
            or (only and s.nodes[b, n, NODE.only] == 0)
        ):
            continue
        if s.nodes[b, n, NODE.free] < each:
            continue
        # Sorted insertion: used before empty, then by free GPUs, then by age.
        used, free, stamp = (
            s.nodes[b, n, NODE.free] < s.nodes[b, n, NODE.size],
            s.nodes[b, n, NODE.free],
            s.nodes[b, n, NODE.stamp],
        )
        at = count
        while at > 0:
            o = s.nodes[b, at - 1, NODE.order]
            o_used, o_free = (
                s.nodes[b, o, NODE.free] < s.nodes[b, o, NODE.size],
                s.nodes[b, o, NODE.free],
            )
            if used == o_used:
                before = (
                    free > o_free if used and free != o_free else stamp < s.nodes[b, o, NODE.stamp]
                )
            else:
                before = used
            if not before:
                break
            s.nodes[b, at, NODE.order] = o
            at -= 1
        s.nodes[b, at, NODE.order] = n
        count += 1
    for p in range(min(count, s.spot.shape[1])):
        n = s.nodes[b, p, NODE.order]
        workers_here = min(s.nodes[b, n, NODE.free] // each, left)
        s.spot[b, p, 0], s.spot[b, p, 1] = n, workers_here * each
        left -= workers_here
        if left == 0:
            return p + 1
    return 0


@inner
def place(s: State, b: int, j: int, only: bool) -> int:
    """Look for a place by the cells' rule: of several types the one with the fewest nodes.

    Returns:
        On how many nodes the gang goes; 0: it does not fit.
    """
    kinds = s.speed.shape[1]
    if s.jobs[b, j, JOB.size_now] * s.jobs[b, j, JOB.each] > s.num[b, NUM.gpus_free]:
        return 0
    best, best_parts, best_size = kinds, 1 << 60, 0
    allowed = s.jobs[b, j, JOB.kinds]
    for kind in range(kinds):
        if not (allowed >> kind) & 1:
            continue
        parts = place_in_kind(s, b, j, kind, only)
        if parts == 0:
            continue
        size = s.nodes[b, s.spot[b, 0, 0], NODE.size]
        if parts < best_parts or (parts == best_parts and size < best_size):
            best, best_parts, best_size = kind, parts, size
    return place_in_kind(s, b, j, best, only) if best < kinds else 0


@inner
def see(s: State, b: int) -> None:
    """Put nodes in the order of a policy's view, and assume that nothing is taken since.

    The order is that of the VC's cells by number: a node has one while it is used, the lowest that
    was not taken; empty nodes share the others (`skep.cells.decide.reach`).
    """
    nodes, start = s.nodes.shape[1], 0
    for n in range(nodes):
        s.nodes[b, n, NODE.assumed] = s.nodes[b, n, NODE.free] if s.nodes[b, n, NODE.up] else 0
        s.nodes[b, n, NODE.seen] = -1
    while start < nodes:
        stop = start
        while stop < nodes and s.nodes[b, stop, NODE.kind] == s.nodes[b, start, NODE.kind]:
            stop += 1
        for n in range(start, stop):
            if s.nodes[b, n, NODE.number] >= 0:
                s.nodes[b, start + s.nodes[b, n, NODE.number], NODE.seen] = n
        at = start
        for n in range(start, stop):
            if s.nodes[b, n, NODE.number] < 0:
                while s.nodes[b, at, NODE.seen] >= 0:
                    at += 1
                s.nodes[b, at, NODE.seen] = n
        start = stop


@inner
def choose_packing(s: State, b: int, j: int) -> bool:
    """Choose nodes by packing, and mark them in `s.only`.

    That is the node with the fewest free GPUs that holds the gang; else those with most free GPUs,
    and for the rest of the gang again the one with the fewest (SCHED², figure 2). What is free is
    what `s.assumed` says; the gang is taken off there.

    Returns:
        Whether the gang fits.
    """
    nodes, workers, each = s.nodes.shape[1], s.jobs[b, j, JOB.size_now], s.jobs[b, j, JOB.each]
    allowed = s.jobs[b, j, JOB.kinds]
    best = -1
    for i in range(nodes):
        n = s.nodes[b, i, NODE.seen]
        s.nodes[b, n, NODE.only] = 0
        if not (allowed >> s.nodes[b, n, NODE.kind]) & 1:
            continue
        if s.nodes[b, n, NODE.assumed] // each < workers:
            continue
        if best < 0 or s.nodes[b, n, NODE.assumed] < s.nodes[b, best, NODE.assumed]:
            best = n
    if best >= 0:
        s.nodes[b, best, NODE.only] = 1
        s.nodes[b, best, NODE.assumed] -= workers * each
        return True
    if workers == 1:
        return False
    for kind in range(s.speed.shape[1]):
        if (allowed >> kind) & 1 and _pack_in_kind(s, b, kind, workers, each):
            return True
    return False


@inner
def _pack_in_kind(s: State, b: int, kind: int, workers: int, each: int) -> bool:
    """Mark the nodes of one type that a gang is packed on, which no single node holds."""
    nodes, left, count = s.nodes.shape[1], workers, 0
    for n in range(nodes):
        s.nodes[b, n, NODE.only] = 0
    while True:
        most, least = -1, -1
        for i in range(nodes):
            n = s.nodes[b, i, NODE.seen]
            if s.nodes[b, n, NODE.kind] != kind or s.nodes[b, n, NODE.only] == 1:
                continue
            slots = s.nodes[b, n, NODE.assumed] // each
            if slots == 0:
                continue
            if slots >= left:
                if least < 0 or slots < s.nodes[b, least, NODE.assumed] // each:
                    least = n
            elif most < 0 or slots > s.nodes[b, most, NODE.assumed] // each:
                most = n
        if least < 0 and most < 0:
            return False
        n = least if least >= 0 else most
        s.nodes[b, n, NODE.only] = 1
        s.nodes[b, count, NODE.order] = n
        count += 1
        if least >= 0:
            break
        left -= s.nodes[b, n, NODE.assumed] // each
    for i in range(count - 1):
        n = s.nodes[b, i, NODE.order]
        s.nodes[b, n, NODE.assumed] -= s.nodes[b, n, NODE.assumed] // each * each
    s.nodes[b, s.nodes[b, count - 1, NODE.order], NODE.assumed] -= left * each
    return True


@inner
def hold(s: State, b: int, n: int, gpus: int) -> None:
    """Take GPUs of a node, or (a negative number) give them back."""
    if s.nodes[b, n, NODE.free] == s.nodes[b, n, NODE.size]:
        number, taken = -1, True
        while taken:
            number, taken = number + 1, False
            for other in range(s.nodes.shape[1]):
                if (
                    s.nodes[b, other, NODE.number] == number
                    and s.nodes[b, other, NODE.kind] == s.nodes[b, n, NODE.kind]
                ):
                    taken = True
        s.nodes[b, n, NODE.number] = number
    s.nodes[b, n, NODE.free] -= gpus
    s.num[b, NUM.gpus_free] -= gpus
    s.nodes[b, n, NODE.stamp] = s.num[b, NUM.stamp]
    s.num[b, NUM.stamp] += 1
    if s.nodes[b, n, NODE.free] == s.nodes[b, n, NODE.size]:
        s.nodes[b, n, NODE.number] = -1


@inner
def expect(s: State, b: int, j: int, until: int) -> None:
    """Note when a job is predicted to end; it has had no such time since it got its GPUs."""
    s.jobs[b, j, JOB.until] = until
    last = s.until.shape[2] - 1
    for p in range(s.jobs[b, j, JOB.parts]):
        n, gpus = s.held[b, j, p, 0], s.held[b, j, p, 1]
        at = last
        while at >= gpus and s.until[b, n, at - gpus] < until:
            s.until[b, n, at] = s.until[b, n, at - gpus]
            at -= 1
        for i in range(at - gpus + 1, at + 1):
            s.until[b, n, i] = until


@inner
def forget(s: State, b: int, j: int, p: int) -> None:
    """Take back on one of a job's nodes what `expect` noted."""
    until, n, gpus = s.jobs[b, j, JOB.until], s.held[b, j, p, 0], s.held[b, j, p, 1]
    if until == 0 or gpus == 0:
        return
    size, at = s.until.shape[2], 0
    while s.until[b, n, at] != until:
        at += 1
    for i in range(at, size):
        s.until[b, n, i] = s.until[b, n, i + gpus] if i + gpus < size else 0


@inner
def take(s: State, b: int, j: int, parts: int) -> None:
    """Give a job the place in `tmp_node` and `tmp_gpus`."""
    s.jobs[b, j, JOB.parts] = parts
    for p in range(parts):
        s.held[b, j, p, 0], s.held[b, j, p, 1] = s.spot[b, p, 0], s.spot[b, p, 1]
        hold(s, b, s.spot[b, p, 0], s.spot[b, p, 1])


@inner
def give_back(s: State, b: int, j: int, p: int) -> None:
    """Free what a job has on one of its nodes."""
    gpus = s.held[b, j, p, 1]
    if gpus > 0:
        forget(s, b, j, p)
        s.held[b, j, p, 1] = 0
        hold(s, b, s.held[b, j, p, 0], -gpus)
