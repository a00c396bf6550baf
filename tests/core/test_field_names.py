"""Names of other libraries are answered with ours, in calls and constructors."""

from __future__ import annotations

import inspect
import os
import re
from typing import Any

import pytest
import torch

import intently as it
from intently.errors import KindError
from intently.nn import (
    AdditiveAttention,
    AttentionHead,
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    ImageAttention,
    MultiHeadAttention,
    Projections,
)
from intently.nn.models.transformer import TransformerOptions

pytestmark = pytest.mark.skipif(
    "INTENTLY_ANNOTATIONS" in os.environ, reason="the checks of annotations answer first"
)

X = torch.randn(2, 5, 16)
LAYER = MultiHeadAttention(16, 4)

CALLS: dict[str, tuple[Any, str]] = {
    "embed_dim": (lambda **o: MultiHeadAttention(heads=4, **o), "width="),
    "num_heads": (lambda **o: MultiHeadAttention(16, **o), "heads="),
    "n_heads": (lambda **o: MultiHeadAttention(16, **o), "heads="),
    "is_causal": (lambda **o: it.attend(X, X, **o), "mask=it.causal()"),
    "use_causal_mask": (lambda **o: LAYER(X, **o), "mask=it.causal()"),
    "causal": (
        lambda **o: MultiHeadAttention(16, 4, **o),
        "attention=AttentionOptions(mask=it.causal())",
    ),
    "attn_mask": (lambda **o: it.attention(X, X, X, **o), "mask=, in which True means attend"),
    "key_padding_mask": (lambda **o: LAYER(X, **o), "mask=it.padding(~key_padding_mask)"),
    "attention_mask": (lambda **o: LAYER.attend(X, **o), "mask=it.padding(attention_mask.bool())"),
    "dropout_p": (lambda **o: it.attention(X, X, X, **o), "dropout="),
    "attn_drop": (lambda **o: AttentionHead(16, 4, **o), "dropout="),
    "temperature": (lambda **o: it.attend(X, X, **o), "scale=1 / (temperature * d**0.5)"),
    "softmax_scale": (lambda **o: it.attention(X, X, X, **o), "scale="),
    "d_model": (lambda **o: EncoderLayer(heads=2, inner=8, **o), "width="),
    "nhead": (lambda **o: DecoderLayer(16, inner=8, **o), "heads="),
    "dim_feedforward": (lambda **o: EncoderLayer(16, 2, **o), "inner="),
    "head_dim": (lambda **o: MultiHeadAttention(16, 4, **o), "head_widths=(d, e)"),
    "bias": (lambda **o: MultiHeadAttention(16, 4, **o), "projections=Projections(bias=…)"),
    "use_bias": (lambda **o: Projections(**o), "bias="),
    "kdim": (lambda **o: ImageAttention(16, 4, **o), "context_width="),
    "num_attention_heads": (lambda **o: TransformerOptions(9, 9, **o), "heads="),
    "embedding_dim": (lambda **o: FeedForward(inner=4, **o), "width="),
    "mask": (lambda **o: MultiHeadAttention(16, 4, **o), "attention=AttentionOptions(…)"),
    "softcaps": (lambda **o: AttentionOptions(**o), "softcap="),
    "window_size": (lambda **o: it.window(**o), "before=window_size - 1, after=0"),
    "valid_lens": (lambda **o: it.padding(**o), "lengths="),
    "number_of_heads": (lambda **o: it.alibi(**o), "heads="),
    "query_dim": (lambda **o: AdditiveAttention(context_width=4, hidden=4, **o), "width="),
}


@pytest.mark.parametrize("theirs", CALLS)
def test_a_name_is_answered_with_ours(theirs: str) -> None:
    call, ours = CALLS[theirs]
    said = rf"got {theirs}\. For {theirs} write {re.escape(ours)}"
    with pytest.raises(KindError, match=said):
        call(**{theirs: 1})


@pytest.mark.parametrize(
    ("call", "theirs"),
    [
        (lambda **o: MultiHeadAttention(16, 4, **o), "batch_first"),
        (lambda **o: LAYER(X, **o), "need_weights"),
        (lambda **o: LAYER(X[0], **o), "need_weights"),
        (lambda **o: it.attention(X, X, X, **o), "enable_gqa"),
        (lambda **o: MultiHeadAttention(16, 4, **o), "device"),
    ],
)
def test_what_is_needless_may_be_left_out(call: Any, theirs: str) -> None:
    with pytest.raises(KindError, match=f"Leave out {theirs}: "):
        call(**{theirs: True})


def test_all_names_are_answered_at_once() -> None:
    with pytest.raises(KindError, match="For embed_dim write width=; for num_heads write heads="):
        MultiHeadAttention(embed_dim=16, num_heads=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: LAYER(X, X, X), r"2 arguments without a name; got 3\. Write layer\(x\) for self"),
        (lambda: LAYER(X[0], X[0], X[0]), r"got 3\. Write layer\(x\) for self"),
        (lambda: it.attend(X, X, X), r"got 3\. Write it.attention\(q, k, v\), or it.attend\(q, k"),
        (lambda: it.attention(X, X, X, None), r"got 4\. Name the others: score=, mask="),
        (lambda: MultiHeadAttention(16, 4, 2), r"got 3\. Name the others: kv_heads="),
    ],
)
def test_arguments_without_a_name(call: Any, said: str) -> None:
    with pytest.raises(KindError, match=said):
        call()


def test_errors_inside_a_call_are_its_own() -> None:
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        LAYER()
    with pytest.raises(KindError, match="width: expected an int"):
        MultiHeadAttention("16", 4)  # type: ignore[arg-type]


def test_signatures_tell_what_may_be_passed() -> None:
    for call in (it.attend, it.attention, MultiHeadAttention, LAYER.forward, it.window, it.padding):
        kinds = {p.kind for p in inspect.signature(call).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    assert [*inspect.signature(it.attend).parameters][:4] == ["q", "k", "score", "mask"]
