"""What must hold once all is healed, beside what the checker of `tests.system.chaos` finds.

views      every gateway says the same of all jobs and nodes
away       every server is whole, and no service or unit was given up
rotated    what a gateway shows is the certificate that was made
revoked    every bus server refuses the node that was removed
answer     no gateway answered what it never should
log        the chains of the logs of people and of measurements are whole
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Iterator
from typing import Any

from skep.wire import subjects
from skep.wire.access import AccessFact
from skep.wire.profile import AdvisorFact
from skep_services.servers import files
from tests.system.chaos import gather
from tests.system.chaos.checker import Violation
from tests.system.deployment.chaos.operator import AWAY, REFUSES, Operator
from tests.system.deployment.chaos.people import Web
from tests.system.deployment.chaos.target import GATEWAY_PORT, Machines

WHOLE_WITHIN_S = 120.0
SAME_WITHIN_S = 30.0
LOOK_EVERY_S = 1.0
HEARD = ("last_heard_at",)
UP = ("ready", "starting")
"""A standby is never ready: it waits until the active process is gone."""
VIEWS = ("/v1/jobs?state=all&limit=20000", "/v1/nodes", "/v1/people", "/v1/members")


async def until_whole(target: Machines, web: Web, token: str) -> list[Violation]:
    """Wait until all servers are whole; return what is not."""
    deadline = time.monotonic() + WHOLE_WITHIN_S
    while True:
        wrong = [*_given_up(target), *[text async for text in _ill(web, token)]]
        if not wrong or time.monotonic() > deadline:
            return [Violation("away", text) for text in wrong]
        await asyncio.sleep(LOOK_EVERY_S)


def _given_up(target: Machines) -> Iterator[str]:
    for name, state in target.states().items():
        if state["state"] not in UP:
            yield f"{name} is {state['state']} {state['detail']}"
    for name in target.wanted():
        if not target.is_on(name):
            yield f"the unit of {name} does not run: {target.exits[-5:]}"


async def _ill(web: Web, token: str) -> Any:
    for gateway in web.gateways:
        answer = await web.ask(gateway, "GET", "/v1/health", token)
        if answer is None or answer[0] != 200 or not answer[1].get("ok"):
            yield f"{gateway} says of its health: {answer}"


async def same_views(web: Web, token: str) -> list[Violation]:
    """Return what the gateways do not say alike within some seconds."""
    deadline = time.monotonic() + SAME_WITHIN_S
    while True:
        wrong = [text for path in VIEWS async for text in _differences(web, token, path)]
        if not wrong or time.monotonic() > deadline:
            return [Violation("views", text) for text in wrong]
        await asyncio.sleep(LOOK_EVERY_S)


async def _differences(web: Web, token: str, path: str) -> Any:
    told = []
    for gateway in web.gateways:
        answer = await web.ask(gateway, "GET", path, token)
        if answer is None or answer[0] != 200:
            yield f"{gateway} answers {path} with {answer}"
            continue
        told.append((gateway, _lasting(answer[1])))
    for gateway, said in told[1:]:
        if said != told[0][1]:
            yield f"{path}: {told[0][0]} and {gateway}: {_first_difference(told[0][1], said)}"


def _lasting(said: Any) -> Any:
    """Return what is said without what each gateway heard by itself."""
    if isinstance(said, dict):
        return {key: _lasting(value) for key, value in said.items() if key not in HEARD}
    if isinstance(said, list):
        return [_lasting(value) for value in said]
    return said


def _first_difference(one: Any, other: Any, at: str = "$") -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                return _first_difference(one.get(key), other.get(key), f"{at}.{key}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            if left != right:
                return _first_difference(left, right, f"{at}[{number}]")
    return f"{at} is {str(one)[:200]} and {str(other)[:200]}"


async def revoked(operator: Operator) -> list[Violation]:
    """Return which bus servers do not refuse the node that was removed."""
    if not operator.removed:
        return [Violation("revoked", "no node was removed")]
    deadline = time.monotonic() + SAME_WITHIN_S
    while True:
        answers = await operator.knock(operator.removed)
        if AWAY not in answers.values() or time.monotonic() > deadline:
            break
        await asyncio.sleep(LOOK_EVERY_S)
    return [
        Violation("revoked", f"at the end {server} says to {operator.removed}: {answer}")
        for server, answer in answers.items()
        if answer != REFUSES
    ]


def rotated(target: Machines) -> list[Violation]:
    """Return the gateways that show another certificate than the one of their machine."""
    found = []
    for server in target.servers:
        made = ssl.PEM_cert_to_DER_cert(
            _first(files.tls_path(str(target.home(server)), files.CERTIFICATE))
        )
        shown = ssl.PEM_cert_to_DER_cert(
            ssl.get_server_certificate((target.machine(server).address, GATEWAY_PORT), timeout=5.0)
        )
        if hashlib.sha256(made).digest() != hashlib.sha256(shown).digest():
            found.append(Violation("rotated", f"the gateway of {server} shows another certificate"))
    return found


def _first(path: str) -> str:
    with open(path, encoding="ascii") as file:
        begin, end, _ = file.read().partition("-----END CERTIFICATE-----")
    return begin + end


async def other_logs(target: Machines) -> list[Violation]:
    """Return what is broken in the logs that the checker does not read."""
    broken: list[str] = []
    for stream, facts in ((subjects.ACCESS, AccessFact), (subjects.PROFILES, AdvisorFact)):
        gather.chain(await target.records(stream), stream, facts, broken)
    return [Violation("log", text) for text in broken]
