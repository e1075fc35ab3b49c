"""Golden examples of what is said about searches."""

from __future__ import annotations

import msgspec

from skep.units import Instant
from skep.wire import search_facts as facts
from skep.wire.bearing import RULES
from skep.wire.changes import Result
from skep.wire.facts import EpochBegan, RolesSeen
from skep.wire.reasons import Reason
from skep.wire.roles import Role, Standing
from skep.wire.search import Budget, Parameter, Rungs, SearchSpec
from skep.wire.spec import JobSpec, Problem

AT = Instant(1_760_000_000_000_000_000)
LATER = Instant(AT + 5_000_000_000)
ONE = "s16"
PARAMS = {"lr": 0.01, "layers": 3}

SEARCH_SPEC = SearchSpec(
    name="find-lr",
    vc="nlp",
    job=JobSpec(
        name="find-lr",
        vc="nlp",
        script="/data/ada/train.py",
        args=("--lr", "{lr}", "--layers", "{layers}"),
    ),
    metric="accuracy",
    direction="maximize",
    target=0.95,
    space={"lr": Parameter(log=(0.0001, 0.1)), "layers": Parameter(integer=(1, 4))},
    budget=Budget(trials=60, gpu_time=86_400),
    method="asha",
    rungs=Rungs(first=100, last=2_700, eta=3, brackets=2),
    parallel=8,
)

SEARCH_REQUESTS: tuple[msgspec.Struct, ...] = (
    facts.BeginSearch(spec=SEARCH_SPEC),
    facts.CancelSearch(search=ONE),
    facts.AskTrial(search=ONE, params=dict(PARAMS), outside=True),
    facts.TellTrial(search=ONE, trial=3, step=200, value=0.71, over="done"),
    facts.DemoteTrial(search=ONE, trial=3),
    facts.PromoteTrial(search=ONE, trial=3),
)

SEARCH_VERDICTS: tuple[msgspec.Struct, ...] = (
    facts.SearchVerdict(search=ONE, accepted=True, trial=3, params=dict(PARAMS)),
)

SEARCH_FACTS: tuple[msgspec.Struct, ...] = (
    EpochBegan(epoch=2, owner="host-0c4e1f0a9b7d", rules=RULES),
    facts.SearchBegan(search=ONE, spec=SEARCH_SPEC, at=AT, key="night", owner="ann"),
    facts.SearchRefused(
        search="s17",
        vc="nlp",
        at=AT,
        problems=(Problem(path="$", reason=Reason.TOO_MANY_SEARCHES, text="it has 32"),),
    ),
    facts.SearchTrialAdded(search=ONE, trial=3, params=dict(PARAMS), at=AT, bracket=1),
    facts.SearchTrialAdmitted(search=ONE, trial=3, job="j19", at=AT),
    facts.SearchTrialPutOff(search=ONE, trial=4, why=Reason.OVER_QUOTA, at=AT),
    facts.SearchTrialTurned(search=ONE, trial=3, run=False, why=Reason.RUNG_REACHED, at=AT),
    facts.SearchTrialDemoted(search=ONE, trial=6, demoted=True, at=AT, number=7),
    facts.SearchTrialGivenUp(search=ONE, trial=5, score=0.4, at=AT),
    facts.SearchTrialHeard(search=ONE, trial=3, what="suspend", number=23),
    facts.SearchTrialStood(search=ONE, trial=3, stand=facts.Stand.SUSPENDED, at=LATER),
    facts.SearchTrialAnswered(
        search=ONE, trial=3, what="suspend", number=23, result=Result.DONE, at=LATER
    ),
    facts.SearchTrialMeasured(search=ONE, trial=3, step=300, value=0.82, at=AT),
    facts.SearchTrialOver(
        search=ONE, trial=3, end=facts.TrialEnd.DONE, why=Reason.SUCCEEDED, at=LATER
    ),
    facts.SearchEnding(search=ONE, why=Reason.TARGET_REACHED, at=LATER, spared=3),
    facts.SearchOver(
        search=ONE,
        why=Reason.TARGET_REACHED,
        at=LATER,
        trials=31,
        gpu_ns=7_200_000_000_000,
        trial=3,
        value=0.953,
        step=2_100,
        params=dict(PARAMS),
    ),
    RolesSeen(person="ann", standing=Standing(granted={"nlp": Role.SUBMITTER})),
)
