"""Searches over plain HTTP: what any optimizer needs to drive one from outside."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Any

from skep.wire.reasons import Reason
from skep_services.cli import exits
from skep_services.cli.client import PATIENCE_FOLLOWING_S, Client, find_target, quote
from skep_services.cli.exits import CommandError


class SearchClient:
    """One cluster's searches.

    Every call raises CommandError with the gateway's reason code (`unknown-search`,
    `unknown-trial`, `search-ends`, `bad-value`, ...). A gateway that is being restarted is waited
    for; what is asked then is repeated with the same key, so that nothing is done twice.
    """

    def __init__(self, home: str | None = None, client: Client | None = None) -> None:
        """Use the cluster of SKEP_API and SKEP_TOKEN, or the one whose state folder is `home`."""
        self._client = client or Client(find_target(home), PATIENCE_FOLLOWING_S)

    def begin(self, spec: Mapping[str, Any], key: str = "") -> str:
        """Begin a search and return its id; the same `key` again returns the same search.

        Args:
            spec: The search, as a file for `skep search submit` has it.
            key: The idempotency key; empty: a random one.
        """
        return str(self._post("", spec, key)["search"])

    def show(self, search: str) -> Any:
        """Return a search with its trials (`rows`) and their curves (`points`)."""
        return self._client.get(_path(search))

    def cancel(self, search: str) -> None:
        """End a search and all of its trials."""
        self._client.send("DELETE", _path(search))

    def ask(
        self,
        search: str,
        params: Mapping[str, Any] | None = None,
        *,
        outside: bool = False,
        key: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """Add a trial; return its number and parameters, drawn from the space if none are given.

        Args:
            search: The search's id.
            params: The parameters; None: they are drawn.
            outside: The caller runs the trial itself, and tells how it goes.
            key: The idempotency key; empty: a random one.
        """
        asked = {"outside": outside, **({} if params is None else {"params": dict(params)})}
        told = self._post(f"/{quote(search)}/trials", asked, key)
        return int(told["trial"]), dict(told["params"])

    def tell(
        self, search: str, trial: int, *, step: int = 0, value: float | None = None, over: str = ""
    ) -> None:
        """Tell the metric of a trial that runs outside, or that it is over.

        Args:
            search: The search's id.
            trial: The number of the trial.
            step: Mini-batches so far.
            value: The metric at that step; None: not told now.
            over: `done` or `failed`; empty: the trial goes on.

        Raises:
            CommandError: The value is not finite, or the gateway refuses.
        """
        if value is not None and not math.isfinite(value):
            text = f"`value` must be a finite number, not {value}"
            raise CommandError(exits.USAGE, text, Reason.BAD_VALUE)
        told = {"step": step, "over": over, **({} if value is None else {"value": value})}
        self._post(f"/{quote(search)}/trials/{trial}", told)

    def demote(self, search: str, trial: int) -> None:
        """Let a trial run only where no other of the search wants the place."""
        self._post(f"/{quote(search)}/trials/{trial}/demote", {})

    def promote(self, search: str, trial: int) -> None:
        """Take a demotion back."""
        self._post(f"/{quote(search)}/trials/{trial}/promote", {})

    def close(self) -> None:
        """Drop the connection."""
        self._client.close()

    def _post(self, path: str, value: Any, key: str = "") -> Any:
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return self._client.post(f"/v1/searches{path}", value, headers)


def _path(search: str) -> str:
    return f"/v1/searches/{quote(search)}"
