"""Published simulators' rules in a bare event loop, without any of Skep's machinery.

It tells a quirk of theirs from a mistake of ours: with all quirks it has to give their published
numbers, and each quirk can be left out. Facts about their behaviour are from reading
SymbioticLab/Tiresias (simulator/run_sim.py), Rivendile/Muri (the same file, changed) and
S-Lab-System-Group/HeliosArtifact (framework/QSSF Service/policies/srtf.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

QUIRKS = {
    "nodes-afresh": "at every event all jobs are placed anew, nodes in order, first fit",
    "late-demotion": "the next look at a queue's threshold is (limit - time) / GPUs away",
    "running-first": "in a queue those that run come first, then those that wait, by their places",
    "three-queues": "a third queue begins at 7,200 GPU-seconds",
    "stall-at-events": "at every event each running job loses its start-up time again",
}


@dataclass
class Job:
    """One job; times in seconds."""

    gpus: int
    submit: float
    left: float
    stall: float = 0.0
    """What it loses at every event while it runs."""
    ran: float = 0.0
    queue: int = 0
    runs: bool = False
    began: float | None = None
    end: float = 0.0
    preempted: int = 0
    place: list[tuple[int, int]] = field(default_factory=list)


class Nodes:
    """Switches of equal nodes; a gang is in one switch, on one node or on whole ones and a rest."""

    def __init__(self, switches: int, nodes: int, gpus: int) -> None:
        """Begin with all free."""
        self.size, self.per_switch = gpus, nodes
        self.free = [gpus] * (switches * nodes)

    def take(self, job: Job) -> bool:
        """Place a job in the first switch that has nodes for it."""
        for first in range(0, len(self.free), self.per_switch):
            there = range(first, first + self.per_switch)
            whole, rest = divmod(job.gpus, self.size)
            if job.gpus <= self.size:
                whole, rest = 0, job.gpus
            full = [node for node in there if self.free[node] == self.size][:whole]
            last = [n for n in there if self.free[n] >= rest and n not in full][: bool(rest)]
            if len(full) == whole and len(last) == bool(rest):
                job.place = [(node, self.size) for node in full] + [(node, rest) for node in last]
                for node, gpus in job.place:
                    self.free[node] -= gpus
                return True
        return False

    def give(self, job: Job) -> None:
        """Free a job's GPUs."""
        for node, gpus in job.place:
            self.free[node] += gpus


def fifo(jobs: Sequence[Job], nodes: Nodes) -> None:
    """Strictly first come, first served; whoever runs keeps his nodes."""
    ends: list[tuple[float, int]] = []
    waiting: list[int] = []
    arrivals = sorted(range(len(jobs)), key=lambda index: jobs[index].submit)
    at = 0
    while at < len(arrivals) or ends:
        soonest = [end for end, _ in ends] + [jobs[i].submit for i in arrivals[at : at + 1]]
        now = min(soonest)
        for end in sorted(ends):
            if end[0] == now:
                nodes.give(jobs[end[1]])
                ends.remove(end)
        while at < len(arrivals) and jobs[arrivals[at]].submit == now:
            waiting.append(arrivals[at])
            at += 1
        while waiting and nodes.take(jobs[waiting[0]]):
            job = jobs[waiting[0]]
            job.began, job.end = now, now + job.left
            ends.append((job.end, waiting.pop(0)))


Scan = Callable[[float], None]


class Loop:
    """Arrivals, ends and looks; a scan after each says who runs."""

    def __init__(self, jobs: Sequence[Job], gpus: int, quirks: frozenset[str]) -> None:
        """Begin with nobody there."""
        self.jobs, self.gpus, self.quirks = jobs, gpus, quirks
        self.here: list[Job] = []
        self.look = math.inf

    def run(self, scan: Scan, arrive: Callable[[Job], None], leave: Callable[[Job], None]) -> None:
        """Go on until all are done."""
        coming = sorted(self.jobs, key=lambda job: job.submit)
        at, before = 0, 0.0
        while at < len(coming) or self.here:
            running = [job for job in self.here if job.runs]
            end = min((before + job.left for job in running), default=math.inf)
            start = coming[at].submit if at < len(coming) else math.inf
            now = min(end, start)
            looks = self.look < now
            now = min(now, self.look)
            over = [] if looks else [job for job in running if before + job.left == now == end]
            for job in over:
                job.end = now
                self.here.remove(job)
                leave(job)
            while not looks and at < len(coming) and coming[at].submit == now:
                self.here.append(coming[at])
                arrive(coming[at])
                at += 1
            for job in running:
                if job not in over:
                    stall = job.stall if "stall-at-events" in self.quirks else 0.0
                    job.left -= max(now - before - stall, 0)
                    job.ran += now - before
            before = now
            scan(now)

    def switch(self, job: Job, runs: bool, now: float) -> None:
        """Have a job run, or not."""
        job.preempted += job.runs and not runs
        job.runs = runs
        if runs and job.began is None:
            job.began = now


def shortest(
    jobs: Sequence[Job], nodes: Callable[[], Nodes], quirks: frozenset[str], *, service: bool
) -> None:
    """Shortest remaining time (or service) first, whoever fits."""
    gpus = sum(nodes().free)
    loop = Loop(jobs, gpus, quirks)

    def scan(now: float) -> None:
        loop.here.sort(key=lambda job: job.left * (job.gpus if service else 1))
        afresh, left = nodes(), gpus
        for job in loop.here:
            fits = afresh.take(job) if "nodes-afresh" in quirks else job.gpus <= left
            left -= job.gpus if fits else 0
            loop.switch(job, fits, now)

    loop.run(scan, lambda job: None, lambda job: None)


def least_attained(jobs: Sequence[Job], gpus: int, quirks: frozenset[str]) -> None:
    """Discretised LAS by GPU-seconds; GPUs are counted, nodes do not matter."""
    limits = [3250, 7200] if "three-queues" in quirks else [3250]
    queues: list[list[Job]] = [[] for _ in range(len(limits) + 1)]
    loop = Loop(jobs, gpus, quirks)

    def arrive(job: Job) -> None:
        queues[0].append(job)

    def leave(job: Job) -> None:
        queues[job.queue].remove(job)

    def scan(now: float) -> None:
        for job in loop.here:
            if job.runs and job.queue < len(limits) and job.ran * job.gpus >= limits[job.queue]:
                queues[job.queue].remove(job)
                job.queue += 1
                queues[job.queue].append(job)
        left = gpus
        for number, queue in enumerate(queues):
            if "running-first" not in quirks:
                queue.sort(key=lambda job: (job.began is None, job.began or 0, job.submit))
            for job in queue:
                fits = job.gpus <= left
                left -= job.gpus if fits else 0
                loop.switch(job, fits, now)
            if "running-first" in quirks:
                queues[number] = [j for j in queue if j.runs] + [j for j in queue if not j.runs]
        loop.look = math.inf
        for job in loop.here:
            if job.runs and job.queue < len(limits):
                limit = limits[job.queue]
                if "late-demotion" in quirks:
                    away = float(math.ceil((limit - job.ran) / job.gpus))
                elif "stall-at-events" in quirks:
                    away = math.ceil(limit / job.gpus) - job.ran
                else:
                    away = limit / job.gpus - job.ran
                loop.look = min(loop.look, now + away)

    loop.run(scan, arrive, leave)


def by_count(jobs: Sequence[Job], nodes: int, size: int, again: dict[int, float]) -> None:
    """Shortest remaining time first, second by second, as in Helios' simulator.

    Args:
        jobs: In order of arrival; all times are whole seconds.
        nodes: How many nodes there are.
        size: GPUs of each; no job has more.
        again: By GPUs: what a preempted job has to do more.
    """
    free, now = [size] * nodes, 0.0
    coming, waiting, running = list(jobs), list[Job](), list[Job]()
    while coming or waiting or running:
        for job in running[:]:
            if job.left:
                job.left -= 1
                continue
            job.end = now
            free[job.place[0][0]] += job.gpus
            running.remove(job)
        while coming and coming[0].submit == now:
            waiting.append(coming.pop(0))
        quota, begin, leave = nodes * size, list[Job](), list[Job]()
        for job in sorted(waiting + running, key=lambda job: job.left):
            if job.gpus <= quota:
                quota -= job.gpus
                begin += [job] if job in waiting else []
            elif job in running:
                leave.append(job)
        for job in leave:
            job.left += again[max(gpus for gpus in again if gpus <= job.gpus)]
            job.preempted += 1
            free[job.place[0][0]] += job.gpus
            running.remove(job)
            waiting.append(job)
        for job in begin:
            able = [node for node in range(nodes) if free[node] >= job.gpus]
            if able:
                node = min(able, key=lambda node: free[node])
                job.place = [(node, job.gpus)]
                free[node] -= job.gpus
                waiting.remove(job)
                running.append(job)
        now += 1
