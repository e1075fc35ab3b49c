"""Admission under any sequence of submissions, cancellations, ends and crashes."""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skep.cells.propose import resolve
from skep.machines.admission import AdmissionMachine, Kept
from skep.machines.base import Effect, Record, Send
from skep.wire.admin import SetVcs
from skep.wire.cluster import Cluster, VirtualCluster
from skep.wire.codec import CancelRequest, Facts
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    CellsSet,
    End,
    JobEnded,
    NodeSeen,
    Refused,
    Repeated,
)
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec
from skep.wire.verdict import Verdict
from tests.kit import T0, Driver, added, assert_durable_alike, joined, spec, submission

VCS = ["nlp", "cv"]
REPLIES = {vc: f"_INBOX.vc-{vc}.x" for vc in VCS}

specs = st.builds(
    spec,
    vc=st.sampled_from(VCS),
    gpus=st.integers(1, 6),
    workers=st.integers(1, 3),
    over_quota=st.sampled_from(["wait", "refuse", "opportunistic"]),
    opportunistic=st.booleans(),
)


class Admission(RuleBasedStateMachine):
    """The model: what each submission became, and every tenant's unfinished jobs, kept plainly."""

    def __init__(self) -> None:
        super().__init__()
        self.decide = Driver(AdmissionMachine)
        self.sequence = 0
        self.vcs: dict[str, VirtualCluster] = {}
        self.became: dict[str, Any] = {}
        self.unfinished: dict[str, JobSpec] = {}
        self.first: dict[tuple[str, str], str] = {}

    @initialize()
    def begin(self) -> None:
        assert self.decide.restart() == []

    @rule(
        quotas=st.dictionaries(
            st.sampled_from(VCS),
            st.builds(VirtualCluster, gpus=st.integers(0, 12), jobs_max=st.integers(1, 4)),
        )
    )
    def set_vcs(self, quotas: dict[str, VirtualCluster]) -> None:
        self.decide(SetVcs(vcs=quotas))
        self.vcs = quotas

    @rule(node=st.sampled_from(["node-1", "node-2"]), gpus=st.integers(0, 8))
    def join(self, node: str, gpus: int) -> None:
        self.decide(added(joined(node, gpus)))

    @rule(
        nodes=st.lists(st.integers(1, 8), max_size=3),
        quotas=st.lists(st.integers(0, 12), max_size=2),
    )
    def set_cells(self, nodes: list[int], quotas: list[int]) -> None:
        """The allocator has cells in force: of these nodes, and of tenants past or to come."""
        owners = {vc: VirtualCluster(gpus=gpus) for vc, gpus in zip(VCS, quotas, strict=False)}
        inventory = [joined(f"node-{at}", gpus) for at, gpus in enumerate(nodes, 1)]
        asked = Cluster(vcs=owners)
        fact = CellsSet(cluster=resolve(asked, inventory), asked=asked)
        self.decide(Facts(service="allocator", at=T0, facts=(fact,)))

    @rule(
        vc=st.sampled_from(VCS),
        raw=specs | st.binary(max_size=9),
        key=st.sampled_from(["", "", "a", "b"]),
    )
    def submit(self, vc: str, raw: JobSpec | bytes, key: str) -> None:
        self.sequence += 1
        event = submission(self.sequence, vc=vc, raw=raw, key=key, reply=REPLIES[vc])
        effects = self.decide(event)
        (record, send) = effects
        assert isinstance(record, Record)
        assert isinstance(send, Send)
        assert isinstance(send.message, Verdict)
        self.became[event.job] = record.fact
        self.judge(vc, record.fact, send.message, key)
        assert self.decide(event) == []

    def judge(self, vc: str, fact: Any, verdict: Verdict, key: str) -> None:
        """Assert that the verdict is what a plain reading of the rules says."""
        original = self.first.get((vc, key))
        assert (not verdict.problems) == verdict.accepted
        if original is not None:
            assert isinstance(fact, Repeated)
            assert verdict.job == fact.original == original
            assert verdict.accepted == isinstance(self.became[original], Admitted)
            return
        if key:
            self.first[vc, key] = fact.job
        assert verdict.job == fact.job
        assert isinstance(fact, Admitted if verdict.accepted else Refused)
        if isinstance(fact, Admitted):
            config = self.vcs[vc]
            others = [each for each in self.unfinished.values() if each.vc == vc]
            used = sum(each.gpus for each in others if not each.opportunistic)
            assert fact.spec.vc == vc
            assert len(others) < config.jobs_max
            if not fact.spec.opportunistic:
                assert fact.spec.gpus <= config.gpus
                assert fact.spec.over_quota == "wait" or used + fact.spec.gpus <= config.gpus
            self.unfinished[fact.job] = fact.spec

    @rule(vc=st.sampled_from(VCS), number=st.integers(1, 30))
    def cancel(self, vc: str, number: int) -> None:
        job = f"j{number}"
        raw = f'{{"job":"{job}"}}'.encode()
        effects = self.decide(CancelRequest(vc=vc, raw=raw, at=T0, reply=REPLIES[vc]))
        verdict = self.verdict_in(effects)
        spec = self.unfinished.get(job)
        assert verdict.accepted == (spec is not None and spec.vc == vc)
        asked = [effect for effect in effects if isinstance(effect, Record)]
        assert asked in ([], [Record(CancelAsked(job=job))])
        assert verdict.accepted or not asked

    @staticmethod
    def verdict_in(effects: list[Effect]) -> Verdict:
        send = effects[-1]
        assert isinstance(send, Send)
        assert isinstance(send.message, Verdict)
        return send.message

    @rule(data=st.data(), known=st.booleans())
    def end(self, data: st.DataObject, known: bool) -> None:
        jobs = list(self.unfinished) if known else list(self.became)
        if jobs:
            job = data.draw(st.sampled_from(jobs))
            ended = JobEnded(job=job, end=End.FAILED, why=Reason.TIME_LIMIT, attempts=1, at=T0)
            self.decide(Facts(service="allocator", at=T0, facts=(ended,)))
            self.unfinished.pop(job, None)

    @rule()
    def crash(self) -> None:
        assert self.decide.restart() == []

    @invariant()
    def the_unfinished_jobs_are_those_of_the_model(self) -> None:
        assert list(self.decide.machine.active) == list(self.unfinished)

    @invariant()
    def a_snapshot_rebuilds_the_machine(self) -> None:
        entries = msgspec.json.encode(self.decide.machine.snapshot())
        again = self.decide.make()
        for entry in msgspec.json.decode(entries, type=list[Kept | NodeSeen]):
            again.apply(entry)
        again.check()
        assert_durable_alike(again, self.decide.machine)

    @invariant()
    def every_submission_was_answered_once(self) -> None:
        answers = [
            fact for fact in self.decide.facts if isinstance(fact, Admitted | Refused | Repeated)
        ]
        assert [fact.job for fact in answers] == list(self.became)


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(stateful_step_count=40)
