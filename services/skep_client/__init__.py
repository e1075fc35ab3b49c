"""The client library: `Client`, `AsyncClient`, what they return, and what goes wrong.

It is reached as `skep.Client` and `skep.AsyncClient`, too. The types of specs are `skep.wire`'s.
"""

from __future__ import annotations

from skep.wire.search import SearchSpec
from skep.wire.service import ServiceSpec
from skep.wire.spec import JobSpec
from skep_client.alerts import Alert
from skep_client.async_client import AsyncClient
from skep_client.client import Client
from skep_client.errors import (
    BadAnswerError,
    BadCallError,
    ChangeFailedError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NoClusterError,
    NotFoundError,
    NotInTimeError,
    RefusedError,
    SessionError,
    SkepError,
    TooManyError,
    UnauthorizedError,
    UnavailableError,
    UnreachableError,
)
from skep_client.sessions import Executed

__all__ = [
    "Alert",
    "AsyncClient",
    "BadAnswerError",
    "BadCallError",
    "ChangeFailedError",
    "Client",
    "ConflictError",
    "Executed",
    "ForbiddenError",
    "InvalidError",
    "JobSpec",
    "NoClusterError",
    "NotFoundError",
    "NotInTimeError",
    "RefusedError",
    "SearchSpec",
    "ServiceSpec",
    "SessionError",
    "SkepError",
    "TooManyError",
    "UnauthorizedError",
    "UnavailableError",
    "UnreachableError",
]
