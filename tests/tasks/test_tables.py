"""Tables from files: what a prompt shows, where the scaler comes from, and what is said about a bad file."""

import gzip
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import test_task_contract as contract
import torch
from scipy import stats

from looped import config
from looped.tasks import tables
from looped.tasks.data import data_folder as folder_of
from looped.tasks.tables import OPENML, Tables, distinct, read
from looped.tasks.task import Task


def write(folder, name, features, labels):
    lines = [",".join([*(f"f{i}" for i in range(features.shape[1])), "label"])]
    lines += [",".join([*(repr(float(v)) for v in row), str(int(y))]) for row, y in zip(features, labels, strict=True)]
    (folder / "openml").mkdir(exist_ok=True)
    (folder / "openml" / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Three small tables; the rows of `ids` come sorted by label."""
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    ids = rng.normal(size=(40, 3)) + np.arange(40)[:, None]
    write(tmp_path, "ids", ids, np.arange(40) < 16)
    write(tmp_path, "wide", rng.normal(size=(30, 5)) * [1, 10, 100, 1, 1] + 7, rng.random(30) < 0.5)
    write(tmp_path, "narrow", rng.normal(size=(24, 1)), np.arange(24) % 2)
    return tmp_path


def draw(task, *, batch=200, n=6, seed=0, dims=None):
    return task.sample(batch=batch, n=n, generator=torch.Generator().manual_seed(seed), dims=dims)


def split(folder, name, test_share=0.5):
    """Train and test rows, standardised by the train rows, computed again with NumPy and scikit-learn."""
    from sklearn.preprocessing import StandardScaler

    features, labels = read(folder / "openml", name)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).numpy()
    cut = round(len(labels) * (1 - test_share))
    scaler = StandardScaler().fit(features[order[:cut]])
    return {
        part: (scaler.transform(features[rows]), 2 * labels[rows] - 1)
        for part, rows in (("train", order[:cut]), ("test", order[cut:]))
    }


@pytest.mark.parametrize("rows", ["train", "test"])
@pytest.mark.parametrize("name", ["ids", "wide", "narrow"])
def test_every_pair_is_a_row_of_its_part_scaled_by_the_training_rows(data, name, rows):
    task = Tables(d=7, names=(name,), rows=rows, flip=False)
    prompt = draw(task, batch=30)
    features, labels = split(data, name)[rows]
    for xs, ys in zip(prompt.xs.numpy(), prompt.ys.numpy(), strict=True):
        # the same places for all rows of a prompt: each shown column is one column of the table
        shown = [c for c in range(7) if xs[:, c].any()]
        assert len(shown) == features.shape[1]
        keys = np.sort(xs[:, shown], axis=1)
        table = np.sort(features, axis=1)
        row_numbers = [int(np.abs(table - key).max(1).argmin()) for key in keys]
        assert len(set(row_numbers)) == len(row_numbers), "a row is shown once"
        columns = [int(np.abs(features[row_numbers] - xs[:, [c]]).max(0).argmin()) for c in shown]
        assert sorted(columns) == list(range(features.shape[1]))
        np.testing.assert_allclose(xs[:, shown], features[row_numbers][:, columns], atol=1e-5)
        np.testing.assert_array_equal(ys, labels[row_numbers])


def test_train_and_test_rows_do_not_meet_and_labels_are_mixed(data):
    parts = [draw(Tables(d=3, names=("ids",), rows=rows), n=20, batch=1) for rows in ("train", "test")]
    first, last = (set(np.round(part.xs[0].sum(-1).numpy(), 4).tolist()) for part in parts)
    assert len(first) == len(last) == 20
    assert not first & last
    assert all(0 < (part.ys > 0).sum() < 20 for part in parts), "the file is sorted by label; the parts are not"


def test_the_test_rows_of_a_table_have_no_say_in_its_scaler(data):
    before = draw(Tables(d=5, names=("wide",)), batch=5)
    features, labels = read(data / "openml", "wide")
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0)).numpy()
    features[order[15:]] += 1000.0
    write(data, "wide", features, labels)
    tables.load.cache_clear()
    after = draw(Tables(d=5, names=("wide",)), batch=5)
    torch.testing.assert_close(before.xs, after.xs)
    assert draw(Tables(d=5, names=("wide",), rows="test")).xs.abs().max() > 5


def test_tables_flips_and_places_are_uniform(data):
    task = Tables(d=6, names=("ids", "wide", "narrow"))
    prompt = draw(task, batch=6000, n=4)
    counts = torch.bincount(prompt.truth["table"], minlength=3)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    narrow = prompt.xs[prompt.truth["table"] == 2]
    places = narrow.abs().sum(1).argmax(1)
    assert ((narrow.abs().sum(1) > 0).sum(1) == 1).all()
    assert stats.chisquare(torch.bincount(places, minlength=6).numpy()).pvalue > 1e-3
    plain = draw(replace(task, flip=False), batch=6000, n=4)
    assert torch.equal(plain.xs, prompt.xs)
    flips = prompt.ys * plain.ys
    assert (flips == flips[:, :1]).all(), "one flip for a prompt"
    assert stats.binomtest(int((flips[:, 0] > 0).sum()), 6000).pvalue > 1e-3
    assert set(prompt.ys.unique().tolist()) == {-1.0, 1.0}
    table = prompt.truth["table"].float()
    assert torch.corrcoef(torch.stack((table, flips[:, 0])))[0, 1].abs() < 4 / 6000**0.5


def test_a_table_wider_than_d_shows_some_of_its_features(data):
    prompt = draw(Tables(d=3, names=("wide", "narrow")), batch=400, n=12)
    shown = prompt.xs.any(1).sum(1)
    assert (shown[prompt.truth["table"] == 0] == 3).all()
    assert (shown[prompt.truth["table"] == 1] == 1).all()
    features = split(data, "wide")["train"][0]
    for xs in prompt.xs[prompt.truth["table"] == 0][:20].numpy():
        apart = np.abs(xs[:, None, :, None] - features[None, :, None, :])  # pair, row, place, feature
        which = [int(apart[:, :, place].min(1).max(0).argmin()) for place in range(3)]
        assert len(set(which)) == 3


@pytest.mark.parametrize("dims", [2, torch.tensor(2)])
def test_with_few_active_coordinates_random_features_fill_them(data, dims):
    task = Tables(d=6, names=("ids",), flip=False)
    prompt = draw(task, batch=3000, n=20, dims=dims)
    assert (prompt.xs[..., :2].abs().sum(1) > 0).all()
    assert not prompt.xs[..., 2:].any()
    wide = draw(Tables(d=6, names=("wide",), flip=False), batch=2000, n=15, dims=1).xs[..., 0]
    features = torch.tensor(split(data, "wide")["train"][0]).float()
    which = (wide.sort(1).values[:, :, None] - features.sort(0).values).abs().amax(1).argmin(1)
    assert stats.chisquare(torch.bincount(which, minlength=5).numpy()).pvalue > 1e-3


def test_distinct_numbers_are_every_ordered_choice_equally_often():
    generator = torch.Generator().manual_seed(0)
    keys = torch.rand(2, 12_000, 3, generator=generator, dtype=torch.float64)
    chosen = distinct(torch.full((12_000,), 4), keys[0], keys[1])
    codes = (chosen * torch.tensor([16, 4, 1])).sum(1)
    values, counts = codes.unique(return_counts=True)
    assert len(values) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    mixed = distinct(torch.tensor([3, 5, 100]).repeat(50), keys[0, :150], keys[1, :150])
    assert (mixed < torch.tensor([3, 5, 100]).repeat(50)[:, None]).all()
    assert (mixed.sort(1).values.diff(dim=1) > 0).all()
    assert torch.equal(mixed[::3].sort(1).values, torch.arange(3).expand(50, 3)), "as many as there are: all"


def test_a_table_is_read_once(data, monkeypatch):
    tables.load.cache_clear()
    calls = []
    monkeypatch.setattr(tables, "read", lambda *args: calls.append(args) or read(*args))
    for seed in range(3):
        draw(Tables(d=6, names=("ids", "wide")), seed=seed)
    assert len(calls) == 2


def test_a_constant_feature_is_zero(data):
    write(data, "constant", np.stack([np.full(10, 0.1), np.arange(10.0)], 1), np.arange(10) % 2)
    xs = draw(Tables(d=2, names=("constant",)), n=5).xs
    assert xs.isfinite().all()
    assert (xs.any(1).sum(1) == 1).all()


def test_quotes_plain_csv_and_windows_lines_are_read(data):
    text = '\ufeff"a, b",label\r\n"1.5",0\r\n2,1\r\n'
    (data / "openml" / "plain.csv").write_bytes(text.encode())
    features, labels = read(data / "openml", "plain")
    assert features.tolist() == [[1.5], [2.0]]
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,label\n1,0\nred,1\n", r"numbers only, without gaps; .*'red'.* row 1.*Encode text as numbers"),
        ("a,label\n1,0\n,1\n", "without gaps.*drop rows with missing values"),
        ("a,label\n1,0\nnan,1\n", "nan in `a`, row 1 below the header"),
        ("a,label\n1,0\n2,0\n", r"both classes 0 and 1; got \[0.0\]"),
        ("a,label\n1,1\n2,2\n", r"both classes 0 and 1; got \[1.0, 2.0\]. Recode it"),
        ("a,b\n1,1\n2,2\n", r"then `label`; got \['a', 'b'\]"),
        ("label\n1\n0\n", "header of features and then `label`"),
        ("a,label\n1,0\n2,1,5\n", "numbers only"),
        ("a,b,label\n1,0\n2,1\n", "3 names in its header and 2 columns"),
        ("a,label\n", "no rows"),
        ("", "header of features"),
    ],
)
def test_a_bad_file_is_refused_in_one_clear_line(data, text, message):
    (data / "openml" / "bad.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        draw(Tables(names=("bad",)))


def test_other_errors_say_what_to_do(data, monkeypatch):
    with pytest.raises(ValueError, match=r"no table `narow`.*Did you mean `narrow`"):
        draw(Tables(names=("narow",)))
    with pytest.raises(ValueError, match="13 pairs needs as many train rows; the smallest table here has 12"):
        draw(Tables(names=("ids", "narrow")), n=13)
    with pytest.raises(ValueError, match="too few to cut"):
        draw(Tables(names=("narrow",), test_share=0.01))
    with pytest.raises(ValueError, match="each once; got"):
        Tables(names=("ids", "ids"))
    with pytest.raises(ValueError, match="one or more tables"):
        Tables(names=())
    with pytest.raises(ValueError, match="`test_share` must be between 0 and 1; got 1"):
        Tables(test_share=1.0)
    (data / "openml" / "cut.csv.gz").write_bytes(gzip.compress(b"a,label\n1,0\n")[:-6])
    with pytest.raises(ValueError, match="cannot be read"):
        draw(Tables(names=("cut",)))
    monkeypatch.setenv("LOOPED_DATA", str(data / "openml"))
    with pytest.raises(ValueError, match="must name a folder that holds `openml/`; got"):
        folder_of("openml")
    monkeypatch.delenv("LOOPED_DATA")
    with pytest.raises(ValueError, match=r"LOOPED_DATA is not set\. Set it to the folder that holds `openml/`"):
        draw(Tables())


def test_a_task_is_data_and_names_no_folder(data):
    task = Tables(d=9, names=("ids",), rows="test", flip=False)
    encoded = config.encode(task)
    assert config.decode(encoded, Task) == task
    assert str(data) not in str(encoded)


def test_the_ten_tables_of_the_paper(data_folder, monkeypatch):
    """Rows and features as in yang24, Table 1 (its space_ga has two features more, and its compas fewer rows)."""
    monkeypatch.setenv("LOOPED_DATA", str(data_folder))
    shapes = {name: read(data_folder / "openml", name)[0].shape for name in OPENML}
    assert {name: shape[0] for name, shape in shapes.items()} == {
        "720_abalone": 4177, "725_bank8FM": 8192, "737_space_ga": 3107, "803_delta_ailerons": 7129,
        "807_kin8nm": 8192, "816_puma8NH": 8192, "819_delta_elevators": 9517, "847_wind": 6574,
        "871_pollen": 3848, "42192_compas-two-years": 5278,
    }  # fmt: skip
    assert [shape[1] for shape in shapes.values()] == [7, 8, 6, 5, 8, 8, 6, 14, 5, 7]
    prompt = draw(Tables(), batch=256, n=41)
    assert prompt.xs.isfinite().all()
    assert (prompt.xs.any(1).sum(1) >= 3).all()
    pollen = draw(Tables(names=("871_pollen",), flip=False), batch=100, n=41)
    assert abs(pollen.ys.mean().item()) < 0.1, "its file is sorted by label; its prompts are not"


@pytest.mark.parametrize(
    "promise",
    [
        contract.test_shapes,
        contract.test_one_seed_gives_one_prompt_and_the_global_generator_is_left_alone,
        contract.test_declared_label_variance_is_the_measured_one_and_zero_scores_one,
        contract.test_labels_have_mean_zero,
        contract.test_error_is_zero_at_the_labels_and_keeps_its_shape,
        contract.test_dims_may_be_a_tensor,
        contract.test_a_task_is_data_and_has_a_d_of_at_least_one,
        *(partial(contract.test_coordinates_from_dims_on_are_zero, part=part) for part in (0.0, 0.5, 1.0)),
    ],
    ids=lambda promise: getattr(promise, "__name__", "test_coordinates_from_dims_on_are_zero"),
)
def test_what_every_task_promises(data, promise):
    """The contract suite looks for tasks before any file is there, so tables are held to it here."""
    promise(task=Tables(d=6, names=("ids", "wide", "narrow")))
