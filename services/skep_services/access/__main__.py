"""Run the access service."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

from skep.machines.access import AccessMachine, Kept
from skep.wire import subjects
from skep.wire.access import AccessFact
from skep_services.access.signer import NoSigner, Signer, SignerCalls
from skep_services.adapters.wiring import Log, serve
from skep_services.service import ConfigurationError, Settings, run
from skep_services.shell import Follow

FOLLOW = (Follow(subjects.ADMIN, subjects=(subjects.admin("vcs"),)),)
LISTEN = (subjects.ACCESS_ASKED,)
KEEPS = Log(subjects.ACCESS, subjects.ACCESS_FACTS, AccessFact, Kept)


def signer_of(chosen: Settings) -> Signer:
    """Return the signer that SKEP_SIGNER names as `module:function`, which takes the settings.

    Raises:
        ConfigurationError: There is none of this name.
    """
    name = chosen.environment.get("SKEP_SIGNER", "")
    if not name:
        return NoSigner()
    module, _, function = name.partition(":")
    try:
        make = cast(
            "Callable[[Settings], Signer]", getattr(importlib.import_module(module), function)
        )
    except (ImportError, AttributeError) as error:
        text = f"SKEP_SIGNER is {name!r}: it must be MODULE:FUNCTION ({error})"
        raise ConfigurationError(text) from error
    return make(chosen)


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled."""
    calls = SignerCalls(signer_of(chosen))
    try:
        await serve(
            chosen,
            log,
            AccessMachine(),
            follow=FOLLOW,
            listen=LISTEN,
            keeps=KEEPS,
            notes=False,
            calls=calls,
        )
    finally:
        await calls.close()


if __name__ == "__main__":
    run("access", main)
