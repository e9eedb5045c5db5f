"""What people and accidents put where a number, a name or a path belongs."""

from __future__ import annotations

import random

WHOLE = ("-1", "0", "1", "2", "3", "5")
ABSURD = ("1000000000000000", "-1000000000000000", "1" + "0" * 30, "-" + "9" * 40, "18446744073709551616")
"""Numbers that no machine has room for: far above any address space, so that nothing is ever really allocated."""
NUMBERS = (
    "0.5",
    "1e3",
    "1e400",
    "-1e-400",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "Infinity",
    "0x10",
    "1_000",
    "٣",
    "1,5",
    "--1",
)
WORDS = (
    *("", " ", "none", "null", "true", "None", "é", "日本", "a" * 3000, "\x00", "\n", "two\nlines", "[bold]", "[/]"),
    *("%s%n", "{}", "$(id)", "`id`", "; ls", "-", "--", "--help", "*", "~", "\ud800", "'", '"', "\\", "\t", "\x1b[31m"),
)
PATHS = (".", "..", "/", "/dev/null", "/proc/self/mem", "../../x", "nowhere", "a/b/c", "x" * 300, "/root/x", "//")
JSON = (
    *("[]", "{}", "[[[[]]]]", '{"type": "os:system"}', '{"type": 3}', '{"type": "looped:Run"}', "[1, 2]", '"text"'),
    *('{"type": "looped.config:decode"}', '{"a": 1}', "[null]", "[" * 2000, "1e999", "-0", "[1, 2", '{"d": 1}'),
    *('{"type": "looped.experiment:Experiment"}', '{"type": "looped.functional.schedules:Trapezoid"}'),
)


def word(draw: random.Random) -> str:
    """Anything that can be typed."""
    return draw.choice(draw.choice((WHOLE, ABSURD, NUMBERS, WORDS, PATHS, JSON)))


def mistyped(draw: random.Random, name: str) -> str:
    """A name with a letter too many, too few or wrong."""
    at = draw.randrange(len(name) + 1)
    letter = draw.choice("abz._-0é")
    return draw.choice(
        (name[:at] + letter + name[at:], name[:at] + name[at + 1 :], name[:at] + letter + name[at + 1 :])
    )
