"""In-context classification on tables from files: the pairs of a prompt are rows of one table."""

import csv
import functools
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from looped.prompt import Prompt
from looped.tasks.data import closest, data_folder, read_text
from looped.tasks.task import Task, active_mask

OPENML = (
    "720_abalone",
    "725_bank8FM",
    "737_space_ga",
    "803_delta_ailerons",
    "807_kin8nm",
    "816_puma8NH",
    "819_delta_elevators",
    "847_wind",
    "871_pollen",
    "42192_compas-two-years",
)
"""The ten tables of yang24, Table 1, by file name."""


@dataclass(frozen=True, kw_only=True)
class Tables(Task):
    """Rows of one random table, its features standardised and in random places, its label +1 or -1.

        x = scatter((row - mean) / std),  y = flip (2 label - 1),  flip in {-1, +1} drawn for each prompt

    Ref: yang24, App. G. Files are `LOOPED_DATA/openml/NAME.csv.gz` (or .csv): a header, numeric features, then `label`
    of 0 and 1. Each table's rows are shuffled once, with a fixed seed, and cut into training and test rows. Mean and
    std always come from the training rows, so test prompts are standardised by rows that they never show, and without
    labels. The paper states neither scaler nor flips nor an order of features, and its Table 2 has accuracies far below
    one half.
    """

    names: tuple[str, ...] = OPENML
    """The tables, each drawn equally often."""
    rows: Literal["train", "test"] = "train"
    """Which rows of each table are shown."""
    test_share: float = 0.5
    """The share of test rows in each table."""
    flip: bool = True
    """Whether each prompt draws which class is +1: a table's label codes are arbitrary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"`names` must be one or more tables, each once; got {self.names}.")
        if not 0 < self.test_share < 1:
            raise ValueError(f"`test_share` must be between 0 and 1; got {self.test_share}.")

    @property
    def label_variance(self) -> float:
        """1: labels are +1 and -1, and the sign of a prediction is the class."""
        return 1.0

    def sample(self, *, batch: int, n: int, generator: torch.Generator, dims: int | Tensor | None = None) -> Prompt:
        """Draw for every prompt a table, `n` different rows of it, places for its features, and a flip.

        Where a table has more features than there are active coordinates, each prompt shows a random subset.
        """
        device = generator.device
        packed = load(data_folder("openml"), self.names, self.rows, self.test_share, device)
        if n > packed.fewest:
            raise ValueError(
                f"a prompt of {n} pairs needs as many {self.rows} rows; the smallest table here has {packed.fewest}. "
                f"Show fewer pairs, or change `test_share` ({self.test_share})."
            )

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device, dtype=torch.float64)

        table = (uniform(batch) * len(self.names)).long()
        row = packed.starts[table, None] + distinct(packed.counts[table], uniform(batch, n), uniform(batch, n))
        # real features before padding, active places before the rest, both in random order
        columns = max(self.d, packed.features.shape[1])
        padding = torch.arange(columns, device=device) >= packed.widths[table, None]
        source = (uniform(batch, columns) + padding).argsort(1)[:, : self.d]
        mask = active_mask(self.d, dims, device)
        place = (uniform(batch, self.d) + (1 - mask)).argsort(1)
        order = torch.empty_like(place).scatter_(1, place, source)
        shown = pad(packed.features[row], (0, columns - packed.features.shape[1]))
        xs = shown.gather(2, order[:, None].expand(-1, n, -1)) * mask
        ys = packed.labels[row]
        if self.flip:
            ys = ys * (2.0 * (uniform(batch, 1) < 0.5) - 1)
        return Prompt(xs, ys.float(), truth={"table": table})


def distinct(
    counts: Int[Tensor, "batch"], draws: Float[Tensor, "batch n"], keys: Float[Tensor, "batch n"]
) -> Int[Tensor, "batch n"]:
    """`n` different numbers below `counts` for each prompt, every ordered choice equally likely.

    Floyd's method: number i is drawn from [0, counts - n + i], and is counts - n + i if that draw came before;
    `keys` then give them a random order. The cost does not grow with the table; the loop is over pairs, not prompts.
    """
    n = draws.shape[1]
    tops = counts[:, None] - n + torch.arange(n, device=counts.device)
    chosen = (draws * (tops + 1)).long()
    for i in range(1, n):
        seen = (chosen[:, :i] == chosen[:, i : i + 1]).any(1)
        chosen[:, i] = torch.where(seen, tops[:, i], chosen[:, i])
    return chosen.gather(1, keys.argsort(1))


class Packed(NamedTuple):
    """All tables in one tensor on a device, standardised, padded with zeros to the columns of the widest one."""

    features: Float[Tensor, "rows columns"]
    labels: Float[Tensor, "rows"]
    starts: Int[Tensor, "tables"]
    counts: Int[Tensor, "tables"]
    widths: Int[Tensor, "tables"]
    fewest: int
    """Rows of the smallest table, known here without waiting for the device."""


@functools.cache
def load(folder: Path, names: tuple[str, ...], rows: str, test_share: float, device: torch.device) -> Packed:
    """The chosen rows of the tables in `folder`, on `device`; read once per process."""
    parts = [_part(folder, name, rows, test_share) for name in names]
    widths = [features.shape[1] for features, _ in parts]
    counts = torch.tensor([len(labels) for _, labels in parts])
    return Packed(
        features=torch.cat([pad(features, (0, max(widths) - features.shape[1])) for features, _ in parts]).to(device),
        labels=torch.cat([labels for _, labels in parts]).to(device),
        starts=(counts.cumsum(0) - counts).to(device),
        counts=counts.to(device),
        widths=torch.tensor(widths, device=device),
        fewest=int(counts.min()),
    )


def _part(folder: Path, name: str, rows: str, test_share: float) -> tuple[Tensor, Tensor]:
    """The train or test rows of one table: standardised features, and labels +1 and -1."""
    features, labels = read(folder, name)
    # shuffled, since files may be sorted by label (pollen is)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).numpy()
    cut = round(len(labels) * (1 - test_share))
    train, test = order[:cut], order[cut:]
    if min(len(train), len(test)) < 1:
        raise ValueError(f"table `{name}` has {len(labels)} rows, too few to cut at `test_share`={test_share}.")
    chosen = train if rows == "train" else test
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = features[train].mean(0), features[train].std(0)
        std[std <= 1e-12 * np.abs(mean)] = 1.0  # a constant feature becomes 0
        scaled = torch.from_numpy((features[chosen] - mean) / std).float()
    if not bool(scaled.isfinite().all()):
        column = int((~scaled.isfinite()).any(0).nonzero()[0])
        raise ValueError(f"table `{name}` has numbers too large to standardise, in feature {column}. Rescale it.")
    return scaled, torch.from_numpy(2 * labels[chosen] - 1).float()


def read(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (rows, features) and labels 0 or 1 of one file, in the file's order."""
    files = [path for path in folder.iterdir() if path.name.endswith((".csv", ".csv.gz"))]
    known = {path.name.removesuffix(".gz").removesuffix(".csv"): path for path in files}
    if name not in known:
        raise ValueError(f"there is no table `{name}` in {folder}. {closest(name, known)}")
    path = known[name]
    text = read_text(path, "It must be UTF-8 CSV, .csv or .csv.gz.")
    header, _, body = text.partition("\n")
    try:
        columns = next(csv.reader([header]), [])
    except csv.Error as error:
        raise ValueError(f"{path} has a header that is not CSV ({error}).") from None
    if len(columns) < 2 or columns[-1].strip() != "label":
        raise ValueError(
            f"{path} must have a header of features and then `label`; got {_short(columns)}. Add or reorder it."
        )
    if not body.strip():
        raise ValueError(f"{path} has a header and no rows.")
    try:
        values = np.loadtxt(io.StringIO(body), delimiter=",", ndmin=2, quotechar='"', comments=None)
    except ValueError as error:
        raise ValueError(
            f"{path} must hold numbers only, without gaps; {_short(error)} (rows from 0 below the header). "
            "Encode text as numbers, and fill in or drop rows with missing values."
        ) from None
    if values.shape[1] != len(columns):
        raise ValueError(f"{path} has {len(columns)} names in its header and {values.shape[1]} columns below it.")
    if not np.isfinite(values).all():
        line, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"{path} has {values[line, column]} in `{columns[column]}`, row {line} below the header. "
            "Fill in or drop rows with missing values."
        )
    labels = values[:, -1]
    classes = np.unique(labels)
    if not np.array_equal(classes, [0, 1]):
        raise ValueError(f"`label` in {path} must have both classes 0 and 1; got {classes[:5].tolist()}. Recode it.")
    return values[:, :-1], labels


def _short(content: object) -> str:
    """The beginning of a text, on one line, for a message."""
    text = " ".join(str(content).split())
    return text if len(text) <= 200 else f"{text[:200]} ..."
