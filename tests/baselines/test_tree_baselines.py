import builtins

import numpy as np
import pytest
import torch
import xgboost
from sklearn.tree import DecisionTreeRegressor

from looped.baselines.positions import chosen, spread
from looped.baselines.signs import on_signs
from looped.baselines.trees import boosted, greedy_tree
from looped.prompt import Prompt


def prompts(batch=3, n=12, d=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    xs = torch.randn(batch, n, d, generator=generator)
    return Prompt(xs, (xs[..., 0] > 0).float() + 0.5 * torch.randn(batch, n, generator=generator))


def by_library(prompt, make, at):
    xs, ys = prompt.xs.numpy(), prompt.ys.numpy()
    rows = zip(xs, ys, strict=True)
    return np.array([[make().fit(x[:i], y[:i]).predict(x[i : i + 1])[0] if i else 0 for i in at] for x, y in rows])


@pytest.mark.parametrize("depth", [None, 2, 4])
@pytest.mark.parametrize("signs", [False, True])
def test_the_greedy_tree_is_scikit_learns(depth, signs):
    prompt = prompts()
    answer = (on_signs(greedy_tree) if signs else greedy_tree)(prompt, depth=depth)
    read = Prompt(prompt.xs.sign(), prompt.ys) if signs else prompt
    wanted = by_library(read, lambda: DecisionTreeRegressor(max_depth=depth, random_state=0), range(12))
    np.testing.assert_allclose(answer, wanted, rtol=1e-8, atol=1e-12)


def test_boosting_is_xgboosts():
    prompt, at = prompts(n=30), [0, 1, 5, 29]
    got = boosted(prompt, at=at)
    wanted = by_library(
        prompt, lambda: xgboost.XGBRegressor(max_depth=4, learning_rate=0.1, n_estimators=50, n_jobs=1), at
    )
    np.testing.assert_allclose(got[:, at], wanted, rtol=1e-8, atol=0)
    assert torch.equal(boosted(prompt, at=at, workers=2)[:, at], got[:, at])


def test_positions_that_are_not_asked_for_are_not_a_number():
    prompt = prompts()
    whole, some = greedy_tree(prompt, depth=2), greedy_tree(prompt, depth=2, at=[7, 3, 3])
    assert some.isnan().all(0).nonzero().flatten().tolist() == [i for i in range(12) if i not in (3, 7)]
    assert torch.equal(some[:, [3, 7]], whole[:, [3, 7]])
    with pytest.raises(ValueError, match="`at` must hold positions from 0 to 11; got 12"):
        greedy_tree(prompt, at=[12])


def test_a_tree_on_signs_learns_what_depends_on_them():
    """With all four sign patterns seen, exactly; of x itself a tree splits where it happens to."""
    xs = torch.randn(20, 60, 2, generator=torch.Generator().manual_seed(1))
    prompt = Prompt(xs, xs.sign().prod(-1))
    errors = [(tree(prompt, at=[59])[:, 59] - prompt.ys[:, 59]).abs() for tree in (on_signs(greedy_tree), greedy_tree)]
    assert errors[0].max() == 0
    assert errors[1].max() == 2


def test_progress_is_told_to_the_end():
    shares = []
    greedy_tree(prompts(batch=30), at=[1, 2, 3, 5, 8], progress=shares.append)
    assert shares == [pytest.approx(100 / 150), 1.0]


@pytest.mark.parametrize(
    ("baseline", "options", "message"),
    [
        (greedy_tree, {"depth": 0}, "`depth` must be at least 1; got 0"),
        (boosted, {"trees": 0}, "`trees` must be at least 1; got 0"),
        (boosted, {"workers": 0}, "`workers` must be at least 1; got 0"),
    ],
)
def test_senseless_parameters_are_refused(baseline, options, message):
    with pytest.raises(ValueError, match=message):
        baseline(prompts(), **options)


@pytest.mark.parametrize(("baseline", "library"), [(greedy_tree, "sklearn.tree"), (boosted, "xgboost")])
def test_a_missing_library_is_one_line_with_the_remedy(baseline, library, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == library:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"not installed: pip install 'looped\[baselines\]'"):
        baseline(prompts())


def test_positions():
    assert chosen(None, 3) == [0, 1, 2]
    assert spread(101) == list(range(0, 101, 10))
    assert spread(5) == [0, 1, 2, 3, 4]
    assert spread(1) == [0]
    assert spread(41, 3) == [0, 20, 40]
    with pytest.raises(ValueError, match="`count` must be at least 2"):
        spread(5, 1)
