"""The speed of a job with a known model, by all tables together: `Speeds` for simulations.

A speed is a product, and each factor comes from the first table that knows the model:

    type      its GPUs against those of its trace            rate on one / rate on the other
    workers   as many as it has now against its trace's      rate with these / rate with those
    locality  its nodes against as few as would hold it      rate there / rate on the fewest
    batch     its best batch size against its trace's        goodput with it / goodput with that
    packing   what partners on its GPUs leave                slowdowns of all added up
    network   what neighbours on its nodes' network leave    the same

If one table knows the first three, their product is exactly its rate there over its rate in the
trace. Measurements on the same type of GPU come before those on another type; then the order is
that of `Models.tables` (`ORDER`). A model is looked up by its own name first, then by what it is
trained as (`names.KIN`). Racks do not matter: no table was measured across them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from skep_lab.traces.job import TraceJob
from skep_lab.workloads.figures import Figures
from skep_lab.workloads.names import gpu_type, kin, normalised
from skep_lab.workloads.situation import Situation
from skep_lab.workloads.table import Limits, Place, Table, Work, fewest, together

ORDER = (
    "dl2",
    "pollux",
    "gavel",
    "chronus",
    "deepshare",
    "elasticflow",
    "salus",
    "figures",
    "synergy",
)
"""The most specific first: DL² has only jobs with servers, Pollux has every split."""

TURNS = 0.5
"""What an unknown partner leaves: half, as if the two took turns."""

KEPT_MAX = 200_000
"""Stored answers: 100 models in 2,000 situations each. Beyond that all are dropped at once."""


class Part(NamedTuple):
    """One factor of a speed, and the table that it is from (empty: unknown)."""

    what: str
    factor: float
    table: str


class Models:
    """`Speeds` of all tables."""

    def __init__(
        self,
        tables: Sequence[Table] = (),
        *,
        node_gpus: int = 8,
        types: Sequence[str] = (),
        papers: bool = True,
    ) -> None:
        """Order the tables.

        Args:
            tables: The tables of measurements.
            node_gpus: GPUs of a node, for "as few nodes as hold it".
            types: The cluster's types of GPU: a job without a type in its trace ran on the
                fastest of them. Without types all are equally fast for it.
            papers: Whether the numbers printed in papers are a table too.
        """
        asked = (*tables, Figures()) if papers else tables
        named = {table.name: table for table in asked}
        assert set(named) <= set(ORDER), sorted(named)
        self.tables = tuple(named[name] for name in ORDER if name in named)
        self.node_gpus = node_gpus
        self.types = tuple(map(gpu_type, types))
        self._models = {table.name: frozenset(table.models()) for table in self.tables}
        self._known = frozenset(
            model for name, models in self._models.items() if name != "salus" for model in models
        )
        self._kept: dict[tuple[object, ...], float] = {}

    def speed(self, job: TraceJob, where: Situation) -> float:
        key = (
            job.model,
            job.batch_size,
            job.batch_max,
            job.gpus,
            job.workers,
            job.servers,
            job.gpu_type,
            where,
        )
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            kept = 1.0
            for part in self.parts(job, where):
                kept *= part.factor
            self._kept[key] = kept
        return kept

    def mini_batch_s(self, job: TraceJob, where: Situation) -> float:
        speed = self.speed(job, where)
        if speed <= 0:
            return 0.0
        if job.mini_batches:
            return job.run_time / 1e9 / job.mini_batches / speed
        then = self._then(job)
        alone = self._first(job, then, lambda table, work, place: table.seconds(work, place))
        return alone[0] / speed if alone else 0.0

    def utilisation(self, job: TraceJob, where: Situation) -> float:
        there = self._there(where)
        found = self._first(job, there, lambda table, work, place: table.utilisation(work, place))
        if found is None:
            return 1.0
        shared = self._packing(job, there, where).factor * self._network(job, there, where).factor
        return min(found[0] * shared, 1.0)

    def memory(self, job: TraceJob) -> int:
        found = self._first(job, self._then(job), lambda table, work, _: table.memory(work))
        return int(found[0]) if found else 0

    def unknown(self, jobs: tuple[TraceJob, ...]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for job in jobs:
            if job.model and not self.knows(job.model):
                counts[job.model] = counts.get(job.model, 0) + 1
        return dict(sorted(counts.items()))

    def knows(self, model: str) -> bool:
        """Return whether some table says anything about this model's speed."""
        return any(name in self._known for name in kin(normalised(model).model))

    def limits(self, job: TraceJob) -> Limits | None:
        """Return how far a job can grow by the first table that knows its model; None: unknown."""
        for name in self._names(job):
            for table in self.tables:
                found = table.limits(self._work(job, name))
                if found is not None and name in self._models[table.name]:
                    return found
        return None

    def own_mini_batch_s(self, job: TraceJob) -> float:
        """Return the seconds of a mini-batch of a job where it ran in its trace; 0.0: unknown."""
        found = self._first(
            job, self._then(job), lambda table, work, place: table.seconds(work, place)
        )
        return found[0] if found else 0.0

    def sources(self) -> dict[str, tuple[str, ...]]:
        """Return by model (normalised, sorted) the tables that know it, in the order of use."""
        every = sorted({model for models in self._models.values() for model in models})
        return {model: self.sources_of(model) for model in every}

    def sources_of(self, model: str) -> tuple[str, ...]:
        """Return the tables that know a model, in the order of use.

        Args:
            model: Its name, in any spelling.
        """
        names = kin(normalised(model).model)
        return tuple(
            dict.fromkeys(
                table.name
                for name in names
                for table in self.tables
                if name in self._models[table.name]
            )
        )

    def parts(self, job: TraceJob, where: Situation) -> tuple[Part, ...]:
        """Return the factors of the speed that are not trivial; none for an unknown model.

        Args:
            job: The job.
            where: Where it runs.
        """
        if not job.model or not self.knows(job.model):
            return ()
        then, there = self._then(job), self._there(where)
        parts = []
        if there.gpu_type != then.gpu_type and (then.gpu_type or self.types):
            parts.append(self._type(job, then, there))
        if (there.gpus, there.servers) != (then.gpus, then.servers) or (
            there.servers and there.workers != then.workers
        ):
            parts.append(self._workers(job, then, there))
        if len(there.spread) > 1 and there.spread != self._fewest(there):
            parts.append(self._locality(job, there))
        if job.batch_max:
            parts.append(self._batch(job, there, where.stage))
        if where.partners:
            parts.append(self._packing(job, there, where))
        if where.neighbours:
            parts.append(self._network(job, there, where))
        return tuple(parts)

    def _type(self, job: TraceJob, then: Place, there: Place) -> Part:
        for name in self._names(job):
            for table in self.tables:
                kinds = {there.gpu_type, then.gpu_type} - {""}
                if not table.compares_types or not kinds <= set(table.gpu_types):
                    continue
                work = self._work(job, name)
                now = table.rate(work, then._replace(gpu_type=there.gpu_type))
                was = self._rate_then(table, work, then)
                if now is not None and was:
                    return Part("type", now / was, table.name)  # 0: its model does not fit there.
        return Part("type", 1.0, "")

    def _rate_then(self, table: Table, work: Work, then: Place) -> float | None:
        if then.gpu_type:
            return table.rate(work, then)
        kinds = [kind for kind in self.types if kind in table.gpu_types]
        rates = [table.rate(work, then._replace(gpu_type=kind)) for kind in kinds]
        return max((rate for rate in rates if rate), default=None)

    def _workers(self, job: TraceJob, then: Place, there: Place) -> Part:
        def gain(table: Table, work: Work, place: Place) -> float | None:
            now = table.rate(work, place)
            before = table.rate(work, then._replace(gpu_type=place.gpu_type))
            return now / before if now and before else None

        found = self._first(job, there._replace(spread=self._fewest(there)), gain)
        return Part("workers", *(found or (there.gpus / max(then.gpus, 1), "")))

    def _locality(self, job: TraceJob, there: Place) -> Part:
        least = self._fewest(there)
        found = self._first(
            job, there, lambda table, work, place: table.locality(work, place, least)
        )
        return Part("locality", *(found or (1.0, "")))

    def _batch(self, job: TraceJob, there: Place, stage: int) -> Part:
        found = self._first(
            job, there, lambda table, work, place: table.adapted(work, place, job.batch_max, stage)
        )
        return Part("batch", *(found or (1.0, "")))

    def _packing(self, job: TraceJob, there: Place, where: Situation) -> Part:
        left, tables = [], []
        for model in where.partners:

            def ask(table: Table, work: Work, place: Place, other: str = model) -> float | None:
                return table.packed(work, _partner(other), place)

            factor, table = self._first(job, there, ask) or (TURNS, "")
            left.append(factor)
            tables.append(table)
        return Part("packing", together(left), "+".join(dict.fromkeys(filter(None, tables))))

    def _network(self, job: TraceJob, there: Place, where: Situation) -> Part:
        left, tables = [], []
        for model in where.neighbours:

            def ask(table: Table, work: Work, place: Place, other: str = model) -> float | None:
                return table.beside(work, _partner(other), place)

            factor, table = self._first(job, there, ask) or (1.0, "")
            left.append(factor)
            tables.append(table)
        return Part("network", together(left), "+".join(dict.fromkeys(filter(None, tables))))

    def _first(
        self, job: TraceJob, place: Place, ask: Callable[[Table, Work, Place], float | None]
    ) -> tuple[float, str] | None:
        """Return the first answer and the name of its table: the same type of GPU comes first."""
        names = self._names(job)
        for own_type in (True, False):
            for name in names:
                for table in self.tables:
                    if name not in self._models[table.name] or (
                        own_type and place.gpu_type not in table.gpu_types
                    ):
                        continue
                    as_it_is = own_type or not table.gpu_types
                    asked = place if as_it_is else place._replace(gpu_type="")
                    answer = ask(table, self._work(job, name), asked)
                    if answer is not None:
                        return answer, table.name
        return None

    def _names(self, job: TraceJob) -> tuple[str, ...]:
        return kin(normalised(job.model).model)

    def _work(self, job: TraceJob, name: str) -> Work:
        batch = normalised(job.model).batch  # Gavel's names have the batch size of one worker.
        return Work(name, batch or job.batch_size, max(job.gpus, 1), each=batch > 0)

    def _then(self, job: TraceJob) -> Place:
        gpus = max(job.gpus, 1)
        return Place(
            gpu_type(job.gpu_type), fewest(gpus, self.node_gpus), job.workers or gpus, job.servers
        )

    def _there(self, where: Situation) -> Place:
        return Place(gpu_type(where.gpu_type), where.spread or (1,), where.workers, where.servers)

    def _fewest(self, place: Place) -> tuple[int, ...]:
        return fewest(place.gpus, max(self.node_gpus, place.spread[0]))


def _partner(text: str) -> Work:
    name = normalised(text)
    return Work(kin(name.model)[-1], name.batch, each=True)
