"""The gateway put together: follow, fold, listen, answer."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

import skep
from skep.units import KIB, NS_PER_SECOND
from skep.wire import codec, subjects
from skep_services.adapters.nats_access import GATEWAY
from skep_services.collection import short_pauses
from skep_services.gateway import policies
from skep_services.gateway.api import Tokens, middleware
from skep_services.gateway.blame import Blames
from skep_services.gateway.caches import Caches
from skep_services.gateway.cluster import Cluster
from skep_services.gateway.cluster_file import ClusterFiles
from skep_services.gateway.code import Code
from skep_services.gateway.code_store import CodeStore
from skep_services.gateway.estimates import Calibrations, Estimates, OutcomeCounts
from skep_services.gateway.feed import Feed
from skep_services.gateway.front import Front
from skep_services.gateway.health import Health
from skep_services.gateway.hub import Hub
from skep_services.gateway.index import STREAMS, Indexer
from skep_services.gateway.jobs import Jobs
from skep_services.gateway.limits import Limits
from skep_services.gateway.links import Links
from skep_services.gateway.logs import Logs
from skep_services.gateway.metrics import Metrics
from skep_services.gateway.model import Model
from skep_services.gateway.models import Models, ModelsView
from skep_services.gateway.notices import Notices
from skep_services.gateway.openapi import OpenApi
from skep_services.gateway.outputs import Outputs
from skep_services.gateway.peopled import NO_PEOPLE, Peopled, PeopleSettings, people_settings
from skep_services.gateway.promises import PromiseCounts, Promises
from skep_services.gateway.rates import Rates
from skep_services.gateway.replays import Replays
from skep_services.gateway.report import Reports
from skep_services.gateway.searches import Gauges, Searches, SearchesView
from skep_services.gateway.secrets import SecretViews
from skep_services.gateway.services import Services
from skep_services.gateway.site import Site
from skep_services.gateway.state import StateViews
from skep_services.gateway.streams import Streams
from skep_services.gateway.submit import Submitter
from skep_services.gateway.templates import Templates
from skep_services.gateway.terminals import Terminals
from skep_services.gateway.trials import Trials
from skep_services.gateway.volumes import Volumes
from skep_services.gateway.watch import Watch
from skep_services.gateway.what_if import Drafts
from skep_services.links import Followed, ForeignSeen
from skep_services.pki.files import host_port
from skep_services.ports import Bus, Clock, CorruptLogError, Deliver, Delivery, Subscription
from skep_services.service import ConfigurationError, Settings, listen_at, server_context
from skep_services.tracing import Tracer

log = structlog.get_logger(service="gateway")

MODEL_FILE = "read-model.sqlite"
LISTEN_DEFAULT = "127.0.0.1:8470"
BODY_BYTES_MAX = 512 * KIB
"""A cluster's virtual clusters; specs are bounded more tightly."""
SHUTDOWN_S = 0.5
"""What requests under way get when the gateway is asked to stop; a followed log never ends."""
QUIET_S = 30.0
"""How long a connection may be without a whole head of a request. A stranger opens connections at
no cost, and a process has as many as it may open files; aiohttp's own bound is an hour."""
BACKLOG = 512

CORE = (subjects.FINDINGS, subjects.HEARTBEATS, subjects.ADVICE_QUEUE, subjects.ADVICE_OUTLOOK)


class Gateway:
    """One gateway. `open` it, let `serve` run, `close` it."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        tracer: Tracer,
        tokens: Tokens,
        path: Path,
        identity: str,
        *,
        people: PeopleSettings = NO_PEOPLE,
    ) -> None:
        self._bus, self._clock, self._tracer = bus, clock, tracer
        self._path, self._identity = path, identity
        self._subscriptions: list[Subscription] = []
        self._runner: web.AppRunner | None = None
        self._tokens, self._people = tokens, people
        self.indexer, self.hub, self.watch = self._reading()
        self.searches = SearchesView(self.watch, self.indexer.intake)
        self.models = ModelsView(self.indexer.intake)
        self.people = self._peopled()
        self._foreign = ForeignSeen(log.error)
        self.secrets = SecretViews(bus, clock)
        self.code_store = CodeStore(bus, clock, self._named)
        self.code = Code(bus, self.code_store, lambda: self.indexer.fold.state, identity)
        self._collecting: asyncio.Task[None] | None = None
        self._feed: Feed | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._fronting: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Follow, listen and serve HTTP.

        Args:
            host: The address to listen at.
            port: The port; 0: any that is free.
            tls: Its certificate; None: what it serves is not encrypted.

        Returns:
            The port.

        Raises:
            MissingStreamError: A stream does not exist.
            ConnectionError: The address is taken. A process that is just ending may still have it,
                so trying again can help.
        """
        try:
            await self._follow()
        except CorruptLogError as error:
            # The bus was set back behind what this view has seen: the view is what gives way.
            await self._forget(str(error))
            await self._follow()
        await self._follow_stream(subjects.SECRETS, 0, 0, self.secrets.deliver)
        await self._open_code()
        for subject in CORE:
            await self._listen(subject, self.indexer.deliver_core)
        await self._listen(subjects.SPANS, self.indexer.deliver_spans)
        await self._listen(subjects.health(self._identity), self._health)
        if self._identity != GATEWAY:
            # That one of several gateways works is what is asked there.
            await self._listen(subjects.health(GATEWAY), self._health)
        self._runner = web.AppRunner(
            await self._application(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_S,
            keepalive_timeout=QUIET_S,
            auto_decompress=False,  # A replica gets the body as it was sent.
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=BACKLOG, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            text = (
                f"SKEP_LISTEN: cannot listen on {host_port(host, port)}: {error.strerror or error}"
            )
            raise ConnectionError(text) from error
        address: tuple[str, int] = self._runner.addresses[0]
        return address[1]

    async def serve(self) -> None:
        """Write what is folded until cancelled.

        Raises:
            sqlite3.Error: The disk fails.
        """
        with short_pauses():  # Else 100,000 jobs are a pause of some 400 ms.
            await self.indexer.run()

    async def close(self) -> None:
        """Stop answering, stop following, write what is left."""
        self.hub.close()
        if self._feed is not None and self._feeding is not None:
            self._feed.close()
            self._feeding.cancel()
            await asyncio.wait((self._feeding,), timeout=SHUTDOWN_S)
        for task in (self._collecting, self._fronting):
            if task is not None:
                task.cancel()
        await self.code.close()
        if self._runner is not None:
            await self._runner.cleanup()
        for subscription in self._subscriptions:
            await subscription.close()
        await self.people.close()
        await self.indexer.close()

    # --- reading -------------------------------------------------------------------------------

    def _reading(self) -> tuple[Indexer, Hub, Watch]:
        model = Model(self._path)
        if model.rebuilt:
            log.warning("read model rebuilt", why=model.rebuilt)
        hub, watch = Hub(model.start.saved.event_seq), Watch()
        return Indexer(model, self._clock, watch, hub, self._tracer), hub, watch

    async def _follow(self) -> None:
        """Follow what the view is made of; return once the ledger's state has what the rows have.

        Raises CorruptLogError if the bus was set back.
        """
        indexer = self.indexer
        for stream in STREAMS:
            after = indexer.positions[stream]
            begin = indexer.state_at if stream == subjects.ALLOC else after
            await self._follow_stream(stream, begin, after, indexer.deliver)
        await self._follow_stream(subjects.SEARCH, 0, 0, self.searches.deliver)
        await self._follow_stream(subjects.PROFILES, 0, 0, self.models.deliver)
        if self.people.view is not None:
            await self._follow_stream(subjects.ACCESS, 0, 0, self.people.view.deliver)
            await self.people.caught_up()
        await indexer.caught_up.wait()

    async def _follow_stream(self, stream: str, after: int, known: int, take: Deliver) -> None:
        """Deliver what is behind `after`; of a fact stream only what its owner wrote.

        Raises CorruptLogError if the stream ends before `known`.
        """
        if stream not in subjects.FACT_STREAMS:
            self._subscriptions.append(await self._bus.follow(stream, after, take))
            return
        followed = Followed(stream, after, self._foreign)

        async def deliver(delivery: Delivery) -> None:
            if followed.takes(delivery.payload, delivery.sequence):
                await take(delivery)

        begin = followed.begin
        self._subscriptions.append(await self._bus.follow(stream, begin, deliver, (), known))

    async def _open_code(self) -> None:
        """Follow which snapshots of code there are, and hand nodes theirs."""
        taken = (subjects.SNAPSHOTS,)
        following = await self._bus.follow(subjects.CODE, 0, self.code_store.deliver, taken)
        self._subscriptions.append(following)
        for gateway in dict.fromkeys((self._identity, subjects.ANY_GATEWAY)):
            await self._listen(subjects.code("*", gateway), self.code.answer)
        self._collecting = asyncio.create_task(self.code_store.collect_for_ever())

    def _named(self, vc: str) -> set[str]:
        """Return the snapshots that unfinished jobs, arrays and searches of a VC name."""
        fold = self.indexer.fold
        jobs, arrays = fold.state.jobs.values(), fold.arrays.values()
        named = {digest for job in jobs if job.spec.vc == vc for digest in job.spec.snapshots}
        named |= {digest for one in arrays if one.row.vc == vc for digest in one.snapshots}
        return named | self.searches.code_of(vc)

    async def _forget(self, why: str) -> None:
        """Begin the view anew."""
        log.warning("read model rebuilt", why=why)
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions = []
        await self.indexer.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self.indexer, self.hub, self.watch = self._reading()
        self.searches = SearchesView(self.watch, self.indexer.intake)
        self.models = ModelsView(self.indexer.intake)
        await self.people.close()
        self.people = self._peopled()

    def _peopled(self) -> Peopled:
        return Peopled(
            self._people, self._tokens, self._bus, self._clock, self.watch, self.indexer.intake
        )

    async def _listen(self, subject: str, take: Callable[[Delivery], Awaitable[None]]) -> None:
        self._subscriptions.append(await self._bus.listen(subject, take))

    async def _health(self, asked: Delivery) -> None:
        if not asked.reply:
            return
        health = {
            "service": "gateway",
            "identity": self._identity,
            "pid": os.getpid(),
            "epoch": 0,
            "positions": self.indexer.positions,
            "facts": self.indexer.fold.facts,
            "inbox": self.indexer.waiting,
            "lag_s": self.indexer.lag_ns / NS_PER_SECOND,
            "passed_over": self.indexer.passed_over,
            "passed_latest": self.indexer.passed_latest,
            "foreign": self._foreign.count,
            "foreign_latest": self._foreign.latest,
            "version": skep.__version__,
        }
        await self._bus.send(asked.reply, codec.encode(health), {})

    # --- answering -----------------------------------------------------------------------------

    async def _application(self) -> web.Application:
        indexer, watch, clock = self.indexer, self.watch, self._clock
        metrics = Metrics()
        metrics.watch(indexer, self.hub, clock, self.people.is_removed)
        submitter = Submitter(self._bus, indexer, watch, clock, self._tracer, self.people.note)
        await submitter.listen()
        submitter.check_code = self.code.check
        notices = Notices(self._bus)
        submitter.check_notices = notices.check
        estimates = Estimates(indexer, self.models.calibration, clock)
        drafts = Drafts(self._bus, indexer, clock, estimates)
        jobs = Jobs(indexer, watch, submitter, metrics, clock, drafts)
        limits = Limits(time.monotonic, self._bus)
        logs = Logs(self._bus, indexer.fold, watch)
        streams = Streams(indexer, self.hub, jobs, logs, limits)
        terminals = Terminals(self._bus, self._identity, jobs, limits, self.people.note)
        removed = self.people.is_removed
        health = Health(self._bus, indexer, clock, removed, self.people.services)
        cluster = Cluster(
            indexer, submitter, health, metrics, clock, self.models.stages, removed=removed
        )
        searches = Searches(self.searches, watch, submitter, clock)
        front = Front(self.searches, lambda: indexer.fold.state, self._bus, clock, self._identity)
        self._fronting = asyncio.create_task(front.run())
        metrics.add(Gauges(self.searches))
        self._feed = feed = Feed(
            indexer, self.searches, limits, estimates, clock, path=self._path, silent=health.silent
        )
        self._feeding = asyncio.create_task(feed.run())
        application = web.Application(
            middlewares=[
                middleware(self.people.authentication, metrics, limits.request, self.people.refused)
            ],
            client_max_size=BODY_BYTES_MAX,
        )
        application.on_shutdown.append(terminals.close)
        replays = Replays(indexer, watch, clock)
        application.on_shutdown.append(replays.close)
        trials, blames = Trials(indexer, clock, self.models.stages), Blames(indexer, jobs, clock)
        metrics.add(PromiseCounts(indexer.fold))
        metrics.add(OutcomeCounts(self.models.calibration))
        application.add_routes(
            [
                *jobs.routes(),
                *streams.routes(),
                *terminals.routes(),
                *cluster.routes(),
                *searches.routes(),
                *Services(self.searches, watch, submitter, front).routes(),
                *Models(self.models).routes(),
                *Calibrations(indexer, self.models.calibration).routes(),
                *trials.routes(),
                *blames.routes(),
                *Reports(indexer, clock).routes(),
                *ClusterFiles(indexer).routes(),
                *Promises(indexer).routes(),
                *policies.routes(),
                *replays.routes(),
                *limits.routes(),
                *StateViews(feed, limits, indexer.fold, clock).routes(),
                *self.people.routes(),
                *self.secrets.routes(),
                *self.code.routes(),
                *notices.routes(),
                *Outputs(self._bus, jobs).routes(),
                *Caches(self._bus, indexer.fold).routes(),
                *Volumes(indexer).routes(),
                *Templates(indexer, submitter).routes(),
                *Links(indexer, jobs, logs).routes(),
                *Rates(indexer, jobs).routes(),
                *OpenApi().routes(),
                *Site().routes(),
            ]
        )
        return application


def listen_address(chosen: Settings) -> tuple[str, int]:
    """Return host and port of SKEP_LISTEN.

    Raises:
        ConfigurationError: SKEP_LISTEN is not HOST:PORT.
    """
    return listen_at(chosen.environment.get("SKEP_LISTEN", ""), LISTEN_DEFAULT)


def tokens_of(chosen: Settings) -> Tokens:
    """Return the tokens of the file SKEP_TOKENS.

    Raises:
        ConfigurationError: SKEP_TOKENS is not set, or its file does not hold tokens.
    """
    path = chosen.environment.get("SKEP_TOKENS", "")
    if not path:
        message = 'SKEP_TOKENS is not set: it must name a JSON file {"<token>": "operator"}'
        raise ConfigurationError(message)
    return Tokens.read(Path(path))


async def run_gateway(chosen: Settings, log: Any, bus: Bus, clock: Clock, tracer: Tracer) -> None:
    """Serve until cancelled.

    Args:
        chosen: The settings.
        log: The service's logger (structlog's).
        bus: The connection to the bus; it stays open at the end.
        tracer: Takes the gateway's spans.

    Raises:
        ConfigurationError: SKEP_LISTEN, SKEP_TOKENS or what is set of people is wrong.
        ConnectionError: The address is taken.
        MissingStreamError: A stream does not exist.
        sqlite3.Error: The read model cannot be written.
    """
    host, port = listen_address(chosen)
    tls = server_context(chosen, host, log.warning)
    path = chosen.state / MODEL_FILE
    people = people_settings(chosen.environment)
    tokens = tokens_of(chosen)
    gateway = Gateway(bus, clock, tracer, tokens, path, chosen.identity, people=people)
    try:
        bound = await gateway.open(host, port, tls)
        log.info(
            "ready",
            listen=host_port(host, bound),
            tls=tls is not None,
            pid=os.getpid(),
            facts=gateway.indexer.fold.facts,
        )
        await gateway.serve()
    except sqlite3.Error as error:
        log.error("the read model cannot be written", path=str(path), error=str(error))
        raise
    finally:
        await gateway.close()
