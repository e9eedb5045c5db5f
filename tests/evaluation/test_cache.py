from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from looped.baselines.linear import averaging, least_squares
from looped.baselines.neighbours import nearest
from looped.baselines.signs import on_signs
from looped.baselines.trees import boosted, greedy_tree
from looped.evaluation import cache
from looped.evaluation.cache import cache_folder, cached, describe
from looped.prompt import Prompt

calls = []


def counting(prompt: Prompt, k: int = 1, progress=None) -> torch.Tensor:
    calls.append(k)
    if progress:
        progress(0.5)
    return k * prompt.ys.double()


@pytest.fixture
def prompt(generator):
    calls.clear()
    return Prompt(torch.randn(3, 5, 2, generator=generator), torch.randn(3, 5, generator=generator))


def test_the_same_is_computed_once(prompt, tmp_path):
    first = cached("counting", counting, tmp_path / "deep" / "folder")(prompt)
    again = cached("counting", counting, tmp_path / "deep" / "folder")(prompt)
    assert calls == [1]
    assert torch.equal(first, again)
    assert first.dtype == again.dtype == torch.float64


def test_answers_that_are_not_a_number_come_back(prompt, tmp_path):
    tree = partial(greedy_tree, depth=2, at=(1, 3))
    first, again = (cached("tree", tree, tmp_path)(prompt) for _ in range(2))
    torch.testing.assert_close(first, again, equal_nan=True, rtol=0, atol=0)
    assert again.isnan().any()


def test_other_prompts_parameters_and_baselines_are_computed_anew(prompt, tmp_path):
    run = partial(cached, "counting", folder=tmp_path)
    run(counting)(prompt)
    for other in (
        Prompt(prompt.xs + 1, prompt.ys),
        Prompt(prompt.xs, prompt.ys + 1),
        prompt.to(torch.float64),
        prompt.rows(slice(0, 2)),
    ):
        run(counting)(other)
    run(partial(counting, k=2))(prompt)
    run(partial(counting, k=3))(prompt)
    run(on_signs(counting))(prompt)
    run(on_signs(partial(counting, k=2)))(prompt)
    assert calls == [1, 1, 1, 1, 1, 2, 3, 1, 2]


def test_a_default_that_is_spelt_out_is_the_same_and_what_generated_the_prompt_plays_no_part(prompt, tmp_path):
    cached("a", counting, tmp_path)(prompt)
    cached("a", partial(counting, k=1), tmp_path)(Prompt(prompt.xs, prompt.ys, truth={"w": torch.ones(3, 2)}))
    assert calls == [1]


def test_a_newer_version_is_computed_anew(prompt, tmp_path, monkeypatch):
    cached("a", counting, tmp_path)(prompt)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    cached("a", counting, tmp_path)(prompt)
    assert calls == [1, 1]


@pytest.mark.parametrize("damage", ["empty", "truncated", "altered", "foreign", "shape"])
def test_a_damaged_file_is_computed_again_with_one_warning(prompt, tmp_path, damage):
    answer = cached("a", counting, tmp_path)
    right = answer(prompt)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    if damage == "empty":
        file.write_bytes(b"")
    elif damage == "truncated":
        file.write_bytes(data[: len(data) - 9])
    elif damage == "altered":
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "foreign":
        save_file({"answers": right}, file)
    else:
        cached("a", counting, tmp_path / "other")(prompt.rows(slice(0, 2)))
        (other,) = (tmp_path / "other").iterdir()
        file.write_bytes(other.read_bytes())
    with pytest.warns(UserWarning, match=r"cannot be used \(.*\): computed again\.") as warned:
        assert torch.equal(answer(prompt), right)
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    count = len(calls)
    assert torch.equal(answer(prompt), right)
    assert len(calls) == count, "and the file is whole again"


def test_a_folder_that_cannot_be_written_costs_a_warning_only(prompt, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be written"):
        assert torch.equal(cached("a", counting, tmp_path / "file" / "in")(prompt), prompt.ys.double())


def test_progress_carries_the_name_and_ends_at_one(prompt, tmp_path):
    news_so_far = []
    answer = cached("mine", on_signs(partial(counting, k=1)), tmp_path, progress=lambda *news: news_so_far.append(news))
    answer(prompt)
    assert news_so_far == [("mine", 0.5), ("mine", 1.0)]
    answer(prompt)
    assert news_so_far[2:] == [("mine", 1.0)]
    cached("plain", averaging, tmp_path, progress=lambda *news: news_so_far.append(news))(prompt)
    assert news_so_far[3:] == [("plain", 1.0)]


def test_what_a_baseline_is():
    assert describe(partial(nearest, k=5)) == {
        "function": "looped.baselines.neighbours:nearest",
        "parameters": {"k": 5},
    }
    assert describe(least_squares) == {"function": "looped.baselines.linear:least_squares", "parameters": {}}
    description = describe(partial(boosted, workers=2))
    assert description == describe(boosted), "threads change no answer"
    assert description["libraries"]["scikit-learn"]
    signs = describe(on_signs(partial(greedy_tree, depth=4)))
    assert signs["parameters"]["baseline"]["parameters"]["depth"] == 4
    for unnamed in (lambda prompt: prompt.ys, partial(nearest, 3)):
        with pytest.raises(ValueError, match="cached"):
            describe(unnamed)


def test_the_folder_is_the_users(monkeypatch, tmp_path, prompt):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("LOOPED_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / "xdg" / "looped"
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    cached("a", counting)(prompt)
    assert len(list((tmp_path / "own" / "baselines").iterdir())) == 1
