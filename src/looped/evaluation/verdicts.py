"""A diagnosis in words: first what the model is worth, then what its loops do, for which share of the prompts.

Every sentence has the number it rests on, and says only what the sentences before it leave possible: radii and random
starts are told of the prompts that settle, stability of models that have learned.
"""

import math

from looped.evaluation.diagnosis import MARGIN, ROUNDING, SAME, SETTLED, WORSE, Diagnosis, Estimate

LEARNED = 0.05
"""A model has learned when it surely beats predicting zero by this fraction of its error."""
MOST = 0.9
"""A behaviour is the model's when this share of the prompts shows it."""


def kind(diagnosis: Diagnosis) -> str:
    """The diagnosis in a word or two."""
    if not _learned(diagnosis):
        return "collapsed" if diagnosis.between_prompts < SAME else "not learned"
    if not diagnosis.looped:
        return "unlooped"
    if diagnosis.between_loops < SAME:
        return "loops do nothing"
    shares = {word: share.mean for word, share in diagnosis.shares.items()}
    error, common = _end(diagnosis), max(shares, key=shares.__getitem__)
    if shares[common] < MOST:
        return "mixed"
    if common == "diverges" or (error == "diverges" and common != "settles"):
        return "diverges"
    if common == "cycles":
        return "cycles"
    if common == "settles":
        return {"stays": "stable", "undecided": "undecided"}.get(error, "settles past its best")
    return {"stays": "keeps moving", "undecided": "undecided"}.get(error, "drifts")


def verdict(diagnosis: Diagnosis) -> str:
    """The diagnosis in a few sentences."""
    if diagnosis.overflows_at == 1:
        return "Diverges: the state or its error overflows in the first loop. Rescale the task's x and y, or retrain."
    sentences = [f"{_headline(diagnosis)}.", _worth(diagnosis)]
    if diagnosis.looped:
        sentences += [_help(diagnosis), _error_past(diagnosis), _shares(diagnosis), *_fixed_point(diagnosis)]
        sentences += [_advice(diagnosis)]
    elif diagnosis.overflows_at is not None:
        sentences.append(_error_past(diagnosis))
    elif diagnosis.trained_loops == 1:
        sentences.append("It has one loop: nothing is repeated, so nothing can settle or diverge.")
    else:
        sentences.append("Its loops share no weights: nothing is repeated, so nothing can settle or diverge.")
    return " ".join(filter(None, sentences))


def _headline(diagnosis: Diagnosis) -> str:
    if diagnosis.kind != "mixed":
        unlooped = "" if diagnosis.looped or diagnosis.kind == "unlooped" else ", and unlooped"
        return diagnosis.kind.capitalize() + unlooped
    words = {"settles": "is stable"} if diagnosis.settled_stay else {}
    shares = sorted(diagnosis.shares.items(), key=lambda item: -item[1].mean)
    parts = [f"{words.get(word, word)} for {share.mean:.0%}" for word, share in shares if share.mean >= 0.005]
    return f"{', '.join(parts)} of the prompts".removeprefix("is ").capitalize()


def _worth(diagnosis: Diagnosis) -> str:
    """Whether it has learned anything."""
    error = diagnosis.error.at(diagnosis.trained_loops)
    measured = (
        f"after the {diagnosis.trained_loops} trained loops the error is {_number(error)}, that of predicting "
        f"zero {_number(diagnosis.zero)} (paired difference {_interval(diagnosis.gain)})"
    )
    if diagnosis.between_prompts < SAME:
        return f"It gives every prompt the same answer, to {SAME:.0%}: {measured}."
    return f"It has {'learned' if _learned(diagnosis) else 'not learned'}: {measured}."


def _help(diagnosis: Diagnosis) -> str:
    """Whether the trained loops are of use."""
    if diagnosis.between_loops < SAME:
        return (
            f"Loops do nothing: answers after 1 loop and after {diagnosis.trained_loops} differ by "
            f"{diagnosis.between_loops:.2g} of their size."
        )
    if not _learned(diagnosis):
        return ""
    change = f"from loop 1 to {diagnosis.trained_loops} the error falls by {_interval(diagnosis.help)}"
    if diagnosis.help.low > ROUNDING:
        return f"Loops help: {change}."
    return f"Loops {'hurt' if diagnosis.help.high < -ROUNDING else 'do not surely help'}: {change}."


def _error_past(diagnosis: Diagnosis) -> str:
    """What further loops do to the error."""
    end = _end(diagnosis)
    best = f"best ({_number(diagnosis.error.at(diagnosis.best_loop))}, loop {diagnosis.best_loop})"
    if diagnosis.overflows_at is not None:
        return f"The state or its error overflows at loop {diagnosis.overflows_at}; before, the error was {best}."
    if not _learned(diagnosis):
        return ""
    last = f"After {diagnosis.loops} loops the error is {_number(diagnosis.error.mean[-1])}"
    rise = f"paired rise above its {best}: {_interval(diagnosis.rise)}"
    if diagnosis.diverges_at is not None:
        return f"{last}; from loop {diagnosis.diverges_at} on it is surely above {WORSE:g} times its best. The {rise}."
    return {
        "rises": f"{last}: it surely rises. The {rise}.",
        "stays": f"{last}: it stays. The {rise}.",
        "undecided": f"{last}. Whether it rises by more than {MARGIN:.0%} is undecided: the {rise}. Use more prompts.",
    }[end]


def _shares(diagnosis: Diagnosis) -> str:
    """What the states do, and for which share of the prompts."""
    meaning = {
        "settles": f"settles (a loop moves it by less than {SETTLED:.1%})",
        "cycles": f"cycles, most with period {diagnosis.period}",
        "keeps moving": "keeps moving",
        "diverges": "diverges",
    }
    parts = [
        f"{meaning[word]} for {share.mean:.0%} of the prompts [{share.low:.0%}, {share.high:.0%}]"
        for word, share in sorted(diagnosis.shares.items(), key=lambda item: -item[1].mean)
        if share.mean > 0
    ]
    return f"The state {', '.join(parts)}."


def _fixed_point(diagnosis: Diagnosis) -> list[str]:
    """Whether the states that settle are held there, and depend on where they start."""
    sentences, radius, settled = [], diagnosis.radius, diagnosis.shares["settles"].mean
    if diagnosis.injects and settled < 1 - MOST:
        return []
    where = "Where it settles" if settled < 1 else "There"
    if radius is not None and diagnosis.repelled is not None:
        measured = f"spectral radius {radius.median:.3g}, {radius.low:.3g} to {radius.high:.3g} for most prompts"
        fate = "neither grows nor dies out" if abs(radius.median - 1) <= SETTLED else "dies out"
        if diagnosis.repelled > 0:
            fate = f"dies out for {1 - diagnosis.repelled:.0%} and grows for {diagnosis.repelled:.0%}"
        sentences.append(f"{where} a small disturbance {fate} ({measured}).")
    if not diagnosis.injects:
        sentences.append("No loop reads the prompt: it enters by the first state alone, so other starts say nothing.")
    elif diagnosis.same is not None and diagnosis.apart is None:
        sentences.append(f"{where} it is path dependent: from random starts the predictions overflow.")
    elif diagnosis.same is not None:
        ends = f"{diagnosis.same:.0%} end at the same predictions from {diagnosis.starts} random starts"
        sentences.append(f"{where} it is path {'in' if diagnosis.same >= MOST else ''}dependent: {ends}.")
    return sentences


def _advice(diagnosis: Diagnosis) -> str:
    if not _learned(diagnosis):
        return "Train it, or train it longer."
    if diagnosis.kind in ("diverges", "drifts", "settles past its best") or diagnosis.diverges_at is not None:
        remedy = "with more loops" if diagnosis.injects else "with the prompt injected in every loop"
        return f"Run it for {diagnosis.best_loop} loops, or train it {remedy}."
    return ""


def _learned(diagnosis: Diagnosis) -> bool:
    return diagnosis.gain.low > LEARNED * diagnosis.zero


def _end(diagnosis: Diagnosis) -> str:
    """What the error does past its best: diverges, rises, stays, or undecided."""
    if diagnosis.diverges_at is not None or diagnosis.overflows_at is not None:
        return "diverges"
    margin = MARGIN * diagnosis.error.at(diagnosis.best_loop) + ROUNDING
    if diagnosis.rise.low > margin:
        return "rises"
    return "stays" if diagnosis.rise.high < margin else "undecided"


def _interval(estimate: Estimate) -> str:
    text = _number(estimate.mean)
    return text if text == "not finite" else f"{text} [{_number(estimate.low)}, {_number(estimate.high)}]"


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "not finite"
