"""Can SCHED²'s network represent a rule, and does its learner keep it?

    python -m skep_lab.learn.sched2_clone_main clone --out FILE [--places] [--rounds N] [--seed N]
    python -m skep_lab.learn.sched2_clone_main tune --from FILE --out FILE --try NAME [--seed N]
    python -m skep_lab.learn.sched2_clone_main judge FILE...

`clone` has the network imitate `hold`, `tune` has the deep Q network go on from there. Both print
a line for each round or point of the curve, on tuning traces: mean completion time, effectiveness,
makespan, and how often the network does as the teacher where more than one action is possible.
`judge` plays the judged traces: paired differences from the best heuristic of the first ten jobs
that blocks, and from `hold`, with intervals. The protocol is in `sched2_protocol`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from skep_lab.fast_env import sched2_rules
from skep_lab.fast_env.arrays import Floats, Ints
from skep_lab.fast_env.sched2_rules import NAMES, Played
from skep_lab.learn import dqn, sched2_clone, sched2_play
from skep_lab.learn.progress import Tensors
from skep_lab.learn.sched2_main import BASE, TRIED_ON
from skep_lab.learn.sched2_protocol import JUDGED, REALISTIC, TUNING
from skep_lab.learn.sched2_teachers import choose
from skep_lab.measures.paired import paired

GOES_ON = replace(
    BASE,
    envs=15,
    decisions=75,
    batch=256,
    memory=240_000,
    horizon_s=7200.0,
    explores=1e-6,
    target_every=100,
    episodes=15,
    tells=300,
    sorts=True,
)
"""As the best candidate of `sched2_main`, but with the least exploration from the start, and a
memory of whole episodes: there all environments are in the same phase of an episode, and the memory
has a part of that phase only."""
TRIES = {"plain": GOES_ON, "gap": replace(GOES_ON, gap=0.9)}
AGAINST = {"saf, first 10, blocking": NAMES["saf"], "hold, first 10": NAMES["hold"]}


def _measured(played: Played) -> dict[str, Floats]:
    took = played.ended - played.at
    return {
        "jct_s": took.mean(1),
        "effectiveness": (played.run / took).mean(1),
        "makespan_s": played.ended.max(1),
    }


def tuned(weights: Tensors, teacher: str) -> dict[str, float]:
    """Return how a network does on tuning traces, and how often it does as a teacher."""
    act, same = sched2_play.greedy(REALISTIC, weights), list[NDArray[np.bool_]]()

    def compared(seen: NDArray[np.float32], may: NDArray[np.bool_]) -> Ints:
        chosen = act(seen, may)
        same.append((chosen == choose(teacher, seen, REALISTIC))[may.sum(1) > 1])
        return chosen

    played = sched2_play.play(compared, np.array(TUNING[:TRIED_ON]), REALISTIC)
    means = {name: float(each.mean()) for name, each in _measured(played).items()}
    return {**means, "same": float(np.concatenate(same).mean())}


def judged(files: list[Path]) -> dict[str, dict[str, Any]]:
    """Return, for each measure, each network's mean, and the means over networks less each rule."""
    seeds = np.array(JUDGED)
    found = [
        _measured(sched2_play.play(sched2_play.greedy(REALISTIC, _read(file)), seeds, REALISTIC))
        for file in files
    ]
    report: dict[str, dict[str, Any]] = {
        name: {"networks": [float(each[name].mean()) for each in found]} for name in found[0]
    }
    for rule, how in AGAINST.items():
        for name, base in _measured(sched2_rules.play(how, seeds, REALISTIC)).items():
            mean = np.mean([each[name] for each in found], axis=0)
            difference = paired(base.tolist(), mean.tolist())
            report[name][rule] = {
                "base": difference.base,
                "less": difference.mean,
                "interval": (difference.low, difference.high),
            }
    return report


def _read(file: Path) -> Tensors:
    with np.load(file) as found:
        return dict(found)


def main(words: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="sched2_clone_main", description="clone into SCHED²")
    verbs = parser.add_subparsers(dest="verb", required=True)
    clones, tunes, judges = (verbs.add_parser(verb) for verb in ("clone", "tune", "judge"))
    for each in (clones, tunes):
        each.add_argument("--out", type=Path, required=True, help="for the weights, an .npz")
        each.add_argument("--seed", type=int, default=0)
    clones.add_argument("--teacher", choices=("hold", "saf"), default="hold")
    clones.add_argument("--places", action="store_true", help="nodes as they are, not by free GPUs")
    clones.add_argument("--rounds", type=int, default=sched2_clone.Cloning().rounds)
    tunes.add_argument("--from", dest="begins", type=Path, required=True, help="a clone")
    tunes.add_argument("--try", dest="name", choices=TRIES, required=True)
    judges.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args(words)
    if given.verb == "judge":
        _say(judged(given.files))
        return 0
    if given.verb == "clone":
        cloning = sched2_clone.Cloning(
            teacher=given.teacher, rounds=given.rounds, sorts=not given.places
        )
        for number, weights in enumerate(sched2_clone.clone(cloning, given.seed)):
            np.savez(given.out, **dict[str, Any](weights))
            _say({"round": number, **tuned(weights, given.teacher)})
        return 0
    for progress in dqn.train(TRIES[given.name], given.seed, begins=_read(given.begins)):
        weights = sched2_play.weights_in(progress.save().tensors)
        np.savez(given.out, **dict[str, Any](weights))
        _say({"updates": progress.step, **progress.values, **tuned(weights, "hold")})
    return 0


def _say(row: object) -> None:
    sys.stdout.write(f"{json.dumps(row)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
