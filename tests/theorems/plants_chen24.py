"""Planted failures of chen24's theorems."""

from theorem_plants import Plant

PLANTS: list[Plant] = []
