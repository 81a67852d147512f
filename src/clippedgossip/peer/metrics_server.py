"""Metrics over HTTP. There is no password, so connections are few, and last a few seconds at most."""

import contextlib
import socket
import sys
import threading
import time
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from clippedgossip.peer.peer_config import Address
from clippedgossip.peer.telemetry import bounded_logger

log = bounded_logger(__name__)
CONNECTIONS = 8
"""At once; each has a thread. Others get 503."""
LONGEST = 5.0
"""Seconds that a connection may last, whatever it sends or reads meanwhile."""
_FULL = b"HTTP/1.0 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class MetricsServer(ThreadingTCPServer):
    """Listens from the start; `close` ends it."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        place: Any
        self.address_family, _, _, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        self._since: dict[Any, float] = {}
        """Open connections, and when each began."""
        super().__init__(place, MetricsHandler.factory(registry))
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Asked for each new connection."""
        if len(self._since) >= CONNECTIONS:
            with contextlib.suppress(OSError):
                request.sendall(_FULL)
            return False
        self._since[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        """Called twice a second: ends what has lasted too long, whether its thread reads or writes."""
        for request, since in tuple(self._since.items()):
            if time.monotonic() - since > LONGEST:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        self._since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Python would print a traceback for whoever hangs up early."""
        log.info("metrics were not served", extra={"why": repr(sys.exc_info()[1])})
