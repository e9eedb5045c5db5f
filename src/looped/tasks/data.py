"""Where data files and caches are: in folders that environment variables name, never a config."""

import difflib
import gzip
import os
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "LOOPED_DATA"


def data_folder(part: str) -> Path:
    """The folder `part` (`openml`, `translation`) of the data; no task has it as a field, so configs can move."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise ValueError(f"{VARIABLE} is not set. Set it to the folder that holds `{part}/`: export {VARIABLE}=FOLDER.")
    folder = Path(named) / part
    if not os.path.isdir(folder):  # false also for names that no file system accepts
        raise ValueError(
            f"{VARIABLE} must name a folder that holds `{part}/`; got {named}, which does not. Correct it."
        )
    return folder.resolve()


def cache_folder() -> Path:
    """`LOOPED_CACHE`, or `looped` in the user's cache folder."""
    chosen = os.environ.get("LOOPED_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "looped"


def closest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"Did you mean `{near[0]}`?" if near else f"Known: {', '.join(known) or 'none'}."


def read_text(path: Path, remedy: str) -> str:
    """The text of a UTF-8 file, gzipped or not; `remedy` ends the message about one that cannot be read."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({error}). {remedy}") from None
