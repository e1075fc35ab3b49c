"""What a machine that joins is told by somebody who is not yet known to be a server."""

import pytest

from skep_services.servers import joining
from skep_services.servers.address import Place


@pytest.mark.parametrize("date", ["never", "", "Mon, 99 Jan 2026 00:00:00 GMT"])
def test_a_date_that_is_none(monkeypatch: pytest.MonkeyPatch, date: str) -> None:
    monkeypatch.setattr(joining, "_exchange", lambda *_: (200, {"date": date}, b"pem"))
    assert joining._authority(Place("there", 1)) == (b"pem", None)
