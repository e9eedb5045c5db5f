"""Planted failures of cheng24's theorems."""

from theorem_plants import Plant

PLANTS: list[Plant] = []
