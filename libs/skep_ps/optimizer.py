"""The optimizer front: SGD whose parameters and momentum live on servers."""

from __future__ import annotations

import atexit
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer

from skep_ps.assign import Chunk, Segment, chunk_elements
from skep_ps.errors import ParameterServerError
from skep_ps.placement import Placement, Spec
from skep_ps.store import DTYPES, view
from skep_ps.wire import Message, Settings, settings
from skep_ps.worker import Exchange, Pause, Worker

Piece = tuple[int, int, int]
"""Bytes `begin` to `end` of the parameter with that number."""

HYPERS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")


class SGD(Optimizer):
    """Stochastic gradient descent on parameter servers; used like `torch.optim.SGD`.

    Making one joins the job: it waits until all workers and servers are there. The first worker's
    parameters become everybody's. `step()` sends the gradients to the servers, waits for the other
    workers (not with `asynchronous=True`), and has the new parameters in place when it returns.
    Learning-rate schedulers change `param_groups` as usual; all workers must use the same ones.

    With `average` the gradient is the mean over the workers, so that the global mini-batch is
    `world` times a worker's own, and changes with the number of workers; `lr` is left alone. With
    `average=False` the gradients are summed: give each worker's loss as its sum over
    `global batch / world` samples, divided by the global batch, and the global mini-batch stays.
    `rank` and `world` say which share is this worker's; they change inside `step()` only.
    Asynchronous gradients are neither summed nor averaged: each is a step of its own. There
    `state_dict()` and `load_state_dict()` may change them, too.

    A parameter without a gradient counts as one with a zero gradient. Types are float32 and
    float64; parameters may be on any device, those on the CPU are sent without a copy.

    `state_dict()` fetches the momentum and is in the form of `torch.optim.SGD`. Call
    `load_state_dict()` on every worker, after the model has loaded its own.

    Args:
        params: As `torch.optim.SGD` takes them, like all that is not named here.
        momentum: It must not be 0 at first if it is to be changed later.
        asynchronous: Whether each push is an update of its own.
        average: Whether gradients are averaged; else they are summed.
        where: Where the coordinator is, and what lets us in; None: the environment says it.
        rank: The id that this worker wishes for; None: RANK, or any.

    Raises:
        ValueError: A number is negative, or `nesterov` does not go with the others.
        ParameterServerError: The job cannot go on.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        asynchronous: bool = False,
        average: bool = True,
        where: Settings | None = None,
        rank: int | None = None,
    ) -> None:
        if lr < 0 or momentum < 0 or weight_decay < 0:
            reason = "lr, momentum and weight_decay must not be negative"
            raise ValueError(reason)
        if nesterov and (momentum <= 0 or dampening != 0):
            reason = "nesterov needs a momentum and no dampening"
            raise ValueError(reason)
        self._link: Worker | None = None
        super().__init__(
            params,
            dict(
                zip(
                    HYPERS, (lr, momentum, dampening, weight_decay, nesterov, maximize), strict=True
                )
            ),
        )
        self._flat = [
            (number, parameter)
            for number, group in enumerate(self.param_groups)
            for parameter in group["params"]
        ]
        self._parameters: list[Tensor] = [parameter for _, parameter in self._flat]
        self._staged: dict[tuple[str, int], Tensor] = {}
        self._spec, self._members = self._describe(asynchronous=asynchronous, average=average)
        self._chunks = self._spec.chunks()
        self._layouts: dict[int, dict[int, list[list[Piece]]]] = {}
        own_rank = os.environ.get("RANK", "")
        if rank is None and own_rank.isdecimal():
            rank = int(own_rank)
        self._link = Worker(where or settings(dict(os.environ)), self._spec, rank)
        self._link.lay_out = self._lay_out
        _open.append(self)
        self._puts = 0
        self._publish(state=False, updates=0)

    @property
    def rank(self) -> int:
        """Return this worker's place among the workers, from 0."""
        return self._worker.rank

    @property
    def world(self) -> int:
        """Return how many workers there are at this version."""
        return self._worker.world

    @property
    def servers(self) -> tuple[int, ...]:
        """Return the ids of the servers that keep the parameters at this version."""
        return tuple(self._worker.placement.servers)

    @property
    def version(self) -> int:
        """Return how many updates the parameters have had since the servers began."""
        return self._worker.version

    @property
    def left(self) -> bool:
        """Return whether this worker was taken out of the job: its loop should end."""
        return self._worker.left

    @property
    def pauses(self) -> list[Pause]:
        """Return how long each change of the job held this worker."""
        return self._worker.pauses

    def leave(self) -> None:
        """Ask to be taken out; go on until `left`."""
        self._worker.leave()

    def close(self) -> None:
        """Be done with the job. At the end of the process this happens by itself."""
        if self._link is not None:
            self._link.close()
            if self in _open:
                _open.remove(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group while the optimizer is made; the servers have a fixed set afterwards.

        Raises:
            ParameterServerError: The optimizer is made already.
        """
        if self._link is not None:
            reason = "parameters cannot be added once the servers have them"
            raise ParameterServerError(reason)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Send the gradients, receive the parameters; return the closure's loss.

        Args:
            closure: Called first, to compute the gradients; None: they are there.

        Raises:
            ParameterServerError: This worker has left, or the job cannot go on.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        link = self._worker
        if link.left:
            reason = "this worker has left the job"
            raise ParameterServerError(reason)
        if self._spec.asynchronous:
            link.boundary([])
        began = time.monotonic_ns()
        gradients = [self._gradient(number) for number in range(len(self._parameters))]
        values = [self._memory(number) for number in range(len(self._parameters))]
        gradient_views, value_views = [view(t) for t in gradients], [view(t) for t in values]
        header = {
            "type": "push",
            "worker": link.id,
            "generation": link.placement.generation,
            "version": link.version,
            "seq": link.sequence(),
            "hypers": self._hypers(),
        }
        answers = link.exchange(
            {
                server: Exchange(header, _cut(gradient_views, pieces), _cut(value_views, pieces))
                for server, pieces in self._layout().items()
            }
        )
        self._arrived(values)
        versions = [answer["version"] for answer in answers.values()]
        link.version = max(versions)
        if not self._spec.asynchronous:
            assert min(versions) == link.version, f"servers at versions {versions}"
        link.step_ns = time.monotonic_ns() - began
        link.boundary([answer["hold"] for answer in answers.values()])
        link.roster()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return what `torch.optim.SGD` would, the momentum fetched from the servers."""
        if self._spec.momentum and not self._worker.left:
            momenta = [
                torch.zeros_like(p, memory_format=torch.contiguous_format, device="cpu")
                for p in self._parameters
            ]
            while self._overtaken(self._pull(self._puts, momenta)):
                pass
            for parameter, momentum in zip(self._parameters, momenta, strict=True):
                self.state[parameter]["momentum_buffer"] = momentum
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state, and the parameters as they are in the model at this moment."""
        super().load_state_dict(state_dict)
        found = any(self.state[p].get("momentum_buffer") is not None for p in self._parameters)
        self._publish(state=self._spec.momentum, updates=int(found))

    # --- values -----------------------------------------------------------------------------------

    def _publish(self, *, state: bool, updates: int) -> None:
        """Make the first worker's values everybody's. Every worker must call it.

        A newcomer puts nothing: it finds the values of the others, unless all of them have ended
        before the first of them had put any.
        """
        link, wanted = self._worker, self._puts + 1
        puts = not link.is_newcomer or wanted > 1

        def ask() -> dict[int, Message]:
            if puts and not link.rank:
                return self._put(wanted, state=state, updates=updates)
            return self._pull(wanted)

        while overtaken := self._overtaken(answers := ask()):
            puts = puts or any(answer["puts"] < wanted for answer in overtaken)
        newcomer = link.is_newcomer and wanted == 1  # The others may have put more than once.
        self._puts = max([wanted, *(a["puts"] for a in answers.values())]) if newcomer else wanted

    def _overtaken(self, answers: dict[int, Message]) -> list[Message]:
        """Return the answers to a request that a change has overtaken, and take that change."""
        link = self._worker
        overtaken = [answer for answer in answers.values() if answer["type"] == "again"]
        for answer in overtaken:
            if not link.left:
                link.catch_up(answer["generation"], answer["workers"])
        return [] if link.left else overtaken

    def _put(self, puts: int, *, state: bool, updates: int) -> dict[int, Message]:
        link = self._worker
        values = [self._memory(number, fill=True) for number in range(len(self._parameters))]
        sides = [values]
        if state:
            sides.append([self._momentum(parameter) for parameter in self._parameters])
        header = {
            "type": "put",
            "worker": link.id,
            "generation": link.placement.generation,
            "puts": puts,
            "updates": updates,
            "state": state,
        }
        views = [[view(tensor) for tensor in side] for side in sides]
        answers = link.exchange(
            {
                server: Exchange(header, _interleave(views, pieces))
                for server, pieces in self._layout().items()
            }
        )
        link.version = max(answer["version"] for answer in answers.values())
        return answers

    def _pull(self, puts: int, momenta: list[Tensor] | None = None) -> dict[int, Message]:
        link = self._worker
        values = [self._memory(number) for number in range(len(self._parameters))]
        sides = [values] if momenta is None else [values, momenta]
        views = [[view(tensor) for tensor in side] for side in sides]
        header = {
            "type": "pull",
            "worker": link.id,
            "puts": puts,
            "state": momenta is not None,
            "generation": link.placement.generation,
        }
        answers = link.exchange(
            {
                server: Exchange(header, (), _interleave(views, pieces))
                for server, pieces in self._layout().items()
            }
        )
        self._arrived(values)
        link.version = max(answer["version"] for answer in answers.values())
        return answers

    def _arrived(self, values: list[Tensor]) -> None:
        for parameter, memory in zip(self._parameters, values, strict=True):
            if memory.data_ptr() != parameter.data_ptr():
                parameter.data.copy_(memory)
        increment_version(self._parameters)

    # --- memory -----------------------------------------------------------------------------------

    def _gradient(self, number: int) -> Tensor:
        """Return memory on the CPU with the gradient of a parameter.

        Args:
            number: The place of the parameter among all.

        Raises:
            ParameterServerError: The gradient is sparse.
        """
        parameter = self._parameters[number]
        gradient: Tensor | None = parameter.grad
        if gradient is None:
            return self._stage("zero", number)
        if gradient.is_sparse:
            reason = "sparse gradients are not supported by parameter servers"
            raise ParameterServerError(reason)
        if _is_plain(gradient):
            return gradient
        return self._stage("gradient", number).copy_(gradient)

    def _memory(self, number: int, *, fill: bool = False) -> Tensor:
        """Return memory on the CPU for a parameter's values: its own, if that is possible."""
        data: Tensor = self._parameters[number].data
        if _is_plain(data):
            return data
        stage = self._stage("values", number)
        return stage.copy_(data) if fill else stage

    def _momentum(self, parameter: Tensor) -> Tensor:
        momentum = self.state[parameter].get("momentum_buffer")
        if momentum is None:
            return torch.zeros(parameter.shape, dtype=parameter.dtype)
        kept: Tensor = momentum
        return kept.to(device="cpu", dtype=parameter.dtype).contiguous()

    def _stage(self, use: str, number: int) -> Tensor:
        if (use, number) not in self._staged:
            parameter = self._parameters[number]
            pinned = parameter.device.type == "cuda"
            self._staged[use, number] = torch.zeros(
                parameter.shape, dtype=parameter.dtype, pin_memory=pinned
            )
        return self._staged[use, number]

    # --- layout -----------------------------------------------------------------------------------

    @property
    def _worker(self) -> Worker:
        assert self._link is not None
        return self._link

    def _hypers(self) -> list[list[float]]:
        momentum = self._spec.momentum
        if not momentum and any(group["momentum"] for group in self.param_groups):
            reason = "momentum must not be 0 at first if it is to be changed later"
            raise ParameterServerError(reason)
        return [[float(group.get(name, 0.0)) for name in HYPERS] for group in self.param_groups]

    def _describe(self, *, asynchronous: bool, average: bool) -> tuple[Spec, list[list[int]]]:
        """Return what the servers need to know, and the parameters of each segment.

        Raises:
            ParameterServerError: A parameter has a type that servers do not keep.
        """
        members: dict[tuple[int, str], list[int]] = {}
        for number, (group, parameter) in enumerate(self._flat):
            name = str(parameter.dtype).removeprefix("torch.")
            if name not in DTYPES:
                reason = f"a parameter of type {name}: parameter servers keep {', '.join(DTYPES)}"
                raise ParameterServerError(reason)
            members.setdefault((group, name), []).append(number)
        segments = tuple(
            Segment(group, name, sum(self._parameters[number].numel() for number in numbers))
            for (group, name), numbers in members.items()
        )
        shapes = [(group, str(p.dtype), list(p.shape)) for group, p in self._flat]
        spec = Spec(
            segments=segments,
            elements=chunk_elements(sum(segment.elements for segment in segments)),
            momentum=any(group["momentum"] for group in self.param_groups),
            asynchronous=asynchronous,
            average=average,
            digest=hashlib.sha256(repr(shapes).encode()).hexdigest(),
        )
        return spec, list(members.values())

    def _layout(self) -> dict[int, list[list[Piece]]]:
        """Return, for each server, the pieces of each of its chunks."""
        placement = self._worker.placement
        known = self._layouts.get(placement.generation)
        self._layouts = {
            generation: layout
            for generation, layout in self._layouts.copy().items()
            if generation >= placement.generation
        }
        return known or self._lay_out(placement)

    def _lay_out(self, placement: Placement) -> dict[int, list[list[Piece]]]:
        layout = {
            server: [self._pieces(self._chunks[chunk]) for chunk in placement.of_server(server)]
            for server in placement.servers
        }
        self._layouts[placement.generation] = layout
        return layout

    def _pieces(self, chunk: Chunk) -> list[Piece]:
        pieces, at = [], 0
        for number in self._members[chunk.segment]:
            parameter = self._parameters[number]
            count, size = parameter.numel(), parameter.element_size()
            begin, end = max(chunk.begin - at, 0), min(chunk.end - at, count)
            if begin < end:
                pieces.append((number, begin * size, end * size))
            at += count
        return pieces


_open: list[SGD] = []


def joined() -> list[SGD]:
    """Return this process's optimizers on parameter servers that it has not closed."""
    return list(_open)


def close_all() -> None:
    """Be done with every job that this process has joined."""
    for optimizer in joined():
        optimizer.close()


atexit.register(close_all)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _cut(views: list[memoryview], chunks: list[list[Piece]]) -> list[memoryview]:
    return [views[number][begin:end] for pieces in chunks for number, begin, end in pieces]


def _interleave(sides: list[list[memoryview]], chunks: list[list[Piece]]) -> list[memoryview]:
    """Return each chunk's pieces of every side: values, then momentum."""
    return [
        views[number][begin:end]
        for pieces in chunks
        for views in sides
        for number, begin, end in pieces
    ]
