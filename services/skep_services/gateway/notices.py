"""`/v1/notices`: the targets of jobs, the latest messages, and a test; the notifier answers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web

from skep.access.rights import Action
from skep.ids import is_token
from skep.wire import codec, subjects
from skep.wire.bounds import UNDECODABLE, Token
from skep.wire.notice_targets import TARGET_CHARS_MAX
from skep.wire.notices import NOTICE_BYTES_MAX, AskNotifier, NotifierSays
from skep.wire.parse import parse_spec
from skep.wire.reasons import Reason
from skep_services.gateway.api import ApiError, caller_of, check, json_response
from skep_services.gateway.submit import refused, submits
from skep_services.ports import Bus

CHECK_WITHIN_S = 3.0
"""What the notifier may take to say whether a job may tell a target: it looks into its file."""
TEST_WITHIN_S = 50.0
"""What a test may take: a server that does not answer takes 40 s."""
_SAYS = msgspec.json.Decoder(NotifierSays)


class TestBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is tested: a target, as jobs of a VC name it."""

    target: Annotated[str, msgspec.Meta(min_length=1, max_length=TARGET_CHARS_MAX)]
    vc: Token


class Notices:
    """The handlers of `/v1/notices`, and the check of what a spec names."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def routes(self) -> list[web.RouteDef]:
        """Return where the handlers belong."""
        return [
            web.get("/v1/notices", self.listing, allow_head=False),
            web.post("/v1/notices/test", self.test),
        ]

    async def check(self, body: bytes) -> None:
        """Stop at a spec with a target that the operator's file does not allow.

        Raises:
            ApiError: The cluster has no notifier (409).
            refused: An ApiError (422): a target is not known or not allowed.
        """
        if b'"notify"' not in body:
            return
        spec = parse_spec(body)
        if isinstance(spec, list) or spec.notify is None:
            return  # What is wrong with it, admission says.
        says = await self._asked(AskNotifier(do="check", vc=spec.vc, to=spec.notify.to))
        if says.problems:
            raise refused(422, says.problems[0].reason, says.problems, None)

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """Answer the targets that a VC may use, and the latest messages to its targets.

        Raises:
            ApiError: It is not the caller's VC (403), or the cluster has no notifier (409).
        """
        caller = caller_of(request)
        vc = request.query.get("vc", "") or (caller.sees if isinstance(caller.sees, str) else "")
        if not vc and not caller.operator:
            raise ApiError(400, Reason.MISSING_KEY, "of which VC? give `vc`")
        if vc:
            if not is_token(vc):
                raise ApiError(400, Reason.BAD_VALUE, "`vc` is no name of a VC")
            check(Action.SEE_JOBS, caller, vc)
        says = await self._asked(AskNotifier(do="list", vc=vc or None))
        return json_response(
            {
                "targets": says.targets,
                "messages": says.messages,
                "waiting": says.waiting,
                "mail": says.mail,
                "webhooks": says.webhooks,
            }
        )

    async def test(self, request: web.Request) -> web.StreamResponse:
        """Send a test to a target, and answer once it was taken.

        Raises:
            ApiError: The body is wrong (400), the VC is another's (403), the cluster has no
                notifier (409), or the target did not take it (502).
            refused: An ApiError (422): the target is not known or not allowed.
        """
        try:
            body = msgspec.json.decode(await request.read(), type=TestBody)
        except UNDECODABLE as error:
            text = f'the body is no `{{"target": "NAME", "vc": "VC"}}`: {error}'
            raise ApiError(400, Reason.BAD_VALUE, text) from None
        caller = caller_of(request)
        submits(Action.SUBMIT, caller, body.vc)
        ask = AskNotifier(do="test", vc=body.vc, to=(body.target,), by=caller.name[:256])
        says = await self._asked(ask, TEST_WITHIN_S)
        if says.problems:
            raise refused(422, says.problems[0].reason, says.problems, None)
        if says.trouble:
            raise ApiError(502, Reason.NOT_DELIVERED, f"not delivered: {says.trouble}")
        return json_response({"target": body.target, "vc": body.vc, "sent": True})

    async def _asked(self, ask: AskNotifier, within_s: float = CHECK_WITHIN_S) -> NotifierSays:
        answer = await self._bus.request(subjects.NOTIFIER_ASKED, codec.encode(ask), {}, within_s)
        if answer is None:
            text = (
                "no notifier answers: this cluster sends no notices (`skep up --notify FILE`, "
                "`skep server notify FILE`), or it is away: leave `notify` out, or try again"
            )
            raise ApiError(409, Reason.NO_NOTIFIER, text)
        try:
            return _SAYS.decode(answer.payload[:NOTICE_BYTES_MAX])
        except UNDECODABLE as error:
            raise ApiError(502, Reason.NO_NOTIFIER, f"the notifier's answer: {error}") from error
