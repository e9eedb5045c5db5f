"""Checks that a baseline gets finite prompts and gives finite answers."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from looped.prompt import Prompt

Options = ParamSpec("Options")


def checked(
    baseline: Callable[Concatenate[Prompt, Options], Tensor],
) -> Callable[Concatenate[Prompt, Options], Tensor]:
    """`baseline`, with an error for prompts that are not finite and for answers (within `at`) that overflow."""

    @functools.wraps(baseline)
    def answer(prompt: Prompt, *args: Options.args, **options: Options.kwargs) -> Tensor:
        prompt.check_finite()
        try:
            answers = baseline(prompt, *args, **options)
        except (torch.linalg.LinAlgError, ValueError) as error:  # type: ignore[attr-defined]
            # linear algebra and XGBoost raise these for numbers that overflowed; our own errors are one line
            if isinstance(error, ValueError) and "\n" not in str(error):
                raise
            raise _overflow(baseline.__name__, prompt) from None
        asked = answers if options.get("at") is None else answers[..., sorted(set(options["at"]))]  # type: ignore
        if not bool(asked.isfinite().all()):
            raise _overflow(baseline.__name__, prompt)
        return answers

    return answer


def _overflow(name: str, prompt: Prompt) -> ValueError:
    x, y = float(prompt.xs.abs().max()), float(prompt.ys.abs().max())
    return ValueError(
        f"`{name}` overflows on these prompts; got |x| up to {x:.3g} and |y| up to {y:.3g}. Rescale them."
    )
