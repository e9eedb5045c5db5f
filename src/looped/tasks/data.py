"""Where data files lie: the folder named by the environment variable LOOPED_DATA, never a config."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "LOOPED_DATA"


def data_folder(part: str) -> Path:
    """The folder `part` (`openml`, `translation`) of the data; it is not a field of any task, so configs can travel."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise ValueError(f"{VARIABLE} is not set. Set it to the folder that holds `{part}/`: export {VARIABLE}=FOLDER.")
    folder = Path(named) / part
    if not os.path.isdir(folder):  # false also for names that no file can have
        raise ValueError(f"{VARIABLE} must name a folder that holds `{part}/`; got {named}, without it. Correct it.")
    return folder.resolve()


def closest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown file: the nearest one that is there, or all of them."""
    known = sorted(known)
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"Did you mean `{found[0]}`?" if found else f"There: {', '.join(known) or 'nothing'}."
