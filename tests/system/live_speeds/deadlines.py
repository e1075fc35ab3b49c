"""Deadlines, live: one that is kept while others compete, and one that a change makes possible."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from skep.units import NS_PER_SECOND
from tests.support.embedded import Reply, until
from tests.system.introspect.live import VC
from tests.system.live_speeds.bench import Bench, say
from tests.system.live_speeds.trainings import SLOTS, Model, Place, job, spec

SLACK_S = 30
"""A deadline is so long after the P90 of a job that runs at once."""
START_S = 30
"""What admission adds to a length; see `skep.promises.length`."""
FOUR = Place(SLOTS)
LONGER = 3.0
"""How many times as long as the promised job each of its competitors runs."""
SUGGESTED = re.compile(r"use `([a-z_.]+): ([^`]+)`")
ENDS_S = 600.0


def promised(bench: Bench, model: Model, place: Place, batches: int) -> dict[str, Any]:
    """Return the spec of a job whose length follows from its mini-batches and its family."""
    words = ["--data", str(bench.data), "--mini-batches", str(batches)]
    made = spec(model, place, bench.memory, words)
    whole = place.batch(model) * place.gpus
    made["size"] = {"family": model.name, "mini_batches": batches, "batch_size": whole}
    return made


def too_early(bench: Bench, model: Model, batches: int) -> dict[str, Any]:
    """Return the spec of a job that one GPU finishes too late, and several would finish in time.

    It is elastic, and its mini-batches are shared out: twice the GPUs have half of each.
    """
    whole = SLOTS * model.batch
    words = ["--data", str(bench.data), "--mini-batches", str(batches), "--elastic", "1", "4"]
    made = job(model, [*model.args(whole), *words])
    made["resources"] = {"workers": 1, "gpus": 1, "topology": {"within": "node", "hard": True}}
    made["elastic"] = {"min": 1, "max": 1}
    made["size"] = {"family": model.name, "mini_batches": batches, "batch_size": whole}
    fast = bench.span(model, FOUR).p90 * batches / NS_PER_SECOND
    slow = bench.span(model, Place(1, 1, SLOTS)).p50 * batches / NS_PER_SECOND
    say(f"P90 on {SLOTS} GPUs {fast:.0f} s, P50 on one {slow:.0f} s, {START_S} s more for each")
    return {**made, "finish_by": math.floor((fast + slow) / 2 + START_S), "late": "refuse"}


def submit(bench: Bench, name: str, what: dict[str, Any]) -> Reply:
    """Hand a spec in; return the gateway's answer, whatever it is."""
    body = json.dumps({"name": name, "vc": VC, **what}).encode()
    return bench.live.cluster.ask(
        "POST", "/v1/jobs", body, headers={"Content-Type": "application/json"}
    )


def compete(bench: Bench, model: Model, number: int, seconds: float, **more: Any) -> str:
    """Hand in a job of one process that takes a node's GPUs for about so long; return its id."""
    batches = math.ceil(seconds * 1000 / (model.batch * model.work_ms))
    words = ["--data", str(bench.data), "--mini-batches", str(batches)]
    made = job(model, [*model.args(), *words])
    made |= {"resources": {"workers": 1, "gpus": SLOTS}, "size": {}, **more}
    reply = submit(bench, f"competes-{number}", made)
    assert reply.status < 300, reply
    return str(reply.body["job"])


def kept(bench: Bench, model: Model, batches: int) -> dict[str, Any]:
    """Have a deadline accepted on a full cluster, and see whether it is kept.

    Three jobs have all GPUs for longer than until the deadline, and three more come after it: one
    of a higher priority, one with a deadline of its own. First come, first served would be late.
    """
    lasts_s = bench.span(model, FOUR).p90 * batches / NS_PER_SECOND + START_S
    others = [compete(bench, model, number, LONGER * lasts_s) for number in range(1, 4)]
    for each in others:
        until(lambda each=each: steps(bench, each), f"{each} trains")  # type: ignore[misc]
    due_s = math.ceil(lasts_s) + SLACK_S
    what = promised(bench, model, FOUR, batches) | {"finish_by": due_s}
    reply = submit(bench, "promised", what)
    assert reply.status < 300, reply
    name = reply.body["job"]
    own = {"finish_by": math.ceil(8 * lasts_s), "size": {"run_time": LONGER * lasts_s}}
    others.append(compete(bench, model, 4, LONGER * lasts_s, priority=50))
    others.append(compete(bench, model, 5, LONGER * lasts_s, **own))
    others.append(compete(bench, model, 6, LONGER * lasts_s))
    told = followed(bench, name)
    told["finish_by_s"], told["verdict"] = due_s, reply.body
    told["competing"] = [state(bench, each) for each in others]
    told["promises"] = bench.live.cluster.skep("promises")
    for each in others:
        bench.live.cluster.ask("DELETE", f"/v1/jobs/{each}")
        bench.live.cluster.ended(each)
    return told


def helped(bench: Bench, what: dict[str, Any]) -> dict[str, Any]:
    """Have a deadline refused, change the spec as the answer says, and see whether it is kept.

    Args:
        bench: The cluster.
        what: A spec with a deadline that is too early, and `late: refuse`.
    """
    first = submit(bench, "refused", what)
    assert first.status >= 400, first
    say(f"refused: {first.body}")
    key, value = suggestion(first.body)
    changed = json.loads(json.dumps(what))
    put(changed, key, value)
    second = submit(bench, "helped", changed)
    assert second.status < 300, second
    told = followed(bench, second.body["job"])
    return {
        "refused": first.body,
        "status": first.status,
        "change": f"{key}: {value}",
        "verdict": second.body,
        **told,
        "promises": bench.live.cluster.skep("promises"),
    }


def suggestion(body: Any) -> tuple[str, str]:
    """Return the key and the value that a refusal suggests."""
    found = SUGGESTED.search(json.dumps(body))
    assert found is not None, body
    return found[1], found[2]


def put(what: dict[str, Any], key: str, value: str) -> None:
    """Change a spec at a key such as `elastic.max`."""
    *way, last = key.split(".")
    for each in way:
        what = what.setdefault(each, {})
    what[last] = int(value) if value.isdecimal() else value


def steps(bench: Bench, job_id: str) -> int:
    """Return how many mini-batches a job has made."""
    return int(bench.live.cluster.get(f"/v1/jobs/{job_id}")["steps"] or 0)


def state(bench: Bench, job_id: str) -> dict[str, Any]:
    """Return where a competing job is, and why."""
    row = bench.live.cluster.get(f"/v1/jobs/{job_id}")
    return {
        "job": job_id,
        "name": row["name"],
        "state": row["state"],
        "priority": row["priority"],
        "why": row["why"],
        "answer": (row["pledged"] or {}).get("answer", ""),
    }


def followed(bench: Bench, name: str) -> dict[str, Any]:
    """Return what was promised to a job and when it ended, once it has."""
    bench.live.cluster.ended(name, ENDS_S)

    def settled() -> Any:
        row = bench.live.cluster.get(f"/v1/jobs/{name}")
        return row if row["pledged"]["outcome"] != "open" else None

    row = until(settled, f"it is known what became of the promise to {name}")
    pledged = row["pledged"]
    ended, due = row["ended_at"], pledged["due"]
    told = {
        "job": name,
        "state": row["state"],
        "answer": pledged["answer"],
        "text": pledged["text"],
        "outcome": pledged["outcome"],
        "cause": pledged["cause"],
        "waited_s": seconds(row["submitted_at"], row["attempts"][0]["bound_at"]),
        "ran_s": seconds(row["attempts"][-1]["bound_at"], ended),
        "due_after_s": seconds(row["submitted_at"], due),
        "p50_after_s": seconds(row["submitted_at"], pledged["p50"]),
        "p90_after_s": seconds(row["submitted_at"], pledged["p90"]),
        "ended_after_s": seconds(row["submitted_at"], ended),
        "margin_s": seconds(ended, due),
    }
    say(f"{told}")
    return told


def seconds(begin: int, end: int) -> float:
    """Return the time between two instants in seconds."""
    return round((end - begin) / NS_PER_SECOND, 1)
