"""Which attempts hold which GPUs, as the allocator's log has it: a model without cells.

Several hold one only by decisions that name them to one another (I16).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skep.sim.violation import Key, require
from skep.wire.packs import GpusShared


class Gpus:
    """Which attempts are on every GPU."""

    def __init__(self) -> None:
        """Begin with no attempt on any GPU."""
        self.held: dict[Key, dict[Key, None]] = {}
        """By GPU: the attempts on it."""
        self.decisions: dict[Key, GpusShared] = {}
        """By attempt: the decision by which it is on GPUs that others held."""
        self.made: dict[Key, GpusShared] = {}
        """All decisions: a machine that was given up hears of them late, and carries them out."""

    def decide(self, fact: GpusShared) -> None:
        """Take over a decision: all attempts on those GPUs are named in it, and run there.

        Raises:
            ViolationError: It names no other attempt, or its shares are no parts of a memory.
        """
        name = fact.job, fact.attempt
        require(bool(fact.beside) and name not in fact.beside, "I16", f"{fact} names nobody")
        require(0.0 <= fact.share < 1.0 and 0.0 < fact.told <= 1.0, "I16", f"{fact}")
        self.decisions[name] = self.made[name] = fact

    def take(self, gpus: Sequence[Key], attempt: Key, text: str) -> None:
        """Have an attempt hold GPUs that are free, or on which its decision names all attempts.

        Args:
            gpus: The GPUs: identity of the machine, and device.
            attempt: The attempt: job and number.
            text: What is said if that must not be, before the GPU.

        Raises:
            ViolationError: Another attempt holds one of them.
        """
        for gpu in gpus:
            there = self.held.setdefault(gpu, {})
            fact = self.decisions.get(attempt)
            listed = fact is not None and gpu[1] in fact.devices and set(there) <= set(fact.beside)
            invariant = "I2" if fact is None else "I16"
            require(not there or listed, invariant, f"{text} {gpu} of {list(there)}")
            there[attempt] = None
            total = sum(self.said(each) for each in there)
            require(total <= 1.0 + 1e-9, "I16", f"{gpu}: shares of {total} were said")

    def said(self, attempt: Key) -> float:
        """Return the share that was asked for an attempt, 0.0 if none was.

        Returns:
            A part of each device's memory, 0 to 1.
        """
        fact = self.decisions.get(attempt)
        return fact.share if fact is not None else 0.0

    def drop(self, gpus: Iterable[Key], attempt: Key) -> None:
        """Take GPUs from an attempt; those that share them with it keep them.

        Args:
            gpus: The GPUs: identity of the machine, and device.
            attempt: The attempt: job and number.

        Raises:
            ViolationError: It does not hold one of them.
        """
        for gpu in gpus:
            there = self.held.get(gpu, {})
            require(attempt in there, "I2", f"{gpu} was not {attempt[0]}'s but {list(there)}")
            del there[attempt]
            if not there:
                del self.held[gpu]
        if not any(attempt in there for there in self.held.values()):
            self.decisions.pop(attempt, None)

    def has(self, identity: str, devices: Iterable[int], attempt: Key) -> bool:
        """Return whether an attempt holds these GPUs of a machine."""
        return all(attempt in self.held.get((identity, device), {}) for device in devices)

    def together(self, one: Key, other: Key, *, once: bool = False) -> bool:
        """Return whether a decision names two attempts together.

        Args:
            one: An attempt.
            other: Another one.
            once: Whether earlier decisions count too.
        """
        known = self.made if once else self.decisions
        return any(
            name in fact.beside
            for name, fact in ((other, known.get(one)), (one, known.get(other)))
            if fact is not None
        )

    def partners(self, attempt: Key) -> list[Key]:
        """Return the attempts that hold some GPU together with one, or with such a one."""
        found, left = {attempt: None}, [attempt]
        while left:
            name = left.pop()
            for there in self.held.values():
                for each in there if name in there else ():
                    if each not in found:
                        found[each] = None
                        left.append(each)
        del found[attempt]
        return list(found)
