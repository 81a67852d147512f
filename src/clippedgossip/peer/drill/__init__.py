"""Rehearsing failures: a network of real peers, and everything that can go wrong with it."""
