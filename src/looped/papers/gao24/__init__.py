"""gao24, On the Expressive Power of a Variant of the Looped Transformer: recipes.

Scales: `paper` has the paper's tasks and architecture (D=256, 8 heads, d=20, N=40) with a training of our own, one to
two minutes on one GPU; recipes named `_published` have the paper's training instead (Adam, 500k steps). `cpu` is a
smaller model that learns in a minute on two cores, translation on one GPU, `gao24.linear` excepted, whose training is
too short to learn anything; `smoke` runs in seconds and shows only that the machinery works.

As printed the loop reads pre(X) only as its first state, so that gradient must flow through all loops, or pre is never
trained. Here pre(X) is injected into every loop instead, as yang24 injects the prompt, and gradient flows through the
last dT loops: at `cpu` scale as good after T loops, and flat beyond them where the printed form grows worse. The
printed form is `as_printed`, the recipes named `_printed`, and Figure 3.
"""

from dataclasses import replace

from looped.experiment import Adam, Experiment, Scale, training
from looped.functional.schedules import Trapezoid
from looped.models.algoformer import AlgoFormerConfig, Part
from looped.papers.gao24.trainings import CPU, PAPER, SMOKE, STEPS, as_published
from looped.papers.gao24.variants import as_looped, as_printed, as_standard, with_task
from looped.tasks.regression import LinearRegression
from looped.tasks.sequences import AutoRegression, ChainOfThought, RepresentationRegression
from looped.tasks.translation import Translation

ALGOFORMER = AlgoFormerConfig(d=20, width=256, positions=82, loops=20, inject="add", loop_norm=True)
_FOUR, _TWO = Part(heads=4), Part(heads=2)
SMALL = replace(ALGOFORMER, d=3, width=32, positions=32, loops=4, pre=_FOUR, loop=_FOUR, post=_FOUR)
TINY = replace(ALGOFORMER, d=2, width=8, positions=16, loops=3, pre=_TWO, loop=_TWO, post=_TWO)


def regression(scale: Scale = "cpu") -> Experiment:
    """Regression with representation, AlgoFormer (Fig. 2a, 3, 4)."""
    model, train = {"smoke": (TINY, SMOKE), "cpu": (SMALL, CPU), "paper": (ALGOFORMER, PAPER)}[scale]
    return Experiment(name="gao24.regression", task=RepresentationRegression(d=model.d), model=model, train=train)


def autoregression(scale: Scale = "cpu") -> Experiment:
    """AR(3) with representation, AlgoFormer (Fig. 2b); with less noise at `cpu`, where a small model must find it."""
    task = {
        "smoke": AutoRegression(d=2, order=2),
        "cpu": AutoRegression(d=3, noise=0.1, hidden=8, representation=3),
        "paper": AutoRegression(),
    }[scale]
    points = {"smoke": 5, "cpu": 16, "paper": 40}[scale]
    return _sequences(with_task(regression(scale), "gao24.autoregression", task, points), scale)


def chain_of_thought(scale: Scale = "cpu") -> Experiment:
    """Chain of thought with MLPs of 6 layers, AlgoFormer (Fig. 2c); of 2 layers at small scales."""
    task = {
        "smoke": ChainOfThought(d=2, layers=2),
        "cpu": ChainOfThought(d=2, layers=2, slope=0.25),
        "paper": ChainOfThought(),
    }[scale]
    points = {"smoke": 3, "cpu": 8, "paper": 41}[scale]
    return _sequences(with_task(regression(scale), "gao24.chain_of_thought", task, points), scale)


def regression_looped(scale: Scale = "cpu") -> Experiment:
    """Regression with representation, the vanilla looped model: no pre, no post, X injected in every loop (Fig. 2a)."""
    return _looped(regression(scale))


def regression_12_layers(scale: Scale = "cpu") -> Experiment:
    """Regression with representation, a standard transformer of 12 layers; of 6 at small scales (Fig. 2a)."""
    return _standard(regression(scale), scale)


def regression_printed(scale: Scale = "cpu") -> Experiment:
    """Regression with representation, the AlgoFormer as printed: nothing injected, gradient through all loops."""
    return _printed(regression(scale))


def regression_published(scale: Scale = "cpu") -> Experiment:
    """Regression with representation, AlgoFormer, trained as the paper says: Adam, and at `paper` scale 500k steps."""
    return _published(regression(scale), scale)


def autoregression_looped(scale: Scale = "cpu") -> Experiment:
    """AR with representation, the vanilla looped model: no pre, no post, X injected in every loop (Fig. 2b)."""
    return _looped(autoregression(scale))


def autoregression_12_layers(scale: Scale = "cpu") -> Experiment:
    """AR with representation, a standard transformer of 12 layers; of 6 at small scales (Fig. 2b)."""
    return _standard(autoregression(scale), scale)


def autoregression_printed(scale: Scale = "cpu") -> Experiment:
    """AR with representation, the AlgoFormer as printed: nothing injected, gradient through all loops."""
    return _printed(autoregression(scale))


def autoregression_published(scale: Scale = "cpu") -> Experiment:
    """AR with representation, AlgoFormer, trained as the paper says: Adam, and at `paper` scale 500k steps."""
    return _published(autoregression(scale), scale)


def chain_of_thought_looped(scale: Scale = "cpu") -> Experiment:
    """Chain of thought with MLPs, the vanilla looped model: no pre, no post, X injected in every loop (Fig. 2c)."""
    return _looped(chain_of_thought(scale))


def chain_of_thought_12_layers(scale: Scale = "cpu") -> Experiment:
    """Chain of thought with MLPs, a standard transformer of 12 layers; of 6 at small scales (Fig. 2c)."""
    return _standard(chain_of_thought(scale), scale)


def chain_of_thought_printed(scale: Scale = "cpu") -> Experiment:
    """Chain of thought with MLPs, the AlgoFormer as printed: nothing injected, gradient through all loops."""
    return _printed(chain_of_thought(scale))


def chain_of_thought_published(scale: Scale = "cpu") -> Experiment:
    """Chain of thought with MLPs, AlgoFormer, trained as the paper says: Adam, and at `paper` scale 500k steps."""
    return _published(chain_of_thought(scale), scale)


def linear(scale: Scale = "cpu") -> Experiment:
    """Linear regression, AlgoFormer, to be compared with gradient descent and Newton's method (Fig. 5)."""
    base = regression(scale)
    return replace(base, name="gao24.linear", task=LinearRegression(d=base.task.d))


def linear_published(scale: Scale = "cpu") -> Experiment:
    """Linear regression, AlgoFormer, trained as the paper says: Adam, and at `paper` scale 500k steps."""
    return _published(linear(scale), scale)


def translation(scale: Scale = "cpu") -> Experiment:
    """German to English, AlgoFormer with T=12, dT=10 (the table); a minute or more on a GPU, hours on a CPU.

    Sizes are for Multi30k, 29,000 short pairs, which 2,000 steps of 64 read 4.4 times.
    """
    base = _translation(scale)
    if scale == "smoke":
        return base
    rates = Adam(learning_rate=1e-3, clip=1.0, schedule=Trapezoid(warmup=0.05, decay=0.5))
    base = training(base, steps=3000, optimizer=rates, log_every=100, checkpoint_every=1000)
    return training(base, steps=2000, dropout=0.1, dtype="bfloat16") if scale == "paper" else base


def translation_published(scale: Scale = "cpu") -> Experiment:
    """German to English, AlgoFormer, trained as the paper says: Adam 5e-5, and at `paper` scale 500k steps.

    For a corpus of IWSLT's size, 128 tokens and 8,000 words at `paper` scale: `--set task.corpus=FOLDER`.
    """
    base = _translation(scale, words=8000, points=128) if scale == "paper" else translation(scale)
    named = as_published(base, steps=500_000 if scale == "paper" else base.train.steps)
    return training(named, optimizer=Adam(learning_rate=5e-5))


def _translation(scale: Scale, *, words: int = 4000, points: int = 72) -> Experiment:
    """The AlgoFormer of the table and its corpus, with the paper's training but for `smoke`."""
    words, points = (600, 96) if scale == "smoke" else (words, points)
    loops, window = (3, 2) if scale == "smoke" else (12, 10)
    shape = {"tokens": "given", "d": 1, "vocabulary": words, "positions": points, "loops": loops}
    train = SMOKE if scale == "smoke" else as_published(regression("paper")).train
    return Experiment(
        name="gao24.translation",
        task=Translation(vocabulary=words, limit=200 if scale == "smoke" else None),
        model=replace(TINY if scale == "smoke" else ALGOFORMER, **shape),
        train=replace(train, points=points, window=window, grad=window),
    )


def _sequences(base: Experiment, scale: Scale) -> Experiment:
    """At `paper` scale the task's own steps, and all dimensions from the first one on."""
    return training(base, steps=STEPS[base.name.removeprefix("gao24.")], dims=None) if scale == "paper" else base


def _looped(base: Experiment) -> Experiment:
    return replace(as_looped(base), name=f"{base.name}_looped")


def _standard(base: Experiment, scale: Scale) -> Experiment:
    return replace(as_standard(base, 12 if scale == "paper" else 6), name=f"{base.name}_12_layers")


def _printed(base: Experiment) -> Experiment:
    return replace(as_printed(base), name=f"{base.name}_printed")


def _published(base: Experiment, scale: Scale) -> Experiment:
    return as_published(base) if scale == "paper" else as_published(base, steps=base.train.steps)
