"""Requests for a certificate: made where the key is, checked where the authority is.

A key never leaves its machine. Of a request only the public key is taken; the name and the hosts
of a certificate are what was granted, whatever the request says.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from skep_services.pki.certificates import CertificateError

REQUEST_BYTES_MAX = 8 * 1024
"""A request with the key of a Skep node has 400 bytes; others put names and extensions in."""
BEGIN = b"-----BEGIN "
CURVES = ("secp256r1", "secp384r1")

PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a key as all of Skep's are: ECDSA on P-256, which browsers also take."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in PEM, without a password: its file is for one account only."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def new_request(name: str) -> tuple[bytes, bytes]:
    """Return a new key and a request for a certificate of it, both in PEM.

    Args:
        name: What the certificate is asked for; the authority grants a name of its own.
    """
    key = new_key()
    return key_pem(key), request_of(key, name)


def request_of(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """Return a request in PEM for a certificate of a key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def public_key(request: bytes) -> PublicKey:
    """Return the public key of a request whose sender has shown to hold the private one.

    Args:
        request: The request in PEM, as a stranger sent it.

    Raises:
        CertificateError: It is too large, not one request, has another kind of key, or is not
            signed by it.
    """
    if len(request) > REQUEST_BYTES_MAX:
        text = f"the request has {len(request)} bytes; at most {REQUEST_BYTES_MAX} are read"
        raise CertificateError(text)
    if request.count(BEGIN) != 1:
        text = f"the request holds {request.count(BEGIN)} blocks of PEM: send one request alone"
        raise CertificateError(text)
    try:
        loaded = x509.load_pem_x509_csr(request)
        key = loaded.public_key()
        signed = loaded.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, TypeError) as error:
        text = f"the request is no certificate request in PEM ({error})"
        raise CertificateError(text) from error
    if isinstance(key, ec.EllipticCurvePublicKey):
        good = key.curve.name in CURVES
    else:
        good = isinstance(key, ed25519.Ed25519PublicKey)
    if not good or not isinstance(key, PublicKey):
        text = "the request has a key that is not taken: make an ECDSA key on P-256, or Ed25519"
        raise CertificateError(text)
    if not signed:
        text = "the request is not signed by its own key: make it anew"
        raise CertificateError(text)
    return key
