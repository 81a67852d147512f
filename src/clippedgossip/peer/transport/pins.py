"""The certificates of the neighbours, learned from their own servers and pinned by fingerprint.

People hand each other fingerprints; TLS wants certificates. So each side reads the certificate off the
other's port, checks its SHA-256 against the fingerprint, and only then makes it a trust anchor. Reading it
needs no trust: a certificate with the right fingerprint is the right one, wherever it came from.
"""

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import Iterable
from pathlib import Path

from clippedgossip.errors import PeerError
from clippedgossip.peer import identity
from clippedgossip.peer.identity import Certificate
from clippedgossip.peer.peer_config import Neighbour
from clippedgossip.peer.rejection import Rejected, Rejection
from clippedgossip.peer.telemetry import bounded_logger

_PATIENCE = 5.0


class Pins:
    """Which certificate belongs to which neighbour, as far as known; kept in a folder between starts."""

    def __init__(self, neighbours: Iterable[Neighbour], folder: Path | None) -> None:
        self.neighbours: dict[str, Neighbour] = {}
        self.names: dict[bytes, str] = {}
        self.certificates: dict[str, Certificate] = {}
        self.folder = folder
        for neighbour in neighbours:
            self.pin(neighbour)

    def pin(self, neighbour: Neighbour) -> None:
        """Lets a neighbour in, under the keys that it names."""
        self.neighbours[neighbour.name] = neighbour
        self.names |= dict.fromkeys(neighbour.fingerprints, neighbour.name)
        if self.folder is not None:
            with contextlib.suppress(OSError, PeerError, Rejected):
                self._keep(neighbour, (self.folder / f"{neighbour.name}.pem").read_bytes())

    def unpin(self, name: str) -> None:
        self.neighbours.pop(name, None)
        self.certificates.pop(name, None)
        self.names = {mark: known for mark, known in self.names.items() if known != name}

    def anchors(self) -> bytes:
        """All certificates known so far, as PEM."""
        return b"".join(certificate.pem for certificate in tuple(self.certificates.values()))

    def name_of(self, pem: bytes) -> str | None:
        """The neighbour that presented this certificate; None for an outsider."""
        with contextlib.suppress(ValueError):
            return self.names.get(hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).digest())
        return None

    async def learn(self, name: str) -> Certificate:
        """The neighbour's certificate; read from its port the first time, and while it has an old key."""
        known, neighbour = self.certificates.get(name), self.neighbours.get(name)
        if neighbour is None:
            raise Rejected(Rejection.DEAD, f"{name} is no longer a neighbour")
        if known is not None and known.fingerprint == neighbour.fingerprint:
            return known
        try:
            pem = await read_off(neighbour.address.host, neighbour.address.port)
        except (OSError, EOFError) as error:
            raise PeerError(f"cannot reach {name} at {neighbour.address}: {error}\nis it started?") from None
        certificate = self._keep(neighbour, pem)
        if neighbour.former and neighbour.former not in self.names:
            bounded_logger(__name__).info("its old key is no longer valid", extra={"neighbour": name})
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / f"{name}.pem").write_bytes(certificate.pem)
        return certificate

    def _keep(self, neighbour: Neighbour, pem: bytes) -> Certificate:
        certificate = identity.read_certificate(pem)
        if certificate.fingerprint not in neighbour.fingerprints:
            raise Rejected(
                Rejection.REFUSED,
                f"{neighbour.address} is not {neighbour.name}; ask it whether this is its fingerprint: "
                f"{identity.format_fingerprint(certificate.fingerprint)}",
            )
        self.certificates[neighbour.name] = certificate
        if certificate.fingerprint == neighbour.fingerprint:  # the old key has had its time
            self.names.pop(neighbour.former, None)
        return certificate


async def read_off(host: str, port: int) -> bytes:
    """The certificate (PEM) a TLS 1.3 server at this address shows; nothing is sent to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint is checked by the caller
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=identity.HOST)
    except TimeoutError:
        raise OSError(f"no answer in {_PATIENCE:g} s") from None
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(shown or b"").encode()
