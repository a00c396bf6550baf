"""Edits of PyTorch's own modules, on every path, equal its formula written out and edited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently import edits

from ...combinations import pairs

B, T, S, C, H = 2, 5, 7, 8, 2
X, MEMORY = torch.randn(3, B, S, C, generator=torch.Generator().manual_seed(1))[:2]
X = X[:, :T]
PADDED = torch.tensor([[False] * 5 + [True] * 2, [False] * 7])
LATER = torch.ones(T, T).triu(1).bool()
Rule = Callable[[Tensor], Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def formula(rule: Rule, block: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    """`nn.MultiheadAttention`, whose scores (b, h, t, s) become weights by ``rule``."""
    q, k, v = (x if block.batch_first else x.transpose(0, 1) for x in (q, k, v))
    maps = (
        block.in_proj_weight.chunk(3)
        if block._qkv_same_embed_dim
        else (block.q_proj_weight, block.k_proj_weight, block.v_proj_weight)
    )
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (block.num_heads, -1)).transpose(1, 2)
        for x, w, b in zip((q, k, v), maps, block.in_proj_bias.chunk(3))
    )
    z = q @ k.mT / q.shape[-1] ** 0.5
    for name, view in (("attn_mask", ...), ("key_padding_mask", (slice(None), None, None))):
        mask = options.get(name)
        if mask is not None:
            mask = mask[view] if view is not ... else mask
            added = mask.dtype is not torch.bool
            z = z + mask if added else z.masked_fill(mask, -torch.inf)
    weights = rule(z)
    y = block.out_proj((weights @ v).transpose(1, 2).flatten(2))
    if options.get("average_attn_weights", True):
        weights = weights.mean(1)
    y = y if block.batch_first else y.transpose(0, 1)
    return y, weights if options.get("need_weights", True) else None


@contextmanager
def written_out(model: nn.Module, name: str, rule: Rule) -> Iterator[None]:
    """Run the formula in all blocks, with the weights of one by ``rule``."""
    blocks = {n: m for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)}
    plain = partial(F.softmax, dim=-1)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for n, block in blocks.items():
            block.forward = partial(formula, rule if n == name else plain, block)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for block in blocks.values():
            del block.forward


def large(model: nn.Module) -> Any:
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.eval()


def off(head: int, z: Tensor) -> Tensor:
    weights = z.softmax(-1)
    weights[:, head] = 0
    return weights


def hidden(head: int, z: Tensor) -> Tensor:
    z = z.clone()
    z[:, head, 2:4, [0, 2]] = -torch.inf
    return z.softmax(-1)


def powered(head: int, z: Tensor) -> Tensor:
    z = z.clone()
    z[:, head] *= 2
    return z.softmax(-1)


RULES: dict[str, tuple[Callable[[int], edits.Edit], Callable[[int, Tensor], Tensor]]] = {
    "off": (lambda head: edits.off(heads=[head]), off),
    "forbid": (lambda head: edits.forbid([0, 2], heads=[head], rows=slice(2, 4)), hidden),
    "sharpen": (lambda head: edits.sharpen(2.0, heads=[head]), powered),
}


def checked(model: Any, name: str, run: Callable[[], Any], rule: str, head: int) -> None:
    """With and without gradients, which take other paths through PyTorch."""
    make, change = RULES[rule]
    for graded in (False, True):
        with torch.set_grad_enabled(graded):
            before = run()
            edit: Any = make(head) if isinstance(model, nn.MultiheadAttention) else None
            with it.edit(model, edit or {name: make(head)}):
                found = run()
            with written_out(model, name, partial(change, head)):
                expected = run()
            again = run()
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        for x, y, z in zip(*map(_outputs, (found, before, again))):
            assert torch.equal(y, z)
            assert (x - y).abs().max() > 1e-4


def _outputs(result: Any) -> list[Tensor]:
    return [x for x in (result if isinstance(result, tuple) else (result,)) if x is not None]


BLOCKS: dict[str, dict[str, Any]] = {
    "fused": {"need_weights": False},
    "weights": {"need_weights": True},
    "weights of heads": {"need_weights": True, "average_attn_weights": False},
    "padding": {"need_weights": False, "key_padding_mask": PADDED[:, :T]},
    "causal": {"attn_mask": LATER, "need_weights": True},
    "added": {"attn_mask": LATER * -2.0, "need_weights": False},
}


@pairs({"head": range(H), "rule": RULES, "options": BLOCKS})
def test_attention(options: str, rule: str, head: int) -> None:
    block = large(nn.MultiheadAttention(C, H, batch_first=True))
    checked(block, "", lambda: block(X, X, X, **BLOCKS[options]), rule, head)


@pytest.mark.parametrize("head", range(H))
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weights", [False, True])
def test_attention_of_one_text_to_another(weights: bool, rule: str, head: int) -> None:
    block = large(nn.MultiheadAttention(C, H, kdim=C, vdim=C, batch_first=False))
    q, k = X.transpose(0, 1), MEMORY[:, :T].transpose(0, 1)
    options = {"key_padding_mask": PADDED[:, 2:], "need_weights": weights}
    run = lambda: block(q, k, k, **options)  # noqa: E731
    checked(block, "", run, rule, head)


@pairs({"head": range(H), "rule": RULES, "norm_first": [False, True], "mask": [None, LATER]})
def test_encoders(mask: Tensor | None, norm_first: bool, rule: str, head: int) -> None:
    layer = nn.TransformerEncoderLayer(C, H, 12, 0.0, batch_first=True, norm_first=norm_first)
    model = large(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    run = lambda: model(X, mask=mask)  # noqa: E731
    checked(model, "layers.0.self_attn", run, rule, head)


@pytest.mark.parametrize("rule", RULES)
def test_encoders_that_pack_a_padded_batch(rule: str) -> None:
    """Without gradients, the layers get nested tensors."""
    layer = nn.TransformerEncoderLayer(C, H, 12, 0.0, batch_first=True)
    model = large(nn.TransformerEncoder(layer, 2))
    real = ~PADDED

    def run() -> Tensor:
        y = model(MEMORY, src_key_padding_mask=PADDED)
        return y * real[:, : y.shape[1], None]

    checked(model, "layers.1.self_attn", run, rule, 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["decoder.layers.0.self_attn", "decoder.layers.1.multihead_attn"])
def test_transformer(name: str, rule: str) -> None:
    model = large(nn.Transformer(C, H, 1, 2, 12, 0.0, batch_first=True))
    checked(model, name, lambda: model(MEMORY, X, tgt_mask=LATER), rule, 1)
