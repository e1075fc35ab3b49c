"""A data-parallel gang that changes its size while it trains: no survivor restarts.

    training --rescale: its step is reached--> gathering --commit--> forming --done--> training
        ^                                          |                    |
        |<------- refused: the old gang goes on ---'                    |
        |<------- a member failed: the old gang, formed again ----------'

The agent starts newcomers (SKEP_AWAITS), which build everything, have their memory ready and wait;
then it sends every member `rescale` with a step that none has reached; members on several nodes,
of which no agent knows how far the others are, agree on the step in the store, once all of them
are there (`prepare`). What follows is agreed upon there too (`agreement`): the store belongs to no
rank. At the step, old members that stay bring the state to the newcomers (`state_copy`) while the
old process group is still as it was. Once all have it, all members leave the old group, form the
next and go on with the next mini-batch. A process that leaves ends with status 0, and quickly
(`ending`): other jobs wait for its GPU.

What happens when something fails (PATIENCE_S bounds every wait of a process that trains):

    a newcomer dies before it has the state      the old gang goes on, at the old size
    a newcomer dies while the group is formed    the old gang is formed again, at the old size
    an old member dies                           no change; then the next all-reduce fails, the
                                                 ranks exit and the gang restarts from its
                                                 checkpoint, as for any member that dies
    the store is lost before the commit          the old gang goes on, at the old size; members
                                                 that would gather their state together, and are
                                                 at the step: GangLost, since others may gather
    a member cannot give its state               the old gang goes on, at the old size
    the store is lost after it                   GangLost: the ranks exit, the gang restarts
    a step that a member has passed, members     refused: the old gang goes on
      that disagree, a size that is not allowed
    a second rescale before the first's step     the first is refused, the second is done
    a newcomer of an earlier rescale             finds that one decided and waits to be told of
                                                 another, or to be stopped
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping

from skep_job.elastic import process_group
from skep_job.elastic.agreement import COMMIT, DONE, Plan, Round, StoreLost, folder, read_plan
from skep_job.elastic.library_group import NEWCOMER
from skep_job.elastic.parts import (
    Clock,
    Message,
    Orders,
    Pause,
    Regrouping,
    Rules,
    Seat,
    State,
    Wrapped,
)
from skep_job.elastic.prepare import Preparing
from skep_job.elastic.state_copy import CopyFailed, Door, bring
from skep_job.link.orders import describe
from skep_job.process import ending
from skep_job.state import snapshot

APPROACH_S = 600.0
"""How long a newcomer waits for the others to reach the step: the margin, in mini-batches."""
GIVE_S = 600.0
"""How long a member waits for others to have their state at hand: a library writes it."""
COPY_BYTES_PER_S_MIN = 50e6
"""Half of what a network of 1 Gbit/s brings; slower ones are not for gangs."""


class Left(SystemExit):
    """Ends a process that has no place in the gang any more, with status 0."""

    def __init__(self) -> None:
        super().__init__(0)


class GangLost(RuntimeError):  # noqa: N818  a name for what happened
    """Neither the new group nor the old one could be formed: restart from the last checkpoint."""


class Gang:
    """This process's membership. Public methods are for the training thread."""

    def __init__(self, rules: Rules, counted: Callable[[], int], state: State) -> None:
        """`counted` returns the mini-batches as the agent counts them, on any thread."""
        self.rules = rules
        self.seat = Seat(0, 0, 1)
        self.is_member = True
        self.is_first = False
        """Whether this process began as a member of the first gang."""
        self.pauses: list[Pause] = []
        self.due = False
        """Whether something waits for a boundary: all that has to be looked at there."""
        self.step_ns: Callable[[], int] = lambda: 0
        """Returns how long a mini-batch takes, on any thread; 0 if that is not known."""
        self._orders: Orders | None = None
        self._counted = counted
        self._state = state
        self._models: list[Wrapped] = []
        self.regroup: Regrouping | None = None
        """How the parts of the state go over to another gang; None: every rank has all of it."""
        self.tells_later = False
        """Whether what was changed is told by `tell`, once the training goes on, and not before."""
        self._untold: Callable[[], None] | None = None
        self._folder: Callable[[int], str] = lambda generation: folder("", 0, generation)
        self._taken: tuple[dict[str, object] | None, int] = (None, 0)
        self._preparing: Preparing | None = None
        self._plan_due: Plan | None = None
        self._arriving: Plan | None = None
        """The change whose step is reached, until this member has said in the store that it is."""
        self._overtaken: Plan | None = None
        """The change that a later order withdrew on the way there."""

    # --- joining ------------------------------------------------------------------------------

    def open(
        self, environ: Mapping[str, str], orders: Orders | None, *, forms: bool = True
    ) -> None:
        """Form the gang of generation 0, or stay outside as a newcomer (SKEP_AWAITS).

        Successors of a whole gang, which moves, form a gang of its size.

        Args:
            environ: RANK and WORLD_SIZE say which place; SKEP_STORE (host:port) is the gang's
                store. Without it the first group is formed as `torchrun`'s ranks do it.
            orders: What the agent asks for; None: there is no agent.
            forms: Whether the first group is formed here, and not by a library.

        Raises:
            ValueError: The rules do not allow a gang of this size, or SKEP_STORE is no address.
            RuntimeError: The others do not come.
        """
        self._orders = orders
        job, attempt = environ.get("SKEP_JOB", ""), int(environ.get("SKEP_GEN") or 0)
        self._folder = lambda generation: folder(job, attempt, generation)
        rank, world = int(environ.get("RANK") or 0), int(environ.get("WORLD_SIZE") or 1)
        if self._orders is not None:
            self._orders.at_once("rescale", self._announced)
            self._orders.on("rescale", self._reached)
            self._orders.withdrawn = self._withdrawn
        if environ.get("SKEP_AWAITS", "").startswith(NEWCOMER):
            self.is_member = False
            return
        plan = Plan(0, 0, world, rank, "", 0, 0)
        objection = self.rules.objection(plan)
        if objection:
            raise ValueError(objection)
        self.seat, self.is_first = Seat(0, rank, world), True
        if world > 1 and forms:
            store, prefix = environ.get("SKEP_STORE", ""), self._folder(0)
            process_group.open_first(self.rules.backend, store, prefix, rank, world)

    def adopt(self, model: Wrapped) -> None:
        """Have `model` let go of every old group and take up every new one."""
        self._models.append(model)
        if self.is_member:
            model.rebuild(self.seat, first=True)

    def follow(self, model: Wrapped) -> None:
        """The same for what has taken up the group of this moment, if there is one, already."""
        self._models.append(model)

    def settle(self) -> None:
        """Return once this process is a member: a newcomer waits here for a place and the state.

        What goes wrong before it is a member is told to the agent, and it waits for another place.

        Raises:
            StoreLost: The store was lost when it was a member already.
            CopyFailed: The state could not be taken when it was a member already.
            ValueError: The place in the training did not fit when it was a member already.
            RuntimeError: A model could not take up the new group.
        """
        if self.is_member:
            return
        assert self._orders is not None, "a newcomer is started by an agent"
        splits = self.regroup is not None and self.regroup.splits
        process_group.warm_up(self.rules.backend, split=splits)
        if self.regroup is None:
            self._state.warm_up()
        with self._orders.standing(), contextlib.closing(Door(self._state.tracked)) as door:
            self._orders.say("ready", port=door.port)
            while not self.is_member:
                message = self._orders.wait("rescale")
                try:
                    self._come_in(read_plan(message), door)
                except (StoreLost, CopyFailed, ValueError, RuntimeError) as error:
                    if self.is_member:
                        raise
                    self._release()
                    if self.regroup is not None:
                        self.regroup.undo()
                    self._fail(message, error)

    # --- at each boundary ---------------------------------------------------------------------

    def boundary(self) -> bool:
        """Do what is due between two mini-batches.

        Returns:
            Whether the process group is another one.

        Raises:
            Left: The process has no place in the gang any more.
            GangLost: Neither the new group nor the old one could be formed.
        """
        preparing = self._preparing
        if preparing is not None and not preparing.said:
            preparing.say(self.seat.rank, self._layout)
        counted = self._counted()
        if preparing is not None and preparing.plan.agrees and self._plan_due is None:
            self._look_for_the_step(preparing, counted)
        plan = self._plan_due
        if plan is None or plan.step > counted:
            self._look_for_a_missed_step(counted)
            return False
        if not self.is_whole():
            return False  # On every rank alike: it is done at the first boundary where they are.
        self._plan_due, self.due = None, False
        if self._has_place(plan):
            return False
        try:
            return self._change(plan)
        except StoreLost as error:
            self._drop_offer()
            # Whoever saw a commit has left the old group, so the next all-reduce tells the others.
            self._fail_plan(plan, f"the store was lost: {error}")
            return False

    def look(self) -> None:
        """See what is due where nothing can be done: it is done at the next boundary."""
        preparing = self._preparing
        if preparing is not None and not preparing.said:
            preparing.say(self.seat.rank, self._layout)
        if preparing is not None and preparing.plan.agrees and self._plan_due is None:
            self._look_for_the_step(preparing, self._counted())

    def tell(self) -> None:
        """Tell the agent what was changed, if it was to be told later: the training goes on."""
        untold, self._untold = self._untold, None
        if untold is not None:
            untold()

    def is_whole(self) -> bool:
        """Return whether every rank has the same gradients, so that one can speak for all."""
        return not any(getattr(model, "unsynced", False) for model in self._models)

    def close(self) -> None:
        """Leave the group at the end of the script."""
        if self._preparing is not None:
            self._preparing.end()
        for model in self._models:
            model.release()
        process_group.destroy()

    # --- on the reporter's thread -----------------------------------------------------------

    def _announced(self, message: Message) -> object:
        """Look at a `rescale` as it arrives; what has to be done is then done at boundaries."""
        plan = read_plan(message)
        if not self.is_member:
            return False  # The one who waits for it takes it.
        if self._has_place(plan):
            return True
        objection = self.rules.objection(plan)
        if not objection and plan.generation <= self.seat.generation:
            objection = f"generation {plan.generation} is not above {self.seat.generation}"
        earlier = self._preparing
        if earlier is not None and earlier.plan.generation != plan.generation:
            earlier.refuse(f"generation {plan.generation} was ordered in its place")
        preparing = Preparing(plan, self._folder(plan.generation), self.rules.patience_s)
        if objection:
            preparing.refuse(objection)
            self._fail_plan(plan, objection)
            return True
        self._preparing, self.due = preparing, True
        if plan.agrees:
            preparing.agree(self.seat.rank, self.seat.world, self._counted, self.step_ns())
            return True
        # Only now: a boundary in between has either seen `due` or counted before this.
        if 0 < plan.step <= self._counted():
            self._refuse_as_passed(preparing)
        else:
            preparing.connect()
        return False  # Control keeps it for its step, or answers `past`.

    def _has_place(self, plan: Plan) -> bool:
        """Say again that the change is made, to an agent that came back and did not hear it."""
        if self.seat != Seat(plan.generation, plan.rank, plan.world):
            return False
        self._say(
            "rescaled",
            order=plan.order,
            generation=plan.generation,
            step=self._counted(),
            pause_ns=0,
        )
        return True

    def _refuse_as_passed(self, preparing: Preparing) -> None:
        self._preparing = None
        preparing.refuse(f"rank {self.seat.rank} has passed step {preparing.plan.step}")

    def _withdrawn(self) -> None:
        """Vote against a change that waits for its step, as a later order has come.

        Of one that waits for its store no member knows yet that this one is there: it stays away.
        """
        self._overtaken = self._arriving
        preparing = self._preparing
        if preparing is not None and preparing.plan.agrees:
            preparing.refuse("it was withdrawn")

    # --- a member's part ------------------------------------------------------------------------

    def _look_for_a_missed_step(self, counted: int) -> None:
        """Refuse a change whose step went by while it arrived; otherwise see what is still due."""
        preparing, plan = self._preparing, self._plan_due
        if preparing is not None and plan is None and 0 < preparing.plan.step <= counted:
            self._refuse_as_passed(preparing)  # Control has answered `past`.
            preparing = None
        self.due = plan is not None or (preparing is not None)

    def _look_for_the_step(self, preparing: Preparing, counted: int) -> None:
        """See whether the step that is agreed on in the store is known, reached or passed."""
        if preparing.failed:
            self._preparing = None
            self._fail_plan(preparing.plan, preparing.failed)
        elif 0 < preparing.step < counted:
            self._refuse_as_passed(preparing)
            self._fail_plan(preparing.plan, f"rank {self.seat.rank} had passed the step")
        elif preparing.step == counted > 0:
            self._plan_due = preparing.plan

    def _reached(self, message: Message) -> None:
        """Note that the step is done. The change itself waits for the loop to ask for more data."""
        self._plan_due = read_plan(message)
        self.due = True

    def _change(self, plan: Plan) -> bool:
        clock = Clock()
        self._arriving = plan
        try:
            round_ = self._round(plan)
        finally:
            self._arriving = None
        if self._overtaken is plan:
            # A store that came back too late: the others go on, and would wait for this member.
            self._fail_plan(plan, "it was withdrawn before this member was connected")
            return False
        if self.regroup is None or not self.regroup.gathers:
            verdict, sent = self._decide(round_, plan, clock)
        else:
            verdict, sent = self._decide_and_gather(round_, plan, clock), 0
        if verdict != COMMIT:
            self._drop_offer()
            self._fail_plan(plan, verdict)
            return False
        before = self.seat
        outcome = self._form(round_, plan, clock)
        if outcome != DONE:
            self._form_again(round_, before, outcome)
            self._fail_plan(plan, outcome)
            return True  # The same size, but a new group.
        self._drop_offer()
        if plan.leaves:
            self._tell(plan, clock, before, sent)
            ending.leave()
            raise Left
        self._take_seat(plan, first=False)
        clock.part("rebuild")
        self._tell(plan, clock, before, sent if self.regroup is None else self._taken[1])
        return True

    def _decide(self, round_: Round, plan: Plan, clock: Clock) -> tuple[str, int]:
        """Return the verdict, and the bytes that were sent to newcomers before it."""
        if self.regroup is not None:
            round_.match("torch", _torch_version())
            why = self._offer(round_, plan)
            if why:
                return round_.refuse(why), 0
            clock.part("offer")
        doors = round_.arrive(self.seat.rank, self.seat.world)
        clock.part("gather")
        sent = self._bring(round_, doors) if self.regroup is None else 0
        clock.part("copy")
        verdict = round_.verdict(self.rules.patience_s + self._copying_s(plan))
        clock.part("verdict")
        return verdict, sent

    def _decide_and_gather(self, round_: Round, plan: Plan, clock: Clock) -> str:
        """Return the verdict where the state is gathered by all: only once all are known to.

        A member that stays away must not train on while others gather: it would meet them in
        collectives that are not the same.

        Raises:
            StoreLost: The store was lost before any member could gather.
            GangLost: It was lost after that: the others may gather, or not.
        """
        round_.match("torch", _torch_version())
        try:
            round_.arrive(self.seat.rank, self.seat.world)
            clock.part("gather")
            verdict = round_.verdict()
            clock.part("verdict")
            if verdict == COMMIT:
                verdict = round_.give(self._offer(round_, plan), self.seat.world, GIVE_S)
                clock.part("offer")
        except StoreLost as error:
            reason = f"the store was lost at the step of a change: {error}"
            raise GangLost(reason) from error
        return verdict

    def _offer(self, round_: Round, plan: Plan) -> str:
        """Have this member's state at hand for the others; return why it is not, or nothing."""
        assert self.regroup is not None
        try:
            self.regroup.offer(round_, plan, self.seat.rank, self._snapshot())
        except Exception as error:  # Of a library that writes: the training goes on.
            return f"rank {self.seat.rank} cannot give its state: {describe(error)}"
        return ""

    def _snapshot(self) -> snapshot.Snapshot:
        return snapshot.take(self._state.tracked, self._state.place())

    def _layout(self) -> str:
        if self.regroup is not None:
            return "{}"  # A newcomer takes its part once the gang is formed.
        return json.dumps(snapshot.layout_of(self._snapshot().tensors))

    def _copying_s(self, plan: Plan) -> float:
        """Return how long newcomers may take to get the state, one after the other at worst.

        It is brought before the verdict only where it is not split.
        """
        if self.regroup is not None:
            return 0.0
        newcomers = max(plan.world - 1, 0)
        return newcomers * self._snapshot().bytes / COPY_BYTES_PER_S_MIN

    def _round(self, plan: Plan) -> Round:
        preparing = self._preparing
        self._preparing = None
        if preparing is not None and preparing.plan == plan:
            return preparing.result(self.seat.rank, self._layout)
        return Round(plan, self._folder(plan.generation), self.rules.patience_s)

    def _bring(self, round_: Round, doors: dict[int, dict[str, object]]) -> int:
        """Bring the state to the newcomers at `doors`; refuse the change if one is lost."""
        if not doors:
            return 0
        state = self._snapshot()
        sent = 0
        for rank, door in doors.items():
            try:
                sent += bring(state, door)
            except CopyFailed as error:
                round_.refuse(f"rank {rank} did not get the state: {error}")
                break
        return sent

    def _form(self, round_: Round, plan: Plan, clock: Clock) -> str:
        """Leave the old group and form the new one; return the outcome.

        Raises:
            GangLost: The store is lost: others may have gone on, or back.
        """
        try:
            self._release()
            clock.part("destroy")
            if not plan.leaves:
                why = self._try_form(round_, "new", plan.rank, plan.world, self.rules.patience_s)
                clock.part("init")
                why = why or self._take_part(round_, plan, clock)
                if why:
                    return round_.withdraw(why)
                round_.enter()
            outcome = round_.outcome()
            clock.part("outcome")
        except StoreLost as error:
            if plan.leaves:
                return DONE  # Whether the others go on or restart, this process is not needed.
            reason = f"the store was lost while the gang was formed: {error}"
            raise GangLost(reason) from error
        return outcome

    def _form_again(self, round_: Round, before: Seat, why: str) -> None:
        """Form the old gang anew. Its members come here up to one patience apart.

        Args:
            round_: The change that has failed.
            before: The place in the old gang.
            why: The reason of the failure, for the message.

        Raises:
            GangLost: The old gang could not be formed again.
        """
        self._release()
        wait_s = 2 * self.rules.patience_s + 1
        if before.world > 1:
            failed = self._try_form(round_, "back", before.rank, before.world, wait_s)
            if failed:
                reason = f"{why}; then the old gang could not be formed again: {failed}"
                raise GangLost(reason)
        self.seat = before
        if self.regroup is not None:
            self.regroup.back(before)
        for model in self._models:
            model.rebuild(self.seat, first=False)

    def _take_part(self, round_: Round, plan: Plan, clock: Clock) -> str:
        """Take this rank's part of the state; return why it has none, or nothing.

        Raises:
            StoreLost: The store is gone or does not answer.
        """
        if self.regroup is None:
            return ""
        seat = Seat(plan.generation, plan.rank, plan.world)
        try:
            self._taken = self.regroup.take(round_, seat, clock)
        except StoreLost:
            raise
        except Exception as error:  # Of the script's `split`, of torch, of a peer: all undo it.
            return f"rank {plan.rank} did not get its part of the state: {describe(error)}"
        return ""

    def _drop_offer(self) -> None:
        if self.regroup is not None:
            self.regroup.close()

    def _try_form(self, round_: Round, name: str, rank: int, world: int, wait_s: float) -> str:
        """Form a group whose members meet under `name`; return why there is none, or nothing."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        if world == 1:
            return ""
        try:
            process_group.form(
                self.rules.backend, PrefixStore(name, round_.store), rank, world, wait_s
            )
        except RuntimeError as error:
            text = str(error).split("\n", 1)[0]
            return f"rank {rank} could not form the group: {type(error).__name__}: {text}"
        return ""

    def _release(self) -> None:
        """Let go of the group: a model that still held it would keep it alive and leak it."""
        for model in self._models:
            model.release()
        process_group.destroy()

    def _take_seat(self, plan: Plan, *, first: bool) -> None:
        self.seat = Seat(plan.generation, plan.rank, plan.world)
        self.is_member = True
        for model in self._models:
            model.rebuild(self.seat, first=first)

    # --- a newcomer's part -------------------------------------------------------------------

    def _come_in(self, plan: Plan, door: Door) -> None:
        """Take the place that `plan` names. What is raised keeps this process out.

        Args:
            plan: The change.
            door: Where the state comes in.

        Raises:
            ValueError: The rules do not allow such a gang, or the plan has the newcomer leave.
            CopyFailed: The place is another's, the state does not arrive, or the change is refused
                or undone.
            StoreLost: The store is gone or does not answer.
        """
        objection = self.rules.objection(plan) or ("a newcomer cannot leave" * plan.leaves)
        if objection:
            raise ValueError(objection)
        before = Seat(-1, -1, 0)
        round_ = Round(plan, self._folder(plan.generation), self.rules.patience_s)
        address = door.address((plan.host, plan.port))
        if not round_.knock(address):
            reason = f"rank {plan.rank} is another's, or the change was refused"
            raise CopyFailed(reason)
        taken: tuple[dict[str, object] | None, int] = (None, 0)
        if self.regroup is None:
            taken = self._take_all(round_, plan, door)
            clock = Clock()
            round_.join()
            verdict = round_.verdict(self.rules.patience_s + self._copying_s(plan))
        else:
            round_.match("torch", _torch_version())
            round_.join()
            verdict = round_.verdict(APPROACH_S)
            clock = Clock()
        clock.part("verdict")
        _refused(verdict)
        if self.regroup is not None and self.regroup.gathers:
            _refused(round_.given(GIVE_S))
            clock.part("offer")
        outcome = self._form(round_, plan, clock)
        if outcome != DONE:
            raise CopyFailed(outcome)
        place, got = taken if self.regroup is None else self._taken
        assert place is not None, "a newcomer had no state"
        self._take_seat(plan, first=False)
        self._state.go_to(place)
        clock.part("rebuild")
        self._tell(plan, clock, before, got)

    def _take_all(self, round_: Round, plan: Plan, door: Door) -> tuple[dict[str, object], int]:
        """Return the place in the training and the bytes of the state, which is loaded.

        Raises:
            CopyFailed: The state does not arrive, or the change is refused.
            StoreLost: The store is gone or does not answer.
        """
        layout = round_.layout(APPROACH_S)
        if layout:
            door.prepare(json.loads(layout))
        try:
            return door.take(APPROACH_S, lambda: bool(round_.refused()))
        except CopyFailed as error:
            _refused(round_.refuse(f"rank {plan.rank} did not get the state: {error}"))
            raise

    # --- groups and words ---------------------------------------------------------------------

    def _tell(self, plan: Plan, clock: Clock, before: Seat, moved: int) -> None:
        seat = self.seat

        def tell() -> None:
            pause = Pause(before, seat, self._counted(), clock.total(), clock.parts, moved)
            self.pauses.append(pause)
            self._say(
                "rescaled",
                order=plan.order,
                generation=plan.generation,
                step=pause.step,
                pause_ns=pause.total_ns,
            )

        if self.tells_later and not plan.leaves:
            self._untold = tell
        else:
            tell()

    def _fail_plan(self, plan: Plan, error: object) -> None:
        self._say("failed", order=plan.order, what="rescale", error=str(error))

    def _fail(self, message: Message, error: object) -> None:
        self._say("failed", order=message["order"], what="rescale", error=str(error))

    def _say(self, kind: str, **fields: object) -> None:
        if self._orders is not None:
            self._orders.say(kind, **fields)


def _torch_version() -> str:
    import torch

    return torch.__version__.partition("+")[0]


def _refused(verdict: str) -> None:
    if verdict != COMMIT:
        raise CopyFailed(verdict)
