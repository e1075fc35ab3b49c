"""Admission: each transition, each refusal with path and suggestion, keys, cancellations."""

from typing import Any

import msgspec
import pytest

from skep.machines.admission import KEY_CHARACTERS_MAX, AdmissionMachine
from skep.machines.base import Effect, Record, Restarted, Send, Tick
from skep.units import GIB
from skep.wire.admin import DrainNode, SetVcs
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, VirtualCluster
from skep.wire.codec import CancelRequest, Facts, Unreadable
from skep.wire.facts import (
    Admitted,
    CancelAsked,
    CellsSeen,
    CellsSet,
    End,
    JobEnded,
    JobOver,
    NodeLost,
    NodeSeen,
    Refused,
    Repeated,
    VcsSet,
)
from skep.wire.reasons import Reason
from skep.wire.spec import GANG_NODES_MAX, JobSpec, Problem, Topology
from skep.wire.verdict import Verdict
from tests.kit import T0, TRACE, Driver, added, allocator, facts_of, joined, spec, submission, vcs

REPLY = "_INBOX.vc-nlp.x"


@pytest.fixture
def admission() -> Driver[AdmissionMachine]:
    """Return admission with two tenants of 8 and 4 GPUs and no hardware."""
    driver = Driver(AdmissionMachine)
    driver.restart()
    driver(SetVcs(vcs=vcs(nlp=8, cv=4)))
    return driver


def accepted(number: int, job: JobSpec | None = None, **fields: Any) -> Record:
    given = {"submitted_at": T0, **fields}
    return Record(Admitted(job=f"j{number}", spec=job or spec(), **given))


def refused(number: int, problem: Problem, **fields: Any) -> list[Effect]:
    """Return what a refusal for one problem leads to, when the answer goes to REPLY."""
    given = {"vc": "nlp", "submitted_at": T0, "name": "train", **fields}
    fact = Refused(job=f"j{number}", problems=(problem,), **given)
    verdict = Verdict(job=f"j{number}", accepted=False, reason=problem.reason, problems=(problem,))
    return [Record(fact), Send(REPLY, verdict)]


def over(number: int) -> Facts:
    ended = JobEnded(job=f"j{number}", end=End.SUCCEEDED, why=Reason.SUCCEEDED, attempts=1, at=T0)
    return Facts(service="allocator", at=T0, facts=(NodeLost(node="node-1"), ended))


def cancel(raw: bytes, vc: str = "nlp", reply: str = REPLY) -> CancelRequest:
    return CancelRequest(vc=vc, raw=raw, at=T0, reply=reply)


# --- submissions --------------------------------------------------------------------------------


def test_a_submission_is_admitted_and_answered(admission: Driver[AdmissionMachine]) -> None:
    assert admission(submission(1, reply=REPLY, key="k", trace=TRACE)) == [
        accepted(1, key="k", trace=TRACE),
        Send(REPLY, Verdict(job="j1", accepted=True), {"traceparent": TRACE}),
    ]


def test_nobody_is_answered_who_did_not_ask(admission: Driver[AdmissionMachine]) -> None:
    assert admission(submission(1)) == [accepted(1)]


def test_no_verdict_goes_to_a_foreign_subject(admission: Driver[AdmissionMachine]) -> None:
    assert admission(submission(1, reply="skep.v1.cmd.node-1")) == [accepted(1)]


def test_a_submission_read_again_is_answered_already(admission: Driver[AdmissionMachine]) -> None:
    admission(submission(5, reply=REPLY))
    assert admission(submission(5, reply=REPLY)) == []
    assert admission(submission(4, reply=REPLY)) == []
    admission.restart()
    assert admission(submission(5, reply=REPLY)) == []


def test_the_admitted_spec_is_normalised(admission: Driver[AdmissionMachine]) -> None:
    raw = {
        "name": "train",
        "vc": "nlp",
        "command": ["true"],
        "limits": {"time": "2m"},
        "resources": {"memory": "1GiB"},
    }
    assert admission(submission(1, raw=raw)) == [accepted(1, spec(time=120, memory=GIB))]


def test_a_spec_with_problems_is_refused_with_all_of_them(
    admission: Driver[AdmissionMachine],
) -> None:
    problems = (
        Problem(
            path="$.comand",
            reason=Reason.UNKNOWN_KEY,
            text="unknown key `comand`",
            suggestion="did you mean `command`?",
        ),
        Problem(path="$.vc", reason=Reason.MISSING_KEY, text="`vc` is required"),
    )
    verdict = Verdict(job="j1", accepted=False, reason=Reason.UNKNOWN_KEY, problems=problems)
    assert admission(submission(1, raw={"name": "x" * 200, "comand": 1}, reply=REPLY)) == [
        Record(Refused(job="j1", vc="nlp", problems=problems, submitted_at=T0, name="x" * 128)),
        Send(REPLY, verdict),
    ]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"name": 7}', b'{"a":' * 9_000])
def test_a_refused_spec_may_have_no_name(raw: bytes, admission: Driver[AdmissionMachine]) -> None:
    (effect,) = admission(submission(1, raw=raw))
    assert isinstance(effect, Record)
    assert isinstance(effect.fact, Refused)
    assert effect.fact.name == ""


@pytest.mark.parametrize("vc, suggestion", [("nlq", "did you mean `nlp`?"), ("vision-team", "")])
def test_an_unknown_vc(vc: str, suggestion: str, admission: Driver[AdmissionMachine]) -> None:
    problem = Problem(
        path="$.vc",
        reason=Reason.UNKNOWN_VC,
        text=f"there is no virtual cluster `{vc}`; there are: cv, nlp",
        suggestion=suggestion,
    )
    inbox = f"_INBOX.vc-{vc}.x"
    verdict = Verdict(job="j1", accepted=False, reason=Reason.UNKNOWN_VC, problems=(problem,))
    assert admission(submission(1, vc=vc, raw=spec(vc=vc), reply=inbox)) == [
        Record(Refused(job="j1", vc=vc, problems=(problem,), submitted_at=T0, name="train")),
        Send(inbox, verdict),
    ]


def test_before_the_operator_set_any_vc() -> None:
    driver = Driver(AdmissionMachine)
    problem = Problem(
        path="$.vc",
        reason=Reason.UNKNOWN_VC,
        text="there is no virtual cluster `nlp`; there are: none yet",
    )
    assert driver(submission(1, reply=REPLY)) == refused(1, problem)


def test_a_spec_published_to_another_vc(admission: Driver[AdmissionMachine]) -> None:
    problem = Problem(
        path="$.vc",
        reason=Reason.WRONG_VC,
        text="the spec names `cv` but was published to `nlp`",
        suggestion="publish it to skep.v1.submit.cv",
    )
    assert admission(submission(1, raw=spec(vc="cv"), reply=REPLY)) == refused(1, problem)


def test_too_many_unfinished_jobs(admission: Driver[AdmissionMachine]) -> None:
    admission(SetVcs(vcs={"nlp": VirtualCluster(gpus=8, jobs_max=2)}))
    admission(submission(1))
    admission(submission(2))
    problem = Problem(
        path="$.vc",
        reason=Reason.TOO_MANY_JOBS,
        text="`nlp` has 2 unfinished jobs, as many as it may have",
        suggestion="wait for some to end, or cancel some",
    )
    assert admission(submission(3, reply=REPLY)) == refused(3, problem)
    admission(over(1))
    assert admission(submission(4)) == [accepted(4)]


# --- quota --------------------------------------------------------------------------------------


def test_a_job_that_waits_is_admitted_beyond_the_quota(admission: Driver[AdmissionMachine]) -> None:
    big = spec(gpus=8)
    assert admission(submission(1, raw=big)) == [accepted(1, big)]
    assert admission(submission(2, raw=big)) == [accepted(2, big)]


@pytest.mark.parametrize("over_quota", ["wait", "refuse"])
def test_a_job_larger_than_the_quota_is_refused(
    over_quota: str, admission: Driver[AdmissionMachine]
) -> None:
    problem = Problem(
        path="$.resources",
        reason=Reason.QUOTA_TOO_SMALL,
        text="it needs 10 GPUs and `nlp` owns 8",
        suggestion="use fewer, or `service_class: opportunistic`",
    )
    job = spec(gpus=5, workers=2, over_quota=over_quota)
    assert admission(submission(1, raw=job, reply=REPLY)) == refused(1, problem)


def test_a_job_that_rather_not_waits_is_refused(admission: Driver[AdmissionMachine]) -> None:
    impatient = spec(gpus=3, over_quota="refuse")
    admission(submission(1, raw=spec(gpus=5)))
    assert admission(submission(2, raw=impatient)) == [accepted(2, impatient)]
    problem = Problem(
        path="$.over_quota",
        reason=Reason.OVER_QUOTA,
        text="`nlp` owns 8 GPUs and its unfinished jobs ask for 8",
        suggestion="use `over_quota: wait` or `opportunistic`",
    )
    assert admission(submission(3, raw=impatient, reply=REPLY)) == refused(3, problem)
    admission(over(1))
    assert admission(submission(4, raw=impatient)) == [accepted(4, impatient)]


def test_a_job_over_quota_may_borrow_meanwhile(admission: Driver[AdmissionMachine]) -> None:
    admission(submission(1, raw=spec(gpus=5)))
    wish = spec(gpus=4, over_quota="opportunistic")
    # It stays guaranteed: the allocator promotes it when its VC's cells are free.
    assert admission(submission(2, raw=wish)) == [accepted(2, wish)]


def test_a_job_larger_than_all_its_vc_owns_may_turn_opportunistic(
    admission: Driver[AdmissionMachine],
) -> None:
    wish = spec(gpus=16, over_quota="opportunistic")
    turned = spec(gpus=16, over_quota="opportunistic", opportunistic=True)
    assert admission(submission(1, raw=wish)) == [accepted(1, turned)]


def cells_set(owner: VirtualCluster, **chains: Chain) -> Facts:
    """Return the allocator's record of the cells in force: of `nlp`, and a pinned pair."""
    pins = {"mine": Pin(chain="main", level="pair", index=0)}
    cluster = Cluster(chains=chains, pins=pins, vcs={"nlp": owner})
    return Facts(service="allocator", at=T0, facts=(CellsSet(cluster=cluster, asked=cluster),))


RACKS = Chain(
    gpu="cpu",
    levels=(
        Level(name="pair", fanout=2),
        Level(name="node", fanout=2),
        Level(name="rack", fanout=2),
    ),
    node_level="node",
    nodes=(NodeCell(node="node-1"), NodeCell(node="node-2")),
)


def test_cells_and_pinned_cells_are_worth_their_gpus(admission: Driver[AdmissionMachine]) -> None:
    owner = VirtualCluster(cells=(Quota(chain="main", level="node", count=1),), pinned=("mine",))
    pins = {"mine": Pin(chain="main", level="pair", index=0)}
    admission(SetVcs(vcs={"nlp": owner}, chains={"main": RACKS}, pins=pins))
    (seen,) = facts_of(admission(cells_set(owner, main=RACKS)))
    assert isinstance(seen, CellsSeen)
    assert admission(cells_set(owner, main=RACKS)) == []
    (refusal,) = facts_of(admission(submission(1, raw=spec(gpus=7))))
    assert isinstance(refusal, Refused)
    assert refusal.problems[0].text == "it needs 7 GPUs and `nlp` owns 6"
    four = spec(gpus=4)
    assert admission(submission(2, raw=four)) == [accepted(2, four)]


def test_what_is_asked_for_may_be_ahead_of_the_cells_in_force(
    admission: Driver[AdmissionMachine],
) -> None:
    admission(cells_set(VirtualCluster(gpus=4), main=RACKS))
    levels = (*RACKS.levels[:2], Level(name="row", fanout=2))
    owner = VirtualCluster(cells=(Quota(chain="main", level="row", count=1),))
    chains = {"main": msgspec.structs.replace(RACKS, levels=levels)}
    admission(SetVcs(vcs={"cv": owner}, chains=chains))
    eight = spec(vc="cv", gpus=4, workers=2)
    assert admission(submission(1, vc="cv", raw=eight)) == [accepted(1, eight)]


def test_a_gang_tied_to_a_rack_need_not_fit_one_node(admission: Driver[AdmissionMachine]) -> None:
    owner = VirtualCluster(cells=(Quota(chain="main", level="rack", count=1),))
    admission(SetVcs(vcs={"nlp": owner}, chains={"main": RACKS}))
    admission(added(joined("node-1")))
    admission(added(joined("node-2")))
    admission(cells_set(owner, main=RACKS))
    rack = spec(gpus=4, workers=2, topology=Topology(within="rack", hard=True))
    assert admission(submission(1, raw=rack)) == [accepted(1, rack)]
    node = spec(gpus=4, workers=2, topology=Topology(within="node", hard=True))
    (refusal,) = facts_of(admission(submission(2, raw=node)))
    assert isinstance(refusal, Refused)
    assert refusal.problems[0].reason is Reason.NODE_TOO_SMALL


def test_within_the_quota_it_stays_guaranteed(admission: Driver[AdmissionMachine]) -> None:
    wish = spec(gpus=8, over_quota="opportunistic")
    assert admission(submission(1, raw=wish)) == [accepted(1, wish)]


def test_opportunistic_jobs_use_no_quota(admission: Driver[AdmissionMachine]) -> None:
    idle = spec(gpus=16, opportunistic=True)
    assert admission(submission(1, raw=idle)) == [accepted(1, idle)]
    whole = spec(gpus=8, over_quota="refuse")
    assert admission(submission(2, raw=whole)) == [accepted(2, whole)]


# --- what no hardware can hold ------------------------------------------------------------------


@pytest.fixture
def hardware(admission: Driver[AdmissionMachine]) -> Driver[AdmissionMachine]:
    """Return admission that knows two nodes of 4 CPU slots and one of 2 other GPUs."""
    admission(SetVcs(vcs=vcs(nlp=100)))
    admission(added(joined("node-1", 4, cpus=16, memory=32 * GIB)))
    admission(added(joined("node-2", 4, cpus=16, memory=64 * GIB)))
    admission(added(joined("node-3", {"h200": 2}, cpus=64, memory=64 * GIB)))
    return admission


@pytest.mark.parametrize(
    "wish",
    [
        {"gpus": 4, "workers": 2},
        {"gpu_type": "h200|cpu", "gpus": 2},
        {"workers": 4, "hard": True},
        {"workers": 4, "hard": True, "cpus": 4, "memory": 16 * GIB},
        {"workers": 2, "cpus": 32, "memory": 32 * GIB},
    ],
)
def test_what_an_empty_cluster_could_hold(
    wish: dict[str, Any], hardware: Driver[AdmissionMachine]
) -> None:
    job = spec(**wish)
    assert hardware(submission(1, raw=job)) == [accepted(1, job)]


@pytest.mark.parametrize(
    "wish, problem",
    [
        (
            {"gpu_type": "h200|h100"},
            Problem(
                path="$.resources.gpu_type",
                reason=Reason.NO_SUCH_GPU_TYPE,
                text="no node has GPUs of type `h100`; there are: cpu, h200",
                suggestion="did you mean `h200`?",
            ),
        ),
        (
            {"gpus": 3, "workers": 3},
            Problem(
                path="$.resources",
                reason=Reason.TOO_MANY_GPUS,
                text="it needs 9 GPUs of one type and the cluster has 8",
                suggestion="ask for at most 8",
            ),
        ),
        (
            {"gpus": 3, "gpu_type": "h200"},
            Problem(
                path="$.resources",
                reason=Reason.TOO_MANY_GPUS,
                text="it needs 3 GPUs of one type and the cluster has 2",
                suggestion="ask for at most 2",
            ),
        ),
        *(
            (
                wish,
                Problem(
                    path="$.resources",
                    reason=Reason.NODE_TOO_SMALL,
                    text="no placement exists: the largest node has 4 GPUs, 64 CPUs and "
                    "68719476736 bytes of memory",
                    suggestion="make the workers smaller or the topology wish soft",
                ),
            )
            for wish in (
                {"gpus": 5},
                {"workers": 5, "hard": True},
                {"cpus": 65},
                {"memory": 65 * GIB},
                {"workers": 8, "cpus": 5},
            )
        ),
    ],
)
def test_impossible_requests_name_what_exists(
    wish: dict[str, Any], problem: Problem, hardware: Driver[AdmissionMachine]
) -> None:
    assert hardware(submission(1, raw=spec(**wish), reply=REPLY)) == refused(1, problem)


def test_a_gang_may_span_only_so_many_nodes_as_one_record_can_name() -> None:
    machine = Driver(AdmissionMachine, thorough=False)
    machine(SetVcs(vcs=vcs(nlp=10_000)))
    for number in range(1, GANG_NODES_MAX + 2):
        machine(added(joined(f"node-{number}", 1)))
    widest = spec(workers=GANG_NODES_MAX)
    assert machine(submission(1, raw=widest)) == [accepted(1, widest)]
    problem = Problem(
        path="$.resources.workers",
        reason=Reason.NODE_TOO_SMALL,
        text=f"it would span more than {GANG_NODES_MAX} nodes, the most one gang may have",
        suggestion="use fewer workers with more GPUs each",
    )
    wide = spec(workers=GANG_NODES_MAX + 1)
    assert machine(submission(2, raw=wide, reply=REPLY)) == refused(2, problem)


def test_a_node_without_gpus_is_no_reason_to_fall_over(admission: Driver[AdmissionMachine]) -> None:
    admission(added(joined(gpus=0)))
    problem = Problem(
        path="$.resources",
        reason=Reason.TOO_MANY_GPUS,
        text="it needs 1 GPUs of one type and the cluster has 0",
        suggestion="ask for at most 0",
    )
    assert admission(submission(1, reply=REPLY)) == refused(1, problem)


def test_nothing_is_impossible_before_the_first_node(admission: Driver[AdmissionMachine]) -> None:
    job = spec(gpus=4, workers=2, gpu_type="whatever")
    assert admission(submission(1, raw=job)) == [accepted(1, job)]


# --- keys ---------------------------------------------------------------------------------------


def test_the_same_key_makes_one_job_for_ever(admission: Driver[AdmissionMachine]) -> None:
    admission(submission(1, key="k"))
    admission(over(1))
    admission.restart()
    assert admission(submission(9, key="k", reply=REPLY, trace=TRACE, raw=b"other")) == [
        Record(Repeated(job="j9", original="j1", vc="nlp", trace=TRACE)),
        Send(
            REPLY, Verdict(job="j1", accepted=True, reason=Reason.REPEATED), {"traceparent": TRACE}
        ),
    ]
    assert admission(submission(9, key="k")) == []


def test_a_key_belongs_to_its_vc(admission: Driver[AdmissionMachine]) -> None:
    admission(submission(1, key="k"))
    other = spec(vc="cv")
    assert admission(submission(2, key="k", vc="cv", raw=other)) == [accepted(2, other, key="k")]


def test_the_repetition_of_a_refusal_is_refused(admission: Driver[AdmissionMachine]) -> None:
    admission(submission(1, key="k", raw=b"garbage"))
    problem = Problem(
        path="$",
        reason=Reason.REPEATED,
        text="this key was used before, by j1, which was refused",
        suggestion="mend the spec and use another key",
    )
    verdict = Verdict(job="j1", accepted=False, reason=Reason.REPEATED, problems=(problem,))
    assert admission(submission(2, key="k", reply=REPLY)) == [
        Record(Repeated(job="j2", original="j1", vc="nlp")),
        Send(REPLY, verdict),
    ]


@pytest.mark.parametrize("key", ["k" * (KEY_CHARACTERS_MAX + 1), "k\x00", "k\udcff"])
def test_a_key_that_cannot_be_remembered(key: str, admission: Driver[AdmissionMachine]) -> None:
    problem = Problem(
        path="header Nats-Msg-Id",
        reason=Reason.BAD_VALUE,
        text="a key has at most 256 characters, all of them printable",
    )
    assert admission(submission(1, key=key, reply=REPLY)) == refused(1, problem)
    assert admission.machine.keys == {}


# --- cancellations ------------------------------------------------------------------------------


def test_a_cancellation_is_asked_for_once(admission: Driver[AdmissionMachine]) -> None:
    admission(submission(1))
    yes = Send(REPLY, Verdict(job="j1", accepted=True))
    assert admission(cancel(b'{"job":"j1"}')) == [Record(CancelAsked(job="j1")), yes]
    assert admission(cancel(b'{"job":"j1"}')) == [yes]
    assert admission(cancel(b'{"job":"j1"}', reply="")) == []


@pytest.mark.parametrize(
    "raw, job, path, reason, text, suggestion",
    [
        (b"j1", "", "$", Reason.NOT_JSON, "not JSON: ", 'publish {"job": "j17"}'),
        (b"[]", "", "$", Reason.NOT_JSON, "not JSON: ", 'publish {"job": "j17"}'),
        (b'{"a":' * 9_000, "", "$", Reason.NOT_JSON, "not JSON: ", 'publish {"job": "j17"}'),
        (b"{}", "", "$.job", Reason.BAD_VALUE, "`job` must be a job id", 'publish {"job": "j17"}'),
        (
            b'{"job":17}',
            "",
            "$.job",
            Reason.BAD_VALUE,
            "`job` must be a job id",
            'publish {"job": "j17"}',
        ),
        (
            b'{"job":"17"}',
            "",
            "$.job",
            Reason.BAD_VALUE,
            "`job` must be a job id",
            'publish {"job": "j17"}',
        ),
        (
            b'{"job":"j' + b"9" * 5_000 + b'"}',
            "",
            "$.job",
            Reason.BAD_VALUE,
            "`job` must be a job id",
            'publish {"job": "j17"}',
        ),
        (b'{"job":"j1"}', "j1", "$.job", Reason.ALREADY_ENDED, "j1 has already ended", ""),
        (b'{"job":"j2"}', "j2", "$.job", Reason.UNKNOWN_JOB, "`nlp` has no job j2", ""),
        (b'{"job":"j4"}', "j4", "$.job", Reason.UNKNOWN_JOB, "`nlp` has no job j4", ""),
    ],
)
def test_a_cancellation_that_makes_no_sense(
    raw: bytes,
    job: str,
    path: str,
    reason: Reason,
    text: str,
    suggestion: str,
    admission: Driver[AdmissionMachine],
) -> None:
    admission(submission(1))
    admission(over(1))
    admission(submission(2, vc="cv", raw=spec(vc="cv")))
    (effect,) = admission(cancel(raw))
    assert isinstance(effect, Send)
    verdict = effect.message
    assert isinstance(verdict, Verdict)
    (problem,) = verdict.problems
    assert effect == Send(
        REPLY, Verdict(job=job, accepted=False, reason=reason, problems=(problem,))
    )
    assert (problem.path, problem.reason, problem.suggestion) == (path, reason, suggestion)
    assert problem.text.startswith(text)


# --- news of others -----------------------------------------------------------------------------


def test_the_end_of_a_job_frees_its_place_once(admission: Driver[AdmissionMachine]) -> None:
    admission(submission(1, raw=spec(gpus=8, over_quota="refuse")))
    assert admission(over(1)) == [Record(JobOver(job="j1"))]
    assert admission(over(1)) == []
    assert admission.machine.outstanding_gpus == {"nlp": 0}


def test_tenants_are_those_of_the_last_word(admission: Driver[AdmissionMachine]) -> None:
    assert admission(SetVcs(vcs=vcs(cv=1))) == [Record(VcsSet(vcs=vcs(cv=1), gpus={"cv": 1}))]
    assert admission.machine.vcs == vcs(cv=1)


def test_an_inventory_is_recorded_when_it_changes(admission: Driver[AdmissionMachine]) -> None:
    node = joined("node-1", {"h200": 2, "a100": 1}, cpus=8, memory=GIB)
    seen = NodeSeen(node="node-1", gpus={"h200": 2, "a100": 1}, cpus=8, memory=GIB)
    assert admission(added(node)) == [Record(seen)]
    assert admission(added(msgspec.structs.replace(node, incarnation=2))) == []
    more = msgspec.structs.replace(node, cpus=9)
    assert admission(added(more)) == [Record(msgspec.structs.replace(seen, cpus=9))]


def test_the_inventory_is_that_of_the_agent_the_allocator_believes() -> None:
    """A second agent of a node's name is refused: what it has is not what exists."""
    judge, admission = allocator(nlp=4), Driver(AdmissionMachine)
    admission(SetVcs(vcs=vcs(nlp=9)))
    first = joined("node-1", 4, identity="first")
    for join in (first, joined("node-1", 9, identity="second")):
        for effect in judge(join):
            if isinstance(effect, Record):
                admission(Facts(service="allocator", at=T0, facts=(effect.fact,)))
    assert judge.machine.state.nodes["node-1"].joined == first
    assert admission.machine.nodes["node-1"].gpus == {"cpu": 4}


@pytest.mark.parametrize(
    "event",
    [
        Tick(),
        Restarted(epoch=2),
        Unreadable(subject="x", text="y"),
        DrainNode(node="node-1"),
        Facts(service="allocator", at=T0, facts=()),
    ],
)
def test_what_changes_nothing(event: Any, admission: Driver[AdmissionMachine]) -> None:
    assert admission(event) == []
    assert admission.machine.wake_at() is None


def test_a_crash_forgets_nothing(admission: Driver[AdmissionMachine]) -> None:
    admission(added(joined()))
    admission(submission(1, key="k"))
    admission(submission(2, raw=spec(gpus=4)))
    admission(cancel(b'{"job":"j2"}'))
    admission(over(1))
    assert admission.restart() == []
    assert admission.machine.epoch == 2
    assert list(admission.machine.active) == ["j2"]
