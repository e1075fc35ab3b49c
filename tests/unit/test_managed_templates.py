"""Templates that the managers of a virtual cluster write: who may, what is kept, what is used."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skep.machines.admission import AdmissionMachine
from skep.machines.base import Restarted, Send
from skep.wire import codec, template_facts
from skep.wire.admin import SetVcs
from skep.wire.cluster import Template, VirtualCluster
from skep.wire.codec import AskRequest
from skep.wire.facts import Admitted, RolesSeen
from skep.wire.reasons import Reason
from skep.wire.roles import Role, Standing
from skep.wire.template_facts import MANAGED_BYTES_MAX, MANAGED_MAX, TemplateSet
from skep.wire.verdict import Verdict
from tests.kit import T0, Driver, facts_of, submission

SMALL = {"command": "true", "resources": {"gpus": 1}, "priority": 3}
OPERATORS = Template(spec={"command": "echo"})
JOB = {"name": "a", "vc": "nlp", "template": "small"}


class Cluster:
    """Admission with two VCs, and people."""

    def __init__(self) -> None:
        self.decide = Driver(AdmissionMachine)
        self.number = 0
        self.decide(Restarted(1))
        self.set_vcs("nlp", "vision")
        roles = {"ann": Role.MANAGER, "sam": Role.SUBMITTER}
        for person, role in roles.items():
            self.decide.machine.apply(
                fact := RolesSeen(person=person, standing=Standing(granted={"nlp": role}))
            )
            self.decide.facts.append(fact)

    def set_vcs(self, *names: str) -> None:
        owned = {name: VirtualCluster(gpus=4, templates={"mine": OPERATORS}) for name in names}
        self.decide(SetVcs(vcs=owned))

    def ask(self, tree: Any, person: str = "ann", number: int = 0) -> tuple[Verdict, list[Any]]:
        """Return the verdict on a request, and what is recorded."""
        self.number += 1
        owner = f".{person}" if person else ""
        event = AskRequest(
            vc="nlp",
            raw=tree if isinstance(tree, bytes) else codec.encode(tree),
            at=T0,
            number=number or self.number,
            person=person,
            reply=f"skep.v1.reply.nlp{owner}.x" if not person else f"skep.v1.reply.nlp.{person}.x",
        )
        effects = self.decide(event)
        (sent,) = [each for each in effects if isinstance(each, Send)]
        assert isinstance(sent.message, Verdict)
        return sent.message, facts_of(effects)

    def set(self, name: str = "small", spec: Any = SMALL, **more: Any) -> Any:
        wish = {"ask": "set-template", "name": name, "template": {"spec": spec}}
        return self.ask(wish, **more)

    def remove(self, name: str = "small", **more: Any) -> Any:
        return self.ask({"ask": "remove-template", "name": name}, **more)

    def submitted(self, number: int, **changes: Any) -> Any:
        effects = self.decide(submission(number, raw={**JOB, **changes}))
        (fact,) = facts_of(effects)
        return fact


def refusal(answer: tuple[Verdict, list[Any]]) -> tuple[str, Reason | None, str]:
    verdict, recorded = answer
    assert not verdict.accepted
    assert not recorded
    return verdict.problems[0].path, verdict.reason, verdict.problems[0].text


def test_a_manager_sets_changes_and_removes_a_template() -> None:
    cluster = Cluster()
    assert cluster.submitted(1).problems[0].reason is Reason.UNKNOWN_TEMPLATE

    verdict, (fact,) = cluster.set()
    assert verdict.accepted
    assert (fact.vc, fact.name, fact.by, fact.number) == ("nlp", "small", "ann", 1)
    first = cluster.submitted(2)
    assert isinstance(first, Admitted)
    assert (first.spec.from_template, first.spec.priority) == ("small", 3)

    cluster.set(spec={**SMALL, "priority": 4})
    assert cluster.submitted(3).spec.priority == 4
    assert cluster.submitted(4, priority=9).spec.priority == 9

    verdict, (fact,) = cluster.remove(person="")  # The VC as a whole is its manager.
    assert (fact.template, fact.by) == (None, "")
    assert cluster.submitted(5).problems[0].reason is Reason.UNKNOWN_TEMPLATE
    assert not cluster.decide.machine.templates.of_vc


def test_who_is_no_manager_may_not() -> None:
    cluster = Cluster()
    path, reason, text = refusal(cluster.set(person="sam"))
    assert (path, reason) == ("$", Reason.ROLE_TOO_LOW)
    assert text.startswith("it takes the role manager of VC nlp to set and remove the templates")
    cluster.set()
    assert refusal(cluster.remove(person="sam"))[1] is Reason.ROLE_TOO_LOW
    assert refusal(cluster.remove(person="eve"))[1] is Reason.NO_ROLE
    # One who may not learns nothing of what is wrong.
    assert refusal(cluster.set(name="a b", person="eve"))[1] is Reason.NO_ROLE


@pytest.mark.parametrize(
    "tree, path, text",
    [
        ({"name": "a b", "template": {"spec": {}}}, "$.name", "`name` is out of bounds"),
        ({"name": "a"}, "$.template", "`template` is required"),
        ({"name": "a", "template": {}}, "$.template.spec", "`spec` is required"),
        ({"name": "a", "template": {"spec": 3}}, "$.template.spec", "Expected `object`, got `int`"),
        ({"name": "a", "template": {"spec": {}, "x": 1}}, "$.template.x", "unknown key `x`"),
        (
            {"name": "a", "template": {"spec": {"gpus": 1}}},
            "$.template.spec.gpus",
            "unknown key `gpus`",
        ),
        (
            {"name": "a", "template": {"spec": {"template": "b"}}},
            "$.template.spec.template",
            "a template cannot say `template`",
        ),
        (
            {"name": "a", "template": {"spec": {}, "fixed": ["priority"]}},
            "$.template.fixed",
            "`priority` is fixed, and its spec does not say it",
        ),
        (
            {"name": "mine", "template": {"spec": {}}},
            "$.name",
            "`mine` is a template of the operator's: the cluster file has it",
        ),
        (
            {"name": "a", "template": {"spec": {"env": {"A": "x" * MANAGED_BYTES_MAX}}}},
            "$.template",
            "it has 16409 bytes; a template has at most 16384",
        ),
        (
            {"name": "a", "template": {"spec": {"env": {"A": "x" * 65_536}}}},
            "$",
            "a request about a template has at most 65536 bytes",
        ),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(tree: Any, path: str, text: str) -> None:
    cluster = Cluster()
    found = refusal(cluster.ask({"ask": "set-template", **tree}))
    assert found[0] == path
    assert found[2].startswith(text)


def test_what_is_no_request_about_a_template_is_refused_as_any_other() -> None:
    cluster = Cluster()
    for raw in (b'{"ask": "drop-template"}', b'"-template"', b'{"-template', b'{"ask": 3}'):
        assert refusal(cluster.ask(raw))[1] is not None
    assert refusal(cluster.remove("nosuch"))[2] == (
        "the managers of `nlp` have no template `nosuch`; there are: none"
    )
    assert refusal(cluster.remove("mine"))[1] is Reason.TEMPLATE_OF_OPERATOR


def test_a_vc_has_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (MANAGED_MAX, MANAGED_BYTES_MAX) == (100, 16 * 1024)
    monkeypatch.setattr("skep.machines.admission.managing.MANAGED_MAX", 2)
    cluster = Cluster()
    for name in ("a", "b"):
        cluster.set(name)
    assert refusal(cluster.set("c"))[1] is Reason.TOO_MANY_TEMPLATES
    assert cluster.set("b", {"command": "echo"})[0].accepted
    cluster.remove("a")
    assert cluster.set("c")[0].accepted


def test_the_operators_limits_hold_where_a_template_is_used() -> None:
    cluster = Cluster()
    assert cluster.set(spec={"command": "true", "resources": {"gpus": 8}})[0].accepted
    (problem,) = cluster.submitted(1).problems
    assert problem.reason is Reason.QUOTA_TOO_SMALL


def test_an_operators_template_goes_before_one_of_the_same_name() -> None:
    cluster = Cluster()
    cluster.decide(SetVcs(vcs={"nlp": VirtualCluster(gpus=4)}))
    cluster.set("mine")
    assert cluster.submitted(1, template="mine").spec.priority == 3
    cluster.set_vcs("nlp")
    assert cluster.submitted(2, template="mine").spec.priority == 0
    assert cluster.remove("mine")[0].accepted


def test_a_request_that_is_read_again_changes_nothing() -> None:
    cluster = Cluster()
    cluster.set()
    cluster.remove()
    verdict, recorded = cluster.set(number=1)
    assert (verdict.accepted, recorded) == (True, [])


def test_they_outlive_restarts_and_end_with_their_vc() -> None:
    cluster = Cluster()
    cluster.set()
    cluster.set("other", {"command": "echo"})
    again = AdmissionMachine()
    for piece in cluster.decide.machine.snapshot():
        again.apply(piece)
    assert again.templates == cluster.decide.machine.templates
    assert again.last_asked == 2

    stored = msgspec.json.encode(cluster.decide.machine.templates.facts()[0])
    assert msgspec.json.decode(stored, type=TemplateSet).template == Template(spec=SMALL)
    cluster.set_vcs("vision")
    assert not cluster.decide.machine.templates.of_vc
    assert template_facts.parse_template_ask(b"{}") is None
