"""How a gang whose state is split goes over to another size: every rank takes its new part.

at the step    each rank offers what it has (`peers`), and keeps it
formed         the models are split for the new gang, without content; each rank fills its
               part from what it had and from the others' offers
done           what was is dropped
failed         the old gang is formed again, and each rank fills its part from what it had
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from skep_job.elastic.parts import Clock
from skep_job.shards.fill import Holder, fill, rewrite
from skep_job.shards.model import SplitModel
from skep_job.shards.peers import Offer, Own, Peer
from skep_job.shards.pieces import NotThere, as_split
from skep_job.shards.templates import GRADIENTS, why_not_anew
from skep_job.state import snapshot
from skep_job.state.snapshot import Snapshot
from skep_job.state.state_tree import Tensors, decode

if TYPE_CHECKING:
    from skep_job.elastic.agreement import Plan, Round
    from skep_job.elastic.parts import Seat


Name = tuple[int, str]
"""A parameter: the number of its model, and its path in that."""


class Regroup:
    """This process's part in the changes of such a gang. For the training thread."""

    splits = True
    gathers = False

    def __init__(self, tracked: Callable[[], dict[str, Any]]) -> None:
        """`tracked` returns the tracked things by name."""
        self._tracked = tracked
        self.models: list[SplitModel] = []
        self._offer: Offer | None = None
        self._rank = 0
        """The rank in the gang that was, while something is offered."""
        self._names: dict[str, list[list[Name | None]]] = {}

    def offer(self, round_: Round, plan: Plan, rank: int, state: Snapshot) -> None:
        """Offer what this rank of the gang that was has, from here on.

        Args:
            round_: The change.
            plan: The change.
            rank: The rank in the gang that was.
            state: The state, which stays as it is until `close`.

        Raises:
            NotThere: Something of it cannot be split over other ranks.
        """
        self.close()
        why = why_not_anew(self._tracked(), self.models, state.plain)
        if why:
            raise NotThere(why)
        self._note_names()
        self._offer, self._rank = Offer(state), rank
        round_.offer(rank, json.dumps(self._offer.address((plan.host, plan.port))))

    def take(self, round_: Round, seat: Seat, clock: Clock) -> tuple[dict[str, Any] | None, int]:
        """Become a rank of the gang that is formed, all of its state included.

        Args:
            round_: The change.
            seat: The place in the new gang, whose process group is the default one.
            clock: It measures the parts.

        Returns:
            The place in the training for a newcomer, else None; and the bytes that came.

        Raises:
            NotThere: The state cannot be split over the new gang.
            Broken: A rank of the gang that was does not give its part.
            OSError: A rank of the gang that was cannot be reached.
        """
        self._note_names()
        with contextlib.ExitStack() as stack:
            offer, addresses = self._offer, round_.offers()
            own: Own | None = None
            if offer is not None:
                own = Own(offer.state)
                del addresses[self._rank]
            pool = stack.enter_context(ThreadPoolExecutor(max(len(addresses), 1), "skep-peer"))
            connecting = [pool.submit(Peer, address) for address in addresses]
            for each in connecting:
                stack.callback(_close, each)
            self._renew(seat, clock)  # The peers answer meanwhile.
            peers = [each.result() for each in connecting]
            clock.part("connect")
            plain, layout = (own.plain, own.layout) if own else (peers[0].plain, peers[0].layout)
            if own is None:
                self._check(plain, layout)
                clock.part("check")
            holders: list[Holder] = [own, *peers] if own is not None else [*peers]
            tensors = self._fill(plain, layout, holders, clock)
        moved = sum(each.moved for each in peers)
        if own is not None:
            return None, moved
        return snapshot.place_of(plain, tensors), moved

    def back(self, seat: Seat) -> None:
        """Become what this rank was in the gang that was, which is formed again."""
        assert self._offer is not None, "a newcomer has nothing to go back to"
        own, clock = Own(self._offer.state), Clock()
        self._renew(seat, clock)
        self._fill(own.plain, own.layout, [own], clock)
        self.close()

    def close(self) -> None:
        """Drop what was."""
        if self._offer is not None:
            self._offer.close()
            self._offer = None

    def undo(self) -> None:
        """Drop what was: what came is written over the next time."""
        self.close()

    def _renew(self, seat: Seat, clock: Clock) -> None:
        """Split the models for a gang, without content, and have the optimizers step them."""
        for model in self.models:
            model.renew(seat, clock)
        tracked = self._tracked()
        for name, groups in self._names.items():
            self._renew_optimizer(tracked[name], groups)

    def _check(self, plain: Any, layout: dict[str, Any]) -> None:
        """Check that what others have fits here.

        Raises:
            NotThere: It does not.
        """
        why = snapshot.why_unfit(self._tracked(), plain, layout)
        if why:
            raise NotThere(why)

    def _fill(
        self, plain: Any, layout: dict[str, Any], holders: Sequence[Holder], clock: Clock
    ) -> Tensors:
        """Fill what `_renew` has made, and return its tensors."""
        tracked = self._tracked()
        tensors = fill(tracked, plain, layout, holders, part=clock.part)
        here = rewrite(plain, tensors)
        for name, part in tracked.items():
            if not callable(getattr(part, "parameters", None)):
                snapshot.load_part(part, decode(here["tracked"][name], tensors))
        self._put_gradients(tracked, tensors)
        clock.part("load")
        return tensors

    def _note_names(self) -> None:
        """Note which parameters the optimizers step, while these are those of the models."""
        if self._names:
            return
        named: dict[int, Name] = {
            id(parameter): (number, path)
            for number, model in enumerate(self.models)
            for path, parameter in model.named_parameters()
        }
        self._names = {
            name: [[named.get(id(each)) for each in group["params"]] for group in part.param_groups]
            for name, part in self._tracked().items()
            if isinstance(getattr(part, "param_groups", None), list)
        }

    def _renew_optimizer(self, optimizer: Any, groups: list[list[Name | None]]) -> None:
        """Have an optimizer step the parameters that there are now; its state comes after that."""
        for group, names in zip(optimizer.param_groups, groups, strict=True):
            group["params"][:] = [  # In place: LBFGS, for one, holds the list.
                was if name is None else self.models[name[0]].get_parameter(name[1])
                for was, name in zip(group["params"], names, strict=True)
            ]
        optimizer.state.clear()

    def _put_gradients(self, tracked: dict[str, Any], tensors: Tensors) -> None:
        for name, part in tracked.items():
            if callable(getattr(part, "named_parameters", None)):
                for path, parameter in part.named_parameters():
                    gradient = tensors.get(f"{GRADIENTS}{name}.gradients.{path}.0")
                    if gradient is not None:
                        parameter.grad = as_split(parameter, gradient)


def _close(connecting: Future[Peer]) -> None:
    if connecting.exception() is None:
        connecting.result().close()
