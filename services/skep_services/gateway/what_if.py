"""What would start a job, and what a spec would come to: asked of the services that decide.

The allocator answers on copies of its state (`skep.machines.allocator.what_if`); admission says of
each spec whether it would be admitted at all. A tenant does not see which jobs of other virtual
clusters are touched, only how many GPUs, and other virtual clusters are tried for operators alone.
"""

from __future__ import annotations

import heapq
from typing import Any, TypeVar

import msgspec

from skep.access.rights import Action
from skep.units import NS_PER_SECOND, Duration
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE
from skep.wire.drafts import (
    ASKED_FOR_S,
    Answer,
    Asked,
    Judge,
    Judgement,
    Option,
    Outcome,
    Question,
    Touched,
)
from skep.wire.reasons import TEXT, Reason
from skep.wire.spec import SPEC_BYTES_MAX, JobSpec, Problem
from skep_services.gateway.api import ApiError
from skep_services.gateway.callers import Caller
from skep_services.gateway.estimates import Estimates
from skep_services.gateway.index import Indexer
from skep_services.gateway.rows import Job
from skep_services.gateway.submit import refused, submits, too_large, vc_of
from skep_services.gateway.texts import place_of
from skep_services.ports import Bus, Clock

TIMEOUT_S = ASKED_FOR_S
JUDGED_WITHIN_S = 5.0
REMAINING_MAX = 10_000
"""Jobs whose ends are sent, the soonest: a third of what one message may hold."""

Reply = TypeVar("Reply", Answer, Judgement)


class Drafts:
    """Asks for what would be."""

    def __init__(self, bus: Bus, indexer: Indexer, clock: Clock, estimates: Estimates) -> None:
        self._bus, self._indexer, self._clock = bus, indexer, clock
        self.estimates = estimates
        self._asking: set[str] = set()
        """Callers (empty: operators) with a question at the allocator."""

    async def what_if(self, caller: Caller, job: Job) -> dict[str, Any]:
        """Return what would start a job that waits.

        Raises:
            ApiError: Another question of the caller is being answered (429), or a service does not
                answer (503).
        """
        name = job.row.job
        question = Question(job=name, remaining=self._remaining(), others=caller.operator)
        answer = await self._answer(question, caller)
        if answer.problem or answer.outcome is None:
            return {"problem": answer.problem, "outcome": None, "options": [], "in_vain": []}
        options: list[dict[str, Any]] = []
        in_vain = [self._option(one, caller) for one in answer.in_vain]
        for one in answer.options:
            judged = None
            if one.spec is not None:
                judged = await self._judge(one.spec.vc, codec.encode(one.spec), job.row.owner, name)
            shown = self._option(one, caller)
            if judged is None or judged.spec == one.spec:
                options.append({"rank": len(options) + 1, **shown})
            elif judged.problems:
                # The allocator would take it; it would never come that far.
                first = judged.problems[0]
                refusal = {"start": "unknown", "why": first.reason, "text": first.text}
                in_vain.append({**shown, "outcome": {**shown["outcome"], **refusal}})
        return {
            "problem": "",
            "outcome": self._outcome(answer.outcome, caller),
            "options": options,
            "in_vain": in_vain,
        }

    async def plan(self, caller: Caller, body: bytes) -> dict[str, Any]:
        """Return what would become of a spec.

        Raises:
            ApiError: The spec names another tenant's VC (403), another question of the caller is
                being answered (429), or a service does not answer (503).
            refused: An ApiError (422): the spec would not be admitted.
            too_large: An ApiError (413): the spec has more than SPEC_BYTES_MAX bytes.
        """
        if len(body) > SPEC_BYTES_MAX:
            raise too_large()
        vc = vc_of(body)
        submits(Action.SUBMIT, caller, vc)
        judged = await self._judge(vc, body, caller.person)
        if judged.spec is None:
            raise refused(422, judged.problems[0].reason, judged.problems, None)
        if judged.spec.array is not None:
            text = "plans of arrays are not built yet"
            hint = "leave `array` out, and it is one task that is planned"
            problem = Problem(path="$.array", reason=Reason.NOT_BUILT, text=text, suggestion=hint)
            raise refused(422, problem.reason, (problem,), None)
        question = Question(spec=judged.spec, remaining=self._remaining())
        answer = await self._answer(question, caller)
        if answer.problem or answer.outcome is None:
            raise ApiError(503, "allocator-away", answer.problem)
        spec: JobSpec = judged.spec
        return {
            "name": spec.name,
            "vc": spec.vc,
            "service_class": spec.service_class,
            "gpus": spec.gpus,
            "outcome": self._outcome(answer.outcome, caller),
            "estimate": self.estimates.planned(spec, answer.outcome),
        }

    # --- asking ----------------------------------------------------------------------------------

    async def _answer(self, question: Question, caller: Caller) -> Answer:
        """Have the allocator answer: one question of a VC at a time, or others never come to it.

        Raises:
            ApiError: Another question of the VC is being answered (429), or the allocator does not
                answer (503).
        """
        if caller.counted in self._asking:
            text = f"another what-if or plan of {caller.name} is being answered: ask again"
            raise ApiError(429, "too-many-questions", text)
        self._asking.add(caller.counted)
        try:
            return await self._ask("allocator", question, Answer, TIMEOUT_S)
        finally:
            self._asking.remove(caller.counted)

    async def _judge(self, vc: str, spec: bytes, person: str, instead: str = "") -> Judgement:
        text = spec.decode("utf-8", "replace")
        asked = Judge(vc=vc, spec=text, instead=instead, person=person)
        return await self._ask("admission", asked, Judgement, JUDGED_WITHIN_S)

    async def _ask(self, service: str, asked: Asked, kind: type[Reply], timeout_s: float) -> Reply:
        subject = subjects.draft(service)
        answer = await self._bus.request(subject, codec.encode(asked), {}, timeout_s)
        if answer is None:
            text = f"the {service} did not answer within {timeout_s:.0f} s"
            raise ApiError(503, f"{service}-away", text)
        try:
            return msgspec.json.decode(answer.payload, type=kind)
        except UNDECODABLE as error:
            text = f"the {service}'s answer is not readable: {error}"
            raise ApiError(503, f"{service}-away", text) from error

    def _remaining(self) -> dict[str, Duration]:
        """Return how long jobs still have to run, as far as it is known."""
        known = self._indexer.live.remaining(self._clock.now())
        for name, job in self._indexer.fold.active.items():
            if job.row.eta_s is not None:
                known[name] = Duration(job.row.eta_s * NS_PER_SECOND)
        soonest = heapq.nsmallest(REMAINING_MAX, known, key=known.__getitem__)
        return {name: known[name] for name in soonest}

    # --- showing ---------------------------------------------------------------------------------

    def _option(self, option: Option, caller: Caller) -> dict[str, Any]:
        outcome, value = self._outcome(option.outcome, caller), option.value
        if option.why is Reason.ONCE_OTHERS_END:
            value = " ".join(outcome["awaits"])  # Those of them that the caller may know of.
        return {
            "reason": option.why,
            "text": TEXT[option.why],
            "value": value,
            "spec": option.spec,
            "outcome": outcome,
        }

    def _outcome(self, outcome: Outcome, caller: Caller) -> dict[str, Any]:
        return {
            "start": outcome.start,
            "why": outcome.why,
            "text": TEXT[outcome.why] if outcome.why is not None else "",
            "needs": outcome.needs,
            "place": place_of(outcome.members),
            "nodes": outcome.nodes,
            "chain": outcome.chain,
            "borrows": outcome.borrows,
            "at": outcome.at,
            "ends_at": outcome.ends_at,
            "ends_most": outcome.ends_most,
            "others": [self._touched(one, caller) for one in outcome.others],
            "others_more": outcome.others_more,
            "awaits": [name for name in outcome.awaits if self._may(name, caller)],
            "unknown": outcome.unknown,
            "limits": outcome.limits,
        }

    def _touched(self, touched: Touched, caller: Caller) -> dict[str, Any]:
        mine = caller.may(touched.vc)
        rate = touched.rate_milli
        known = self._indexer.fold.active.get(touched.job)
        if rate is None and known is not None:
            rate = known.row.rate_milli
        return {
            "job": touched.job if mine else None,
            "vc": touched.vc if mine else None,
            "what": touched.what,
            "gpus": touched.gpus,
            "why": touched.why,
            "rate_milli": rate if mine else None,
            "then_milli": touched.then_milli if mine else None,
        }

    def _may(self, name: str, caller: Caller) -> bool:
        job = self._indexer.fold.active.get(name)
        return job is not None and caller.may(job.row.vc)
