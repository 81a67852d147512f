"""Runs on disk: the config, the setup it builds, the memory and time it needs, training one run or many."""
