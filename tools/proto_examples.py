"""One golden example of every message: what `proto/examples/` holds and readers must understand."""

from __future__ import annotations

from typing import Any

import msgspec

from skep.units import Duration, Instant
from skep.wire import (
    admin,
    advice,
    array,
    array_gate,
    bearing,
    changes,
    commands,
    drafts,
    estimates,
    facts,
    findings,
    following,
    held_up,
    learned,
    moves,
    node,
    packs,
    part_facts,
    profile,
    reports,
    resizes,
    talk,
    template_facts,
    trials,
    verdict,
    windows,
)
from skep.wire.cluster import Chain, Cluster, Level, NodeCell, Pin, Quota, Template, VirtualCluster
from skep.wire.reasons import Reason
from skep.wire.roles import Role, Standing
from skep.wire.spec import (
    After,
    Elastic,
    JobSpec,
    Limits,
    Problem,
    Resources,
    Runtime,
    SizeHint,
    Topology,
)
from tools.proto_access import ACCESS_FACTS, ASKED, WISHES
from tools.proto_notices import NOTIFIER_FACTS
from tools.proto_promises import PROMISE_FACTS
from tools.proto_search import SEARCH_FACTS, SEARCH_VERDICTS
from tools.proto_services import LATE, SERVED, SERVICE_FACTS

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AT = Instant(1_760_000_000_000_000_000)
LATER = Instant(AT + 5_000_000_000)
WINDOW = windows.Window(
    name="fans", nodes=("node-1",), begins=AT, ends=LATER, reason="new fans are built in"
)
IDENTITY = "0c4e1f0a9b7d4d0f8a55c1d2e3f40516"

SPEC = JobSpec(
    name="digits",
    vc="nlp",
    script="/data/ada/train.py",
    args=("--epochs", "10"),
    workdir="/data/ada",
    env={"LR": "0.1"},
    resources=Resources(
        gpus=1,
        workers=2,
        gpu_type="cpu",
        cpus=1,
        memory=2**31,
        topology=Topology(within="node", hard=True),
    ),
    priority=10,
    limits=Limits(time=7200, retries=2),
    size=SizeHint(epochs=10, mini_batches_per_epoch=90, batch_size=16, family="digits"),
    labels={"paper": "yes"},
    runtime=Runtime(image="pytorch/pytorch:2.9.0"),
    elastic=Elastic(min=1, max=4),
)
SMALL = JobSpec(name="hello", vc="nlp", command=("hostname",))
PROBLEM = Problem(
    path="$.resources.gpu",
    reason=Reason.UNKNOWN_KEY,
    text="unknown key `gpu`",
    suggestion="did you mean `gpus`?",
)
JOINED = node.NodeJoined(
    node="node-1",
    identity=IDENTITY,
    incarnation=3,
    address="10.0.0.1",
    ports=(20000, 20499),
    gpus=(node.Gpu(index=0, type="nvidia-h200", memory=150_754_820_096, uuid="GPU-5f3b"),),
    cpus=16,
    memory=137_438_953_472,
)
EXITED = node.MemberExited(
    node="node-1",
    identity=IDENTITY,
    job="j17",
    attempt=1,
    outcome=node.Outcome.EXITED,
    at=LATER,
    detail="rank 1: exit status 3",
    steps=900,
    step_ns=11_000_000,
    trace=TRACE,
    ranks=(node.RankExit(rank=0, code=-15), node.RankExit(rank=1, code=3)),
)
BIND = commands.BindJob(
    order=42,
    epoch=2,
    settled=40,
    node="node-1",
    identity=IDENTITY,
    job="j17",
    attempt=1,
    name="digits",
    vc="nlp",
    argv=(commands.AGENT_PYTHON, "-m", "skep_job", "/data/ada/train.py"),
    ranks=(
        commands.RankPlan(rank=0, local_rank=0, devices=(0,)),
        commands.RankPlan(rank=1, local_rank=1, devices=(1,)),
    ),
    world=2,
    node_rank=0,
    nodes=1,
    master_address="10.0.0.1",
    master_port=20000,
    env={"LR": "0.1"},
    workdir="/data/ada",
    trace=TRACE,
    image="pytorch/pytorch:2.9.0",
)
MEMBER = facts.Member(node="node-1", identity=IDENTITY, first_rank=0, devices=((0,), (1,)))
MORE = facts.Member(node="node-1", identity=IDENTITY, first_rank=2, devices=((2,),), levels=(1,))
OWNED = facts.Member(
    node="node-1", identity=IDENTITY, first_rank=0, devices=((0, 1), (2, 3)), levels=(3, 3)
)
CELLS = Cluster(
    chains={
        "cpux4": Chain(
            gpu="cpu",
            levels=(Level(name="pair", fanout=2), Level(name="node", fanout=2)),
            node_level="node",
            nodes=(NodeCell(node="node-1"), NodeCell(node="node-2", devices=(0, 2, 1, 3))),
        )
    },
    pins={"big": Pin(chain="cpux4", level="node", index=1)},
    vcs={
        "nlp": VirtualCluster(cells=(Quota(chain="cpux4", level="node", count=1),)),
        "vision": VirtualCluster(pinned=("big",), weight=2.0),
    },
)

CHANGE = commands.ChangeJob(
    order=44,
    epoch=2,
    settled=41,
    node="node-1",
    identity=IDENTITY,
    job="j17",
    attempt=1,
    change=commands.Suspend(release=True, step=120),
    deadline_ms=5_000,
    trace=TRACE,
)

COMMANDS: tuple[msgspec.Struct, ...] = (
    BIND,
    commands.StopJob(
        order=43,
        epoch=2,
        settled=41,
        node="node-1",
        identity=IDENTITY,
        job="j17",
        attempt=1,
        grace_s=10.0,
    ),
    CHANGE,
    commands.RefuseNode(
        epoch=2, node="node-1", identity="other", text="another agent named node-1 is alive"
    ),
    commands.JoinAgain(epoch=2, node="node-1", identity=IDENTITY),
    commands.DropCopies(epoch=2, node="node-1", identity=IDENTITY, jobs=("j16",)),
    commands.ClearNode(order=43, epoch=2, node="node-1", identity=IDENTITY),
)
KNOWN = node.MemberKnown(
    node="node-1",
    identity=IDENTITY,
    job="j17",
    attempt=1,
    at=AT,
    trace=TRACE,
    tier=node.Tier.OBSERVED,
    can=("suspend", "release"),
)
READY = node.MemberReady(
    node="node-1",
    identity=IDENTITY,
    job="j17",
    attempt=2,
    at=AT,
    trace=TRACE,
    doors=(node.Door(rank=0, host="10.0.0.1", port=31_000),),
)
LOADED = node.MemberLoaded(
    node="node-1", identity=IDENTITY, job="j17", attempt=2, step=120, at=AT, trace=TRACE
)
CHANGED = node.MemberChanged(
    node="node-1",
    identity=IDENTITY,
    job="j17",
    attempt=1,
    order=44,
    manner=node.Manner.BOUNDARY,
    at=AT,
    step=120,
    moved=104_857_600,
    residue=524_288_000,
    pause_ns=140_000_000,
    trace=TRACE,
)

NODE_EVENTS: tuple[msgspec.Struct, ...] = (
    JOINED,
    node.MemberStarted(node="node-1", identity=IDENTITY, job="j17", attempt=1, at=AT, trace=TRACE),
    node.MemberStepped(node="node-1", identity=IDENTITY, job="j17", attempt=1, at=AT, trace=TRACE),
    KNOWN,
    READY,
    LOADED,
    CHANGED,
    EXITED,
    node.NodeCleared(node="node-1", identity=IDENTITY, order=43),
)
FINGERPRINT = profile.Fingerprint(
    parameters=25_557_032,
    gradient_bytes=102_228_128,
    shapes="deedfa87242d1f87",
    dtypes=("float32",),
    sizes=(0, 0, 0, 0, 0, 0, 34, 0, 32, 20, 0, 14, 5, 1, 16, 7, 11, 2, 8, 5, 4, 3),
    script="d13b83cd546521b8",
    arguments="e3b0c44298fc1c14",
    torch="2.5.1",
    python="3.11.7",
    batch=(32, 3, 224, 224),
)
TIMING = profile.Timing(
    samples=64,
    mean_ns=11_100_000,
    deviation_ns=600_000,
    p10_ns=10_800_000,
    p50_ns=11_000_000,
    p90_ns=11_900_000,
)
REPORTS: tuple[msgspec.Struct, ...] = (
    reports.Heartbeat(
        node="node-1",
        identity=IDENTITY,
        at=AT,
        trouble=(reports.DeviceTrouble(index=2, text="XID 79"),),
        idle=(reports.IdlePart(job="j17", attempt=1, idle_ns=1_800_000_000_000),),
    ),
    reports.NodeReport(
        node="node-1",
        at=AT,
        jobs=(
            reports.JobProgress(
                job="j17",
                attempt=1,
                world=2,
                trace=TRACE,
                ranks=(
                    reports.RankProgress(
                        rank=0, steps=90, step_ns=11_000_000, last_step_at=AT, memory=300_000_000
                    ),
                    reports.RankProgress(
                        rank=1,
                        steps=90,
                        step_ns=11_000_000,
                        last_step_at=AT,
                        memory=300_000_000,
                        fingerprint=FINGERPRINT,
                        timing=TIMING,
                    ),
                ),
            ),
        ),
    ),
)
PROFILE_FACTS: tuple[msgspec.Struct, ...] = (
    facts.EpochBegan(epoch=2, owner="host-0c4e1f0a9b7d", rules=bearing.RULES),
    following.StageSet(
        vc="nlp",
        model="9f" * 32,
        stage="on",
        why=Reason.NOT_WORSE,
        at=AT,
        decisions=840,
        agreed_milli=930,
        pairs=8,
        gain_milli=112,
        low_milli=31,
        high_milli=193,
    ),
    following.ShadowSeen(
        vc="nlp",
        model="9f" * 32,
        at=AT,
        decisions=60,
        agreed=51,
        pairs=4,
        sum_milli=1200,
        square_milli=700,
    ),
    following.BlockMeasured(
        vc="nlp",
        model="9f" * 32,
        block=3,
        at=AT,
        by_model=25,
        by_rule=22,
        valid=True,
        gain_milli=140,
    ),
    profile.ProfileMeasured(
        at=AT,
        job="j17",
        attempt=1,
        vc="nlp",
        family="resnet50",
        gpu_type="V100",
        gpus=2,
        nodes=1,
        p10_ns=10_800_000,
        p50_ns=11_000_000,
        p90_ns=11_900_000,
        samples=64,
        spread_milli=54,
        batch=32,
        fingerprint=FINGERPRINT,
    ),
    estimates.EstimateJudged(
        at=AT,
        job="j17",
        attempt=1,
        vc="nlp",
        family="resnet50",
        gpu_type="V100",
        gpus=2,
        nodes=1,
        outcomes=(
            estimates.Outcome(
                what="earlier-runs",
                p10=Duration(3_000_000_000_000),
                p50=Duration(3_600_000_000_000),
                p90=Duration(4_300_000_000_000),
                took=Duration(3_500_000_000_000),
                held=True,
                rank=424,
            ),
        ),
        mini_batches=100_000,
        ran=Duration(3_500_000_000_000),
        declared=Duration(3_600_000_000_000),
    ),
    estimates.CalibrationKept(
        vc="nlp",
        family="resnet50",
        held=(
            estimates.Held(
                what="earlier-runs",
                factor=1.25,
                outcomes=2,
                held=1,
                errors=(28, 410),
                ranks=(0, 0, 0, 0, 1, 0, 0, 0, 0, 1),
            ),
        ),
        runs=(estimates.Ran(gpus=2, gpu_type="V100", step_ns=35_000_000),),
        lengths=(972,),
    ),
)
BEFORE = (
    trials.Before(job="j17", attempt=1, gpus=1, rate_milli=90_909, solo_milli=90_909),
    trials.Before(job="j12", attempt=2, gpus=1, rate_milli=4_000, solo_milli=4_000),
)
AFTER = (
    trials.After(job="j17", rate_milli=70_000, samples=16),
    trials.After(job="j12", rate_milli=2_160, samples=16),
)
TRIALS: tuple[msgspec.Struct, ...] = (
    trials.Trials(
        at=AT,
        open=(
            trials.OpenTrial(
                trial=3,
                kind=trials.Kind.PACK,
                since=AT,
                until=LATER,
                needed_milli=1000,
                jobs=BEFORE,
            ),
        ),
    ),
)
FINDINGS: tuple[msgspec.Struct, ...] = (
    findings.Rates(
        at=AT, jobs=(findings.JobRate(job="j17", attempt=1, steps=90, rate_milli=90_909),)
    ),
    findings.Measured(at=AT, job="j17", attempt=1, step=90, values={"loss": 0.25}),
    profile.Profiled(
        at=AT, job="j17", attempt=1, workers=2, fingerprint=FINGERPRINT, timing=TIMING
    ),
    findings.RateLearned(at=AT, job="j17", attempt=1, rate_milli=90_909, trace=TRACE),
    findings.PhaseChanged(
        at=AT, job="j17", attempt=1, before_milli=90_909, after_milli=45_000, trace=TRACE
    ),
    findings.Stalled(
        at=LATER,
        job="j17",
        attempt=1,
        since=AT,
        trace=TRACE,
        code="rank-behind",
        behind=(3,),
        nodes=("node-2",),
        text="rank 3 has not entered collective 812 (nccl:all_reduce), in which 7 ranks wait",
    ),
    trials.Judged(
        at=LATER, trial=3, kept=True, gain_milli=310, low_milli=240, high_milli=380, after=AFTER
    ),
    held_up.GangSlowed(
        at=LATER,
        job="j17",
        attempt=1,
        rank=2,
        node="node-2",
        own_ns=180_000_000,
        usual_ns=100_000_000,
        step_ns=190_000_000,
        trace=TRACE,
    ),
)
SIGHTS: tuple[msgspec.Struct, ...] = (
    learned.Sight(
        vc="nlp",
        number=41,
        whole=False,
        at=AT,
        gpus=16,
        free=5,
        node_gpus=8,
        room=(
            learned.RoomSight(gpus=8, free=1, count=1),
            learned.RoomSight(gpus=8, free=4, count=1),
        ),
        jobs=(
            learned.JobSight(
                job="j19",
                sequence=19,
                phase="waiting",
                each=1,
                workers=4,
                least=2,
                most=8,
                submitted_at=AT,
                expected=Duration(3_600_000_000_000),
                rates=((2, 1900), (4, 3500), (8, 5600)),
                slowdown=((1, 1000), (2, 1250)),
                doubt=180,
            ),
        ),
        gone=("j17",),
    ),
)
ADVICE: tuple[msgspec.Struct, ...] = (
    advice.QueueAdvice(
        at=AT,
        expires_at=LATER,
        jobs=(
            advice.JobAdvice(
                job="j19", why=Reason.PREDICTED_SHORTEST, remaining=Duration(60_000_000_000)
            ),
            advice.JobAdvice(job="j18", why=Reason.ARRIVAL),
        ),
    ),
    advice.Outlook(
        at=AT,
        jobs=(
            advice.JobPace(
                job="j17",
                attempt=1,
                steps=90,
                rate_milli=90_909,
                utilisation=830,
                memory=300_000_000,
                remaining=Duration(60_000_000_000),
            ),
        ),
        families=(
            advice.FamilyScale(
                family="resnet",
                gpu_type="v100",
                points=(advice.ScalePoint(gpus=1, nodes=1, step_ns=Duration(11_000_000)),),
            ),
        ),
        fits=(
            advice.FamilyFit(
                vc="vision",
                family="resnet",
                gpu_type="v100",
                forms=(
                    advice.FittedForm(
                        kind="theta",
                        numbers=(1e6, 3e5, 2e6, 1e5, 8e6, 2e5, 1e6, 1.5, 32.0),
                        near=1.0,
                        far=1.0,
                    ),
                ),
                errors=(advice.FitError(low=-0.1, high=0.1, known=4),) * 3,
                points=1,
                gpus=1,
                nodes=1,
                source="vgg",
                source_type="v100",
                why=Reason.NEAREST_MODEL,
            ),
        ),
    ),
    learned.LearnedAdvice(
        vc="nlp",
        model="9f" * 32,
        schema=1,
        number=41,
        at=AT,
        expires_at=LATER,
        stage="on",
        moves=(learned.AdvisedMove(job="j19", workers=4, score_milli=812, margin_milli=95),),
        holds=("j21",),
    ),
    learned.SightWanted(vc="nlp", at=AT),
)
ADMIN: tuple[msgspec.Struct, ...] = (
    admin.SetVcs(vcs=CELLS.vcs, chains=CELLS.chains, pins=CELLS.pins),
    admin.DrainNode(node="node-1"),
    admin.QuarantineGpu(node="node-1", device=3),
    windows.ReserveNodes(window=WINDOW),
    windows.CancelWindow(name="fans"),
)
VERDICTS: tuple[msgspec.Struct, ...] = (
    verdict.Verdict(job="j18", accepted=False, reason=Reason.UNKNOWN_KEY, problems=(PROBLEM,)),
)
ASKS: tuple[msgspec.Struct, ...] = (
    changes.AskSuspend(job="j17", release=True),
    changes.AskResume(job="j17"),
    changes.AskCheckpoint(job="j17"),
    changes.AskMigrate(job="j17", to="node-2"),
    changes.AskResize(job="j17", workers=4),
    changes.AskPack(job="j17", beside="j12", share=0.5),
    changes.AskUnpack(job="j17"),
    changes.AskPriority(job="j17", priority=5),
    changes.AskHold(job="j17"),
    changes.AskRelease(job="j17"),
    changes.AskRetry(job="j21"),
    template_facts.AskSetTemplate(name="smoke", template=Template(spec={"priority": 5})),
    template_facts.AskRemoveTemplate(name="smoke"),
)
BAD_CELL = bearing.BadCell(chain="cpux4", vc="nlp", level=3, index=1)
ADMISSION_FACTS: tuple[msgspec.Struct, ...] = (
    facts.EpochBegan(epoch=2, owner="host-1f2e", rules=bearing.RULES),
    facts.VcsSet(vcs={"nlp": VirtualCluster(gpus=4)}, gpus={"nlp": 4}),
    facts.CellsSeen(cluster=CELLS),
    facts.NodeSeen(node="node-1", gpus={"nvidia-h200": 1}, cpus=16, memory=137_438_953_472),
    facts.Admitted(job="j17", spec=SPEC, submitted_at=AT, key="my-key-1", trace=TRACE),
    facts.Refused(
        job="j18", vc="nlp", problems=(PROBLEM,), submitted_at=AT, name="typo", trace=TRACE
    ),
    facts.Repeated(job="j20", original="j17", vc="nlp", trace=TRACE),
    facts.CancelAsked(job="j17", by="ann"),
    facts.RolesSeen(
        person="ann", standing=Standing(granted={"nlp": Role.SUBMITTER}, groups={"cv": Role.VIEWER})
    ),
    facts.JobOver(job="j17"),
    facts.JobBegan(job="j17"),
    changes.ChangeAsked(number=21, ask=changes.AskSuspend(job="j17", release=True), at=AT),
    *PROMISE_FACTS,
    array.ArrayAdmitted(
        array="j21",
        spec=msgspec.structs.replace(SPEC, array="0-99%8"),
        submitted_at=AT,
        key="my-key-2",
        trace=TRACE,
        owner="ann",
    ),
    array.TasksCancelled(array="j21", tasks="8-99", whole=True, by="ann"),
    array.ArrayOpened(array="j21"),
    array.TasksRetried(array="j21", number=130, tasks="1,4-6", at=AT, by="ann", vc="nlp"),
    array.ArrayOver(array="j21", succeeded=97, failed=2, cancelled=1, at=AT),
    template_facts.TemplateSet(
        vc="nlp",
        name="smoke",
        number=131,
        at=AT,
        template=Template(spec={"resources": {"gpus": 1}}, fixed=("resources.gpus",)),
        by="ann",
    ),
)
ALLOCATOR_FACTS: tuple[msgspec.Struct, ...] = (
    facts.NodeAdded(joined=JOINED),
    facts.CellsSet(
        cluster=CELLS,
        asked=Cluster(vcs={"nlp": VirtualCluster(gpus=4)}),
        fates=(facts.JobFate(job="j16", fate="demoted", attempt=1),),
        carried=(
            bearing.CarriedHold(job="j17", attempt=1, chain="cpux4", levels=(3,)),
            bearing.CarriedHold(job="j16", attempt=1, chain="cpux4", fate=bearing.Fate.DEMOTED),
        ),
        bad_cells=(BAD_CELL,),
    ),
    bearing.BadCellBound(cell=BAD_CELL),
    bearing.BadCellReturned(cell=BAD_CELL),
    bearing.SetLed(job="j17", attempt=1, before="j16", attempt_before=2),
    bearing.RulesRaised(rules=2, bad_cells=(BAD_CELL,)),
    facts.ClusterRefused(problems=(PROBLEM,)),
    facts.CellsAlarm(
        rule=Reason.CELLS_UNSAFE,
        chain="cpux4",
        where="node",
        vcs=("nlp",),
        text="1 cells of level node are owed and not there",
        at=LATER,
        story=('{"type":"job-ended","job":"j16"}',),
    ),
    facts.GpuQuarantined(node="node-1", device=3, quarantine=True, why=Reason.ASKED_FOR),
    held_up.GangHeldUp(
        job="j17",
        attempt=1,
        rank=2,
        node="node-2",
        devices=(1,),
        why=Reason.RANK_SLOW,
        at=AT,
        tenant="ann",
        own_ns=180_000_000,
        usual_ns=100_000_000,
        step_ns=190_000_000,
        trace=TRACE,
        vc="nlp",
    ),
    held_up.PlaceBlamed(
        node="node-2",
        device=1,
        blamed=True,
        why=Reason.HELD_UP_GANGS,
        at=AT,
        until=LATER,
        jobs=("j15", "j16", "j17"),
        findings=3,
        tenants=2,
    ),
    facts.CellsReserved(
        job="j17",
        attempt=1,
        chain="cpux4",
        members=(OWNED,),
        victims=("j16",),
        at=AT,
        why=Reason.BEST_FIT_ONE_NODE,
    ),
    facts.ReservationDropped(job="j17", attempt=1, why=Reason.NODE_LOST),
    facts.JobDemoted(job="j17", attempt=1, why=Reason.PREEMPTED, detail="for j19"),
    facts.JobPromoted(job="j17", attempt=1, levels=(3,)),
    facts.NodeDrained(node="node-1", drain=True),
    facts.NodeLost(node="node-1"),
    facts.NodeClean(node="node-1"),
    facts.NodeBack(node="node-1"),
    facts.JobQueued(job="j17", spec=SMALL, submitted_at=AT, trace=TRACE),
    facts.JobWaits(job="j17", why=Reason.WAITS_FOR_CELLS, needs="2 x 2 GPUs (cpu) in cells of nlp"),
    facts.JobDeferred(
        job="j17", why=Reason.WAITS_FOR_JOBS, at=AT, needs="j15", awaits=("j15", "j16"), begin=LATER
    ),
    facts.JobEligible(job="j17", at=LATER),
    array_gate.ArraySeen(array="j21", vc="nlp", gated=True, after=After(ok=("j17",))),
    array_gate.ArrayDeferred(
        array="j21", why=Reason.WAITS_FOR_JOBS, at=AT, needs="j17", awaits=("j17",), begin=LATER
    ),
    array_gate.ArrayEligible(array="j21", at=LATER),
    array_gate.ArrayBroken(
        array="j21", at=LATER, detail="j17 failed; it was to run once that succeeds"
    ),
    array_gate.ArrayEnded(array="j21", end="failed", at=LATER),
    facts.JobBound(
        job="j17",
        attempt=1,
        order=42,
        members=(OWNED,),
        master_port=20000,
        why=Reason.BEST_FIT_ONE_NODE,
        at=AT,
        trace=TRACE,
        chain="cpux4",
    ),
    facts.MemberRan(job="j17", attempt=1, node="node-1", at=AT),
    facts.JobRan(job="j17", attempt=1, at=AT, trace=TRACE),
    facts.JobStopping(
        job="j17",
        attempt=1,
        order=43,
        why=Reason.TIME_LIMIT,
        at=LATER,
        detail="limit 7200 s",
        trace=TRACE,
    ),
    facts.MemberGone(
        job="j17",
        attempt=1,
        node="node-1",
        outcome=node.Outcome.STOPPED,
        steps=900,
        step_ns=11_000_000,
    ),
    facts.GhostGone(job="j17", attempt=1, node="node-1"),
    facts.JobRequeued(
        job="j17",
        attempt=1,
        why=Reason.EXITED_NONZERO,
        counted=True,
        at=LATER,
        detail="node-1: rank 1: exit status 3",
        trace=TRACE,
    ),
    changes.JobPrioritised(job="j17", priority=5, number=21, at=AT),
    changes.AskTaken(job="j17", number=21, ask=changes.AskSuspend(job="j17", release=True)),
    changes.AskOver(
        job="j17",
        number=21,
        ask=changes.AskSuspend(job="j17", release=True),
        result=changes.Result.UNDONE,
        why=Reason.NOT_TAKEN,
        detail="node-1",
        at=LATER,
    ),
    changes.MemberLearned(
        job="j17", attempt=1, node="node-1", tier=node.Tier.OBSERVED, can=("suspend", "release")
    ),
    changes.JobChanging(
        job="j17",
        attempt=1,
        order=44,
        goal=changes.Goal.SUSPEND,
        change=commands.Suspend(release=True),
        nodes=("node-1",),
        why=Reason.REQUESTED,
        at=AT,
        ask=21,
        trace=TRACE,
    ),
    changes.MemberAnswered(
        job="j17",
        attempt=1,
        node="node-1",
        order=44,
        manner=node.Manner.BOUNDARY,
        step=120,
        moved=104_857_600,
        residue=524_288_000,
        pause_ns=140_000_000,
    ),
    changes.JobChanged(
        job="j17",
        attempt=1,
        goal=changes.Goal.SUSPEND,
        result=changes.Result.DONE,
        why=Reason.REQUESTED,
        at=LATER,
        released=True,
        step=120,
        trace=TRACE,
    ),
    moves.SuccessorBound(
        job="j17",
        attempt=2,
        order=45,
        members=(OWNED,),
        master_port=20001,
        at=AT,
        chain="cpux4",
        secret="5d1c",  # noqa: S106 -- of an example
        trace=TRACE,
    ),
    moves.SuccessorReady(
        job="j17",
        attempt=2,
        node="node-1",
        doors=(node.Door(rank=0, host="10.0.0.1", port=31_000),),
    ),
    moves.SuccessorLoaded(job="j17", attempt=2, node="node-1", step=120),
    moves.JobMoved(job="j17", attempt=2, source=1, order=47, at=LATER, step=120, trace=TRACE),
    moves.SuccessorDropped(
        job="j17",
        attempt=2,
        order=47,
        why=Reason.NOT_TAKEN,
        at=LATER,
        detail="the successor took too long",
    ),
    changes.GpusRegained(job="j17", attempt=1, chain="cpux4", at=LATER, members=(MEMBER,)),
    resizes.GangWidened(job="j17", attempt=1, member=MORE, at=AT, trace=TRACE),
    packs.GpusShared(
        mode=packs.Mode.PACK,
        job="j17",
        attempt=1,
        beside=(("j12", 2),),
        node="node-1",
        devices=(0,),
        why=Reason.REQUESTED,
        at=AT,
        told=0.5,
        trace=TRACE,
    ),
    resizes.GangNarrowed(job="j17", attempt=1, node="node-1", workers=2, at=LATER, trace=TRACE),
    following.AdviceFollowed(
        vc="nlp", follows=True, why=Reason.ADVISED, at=AT, model="9f" * 32, rule="look-ahead"
    ),
    windows.WindowBooked(window=WINDOW, at=AT),
    windows.WindowRefused(
        name="fans",
        why=Reason.UNKNOWN_NODE,
        text="there is no node 'node-9': see `skep node ls`",
        at=AT,
    ),
    windows.WindowBegan(name="fans", at=LATER),
    windows.WindowEnded(name="fans", at=LATER, cancelled=True),
    trials.TrialBegun(
        trial=3,
        kind=trials.Kind.PACK,
        vc="nlp",
        jobs=BEFORE,
        families=("bert", "resnet"),
        at=AT,
        until=LATER,
        needed_milli=1000,
        why=Reason.BY_POLICY,
    ),
    trials.TrialOver(
        trial=3,
        jobs=("j17", "j12"),
        verdict=trials.Verdict.KEPT,
        why=Reason.TRIAL_GAINS,
        at=LATER,
        gain_milli=310,
        low_milli=240,
        high_milli=380,
        after=AFTER,
    ),
    facts.JobEnded(
        job="j17",
        end=facts.End.FAILED,
        why=Reason.TIME_LIMIT,
        attempts=1,
        at=LATER,
        ran_at=AT,
        steps=900,
        step_ns=11_000_000,
        detail="limit 7200 s",
        trace=TRACE,
    ),
)
AGENT_FACTS: tuple[msgspec.Struct, ...] = (
    facts.AgentStarted(incarnation=3, event=7),
    facts.BindTaken(command=BIND),
    facts.StopTaken(job="j17", attempt=1, order=43, epoch=2, grace_ms=10_000),
    facts.RankUp(token="j17.1.0", pid=4711, start_ticks=336_150),  # noqa: S106
    facts.RankDown(token="j17.1.1", code=3),  # noqa: S106
    facts.PartStarted(job="j17", attempt=1, event=8, at=AT),
    facts.PartStepped(job="j17", attempt=1, event=9, at=AT),
    facts.PartOver(event=10, exited=EXITED),
    part_facts.PartKnown(event=11, known=KNOWN),
    part_facts.PartReady(event=12, ready=READY),
    part_facts.PartLoaded(event=13, loaded=LOADED),
    part_facts.ChangeTaken(command=CHANGE, serial=5),
    part_facts.ChangeTried(job="j17", attempt=1, serial=6),
    part_facts.RankJoins(
        token="j17.1.2",  # noqa: S106
        plan=commands.RankPlan(rank=2, local_rank=2, devices=(2,)),
    ),
    part_facts.PartChanged(
        event=14,
        changed=CHANGED,
        stand=part_facts.Stand.SUSPENDED,
        holds=(commands.Hold.SCHEDULER,),
    ),
    facts.ClearDone(order=43, event=7),
    facts.FloorRaised(order=41, event=10, epoch=2, forgotten=(("j16", 1),)),
)

_RANK: dict[str, Any] = {"job": "j17", "attempt": 1, "rank": 0}
JOB_SAYS: tuple[msgspec.Struct, ...] = (
    talk.Hello(**_RANK, pid=4711, world=2, token="5d41402abc4b2a76"),  # noqa: S106
    talk.Can(**_RANK, tier="observed", can=("release", "suspend")),
    talk.Stats(
        **_RANK,
        steps=120,
        step_ns=150_000_000,
        monotonic_ns=99_000_000_000,
        last_step_monotonic_ns=98_900_000_000,
        memory_bytes=300_000_000,
        timing=TIMING,
    ),
    talk.CountingFailed(**_RANK, error="optimizer hook: KeyError: 1"),
    talk.Suspended(**_RANK, order=41, step=120),
    talk.Past(**_RANK, order=41, step=121),
    talk.Released(**_RANK, order=42, moved=300_000_000, residue=500_000_000),
    talk.Resumed(**_RANK, order=51, step=120, pause_ns=3_000_000_000),
    talk.Checkpointed(
        **_RANK, order=57, step=130, bytes=300_000_000, path="a00001-s130", pause_ns=400_000_000
    ),
    talk.Idle(**_RANK, idle_ns=1_800_000_000_000),
    talk.Ready(**_RANK, port=31_000),
    talk.Sent(**_RANK, order=65, step=140, bytes=300_000_000),
    talk.Loaded(**_RANK, step=140, bytes=300_000_000),
    talk.Shared(**_RANK, order=73, share=0.5, used=6_000_000_000),
    talk.Rescaled(**_RANK, order=73, generation=2, step=150, pause_ns=40_000_000),
    talk.Failed(**_RANK, order=81, what="checkpoint", error="OSError: no space left"),
    talk.Measured(**_RANK, step=120, values={"loss": 0.25, "tokens": 61_440.0}),
    talk.Shows(**_RANK, fingerprint=FINGERPRINT),
    talk.Bye(**_RANK, steps=200),
)

JOB_HEARS: tuple[msgspec.Struct, ...] = (
    talk.SuspendRank(**_RANK, order=41, step=120),
    talk.ReleaseRank(**_RANK, order=42, max_bytes=16_000_000_000),
    talk.ResumeRank(**_RANK, order=51, devices=(2, 3), cpus=(4, 5, 6, 7)),
    talk.CheckpointRank(**_RANK, order=57, path="/state/checkpoints/j17", step=130),
    talk.MoveRank(**_RANK, order=65, host="10.0.0.2", port=31_000, token="secret"),  # noqa: S106
    talk.ShareRank(**_RANK, order=73, share=0.5),
    talk.GoApart(
        **_RANK, path="/var/lib/skep/checkpoints/j17/processes.identity", within_ms=600_000
    ),
    talk.NotHeard(**_RANK, why="SKEP_RANK_SECRET is not the secret of run j17.1.0"),
    talk.RescaleRank(
        **_RANK, order=73, generation=2, world=3, host="10.0.0.1", port=20_001, step=150
    ),
)

DRAFTS: tuple[msgspec.Struct, ...] = (
    drafts.Question(job="j17", remaining={"j3": Duration(90 * 10**9)}, others=True),
    drafts.Answer(
        at=AT,
        outcome=drafts.Outcome(
            start=drafts.Start.UNKNOWN,
            why=Reason.WAITS_FOR_CELLS,
            unknown=2,
            needs="1 x 4 GPUs (any type) in cells of nlp",
        ),
        options=(
            drafts.Option(
                why=Reason.WITH_A_PRIORITY,
                value="1",
                spec=SPEC,
                outcome=drafts.Outcome(
                    start=drafts.Start.AFTER,
                    why=Reason.CELLS_RESERVED,
                    at=AT,
                    others=(
                        drafts.Touched(
                            job="j3",
                            vc="nlp",
                            what=drafts.Touch.STOPS,
                            gpus=4,
                            why=Reason.PREEMPTED,
                            rate_milli=12_345,
                            then_milli=0,
                        ),
                    ),
                ),
            ),
        ),
    ),
    drafts.Judge(vc="nlp", spec='{"name": "train", "vc": "nlp", "command": ["true"]}'),
    drafts.Judgement(spec=SPEC),
)

GROUPS: dict[str, tuple[msgspec.Struct, ...]] = {
    "commands": COMMANDS,
    "node-events": NODE_EVENTS,
    "reports": REPORTS,
    "findings": FINDINGS,
    "advice": ADVICE,
    "sights": SIGHTS,
    "trials": TRIALS,
    "drafts": DRAFTS,
    "admin": ADMIN,
    "verdict": VERDICTS,
    "search-verdict": SEARCH_VERDICTS,
    "admission-facts": ADMISSION_FACTS,
    "allocator-facts": ALLOCATOR_FACTS,
    "search-facts": (*SEARCH_FACTS, *SERVICE_FACTS),
    "served": SERVED,
    "late": LATE,
    "profile-facts": PROFILE_FACTS,
    "access-requests": WISHES,
    "access": ASKED,
    "access-facts": ACCESS_FACTS,
    "agent-facts": AGENT_FACTS,
    "notifier-facts": NOTIFIER_FACTS,
    "job-says": JOB_SAYS,
    "job-hears": JOB_HEARS,
}
