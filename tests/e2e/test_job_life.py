"""What happens over a job's life, on real clusters: a signal before its limit, and notices."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.embedded import Embedded
from tests.support.receivers import WebServer

pytestmark = pytest.mark.e2e

HANDLES = (
    "import signal, sys, time; "
    "signal.signal(signal.SIGUSR1, lambda *_: (print('warned'), sys.exit(0))); "
    "time.sleep(600)"
)
JOBS, KILLS = 24, 4


def submitted(cluster: Embedded, **spec: object) -> str:
    told = {"name": "life", "vc": "nlp", **spec}
    reply = cluster.ask("POST", "/v1/jobs", json.dumps(told).encode())
    assert reply.status == 201, reply
    job: str = reply.body["job"]
    return job


def test_a_job_is_warned_of_its_limit(cluster: Embedded) -> None:
    limits = {"time": 60, "warn": {"before": 59}}
    job = submitted(cluster, command=f'python3 -c "{HANDLES}"', limits=limits)
    ended = cluster.ended(job)
    assert (ended["state"], cluster.log(job)) == ("succeeded", "warned\n")
    told = [each["text"] for each in cluster.get(f"/v1/jobs/{job}/events")["events"]]
    assert any("warn done: the job's time limit is near" in text for text in told), told


def test_a_cluster_without_a_notifier_says_so(cluster: Embedded) -> None:
    spec = {"name": "a", "vc": "nlp", "command": "true", "notify": {"to": ["team"]}}
    reply = cluster.ask("POST", "/v1/jobs", json.dumps(spec).encode())
    assert (reply.status, reply.body["error"]["reason"]) == (409, "no-notifier")


@pytest.mark.nightly
def test_a_notifier_that_is_killed_loses_nothing_and_doubles_one_message(tmp_path: Path) -> None:
    cluster = Embedded(tmp_path / "home")
    file = tmp_path / "notify.toml"
    file.write_text('[webhooks]\nallow = true\nnetworks = ["127.0.0.0/8"]\n')
    file.chmod(0o600)
    with WebServer() as web:
        try:
            cluster.up(
                "--nodes", "1", "--gpus", "4", "--vc", "nlp=4", "--port", "0", "--notify", str(file)
            )
            to = {"to": [f"http://127.0.0.1:{web.port}/hook"]}
            jobs = []
            for kill in range(KILLS):
                each = range(JOBS // KILLS)
                jobs += [submitted(cluster, command="true", notify=to) for _ in each]
                before = len(web.got)
                web.until(lambda got, before=before: len(got) > before)  # type: ignore[misc]
                pid = cluster.entry("notifier")["pid"]
                cluster.kill("notifier")
                cluster.wait_back("notifier", pid)
                assert kill < KILLS
            for job in jobs:
                assert cluster.ended(job)["state"] == "succeeded"
            got = web.until(
                lambda got: (
                    {each["job"] for *_, body in got for each in body["notices"]} >= set(jobs)
                )
            )
        finally:
            cluster.down()
    messages = {body["id"]: [each["job"] for each in body["notices"]] for *_, body in got}
    assert Counter(job for told in messages.values() for job in told) == Counter(jobs)
    assert len(got) - len(messages) <= KILLS, "at most the message that was under way"
