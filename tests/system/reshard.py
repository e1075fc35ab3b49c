"""Gangs whose state is split, resized and restarted: `python -m tests.system.reshard`.

    curve      FSDP2: 4 -> 2 -> 3 -> 4 ranks while it trains, against undisturbed runs
    fixed      FSDP2, tensor parallel and a pipeline of one size: suspended, restarted, moved
    restart    FSDP2: a checkpoint of 4 ranks, gone on from by 4, by 2 and by 3
    tensor     tensor parallel: 4 -> 2 -> 4, and FSDP2 within it: 4 -> 2
    bad        a shard missing or damaged, a full disk, splits that cannot be, versions that differ
    speed      FSDP2 of 100 M parameters on 4 ranks: how long a checkpoint and a resize stand still
    phases     a rank is killed in each phase of a change and of a checkpoint
    lost       a rank or a node of two is lost at any moment (`--seeds`): copies in memory
    recover    FSDP2 of 100 M parameters on two nodes: from a loss to the next mini-batch
    cost       the same while it copies its state, and while it does not: mini-batches per second
    move       the same moved to warm successors, beside what the link takes for the bytes

Prints one JSON object. `--only NAME` plays one of them. Full disks need root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from skep_job.state.checkpoint_folder import Checkpoints
from skep_services.launcher import kernel
from tests.support.elastic_gang import ElasticGang, Member, Store

SCRIPT = Path(__file__).parents[1] / "e2e" / "jobs" / "sharded_train.py"
LARGE = {"width": 1024, "layers": 8, "heads": 16, "global_batch": 12, "samples": 144, "epochs": 1}
"""100.7 million parameters; mini-batches as small as they can be."""
MARGIN = 2
"""Mini-batches between an order and the step that it names."""
AT_ONCE = {"agree_ns": -1}
"""Ranks agree on a checkpoint after the mini-batch in which they hear of it."""
END_S = 600.0
"""A run of four ranks on two cores that others use too has taken two minutes."""
BOUND = 1e-5
"""Relative: sums over another number of ranks are added in another order."""


def gang(folder: Path, **options: Any) -> ElasticGang:
    """Return a gang without ranks."""
    folder.mkdir(exist_ok=True)
    return ElasticGang(folder, SCRIPT, **options)


def change(of: ElasticGang, places: dict[Member, int], at: int) -> list[dict[str, Any]]:
    """Have members take places after mini-batch `at`; return what each told."""
    old = [m for m in places if not m.answers("ready") or m.answers("rescaled")]
    for member in old:
        member.wait_holding(at)
    order = of.rescale(places, at + MARGIN)
    for member in old:
        member.go("due")
    told = [member.wait_any(("rescaled", "failed"), order=order) for member in places]
    return [dict(each) for each in told]


def losses(members: list[Member]) -> dict[int, float]:
    """Return the loss of every mini-batch; ranks of one must agree."""
    found: dict[int, float] = {}
    for member in members:
        for step, _, loss, _ in member.said("losses"):
            assert found.setdefault(step, loss) == loss, (step, found[step], loss)
    return found


def difference(one: dict[int, float], other: dict[int, float]) -> float:
    """Return the largest relative difference of the losses of the same mini-batches."""
    assert set(one) <= set(other), (sorted(one), sorted(other))
    return max(abs(one[step] - other[step]) / abs(other[step]) for step in one)


def alone(folder: Path, world: int, **options: Any) -> tuple[dict[int, float], str]:
    """Return losses and the digest of an undisturbed run."""
    with gang(folder, **options) as of:
        members = [of.start(rank, world) for rank in range(world)]
        ends(members)
        return losses(members), members[0].said("digest")


def ends(members: list[Member]) -> None:
    """Wait for the good end of all."""
    for member in members:
        member.process.wait(END_S)
    statuses = [member.end() for member in members]
    assert not any(statuses), (statuses, "".join("".join(m.errors[-20:]) for m in members))


def curve(folder: Path) -> dict[str, Any]:
    """4 -> 2 -> 3 -> 4 ranks during one run."""
    options = {"epochs": 4}
    whole, digest = alone(folder / "four", 4, **options)
    single, _ = alone(folder / "one", 1, **options)
    with gang(folder / "changed", hold=[5, 12, 20], **options) as of:
        a, b, c, d = (of.start(rank, 4) for rank in range(4))
        told = [change(of, {a: 0, b: 1, c: -1, d: -1}, 5)]
        e = of.newcomer(2)
        told.append(change(of, {a: 0, b: 1, e: 2}, 12))
        f = of.newcomer(3)
        told.append(change(of, {a: 0, b: 1, e: 2, f: 3}, 20))
        ends(of.members)
        changed, end = losses(of.members), a.said("digest")
        pauses = a.said("pauses")
    first = min(step for step in changed if changed[step] != whole[step])
    return {
        "steps": len(changed),
        "changes": ["4 -> 2", "2 -> 3", "3 -> 4"],
        "all_changed": all(each["type"] == "rescaled" for told_ in told for each in told_),
        "bit_equal_until": first,
        "largest_relative_difference_to_4_ranks": difference(changed, whole),
        "largest_relative_difference_to_1_process": difference(changed, single),
        "of_4_ranks_to_1_process": difference(whole, single),
        "bound": BOUND,
        "within_bound": difference(changed, whole) <= BOUND,
        "same_digest": end == digest,
        "losses": [[step, changed[step], whole[step]] for step in sorted(changed)][::4],
        "pauses_ms": [round(each["total_ns"] / 1e6, 1) for each in pauses],
    }


def stored(folder: Path, at: int, world: int = 4, **options: Any) -> ElasticGang:
    """Return a gang that has stored its state after mini-batch `at`, and was killed then."""
    of = gang(folder, hold=[at - 1, at + 1], **{**AT_ONCE, **options})
    members = [of.start(rank, world) for rank in range(world)]
    for member in members:
        member.wait_holding(at - 1)
    of.checkpoint(at, *members)
    for member in members:
        member.go("order")
    for member in members:
        member.wait_told("checkpointed")
    for member in members:
        member.close()
    return of


def again(of: ElasticGang, world: int, **options: Any) -> list[Member]:
    """Go on from what a gang has stored, as a later attempt, to the end."""
    of.attempt += 1
    of.store.close()
    of.store = Store()
    members = [of.start(rank, world, hold=[], **options) for rank in range(world)]
    ends(members)
    return members


def restart(folder: Path) -> dict[str, Any]:
    """A checkpoint of 4 ranks, gone on from by as many, by fewer, and by more."""
    whole, digest = alone(folder / "four", 4)
    found: dict[str, Any] = {}
    for world in (4, 2, 3, 1):
        of = stored(folder / f"to-{world}", 8)
        with of:
            members = again(of, world)
            after = losses(members)
            found[f"4 -> {world}"] = {
                "from": min(after),
                "largest_relative_difference": difference(after, whole),
                "same_bits": after == {step: whole[step] for step in after},
                "same_digest": members[0].said("digest") == digest,
            }
            say(f"4 -> {world}: {json.dumps(found[f'4 -> {world}'])}")
    return found


def suspended(of: ElasticGang, members: list[Member], at: int) -> int:
    """Suspend all with their memory given back, and resume them; return the bytes that moved."""
    for member in members:
        member.wait_holding(at)
    order = of.overtake()
    for member in members:
        member.order("suspend", order=order, step=at + MARGIN)
    for member in members:
        member.go("order")
    for member in members:
        member.wait_told("suspended", order=order)
    moved = 0
    for kind, answer in (("release", "released"), ("resume", "resumed")):
        order = of.overtake()
        for member in members:
            member.order(kind, order=order)
        for member in members:
            moved += int(str(member.wait_told(answer, order=order).get("moved", 0)))
    return moved


def moved(of: ElasticGang, members: list[Member], at: int) -> list[Member]:
    """Move all; return the successors, which have gone on."""
    of.attempt += 1
    of.store, before = Store(), of.store
    world = len(members)
    later = [of.start(rank, world, awaits="sesame", hold=[]) for rank in range(world)]
    ports = [member.wait_told("ready")["port"] for member in later]
    for member in members:
        member.wait_holding(at)
    order = of.overtake()
    for member, port in zip(members, ports, strict=True):
        member.order("move", order=order, host="127.0.0.1", port=port, token="sesame")
    for member in members:
        member.go("order")
    for member in members:
        member.wait_told("sent", order=order)
    for member in later:
        member.wait_told("loaded")
        member.order("resume", order=1)
    for member in members:
        member.close()
    before.close()
    return later


def fixed(folder: Path) -> dict[str, Any]:
    """Jobs of one size: everything to the same bits."""
    found: dict[str, Any] = {}
    for how, world in (("fsdp", 4), ("tensor", 2), ("stages", 2)):
        options: dict[str, Any] = {"how": how, "elastic": False}
        whole, _ = alone(folder / f"{how}-alone", world, **options)
        same: dict[str, Any] = {}
        with gang(folder / f"{how}-suspended", hold=[4], **options) as of:
            members = [of.start(rank, world) for rank in range(world)]
            size = suspended(of, members, 4)
            ends(members)
            same["suspended"] = {"same_losses": losses(members) == whole, "bytes_released": size}
        with stored(folder / f"{how}-stored", 8, world, **options) as of:
            members = again(of, world)
            after = losses(members)
            same["restarted"] = {
                "from": min(after),
                "same_losses": after == {step: whole[step] for step in after},
            }
        with gang(folder / f"{how}-moved", hold=[4], **options) as of:
            later = moved(of, [of.start(rank, world) for rank in range(world)], 4)
            ends(later)
            after = losses(later)
            same["moved"] = {
                "from": min(after),
                "same_losses": after == {step: whole[step] for step in after},
            }
        found[how] = same
        say(f"{how}: {json.dumps(same)}")
    return found


def tensor(folder: Path) -> dict[str, Any]:
    """Tensor parallel: the data are the same on all ranks, the split is another one."""
    found: dict[str, Any] = {}
    for how, sizes in (("tensor", (4, 2, 4)), ("both", (4, 2, 4))):
        whole, _ = alone(folder / f"{how}-alone", sizes[0], how=how)
        with gang(folder / how, how=how, hold=[3, 9]) as of:
            a, b, c, d = (of.start(rank, sizes[0]) for rank in range(4))
            told = change(of, {a: 0, b: 1, c: -1, d: -1}, 3)
            e, f = of.newcomer(2), of.newcomer(3)
            told += change(of, {a: 0, b: 1, e: 2, f: 3}, 9)
            ends(of.members)
            found[how] = {
                "changes": "4 -> 2 -> 4",
                "all_changed": all(each["type"] == "rescaled" for each in told),
                "largest_relative_difference": difference(losses(of.members), whole),
            }
    return found


SMALL = {"layers": 1, "sizes": [1, 4], **AT_ONCE}
"""The smallest model of three ranks."""


def killed(of: ElasticGang, members: list[Member], whole: dict[int, float]) -> dict[str, Any]:
    """Wait until the ranks that lost one have ended, and go on from what is stored.

    Args:
        of: The gang, one of whose ranks is dead.
        members: All of them.
        whole: The losses of an undisturbed run.
    """
    for member in members:
        member.process.wait(END_S)
    statuses = [member.end() for member in members]
    folder = Checkpoints(of.checkpoints, "j7", of.attempt, 0, 1)
    newest = max((each[0].step for each in folder.wholes()), default=0)
    reached = max((step for member in members for step, *_ in said_losses(member)), default=-1) + 1
    later = again(of, 3, die="")
    after = losses(later)
    found: dict[str, Any] = {
        "ended": statuses,
        "newest_whole": newest,
        "goes_on_after": min(after),
        "mini_batches_lost": reached - newest,
        "largest_relative_difference": difference(after, whole),
    }
    same = difference(after, whole) <= BOUND
    found["ok"] = 0 not in statuses and min(after) == newest and same
    say(json.dumps(found))
    return found


def said_losses(member: Member) -> list[list[Any]]:
    """Return the losses that a member told at its end; none if it was killed."""
    return next((line["losses"] for line in reversed(member.lines) if "losses" in line), [])


def lost(folder: Path, seeds: int = 5) -> dict[str, Any]:
    """A rank or a node is lost at any moment; the gang goes on from the newest copy in memory."""
    from tests.system import lost_ranks

    return lost_ranks.lost(folder, seeds)


def recover(folder: Path) -> dict[str, Any]:
    """100 M parameters on two nodes: how long it takes after the loss of a rank, and of a node."""
    from tests.system import lost_ranks

    return lost_ranks.recover(folder)


def cost(folder: Path, layers: int) -> dict[str, Any]:
    """100 M parameters on two nodes: mini-batches per second with copies in memory and without."""
    from tests.system import copy_cost

    return copy_cost.cost(folder, layers)


def phases(folder: Path) -> dict[str, Any]:
    """A rank dies in each phase of a change or of a checkpoint."""
    whole, _ = alone(folder / "two", 2, **SMALL)
    triple, _ = alone(folder / "three", 3, **SMALL)
    found: dict[str, Any] = {}
    newcomers = ("take", "renew", "enter")
    with gang(folder / "newcomers", hold=[2, 6, 10], patience_s=10.0, **SMALL) as of:
        a, b = (of.start(rank, 2) for rank in range(2))
        for phase, at in zip(newcomers, (2, 6, 10), strict=True):
            dies = of.newcomer(2, die=phase)
            for member in (a, b):
                member.wait_holding(at)
            order = of.rescale({a: 0, b: 1, dies: 2}, at + MARGIN)
            for member in (a, b):
                member.go("due")
            told = [m.wait_any(("rescaled", "failed"), order=order) for m in (a, b)]
            found[f"newcomer/{phase}"] = {"said": told[0].get("error", told[0]["type"])}
            say(json.dumps(found))
        ends([a, b])
        same = losses([a, b]) == whole
        for phase in newcomers:
            found[f"newcomer/{phase}"]["ok"] = same and "said" in found[f"newcomer/{phase}"]
    for phase in ("offer", "after-offer", "give", "renew", "enter"):
        with gang(folder / f"old-{phase}", hold=[1, 5], patience_s=10.0, **SMALL) as of:
            a, b, c = members = [of.start(n, 3, die=phase if n == 2 else "") for n in range(3)]
            for member in members:
                member.wait_holding(1)
            of.checkpoint(1 + MARGIN, *members)
            for member in members:
                member.go("order")
            for member in members:
                member.wait_told("checkpointed")
            places = {a: 0, b: -1, c: 1} if phase == "give" else {a: 0, b: 1, c: 2}
            if phase != "give":
                places[of.newcomer(3)] = 3
            for member in members:
                member.wait_holding(5)
            of.rescale(places, 5 + MARGIN)
            for member in members:
                member.go("due")
            found[f"old/{phase}"] = killed(of, members, triple)
    for phase in ("write", "after-write"):
        with gang(folder / phase, hold=[1], **SMALL) as of:
            members = [of.start(n, 3) for n in range(2)]
            members.append(of.start(2, 3, die=phase))
            for member in members:
                member.wait_holding(1)
            of.checkpoint(1 + MARGIN, *members)
            for member in members:
                member.go("order")
            found[f"checkpoint/{phase}"] = killed(of, members, triple)
    from tests.system import lost_ranks

    return found | lost_ranks.phases(folder / "memory")


def said(member: Member, pattern: str) -> str:
    """Return the line of a job's log that has a pattern."""
    lines = [line.strip() for line in member.errors if re.search(pattern, line)]
    return lines[0] if lines else f"nothing like {pattern}: {''.join(member.errors)[-600:]}"


def refused(of: ElasticGang, places: dict[Member, int], at: int) -> str:
    """Ask for a change that cannot be; return what is said about it."""
    told = change(of, places, at)
    return str(told[0].get("error", told[0]["type"]))


def ask(folder: Path) -> dict[str, Any]:
    """Ask for sizes that cannot be; each gang must go on as it is."""
    found: dict[str, Any] = {}
    whole, _ = alone(folder / "alone", 4)
    with gang(folder / "fsdp", hold=[2, 7], fail_to_split_at=3, sizes=[1, 5]) as of:
        members = a, b, c, d = tuple(of.start(rank, 4) for rank in range(4))
        stranger = of.newcomer(4, torch_version="2.12.1")
        split = refused(of, {a: 0, b: 1, c: 2, d: -1}, 2)
        version = refused(of, {a: 0, b: 1, c: 2, d: 3, stranger: 4}, 7)
        ends(list(members))
        same = {"goes_on_to_the_same_losses": losses(list(members)) == whole}
    found["split of the script fails"] = {"said": split, **same}
    found["version of a newcomer"] = {"said": version, **same}
    single, _ = alone(folder / "single", 1, how="tensor")  # It is not split, and does not clip.
    for name, how in (("dimension", "tensor"), ("other number of devices", "both")):
        with gang(folder / how, hold=[4], how=how) as of:
            a, b, c, d = (of.start(rank, 4) for rank in range(4))
            told = refused(of, {a: 0, b: 1, c: 2, d: -1}, 4)
            ends([a, b, c, d])
            largest = difference(losses([a, b, c, d]), single)
            found[name] = {"said": told, "largest_relative_difference": largest}
        say(json.dumps(found[name]))
    return found


def damage(folder: Path) -> dict[str, Any]:
    """Store until the disk is full; then damage copies of what was stored, and go on from them."""
    found: dict[str, Any] = {}
    place = folder / "checkpoints"
    place.mkdir()
    kernel.mount("none", str(place), "tmpfs", 0, "size=4m,mode=700")
    try:
        with gang(folder, hold=[2, 6, 10, 13]) as of:
            members = [of.start(rank, 4) for rank in range(4)]
            answers: list[dict[str, Any]] = []
            for at, number in ((2, 1), (6, 2), (10, 3)):
                for member in members:
                    member.wait_holding(at)
                if number == 3:
                    fill(place)
                of.checkpoint(at + MARGIN, *members)
                for member in members:
                    member.go("order")
                kinds = ("checkpointed", "failed")
                answers = [dict(m.wait_any(kinds, order=number)) for m in members]
            for member in members:
                member.wait_holding(13)
                member.close()
            (place / "ballast").unlink()
            for name, spoil, pattern in (
                ("shard missing", take_away, "passed over"),
                ("shard damaged", change_a_byte, "passed over"),
                ("disk full", None, "none"),
            ):
                kept = folder / name
                shutil.copytree(place, kept)
                if spoil is not None:
                    spoil(kept)
                of.checkpoints = kept
                later = again(of, 2 if spoil is take_away else 1)
                text = said(later[0], pattern) if spoil else answers[0].get("error")
                found[name] = {"said": text, "goes_on_after": min(losses(later))}
                say(json.dumps(found[name]))
    finally:
        kernel.unmount(str(place))
    return found


def take_away(folder: Path) -> None:
    """Remove a shard of the newest checkpoint."""
    next(folder.glob("*-s000000000008-r1of4.safetensors")).unlink()


def change_a_byte(folder: Path) -> None:
    """Change a byte of a tensor in a shard of the newest checkpoint."""
    path = next(folder.glob("*-s000000000008-r1of4.safetensors"))
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def fill(place: Path) -> None:
    """Leave no byte free."""
    with open(place / "ballast", "ab", buffering=0) as file:
        for size in (1 << 16, 4096, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue


def versions(folder: Path) -> dict[str, Any]:
    """Ranks of one gang with different versions of PyTorch."""
    with gang(folder) as of:
        members = [of.start(0, 2), of.start(1, 2, torch_version="2.12.1")]
        statuses = [member.end() for member in members]
        return {"said": said(members[0], "UsageError: "), "ended": statuses}


def bad(folder: Path) -> dict[str, Any]:
    """Everything that cannot be, one line for each."""
    found: dict[str, Any] = {}
    for play in (damage, ask):
        place = folder / play.__name__
        place.mkdir()
        found |= play(place)
    return found | {"versions of PyTorch at the start": versions(folder / "versions")}


def link_ms(size: int, streams: int) -> float:
    """Return how long the loopback takes for as many bytes at once, and nothing but bytes."""
    data = bytearray(size // streams)

    def send(address: tuple[str, int]) -> None:
        with socket.create_connection(address) as peer:
            peer.sendall(data)

    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(streams)
        ]
        into = [bytearray(len(data)) for _ in servers]
        pool = stack.enter_context(ThreadPoolExecutor(2 * streams))
        since = time.monotonic()
        senders = [pool.submit(send, each.getsockname()) for each in servers]
        receivers = [pool.submit(receive, *each) for each in zip(servers, into, strict=True)]
        for each in (*senders, *receivers):
            each.result()
        return (time.monotonic() - since) * 1e3


def receive(server: socket.socket, into: bytearray) -> None:
    """Fill memory from the first connection."""
    peer, _ = server.accept()
    view, done = memoryview(into), 0
    with peer:
        while done < len(view):
            count = peer.recv_into(view[done:])
            assert count, "the connection ended"
            done += count


def parts_of(member: Member) -> dict[str, list[float]]:
    """Return how long each part of a move took: by the clock, and of the processors (ms)."""
    return {line["part"]: [line["ms"], line["cpu_ms"]] for line in member.lines if "part" in line}


def move(folder: Path) -> dict[str, Any]:
    """100 M parameters: a move to warm successors beside what the link takes."""
    with gang(folder, hold=[2], elastic=False, measures=True, **LARGE) as of:
        sources = [of.start(rank, 4) for rank in range(4)]
        later = moved(of, sources, 2)
        pauses = [int(str(member.wait_told("resumed")["pause_ns"])) for member in later]
        sizes = [int(str(member.answers("loaded")[-1]["bytes"])) for member in later]
        parts = [parts_of(member) for member in (sources[0], later[0])]
    link = statistics.median(link_ms(sum(sizes), len(sizes)) for _ in range(5))
    pause = max(pauses) / 1e6
    return {
        "pauses_ms": [round(each / 1e6, 1) for each in pauses],
        "parts_of_source_ms": parts[0],
        "parts_of_successor_ms": parts[1],
        "bytes": sum(sizes),
        "link_ms": round(link, 1),
        "link_gbit_s": round(sum(sizes) * 8 / link / 1e6, 1),
        "bar_ms": round(1.5 * link + 300, 1),
        "reached": pause <= 1.5 * link + 300,
    }


def speed(folder: Path) -> dict[str, Any]:
    """100 M parameters: how long the training stands still."""
    with gang(folder, hold=[2, 4, 6, 9], **LARGE) as of:
        members = [of.start(rank, 4) for rank in range(4)]
        stood = []
        for at, number in ((2, 1), (4, 2)):
            for member in members:
                member.wait_holding(at)
            of.checkpoint(at + 1, *members)
            for member in members:
                member.go("order")
            answers = [member.wait_told("checkpointed", order=number) for member in members]
            stood.append([round(each["pause_ns"] / 1e6, 1) for each in answers])
        a, b, c, d = members
        told = change(of, {a: 0, b: 1, c: 2, d: -1}, 6)
        for member in (a, b, c):
            member.wait_holding(9)  # It has gone on.
        times = a.said("times")
        pauses = [member.said("pauses")[-1] for member in (a, b, c)]
        size = sum(each.stat().st_size for each in (folder / "checkpoints").glob("*-s*3-r*of4.*"))
        return {
            "parameters_millions": 100.7,
            "checkpoint_stalls_ms": stood,
            "checkpoint_stall_of_the_second_ms": max(stood[1]),
            "checkpoint_bytes": size,
            "mini_batch_ms": round(statistics.median(times[:-1]) * 1e3),
            "mini_batches_ms": [round(each * 1e3) for each in times],
            "with_3_ranks_ms": round(times[-1] * 1e3),
            "resize_4_to_3_ms": [round(each["pause_ns"] / 1e6, 1) for each in told],
            "parts_ms": [
                {name: round(ns / 1e6, 1) for name, ns in each["parts_ns"].items()}
                for each in pauses
            ],
            "bytes_to_each": [each["bytes"] for each in pauses],
        }


PLAYS: dict[str, Callable[..., dict[str, Any]]] = {
    "curve": curve,
    "fixed": fixed,
    "restart": restart,
    "tensor": tensor,
    "bad": bad,
    "speed": speed,
    "move": move,
    "phases": phases,
    "lost": lost,
    "recover": recover,
    "cost": cost,
}


def say(text: str) -> None:
    """Show progress on standard error."""
    print(f"reshard: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--only", choices=sorted(PLAYS), action="append", default=[])
    parser.add_argument("--seeds", type=int, default=5, help="runs of `lost` (default 5)")
    parser.add_argument("--layers", type=int, default=8, help="of the model of `cost` (default 8)")
    arguments = parser.parse_args()
    more = {"lost": (arguments.seeds,), "cost": (arguments.layers,)}
    found: dict[str, Any] = {}
    for name, play in PLAYS.items():
        if arguments.only and name not in arguments.only:
            continue
        say(name)
        with tempfile.TemporaryDirectory(prefix="skep-reshard-") as folder:
            found[name] = play(Path(folder), *more.get(name, ()))
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
