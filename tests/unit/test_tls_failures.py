"""One line about a TLS connection that failed, for what a real handshake says in one word."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from skep_services.pki.failures import explain, is_final
from skep_services.pki.files import TlsFiles
from tests.tls_kit import Certificates

HERE = "10.0.0.1:4222"


def error(reason: str) -> ssl.SSLError:
    made = ssl.SSLError(1, reason)
    made.reason = reason
    return made


@pytest.mark.parametrize(
    "made",
    [
        OSError(111, "Connection refused"),
        ssl.SSLEOFError(8, "EOF"),
        error("APPLICATION_DATA_AFTER_CLOSE_NOTIFY"),
        error("UNEXPECTED_EOF_WHILE_READING"),
        TimeoutError(),
    ],
)
def test_an_end_of_a_connection_is_no_fault_of_certificates(made: Exception) -> None:
    assert not is_final(made)
    assert not explain(made, HERE)


@pytest.mark.parametrize(
    "reason, line",
    [
        ("WRONG_VERSION_NUMBER", f"{HERE} speaks no TLS: check the address"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", f"{HERE} wants a certificate and got none"),
        ("NO_SHARED_CIPHER", f"TLS with {HERE} failed: NO_SHARED_CIPHER"),
    ],
)
def test_faults_of_the_other_side_are_said(reason: str, line: str) -> None:
    assert is_final(error(reason))
    assert explain(error(reason), HERE).startswith(line)


def test_a_servers_one_word_is_explained_by_ones_own_certificate(tmp_path: Path) -> None:
    issuer = Certificates(tmp_path)
    mine = issuer.give("node-1", days=10)
    refused = error("SSLV3_ALERT_CERTIFICATE_EXPIRED")
    # It is valid here, so the clocks differ.
    told = explain(refused, HERE, mine)
    assert "as expired, and by this clock" in told
    assert "compare this machine's clock with the server's" in told
    assert "it expired on" in explain(refused, HERE, issuer.aged(20).give("node-2", days=10))
    ahead = issuer.aged(-5).give("node-3", days=10)
    assert "it is valid from" in explain(error("SSLV3_ALERT_BAD_CERTIFICATE"), HERE, ahead)
    stranger = explain(error("TLSV1_ALERT_UNKNOWN_CA"), HERE, mine)
    assert "which is no CA of that server; join the cluster again" in stranger
    other = explain(error("TLSV1_ALERT_INTERNAL_ERROR"), HERE, mine)
    assert other.endswith("node-1/cert.pem: tlsv1 alert internal error")
    absent = TlsFiles(ca=mine.ca, certificate=tmp_path / "absent", key=mine.key)
    assert explain(refused, HERE, absent) == f"{tmp_path}/absent: No such file or directory"
