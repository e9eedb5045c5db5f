"""cheng24, Figures 1, 2 and 4: test loss against the number of examples and of layers, with the Bayes loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from looped.evaluation.claims import Claim, Data, Figure, Settings
from looped.evaluation.lines import finish, log_y, reference_line, seeds_line
from looped.papers.cheng24 import judges
from looped.papers.cheng24.scales import LOSSES
from looped.papers.cheng24.training import Case, outcomes
from looped.papers.cheng24.worlds import describe

COLOURS = {"linear": 0, "relu": 1, "exp": 2, "softmax": 3, "linear+exp": 4}
"""One colour for each h in all figures."""
SINGLE = (("linear",), ("relu",), ("exp",), ("softmax",))
COMPOSED = (("linear",), ("exp",), ("linear", "exp"))
Plan = list[dict[str, Any]]
"""Panels: title, data, axis (n or L), x, the fixed one of n and L, and the heads of each line."""


def _fig1(sizes: Mapping[str, Any]) -> Plan:
    fixed = {"axis": "n", "x": list(sizes["n"]), "layers": sizes["depth"]}
    return [{"title": f"{kind} data", "data": kind, **fixed, "heads": SINGLE} for kind in ("linear", "relu", "exp")]


def _fig2(sizes: Mapping[str, Any]) -> Plan:
    return [
        {
            "title": f"{kind} data, n = {n}",
            "data": kind,
            "axis": "L",
            "x": list(sizes["layers"]),
            "n": n,
            "heads": SINGLE,
        }
        for n in sizes["fixed_n"]
        for kind in ("relu", "exp")
    ]


def _fig2_extra(sizes: Mapping[str, Any]) -> Plan:
    """Linear data at the largest depth, which the paper's panels leave out."""
    n, deepest = max(sizes["fixed_n"]), max(sizes["layers"])
    return [{"title": "linear", "data": "linear", "axis": "L", "x": [deepest], "n": n, "heads": SINGLE[:3]}]


def _fig4(sizes: Mapping[str, Any]) -> Plan:
    fixed = {"axis": "L", "x": list(sizes["layers"]), "n": max(sizes["fixed_n"]), "heads": COMPOSED}
    return [{"title": f"{kind} data", "data": kind, **fixed} for kind in ("linear", "exp", "mixed")]


def _measure(world: str, plan: Callable[[Mapping[str, Any]], Plan], extra: Callable | None = None):
    def measure(sizes: Mapping[str, Any], settings: Settings) -> Data:
        """Train what is missing and give test losses by seed."""
        parts = {"panels": plan(sizes), **({"extra": extra(sizes)} if extra else {})}
        cases = [
            case for panels in parts.values() for one in panels for line in _cases(world, one).values() for case in line
        ]
        found = outcomes(cases, sizes, settings)
        data: Data = {"world": world, "settings": describe(world)}
        for name, panels in parts.items():
            data[name] = []
            for one in panels:
                lines = _cases(world, one)
                first = next(iter(lines.values()))
                kept = {key: value for key, value in one.items() if key != "heads"}
                kept["lines"] = {
                    label: _by_seed([found[case].losses for case in line]) for label, line in lines.items()
                }
                kept["bayes"] = _by_seed([found[case].bayes for case in first])
                data[name].append(kept)
        return data

    return measure


def _cases(world: str, one: Mapping[str, Any]) -> dict[str, list[Case]]:
    def case(heads: tuple[str, ...], x: int) -> Case:
        n, layers = (x, one["layers"]) if one["axis"] == "n" else (one["n"], x)
        return Case(world=world, data=one["data"], heads=heads, n=n, layers=layers)

    return {"+".join(heads): [case(heads, x) for x in one["x"]] for heads in one["heads"]}


def _by_seed(columns: Sequence[Sequence[float]]) -> list[list[float | None]]:
    return [[value if math.isfinite(value) else None for value in row] for row in zip(*columns, strict=True)]


def draw(figure: Any, data: Data) -> None:
    """One panel a distribution, logarithmic losses, a line with its spread over seeds for each h, Bayes in ink."""
    panels = data["panels"]
    figure.set_size_inches(2.6 * len(panels) + 0.4, 3.3)
    for index, (ax, one) in enumerate(zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)):
        for name, runs in one["lines"].items():
            label = f"h = {name}" if "+" not in name else "two heads, linear and exp"
            seeds_line(ax, COLOURS[name], one["x"], runs, label, marker="o", markersize=3)
        means = [sum(column) / len(column) for column in zip(*one["bayes"], strict=True)]
        shown = [mean if mean > 1e-6 else math.nan for mean in means]
        reference_line(ax, one["x"], shown, "Bayes", linestyle="-", linewidth=1.4)
        log_y(ax)
        ax.set(title=f"({'abcd'[index]}) {one['title']}", xticks=one["x"], ylim=(None, _top(one)))
        ax.set_xlabel("examples n" if one["axis"] == "n" else "layers L")
    figure.axes[0].set_ylabel("test loss")
    finish(figure, columns=5)


def _top(one: Mapping[str, Any]) -> float:
    """Twice the first loss of the worst line: a model that diverged leaves the panel and does not squeeze it."""
    return 2 * max(run[0] for runs in one["lines"].values() for run in runs if run[0] is not None)


def _claims1(name: str) -> tuple[Claim, ...]:
    matching = [
        Claim(
            id=f"{name}.matching_{kind}",
            statement=f"Leaving softmax aside, the best loss on {kind} data is that of h = {kind} (Section 3.3, "
            f"item 1, Figure 1{where}).",
            tolerance=f"loss at the largest n at most {judges.TIE} times the better of the other two",
            judge=judges.best(kind, where=[{"data": kind}]),
        )
        for kind, where in (("linear", "(a)"), ("relu", "(b)"))
    ]
    wins = Claim(
        id=f"{name}.softmax_wins",
        statement="With 3 layers softmax is more accurate than exp on exp data for n = 6 to 14 (Section 3.3, item 2, "
        "Figure 1(c)).",
        tolerance="softmax / exp below 1 at every n >= 6, means over seeds",
        judge=judges.softmax_wins(6),
    )
    return (*matching, wins)


def _claims2(name: str) -> tuple[Claim, ...]:
    places = {"linear": [{"data": "linear"}], "relu": [{"data": "relu", "n": 14}, {"data": "relu", "n": 6}]}
    places["exp"] = [{"data": "exp", "n": 14}, {"data": "exp", "n": 6}]
    matching = [
        Claim(
            id=f"{name}.matching_{kind}",
            statement=f"Leaving softmax aside, the best loss on {kind} data is that of h = {kind} at the largest depth "
            "(Section 3.3, item 1, Figure 2; Proposition 3.4).",
            tolerance=f"at most {judges.TIE} times the better of the other two, at every n measured",
            judge=judges.best(kind, where=where),
        )
        for kind, where in places.items()
    ]
    return (
        *matching,
        Claim(
            id=f"{name}.bayes",
            statement="The exp model approaches the Bayes loss on exp data as the number of layers grows (Section 3.3, "
            "item 2(b); Proposition 3.4).",
            tolerance="excess over Bayes at the largest depth at most 1/3 of that at one layer, for n = 14 and 6",
            judge=judges.approaches_bayes,
        ),
        Claim(
            id=f"{name}.softmax_gap",
            statement="On exp data with n = 14 the gap between softmax and exp becomes very small for L >= 6 (Section "
            "3.3, item 2, Figure 2(b)).",
            tolerance=f"|softmax / exp - 1| at most {judges.CLOSE} at every L >= 6",
            judge=judges.softmax_gap,
        ),
        Claim(
            id=f"{name}.exp_wins",
            statement="On exp data with n = 6 exp is the most accurate for L >= 5 (Section 3.3, item 2, Figure 2(d)).",
            tolerance="exp / softmax below 1 at every L >= 5, means over seeds",
            judge=judges.exp_wins,
        ),
        Claim(
            id=f"{name}.relu_gap",
            statement="On relu data the gap between h = relu and the Bayes estimator is significant at any depth "
            "(Section 3.3, last paragraph, Figure 2(a)).",
            tolerance=f"loss / Bayes at least {1 + judges.CLOSE} at every L >= 3, n = 14",
            judge=judges.relu_gap,
        ),
    )


def _claims4(name: str) -> tuple[Claim, ...]:
    pure = [
        Claim(
            id=f"{name}.pure_{kind}",
            statement=f"On {kind} data the two-head model performs as well as the {kind} one (App. D, item 1).",
            tolerance=f"at most {1 + judges.CLOSE} times the better single head at the largest depth",
            judge=judges.two_heads(kind, most=1 + judges.CLOSE),
        )
        for kind in ("linear", "exp")
    ]
    mixed = Claim(
        id=f"{name}.mixed",
        statement="On mixed data the two-head model outperforms both single heads (App. D, item 2, Figure 4(c)).",
        tolerance="below 1 times the better single head at the largest depth, mean over seeds",
        judge=judges.two_heads("mixed", most=1),
    )
    return (*pure, mixed)


def _figure(number: int, world: str) -> Figure:
    name = f"cheng24.fig{number}" + ("" if world == "paper" else "_released")
    titles = {
        1: "Loss of three layers against the number of examples, three kinds of data by four attentions",
        2: "Loss against the number of layers, on relu and on exp data, with 14 and with 6 examples",
        4: "Linear, exp and two-head models on linear, exp and mixed data, against the number of layers",
    }
    plan, extra, claims = {1: (_fig1, None, _claims1), 2: (_fig2, _fig2_extra, _claims2), 4: (_fig4, None, _claims4)}[
        number
    ]
    return Figure(
        name=name,
        title=titles[number] + ("" if world == "paper" else ", in the released program's settings"),
        settings=LOSSES,
        measure=_measure(world, plan, extra),
        draw=draw,
        claims=claims(name),
    )


fig1, fig1_released = _figure(1, "paper"), _figure(1, "released")
fig2, fig2_released = _figure(2, "paper"), _figure(2, "released")
fig4, fig4_released = _figure(4, "paper"), _figure(4, "released")
