"""Numbers for readers: significant digits, durations."""

import math

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits: 0.0312, 1.20, 847, 3.1×10⁻⁷; a dash for what is not a number."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -4 < power < 5:
        return f"{float(f'{value:.{digits - 1}e}'):,.{max(0, digits - 1 - power)}f}".replace("-", "−")
    raised = f"10{str(power).translate(SUPERSCRIPTS)}"
    return (raised if digits == 1 and mantissa == "1" else f"{mantissa}×{raised}").replace("-", "−")


def duration(seconds: float) -> str:
    """Seconds as `0.4 s`, `58 s`, `2 min 5 s`, `3 h 4 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s" if seconds_left else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
