"""A baseline that reads only the signs of x."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from looped.prompt import Prompt


@dataclass(frozen=True)
class OnSigns:
    """`baseline` on prompts whose x are replaced by sign(x)."""

    baseline: Callable[..., Tensor]
    """The baseline that answers."""

    def __call__(self, prompt: Prompt, **options: Any) -> Tensor:
        """The baseline's predictions; `options` are passed on to it."""
        return self.baseline(replace(prompt, xs=prompt.xs.sign()), **options)


def on_signs(baseline: Callable[..., Tensor]) -> OnSigns:
    """`baseline` on sign(x), which is all that a tree splitting at 0 depends on. Ref: yang24, Fig. 10b."""
    return OnSigns(baseline)
