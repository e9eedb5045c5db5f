"""Planted failures of gao24's theorems."""

from theorem_plants import Plant

PLANTS: list[Plant] = []
