"""Requests to the access service, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from skep.wire import codec, subjects
from skep.wire.access import AccessAnswer, Actor, AskAccess, NoteAction, Wish
from skep.wire.bounds import UNDECODABLE
from skep.wire.reasons import TEXT, Reason
from skep_services.gateway.api import ApiError
from skep_services.gateway.callers import Caller
from skep_services.gateway.people import NEWS
from skep_services.gateway.watch import Watch
from skep_services.ports import Bus

ANSWER_S = 8.0
"""Longer than a standby takes to take over, and the signer to answer."""
SEEN_S = 2.0
"""How long to wait for the fact of what was answered: it is on its way."""

STATUS = {
    Reason.UNKNOWN_PERSON: 404,
    Reason.UNKNOWN_TOKEN: 404,
    Reason.UNKNOWN_VC: 404,
    Reason.UNKNOWN_NODE: 404,
    Reason.NO_ROLE: 403,
    Reason.ROLE_TOO_LOW: 403,
    Reason.NOT_ITS_OWNER: 403,
    Reason.PERSON_DISABLED: 403,
    Reason.LOGIN_OF_ANOTHER: 403,
    Reason.LOGIN_NOT_BOUND: 403,
    Reason.NAME_RETIRED: 409,
    Reason.JOIN_TOKEN_USED: 403,
    Reason.KEY_REVOKED: 403,
    Reason.WRONG_NAME: 403,
    Reason.WRONG_HOST: 403,
    Reason.TOKEN_EXPIRED: 401,
    Reason.TOKEN_REVOKED: 401,
    Reason.LOGIN_REPEATED: 401,
    Reason.PERSON_EXISTS: 409,
    Reason.DUPLICATE_NODE: 409,
    Reason.NOT_SIGNED: 503,
}
"""The status of a refusal; 422 for all others."""

_ANSWERS = msgspec.json.Decoder(AccessAnswer)


class Asking:
    """Asks the access service."""

    def __init__(self, bus: Bus, watch: Watch) -> None:
        self._bus, self._watch = bus, watch

    async def ask(
        self, actor: Actor, wish: Wish, seen: Callable[[], bool] | None = None
    ) -> AccessAnswer:
        """Return the answer to a request that was granted.

        Args:
            actor: The one that asks.
            wish: What is asked for.
            seen: Says whether the fact of it has arrived here, so that the caller's next request is
                answered by it; None: that is not waited for.

        Raises:
            ApiError: It is refused, with its reason.
            away: An ApiError (503): the access service does not answer.
        """
        body = codec.encode(AskAccess(actor=actor, wish=wish))
        told = await self._bus.request(subjects.ACCESS_ASKED, body, {}, ANSWER_S)
        if told is None:
            raise away()
        try:
            answer = _ANSWERS.decode(told.payload)
        except UNDECODABLE:
            raise away() from None
        if not answer.accepted:
            reason = answer.reason or Reason.BAD_VALUE
            text = answer.text or TEXT[reason]
            refused = ApiError(STATUS.get(reason, 422), reason, text)
            refused.why = None  # The access service has written its line.
            raise refused
        if seen is not None:
            await self._watch.until(NEWS, seen, SEEN_S)
        return answer

    async def note(self, caller: Caller, action: str, target: str, vc: str = "") -> None:
        """Write an action that is not the access service's into the audit log, before it is done.

        Raises:
            ApiError: The access service is away (503): what cannot be noted is not done.
        """
        await self.ask(caller.actor, NoteAction(action=action, target=target[:256], vc=vc))


def away() -> ApiError:
    """Return the answer when the access service does not answer."""
    text = "the access service does not answer: repeat this in a moment (`skep doctor`)"
    return ApiError(503, "access-away", text, retry_after_s=1.0)
