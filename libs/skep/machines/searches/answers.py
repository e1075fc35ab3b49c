"""What a search's client is told is wrong with its request."""

from __future__ import annotations

from collections.abc import Iterator

from skep.machines.searches import hearing
from skep.machines.searches.state import Search
from skep.wire.reasons import Reason
from skep.wire.search import PARAMETERS_MAX, free_problem, value_problem
from skep.wire.search_facts import AskTrial, SearchVerdict
from skep.wire.spec import Problem


def param_problems(search: Search, asked: AskTrial) -> Iterator[Problem]:
    """Yield what is wrong with the parameters that a client names for a trial."""
    if asked.params is None:
        if search.spec.sampler == "client" and not search.spec.space:
            yield Problem(path="$.params", reason=Reason.MISSING_KEY,
                          text="the search has no `space` to draw parameters from",
                          suggestion="give them as `params`")  # fmt: skip
        return
    space = search.spec.space
    if len(asked.params) > PARAMETERS_MAX:
        yield Problem(path="$.params", reason=Reason.BAD_VALUE,
                      text=f"a trial has at most {PARAMETERS_MAX} parameters")  # fmt: skip
        return
    for name in asked.params:
        if space and name not in space:
            yield Problem(path=f"$.params.{name}", reason=Reason.UNKNOWN_KEY,
                          text=f"`{name}` is not in the search's space",
                          suggestion=hearing.nearest_of(name, space))  # fmt: skip
        elif not space and (wrong := free_problem(name, asked.params[name])):
            yield Problem(path="$.params", reason=Reason.BAD_VALUE,
                          text=f"`{name[:64]}` must be {wrong}")  # fmt: skip
    for name, each in space.items():
        if name not in asked.params:
            yield Problem(path=f"$.params.{name}", reason=Reason.MISSING_KEY,
                          text=f"`{name}` is required")  # fmt: skip
        elif wrong := value_problem(each, asked.params[name]):
            yield Problem(path=f"$.params.{name}", reason=Reason.BAD_VALUE,
                          text=f"`{name}` must be {wrong}")  # fmt: skip


def refused(search: str, path: str, reason: Reason, text: str) -> SearchVerdict:
    """Return a refusal for one reason."""
    return refusal(search, [Problem(path=path, reason=reason, text=text)])


def refusal(search: str, problems: list[Problem]) -> SearchVerdict:
    """Return a refusal; there is at least one problem."""
    return SearchVerdict(search=search, accepted=False, reason=problems[0].reason,
                         problems=tuple(problems))  # fmt: skip
