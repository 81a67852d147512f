"""What somebody who is no neighbour can do to a peer's port. Each says whether it really did it."""

import contextlib
import os
import socket
import ssl
import tempfile
from pathlib import Path

from clippedgossip.errors import PeerError
from clippedgossip.peer import identity
from clippedgossip.peer.peer_config import Address

_FLOOD = 300


def garbage_bytes(address: Address) -> bool:
    """Random bytes, from one to a hundred thousand; True when the port took some."""
    taken = 0
    for size in (1, 100, 100_000):
        with contextlib.suppress(OSError), _connect(address) as raw:
            raw.sendall(os.urandom(size))
            taken += size
    return taken > 0


def flood_of_connections(address: Address) -> bool:
    """Many connections that say nothing; True when most came to be."""
    with contextlib.ExitStack() as stack:
        opened = 0
        for _ in range(_FLOOD):
            with contextlib.suppress(OSError):
                stack.enter_context(_connect(address, patience=1.0))
                opened += 1
    return 2 * opened > _FLOOD


def knock(address: Address, me: identity.Identity | None) -> bool:
    """A TLS client that must not get in; says hello in HTTP/2 all the same. True when it was sent away."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if me is not None:
        with tempfile.TemporaryDirectory() as folder:
            identity.save(me, Path(folder))
            context.load_cert_chain(
                Path(folder) / identity.CERTIFICATE_FILE, Path(folder) / identity.KEY_FILE
            )
    try:
        raw = _connect(address)
    except OSError:
        return False
    answer = b""
    with raw, contextlib.suppress(OSError), context.wrap_socket(raw, server_hostname=identity.HOST) as tls:
        tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        answer = tls.recv(1000)
    if answer:
        raise PeerError(f"an outsider got the answer {answer[:20]!r}; peers answer neighbours alone")
    return True


def _connect(address: Address, *, patience: float = 5.0) -> socket.socket:
    return socket.create_connection((address.host, address.port), patience)
