"""Byzantine-robust decentralized learning via ClippedGossip."""

__version__ = "0.1.0"
