"""Look-ahead: GPUs go to the job that gains the most from them, beyond a step that gains nothing.

    time left at each size --> Choice: what a size adds --> share_out --> begins and new sizes

Source: Skep. The gain is that of Optimus (EuroSys 2018, section 4.1) or of DL² (section 4.1, the
reward of a slot); steps of the concave envelope are Pollux' (OSDI 2021, section 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from skep.policy.api import Policy
from skep.policy.parts import LATE_DIVISOR, check_one_or_more, queued
from skep.policy.plan import Plan, Resize, Turn, Withheld
from skep.policy.powers import Powers
from skep.policy.shares import Choice, carry_out, share_out
from skep.policy.sizes import changeable, gpus_per_worker, times
from skep.policy.view import JobView, VcView
from skep.units import NS_PER_SECOND, Instant, seconds
from skep.wire.reasons import Reason

HOUR = 3600 * NS_PER_SECOND


class LookAhead(Policy, frozen=True):
    """Every `every_s` seconds GPUs are shared out anew by what they gain in completion.

    A job that is left with time T at a size counts T to the power of -`power`. With -1 that is the
    time itself (Optimus' gain), with 1 the part of its work that it does in a second (DL²'s
    reward), and with 0 the logarithm of the time: then it is no matter how well lengths are known.
    For each job every larger size is considered, and not only the next one: the step that gains
    the most per GPU comes first, whatever sizes it passes over. A size other than the present one
    costs the time of a change, so that no job changes for less than it costs: what was measured of
    moves (`JobView.pause`), else `pause_s`.

    Waiting jobs begin whenever there is room, elastic ones with any size that they may have. They
    come in the order of their time left, multiplied by GPUs, the least first. One that has waited
    for `wait_max_s` comes before all others, and blocks them. No job is stopped.

    Where the speed of a size is unknown it is assumed to be in proportion to the GPUs, up to twice
    the largest size that is known, and so tried. With `cautious` a size that a fit predicts, and
    that was not measured, counts at the P90 of its time for a job that runs (`JobView.rates_low`).
    """

    name: ClassVar[str] = "look-ahead"
    source: ClassVar[str] = "Skep; Optimus, section 4.1; DL², section 4.1"
    every_s: float = 300
    power: float = 0
    pause_s: float = 30
    cautious: bool = False
    wait_max_s: float = 86400

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: `every_s` or `wait_max_s` is too short, `pause_s` is negative, or `power` is
                beyond -2 to 2.
        """
        check_one_or_more("every_s", self.every_s, "seconds")
        check_one_or_more("wait_max_s", self.wait_max_s, "seconds")
        if self.pause_s < 0:
            reason = f"pause_s is seconds, 0 or more: not {self.pause_s}"
            raise ValueError(reason)
        if not -2 <= self.power <= 2:
            reason = f"power is an exponent from -2 to 2: not {self.power}"
            raise ValueError(reason)

    @property
    def sees_rates(self) -> bool:
        """Return True."""
        return True

    @property
    def sees_nodes(self) -> bool:
        """Return True: a job with parameter servers grows on its node only."""
        return True

    @property
    def powers(self) -> Powers:
        """Return that it changes the size of elastic jobs, by times left and rates."""
        return Powers(resizes=True, passes=True, run_times=True, rates=True)

    def plan(self, view: VcView) -> Plan:
        """Return turns, and at the beginning of a round new sizes.

        What smaller jobs give back in the time that a change takes is passed on in that time.
        """
        length = round(self.every_s * NS_PER_SECOND)
        began = view.now // length * length
        late, into = length // LATE_DIVISOR, view.now - began
        pause = max((self._pause(job) for job in view.jobs), default=0)
        opens = into <= late + min(pause, length // 2)
        turns: list[Turn] = []
        resizes: list[Resize] = []
        holds: list[Withheld] = []
        for pin, free in sorted(view.free_for().items()):
            begun, resized, held = self._among(view, pin, free, opens=opens, shrinks=into <= late)
            turns += begun
            resizes += resized
            holds += held
        return Plan(
            turns=tuple(turns),
            strict=False,
            actions=tuple(resizes),
            holds=tuple(holds),
            look_at=Instant(began + length),
            behind=Reason.WAITS_FOR_GPUS,
        )

    def _among(
        self, view: VcView, pin: str, free: int, *, opens: bool, shrinks: bool
    ) -> tuple[list[Turn], list[Resize], list[Withheld]]:
        """Return turns, new sizes and waits of the jobs with this pin.

        Args:
            view: The VC.
            pin: The pin.
            free: GPUs that none of these jobs has.
            opens: Whether running jobs may change their size.
            shrinks: Whether they may be made smaller.
        """
        waiting = [job for job in queued(view) if job.pin == pin]
        if not (waiting or opens):
            return [], [], []
        running = [job for job in view.jobs if job.pin == pin and changeable(job)]
        left = {
            job.job: times(job, view.now, cautious=self.cautious) for job in (*running, *waiting)
        }
        waiting.sort(key=lambda job: self._place(job, left[job.job], view.now))
        reach = _reach(running, view)
        lowest = min((job.spec.priority for job in waiting), default=0)
        choices = {}
        for job in running:
            sizes = {k: t for k, t in left[job.job].items() if k <= reach.get(job.job, k)}
            choices[job.job] = self._choices(job, sizes, job.workers)
        for job in waiting:
            choices[job.job] = self._choices(job, left[job.job], 0)
            yields = job.spec.priority == lowest and not self._aged(job, view.now)
            if self.power > 0 and yields:
                choices[job.job].insert(0, Choice(0, 0, 0.0))
        shared = free + sum(job.gpus for job in running)
        tried, held = self._tried(waiting, choices, shared - _least(running, choices), view.now)
        shares = share_out((*running, *tried), choices, shared, strict=False)
        if not opens:
            running, shares = [], _that_fit(tried, shares, choices, free)
        turns, resizes = carry_out(running, tried, shares, free, shrinks=shrinks)
        return turns, resizes, held

    def _place(self, job: JobView, left: Mapping[int, float], now: Instant) -> tuple[float, ...]:
        """Return the place of a waiting job in their order, the lowest first."""
        aged, fewest = self._aged(job, now), min(left)
        size = 0.0 if aged else left[fewest] * fewest * gpus_per_worker(job)
        return (-job.spec.priority, not aged, size, job.sequence)

    def _aged(self, job: JobView, now: Instant) -> bool:
        return now - job.waiting_since >= seconds(self.wait_max_s)

    def _choices(self, job: JobView, left: Mapping[int, float], own: int) -> list[Choice]:
        """Return what a job adds with each number of workers, fewest first.

        Args:
            job: It runs, or waits.
            left: How long it still runs, by number of workers.
            own: The workers that it has now; 0: none.
        """
        each, pause = gpus_per_worker(job), self._pause(job)
        return [
            Choice(workers * each, workers, self._worth(time + pause * (own not in (0, workers))))
            for workers, time in left.items()
        ]

    def _pause(self, job: JobView) -> int:
        """Return how many nanoseconds a change of a job's size costs it."""
        return job.pause or seconds(self.pause_s)

    def _worth(self, left: float) -> float:
        """Return what a job counts that is left with so many nanoseconds."""
        hours = left / HOUR
        if self.power == 0:
            return -math.log(hours)
        return math.copysign(hours**-self.power, self.power)

    def _tried(
        self,
        waiting: Sequence[JobView],
        choices: Mapping[str, Sequence[Choice]],
        left: int,
        now: Instant,
    ) -> tuple[list[JobView], list[Withheld]]:
        """Return the waiting jobs before the first that blocks the others, with it, and the rest.

        Args:
            waiting: In their order.
            choices: Their sizes.
            left: GPUs that running jobs leave if each has its fewest.
            now: The time of the view.
        """
        for place, job in enumerate(waiting):
            least = choices[job.job][0].gpus
            if least > left and self._aged(job, now):
                behind = waiting[place + 1 :]
                return [*waiting[: place + 1]], [
                    Withheld(each.job, Reason.WAITS_BEHIND) for each in behind
                ]
            left -= least if least <= left else 0
        return [*waiting], []


def _least(running: Sequence[JobView], choices: Mapping[str, Sequence[Choice]]) -> int:
    return sum(choices[job.job][0].gpus for job in running)


def _reach(running: Sequence[JobView], view: VcView) -> dict[str, int]:
    """Return the most workers of jobs that can grow on their own node only."""
    bound = [job for job in running if job.spec.ps is not None]
    free = {node.node: node for node in view.nodes} if bound else {}
    found = {}
    for job in bound:
        node = free.get(job.nodes[0][0]) if job.nodes else None
        room = node.free_for(job.pin) if node is not None else 0
        found[job.job] = job.workers + room // gpus_per_worker(job)
    return found


def _that_fit(
    waiting: Sequence[JobView],
    shares: Mapping[str, Choice],
    choices: Mapping[str, Sequence[Choice]],
    free: int,
) -> dict[str, Choice]:
    """Return the largest size of each waiting job, up to its share, that fits in what is free.

    Args:
        waiting: In their order.
        shares: The sizes that they are to have.
        choices: All their sizes.
        free: GPUs that are free now.
    """
    found = {}
    for job in waiting:
        share = shares.get(job.job)
        if share is None or not share.gpus:
            continue
        sizes = [
            each
            for each in choices[job.job]
            if 0 < each.gpus <= min(free, share.gpus) and each.worth <= share.worth
        ]
        if sizes:
            found[job.job] = max(sizes, key=lambda each: each.worth)
            free -= found[job.job].gpus
    return found
