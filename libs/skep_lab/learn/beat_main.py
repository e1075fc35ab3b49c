"""Train Skep's own model with five seeds, and judge it: one command, a process for each core.

    python -m skep_lab.learn.beat_main --out DIR --generations N    train, and judge
    python -m skep_lab.learn.beat_main --out DIR --train S          the same by the clock
    python -m skep_lab.learn.beat_main --out DIR --policies NAME... judge policies, train nothing
    python -m skep_lab.learn.beat_main --judge DIR...               print bars and tables
    python -m skep_lab.learn.beat_main --out DIR --ship FOLDER      write the model's file

The kernels are compiled once, before processes are forked. Then each training seed has a process,
and further ones judge the rules. After `--generations`, or at `--train` seconds, the model that is
best on tuning traces is taken, and all processes judge it on held-out traces, the most important
first, until the limit. It leaves `beat.npz` (weights) and `beat.json` (curves, and one row for each
trace and policy). Equal seeds and generations give equal weights on one machine; by the clock they
do not, so what is published is trained with `--generations`; 0 judges what evolution begins with.

`--policies` adds to the rows of `beat.json` those that are not there yet, once it ends: what is
played before it is interrupted is lost. Rows of networks say by which weights they are. A name is
one of `protocol.BASELINES` or of the rules; `NAME:window` sees the first ten waiting jobs only, and
`optimus:exact` is told true speeds. `learned` is the model that comes with Skep, or that of
`--model FILE`; `begun` is what evolution begins with; `seed:2` is what that seed of `DIR` came to.
With `--of begun` or `--of seed:2` the tables are about that one in place of `learned`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing as mp
import queue
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from skep.learn import modelfile
from skep.learn.shipped import NEWEST, shipped
from skep.policy.api import Policy
from skep.policy.registry import make
from skep_lab.learn import evolve, judge, protocol, skep_env, verdict
from skep_lab.learn.protocol import Floats, Setting

Work = tuple[str, Setting, int]
Models = Mapping[str, modelfile.Model]
"""Of the policies that are networks."""
MARGIN_S = 8.0
"""Left for what is slow at the end."""
GENERATIONS_MAX = 10_000
"""Of a training that the clock ends."""
WINDOWED, EXACT = ":window", ":exact"
BEGUN, SEED = "begun", "seed:"
LEARNED = (verdict.LEARNED, BEGUN, *(f"{SEED}{seed}" for seed in protocol.TRAINING_SEEDS))
NAMES = (
    *protocol.RULES,
    *protocol.BASELINES,
    *(f"{name}{WINDOWED}" for name in protocol.BASELINES),
    f"optimus{EXACT}",
    *LEARNED,
)
"""What `--policies` plays."""


def works(policies: tuple[str, ...]) -> list[Work]:
    """Return what is to be played: the bars first, some traces of each scenario before more."""
    bars = list(dict.fromkeys(each for group in protocol.BARS.values() for each in group))
    small = [each for each in bars if each.nodes <= 15]
    middle = [each for each in bars if 15 < each.nodes <= 32]
    others = [each for each in protocol.SCENARIOS if each not in bars]
    large = [each for each in bars if each.nodes > 32]
    tens = [protocol.HELD_OUT[at : at + 10] for at in range(0, len(protocol.HELD_OUT), 10)]
    plan = [(small, tens[:1]), (middle, tens[:1]), (small, tens[1:]), (others, tens[:1])]
    plan += [(middle, tens[1:]), (large, tens[:1]), (others, tens[1:]), (large, tens[1:])]
    return [
        (policy, setting, number)
        for settings, rounds in plan
        for numbers in rounds
        for number in numbers
        for setting in settings
        for policy in policies
    ]


def model_of(numbers: Floats) -> modelfile.Model:
    """Return the network of these numbers; any number is in the ranges of its features."""
    return modelfile.load(evolve.file_of(numbers, "evolve"))


def models_of(names: list[str], given: argparse.Namespace) -> Models:
    """Return the models of those of some policies that are networks.

    Args:
        names: Of the policies.
        given: What the command line says.
    """
    made = {}
    for name in names:
        if name == BEGUN:
            made[name] = model_of(evolve.starts())
        elif name.startswith(SEED):
            found = np.load(given.out / "beat.npz")["found"]
            made[name] = model_of(found[int(name.removeprefix(SEED))])
        elif name == verdict.LEARNED:
            made[name] = modelfile.load((given.model or shipped()[NEWEST]).read_bytes())
    return made


def hash_of(model: modelfile.Model | None) -> str:
    """Return by what rows of one network are known from those of another; "": it is none."""
    if model is None:
        return ""
    made = hashlib.sha256()
    for name, each in sorted(model.net.weights.items()):
        made.update(name.encode() + np.ascontiguousarray(each).tobytes())
    return made.hexdigest()


def policy_of(name: str, models: Models) -> Policy:
    """Return a policy.

    Args:
        name: A policy's name, also with `:window`; `random`; or one of LEARNED.
        models: Decide for these.
    """
    if name in models:
        return judge.Network(model=models[name], compiled=True)
    plain, windowed, _ = name.removesuffix(EXACT).partition(WINDOWED)
    policy = judge.Random() if plain == judge.Random.name else make(plain)
    return judge.Windowed(inner=policy) if windowed else policy


def play(work: Work, models: Models) -> dict[str, Any]:
    """Return the row of one trace under one policy.

    Args:
        work: What is played.
        models: Of the policies that are networks.
    """
    name, setting, number = work
    exact = name.endswith(EXACT)
    played = judge.play(setting, number, policy_of(name, models), exact=exact)
    made: dict[str, Any] = {"policy": name, "number": number, "scenario": setting._asdict()}
    if name in models:
        made["model"] = hash_of(models[name])
    for field in played.__struct_fields__:
        made[field] = getattr(played, field)
    return made


def _train(seed: int, settings: evolve.Settings, until: float, out: Any) -> None:
    """Train with a seed until a time, and put what came of it."""
    curve: list[dict[str, float]] = []
    saved = None
    began = time.process_time()
    for progress in evolve.train(settings, seed):
        point = {"step": float(progress.step), "cpu_s": time.process_time() - began}
        curve.append(point | dict(progress.values))
        if "tuning" in progress.values:
            saved = progress.save()
        if time.monotonic() > until:
            break
    best = saved.tensors["best"] if saved else evolve.starts()
    score = saved.numbers["score"] if saved else 0.0
    out.put(("trained", seed, best, score, curve))


def _judge(given: tuple[list[Work], Any], models: Models, until: float, out: Any) -> None:
    """Judge until a time what no other process has taken.

    Args:
        given: What is to be played, and how much of it is taken.
        models: Of the policies that are networks.
        until: When to stop.
        out: Takes a row for each trace.
    """
    todo, taken = given
    while True:
        with taken.get_lock():
            at = taken.value
            taken.value += 1
        if at >= len(todo):
            break
        longest = 3.0 + todo[at][1].nodes / 2.0
        if time.monotonic() + longest > until:
            break
        out.put(("judged", play(todo[at], models)))
    out.put(("over",))


def _guarded(run: Any, last: tuple[Any, ...], *given: Any) -> None:
    """Run a part, and say so if it fails: the others go on.

    Args:
        run: The part.
        last: What is put for it then.
        given: Its arguments, the last of which takes what comes of it.
    """
    try:
        run(*given)
    except Exception:
        given[-1].put(("failed", traceback.format_exc()))
        given[-1].put(last)


def _warm() -> None:
    """Compile the kernels."""
    start = evolve.starts()
    skep_env.mean_jct_s([skep_env.net(evolve.weights_of(start))], [(Setting(nodes=6), 0)])


def main(words: list[str] | None = None) -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    folder = parser.add_mutually_exclusive_group(required=True)
    folder.add_argument("--out", type=Path)
    folder.add_argument("--judge", type=Path, nargs="+", help="print what was judged there")
    parser.add_argument("--of", choices=LEARNED, default=verdict.LEARNED, help="print it for this")
    parser.add_argument("--model", type=Path, help="the file of `learned`")
    parser.add_argument("--ship", type=Path, help="write the file of the best seed there")
    parser.add_argument("--policies", nargs="+", choices=NAMES, metavar="NAME", default=[])
    parser.add_argument("--time-limit", type=float, default=530.0)
    parser.add_argument("--train", type=float, default=300.0, help="when training ends, seconds")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=len(protocol.TRAINING_SEEDS))
    parser.add_argument(
        "--generations", type=int, help="train so many, however long it takes: to publish"
    )
    given = parser.parse_args(words)
    if given.judge is not None:
        rows = [row for folder in given.judge for row in _kept(folder)["rows"]]
        if not rows:
            _say(f"{given.judge[0]} has no beat.json with judged traces: --out makes it")
            return 1
        about = _about(rows, given.of)
        if several := verdict.mixed(about):
            _say(several)
            return 1
        _say(verdict.report(about))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    if given.ship is not None:
        _say(str(_ship(given.out, given.ship)))
        return 0
    return _baselines(given) if given.policies else _train_and_judge(given)


def _kept(folder: Path) -> dict[str, Any]:
    """Return what a folder has of earlier calls."""
    file = folder / "beat.json"
    kept: dict[str, Any] = {"curves": {}, "rows": []}
    return kept | (json.loads(file.read_text()) if file.exists() else {})


def _about(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return rows with those of a policy as those of the learned one."""
    others = [row for row in rows if row["policy"] not in LEARNED]
    return others + [row | {"policy": verdict.LEARNED} for row in rows if row["policy"] == name]


def _ship(out: Path, folder: Path) -> Path:
    """Write the file of the seed that is best on tuning traces; it is judged after that.

    Args:
        out: What training left.
        folder: Where the file goes; its name is its hash.

    Returns:
        The file.
    """
    kept, found = _kept(out), np.load(out / "beat.npz")["found"]
    seed = min(range(len(found)), key=lambda each: kept["curves"][str(each)]["score"])
    curve = kept["curves"][str(seed)]
    point = min(curve["curve"], key=lambda each: each.get("tuning", 0.0))
    report = {name: point[name] for name in ("tuning", *protocol.FAMILIES)}
    settings = evolve.Settings(generations=len(curve["curve"]))
    data = evolve.published(found[seed], settings, seed, report)
    file = folder / f"{hashlib.sha256(data).hexdigest()}.safetensors"
    file.write_bytes(data)
    return file


def _baselines(given: argparse.Namespace) -> int:
    """Play what is not played yet, and add it to what is kept."""
    until = time.monotonic() + given.time_limit - MARGIN_S
    kept = _kept(given.out)
    models = models_of(given.policies, given)
    names = {name: hash_of(model) for name, model in models.items()}
    known = {
        (row["policy"], Setting(**row["scenario"]), row["number"])
        for row in kept["rows"]
        if row.get("model", "") == names.get(row["policy"], "")
    }
    context = mp.get_context("fork")
    out: Any = context.Queue()
    todo = [work for work in works(tuple(given.policies)) if work not in known]
    args = (_judge, ("over",), (todo, context.Value("q", 0)), models, until, out)
    processes = [context.Process(target=_guarded, args=args) for _ in range(given.processes)]
    for each in processes:
        each.start()
    rows, over = list[Any](), 0
    while over < len(processes):
        try:
            told = out.get(timeout=max(until + 60.0 - time.monotonic(), 1.0))
        except queue.Empty:
            _say("not all came to an end in time")
            break
        rows += [told[1]] if told[0] == "judged" else []
        over += told[0] == "over"
        if told[0] == "failed":
            _say(told[1])
    for each in processes:
        each.terminate()
    kept["rows"] += rows
    (given.out / "beat.json").write_text(json.dumps(kept))
    _say(f"{len(rows)} of {len(todo)} traces judged; the same command goes on with the rest")
    return 0


def _train_and_judge(given: argparse.Namespace) -> int:
    began = time.monotonic()
    until = began + given.time_limit - MARGIN_S
    _warm()
    _say(f"compiled after {time.monotonic() - began:.0f} s")
    context = mp.get_context("fork")
    out: Any = context.Queue()
    by_clock = given.generations is None
    generations = GENERATIONS_MAX if by_clock else given.generations
    settings = evolve.Settings(generations=generations)
    stop = began + given.train if by_clock else until
    rules = works(protocol.RULES), context.Value("q", 0)
    learned = works((verdict.LEARNED,)), context.Value("q", 0)
    judges = max(given.processes - given.seeds, 0)
    processes = [
        context.Process(
            target=_guarded,
            args=(_train, ("trained", seed, evolve.starts(), 0.0, []), seed, settings, stop, out),
        )
        for seed in range(given.seeds)
    ]
    processes += [
        context.Process(target=_guarded, args=(_judge, ("over",), rules, {}, until, out))
        for _ in range(judges)
    ]
    for each in processes:
        each.start()
    rows: list[dict[str, Any]] = []
    trained: dict[int, tuple[Floats, float, Any]] = {}
    over, working = 0, judges
    while over < working or len(trained) < given.seeds:
        try:
            told = out.get(timeout=max(until + 5.0 - time.monotonic(), 1.0))
        except queue.Empty:
            _say("not all came to an end in time")
            break
        if told[0] == "judged":
            rows.append(told[1])
        elif told[0] == "over":
            over += 1
        elif told[0] == "failed":
            _say(told[1])
        else:
            trained[told[1]] = told[2:]
            _say(f"seed {told[1]}: {told[3]:+.4f} after {len(told[4])} generations")
            if not by_clock and len(told[4]) < generations:
                _say(f"seed {told[1]} did not come to {generations}: not to be published")
            if len(trained) == given.seeds:
                best = model_of(trained[min(trained, key=lambda seed: trained[seed][1])][0])
                for at in range(given.seeds):
                    what = rules if at % 5 in {1, 3} else learned
                    args = (_judge, ("over",), what, {verdict.LEARNED: best}, until, out)
                    processes.append(context.Process(target=_guarded, args=args))
                    processes[-1].start()
                working += given.seeds
    for each in processes:
        each.terminate()
    if trained:
        found = np.stack([trained[seed][0] for seed in sorted(trained)])
        np.savez(given.out / "beat.npz", found=found)
    curves = {str(seed): {"score": each[1], "curve": each[2]} for seed, each in trained.items()}
    made = {"generations": given.generations, "curves": curves, "rows": rows}
    (given.out / "beat.json").write_text(json.dumps(made))
    _say(f"{len(rows)} traces judged, {time.monotonic() - began:.0f} s")
    if not trained:
        _say(f"no seed came to an end: there are no weights, and {given.out}/beat.npz is not made")
    return 0 if trained else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
