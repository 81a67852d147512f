"""Mixing inside the loops that people already have. One module for each foreign library, imported only by
those who use it."""
