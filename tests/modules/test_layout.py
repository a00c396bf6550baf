"""Weights laid out column by column are the same weights, wherever they go."""

from __future__ import annotations

import copy

import torch
from torch import nn

from intently.modules import MultiHeadAttention, by_columns


def test_numbers_names_and_shapes_stay() -> None:
    plain = MultiHeadAttention(16, 4, kv_heads=2)
    columns = by_columns(copy.deepcopy(plain))
    x = torch.randn(2, 5, 16)
    assert columns.qkv_weight.stride() == (1, len(columns.qkv_weight))
    torch.testing.assert_close(columns(x), plain(x), rtol=1e-5, atol=1e-6)
    for (name, a), (other, b) in zip(plain.state_dict().items(), columns.state_dict().items()):
        assert name == other and torch.equal(a, b)


def test_it_survives_copies_and_checkpoints() -> None:
    layer = by_columns(nn.Linear(6, 3))
    assert copy.deepcopy(layer).weight.stride() == (1, 3)
    layer.load_state_dict(nn.Linear(6, 3).state_dict())
    assert layer.weight.stride() == (1, 3)


def test_tied_weights_stay_tied_and_training_goes_on() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids))

    plain = Tied()
    columns = by_columns(copy.deepcopy(plain))
    assert columns.head.weight is columns.embedding.weight
    for model in (plain, columns):
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            model(torch.arange(7)).square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(columns.head.weight, plain.head.weight, rtol=1e-4, atol=1e-5)
