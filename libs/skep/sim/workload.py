"""What tenants and operators do: submit, cancel, repeat themselves, drain nodes, change quotas."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from skep.cells.feasible import shortages
from skep.cells.levels import cells_of
from skep.cells.propose import propose, resolve
from skep.ids import job_id
from skep.policy.fair import unfit
from skep.policy.registry import POLICIES, make
from skep.sim import arrayed, forecasts, guesses, mixing, shared
from skep.sim.churn import Churn, register
from skep.sim.network import Network
from skep.sim.processes import KINDS
from skep.sim.story import Story
from skep.sim.timeline import MILLISECOND, SECOND, Timeline
from skep.units import Instant
from skep.wire import codec, subjects
from skep.wire.admin import DrainNode, QuarantineGpu, SetVcs
from skep.wire.cluster import (
    FIFO,
    JOBS_MAX,
    Chain,
    Cluster,
    FairShare,
    PersonLimits,
    Pin,
    VirtualCluster,
)
from skep.wire.following import LEARNED
from skep.wire.node import NodeJoined
from skep.wire.verdict import Verdict
from skep.wire.windows import CancelWindow, ReserveNodes, Window

VCS = ("nlp", "vision", "lab")
KIND_WEIGHTS = (10, 2, 2, 1, 2, 2, 1, 2)
LENGTHS_MS = (100, 1_000, 5_000, 15_000)
LATEST = 8
"""Changes are also asked of the latest jobs, which may not run yet."""
WAKE_EVERY = 5 * SECOND
LONG_MS = 45_000
"""Longer than a silent node's jobs are waited for; for few jobs, as everything waits for them."""

CHANGES = ("suspend", "suspend", "suspend", "resume", "checkpoint", "migrate")
SIZES = ("suspend", "resize", "resize", "resize")
WORKERS_ASKED = (1, 1, 2, 2, 3, 4, 6)
RESUMES = ("resume", "resume", "suspend")
MOVES = ("suspend", "migrate", "migrate", "migrate")
TIERS = (
    "moves",
    "moves",
    "moves",
    "moves",
    "grows",
    "grows",
    "opaque",
    "resident",
    "releases",
    "rebinds",
    "stores",
    "both",
    "fails",
)
VERDICTS = msgspec.json.Decoder(Verdict)

register()
LATER = ("pollux", "elasticflow", "genie", "sized", "deadline")
"""Policies that came after histories were stored by their seeds: a draw from more names would make
other histories of all of them."""
LATER_FROM = 2000
"""Histories with seeds from here on draw from these policies as well: none of them is stored."""
NEWER = ("look-ahead", "hold", LEARNED)
LEARNED_FROM = 3000
"""Histories with seeds from here on draw from these policies as well. `learned` is drawn often,
with a model that guesses."""
EXPLORES_FROM = 20_000
"""In histories with seeds from here on such VCs may explore."""
PEOPLE_FROM, PEOPLE_UNTIL = 5000, 6000
"""In histories with these seeds VCs may share by person and limit what one has, and operators book
windows."""
WAITS_FROM, WAITS_UNTIL = 6000, 7000
"""In histories with these seeds jobs wait for others or for a time, or are held."""
ARRAYS_FROM, ARRAYS_UNTIL = 7000, 8000
"""In histories with these seeds tenants also submit arrays, and cancel and retry them."""
GATED_FROM = 7500
"""In those from this seed on jobs and arrays wait for one another or a time, or are held."""
SHARES_FROM, SHARES_UNTIL = 8000, 9000
"""In histories with these seeds many jobs ask for a share of a GPU."""
LIFE_FROM, LIFE_UNTIL = 9000, 10_000
"""In histories with these seeds jobs want a signal before their time limit."""
PIPELINES_FROM, PIPELINES_UNTIL = 10_000, 11_000
"""In histories with these seeds jobs and arrays are of pipelines with `max_parallel`, and wait."""
MIXED_FROM, MIXED_UNTIL = 11_000, 12_000
"""In histories with these seeds many gangs may lie in several chains, and no VC has a policy."""
WHO = ("ada", "bob", "cem", "")
OFTEN = 20
"""How much more often these histories draw `deadline`, under which alone there are promises."""
NAMES = tuple(
    name for name in POLICIES if name not in (Churn.name, "capacity-per-model", *LATER, *NEWER)
)
"""The policies that histories draw from, besides the one that is made for them. One holds a job
that is larger than the share of its model for ever, and every history is to end."""

RULES = tuple(name for name in (*NAMES, *LATER, *NEWER) if name != LEARNED)
"""What the rule of a VC with a model may be."""

assert len(KIND_WEIGHTS) == len(KINDS)


class Shown(NamedTuple):
    """What a tenant sees of a job that runs."""

    job: str
    vc: str
    suspended: bool = False
    movable: bool = False
    elastic: bool = False
    gpus: int = 0
    nodes: int = 1
    packed: bool = False


class Submission(msgspec.Struct):
    """What a tenant published. `job` is empty until the stream acknowledged it."""

    vc: str
    raw: bytes
    key: str
    job: str = ""
    verdicts: list[Verdict] = []


class People:
    """Tenants and operators, as one endpoint that never dies and is never cut off for long."""

    def __init__(
        self,
        network: Network,
        timeline: Timeline,
        rng: random.Random,
        story: Story,
        nodes: list[str],
        *,
        chance: random.Random,
        policies: random.Random,
        later: bool = False,
        learned: bool = False,
        explores: bool = False,
        sharing: random.Random | None = None,
        waits: random.Random | None = None,
        arrays: random.Random | None = None,
        gated: bool = False,
        shares: random.Random | None = None,
        life: random.Random | None = None,
        pipelines: bool = False,
        mixed: random.Random | None = None,
    ) -> None:
        """Listen for verdicts; nothing is asked for before `begin`.

        `chance` decides about what jobs are packed, and leaves the rest of a history as it is;
        `policies` about the policies of VCs, likewise, and with `later` those of LATER are among
        them, with `learned` those of NEWER; with `explores` such VCs may explore;
        `sharing` decides about people, limits and windows, if there are any, `waits` about what
        jobs wait for beside GPUs, `arrays` about arrays, which wait too if they are `gated`, and
        `shares` about shares of a GPU, `life` about warnings of limits, and `mixed` about gangs in
        several chains. With `pipelines` many of what waits is of pipelines.
        """
        self.place = "people"
        self.dead = False
        self.submissions: list[Submission] = []
        self.cancels = 0
        self.left = rng.randrange(22, 45)
        """Submissions still to be made."""
        self._network, self._timeline, self._rng, self._story = network, timeline, rng, story
        self._nodes = nodes
        self.wander = False
        """Whether tenants mostly ask for moves."""
        self.running: Callable[[], list[Shown]] = list
        """What tenants are shown of jobs that run."""
        self.waiting: Callable[[], list[Shown]] = list
        """And of those that wait for GPUs."""
        self._chance = chance
        self._ruled = policies.random() < 0.6
        self._policies = policies
        self._names = (*NAMES, *LATER, *(("deadline",) * OFTEN)) if later else NAMES
        if learned:
            self._names = (*self._names, *NEWER[:-1])
        self._learned, self._explores = learned, explores
        self._sharing, self._waits = sharing, waits
        self._arrays, self._gated = arrays, gated
        self._shares, self._life = shares, life
        self._pipelines, self._mixed = pipelines, mixed
        self._submitted_arrays: list[Submission] = []
        self._windows: dict[str, None] = {}
        self._timed = later
        """Whether jobs have deadlines."""
        self._admin_keys = 0
        self._asks = 0
        self._woken: dict[str, int] = {}
        self._released: dict[str, int] = {}
        self._changes: deque[tuple[str, bytes]] = deque()
        self._drained: dict[str, None] = {}
        self._quarantined: dict[tuple[str, int], None] = {}
        self._exact: dict[str, Chain] = {}
        """The chains as the operator describes them; empty if the nodes are to make them up."""
        self._given_up: dict[str, None] = {}
        self._pace = rng.choice((300 * MILLISECOND, SECOND, 3 * SECOND))
        self._inboxes: dict[str, Submission] = {}
        for vc in VCS:
            network.listen(self, f"skep.v1.reply.{vc}.*")

    # --- endpoint --------------------------------------------------------------------------------

    def enter(self, do: Callable[..., None], *arguments: Any) -> None:
        """People are always there."""
        do(*arguments)

    def hear(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Take a verdict."""
        del headers
        verdict = VERDICTS.decode(payload)
        self._story.say("people", f"{subject}: {verdict!r}")
        submission = self._inboxes.get(subject)
        if submission is not None:
            submission.verdicts.append(verdict)

    # --- what they do ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Set the quotas and begin to submit."""
        self.set_vcs(generous=True)
        self._timeline.after(self._some(self._pace), self._act)
        self._timeline.after(self._pace, self._share)
        if self._timed:
            self._timeline.after(SECOND, self._forecast)
        if self._learned:
            self._timeline.after(SECOND, self._advise)
        if self._sharing is not None:
            self._timeline.after(SECOND, self._book)
        if self._waits is not None:
            self._timeline.after(SECOND, self._hold)
        if self._arrays is not None:
            self._timeline.after(SECOND, self._array)

    def _array(self) -> None:
        """Submit an array, or cancel or retry one or a task of it, every few seconds."""
        rng = self._arrays
        assert rng is not None
        if not self.left:
            return
        self._timeline.after(int(rng.uniform(0.5, 6) * SECOND), self._array)
        vc = rng.choice(VCS)
        own = [each for each in self._submitted_arrays if each.job and each.vc == vc]
        kind = rng.choice(KINDS[:2])
        spec = {"name": "array", "vc": vc, "command": ["job", kind, "1000", "opaque"]}
        if self._gated and rng.random() < 0.7:
            spec |= self._waiting_for(vc)
        wish = arrayed.wish(rng, [each.job for each in own], spec)
        match wish:
            case ("submit", tree):
                submission = Submission(vc, codec.encode(tree), f"a{len(self.submissions)}")
                self._submitted_arrays.append(submission)
                self._publish(submission)
            case ("cancel", tree):
                headers = {subjects.REPLY_HEADER: f"skep.v1.reply.{vc}.cancel"}
                raw = codec.encode(tree)
                self._network.publish(self, subjects.cancel(vc), raw, headers, _ignore)
            case ("ask", tree):
                self._ask(vc, tree)
            case _:
                pass

    def _advise(self) -> None:
        """Say something in place of the models that advise VCs, every few seconds."""
        rng, jobs = self._policies, [each.job for each in (*self.running(), *self.waiting())]
        told = guesses.altered(rng, self._timeline.now, VCS, jobs)
        self._network.send(self, subjects.ADVICE_LEARNED, told, {}, "altered-advice")
        if self.left or jobs:
            self._timeline.after(int(rng.uniform(1, 20) * SECOND), self._advise)

    def _book(self) -> None:
        """Book a window, or give one up, every few seconds; now and then one that cannot be."""
        rng = self._sharing
        assert rng is not None
        if not self.left:
            return
        now = self._timeline.now
        self._timeline.after(int(rng.uniform(2, 12) * SECOND), self._book)
        if self._windows and rng.random() < 0.3:
            self._admin("unreserve", CancelWindow(name=rng.choice(list(self._windows))))
            return
        begins = now + int(rng.uniform(-1, 25) * SECOND)
        name = f"w{len(self._windows)}"
        window = Window(
            name=name,
            nodes=tuple(rng.sample(self._nodes, rng.choice((1, 1, 2)))),
            begins=Instant(begins),
            ends=Instant(begins + int(rng.uniform(1, 15) * SECOND)),
            vc=rng.choice(("", "", *VCS, "nobody")),
        )
        self._windows[name] = None
        self._admin("reserve", ReserveNodes(window=window))

    def _forecast(self) -> None:
        """Say how jobs go and how fast models are, every few seconds."""
        rng, running = self._policies, [each.job for each in self.running()]
        told = forecasts.drawn(rng, self._timeline.now, VCS, KINDS, running)
        self._network.send(self, subjects.ADVICE_OUTLOOK, codec.encode(told), {}, "outlook")
        if self.left or running:
            self._timeline.after(int(rng.uniform(1, 9) * SECOND), self._forecast)

    def _some(self, mean: int) -> int:
        return int(mean * 2 * self._rng.random())

    def _act(self) -> None:
        roll = self._rng.random()
        if roll < (0.3 if self.wander else 0.58):
            if self.left:
                self.left -= 1
                self.submit()
        elif roll < 0.78:
            self._change()
        elif roll < 0.84:
            self._cancel()
        elif roll < 0.89:
            self._repeat()
        elif roll < 0.94:
            self._drain()
        elif roll < 0.96:
            self._garbage()
        elif roll < 0.98:
            self._quarantine()
        else:
            self.set_vcs(generous=self._rng.random() < 0.5)
        if self.left:
            self._timeline.after(self._some(self._pace), self._act)

    def stop(self) -> None:
        """Do no more, undo what keeps jobs waiting."""
        self.left = 0
        self.set_vcs(generous=True)
        for node in list(self._drained):
            self._admin("drain", DrainNode(node=node, drain=False))
        self._drained.clear()
        for name, device in self._quarantined:
            self._admin("quarantine", QuarantineGpu(node=name, device=device, quarantine=False))
        self._quarantined.clear()
        for name in self._windows:
            self._admin("unreserve", CancelWindow(name=name))

    def submit(self) -> None:
        """Publish a spec, now and then a wrong one."""
        rng = self._rng
        vc = rng.choice(VCS)
        spec: Any = self._spec(vc)
        if self._life is not None:
            limits = spec["limits"]
            limits["time"] = limits.get("time", self._life.choice((8, 20, 40)))
            limits["warn"] = {"before": 1 + self._life.randrange(4) if limits["time"] != 2 else 1}
        roll = rng.random()
        target = vc
        if roll < 0.03:
            spec["resuorces"] = {}
        elif roll < 0.05:
            target = VCS[0] if vc != VCS[0] else VCS[1]
        elif roll < 0.06:
            target = "nobody"
        elif roll < 0.08:
            spec["resources"] = {"gpus": 16, "workers": 4}
        raw = b"not json" if roll > 0.98 else codec.encode(spec)
        key = f"k{len(self.submissions)}" if rng.random() < 0.8 else ""
        self._publish(Submission(target, raw, key))

    def _spec(self, vc: str) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choices(KINDS, KIND_WEIGHTS)[0]
        length = LONG_MS if rng.random() < 0.06 else rng.choice(LENGTHS_MS)
        resources: dict[str, Any] = {
            "gpus": rng.choice((1, 1, 1, 2)),
            "workers": rng.choice((1, 1, 1, 2, 2, 3, 4)),
        }
        if rng.random() < 0.15:
            resources["topology"] = {
                "within": rng.choice(("node", "node", "pair")),
                "hard": rng.random() < 0.5,
            }
        if rng.random() < 0.15:
            resources["cpus"] = rng.choice((1, 4))
        if rng.random() < 0.1:
            resources["gpu_type"] = rng.choice(("cpu", "a100"))
        limits: dict[str, Any] = {"retries": rng.choice((0, 0, 1, 3))}
        if rng.random() < 0.3:
            limits["time"] = rng.choice((2, 8, "20s"))
        if kind == "endless":
            limits["time"] = rng.choice((5, 20, 40))
        if rng.random() < 0.2:
            limits["retry_on"] = ["exit", "not-started"]
        tier = rng.choice(TIERS[:7] if self.wander else TIERS)
        if self.wander and rng.random() < 0.5:
            resources |= {"gpus": 2, "workers": 2}
            length = max(length, LENGTHS_MS[-1])
        more: dict[str, Any] = {}
        if tier in ("grows", "fails"):
            more["elastic"] = {"min": 1, "max": max(resources["workers"], rng.choice((2, 4)))}
        spec = {
            **more,
            "name": f"job-{len(self.submissions)}",
            "vc": vc,
            "command": ["job", kind, str(length), tier],
            "resources": resources,
            "limits": limits,
            "priority": rng.choice((0, 0, 0, 5)),
            "service_class": rng.choice(("guaranteed", "guaranteed", "opportunistic")),
            "over_quota": rng.choice(("auto", "wait", "refuse", "opportunistic")),
            "demotable": rng.random() < 0.3,
            "size": {"mini_batches": 1 + length // 1000, "family": kind, **self._told(length)},
        }
        if spec["over_quota"] == "auto":
            # Of a script it is presumed that it can be stored: it may have idle GPUs at once.
            script, *arguments = spec.pop("command")
            spec |= {"script": script, "args": arguments}
        if self._shares is not None:
            return shared.some_of_a_gpu(self._shares, spec)
        if self._mixed is not None:
            return mixing.perhaps_mixed(self._mixed, spec)
        if self._sharing is not None:
            return self._of_person(spec)
        waits = self._waiting_for(vc) if self._waits is not None else {}
        if waits:
            return spec | waits  # No time can be promised to it.
        if not self._timed:
            return spec
        return spec | self._deadline() | {"willing": {"profile": "allowed"}}

    def _waiting_for(self, vc: str) -> dict[str, Any]:
        """Return what a job waits for before its turn; now and then what is not there."""
        rng = self._waits
        assert rng is not None
        said: dict[str, Any] = {}
        known = [
            (each.job, f"job-{number}")
            for number, each in enumerate(self.submissions)
            if each.vc == vc and any(verdict.accepted for verdict in each.verdicts)
        ][-LATEST:]
        if known and rng.random() < 0.5:
            after: dict[str, list[str]] = {}
            for job in rng.sample(known, min(len(known), rng.choice((1, 1, 2, 3)))):
                after.setdefault(rng.choice(("ok", "any", "any", "fail")), []).append(job[0])
            if rng.random() < 0.2:
                after = {"any": [rng.choice(known)[1]]}
            if rng.random() < 0.03:
                after = {"ok": ["j99999"]}
            said["after"] = after
        if rng.random() < 0.25:
            said["begin"] = rng.choice((1, 3, 8, 20))
        if rng.random() < 0.15:
            said["hold"] = True
        if self._pipelines and rng.random() < 0.7:
            said["pipeline"] = {"name": rng.choice("ab"), "max_parallel": rng.choice((1, 2, 2, 3))}
        return said

    def _hold(self) -> None:
        """Ask every few seconds that a job is held, or released."""
        rng = self._waits
        assert rng is not None
        jobs = self.waiting() or self.running()
        if jobs:
            one = rng.choice(jobs)
            self._ask(one.vc, {"ask": rng.choice(("hold", "release", "release")), "job": one.job})
        arrays = [each for each in self._submitted_arrays if each.job]
        if self._gated and arrays and rng.random() < 0.5:
            array = rng.choice(arrays)
            self._ask(array.vc, {"ask": rng.choice(("hold", "release")), "job": array.job})
        if self.left:
            self._timeline.after(int(rng.uniform(0.5, 5) * SECOND), self._hold)

    def release(self, job: str, vc: str) -> None:
        """Ask that a job that is held may start, every few seconds."""
        if self._timeline.now - self._released.get(job, 0) > WAKE_EVERY:
            self._released[job] = self._timeline.now
            self._ask(vc, {"ask": "release", "job": job})

    def _of_person(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a spec that says whose job it is; of half of them only a time limit is known."""
        rng = self._sharing
        assert rng is not None
        who = rng.choice(WHO)
        if who:
            spec = spec | {"labels": {"user": who}}
        if rng.random() < 0.5:
            spec.pop("size", None)
            spec["limits"] = spec["limits"] | {"time": rng.choice((8, 20, 60))}
        return spec

    def _deadline(self) -> dict[str, Any]:
        """Return what a tenant says about when a job is to end, if anything."""
        rng = self._policies
        said: dict[str, Any] = {}
        if rng.random() < 0.5:
            said["finish_by"] = rng.choice((20, 35, 60, "2m", "5m"))
        if rng.random() < 0.2:
            said["qos"] = rng.choice(("urgent", "prior", "normal"))
        if said:
            said["late"] = rng.choice(("accept", "accept", "opportunistic", "refuse", "cancel"))
        return said

    def _told(self, length_ms: int) -> dict[str, Any]:
        """Return how long a tenant expects a job to run, if he says so."""
        if not self._ruled or self._policies.random() < 0.3:
            return {}
        return {"run_time": length_ms / 1000 * self._policies.choice((0.5, 1, 1, 2))}

    def _publish(self, submission: Submission) -> None:
        number = len(self.submissions)
        self.submissions.append(submission)
        reply = f"skep.v1.reply.{submission.vc}.{number}"
        self._inboxes[reply] = submission
        headers = {subjects.REPLY_HEADER: reply}
        if submission.key:
            headers[subjects.KEY_HEADER] = submission.key

        def acked(sequence: int) -> None:
            submission.job = job_id(sequence)
            self._story.say("people", f"{submission.job} is acknowledged ({submission.key})")

        self._network.publish(self, subjects.submit(submission.vc), submission.raw, headers, acked)

    def _repeat(self) -> None:
        """Publish a spec again with its key, long after the stream's own window."""
        known = [each for each in self.submissions if each.key]
        if known:
            original = self._rng.choice(known)
            self._network.streams[subjects.SUBMIT].forget_keys()
            self._publish(Submission(original.vc, original.raw, original.key))

    def _cancel(self) -> None:
        acked = [each for each in self.submissions if each.job]
        if not acked:
            return
        submission = self._rng.choice(acked)
        vc = submission.vc if self._rng.random() < 0.9 else self._rng.choice(VCS)
        raw = codec.encode({"job": submission.job}) if self._rng.random() < 0.95 else b"[]"
        headers = {subjects.REPLY_HEADER: f"skep.v1.reply.{vc}.cancel"}
        self.cancels += 1
        self._network.publish(self, subjects.cancel(vc), raw, headers, _ignore)

    def give_up(self, job: str, vc: str) -> None:
        """Cancel a job that is told to fit no cell, once."""
        if job not in self._given_up:
            self._given_up[job] = None
            headers = {subjects.REPLY_HEADER: f"skep.v1.reply.{vc}.cancel"}
            raw = codec.encode({"job": job})
            self._network.publish(self, subjects.cancel(vc), raw, headers, _ignore)

    def _change(self) -> None:
        """Ask for changes of a job, mostly one that runs, now and then for two that cross."""
        acked = [Shown(each.job, each.vc) for each in self.submissions if each.job][-LATEST:]
        shown = self.running()
        jobs = shown if shown and self._rng.random() < 0.8 else acked
        if not jobs:
            return
        elastic = [one for one in jobs if isinstance(one, Shown) and one.elastic]
        one = self._rng.choice(elastic if elastic and self._rng.random() < 0.6 else jobs)
        job, vc = one.job, one.vc
        for _ in range(self._rng.choice((1, 1, 2))):
            sensible = RESUMES if one.suspended else MOVES if one.movable else CHANGES
            sensible = SIZES if one.elastic and not one.suspended else sensible
            if self.wander and one.movable:
                sensible = MOVES
            ask = self._rng.choice(sensible if self._rng.random() < 0.8 else CHANGES)
            tree: dict[str, Any] = {"ask": ask, "job": job}
            if ask == "suspend" and self._rng.random() < 0.5:
                tree["release"] = True
            if ask == "migrate" and self._rng.random() < 0.3:
                count = self._rng.choice((1, 1, 2, 3))
                tree["to"] = ",".join(self._rng.sample(self._nodes, min(count, len(self._nodes))))
            if ask == "resize":
                tree["workers"] = self._rng.choice(WORKERS_ASKED)
            if self._rng.random() < 0.03:
                tree["realease"] = True
            self._ask(vc, tree)

    def _share(self) -> None:
        """Ask that a job that waits is packed with one that runs, or that one leaves its partners.

        Mostly what may be done: with a job of the same VC, that has GPUs enough.
        """
        chance, running, waiting = self._chance, self.running(), self.waiting()
        packed = [one for one in running if one.packed]
        if packed and chance.random() < 0.25:
            one = chance.choice(packed)
            self._ask(one.vc, {"ask": "unpack", "job": one.job})
        elif waiting and running:
            one = chance.choice(waiting)
            fit = [
                other
                for other in running
                if other.vc == one.vc
                and other.gpus >= one.gpus
                and other.nodes == 1
                and not other.suspended
            ]
            fit = [other for other in fit if other.packed] if chance.random() < 0.3 else fit
            if fit or chance.random() < 0.2:
                other = chance.choice(fit or running)
                tree: dict[str, Any] = {"ask": "pack", "job": one.job, "beside": other.job}
                if chance.random() < 0.4:
                    tree["share"] = chance.choice((0.25, 0.5, 0.9))
                self._ask(one.vc, tree)
        if self.left:
            self._timeline.after(int(self._pace * chance.random()), self._share)

    def wake(self, job: str, vc: str) -> None:
        """Ask for a suspended job's return, every few seconds."""
        if self._timeline.now - self._woken.get(job, 0) > WAKE_EVERY:
            self._woken[job] = self._timeline.now
            self._ask(vc, {"ask": "resume", "job": job})

    def _ask(self, vc: str, tree: dict[str, Any]) -> None:
        self._asks += 1
        headers = {
            subjects.REPLY_HEADER: f"skep.v1.reply.{vc}.ask",
            subjects.KEY_HEADER: f"ask-{self._asks}",
        }
        self._network.publish(self, subjects.ask(vc), codec.encode(tree), headers, _ignore)

    def _drain(self) -> None:
        node = self._rng.choice(self._nodes)
        drain = node not in self._drained
        if drain:
            self._drained[node] = None
        else:
            del self._drained[node]
        self._admin("drain", DrainNode(node=node, drain=drain))

    def _garbage(self) -> None:
        """Say something that no service understands, where any client may speak."""
        node = self._rng.choice(self._nodes)
        raw = self._rng.choice((b"", b"\xff", b"{}", b"[[[", b'{"type":"bind-job"}'))
        core = subjects.command(node), subjects.heartbeat(node), subjects.ADVICE_QUEUE
        kept = (
            subjects.admin("vcs"),
            subjects.admin("nonsense"),
            subjects.node_event(node, "joined"),
        )
        subject = self._rng.choice((*core, *kept))
        if subject in kept:
            self._network.publish(self, subject, raw, {}, _ignore)
        else:
            self._network.send(self, subject, raw, {}, "garbage")

    def set_vcs(self, *, generous: bool) -> None:
        """Publish the virtual clusters."""
        gpus = (16, 12, 8) if generous else (self._rng.randrange(1, 8), 4, 2)
        jobs_max = JOBS_MAX if generous else self._rng.randrange(2, 12)
        vcs = {
            vc: VirtualCluster(gpus=quota, jobs_max=jobs_max, weight=self._rng.choice((1, 2)))
            for vc, quota in zip(VCS, gpus, strict=True)
        }
        vcs = {name: self._under(vc) for name, vc in vcs.items()}
        cluster = Cluster(vcs=vcs)
        if self._exact:
            # The operator writes a cluster file of what is there, and cells instead of numbers.
            cluster = self._pinned(resolve(Cluster(chains=self._exact, vcs=vcs), ()))
        self._admin("vcs", SetVcs(vcs=cluster.vcs, chains=cluster.chains, pins=cluster.pins))

    def _under(self, vc: VirtualCluster) -> VirtualCluster:
        """Return a VC with a policy, or (in four histories of ten) as it is."""
        policies = self._policies
        if self._sharing is not None:
            return self._shared(vc, self._sharing)
        if self._mixed is not None or not self._ruled or policies.random() < 0.3:
            return vc
        if self._learned and policies.random() < 0.6:
            options = guesses.options(policies, RULES, explores=self._explores)
            return msgspec.structs.replace(vc, policy=LEARNED, options=options)
        if policies.random() < 0.5:
            options = {
                "strict": policies.random() < 0.3,
                "wild": policies.random() < 0.3,
                "keen": policies.random() < 0.5,
            }
            return msgspec.structs.replace(vc, policy=Churn.name, options=options)
        return msgspec.structs.replace(vc, policy=policies.choice(self._names))

    def _shared(self, vc: VirtualCluster, rng: random.Random) -> VirtualCluster:
        """Return a VC that perhaps shares by person, and perhaps limits what one has."""
        policy = rng.choice((FIFO, FIFO, *NAMES))
        fair, limits = None, None
        if rng.random() < 0.6 and not unfit(make(policy)):
            half_life = rng.choice((60, 3600))
            fair = FairShare(half_life=half_life, weights={"ada": rng.choice((1.0, 2.0, 0.5))})
        if rng.random() < 0.6:
            limits = PersonLimits(
                running=rng.choice((None, 1, 2, 4)),
                gpus=rng.choice((None, 8, 10)),
                queued=rng.choice((None, 2, 5)),
            )
        return msgspec.structs.replace(vc, policy=policy, fair_share=fair, limits=limits)

    def know(self, inventory: list[NodeJoined]) -> None:
        """Take note of the hardware; from here on half of the operators describe it exactly."""
        if self._rng.random() < 0.5:
            self._exact = dict(propose(inventory).chains)

    def _pinned(self, cluster: Cluster) -> Cluster:
        """Return the cluster with one cell of a VC's quota turned into a particular one."""
        lab, rng = cluster.vcs["lab"], self._rng
        if not lab.cells or rng.random() < 0.6:
            return cluster
        quota, *others = lab.cells
        index = rng.randrange(cells_of(cluster.chains[quota.chain], quota.level))
        pin = Pin(chain=quota.chain, level=quota.level, index=index)
        rest = (msgspec.structs.replace(quota, count=quota.count - 1),) if quota.count > 1 else ()
        lab = msgspec.structs.replace(lab, cells=(*rest, *others), pinned=("corner",))
        pinned = msgspec.structs.replace(
            cluster, vcs={**cluster.vcs, "lab": lab}, pins={"corner": pin}
        )
        return pinned if not any(shortages(pinned)) else cluster

    def _quarantine(self) -> None:
        node, device = self._rng.choice(self._nodes), self._rng.randrange(4)
        bad = (node, device) not in self._quarantined
        if bad:
            self._quarantined[node, device] = None
        else:
            del self._quarantined[node, device]
        self._admin("quarantine", QuarantineGpu(node=node, device=device, quarantine=bad))

    def _admin(self, verb: str, message: Any) -> None:
        """Publish a change once the one before it is stored: operators wait for their tools."""
        self._changes.append((subjects.admin(verb), codec.encode(message)))
        if len(self._changes) == 1:
            self._publish_change()

    def _publish_change(self) -> None:
        self._admin_keys += 1
        headers = {subjects.KEY_HEADER: f"admin-{self._admin_keys}"}
        subject, payload = self._changes[0]
        self._network.publish(self, subject, payload, headers, self._changed)

    def _changed(self, sequence: int) -> None:
        del sequence
        self._changes.popleft()
        if self._changes:
            self._publish_change()


def _ignore(sequence: int) -> None:
    """Be content that it is stored."""
