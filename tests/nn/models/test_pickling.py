"""Models can be pickled and copied, with all that their options hold."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import nn

import intently as it
from intently.nn import AttentionOptions
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.nn.models.shared import FOURFOLD, mlp


def test_factories_are_equal_where_they_make_the_same() -> None:
    again = pickle.loads(pickle.dumps(mlp(12, nn.functional.silu)))
    assert again == mlp(12, nn.functional.silu) and again != mlp(12) and mlp() == FOURFOLD
    assert [f(8).up.weight.shape for f in (again, mlp())] == [(12, 8), (32, 8)]  # pyright: ignore


def test_a_language_model_can_be_pickled_and_copied() -> None:
    options = LanguageOptions(
        20, width=16, feed_forward=mlp(24), attention=AttentionOptions(mask=it.window(3, 0))
    )
    model, ids = LanguageModel(options).eval(), torch.tensor([[5, 6, 7, 8, 9]])
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(again(ids), model(ids))
    plain = LanguageModel(LanguageOptions(20, width=16))
    assert pickle.loads(pickle.dumps(plain)).options == plain.options
