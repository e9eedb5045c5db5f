"""Parts of a block: what a key's bias does, and does not do."""

import pytest
import torch
import torch.nn.functional as F

from looped.models.blocks import Attention, stack


def attention(dtype, heads=2, width=8):
    torch.manual_seed(0)
    layer = Attention(width, heads=heads)
    torch.nn.init.normal_(layer.qkv.bias)
    return layer.to(dtype)


def test_attention_is_the_textbooks_with_every_bias():
    """Softmax does not see what is added to all scores of a query, so a key's bias may be left out."""
    layer, x = attention(torch.float64), torch.randn(3, 5, 8, dtype=torch.float64)
    assert layer.qkv.bias[8:16].abs().min() > 0
    q, k, v = F.linear(x, layer.qkv.weight, layer.qkv.bias).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    scores = (q @ k.mT / 2).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    expected = layer.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(3, 5, 8))
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("models", [1, 2])
def test_a_keys_bias_never_moves(models):
    """Its slope is exactly 0, and not rounding, of which Adam would make whole steps."""
    layer = attention(torch.float32) if models == 1 else stack([attention(torch.float32)] * models)
    x = torch.randn(*([] if models == 1 else [models]), 3, 5, 8)
    layer(x).square().sum().backward()
    of_q, of_k, of_v = layer.qkv.bias.grad.chunk(3, -1)
    assert not of_k.any()
    assert of_q.abs().min() > 0 < of_v.abs().min()
