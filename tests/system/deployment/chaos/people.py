"""People who submit over HTTPS, each to whichever gateway it happens to turn to, and over NATS.

An answer that no gateway should give (a token that is good and refused, a failure of its own) is
kept in `odd`, and the request is repeated.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from skep_services.adapters import nats_jwt, nats_keys
from skep_services.adapters.nats_login import Login
from tests.system.chaos.evidence import Ack, Told
from tests.system.chaos.links import Links
from tests.system.chaos.workload import Clients, Wish

PEOPLE = {"vision": "ben", "speech": "eve"}
"""Who submits, by VC."""
ROLE = "submitter"
ANSWER_WITHIN_S = 20.0
"""A gateway answers within 15 s, if only that the bus is away."""
PAUSE_S = 0.3
AWAY = (429, 503)


class Web:
    """Requests to gateways.

    Args:
        gateways: Their addresses.
        ca: The file of the authority that they are believed by.
    """

    def __init__(self, gateways: Sequence[str], ca: Path) -> None:
        self.gateways = list(gateways)
        self.tls = ssl.create_default_context(cafile=str(ca))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.tls),
            timeout=aiohttp.ClientTimeout(total=ANSWER_WITHIN_S, connect=2.0),
        )

    async def ask(
        self, gateway: str, method: str, path: str, token: str, body: Any = None, key: str = ""
    ) -> tuple[int, Any] | None:
        """Return status and body of an answer; None if none came."""
        headers = {"Authorization": f"Bearer {token}"} | ({"Idempotency-Key": key} if key else {})
        try:
            async with self._session.request(
                method, gateway + path, json=body, headers=headers
            ) as answer:
                return answer.status, json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


class HttpClients(Clients):
    """People with tokens.

    Args:
        web: The gateways.
        wishes: What they want.
        tokens: Their tokens by VC.
        rng: Draws the gateway of each request.
    """

    def __init__(
        self, web: Web, wishes: Sequence[Wish], tokens: Mapping[str, str], rng: random.Random
    ) -> None:
        super().__init__(wishes)
        self._web, self._tokens, self._rng = web, tokens, rng
        self.odd: list[str] = []

    async def submit(self, wish: Wish) -> None:
        told = wish.told
        while not told.verdicts:
            await self._post(wish, verdict=True)

    async def repeat(self, wish: Wish) -> None:
        before = len(wish.told.acks)
        while len(wish.told.acks) == before:
            await self._post(wish, verdict=False)

    async def cancel(self, told: Told) -> None:
        while not told.cancels:
            status, body = await self._ask(told, "DELETE", f"/v1/jobs/{told.job}")
            if status == 202 and body.get("accepted"):
                told.cancels.append({"accepted": True})
            elif status == 409:
                told.cancels.append(_refusal(body))
            elif status not in (202, 404):  # A gateway that comes back may not know the job yet.
                self._note(status, body, told)

    async def _post(self, wish: Wish, *, verdict: bool) -> None:
        told = wish.told
        told.sent_at = told.sent_at or time.monotonic_ns()
        status, body = await self._ask(told, "POST", "/v1/jobs", wish.spec, told.key)
        if status not in (201, 202, 422):
            self._note(status, body, told)
            return
        job = str(body.get("job", ""))
        told.acks.append(Ack(int(job[1:] or 0), body.get("repeated", False), time.monotonic_ns()))
        if verdict and status == 422:
            told.verdicts.append({"job": job, **_refusal(body)})
        elif verdict and body.get("accepted") is not None:
            told.verdicts.append({"job": job, "accepted": body["accepted"]})

    async def _ask(
        self, told: Told, method: str, path: str, body: Any = None, key: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """Return an answer; status 0 after a pause if none came."""
        gateway = self._rng.choice(self._web.gateways)
        answer = await self._web.ask(gateway, method, path, self._tokens[told.vc], body, key)
        if answer is None or answer[0] in AWAY or answer[0] == 404:
            await asyncio.sleep(PAUSE_S)
        return answer if answer is not None else (0, {})

    def _note(self, status: int, body: dict[str, Any], told: Told) -> None:
        if status and status not in AWAY:
            self.odd.append(f"{told.key} ({told.kind}) was answered {status} {body}")


class PersonLinks(Links):
    """Connections of people at the doors, by the credentials that a gateway gave them.

    Args:
        doors: The doors' addresses.
        folder: Where the credentials are.
        tls: Believes the doors.
    """

    def __init__(self, doors: Sequence[str], folder: Path, tls: ssl.SSLContext) -> None:
        super().__init__(dict)
        self._doors, self._folder, self._tls = ",".join(doors), folder, tls

    def url(self, user: str) -> str:
        del user
        return self._doors

    def login(self, user: str) -> dict[str, Any]:
        login = Login(self._folder / f"{user}.creds")
        return {"signature_cb": login.signature, "user_jwt_cb": login.token, "tls": self._tls}


async def take_keys(web: Web, tokens: Mapping[str, str], folder: Path) -> None:
    """Have each person take a key for the bus.

    Raises:
        RuntimeError: A gateway refuses.
    """
    for vc, person in PEOPLE.items():
        pair = nats_keys.new_pair(nats_jwt.Kind.USER)
        wish = {"vc": vc, "key": pair.public}
        answer = await web.ask(web.gateways[0], "POST", "/v1/bus-keys", tokens[vc], wish)
        if answer is None or answer[0] != 201:
            text = f"{person} got no key for the bus: {answer}"
            raise RuntimeError(text)
        path = folder / f"vc-{vc}.{person}.creds"
        path.write_text(nats_jwt.credentials_text(answer[1]["jwt"], pair))


def _refusal(body: Mapping[str, Any]) -> dict[str, Any]:
    error = body.get("error", {})
    return {"accepted": False, "reason": error.get("reason"), "problems": error.get("problems", [])}
