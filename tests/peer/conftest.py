"""Imports the transport before anything else can import gRPC, as the command line does: it sets TLS up."""

import logging

import pytest

from clippedgossip.peer.telemetry import RateLimit
from clippedgossip.peer.transport import rpc

__all__ = ["rpc"]


@pytest.fixture(autouse=True)
def fresh_rate_limits() -> None:
    """What earlier tests have logged must not keep a line of this one out."""
    for name in list(logging.root.manager.loggerDict):
        for limit in logging.getLogger(name).filters:
            if isinstance(limit, RateLimit):
                limit._kinds.clear()
