"""Optuna's samplers and pruners over a search of Skep: `pip install skep[search]`.

    study = optuna.create_study(direction="maximize", sampler=..., pruner=...)
    SkepStudy(study, spec).run()

Optuna says what to try and what is not worth going on with; Skep runs the trials, all at once and
by turns. A trial that the pruner would stop is demoted and not killed: it is suspended while any
other wants its place, and promoted again if the pruner thinks better of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.trial import TrialState

from skep.wire.reasons import Reason
from skep_services.ask_tell.client import SearchClient
from skep_services.ask_tell.space import suggest
from skep_services.cli.exits import CommandError

LOOK_EVERY_S = 0.5
"""Jobs report once a second."""

ENDS = (Reason.SEARCH_ENDS, Reason.UNKNOWN_SEARCH)
"""Refusals of a search that came to its end since it was looked at."""

Suggest = Callable[[optuna.Trial], Mapping[str, Any]]
Watch = Callable[[Any], None]


class SkepStudy:
    """A study whose trials are those of one search. `spec` has `sampler: client`."""

    def __init__(
        self, study: optuna.Study, spec: Mapping[str, Any], client: SearchClient | None = None
    ) -> None:
        """Prepare; `run` begins the search.

        Args:
            study: Optuna's study, whose trials are told here.
            spec: The search, as a file for `skep search submit` has it.
            client: The cluster; None: the one of SKEP_API and SKEP_TOKEN, or of the state folder.

        Raises:
            ValueError: Study and spec disagree.
        """
        direction = spec.get("direction", "minimize")
        if study.direction.name.lower() != direction:
            text = f"the study is to {study.direction.name.lower()}, the search to {direction}"
            raise ValueError(text)
        if spec.get("sampler") != "client":
            text = "the spec needs `sampler: client`: Optuna says what is tried"
            raise ValueError(text)
        self.study, self.spec = study, spec
        self.search = ""
        self.trials: dict[int, optuna.Trial] = {}
        """Optuna's trials by the numbers that they have in the search."""
        self._client = client or SearchClient()
        self._told: dict[int, int] = {}
        """The latest mini-batch of each trial that Optuna knows of."""
        self._over: set[int] = set()
        self._demoted: set[int] = set()

    def run(
        self,
        suggestion: Suggest | None = None,
        watch: Watch = lambda shown: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Any:
        """Run the search to its end and return it as the gateway shows it.

        Args:
            suggestion: Returns a trial's parameters; None: they are drawn from the spec's `space`.
            watch: Sees the search after every look.
            sleep: Waits for so many seconds between two looks.

        Raises:
            CommandError: The gateway cannot be reached, or refuses.
        """
        draw = suggestion or suggest(self.spec["space"])
        self.search = self.search or self._client.begin(self.spec)
        while True:
            shown = self._client.show(self.search)
            self.take(shown)
            watch(shown)
            if shown["state"] == "over":
                self._close()
                return shown
            if shown["state"] == "active":
                self._ask(draw)
            sleep(LOOK_EVERY_S)

    def _ask(self, draw: Suggest) -> None:
        """Have as many trials as there may be.

        Raises:
            CommandError: The gateway refuses another trial, and not because the search has ended.
        """
        most, live = int(self.spec["budget"]["trials"]), int(self.spec.get("live", 64))
        while len(self.trials) < most and len(self.trials) - len(self._over) < live:
            trial = self.study.ask()
            key = f"{self.search}/{self.study.study_name}/{trial.number}"
            try:
                number, _ = self._client.ask(self.search, draw(trial), key=key[-256:])
            except CommandError as error:
                self.study.tell(trial, state=TrialState.FAIL)
                if error.error["reason"] in ENDS:
                    return
                raise
            self.trials[number] = trial

    def take(self, shown: Any) -> None:
        """Take over what is new of every trial, and demote or promote as the pruner says.

        Args:
            shown: The search as the gateway shows it.

        Raises:
            CommandError: The gateway refuses a change, and not because the search has ended.
        """
        news = [self._news(row) for row in shown["rows"] if row["trial"] in self.trials]
        if not any(news) or shown["state"] != "active":
            return
        for number, trial in self.trials.items():
            if number in self._over or number not in self._told:
                continue
            pruned = trial.should_prune()
            if pruned == (number in self._demoted):
                continue
            try:
                (self._client.demote if pruned else self._client.promote)(self.search, number)
            except CommandError as error:
                if error.error["reason"] in ENDS:
                    return
                raise
            self._demoted ^= {number}

    def _news(self, row: Any) -> bool:
        number = row["trial"]
        trial = self.trials[number]
        if number in self._over:
            return False
        points = [
            (step, value)
            for step, value in row["points"]
            if step > self._told.get(number, -1) and math.isfinite(value)
        ]
        for step, value in points:
            trial.report(value, step)
            self._told[number] = step
        if row["stand"] == "over":
            self._over.add(number)
            if row["end"] == "done" and row["best"] is not None:
                self.study.tell(trial, row["best"])
            else:
                cut = row["end"] in {"given-up", "cancelled"} and number in self._told
                self.study.tell(trial, state=TrialState.PRUNED if cut else TrialState.FAIL)
        return bool(points) or row["stand"] == "over"

    def _close(self) -> None:
        """Tell Optuna of what was left when the search ended."""
        for number, trial in self.trials.items():
            if number not in self._over:
                known = number in self._told
                self.study.tell(trial, state=TrialState.PRUNED if known else TrialState.FAIL)
                self._over.add(number)
