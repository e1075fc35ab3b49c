"""How SCHED² is judged here: traces, seeds, measures and baselines, fixed before any judged run.

- The setting is that of section IV of the paper. What it leaves open was chosen on tuning seeds
  with rules only, before anything was trained: jobs of 16 GPUs beside those of 2, 4 and 8, and a
  median run time of 2,100 s. Then the rule `hold` has jobs run for about as long as SCHED² had
  in the paper (5,422 s) and wait for about as long (557 s), and rules fall into the overload
  that it describes.
- Trained on: 30 traces of 1,000 jobs (the paper's 30 episodes), again and again. Options of the
  learner are tuned on TUNING only. Judged on: 30 traces that nothing else saw.
- Five training seeds; the mean over traces is told for each, and their spread. What a run ends
  with is judged: no checkpoint is chosen.
- Measures: mean completion time, makespan, mean execution effectiveness (equation 2), mean
  waiting and running time; the part of the jobs with more than one GPU that are on more nodes
  than necessary, and their waiting time, by sensitivity; reuse of locality; fragmentation
  (equation 1) over time.
- Differences are paired by trace, with a bootstrap interval (`measures.paired`): learned less
  best baseline. Sure means that the interval of 95 % is on one side of 0.
- Baselines: the paper's six, random and `hold`, each in both readings (the first 10 jobs, or the
  whole queue), blocking and skipping. The best of a reading is the one with the lowest mean
  completion time.
- A job is sensitive if its model is more than twice as slow on one more node than necessary:
  AlexNet, VGG16 and Transformer. The paper's bound is not given.
- Later, after networks of full length were judged: `hold` is cloned into the network, and learners
  go on from the clone (`sched2_clone_main`), all compared on the first 20 tuning traces. Tried are
  the clone with nodes in places of their own and with nodes by free GPUs; and going on from the
  latter `plain`, and with a larger `gap` between actions, because one action changes the value
  of a state by less than the network's errors. Of the clone with nodes by free GPUs and the two
  that go on, the one with the shortest mean completion time on tuning traces is judged, once, on
  all 30 traces, with each seed that was trained: against the best heuristic of the first 10 jobs
  that blocks (saf), and against `hold`. The bars are the paper's: 4.6, 2.1 and 1.6 times.
- Reuse: a job with several GPUs is on as few nodes as possible, on GPUs that one job with
  several GPUs left and no smaller job has had since. GPUs of a node are alike, so jobs count as
  given those that make most reuse possible.
"""

from __future__ import annotations

from typing import NamedTuple

from skep_lab.fast_env.sched2 import PAPER, Options

TRAINING = tuple(range(30))
TUNING = tuple(range(100, 200))
JUDGED = tuple(range(10_000, 10_030))
TRAINING_SEEDS = tuple(range(5))
EPISODES = 2400
"""Section IV-A; `TRAINING` comes 80 times."""
SINGLE = (0.6, 0.68, 0.75)
"""Parts of the jobs with one GPU (figure 7)."""
INTERVALS_S = (140.0, 155.0, 172.0, 190.0, 210.0, 240.0)
"""Mean seconds between arrivals (figure 8; its numbers are not in the text)."""
FEW = 10
"""Traces for each interval."""
SENSITIVE = 2.0

SIZES = (1, 2, 4, 8, 16)
LARGER = (0.2, 0.3, 0.3, 0.2)
"""How the jobs with more than one GPU divide."""
MODELS = ("transformer", "deepspeech", "alexnet", "inception3", "resnet50", "vgg16")
"""The rows of `Options.models`."""


class Reading(NamedTuple):
    """How a baseline of the paper may be read."""

    name: str
    window: int
    skips: bool


READINGS = (
    Reading("first 10, blocking", 10, skips=False),
    Reading("first 10, skipping", 10, skips=True),
    Reading("whole queue, blocking", 0, skips=False),
    Reading("whole queue, skipping", 0, skips=True),
)
RULES = ("fifo", "sif", "dsif", "saf", "lrf", "spf", "random", "hold")


def realistic(single: float = 0.68, interval_s: float = PAPER.interval_s) -> Options:
    """Return the setting that everything is judged in.

    Args:
        single: The part of the jobs that has one GPU.
        interval_s: Mean seconds between two arrivals.
    """
    return PAPER._replace(
        sizes=SIZES,
        size_weights=(single, *((1.0 - single) * part for part in LARGER)),
        median_s=2100.0,
        interval_s=interval_s,
    )


REALISTIC = realistic()


class Setting(NamedTuple):
    """What is judged: an environment, and the seeds of its traces."""

    options: Options
    seeds: tuple[int, ...]


def settings(traces: int = len(JUDGED)) -> dict[str, Setting]:
    """Return all settings that are judged, by name.

    Args:
        traces: How many of the traces are played, the first ones.
    """
    seeds = JUDGED[:traces]
    return {
        **{f"single {part}": Setting(realistic(part), seeds) for part in SINGLE},
        **{
            f"interval {each:.0f}": Setting(realistic(interval_s=each), seeds[:FEW])
            for each in INTERVALS_S
        },
    }
