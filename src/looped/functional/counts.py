"""Refusals of numbers that are too small."""


def check_at_least(least: float, **values: float | None) -> None:
    """Refuse values below `least`, by their names; None counts as not given."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ValueError(f"`{name}` must be at least {least}; got {value}.")
