"""A model whose loss jumps goes back; without a jump the steps are Adam's."""

from functools import partial

import pytest
import torch

from looped.experiment import Adam, AdamW
from looped.functional.schedules import Trapezoid
from looped.training.clip import Clip
from looped.training.family import train_family
from looped.training.rollback import Rollback

train = partial(train_family, folder=None, rollback=Rollback())


def test_a_model_that_jumps_goes_back_and_no_other_notices():
    """Model 1 falls off a cliff at w > 0.5; models 0 and 2 have parabolas."""

    def loss(family, batch):
        w = family["w"][:, 0]
        cliff = torch.where(w > 0.5, torch.inf, 2 - w)
        return torch.stack([1 + w[0].sub(1).square(), cliff[1], 1 + w[2].sub(-1).square()])

    trained = train(
        {"w": torch.zeros(3, 1)},
        loss,
        steps=160,
        log_every=80,
        optimizer=Adam(learning_rate=0.02, betas=(0.9, 0.99), schedule=Trapezoid(decay=0.5)),
        watch=lambda family: family["w"][:, 0],
    )
    end = trained.family["w"][:, 0]
    assert trained.returns.tolist()[0] == trained.returns.tolist()[2] == 0
    assert trained.returns[1] > 0
    assert 0.3 < float(end[1]) <= 0.5
    assert end[[0, 2]].tolist() == pytest.approx([1, -1], abs=0.05)
    assert trained.watched.shape == (3, 3)
    assert trained.losses.shape == (2, 3)


def test_without_a_jump_steps_are_adam_s():
    target = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))

    def loss(family, batch):
        return (family["w"] - target).square().sum((1, 2))

    optimizer = Adam(learning_rate=0.1, betas=(0.8, 0.9))
    trained = train({"w": torch.zeros(2, 3, 4)}, loss, steps=7, optimizer=optimizer)
    w = torch.nn.Parameter(torch.zeros(2, 3, 4))
    adam = torch.optim.Adam([w], lr=0.1, betas=(0.8, 0.9))
    for _ in range(7):
        adam.zero_grad()
        loss({"w": w}, None).sum().backward()
        adam.step()
    torch.testing.assert_close(trained.family["w"], w.detach())


def test_a_tiny_clip_gives_normalised_momentum():
    norms = tuple((1e-12 / (9.0 - torch.arange(3)) ** 2).tolist())
    trained = train(
        {"w": torch.zeros(2, 3, 4)},
        lambda family, batch: (family["w"] - 1).square().sum((1, 2)),
        steps=1,
        optimizer=Adam(learning_rate=0.1, betas=(0.9, 0.9)),
        clip=Clip(norm=norms, over="layer"),
    )
    expected = 0.1 * torch.tensor(norms) / 1e-8
    torch.testing.assert_close(trained.family["w"].norm(dim=2), expected.expand(2, 3), rtol=2e-3, atol=0)


def test_a_gradient_whose_squares_overflow_is_clipped_layer_by_layer():
    gradient = torch.tensor([[[3e30, 4e30], [3.0, 4.0]]])
    Clip(norm=(1.0, 1.0), over="layer")([gradient])
    torch.testing.assert_close(gradient, torch.tensor([[[0.6, 0.8], [0.6, 0.8]]]))


def test_rollback_is_for_adam():
    with pytest.raises(ValueError, match="works with Adam alone; got AdamW"):
        train({"w": torch.zeros(2, 1)}, lambda w, _: w["w"].sum(1), steps=1, optimizer=AdamW())
