"""Masks of transformers as ours, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.errors import ArgumentError, KernelError
from intently.interop.transformers import register
from intently.interop.transformers.backend import (
    MaskReader,
    RuleTensor,
    attention_forward,
    make_mask,
)

from ..show.refusals import refuses
from .registered_models import SMALL, decoders, pair
from .tiny_models import close, ids, padded


def functions() -> dict[str, Any]:
    """Mask functions as transformers joins them, for 2 rows and 9 positions."""
    from transformers import masking_utils as theirs

    left = torch.tensor([0, 3])
    blocks = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1, -1], [0, 0, -1, -1, -1, 1, 1, 2, 2]])
    causal = theirs.causal_mask_function
    return {
        "causal": causal,
        "both ways": theirs.bidirectional_mask_function,
        "window": theirs.sliding_window_causal_mask_function(3),
        "window both ways": theirs.sliding_window_bidirectional_mask_function(2),
        "chunks": theirs.chunked_causal_mask_function(4, left),
        "blocks": theirs.or_masks(causal, theirs.blockwise_overlay(blocks)),
    }


@pytest.mark.parametrize("name", functions())
@pytest.mark.parametrize(
    "t, s, q_offset, kv_offset",
    [(9, 9, 0, 0), (1, 9, 8, 0), (3, 7, 4, 0), (3, 9, 0, 0), (3, 5, 6, 4), (2, 9, 3, 0)],
)
def test_masks_are_theirs(name: str, t: int, s: int, q_offset: int, kv_offset: int) -> None:
    from transformers.masking_utils import sdpa_mask

    side = (None, "left", "right")[(t + q_offset) % 3]
    seen = None if side is None else padded(side, t=9, n=2).bool()
    given = (2, t, s, torch.tensor(q_offset), kv_offset, functions()[name], seen)
    found, want = make_mask(*given), sdpa_mask(*given, allow_is_causal_skip=False)
    assert isinstance(found, RuleTensor) and found.shape == want.shape
    assert torch.equal(found.dense(), want)


def test_offsets_that_stay_on_the_device() -> None:
    """Static caches count their steps in a tensor, which an accelerator is not asked for."""
    offset = torch.tensor(3)
    for name, function in functions().items():
        rule = MaskReader(2, 9, offset, offset, 0).read(function)
        want = MaskReader(2, 9, 3, 3, 0).read(function)
        assert rule is not None and want is not None
        q, k = torch.randn(2, 1, 2, 4), torch.randn(2, 1, 9, 4)
        found, right = (it.attention(q, k, k, mask=m) for m in (rule, want))
        assert torch.equal(found, right), name


@pytest.mark.parametrize("vmapped", [False, True])
def test_mask_functions_of_the_caller_are_written_out(vmapped: bool) -> None:
    from transformers.masking_utils import and_masks, causal_mask_function

    def even(b: Any, h: Any, i: Any, j: Any) -> Any:
        return j % 2 == 0

    found = make_mask(
        2, 4, 4, mask_function=and_masks(causal_mask_function, even), use_vmap=vmapped
    )
    want = torch.ones(4, 4, dtype=torch.bool).tril() & (torch.arange(4) % 2 == 0)
    assert type(found) is Tensor and torch.equal(found, want.expand(2, 1, 4, 4))


def test_decoders_that_look_both_ways() -> None:
    eager, ours = pair("LlamaForCausalLM", {**SMALL, "is_causal": False})
    for mask in (None, padded("right")):
        with torch.no_grad():
            want = eager(ids(), attention_mask=mask, use_cache=False).logits
            close(ours(ids(), attention_mask=mask, use_cache=False).logits, want, mask)


def test_gradient_checkpoints() -> None:
    def gradient() -> Tensor:
        logits = ours(ids(), attention_mask=padded("right"), use_cache=False).logits
        return torch.autograd.grad(logits.square().sum(), ours.model.embed_tokens.weight)[0]

    ours = decoders("gemma2")[1].train()
    plain = gradient()
    ours.gradient_checkpointing_enable()
    close(gradient(), plain)


def test_dropout_acts_in_training_alone() -> None:
    _, ours = pair("LlamaForCausalLM", {**SMALL, "attention_dropout": 0.5})
    with torch.no_grad():
        assert torch.equal(ours(ids()).logits, ours(ids()).logits)
        ours.train()
        assert not torch.equal(ours(ids()).logits, ours(ids()).logits)


def test_rule_tensors_act_as_tensors() -> None:
    mask = RuleTensor(it.causal(), 2, 3, 5, torch.device("cpu"))
    dense = torch.ones(3, 5, dtype=torch.bool).tril(2)
    assert torch.equal(mask[:, :, -1:, :4], dense[-1:, :4].expand(2, 1, 1, 4))
    assert torch.equal(~mask, (~dense).expand(2, 1, 3, 5))
    assert repr(mask) == "RuleTensor(causal(), (2, 1, 3, 5))"
    refuses(
        ArgumentError,
        {
            "mask: expected operations that make a new tensor": lambda: mask.__setitem__(0, False),
            "got aten.logical_not_": mask.logical_not_,
        },
    )


def test_other_caches_and_masks_are_refused() -> None:
    module, x = torch.nn.Module(), torch.zeros(1, 1, 2, 4)
    with pytest.raises(KernelError, match="cache: expected keys and values that lie in one piece"):
        attention_forward(module, x, x, x, None, cache=object())
    told = r"attention_mask: expected shape \(b, 1 or h, t=2, s=2"
    with pytest.raises(ArgumentError, match=told):
        attention_forward(module, x, x, x, torch.ones(1, 2))


def test_releases_with_other_mask_functions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "sdpa_mask", lambda batch_size, cache_position: None)
    with pytest.raises(KernelError, match="transformers: expected a release that tells mask"):
        register()


@pytest.mark.parametrize("first_token", ["read", "not read"])
def test_the_loss_reads_the_last_query_of_a_padding_on_the_left(first_token: str) -> None:
    eager, ours = decoders("llama")
    seen, labels = padded("left"), ids()
    labels[-1, : 4 if first_token == "read" else 5] = -100
    losses = []
    for model in (eager, ours):
        losses.append(model(ids(), attention_mask=seen, labels=labels).loss)
        losses[-1].backward()
    apart = max(
        float((p.grad - q.grad).abs().max()) for p, q in zip(eager.parameters(), ours.parameters())
    )
    differs = first_token == "read"
    assert ((losses[0] - losses[1]).abs() > 1e-3).item() == (apart > 1e-3) == differs
    assert differs or ((losses[0] - losses[1]).abs() < 1e-5 and apart < 2e-5)
