"""How often secrets may be wrong: of one address, and in all, so that none can be guessed.

    address, token    10 at once, then one in 6 s
    address           100 at once, then one a second
    in all            1,000 at once, then ten a second

Beyond what there may be in all, an address that was wrong lately waits until it has all of its
attempts again. The attempts from elsewhere never keep the right secret out: an address that was
not wrong lately may always try. A secret has at least 192 random bits, so that the bounds are there
for the work that comparing takes, and for the log.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

ATTEMPTS, ATTEMPT_S = 10, 6.0
"""Wrong secrets that one address may try of one token at once, and then one in so many seconds."""
COUNTED_MAX = 10_000
"""Addresses and tokens whose wrong secrets are counted: of more the earliest is forgotten."""


class Bound(NamedTuple):
    """How many attempts there may be at once, and then one in how many seconds."""

    most: float
    each_s: float


OF_TOKEN = Bound(float(ATTEMPTS), ATTEMPT_S)
OF_ADDRESS = Bound(100.0, 1.0)
"""Behind one address may be an office of people, and each mistypes at times."""
IN_ALL = Bound(1_000.0, 0.1)

STRANGER = "-"
"""Stands for all tokens that there are not: nobody else behind an address waits for those."""
ANY = "*"
"""Stands for all tokens that there are, and for secrets of other kinds."""


class Attempts:
    """Counts wrong secrets. `now` returns seconds that never go back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        self._all = (IN_ALL.most, now())

    def wait_s(self, source: str, token: str = ANY) -> float:
        """Return how long an address has to wait until it may try (seconds); 0: not at all.

        Args:
            source: The address.
            token: The public part of the token.
        """
        flooded = self._left_of(self._all, IN_ALL) < 1.0
        counted = _counted(source, token)
        waits = [
            max(0.0, (bound.most if flooded else 1.0) - self._of(whose, bound)) * bound.each_s
            for whose, bound in counted
        ]
        return max(waits)

    def failed(self, source: str, token: str = ANY) -> None:
        """Count a wrong secret.

        Args:
            source: The address.
            token: The public part of the token.
        """
        for whose, bound in _counted(source, token):
            self._left[whose] = (max(0.0, self._of(whose, bound) - 1.0), self._now())
            self._left.move_to_end(whose)
            if len(self._left) > COUNTED_MAX:
                self._left.popitem(last=False)
        self._all = (max(0.0, self._left_of(self._all, IN_ALL) - 1.0), self._now())

    def _of(self, whose: tuple[str, str], bound: Bound) -> float:
        return self._left_of(self._left.get(whose, (bound.most, self._now())), bound)

    def _left_of(self, kept: tuple[float, float], bound: Bound) -> float:
        left, since = kept
        return min(bound.most, left + (self._now() - since) / bound.each_s)


def _counted(source: str, token: str) -> list[tuple[tuple[str, str], Bound]]:
    place = place_of(source)
    own = [((place, token), OF_TOKEN)] if token != ANY else []
    return own if token == STRANGER else [*own, ((place, ANY), OF_ADDRESS)]


def place_of(source: str) -> str:
    """Return what counts as one address: of IPv6 a network of 64 bits, which one machine has."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return source
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)
