"""Who a peer is: one P-256 key, one self-signed certificate, one fingerprint to hand to neighbours.

P-256 and not Ed25519: the TLS library inside gRPC does not negotiate Ed25519 certificates. The same key signs
messages; the signed bytes start with a label of their own, so a TLS signature can never pass for one.
"""

import datetime
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from clippedgossip.errors import PeerError
from clippedgossip.files import write_atomic

HOST = "peer.clippedgossip"
"""The name in every certificate. Identity is the fingerprint; TLS wants a name, so all share one."""

KEY_FILE, CERTIFICATE_FILE = "key.pem", "certificate.pem"
_LARGEST_CERTIFICATE = 4096


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A certificate of the strict profile that peers accept."""

    pem: bytes
    fingerprint: bytes
    public_key: ec.EllipticCurvePublicKey

    def verify(self, signature: bytes, message: bytes) -> bool:
        """True when `message` was signed by this certificate's key."""
        try:
            self.public_key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, kw_only=True, repr=False)
class Identity:
    """A private key with its certificate."""

    certificate: Certificate
    key_pem: bytes
    key: ec.EllipticCurvePrivateKey

    @property
    def fingerprint(self) -> bytes:
        return self.certificate.fingerprint

    def sign(self, message: bytes) -> bytes:
        """ECDSA P-256 with SHA-256, DER encoded."""
        return self.key.sign(message, ec.ECDSA(hashes.SHA256()))


def create() -> Identity:
    """A fresh identity. It never expires, so that a clock that jumps cannot cut a peer off."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject(key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1970, 1, 2))
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59))
    )
    for extension, critical in _EXTENSIONS:
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(key, hashes.SHA256())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(
        certificate=read_certificate(certificate.public_bytes(serialization.Encoding.PEM)),
        key_pem=pem,
        key=key,
    )


def read_certificate(pem: bytes) -> Certificate:
    """Accepts only what `create` makes.

    A pinned certificate becomes a trust anchor of the TLS library. One that may sign others would let its
    owner let outsiders through the handshake, and one that copies a neighbour's subject could shadow that
    neighbour; so certificates must not be authorities, and their subject must be the hash of their own key.
    """
    if len(pem) > _LARGEST_CERTIFICATE:
        raise PeerError(f"certificate of {len(pem)} bytes; the largest accepted is {_LARGEST_CERTIFICATE}")
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
        extensions = {e.oid: (e.critical, e.value) for e in certificate.extensions}
        subject, issuer = certificate.subject, certificate.issuer
        algorithm = certificate.signature_hash_algorithm
        body, signature = certificate.tbs_certificate_bytes, certificate.signature
    except Exception as error:  # the library has a class for each thing that can be wrong with one
        raise PeerError(f"not a certificate: {error}\nmake one with `clippedgossip peer init`") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PeerError("certificate key is not P-256; make one with `clippedgossip peer init`")
    expected = {extension.oid: (critical, extension) for extension, critical in _EXTENSIONS}
    if extensions != expected or subject != _subject(key) or issuer != subject:
        raise PeerError("certificate is not of the kind `clippedgossip peer init` makes; ask for a new one")
    fresh = Certificate(
        pem=certificate.public_bytes(serialization.Encoding.PEM),
        fingerprint=certificate.fingerprint(hashes.SHA256()),
        public_key=key,
    )
    if not isinstance(algorithm, hashes.SHA256) or not fresh.verify(signature, body):
        raise PeerError("certificate is not signed by its own key; ask for a new one")
    return fresh


def save(identity: Identity, folder: Path) -> None:
    """Writes key (mode 0600, never group or world readable even for a moment) and certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / KEY_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise PeerError(f"{path} exists; remove it yourself if this peer shall become someone else") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(identity.key_pem)
        write_atomic(folder / CERTIFICATE_FILE, identity.certificate.pem)
    except OSError as error:  # half a pair would stand in the way of the next trial
        path.unlink()
        error.filename = error.filename or str(path)
        raise


def load(folder: Path) -> Identity:
    """Reads an identity; refuses a key that others on this machine can read."""
    path = folder / KEY_FILE
    try:
        mode = path.stat().st_mode & 0o777
        pem = path.read_bytes()
        shown = (folder / CERTIFICATE_FILE).read_bytes()
    except OSError as error:
        fix = "restore it from a backup" if path.exists() else f"run `clippedgossip peer init {folder}`"
        raise PeerError(f"no identity in {folder}: {error.filename}: {error.strerror}\n{fix}") from None
    if mode & 0o077:
        raise PeerError(f"{path} has mode {mode:04o}, at most 0600 is safe; run `chmod 600 {path}`")
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise PeerError(f"{path} is damaged: it is not a private key\nrestore it from a backup") from None
    try:
        certificate = read_certificate(shown)
    except PeerError:
        raise PeerError(
            f"{folder / CERTIFICATE_FILE} is damaged: it is not a certificate that `peer init` makes\n"
            "restore it from a backup"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key:
        raise PeerError(
            f"{path} does not belong to {folder / CERTIFICATE_FILE}; restore the pair from a backup"
        )
    return Identity(certificate=certificate, key_pem=pem, key=key)


def format_fingerprint(fingerprint: bytes) -> str:
    """`1a2b-3c4d-…`: sixteen groups of four hex digits, easy to read out over a telephone."""
    digits = fingerprint.hex()
    return "-".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def parse_fingerprint(text: str) -> bytes:
    """Reads what `format_fingerprint` writes; colons, blanks and capitals are forgiven."""
    digits = re.sub(r"[-:\s]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise PeerError(
            f"fingerprint {text[:80]!r} is not 64 hex digits; copy what `clippedgossip peer init` printed"
        )
    return bytes.fromhex(digits)


_EXTENSIONS: tuple[tuple[x509.ExtensionType, bool], ...] = (
    (x509.BasicConstraints(ca=False, path_length=None), True),
    (x509.KeyUsage(True, *[False] * 8), True),  # digital_signature, and none of the others
    (x509.SubjectAlternativeName([x509.DNSName(HOST)]), False),
)
"""Of a certificate, and whether each is critical."""


def _subject(key: ec.EllipticCurvePublicKey) -> x509.Name:
    spki = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hashlib.sha256(spki).hexdigest())])
