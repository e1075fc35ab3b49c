"""What a job whose loop a library has comes to if its number of workers is changed meanwhile.

Its losses are compared with those of a run of one size: sums are added in another order, and
nothing else is different. So they agree within `BOUND`, and every step has exactly one loss.
"""

from __future__ import annotations

BOUND = 1e-4
"""By how much a loss may differ, of itself: float32 has 6e-8, which a hundred steps add up."""


def losses(text: str) -> dict[int, float]:
    """Return the losses that a script printed, by step.

    Args:
        text: Its log, with lines such as `loss 7 0x1.8p+1`.

    Raises:
        ValueError: A step has two losses that are not the same.
    """
    found: dict[int, float] = {}
    for line in text.splitlines():
        if not line.startswith("loss "):
            continue
        _, number, value = line.split()
        step, loss = int(number), float.fromhex(value)
        if found.setdefault(step, loss) != loss:
            reason = f"step {step} was made twice, with other losses: {found[step]} and {loss}"
            raise ValueError(reason)
    return found


def difference(one: dict[int, float], other: dict[int, float]) -> float:
    """Return the largest difference of two losses of the same step, of the first one's size.

    Raises:
        ValueError: One has no losses, or they are not of the same steps.
    """
    if not one or one.keys() != other.keys():
        lacks = sorted(one.keys() ^ other.keys())[:5]
        reason = f"{len(one)} and {len(other)} steps have losses; one lacks {lacks}"
        raise ValueError(reason)
    return max(abs(loss - other[step]) / max(abs(loss), 1e-12) for step, loss in one.items())
