"""A cluster to which every credential that it gives out says whatever comes to mind.

Valid examples of every message are changed by chance (`mutations`) and published on every subject
that a credential may publish on, with strange headers and reply subjects. Afterwards no process was
started again, nothing was passed over, an honest tenant's job runs to its end, and what an honest
node has said of itself stands.

    SKEP_FUZZ_S=600 SKEP_FUZZ_SEED=7 make test ARGS=tests/attack/test_fuzz.py
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skep.wire import subjects
from tests.mutations import Mutator
from tests.support.bare_client import bare_client
from tests.support.embedded import Embedded, until

SECONDS = float(os.environ.get("SKEP_FUZZ_S") or (15 if os.environ.get("CI") else 4))
SEED = int(os.environ.get("SKEP_FUZZ_SEED") or uuid.uuid4().int % 2**32)
MESSAGES_PER_S = 2000
"""At most: what is stored has to be decided on before the honest job is."""
BATCH = 16
"""Messages between two questions to the server whether it has taken them."""
HEADER_BYTES_MAX = 16 * 1024
"""What the headers may take of the largest message; the server hangs up on a larger one."""
CATCH_UP_S = 120.0
SETTLES_S = 60.0

HOSTILE_VC, HOSTILE_NODE = "nlp", "node-1"
HONEST_VC, HONEST_NODE = "vision", "node-2"
EXAMPLES = Path(__file__).parents[2] / "proto" / "examples"
REPLIES = (
    "",
    "",
    "",
    "x",
    "skep.v1.fact.allocator",
    "skep.v1.node.node-2.joined",
    "_INBOX.gateway.1",
    "_INBOX.vc-vision.1",
    "$JS.API.STREAM.DELETE.ALLOC",
    "skep.v1.submit.vision",
)
SPAN = [
    {
        "trace_id": "ab" * 16,
        "span_id": "cd" * 8,
        "name": "x",
        "service": "s",
        "start_ns": 1,
        "end_ns": 2,
        "parent_id": "",
        "attributes": {"job": "j1", "count": 1},
    }
]
CODE = {"node": HOSTILE_NODE, "job": "j1", "attempt": 1, "code": "0" * 64, "chunk": "1" * 64}
OUTPUTS = {"job": "j1", "attempt": 1, "path": "a/b", "offset": 0, "token": "x"}
LOG = {"job": "j1", "attempt": 1, "rank": 0, "offset": 0, "limit": 100}


class Voice(NamedTuple):
    """A credential, and what it may say: subjects, and changed messages for each."""

    identity: str
    said: list[tuple[str, Mutator]]


def folder(name: str, **own: Any) -> list[bytes]:
    """Return the examples of a folder, with the fields of `own` where a message has them."""
    found = []
    for path in sorted((EXAMPLES / name).glob("*.json")):
        tree = json.loads(path.read_bytes())
        tree |= {key: value for key, value in own.items() if key in tree}
        found.append(json.dumps(tree).encode())
    return found


def voices(rng: random.Random, identity: str) -> list[Voice]:
    """Return everybody who speaks; `identity` is what the hostile node's agent is known by."""

    def says(name: str, *pairs: tuple[str, list[bytes]]) -> Voice:
        return Voice(name, [(subject, Mutator(rng, found)) for subject, found in pairs])

    spec = json.loads((EXAMPLES / "job-spec.json").read_bytes())
    submitted = [
        json.dumps(spec | {"vc": HOSTILE_VC, **more}).encode()
        for more in ({}, {"command": ["true"], "script": None, "args": [], "workdir": None})
    ]
    node = {"node": HOSTILE_NODE, "identity": identity, "job": "j1", "attempt": 1}
    tenant = (
        (subjects.submit(HOSTILE_VC), submitted),
        (subjects.cancel(HOSTILE_VC), [b'{"job":"j1"}', b'{"job":"j2"}']),
        (subjects.ask(HOSTILE_VC), folder("asks", job="j2")),
        (subjects.search(HOSTILE_VC), folder("search-requests", search="s2")),
    )
    agent = tuple(
        (subjects.node_event(HOSTILE_NODE, path.stem), [message])
        for path, message in zip(
            sorted((EXAMPLES / "node-events").glob("*.json")),
            folder("node-events", **node),
            strict=True,
        )
    )
    reports = folder("reports", **node)
    return [
        says(f"vc-{HOSTILE_VC}", *tenant),
        says(
            f"node-{HOSTILE_NODE}",
            *agent,
            (subjects.heartbeat(HOSTILE_NODE), reports),
            (subjects.report(HOSTILE_NODE), reports),
            (subjects.span(f"node-{HOSTILE_NODE}"), [json.dumps(SPAN).encode()]),
            (subjects.health(f"node-{HOSTILE_NODE}"), [b"{}"]),
            (subjects.code(HOSTILE_NODE, subjects.ANY_GATEWAY), [json.dumps(CODE).encode()]),
        ),
        says(
            "operator",
            *tenant,
            (subjects.admin("vcs"), folder("admin")),
            (subjects.admin("drain"), folder("admin", node=HOSTILE_NODE)),
            (subjects.logs(HOSTILE_NODE), [json.dumps(LOG).encode()]),
            (subjects.outputs(HOSTILE_NODE), [json.dumps(OUTPUTS).encode()]),
            (subjects.health("gateway"), [b"{}"]),
            (subjects.draft("allocator"), folder("drafts")),
            (subjects.draft("admission"), folder("drafts")),
        ),
        *(
            says(name, (subjects.span(name), [json.dumps(SPAN).encode()]))
            for name in ("admission", "allocator")
        ),
    ]


async def speak(cluster: Embedded, rng: random.Random, every: list[Voice]) -> dict[str, int]:
    """Publish until the time is over; return how many messages each credential said."""
    counts = dict.fromkeys((voice.identity for voice in every), 0)
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(bare_client(cluster.about, name))
            for name in counts
        }
        ends_at = time.monotonic() + SECONDS
        left = int(SECONDS * MESSAGES_PER_S)
        while left > 0 and time.monotonic() < ends_at:
            voice = rng.choice(every)
            client = clients[voice.identity].client
            for _ in range(BATCH):
                subject, mutator = rng.choice(voice.said)
                headers = mutator.headers() or None
                payload = mutator.payload()[: client.max_payload - HEADER_BYTES_MAX]
                await client.publish(subject, payload, rng.choice(REPLIES), headers)
            await client.flush()
            counts[voice.identity] += BATCH
            left -= BATCH
    return counts


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Embedded]:
    """Return a cluster of its own: an operator's words may change all of it."""
    made = Embedded(tmp_path / "cluster")
    try:
        made.up("--nodes", "2", "--gpus", "2", "--vc", "nlp=2", "--vc", "vision=2", "--port", "0")
        yield made
    finally:
        made.down()


def pids(cluster: Embedded) -> dict[str, int]:
    return {name: entry["pid"] for name, entry in cluster.pids().items()}


async def told(cluster: Embedded, verb: str, message: Mapping[str, Any]) -> None:
    """Publish what an honest operator says."""
    async with bare_client(cluster.about, "operator") as client:
        await client.publish(subjects.admin(verb), json.dumps(message).encode())


async def submitted(cluster: Embedded, vc: str) -> str:
    """Submit an honest job; return its id, empty if it is not admitted."""
    async with bare_client(cluster.about, f"vc-{vc}") as client:
        answer = await client.submit({"name": "honest", "vc": vc, "command": ["true"]})
    return answer.job if answer.verdict["accepted"] else ""


def inventory(cluster: Embedded, node: str) -> Any:
    """Return what a node has said of itself."""
    (found,) = [one for one in cluster.get("/v1/nodes")["nodes"] if one["node"] == node]
    gpus = [one for one in cluster.get("/v1/gpus")["gpus"] if one["node"] == node]
    shown = ("identity", "incarnation", "address", "cpus", "memory")
    return (
        {key: found[key] for key in shown if key in found},
        [(one["index"], one["type"]) for one in gpus],
    )


def test_no_message_of_any_credential_ends_a_service(cluster: Embedded) -> None:
    print(f"SKEP_FUZZ_SEED={SEED} SKEP_FUZZ_S={SECONDS:g}")
    rng = random.Random(SEED)
    processes, honest = pids(cluster), inventory(cluster, HONEST_NODE)
    identity = (cluster.home / HOSTILE_NODE / "identity").read_text().strip()
    for vc in (HOSTILE_VC, HONEST_VC):
        assert cluster.ended(asyncio.run(submitted(cluster, vc)))["state"] == "succeeded"
    counts = asyncio.run(speak(cluster, rng, voices(rng, identity)))
    print(f"published: {counts}")
    assert all(counts.values())

    # What an operator says is taken: an honest one puts it right.
    # No virtual cluster may bear what became of the hostile node: the honest node is enough.
    vcs = {HOSTILE_VC: {"gpus": 0}, HONEST_VC: {"gpus": 2}}
    asyncio.run(told(cluster, "vcs", {"type": "set-vcs", "vcs": vcs}))
    asyncio.run(told(cluster, "drain", {"type": "drain-node", "node": HONEST_NODE, "drain": False}))
    for device in (0, 1):
        asyncio.run(
            told(
                cluster,
                "quarantine",
                {
                    "type": "quarantine-gpu",
                    "node": HONEST_NODE,
                    "device": device,
                    "quarantine": False,
                },
            )
        )
    # Admission hears of the cells from the allocator.
    job = until(lambda: asyncio.run(submitted(cluster, HONEST_VC)), "a job is admitted", SETTLES_S)
    assert cluster.ended(job, CATCH_UP_S)["state"] == "succeeded"

    assert pids(cluster) == processes
    services = until(lambda: well(cluster), "every service is well", SETTLES_S)
    passed = {
        name: answer["passed_latest"]
        for name, answer in services.items()
        if answer.get("passed_over")
    }
    assert passed == {}
    assert inventory(cluster, HONEST_NODE) == honest


def well(cluster: Embedded) -> dict[str, Any] | None:
    """Return every service's answer once all of them are well."""
    reply = cluster.ask("GET", "/v1/health")
    services = reply.body.get("services", {}) if isinstance(reply.body, dict) else {}
    good = services and all(answer.get("ok") for answer in services.values())
    return dict(services) if good else None
