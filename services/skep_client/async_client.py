"""The client for programs with an event loop: the same methods as `Client`, to be awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx

from skep.wire.changes import (
    AskCheckpoint,
    AskHold,
    AskMigrate,
    AskPack,
    AskPriority,
    AskRelease,
    AskResize,
    AskResume,
    AskRetry,
    AskSuspend,
    AskUnpack,
)
from skep.wire.search import SearchSpec
from skep.wire.service import ServiceSpec
from skep_client import calls, sessions, steps, transfers
from skep_client.alerts import Alert, alerts_of
from skep_client.calls import Call, JobLike, Spec
from skep_client.route import (
    BODY_BYTES_MAX,
    KEEPALIVE,
    PATIENCE_READING_S,
    PATIENCE_S,
    RETRY_AFTER_S,
    SILENT_S,
    Route,
    Tries,
    decoded,
    find,
    too_large,
)
from skep_client.sessions import Executed
from skep_client.steps import Do, Next, Open, Out, Pause, Steps, Stream
from skep_services.gateway.answers import (
    Blame,
    BlameList,
    CacheList,
    CacheRemoved,
    Calibration,
    Cancelled,
    ChangeTaken,
    CodeList,
    Curve,
    Fair,
    GpuRow,
    Health,
    History,
    JobDetail,
    Links,
    ModelList,
    Near,
    NodeRow,
    NoticeList,
    NoticeTested,
    OutputList,
    Plan,
    PromiseList,
    RateCourse,
    ReplayDetail,
    ReplayList,
    ReplayRow,
    Report,
    Requeued,
    SearchBegun,
    SearchCancelled,
    SearchDetail,
    SearchRow,
    ServiceDetail,
    ServiceRow,
    ServiceTaken,
    StateList,
    Submitted,
    Trace,
    TrialAsked,
    Trials,
    TrialTold,
    UsageList,
    VcRow,
    VcUsage,
    Volumes,
    WhatIf,
    WhoAmI,
    Why,
    Windows,
)
from skep_services.gateway.rows import Asked, Event, Row

Result = TypeVar("Result")


class AsyncClient:
    """A cluster: submit jobs, wait for them, change them, and read what they say.

    Without arguments it is the cluster that the command line would use: `SKEP_API`, the state
    folder, or the latest `skep login`. Errors are `SkepError`s, each with a stable `reason` and one
    line. A request is repeated while the gateway is away, which is safe: submissions carry a key.
    A client is for one event loop.

    Args:
        api: The gateway's address, or several with commas between them.
        token: The token.
        ca: The file of the CA that the gateway is believed by.
        home: The state folder of a cluster on this machine.
        vc: The virtual cluster of specs that name none; by default `SKEP_VC`, or the only one.
        patience_s: How long a request is repeated while the gateway is away (seconds).

    Raises:
        NoClusterError: There is no cluster to talk to.
        BadCallError: An argument is wrong.
        UnreachableError: The file of the CA cannot be used.
    """

    def __init__(
        self,
        api: str | None = None,
        token: str | None = None,
        *,
        ca: str | None = None,
        home: str | None = None,
        vc: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._vc = vc or os.environ.get("SKEP_VC")
        self._target = find(api, token, ca, home)
        self._route = Route(self._target, patience_s)
        self._http = httpx.AsyncClient(
            headers=self._route.headers,
            transport=httpx.AsyncHTTPTransport(
                verify=self._route.verify(), socket_options=KEEPALIVE
            ),
            trust_env=False,  # A proxy of the environment would read the token.
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def api(self) -> str:
        """Return the address of the gateway in use."""
        return self._route.url

    @property
    def is_local(self) -> bool:
        """Return whether the cluster was found by its state folder: its nodes are this machine."""
        return self._target.local()

    async def close(self) -> None:
        """Drop the connections."""
        await self._http.aclose()

    # --- jobs ------------------------------------------------------------------------------------

    async def submit(
        self, spec: Spec | None = None, *, key: str | None = None, **more: Any
    ) -> Submitted:
        """Submit a job: a spec, or keywords as the keys of a spec file, or both.

        Args:
            spec: The spec; keywords go before what it says.
            key: The same key makes the same job, however often it is submitted.
            more: Keys of the spec: `name=`, `command=`, `script=`, `resources=`, ...
        """
        return await self._run(transfers.submitted(spec, more, key, self._vc))

    async def plan(self, spec: Spec | None = None, **more: Any) -> Plan:
        """Return what would become of a spec, without submitting it."""
        return await self._run(steps.planned(spec, more, self._vc))

    async def jobs(
        self,
        state: str = "active",
        *,
        vc: str | None = None,
        name: str | None = None,
        owner: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        prefix: str | None = None,
        user: str | None = None,
        mine: bool = False,
        labels: Mapping[str, str | None] | None = None,
        tasks: bool = False,
        array: JobLike | None = None,
    ) -> list[Row]:
        """Return jobs, one line of `skep ps` each.

        Args:
            state: `active`, `ended`, `all`, or states with commas between them.
            vc: Those of one virtual cluster.
            name: Those of this name.
            owner: Those of one person.
            order: `submitted`, `newest` or `queue`.
            limit: At most so many, the newest.
            prefix: Those whose id or name begins so.
            user: Those of one person, or whose label `user` says so if no person did.
            mine: Those of the caller, a person.
            labels: Those with all of these labels; None: with any value.
            tasks: The jobs of arrays' tasks, too.
            array: The jobs of this array's tasks, and no other.
        """
        call = calls.jobs(
            state=state,
            vc=vc,
            name=name,
            owner=owner,
            order=order,
            limit=limit,
            prefix=prefix,
            user=user,
            mine=1 if mine else None,
            label=calls.labels_of(labels),
            tasks=1 if tasks else None,
            array=None if array is None else calls.job_name(array),
        )
        return (await self._call(call)).jobs

    async def job(self, job: JobLike) -> JobDetail:
        """Return everything about a job."""
        return await self._call(calls.job(job))

    async def wait(
        self, job: JobLike, *, until: str = "ended", timeout_s: float | None = None
    ) -> JobDetail:
        """Return a job once it has ended, or has started.

        Args:
            job: The job.
            until: `ended` or `started`.
            timeout_s: At most so long (seconds); None: for ever. Else it is a NotInTimeError.
        """
        return await self._run(steps.waited(job, until, timeout_s))

    async def cancel(self, job: JobLike) -> Cancelled:
        """Ask for a job's end."""
        return await self._call(calls.cancel(job))

    async def why(self, job: JobLike) -> Why:
        """Return why a job is where it is, and what would change that."""
        return await self._call(calls.why(job, what_if=False))

    async def what_if(self, job: JobLike) -> WhatIf:
        """Return what would start a job that waits."""
        found = (await self._call(calls.why(job, what_if=True))).what_if
        return found or WhatIf(problem="", outcome=None, options=[], in_vain=[])

    async def curve(self, job: JobLike) -> Curve:
        """Return what a job said about its training."""
        return await self._call(calls.curve(job))

    async def rates(self, job: JobLike) -> RateCourse:
        """Return how fast a job went over time, and what may have changed that."""
        return await self._call(calls.rates(job))

    async def trace(self, job: JobLike) -> Trace:
        """Return the spans of a job."""
        return await self._call(calls.trace(job))

    async def blame(self, job: JobLike) -> Blame:
        """Return where the time of a job went."""
        return await self._call(calls.blame(job))

    async def links(self, job: JobLike) -> Links:
        """Return where a job shows its training: W&B runs, folders for TensorBoard."""
        return await self._call(calls.links(job))

    async def requeue(
        self, job: JobLike, *, hold: bool = False, key: str | None = None
    ) -> Requeued:
        """Submit an ended job again, as a new job; `hold`: it waits for `release`."""
        return await self._call(calls.requeue(job, calls.new_key(key), hold=hold))

    async def exec(
        self, job: JobLike, command: Sequence[str], *, rank: int = 0, stdin: bytes = b""
    ) -> Executed:
        """Run a command in a running job beside a rank, and wait for its end.

        Args:
            job: The job.
            command: The program and its arguments.
            rank: The rank: the command has its account, folder, variables and GPUs.
            stdin: What the command reads.
        """
        return await self._execute(calls.job_name(job), command, rank, stdin)

    # --- what jobs bring and leave ---------------------------------------------------------------

    async def outputs(self, job: JobLike, *, attempt: int | None = None) -> OutputList:
        """Return the files that the latest attempt of a job, or another one, keeps as outputs."""
        return await self._call(calls.outputs(job, attempt))

    async def copy(
        self,
        job: JobLike,
        path: str,
        to: str | os.PathLike[str] = ".",
        *,
        attempt: int | None = None,
        node: str | None = None,
    ) -> Path:
        """Copy a file of a job here, verified by its SHA-256; return where it is.

        Args:
            job: The job.
            path: The file, relative to the job's folder.
            to: A file or a folder here.
            attempt: One attempt; None: the latest.
            node: The node that has it; None: the first one.
        """
        where = {"attempt": attempt, "node": node}
        found = [each async for each in self._stream(transfers.copied(job, path, to, where))]
        place: Path = found[0]
        return place

    async def code(self, vc: str) -> CodeList:
        """Return the snapshots of code that a virtual cluster has."""
        return await self._call(calls.code(vc))

    # --- changes of running jobs -----------------------------------------------------------------

    async def suspend(self, job: JobLike, *, release: bool = False) -> ChangeTaken:
        """Stop a job between two mini-batches; `release`: give its GPUs to others meanwhile."""
        return await self._call(calls.change(AskSuspend(job=calls.job_name(job), release=release)))

    async def resume(self, job: JobLike) -> ChangeTaken:
        """Have a suspended job go on."""
        return await self._call(calls.change(AskResume(job=calls.job_name(job))))

    async def checkpoint(self, job: JobLike) -> ChangeTaken:
        """Store a job's state, and go on."""
        return await self._call(calls.change(AskCheckpoint(job=calls.job_name(job))))

    async def migrate(self, job: JobLike, to: str = "") -> ChangeTaken:
        """Move a job to the nodes `to`, separated by commas, or to any others."""
        return await self._call(calls.change(AskMigrate(job=calls.job_name(job), to=to)))

    async def resize(
        self, job: JobLike, *, workers: int | None = None, servers: int | None = None
    ) -> ChangeTaken:
        """Have an elastic job run with other numbers of workers or parameter servers."""
        ask = AskResize(job=calls.job_name(job), workers=workers, servers=servers)
        return await self._call(calls.change(ask))

    async def pack(self, job: JobLike, beside: JobLike, *, share: float = 0.0) -> ChangeTaken:
        """Have a job run on the GPUs of another, with a `share` of their memory (0: even)."""
        ask = AskPack(job=calls.job_name(job), beside=calls.job_name(beside), share=share)
        return await self._call(calls.change(ask))

    async def unpack(self, job: JobLike) -> ChangeTaken:
        """Have a job leave the GPUs that it shares."""
        return await self._call(calls.change(AskUnpack(job=calls.job_name(job))))

    async def prioritise(self, job: JobLike, priority: int) -> ChangeTaken:
        """Have a job wait with another priority."""
        ask = AskPriority(job=calls.job_name(job), priority=priority)
        return await self._call(calls.change(ask))

    async def hold(self, job: JobLike) -> ChangeTaken:
        """Have a job that waits not start before `release`."""
        return await self._call(calls.change(AskHold(job=calls.job_name(job))))

    async def release(self, job: JobLike) -> ChangeTaken:
        """Let a job that is held start."""
        return await self._call(calls.change(AskRelease(job=calls.job_name(job))))

    async def retry(self, array: JobLike) -> ChangeTaken:
        """Begin the failed tasks of an array anew."""
        return await self._call(calls.change(AskRetry(job=calls.job_name(array))))

    async def wait_change(self, change: ChangeTaken, *, timeout_s: float | None = None) -> Asked:
        """Return a change once it is done.

        Args:
            change: What `suspend`, `resume`, ... returned.
            timeout_s: At most so long (seconds); None: for ever. Else it is a NotInTimeError.
        """
        return await self._run(steps.changed(change, timeout_s))

    # --- events and logs -------------------------------------------------------------------------

    async def events(
        self,
        *,
        job: JobLike | None = None,
        vc: str | None = None,
        since: int | None = None,
        limit: int | None = None,
    ) -> list[Event]:
        """Return stored events: the latest, or those after the event `since`."""
        name = None if job is None else calls.job_name(job)
        return (await self._call(calls.events(job=name, vc=vc, since=since, limit=limit))).events

    async def watch(
        self, *, job: JobLike | None = None, vc: str | None = None, since: int | None = None
    ) -> AsyncIterator[Event]:
        """Yield events as they happen, from now on or after the event `since`, for ever.

        After a lost connection it goes on where it stopped: no event is lost, none comes twice.
        """
        async for each in self._stream(steps.watched(job, vc, since, SILENT_S)):
            yield each

    async def logs(
        self,
        job: JobLike,
        *,
        rank: int = 0,
        attempt: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        since_s: int | None = None,
    ) -> AsyncIterator[str]:
        """Yield the lines of a rank's output.

        Args:
            job: The job.
            rank: The process of the gang.
            attempt: One attempt; None: the latest, and with `follow` those after it too.
            follow: Go on until the job has ended, also after a lost connection.
            tail: Only the last lines, so many; not with `follow`.
            since_s: Only what was written in the last seconds, so many; not with `follow`.
        """
        async for each in self._stream(
            steps.log_lines(job, rank, attempt, follow=follow, tail=tail, since_s=since_s)
        ):
            yield each

    # --- searches --------------------------------------------------------------------------------

    async def begin_search(
        self, spec: SearchSpec | Mapping[str, Any], *, key: str | None = None
    ) -> SearchBegun:
        """Begin a search; the same `key` begins the same search."""
        return await self._call(calls.begin_search(spec, calls.new_key(key)))

    async def searches(self, state: str = "all", *, vc: str | None = None) -> list[SearchRow]:
        """Return searches: `all`, `active` or `over` ones."""
        return (await self._call(calls.searches(state=state, vc=vc))).searches

    async def search(self, search: str) -> SearchDetail:
        """Return a search with all of its trials."""
        return await self._call(calls.search(search))

    async def wait_search(self, search: str, *, timeout_s: float | None = None) -> SearchDetail:
        """Return a search once it is over."""
        return await self._run(steps.search_over(search, timeout_s))

    async def cancel_search(self, search: str) -> SearchCancelled:
        """End a search and all of its trials."""
        return await self._call(calls.cancel_search(search))

    async def ask_trial(
        self,
        search: str,
        params: Mapping[str, Any] | None = None,
        *,
        outside: bool = False,
        key: str | None = None,
    ) -> TrialAsked:
        """Add a trial to a search whose sampler is a client; `outside`: it runs elsewhere."""
        return await self._call(
            calls.ask_trial(search, params, calls.new_key(key), outside=outside)
        )

    async def tell_trial(
        self,
        search: str,
        trial: int,
        *,
        step: int = 0,
        value: float | None = None,
        over: Literal["", "done", "failed"] = "",
    ) -> TrialTold:
        """Say how a trial goes that runs outside: the metric after so many steps, or its end."""
        told = {"step": step, "value": value, "over": over}
        return await self._call(calls.tell_trial(search, trial, told))

    async def demote_trial(self, search: str, trial: int) -> TrialTold:
        """Put a trial behind all others of its search."""
        return await self._call(calls.rank_trial(search, trial, "demote"))

    async def promote_trial(self, search: str, trial: int) -> TrialTold:
        """Put a trial among the others of its search again."""
        return await self._call(calls.rank_trial(search, trial, "promote"))

    # --- services --------------------------------------------------------------------------------

    async def serve(
        self, spec: ServiceSpec | Mapping[str, Any], *, key: str | None = None
    ) -> ServiceTaken:
        """Begin a service; the same `key` begins the same service."""
        return await self._run(transfers.served(spec, key, self._vc))

    async def services(self, state: str = "active", *, vc: str | None = None) -> list[ServiceRow]:
        """Return services without their replicas: `active`, `over` or `all` ones."""
        return (await self._call(calls.services(state=state, vc=vc))).services

    async def service(self, service: str) -> ServiceDetail:
        """Return a service with its replicas, by its id or as `VC.NAME`."""
        return await self._call(calls.service(service))

    async def wait_service(
        self,
        service: str,
        *,
        until: Literal["ready", "over"] = "ready",
        timeout_s: float | None = None,
    ) -> ServiceDetail:
        """Return a service once all replicas are ready and as its spec says, or it is over."""
        return await self._run(steps.service_reached(service, until, timeout_s))

    async def watch_service(self, service: str) -> AsyncIterator[ServiceDetail]:
        """Yield a service as it is, and as it is after every change, until it is over."""
        async for each in self._stream(steps.service_watched(service)):
            yield each

    async def update_service(
        self, service: str, spec: ServiceSpec | Mapping[str, Any]
    ) -> ServiceTaken:
        """Have a service be as a spec says, one replica after another."""
        return await self._run(transfers.served(spec, None, self._vc, service))

    async def scale_service(self, service: str, replicas: int) -> ServiceTaken:
        """Have a service have so many replicas."""
        return await self._call(calls.scale_service(service, replicas))

    async def stop_service(self, service: str) -> ServiceTaken:
        """Drain all replicas of a service, and end it."""
        return await self._call(calls.stop_service(service))

    # --- the cluster -----------------------------------------------------------------------------

    async def nodes(self) -> list[NodeRow]:
        """Return the nodes."""
        return (await self._call(calls.nodes())).nodes

    async def gpus(self) -> list[GpuRow]:
        """Return the GPUs."""
        return (await self._call(calls.gpus())).gpus

    async def vcs(self) -> list[VcRow]:
        """Return the virtual clusters."""
        return (await self._call(calls.vcs())).vcs

    async def usage(self, vc: str) -> VcUsage:
        """Return a virtual cluster with its cells."""
        return await self._call(calls.usage(vc))

    async def usages(self) -> UsageList:
        """Return the virtual clusters with their cells."""
        return await self._call(calls.usages())

    async def fair(self, *, vc: str | None = None) -> Fair:
        """Return what people used of virtual clusters, and what they may have."""
        return await self._call(calls.fair(vc=vc))

    async def volumes(self, *, vc: str | None = None) -> Volumes:
        """Return the volumes that the caller may use, or those of one virtual cluster."""
        return await self._call(calls.volumes(vc=vc))

    async def windows(self) -> Windows:
        """Return the windows in which nodes are kept free."""
        return await self._call(calls.windows())

    async def caches(self) -> CacheList:
        """Return the environments of jobs that the nodes keep."""
        return await self._call(calls.caches())

    async def remove_cache(self, node: str, key: str) -> CacheRemoved:
        """Have a node remove an environment that no job runs in."""
        return await self._call(calls.remove_cache(node, key))

    async def notices(self, *, vc: str | None = None) -> NoticeList:
        """Return the targets that jobs may notify, and the latest messages."""
        return await self._call(calls.notices(vc=vc))

    async def test_notice(self, target: str, vc: str) -> NoticeTested:
        """Send a test to a target, as jobs of a virtual cluster may use it."""
        return await self._call(calls.test_notice(target, vc))

    async def blames(self, *, vc: str | None = None) -> BlameList:
        """Return where the time of all jobs of virtual clusters went."""
        return await self._call(calls.blames(vc=vc))

    async def promises(
        self, *, vc: str | None = None, outcome: str | None = None, limit: int | None = None
    ) -> PromiseList:
        """Return the deadlines of jobs; `outcome`: those that came to this."""
        return await self._call(calls.promises(vc=vc, outcome=outcome, limit=limit))

    async def trials(
        self, *, vc: str | None = None, job: JobLike | None = None, limit: int | None = None
    ) -> Trials:
        """Return what was tried of running jobs, or of one job."""
        return await self._call(
            calls.trials(vc=vc, job=None if job is None else calls.job_name(job), limit=limit)
        )

    async def calibration(self, *, vc: str | None = None, family: str | None = None) -> Calibration:
        """Return how often estimates held."""
        return await self._call(calls.calibration(vc=vc, family=family))

    async def models(self, model: str | None = None, *, vc: str | None = None) -> ModelList:
        """Return what was measured of all models, or of one."""
        return await self._call(calls.models(model, vc=vc))

    async def limits(self) -> Near:
        """Return which limits are near."""
        return await self._call(calls.limits())

    async def report(self, by: str | None = None, *, vc: str | None = None) -> Report:
        """Return sums of GPU time and jobs; `by`: `vc`, `person`, `project`, `type`, `day`."""
        return await self._call(calls.report(by=by, vc=vc))

    async def state(self, *tables: str, vc: str | None = None) -> StateList:
        """Return tables of what there is, such as `jobs` and `gpus`; without a name: all."""
        return await self._call(calls.state(",".join(tables), vc=vc))

    async def history(self, hours: int = 24, *, vc: str | None = None) -> History:
        """Return the cluster over the last hours, a row for each five minutes."""
        return await self._call(calls.history(hours=hours, vc=vc))

    async def alerts(self, *, vc: str | None = None) -> list[Alert]:
        """Return what needs a look and what to do about it, the worst first."""
        return alerts_of(await self._call(calls.state("alerts", vc=vc)))

    async def replays(self) -> ReplayList:
        """Return the replays that the gateway keeps, for operators; the newest first."""
        return await self._call(calls.replays())

    async def replay(self, replay: str) -> ReplayDetail:
        """Return a replay, with its outcome once it is done."""
        return await self._call(calls.replay(replay))

    async def begin_replay(
        self, since: int, until: int, policies: Mapping[str, Mapping[str, Any]]
    ) -> ReplayRow:
        """Begin to simulate what a past span would have been under other policies.

        Args:
            since: When the span began (Unix ns).
            until: When it ended.
            policies: By virtual cluster the other policy: `{"name": "srtf"}`, with its `options`.
        """
        return await self._call(calls.begin_replay(since, until, policies))

    async def end_replay(self, replay: str) -> ReplayRow:
        """End a replay that runs."""
        return await self._call(calls.end_replay(replay))

    async def whoami(self) -> WhoAmI:
        """Return what the gateway takes the caller for."""
        return await self._call(calls.whoami())

    async def health(self) -> Health:
        """Return whether every process is well."""
        return await self._call(calls.health())

    async def get(self, path: str, **query: Any) -> Any:
        """Return any other answer of the API, such as `/v1/report`, as JSON's own types."""
        return await self._call(calls.anything(path, query))

    # --- doing it --------------------------------------------------------------------------------

    async def _call(self, call: Call[Result]) -> Result:
        tries = Tries(self._route, call.wait_s, self._route.patience_s)
        while True:
            try:
                status, body = await self._exchange(call)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                pause_s = tries.lost(error)
            else:
                if status < 300:
                    return decoded(call, body)
                pause_s = tries.refused(status, body)
            await asyncio.sleep(pause_s)

    async def _exchange(self, call: Call[Any]) -> tuple[int, bytes]:
        async with self._http.stream(
            call.method,
            self._route.url + call.path,
            content=call.body,
            headers=call.headers,
            timeout=self._route.timeout(call.wait_s),
        ) as answer:
            body = bytearray()
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    raise too_large()
            return answer.status_code, bytes(body)

    async def _run(self, procedure: Steps[Result]) -> Result:
        try:
            step = next(procedure)
            while True:
                step = procedure.send(await self._step(step))
        except StopIteration as end:
            result: Result = end.value
            return result

    async def _step(self, step: Call[Any] | Do) -> Any:
        if isinstance(step, Do):
            return await asyncio.to_thread(step.work)
        return await self._call(step)

    async def _execute(self, job: str, command: Sequence[str], rank: int, stdin: bytes) -> Executed:
        target, patience_s = self._target, self._route.patience_s
        return await asyncio.to_thread(
            sessions.execute, target, patience_s, job, command, rank, stdin
        )

    async def _stream(self, procedure: Stream) -> AsyncGenerator[Any, None]:
        said: Any = None
        pieces: AsyncIterator[bytes] = _nothing()
        async with AsyncExitStack() as last:
            last.callback(procedure.close)
            opened = await last.enter_async_context(AsyncExitStack())
            while True:
                try:
                    step = procedure.send(said)
                except StopIteration:
                    return
                said = None
                match step:
                    case Call() | Do():
                        said = await self._step(step)
                    case Open():
                        await opened.aclose()
                        pieces = await self._open(step, opened)
                    case Next():
                        said = await _next(pieces)
                    case Pause():
                        await opened.aclose()
                        await asyncio.sleep(RETRY_AFTER_S)
                    case Out():
                        yield step.value

    async def _open(self, step: Open, opened: AsyncExitStack) -> AsyncIterator[bytes]:
        route = self._route
        tries = Tries(route, step.silent_s, max(route.patience_s, PATIENCE_READING_S))
        while True:
            try:
                answer = await opened.enter_async_context(
                    self._http.stream(
                        "GET", route.url + step.path, timeout=route.timeout(step.silent_s)
                    )
                )
                if answer.status_code < 300:
                    return answer.aiter_raw()
                status, body = answer.status_code, await answer.aread()
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                pause_s = tries.lost(error)
            else:
                pause_s = tries.refused(status, body)
            await opened.aclose()
            await asyncio.sleep(pause_s)


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    """Return what comes next; nothing at the end, None where the connection was lost."""
    try:
        return await anext(pieces, b"")
    except httpx.HTTPError:
        return None


async def _nothing() -> AsyncIterator[bytes]:
    """Yield nothing more than the end."""
    yield b""
