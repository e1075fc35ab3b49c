"""The cluster's authority: what it signs, what it refuses, and how it is replaced."""

from __future__ import annotations

import ipaddress
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skep_services import durable
from skep_services.pki import authority, certificates, files, requests
from skep_services.pki.authority import Authority
from skep_services.pki.certificates import CertificateError, describe, expires
from skep_services.pki.files import Fresh, Replaced, TlsError, TlsFiles
from skep_services.pki.requests import new_request
from tests.tls_kit import DAY_S, Certificates

NOW = 1_800_000_000.0


@pytest.fixture
def made(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki", "lab", lambda: NOW)


def load(pem: bytes) -> list[int]:
    return [one.serial_number for one in certificates.load(pem, "it")]


def leaf(pem: bytes) -> x509.Certificate:
    return certificates.load(pem, "it")[0]


def test_an_authority_is_made_once_and_for_one_account(made: Authority) -> None:
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    for name in (authority.CERTIFICATE, authority.KEY):
        assert stat.S_IMODE((made.folder / name).stat().st_mode) == 0o600
    again = Authority.read(made.folder, lambda: NOW)
    assert again.fingerprint == made.fingerprint
    assert again.trust == made.trust == made.certificate
    with pytest.raises(CertificateError, match="holds an authority already"):
        Authority.create(made.folder, "lab")


def test_what_is_issued_says_who_and_where_and_how_long(made: Authority) -> None:
    issued = made.issue("server-1", ["a.Example.org", "10.0.0.1", "fd00::1"], days=30)
    one = leaf(issued.certificate)
    names = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("10.0.0.1"),
        ipaddress.ip_address("fd00::1"),
    ]
    ca, told = describe(made.certificate)[0], describe(issued.certificate)
    assert [each.name for each in told] == ["server-1", ca.name]
    assert told[0].issuer == ca.name
    assert ca.fingerprint == made.fingerprint
    # Clocks that are some minutes behind take it, too.
    assert told[0].begins_at == NOW - 900
    assert told[0].ends_at == expires(issued.certificate).timestamp() == NOW + 30 * DAY_S
    assert told[0].days_left(NOW) == 30
    one.verify_directly_issued_by(leaf(made.certificate))
    assert leaf(made.issue("server-1").certificate).serial_number != one.serial_number


def test_a_client_cannot_serve_and_nobody_can_sign(made: Authority) -> None:
    client, server = (
        leaf(made.issue("node-1").certificate),
        leaf(made.issue("s", ["h"]).certificate),
    )
    kinds = [
        {
            usage.dotted_string
            for usage in one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        }
        for one in (client, server)
    ]
    assert kinds[0] == {ExtendedKeyUsageOID.CLIENT_AUTH.dotted_string}
    assert kinds[1] == kinds[0] | {ExtendedKeyUsageOID.SERVER_AUTH.dotted_string}
    assert not certificates.is_authority(client)
    assert certificates.is_authority(leaf(made.certificate))


def test_of_a_request_only_the_key_counts(made: Authority) -> None:
    key, _ = new_request("node-1")
    private = load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator")])
    wanted = x509.SubjectAlternativeName([x509.DNSName("gateway")])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(wanted, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    signed = leaf(made.sign(request, "node-7", days=1))
    assert describe(signed.public_bytes(Encoding.PEM))[0].name == "node-7"
    assert signed.public_key() == private.public_key()
    assert not certificates.is_authority(signed)
    with pytest.raises(x509.ExtensionNotFound):
        signed.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def request_with(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_requests_that_are_none_are_refused(made: Authority) -> None:
    _, good = new_request("x")
    weak = request_with(rsa.generate_private_key(65537, 1024))
    curve = request_with(ec.generate_private_key(ec.SECP192R1()))
    own = load_pem_private_key((made.folder / authority.KEY).read_bytes(), None)
    assert isinstance(own, ec.EllipticCurvePrivateKey)
    der = bytearray(x509.load_pem_x509_csr(good).public_bytes(Encoding.DER))
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)
    cases = {
        b"x" * (requests.REQUEST_BYTES_MAX + 1): "bytes; at most",
        b"": "0 blocks of PEM",
        good + good: "2 blocks of PEM",
        made.certificate: "no certificate request",
        good[:60] + b"\n-----END CERTIFICATE REQUEST-----\n": "no certificate request",
        weak: "a key that is not taken",
        curve: "a key that is not taken",
        forged: "not signed by its own key",
        request_with(own): "the authority's own key",
    }
    for request, why in cases.items():
        with pytest.raises(CertificateError, match=why):
            made.sign(request, "node-1")


@pytest.mark.parametrize(
    "host", ["", "a b", "a..b", "-a", "*.example.org", "a/b", "x" * 64, "1.2.3.256", "a\n", "::g"]
)
def test_hosts_that_are_none_are_refused(made: Authority, host: str) -> None:
    with pytest.raises(CertificateError, match="is no host"):
        made.issue("x", [host])


def test_names_and_times_have_bounds(made: Authority) -> None:
    for name in ("", "a b", "x" * 64, "a\n"):
        with pytest.raises(CertificateError, match="is no name"):
            made.issue(name)
    for days in (0, -1, 826, float("nan")):
        with pytest.raises(CertificateError, match="at most 825 days"):
            made.issue("x", days=days)
    with pytest.raises(CertificateError, match="65 hosts"):
        made.issue("x", [f"h{number}" for number in range(65)])
    late = Authority.read(made.folder, lambda: NOW + (authority.AUTHORITY_DAYS - 10) * DAY_S)
    assert describe(late.issue("x").certificate)[0].days_left(NOW) == authority.AUTHORITY_DAYS
    after = Authority.read(made.folder, lambda: NOW + (authority.AUTHORITY_DAYS + 1) * DAY_S)
    with pytest.raises(CertificateError, match="has expired: begin a change"):
        after.issue("x")


def test_a_change_has_two_authorities_until_it_ends(made: Authority) -> None:
    before = made.issue("x").certificate
    for wrong in (made.switch_change, made.end_change):
        with pytest.raises(CertificateError, match="no change of the authority is under way"):
            wrong()
    begun = made.begin_change()
    # Believed everywhere first, it signs nothing yet.
    assert (begun.change, begun.fingerprint) == ("begun", made.fingerprint)
    assert describe(begun.trust)[0].name == describe(before)[0].issuer
    leaf(begun.issue("x").certificate).verify_directly_issued_by(leaf(made.certificate))
    for wrong in (begun.begin_change, begun.end_change):
        with pytest.raises(CertificateError, match="has begun"):
            wrong()
    changed = begun.switch_change()
    assert changed.change == "switched"
    assert changed.fingerprint != made.fingerprint
    assert changed.trust == changed.certificate + made.certificate
    assert sorted(load(changed.trust)) == sorted(load(begun.trust))
    leaf(changed.issue("x").certificate).verify_directly_issued_by(leaf(changed.certificate))
    for wrong in (changed.begin_change, changed.switch_change):
        with pytest.raises(CertificateError, match="is switched and not ended"):
            wrong()
    ended = changed.end_change()
    assert ended.change == "none"
    assert ended.trust == ended.certificate == changed.certificate
    with pytest.raises(ValueError, match="Issuer"):
        leaf(before).verify_directly_issued_by(leaf(ended.trust))


def test_a_change_outlives_a_crash_at_any_write(
    made: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = durable.write

    def crash_at(number: int) -> None:
        writes = 0

        def write(path: str, data: bytes) -> None:
            nonlocal writes
            writes += 1
            if writes == number:
                raise OSError(28, "No space left on device", path)
            plain(path, data)

        monkeypatch.setattr(durable, "write", write)

    for number in (1, 2):
        crash_at(number)
        with pytest.raises(OSError, match="No space"):
            Authority.read(made.folder).begin_change()
        monkeypatch.undo()
        read = Authority.read(made.folder)
        assert (read.change, read.fingerprint, read.trust) == ("none", made.fingerprint, made.trust)
    begun = Authority.read(made.folder).begin_change()
    crash_at(1)
    with pytest.raises(OSError, match="No space"):
        begun.switch_change()
    monkeypatch.undo()
    # The certificate of the one before is written, and nothing else.
    (made.folder / authority.BEFORE).write_bytes(made.certificate)
    again = Authority.read(made.folder)
    assert (again.change, again.trust) == ("begun", begun.trust)
    changed = again.switch_change()
    # The key of the next authority is in place, its certificate not yet.
    (made.folder / authority.CERTIFICATE).rename(made.folder / authority.NEXT_CERTIFICATE)
    (made.folder / authority.CERTIFICATE).write_bytes(made.certificate)
    assert Authority.read(made.folder).fingerprint == changed.fingerprint


def test_a_folder_that_does_not_fit_together_says_so(made: Authority, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="is not there: make the authority first"):
        Authority.read(tmp_path / "nowhere")
    other = Authority.create(tmp_path / "other", "lab")
    (made.folder / authority.KEY).write_bytes((other.folder / authority.KEY).read_bytes())
    with pytest.raises(CertificateError, match="restore both from a backup"):
        Authority.read(made.folder)
    (made.folder / authority.KEY).write_bytes(b"?")
    with pytest.raises(CertificateError, match="no private key in PEM"):
        Authority.read(made.folder)


def test_a_stranger_is_believed_by_a_fingerprint(made: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "lab")
    sent = other.certificate + made.certificate
    assert certificates.with_fingerprint(sent, made.fingerprint.upper()) == made.certificate
    client = describe(made.issue("node-1").certificate)[0]
    for wrong in ("00" * 32, client.fingerprint):
        with pytest.raises(CertificateError, match="is not of the cluster that the token"):
            certificates.with_fingerprint(made.issue("node-1").certificate, wrong)


# --- files -----------------------------------------------------------------------------------


def test_variables_name_files(tmp_path: Path) -> None:
    assert files.tls_files({}) is None
    named = {"SKEP_TLS_CA": "/ca", "SKEP_TLS_CERT": "/cert", "SKEP_TLS_KEY": "/key"}
    whole = TlsFiles(ca=Path("/ca"), certificate=Path("/cert"), key=Path("/key"))
    assert files.tls_files(named) == whole
    assert files.named_files("/ca", "/cert", "/key") == whole
    assert files.named_files("", "", "") is None
    with pytest.raises(TlsError, match="belong together"):
        files.tls_files({"SKEP_TLS_CERT": "/cert"})


@pytest.mark.parametrize(
    "url, plain",
    [
        ("nats://127.0.0.1:4222", True),
        ("nats://localhost:4222,nats://[::1]:4222", True),
        ("127.0.0.1:4222", True),
        ("nats://10.0.0.1:4222", False),
        ("nats://127.0.0.1:4222,nats://bus.example.org:4222", False),
        ("nats://[fd00::1]:4222", False),
    ],
)
def test_only_this_machine_is_reached_in_plain_text(url: str, plain: bool) -> None:
    if plain:
        assert files.bus_files(url, {}) is None
    else:
        with pytest.raises(TlsError, match=r"SKEP_NATS_URL: nats://.* not encrypted: write tls://"):
            files.bus_files(url, {})
    assert files.bus_files(url, {"SKEP_ALLOW_PLAINTEXT": "yes"}) is None
    assert files.bus_files(url, {"SKEP_TLS_CA": "/ca"}) == TlsFiles(ca=Path("/ca"))
    assert files.bus_files(url.replace("nats://", "tls://"), {}) in (TlsFiles(), None)


def test_only_this_machine_is_served_in_plain_text() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert files.server_files(host, {}) is None
    for host in ("0.0.0.0", "::", "10.0.0.1", "gateway"):
        with pytest.raises(TlsError, match="would be served in plain text"):
            files.server_files(host, {})
    assert files.server_files("0.0.0.0", {"SKEP_ALLOW_PLAINTEXT": "yes"}) is None
    own = {"SKEP_TLS_CA": "/ca", "SKEP_TLS_CERT": "/c", "SKEP_TLS_KEY": "/k"}
    assert files.server_files("::", own) == TlsFiles(certificate=Path("/c"), key=Path("/k"))
    given = {"SKEP_TLS_SERVE_CERT": "/c2", "SKEP_TLS_SERVE_KEY": "/k2"}
    served = files.server_files("::", own | given)
    assert served == TlsFiles(certificate=Path("/c2"), key=Path("/k2"))


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    one, two = Certificates(tmp_path / "one"), Certificates(tmp_path / "two")
    good, other = one.give("s", "h"), two.give("s", "h")
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    empty.touch()
    cases = [
        (TlsFiles(ca=absent), "SKEP_TLS_CA: .*absent: No such file"),
        (TlsFiles(ca=empty), "SKEP_TLS_CA: .*empty holds no certificate"),
        (TlsFiles(ca=good.ca, certificate=absent, key=good.key), "SKEP_TLS_CERT: .*absent"),
        (TlsFiles(ca=good.ca, certificate=empty, key=good.key), "are no certificate and key"),
        (TlsFiles(ca=good.ca, certificate=good.certificate, key=other.key), "is not the key of"),
    ]
    for named, why in cases:
        with pytest.raises(TlsError, match=why):
            files.client_context(named.ca, named)
    with pytest.raises(TlsError, match="a server needs a certificate"):
        files.server_context(TlsFiles(ca=good.ca))
    with pytest.raises(TlsError, match="set it"):
        files.server_context(TlsFiles(certificate=good.certificate, key=good.key), clients=True)


def test_a_context_follows_its_files_once_they_fit(tmp_path: Path) -> None:
    issuer, told = Certificates(tmp_path), list[str]()
    mine = issuer.give("s", "h")
    assert mine.certificate is not None
    assert mine.key is not None
    fresh = Fresh(mine, files.server_context, told.append)
    first = fresh.context()
    assert fresh.context() is first
    replaced = Replaced(mine.paths)
    issued = issuer.authority.issue("s", ["h"])
    mine.key.write_bytes(issued.key)
    # The key is new and the certificate not yet: what was there holds, and it is said once.
    assert fresh.context() is first
    assert fresh.context() is first
    assert len(told) == 1
    assert "kept as they were" in told[0]
    assert replaced.since_asked()
    issued.write(mine.certificate, mine.key)
    assert fresh.context() is not first
    assert fresh.changes == 1
    assert replaced.since_asked()
    assert not replaced.since_asked()
    mine.certificate.unlink()
    assert fresh.context() is not first
    assert "No such file" in told[-1]


def test_the_clock_of_this_machine_is_the_default(tmp_path: Path) -> None:
    made = Authority.create(tmp_path / "pki", "lab")
    told = describe(made.issue("x", days=10).certificate)[0]
    assert 9.9 < told.days_left(time.time()) < 10.1
