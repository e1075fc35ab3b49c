"""Deploy with compose, submit from outside, kill containers, and account for every job.

    python -m tests.system.compose [--image skep:local] [--no-rolling] [--keep]

A bare NATS client submits all the time while each of these is killed in turn: the active process of
every service, the bus server that leads the allocator's log, an agent with jobs on it, the door. An
allocator is paused for longer than its standby waits. Every container is killed at once, the moment
a burst of submissions is acknowledged. At last every container is restarted in good order, one
after the other. Then every acknowledged job must have ended once, by the logs and by what the jobs
noted themselves.
Prints one line per check and a table of the kills; exits 1 if a check failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, TextIO, TypeVar

from skep_services.adapters.nats_access import TENANT_CONNECTIONS_MAX
from skep_services.adapters.nats_link import Link, LinkOptions
from skep_services.ports import RefusedError
from skep_services.service import EXIT_BUS, EXIT_CONFIGURATION
from tests.support.bare_client import BareClient, bare_client
from tests.system import account
from tests.system.account import Fact, Note
from tools.compose import FAILURES, Deployment, deploy_and_run, until

PROJECT = "skep-test"
NATS_PORT, GATEWAY_PORT = 14222, 18470
SLOTS = 4
VC, GREEDY = "train", "greedy"
BAD_SETTINGS = (
    (
        "wrong password",
        {"SKEP_NATS_PASSWORD": "wrong"},
        EXIT_BUS,
        "refuses the login of 'allocator-1'",
    ),
    (
        "missing secret",
        {"SKEP_NATS_PASSWORD_FILE": "/run/secrets/none"},
        EXIT_CONFIGURATION,
        "SKEP_NATS_PASSWORD_FILE: ",
    ),
    (
        "plain text to another machine",
        {"SKEP_NATS_PASSWORD": "x", "SKEP_ALLOW_PLAINTEXT": ""},
        EXIT_CONFIGURATION,
        "SKEP_ALLOW_PLAINTEXT",
    ),
    (
        "missing folder",
        {"SKEP_NATS_PASSWORD": "x", "SKEP_STATE": "/none"},
        EXIT_CONFIGURATION,
        "SKEP_STATE: ",
    ),
)
"""What is wrong, the settings of a process, its exit code, and a part of what it says."""
NOTES = "notes.txt"
NOTE = f"""
import os, time
def note(what):
    e = os.environ
    with open("{NOTES}", "ab", buffering=0) as file:
        words = (what, e["SKEP_NAME"], e["SKEP_GEN"], e["SKEP_RANK"], e["SKEP_DEVICES"])
        file.write(f"{{' '.join(words)}} {{time.monotonic_ns()}};\\n".encode())
note("start")
time.sleep(%s)
note("end")
"""
"""A job: notes its start and end, with its slots, in its agent's folder."""
VIEWERS = {"collector", "jaeger", "prometheus", "grafana"}
SERVICES = ("allocator", "admission", "introspector", "advisor", "searches")
PAUSE_S = 6.0
"""Twice what a standby waits for an active process that is silent."""
PACE_S = 0.35
"""Between two submissions: below what eight slots and two cores can take."""
ROLL_PACE_S = 0.15
"""During the rolling restart, which takes a quarter of a minute: about what can run meanwhile."""
JOB_S = 0.5
GANG_EVERY = 8
BURST = 50
BURST_JOB_S = 0.05
STALLED_AFTER_S = 60.0
"""After so long without the end of a job, what has not ended is lost: a busy machine only takes
longer."""
RECOVERY_WITHIN_S = 60.0
ACKNOWLEDGED_WITHIN_S = 15.0
"""What a client that retries may have to wait: an election of the bus takes 4 to 9 s."""
BATCH = 500
NS_PER_MS = 1_000_000


class Kill(NamedTuple):
    """A row of the table: what was done, and how long until a job submitted after it was bound."""

    what: str
    bound_ms: int
    gap_ms: int


R = TypeVar("R", bound="Run")


class StuckError(RuntimeError):
    """A check that everything after it needs."""


class Run:
    """One run; `failures` counts the checks that did not hold."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        rolling: bool,
        pace_s: float = PACE_S,
        job_s: float = JOB_S,
        gang_every: int = GANG_EVERY,
        out: TextIO = sys.stdout,
    ) -> None:
        self._out = out
        self.deployment, self.rolling = deployment, rolling
        self.pace_s, self.job_s, self.gang_every = pace_s, job_s, gang_every
        self.failures = 0
        self.kills: list[Kill] = []
        self.sent: dict[str, int] = {}
        self.acknowledged: dict[str, int] = {}
        self.rolled: tuple[int, int] | None = None
        """When the rolling restart began and ended, in ns."""
        self.dark: tuple[int, int] | None = None
        """When all containers were killed, and when the engine had the bus's run again, in ns."""
        self.ranks: dict[str, int] = {}
        self.bound: dict[str, int] = {}
        self.ended: set[str] = set()
        self._names: dict[str, str] = {}
        self._stop = asyncio.Event()

    def check(self, ok: bool, what: str, detail: str = "") -> None:
        """Print one line."""
        self.failures += not ok
        more = f": {detail}" if detail and not ok else ""
        print(f"{'ok  ' if ok else 'FAIL'} {what}{more}", file=self._out, flush=True)

    async def run(self) -> None:
        """Do everything but the deployment itself."""
        try:
            await self._run()
        finally:
            print(table(self.kills), file=self._out, flush=True)

    async def _run(self) -> None:
        about = self.deployment.about
        self.check_containers()
        self.check_viewers()
        self.check_bad_input()
        async with (
            bare_client(about, f"vc-{VC}") as tenant,
            bare_client(about, "operator") as operator,
        ):
            await self.check_streams(operator)
            await self.check_door(tenant)
            await self.listen(operator)
            submitting = asyncio.ensure_future(self.submit_all_the_time(tenant))
            try:
                await self.wait_bound_after(time.monotonic_ns())
                await self.attack(operator)
                await self.blackout(tenant)
                if self.rolling:
                    await self.roll(operator)
            finally:
                self._stop.set()
                await submitting
            await self.account(operator)

    # --- what is deployed ------------------------------------------------------------------------

    def check_containers(self) -> None:
        """See that every container is confined as the compose file says."""
        containers = self.deployment.containers()
        hosts = {name: one["HostConfig"] for name, one in containers.items()}
        users = {name for name, one in containers.items() if one["Config"]["User"] in ("", "0")}
        self.check(not users, f"{len(containers)} containers, none runs as root", str(users))
        open_roots = [name for name, host in hosts.items() if not host["ReadonlyRootfs"]]
        self.check(not open_roots, "every root filesystem is read-only", str(open_roots))
        bounded = {name: host["Memory"] and host["PidsLimit"] for name, host in hosts.items()}
        unbounded = [name for name, bound in bounded.items() if not bound]
        self.check(not unbounded, "memory and processes are bounded", str(unbounded))

    def check_viewers(self) -> None:
        """See that compose understands the viewers, whose images may not be here, and waits."""
        self.deployment.compose("--profile", "viewers", "config", "--quiet")
        started = sorted(VIEWERS & set(self.deployment.containers()))
        self.check(
            not started, "the viewers are understood, and only started on demand", str(started)
        )

    def check_bad_input(self) -> None:
        """See that what is set up wrongly is told, and how a process ends then."""
        deployment = self.deployment
        for what, settings, code, says in BAD_SETTINGS:
            done = deployment.run_aside("skep_services.allocator", settings)
            ok = done.returncode == code and says in done.stderr
            self.check(ok, f"{what}: {says!r}, exit code {code}", str(done))
        status, text = deployment.get("/v1/jobs", "wrong")
        self.check(
            status == HTTPStatus.UNAUTHORIZED and "token" in text,
            "wrong token: refused, and told so",
            f"{status} {text}",
        )

    async def check_streams(self, operator: BareClient) -> None:
        """See that every stream has three copies."""
        copies = await self.wait_copies(operator)
        self.check(
            set(copies.values()) == {3}, "every stream has three current copies", str(copies)
        )

    async def check_door(self, tenant: BareClient) -> None:
        """See that a tenant submits through the door, and that no bus server knows its password."""
        bus = self.deployment.about["nats"]
        await self._hand_in(tenant, "through-the-door", self.job_s)
        at = tenant.client.connected_url
        self.check(
            at is not None and at.geturl() == bus["tenants"],
            "a tenant submits through the door",
            str(at),
        )
        let_in = []
        for url in bus["url"].split(","):
            options = LinkOptions(
                servers=(url,), identity=tenant.user, password=bus["users"][tenant.user]
            )
            with contextlib.suppress(RefusedError):
                link = await Link.connect(options, on_fatal=lambda _: None)
                let_in.append(url)
                await link.close()
        self.check(not let_in, "the bus servers themselves refuse its password", str(let_in))
        held, refused = await self._connect_until_refused(f"vc-{GREEDY}")
        await self._hand_in(tenant, "beside-a-greedy-tenant", self.job_s)
        self.check(
            len(held) >= TENANT_CONNECTIONS_MAX and "as many connections" in refused,
            "a tenant that connects too often is refused while another one submits",
            f"{len(held)} connections, then {refused!r}",
        )
        for link in held:
            await link.close()

    async def _connect_until_refused(self, user: str) -> tuple[list[Link], str]:
        """Return a tenant's connections, at most twice as many as it may have, and its refusal."""
        bus, held = self.deployment.about["nats"], list[Link]()
        options = LinkOptions(servers=(bus["tenants"],), identity=user, password=bus["users"][user])
        try:
            while len(held) < 2 * TENANT_CONNECTIONS_MAX:
                held.append(await Link.connect(options, on_fatal=lambda _: None))
        except RefusedError as error:
            return held, str(error)
        return held, ""

    async def wait_copies(self, operator: BareClient) -> dict[str, int]:
        """Return how many current copies each stream has, once all have three or time is up."""
        deadline = time.monotonic() + RECOVERY_WITHIN_S
        while True:
            copies = await self.copies(operator)
            if set(copies.values()) == {3} or time.monotonic() > deadline:
                return copies
            await asyncio.sleep(0.2)

    async def copies(self, operator: BareClient) -> dict[str, int]:
        """Return how many current copies each stream has."""
        found = {}
        for stream in ("SUBMIT", "ADMIN", "NODE", "ADMISSION", "ALLOC"):
            info = await ask(operator, f"STREAM.INFO.{stream}", None)
            found[stream] = 1 + sum(one["current"] for one in info["cluster"]["replicas"])
        return found

    # --- submitting and watching -----------------------------------------------------------------

    async def submit_all_the_time(self, tenant: BareClient) -> None:
        """Submit at an even pace until told to stop; an answer is an acknowledgement."""
        tasks = []
        number = 0
        while not self._stop.is_set():
            number += 1
            tasks.append(asyncio.ensure_future(self._submit(tenant, number)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self.pace_s)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [repr(one) for one in outcomes if isinstance(one, BaseException)]
        self.check(not refused, f"{number} submissions, none refused", "; ".join(refused[:3]))
        worst_s = self.longest_wait_s(list(self.sent))
        began, again = self.dark or (0, 0)
        self.check(
            worst_s <= ACKNOWLEDGED_WITHIN_S,
            f"the longest wait for an acknowledgement was {worst_s:.1f} s, without the "
            f"{(again - began) / 1e9:.1f} s in which the engine started the bus anew",
        )

    def longest_wait_s(self, names: Sequence[str]) -> float:
        """Return the longest time between a submission and its acknowledgement.

        While no bus server and no door runs, only the engine can end the wait, and that time does
        not count.
        """
        began, again = self.dark or (0, 0)
        waits = [0]
        for name in names:
            if name in self.acknowledged:
                sent, at = self.sent[name], self.acknowledged[name]
                waits.append(at - sent - max(0, min(at, again) - max(sent, began)))
        return max(waits) / 1e9

    async def _submit(self, tenant: BareClient, number: int) -> None:
        gang = number % self.gang_every == 0
        await self._hand_in(tenant, f"{'gang' if gang else 'job'}-{number}", self.job_s, gang=gang)

    async def _hand_in(
        self, tenant: BareClient, name: str, seconds: float, *, gang: bool = False
    ) -> None:
        self.ranks[name] = 2 if gang else 1
        spec = {
            "name": name,
            "vc": VC,
            "command": ["python", "-c", NOTE % seconds],
            "resources": {"workers": self.ranks[name], "gpus": 3 if gang else 1},
        }
        self.sent[name] = time.monotonic_ns()
        await tenant.publish(f"skep.v1.submit.{VC}", json.dumps(spec).encode(), name)
        self.acknowledged[name] = time.monotonic_ns()

    async def _hear(self, message: Any) -> None:
        """Take note of decisions as they are published."""
        for fact in json.loads(message.data)["facts"]:
            match fact["type"]:
                case "admitted":
                    self._names[fact["job"]] = fact["spec"]["name"]
                case "job-ended":
                    self.ended.add(self._names.get(fact["job"], fact["job"]))
                case _:
                    pass

    async def _command(self, message: Any) -> None:
        """Take note of a job's first command to a node: it says that its binding is stored.

        The fact itself passes here whenever its storing is tried, also while no server stores it.
        """
        command = json.loads(message.data)
        if command["type"] == "bind-job":
            self.bound.setdefault(command["name"], time.monotonic_ns())

    async def listen(self, operator: BareClient) -> None:
        """Hear from here on what the services decide."""
        for fact_log in ("admission", "allocator"):
            await operator.client.subscribe(f"skep.v1.fact.{fact_log}", cb=self._hear)
        await operator.client.subscribe("skep.v1.cmd.*", cb=self._command)

    async def wait_bound_after(self, at: int) -> int:
        """Return when the first job that was acknowledged after `at` was bound (ns)."""
        async with asyncio.timeout(RECOVERY_WITHIN_S):
            while True:
                times = [
                    when
                    for name, when in list(self.bound.items())
                    if self.acknowledged.get(name, 0) > at
                ]
                if times:
                    return min(times)
                await asyncio.sleep(0.02)

    def worst_gap(self, at: int) -> int:
        """Return the longest time without an acknowledgement from shortly before `at` on (ns)."""
        times = [when for when in sorted(self.acknowledged.values()) if when > at - 10**9]
        return max((b - a for a, b in itertools.pairwise(times)), default=0)

    # --- the attack ------------------------------------------------------------------------------

    async def attack(self, operator: BareClient) -> None:
        """Kill each in turn, waiting until it is back before the next."""
        waited = 0
        for service in SERVICES:
            name = await self.active(service)
            standby = f"{service}-{2 if name.endswith('1') else 1}"
            await asyncio.to_thread(
                until,
                lambda one=standby: self.deployment.answers(one),
                f"{standby} stands by",
                RECOVERY_WITHIN_S,
            )
            both = name, standby
            before = await asyncio.to_thread(self.takeovers, *both)
            await self.kill(f"{service}, active ({name})", name)
            # The gateway takes a service for well until its silence is noticed.
            with contextlib.suppress(TimeoutError):
                await asyncio.to_thread(
                    until,
                    lambda both=both, before=before: self.takeovers(*both) > before,
                    f"{name} is succeeded",
                    RECOVERY_WITHIN_S,
                )
            after = await asyncio.to_thread(self.takeovers, *both)
            # The engine starts the killed one anew, and either may win the next epoch.
            won = standby if after[1] > before[1] else f"{name}, started anew,"
            waited += won == standby
            self.check(
                after > before,
                f"{service}: {won} took over from {name}",
                await asyncio.to_thread(self.story, service),
            )
        self.check(waited > 0, f"a standby was first {waited} times of {len(SERVICES)}")
        leader = (await ask(operator, "STREAM.INFO.ALLOC", None))["cluster"]["leader"]
        await self.kill(f"bus server that leads ALLOC ({leader})", leader)
        await self.kill("agent with its jobs (agent-1)", "agent-1")
        await self.kill("door", "door")
        await self.pause()

    async def active(self, service: str) -> str:
        """Return which process of a service is active."""
        return await asyncio.to_thread(
            until,
            lambda: self.deployment.identity_of(service),
            f"{service} is active",
            RECOVERY_WITHIN_S,
        )

    def takeovers(self, *names: str) -> list[int]:
        """Return how often each of these processes said that it became the active one."""
        return [self.deployment.logs(name).count('"event":"active"') for name in names]

    def story(self, service: str) -> str:
        """Return what the processes of a service said of standing by and taking over."""
        lines = [
            f"\n       {name}: {line[:240]}"
            for name in (f"{service}-1", f"{service}-2")
            for line in self.deployment.logs(name).splitlines()
            if '"decided"' not in line
        ]
        return "".join(lines)

    async def kill(self, what: str, name: str) -> None:
        """Crash a container; note how long new jobs waited, and wait until it is back."""
        started, at = await asyncio.to_thread(self.deployment.crash, name)
        await self.recovered(f"kill {what}", at)
        await asyncio.to_thread(self.deployment.wait_again, name, started)
        await asyncio.to_thread(
            until, self.deployment.is_well, f"all is well after {name}", RECOVERY_WITHIN_S
        )

    async def recovered(self, what: str, at: int) -> None:
        """Wait until work goes on after what was done at `at`."""
        try:
            bound = await self.wait_bound_after(at)
        except TimeoutError:
            self.check(False, f"{what}: no new job within {RECOVERY_WITHIN_S:.0f} s")
            raise StuckError(what) from None
        row = Kill(what, (bound - at) // NS_PER_MS, self.worst_gap(at) // NS_PER_MS)
        self.kills.append(row)
        self.check(True, f"{what}: a new job was bound after {row.bound_ms} ms")

    async def pause(self) -> None:
        """Pause the active allocator, let its standby take over, and wake it."""
        name = await self.active("allocator")
        at = time.monotonic_ns()
        pausing = asyncio.ensure_future(asyncio.to_thread(self.deployment.pause, name, PAUSE_S))
        await self.recovered(f"pause allocator, active ({name})", at)
        started = await pausing
        await asyncio.to_thread(self.deployment.wait_again, name, started)
        logs = await asyncio.to_thread(self.deployment.logs, name)
        self.check("superseded" in logs, f"{name} woke up, found itself superseded, and ended")

    async def blackout(self, tenant: BareClient) -> None:
        """Kill everything the moment a burst of submissions is acknowledged."""
        names = [f"burst-{number}" for number in range(1, BURST + 1)]
        await asyncio.gather(*(self._hand_in(tenant, name, BURST_JOB_S) for name in names))
        at = time.monotonic_ns()
        started = await asyncio.to_thread(self.deployment.crash_all)
        await self.recovered(f"kill all {len(started)} containers at once", at)
        for name, when in started.items():
            await asyncio.to_thread(self.deployment.wait_again, name, when)
        bus = [name for name in started if name == "door" or name.startswith("nats-")]
        self.dark = at, max(map(self.deployment.started_ns, bus))
        await asyncio.to_thread(
            until, self.deployment.is_well, "all is well after the blackout", RECOVERY_WITHIN_S
        )

    async def roll(self, operator: BareClient) -> None:
        """Restart every container in good order, each once all before it are well."""
        at, began = time.monotonic_ns(), time.monotonic()
        names = sorted(set(self.deployment.containers()) - {"bootstrap"})
        self.pace_s = ROLL_PACE_S
        for name in names:
            await asyncio.to_thread(self.deployment.restart, name)
            await asyncio.to_thread(
                until, self.deployment.is_well, f"all is well after {name}", RECOVERY_WITHIN_S
            )
            if name.startswith("nats-"):
                await self.wait_copies(operator)
        self.rolled = at, time.monotonic_ns()
        self.pace_s = PACE_S
        await self.recovered(f"restart {len(names)} containers, one by one", at)
        self.check(
            True, f"{len(names)} containers were restarted in {time.monotonic() - began:.0f} s"
        )

    # --- the account -----------------------------------------------------------------------------

    async def account(self, operator: BareClient) -> None:
        """Wait until everything ended; compare what was promised with what happened."""
        began = moved = time.monotonic()
        ends = 0
        admission: list[account.Fact] = []
        alloc: list[account.Fact] = []
        jobs = len(self.acknowledged)
        while time.monotonic() < moved + STALLED_AFTER_S:
            alloc = account.facts_of(await read_stream(operator, "ALLOC"))
            ended = {fact["job"] for fact in alloc if fact["type"] == "job-ended"}
            if len(ended) >= jobs:
                break
            if len(ended) > ends:
                ends, moved = len(ended), time.monotonic()
            await asyncio.sleep(1.0)
        drained_s = time.monotonic() - began
        admission = account.facts_of(await read_stream(operator, "ADMISSION"))
        wrong = list(account.problems(list(self.acknowledged), admission, alloc))
        self.check(
            not wrong,
            f"{jobs} of {jobs} acknowledged jobs ended once, by the logs "
            f"({drained_s:.1f} s after the last one)",
            "; ".join(wrong[:5]),
        )
        ends = sum(fact["type"] == "job-ended" for fact in alloc)
        self.check(ends == jobs, "nothing else ran", f"{ends} ends")
        notes = [
            note
            for node in ("1", "2")
            for note in account.read_notes(
                f"node-{node}", self.deployment.read(f"agent-{node}", f"/var/lib/skep/{NOTES}")
            )
        ]
        ranks = {name: count for name, count in self.ranks.items() if name in self.acknowledged}
        wrong = list(account.noted_problems(notes, ranks))
        self.check(
            not wrong,
            f"{len(notes)} notes of the jobs themselves agree, and no slot was used by two at once",
            "; ".join(wrong[:5]),
        )
        if self.rolled is not None:
            self.judge_roll(self.rolled, admission, alloc, notes)
        epochs = sum(fact["type"] == "epoch-began" for fact in alloc)
        again = sum(fact["type"] == "job-requeued" for fact in alloc)
        text = f"     the allocator had {epochs} epochs; {again} attempts were lost and repeated"
        print(text, file=self._out)

    def judge_roll(
        self,
        span: tuple[int, int],
        admission: Sequence[Fact],
        alloc: Sequence[Fact],
        notes: Sequence[Note],
    ) -> None:
        """Count what became of what was submitted during the rolling restart."""
        names = [name for name, at in self.sent.items() if span[0] <= at <= span[1]]
        in_time = [
            name
            for name in names
            if name in self.acknowledged and self.longest_wait_s([name]) <= ACKNOWLEDGED_WITHIN_S
        ]
        found = account.tally(names, in_time, admission, alloc, notes)
        self.check(
            not (found.refused or found.failed or found.doubled),
            f"rolling restart under load: {len(names)} submitted, refused {found.refused}, "
            f"jobs failed {found.failed}, jobs doubled {found.doubled}; "
            f"longest wait for an acknowledgement {self.longest_wait_s(names):.1f} s "
            f"of {ACKNOWLEDGED_WITHIN_S:.0f} s; {found.repeated} attempts ended with their "
            f"agent and were repeated",
        )


async def ask(client: BareClient, verb: str, body: Any) -> Any:
    """Return JetStream's answer, asking again while there is no leader."""
    payload = b"" if body is None else json.dumps(body).encode()
    async with asyncio.timeout(RECOVERY_WITHIN_S):
        while True:
            with contextlib.suppress(Exception):
                answer = await client.client.request(f"$JS.API.{verb}", payload, timeout=2)
                told = json.loads(answer.data)
                if "error" not in told or told["error"]["code"] != 503:
                    return told
            await asyncio.sleep(0.2)


async def read_stream(client: BareClient, stream: str) -> list[Any]:
    """Return every message of a stream, decoded, through a consumer of the client's own."""
    last = (await ask(client, f"STREAM.INFO.{stream}", None))["state"]["last_seq"]
    consumer = f"{stream}.{client.user}"
    config = {
        "name": client.user,
        "deliver_policy": "all",
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
    }
    await ask(client, f"CONSUMER.DELETE.{consumer}", None)
    body = {"stream_name": stream, "config": config, "action": "create"}
    made = await ask(client, f"CONSUMER.CREATE.{consumer}", body)
    if "error" in made:
        message = f"reading {stream}: {made['error']}"
        raise RuntimeError(message)
    inbox = f"_INBOX.{client.user}.read-{stream}"
    subscription = await client.client.subscribe(inbox)
    records: list[Any] = []
    while len(records) < last:
        batch = min(BATCH, last - len(records))
        more = json.dumps({"batch": batch, "expires": 2 * 10**9})
        await client.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", more.encode(), inbox)
        for _ in range(batch):
            delivered = await subscription.next_msg(timeout=10)
            if not delivered.reply.startswith("$JS.ACK."):
                break  # The request is over, or its consumer was still on its way: ask again.
            records.append(json.loads(delivered.data))
    await subscription.unsubscribe()
    return records


def attempt(
    make: Callable[[Deployment], R],
    project: str,
    image: str,
    ports: tuple[int, int],
    *,
    out: TextIO = sys.stderr,
    **more: Any,
) -> R | None:
    """Return a run that came to its end, on a deployment of its own (`deploy_and_run`).

    What kept it from its end is told on `out`.
    """
    options = ("--gpus", str(SLOTS), "--vc", f"{VC}={2 * SLOTS}", "--tenant", GREEDY)
    try:
        run: R = deploy_and_run(
            make, project=project, image=image, ports=ports, options=options, **more
        )
    except FAILURES as error:
        print(f"FAIL {type(error).__name__}: {error}", file=out)
        return None
    return run


def table(kills: Sequence[Kill]) -> str:
    """Return the kills as lines of text."""
    lines = [f"     {'what was done':<44} {'new job bound':>14} {'longest gap of acks':>20}"]
    lines += [f"     {one.what:<44} {one.bound_ms:>11} ms {one.gap_ms:>17} ms" for one in kills]
    return "\n".join(lines)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Deploy with compose, kill, and account.")
    parser.add_argument("--image", default="skep:local")
    parser.add_argument("--no-rolling", action="store_true", help="leave out the restarts")
    parser.add_argument("--keep", action="store_true", help="leave everything up at the end")
    given = parser.parse_args()
    began = time.monotonic()
    run = attempt(
        lambda deployment: Run(deployment, rolling=not given.no_rolling),
        PROJECT,
        given.image,
        (NATS_PORT, GATEWAY_PORT),
        out=sys.stdout,
        up=lambda run, took_s: run.check(True, f"deployed and well after {took_s:.1f} s"),
        keep=given.keep,
    )
    if run is None:
        return 1
    took_s = time.monotonic() - began
    verdict = "FAILED" if run.failures else "passed"
    print(f"compose-test {verdict} in {took_s:.0f} s: {run.failures} checks failed")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
