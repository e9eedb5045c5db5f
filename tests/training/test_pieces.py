"""Tensors in pieces: the same memory, and the same numbers as whole."""

import pytest
import torch

from looped.training import pieces as module
from looped.training.pieces import follow, pieces

SHAPES = [(3, 5), (7,), (4, 4), ()]


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def test_pieces_are_views_cut_alike_and_hold_everything(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 8)
    first, second = tensors(0), tensors(1)
    left, right = pieces(first, second)
    assert [part.shape for part in left] == [part.shape for part in right] == [(8,), (7,), (7,), (8,), (8,), (1,)]
    assert torch.equal(torch.cat(right), torch.cat([tensor.flatten() for tensor in second]))
    for piece in left:
        piece.zero_()
    assert all(not tensor.any() for tensor in first)


def test_what_is_not_contiguous_stays_whole_in_every_list(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 8)
    left, right = pieces([torch.ones(4, 5)], [torch.ones(5, 4).T])
    assert [tensor.shape for tensor in left] == [tensor.shape for tensor in right] == [(4, 5)]


@pytest.mark.parametrize("decay", [0.1, 0.9])
def test_an_average_follows_by_a_number_as_by_a_tensor(monkeypatch, decay):
    monkeypatch.setattr(module, "PIECE", 8)
    weights, expected, by_number, by_tensor = tensors(0), tensors(1), tensors(1), tensors(1)
    for weight, other in zip(expected, weights, strict=True):
        weight.lerp_(other, 1 - decay)
    follow(by_number, weights, decay)
    follow(by_tensor, weights, torch.tensor(decay))
    for mean, number, tensor in zip(expected, by_number, by_tensor, strict=True):
        assert torch.equal(number, mean)
        torch.testing.assert_close(tensor, mean, rtol=1e-6, atol=1e-6)
