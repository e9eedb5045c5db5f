"""A few hundred pairs of German and English sentences, made of words that go together one to one."""

import gzip
import itertools
from pathlib import Path

SUBJECTS = {"Der Mann": "The man", "Die Frau": "The woman", "Ein Hund": "A dog", "Ein Mädchen": "A girl"}
VERBS = {"sieht": "sees", "malt": "paints", "trägt": "carries", "sucht": "looks for"}
OBJECTS = {
    "ein Haus": "a house",
    "einen Ball": "a ball",
    "viele Bücher": "many books",
    "das weiße Boot": "the white boat",
}
PLACES = {"am Fluss": "by the river", "im Park": "in the park", "auf der Straße": "on the street"}


def pairs() -> list[tuple[str, str]]:
    """Every sentence that these words make."""
    sentences = itertools.product(SUBJECTS.items(), VERBS.items(), OBJECTS.items(), PLACES.items())
    return [tuple(" ".join(word[side] for word in words) + "." for side in (0, 1)) for words in sentences]


def write(folder: Path, *, middle: str = "", packed: bool = True) -> Path:
    """A corpus in `folder`: every seventh pair is for validation, the one after it for testing."""
    folder.mkdir(parents=True)
    splits = {"train": [], "val": [], "test": []}
    for index, pair in enumerate(pairs()):
        splits["val" if index % 7 == 0 else "test" if index % 7 == 1 else "train"].append(pair)
    for split, lines in splits.items():
        for side, language in enumerate(("de", "en")):
            text = "".join(pair[side] + "\n" for pair in lines).encode()
            path = folder / f"{split}.{middle}{language}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(text) if packed else text)
    return folder
