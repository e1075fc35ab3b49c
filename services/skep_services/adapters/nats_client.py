"""The NATS client library. The other adapters import it from here, and only from here.

It loads an HTTP library for websockets, which is not used. Kept from doing so it loads in half the
time, and with it every service that starts again.
"""

from __future__ import annotations

import importlib
import sys

HTTP_LIBRARY = "aiohttp"


def _load_without_websockets() -> None:
    if HTTP_LIBRARY in sys.modules:
        return
    # What is None here cannot be imported, and the client takes that for "not installed".
    sys.modules[HTTP_LIBRARY] = None  # type: ignore[assignment]
    try:
        importlib.import_module("nats.aio.client")
    finally:
        del sys.modules[HTTP_LIBRARY]


_load_without_websockets()

from nats import errors  # noqa: E402 - loaded above, in its own way
from nats.aio.client import Client, Server  # noqa: E402
from nats.aio.msg import Msg  # noqa: E402
from nats.aio.subscription import Subscription as RawSubscription  # noqa: E402
from nats.nuid import NUID  # noqa: E402

__all__ = ["NUID", "Client", "Msg", "RawSubscription", "Server", "errors"]
