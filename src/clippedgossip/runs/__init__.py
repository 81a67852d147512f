"""Runs on disk: the config, what it builds, what it will take, carrying it out, many of them at a time."""
