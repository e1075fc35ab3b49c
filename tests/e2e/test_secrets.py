"""Secrets on a real cluster: the job has them, and nothing else does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from skep.wire import codec, subjects
from skep.wire.reasons import Reason
from skep.wire.vault import AskSecrets, SecretsGiven
from skep_services.ports import RefusedError
from skep_services.vault import boxes
from tests.support.embedded import SKEP, Embedded

VALUE = "correct-horse-battery-staple-71"
PROGRAM = (
    "import os, hashlib, stat; path = os.environ['KEY_FILE']; "
    "print(hashlib.sha256(os.environ['KEY'].encode()).hexdigest(), "
    "hashlib.sha256(open(path, 'rb').read()).hexdigest(), oct(os.stat(path).st_mode)[-3:], path)"
)


def skep(cluster: Embedded, *words: str, value: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SKEP, *words],
        env=cluster.environment,
        input=value,
        check=False,
        text=True,
        capture_output=True,
    )


def test_a_job_has_its_secrets_and_no_file_of_the_cluster_has(
    cluster: Embedded, tmp_path: Path
) -> None:
    done = skep(cluster, "secret", "set", "horse", "--vc", "nlp", value=VALUE)
    assert done.returncode == 0, done.stderr
    listed = json.loads(cluster.skep("secret", "ls", "--vc", "nlp", "--json"))
    assert [one["name"] for one in listed["secrets"]] == ["horse"]
    spec = {
        "name": "secretive",
        "vc": "nlp",
        "command": ["python3", "-c", PROGRAM],
        "secrets": {"KEY": "horse"},
        "secret_files": {"KEY_FILE": "horse"},
    }
    job = cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode()).body["job"]
    assert cluster.ended(job)["state"] == "succeeded", cluster.log(job)
    in_env, in_file, mode, path = cluster.log(job).split()
    digest = hashlib.sha256(VALUE.encode()).hexdigest()
    assert (in_env, in_file, mode) == (digest, digest, "400")
    assert not os.path.exists(path), "the file outlives the run"
    assert VALUE not in json.dumps(cluster.get(f"/v1/jobs/{job}"))
    held = [
        str(each)
        for each in cluster.home.rglob("*")
        if each.is_file() and VALUE.encode() in each.read_bytes()
    ]
    assert held == []
    assert skep(cluster, "secret", "rm", "horse", "--vc", "nlp").returncode == 0
    again = cluster.ask("POST", "/v1/jobs", json.dumps({**spec, "name": "late"}).encode()).body
    ended = cluster.ended(again["job"])
    assert ended["state"] == "failed"
    assert "there is no secret horse of VC nlp" in json.dumps(ended)


@pytest.mark.asyncio
async def test_a_node_gets_no_secrets_of_jobs_that_are_not_on_it(cluster: Embedded) -> None:
    key = boxes.new_key()
    ask = AskSecrets(
        node="node-1", job="j1", attempt=1, key=bytes(key.public_key), names=("horse",)
    )
    bus = await cluster.bus("node-node-1")
    try:
        answer = await bus.request(subjects.vault("node-1"), codec.encode(ask), {}, 5.0)
        assert answer is not None
        given = msgspec.json.decode(answer.payload, type=SecretsGiven)
        assert given.refused is Reason.NOT_BOUND_HERE
        with pytest.raises(RefusedError, match="may not"):
            await bus.request(subjects.vault("node-2"), codec.encode(ask), {}, 1.0)
    finally:
        await bus.close()


def test_secrets_are_refused_in_one_line(cluster: Embedded) -> None:
    for words, value, text in (
        (("set", "x y", "--vc", "nlp"), "v", "names of letters"),
        (("set", "x", "--vc", "nlp"), "", "the value is empty"),
        (("set", "x", "--vc", "nlp"), "v" * 40_000, "more than 32768 bytes"),
        (("rm", "none", "--vc", "nlp"), "", "vc nlp has no secret none"),
        (("set", "x", "--person", "ada"), "v", "are not yours"),
    ):
        done = skep(cluster, "secret", *words, value=value)
        assert done.returncode != 0
        assert text in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_another_tenant_neither_reads_nor_sets(cluster: Embedded) -> None:
    for method, path, body in (
        ("GET", "/v1/secrets/vc/nlp", None),
        ("PUT", "/v1/secrets/vc/nlp/x", b"{}"),
        ("DELETE", "/v1/secrets/vc/nlp/x", None),
    ):
        assert cluster.ask(method, path, body, "vc-vision").status == 403
