"""Identities: kept private, hard to imitate."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from clippedgossip.errors import PeerError
from clippedgossip.peer import identity


def test_round_trip_and_key_mode(tmp_path: Path) -> None:
    made = identity.create()
    identity.save(made, tmp_path)
    assert (tmp_path / identity.KEY_FILE).stat().st_mode & 0o777 == 0o600
    loaded = identity.load(tmp_path)
    assert loaded.fingerprint == made.fingerprint
    assert made.certificate.verify(loaded.sign(b"x"), b"x")
    assert not made.certificate.verify(loaded.sign(b"x"), b"y")
    assert made.key_pem.decode().splitlines()[1] not in repr(made)


def test_never_overwrites_a_key(tmp_path: Path) -> None:
    identity.save(identity.create(), tmp_path)
    with pytest.raises(PeerError, match="exists"):
        identity.save(identity.create(), tmp_path)


def test_a_pair_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / identity.CERTIFICATE_FILE).mkdir()
    with pytest.raises(OSError, match=identity.CERTIFICATE_FILE):
        identity.save(identity.create(), tmp_path)
    (tmp_path / identity.CERTIFICATE_FILE).rmdir()
    identity.save(identity.create(), tmp_path)


def test_refuses_a_key_others_can_read(tmp_path: Path) -> None:
    identity.save(identity.create(), tmp_path)
    (tmp_path / identity.KEY_FILE).chmod(0o644)
    with pytest.raises(PeerError, match="chmod 600"):
        identity.load(tmp_path)


@pytest.mark.parametrize("name", [identity.KEY_FILE, identity.CERTIFICATE_FILE])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    identity.save(identity.create(), tmp_path)
    (tmp_path / name).write_text("x")
    with pytest.raises(PeerError, match=f"{name} is damaged.*\nrestore it from a backup"):
        identity.load(tmp_path)


def test_half_an_identity_is_not_to_be_made_anew(tmp_path: Path) -> None:
    """With a new key, no neighbour would know this peer."""
    with pytest.raises(PeerError, match="peer init"):
        identity.load(tmp_path)
    identity.save(identity.create(), tmp_path)
    (tmp_path / identity.CERTIFICATE_FILE).unlink()
    with pytest.raises(PeerError, match=f"{identity.CERTIFICATE_FILE}: No such file.*\nrestore it"):
        identity.load(tmp_path)


def test_refuses_a_foreign_pair(tmp_path: Path) -> None:
    identity.save(identity.create(), tmp_path)
    (tmp_path / identity.CERTIFICATE_FILE).write_bytes(identity.create().certificate.pem)
    with pytest.raises(PeerError, match="does not belong"):
        identity.load(tmp_path)


def test_fingerprint_text_round_trip() -> None:
    mark = identity.create().fingerprint
    text = identity.format_fingerprint(mark)
    assert identity.parse_fingerprint(text) == mark
    assert identity.parse_fingerprint(text.upper().replace("-", ":")) == mark
    with pytest.raises(PeerError, match="64 hex"):
        identity.parse_fingerprint(text[:-1])


def _certificate(*, authority: bool, common_name: str | None) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name or "0" * 64)])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(2100, 1, 1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def test_refuses_authorities_and_borrowed_names() -> None:
    """Either would let a neighbour admit strangers or shadow another neighbour."""
    for pem in (
        _certificate(authority=True, common_name=None),
        _certificate(authority=False, common_name="a"),
    ):
        with pytest.raises(PeerError):
            identity.read_certificate(pem)
    with pytest.raises(PeerError):
        identity.read_certificate(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(PeerError):
        identity.read_certificate(b"x" * 10_000)
