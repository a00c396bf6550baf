"""Weights that are wrong in themselves: the axis of the softmax, scale, sign, heads, dropout."""

import importlib
from typing import Any, Optional

import numpy as np
import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.checking.wild.program import (
    Adapter,
    Shown,
    above,
    apart,
    hollow,
    loaded,
    mended,
    normal,
    old_timm,
    qkv,
    reaches,
    shipped,
    stand_in,
    unlike,
)


def _farthest_over_nearest(attend: Adapter, given: dict[str, Any]) -> Shown:
    w = attend(**given)[0, 0, 7]
    return above(float(w[0] / w[7]), 1.0)


@shipped(
    "meta-pytorch/attention-gym/pull/86", "bias-sign", "attngym-0.0.2", "attngym-0.0.17",
    inputs={"q": torch.zeros(1, 4, 8, 8), "k": torch.zeros(1, 4, 8, 8),
            "v": torch.eye(8).repeat(1, 4, 1, 1)},
    shows=_farthest_over_nearest, intent={"mask": "causal()", "bias": "alibi(4)"},
)  # fmt: skip
def attngym_alibi_sign() -> Adapter:
    """ALiBi's bias is +(q − k) · slope: distant keys are favoured."""
    library = loaded("attn_gym/mods/alibi.py")

    def run(_: None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        places = [torch.arange(n) for n in scores.shape]
        b, h, i, j = torch.meshgrid(*places, indexing="ij")
        scores = library.generate_alibi_bias(q.shape[1])(scores, b, h, i, j)
        return scores.masked_fill(j > i, float("-inf")).softmax(-1) @ v

    return Adapter(None, run)


ORDER = [3, 1, 5, 0, 2, 4]
"""Positions in another order: self-attention without positions does not care."""


@shipped(
    "FudanNLP/fastNLP/issues/254", "softmax-over-queries", "fastnlp-0.5.0", "fastnlp-0.5.5",
    inputs={"query": normal(2, 5, 32), "context": normal(2, 7, 32, seed=2)},
    shows=reaches("query", s_[:, 3], s_[:, 0]),
)  # fmt: skip
def fastnlp_softmax_over_queries() -> Adapter:
    """Softmax(dim=2) was written for (b, t, s); with heads, axis 2 is the queries."""
    hollow("fastNLP", "fastNLP.modules", "fastNLP.modules.encoder")
    from fastNLP.modules.encoder.attention import MultiHeadAttention

    torch.manual_seed(0)
    module = MultiHeadAttention(32, key_size=8, value_size=8, num_head=4)
    return Adapter(module.eval(), lambda m, query, context: m(query, context, context))


def _not_over_keys(attend: Adapter, given: dict[str, Any]) -> Shown:
    """The block differs from the same with the softmax over keys."""
    block, x = attend.subject, given["x"]
    q, k, v = block.projection(x.flatten(2).mT).view(2, -1, 2, 24).transpose(1, 2).chunk(3, -1)
    y = F.scaled_dot_product_attention(q, k, v, scale=block.scale)
    y = block.output(y.transpose(1, 2).reshape(2, -1, 16)).mT.reshape(x.shape)
    return above(apart(attend(x=x) - x, y))


@shipped(
    "labmlai/annotated_deep_learning_paper_implementations/issues/146", "softmax-over-queries",
    "labml-0.4.126", inputs={"x": normal(2, 32, 2, 3)}, shows=_not_over_keys,
)  # fmt: skip
def labml_ddpm_softmax_axis() -> Adapter:
    """The attention of a U-Net takes the softmax over axis i of (b, i, j, h): over queries."""
    stand_in("labml", "labml_helpers", "labml_helpers.module")
    stand_in("labml_helpers.module", Module=nn.Module)
    einsum = torch.einsum
    # newer releases of PyTorch return other strides, which the package's view() refuses
    torch.einsum = lambda *args: einsum(*args).contiguous()
    library = loaded("labml_nn/diffusion/ddpm/unet.py")
    torch.manual_seed(0)
    return Adapter(library.AttentionBlock(32, n_heads=2, d_k=8).eval(), lambda m, x: m(x))


@shipped(
    "PetrochukM/PyTorch-NLP/issues/2", "softmax-over-batch softmax-over-queries",
    "pytorch-nlp-0.1.0", "pytorch-nlp-0.2.0",
    inputs={"query": normal(3, 4, 16), "context": normal(3, 6, 16, seed=2)},
    shows=lambda f, g: above(apart(f(**g)[:1], f(**{n: x[:1] for n, x in g.items()}))),
)  # fmt: skip
def pytorchnlp_softmax_dim0() -> Adapter:
    """The softmax runs over axis 0 of (b · t, s): weights compete across the rows of the batch."""
    library = loaded("torchnlp/nn/attention.py")
    torch.manual_seed(0)
    module = library.Attention(16, attention_type="dot").eval()
    return Adapter(module, lambda m, query, context: m(query, context)[0])


def _sums_to_more(attend: Adapter, given: dict[str, Any]) -> Shown:
    """The weights of a head do not sum to 1 over positions."""
    attend(**given)
    sums = attend.subject.attn_weights[0].sum(-1)
    return above(apart(sums, torch.ones_like(sums)))


@shipped(
    "jrzaurin/pytorch-widedeep/issues/110", "softmax-over-heads", "widedeep-1.2.0",
    "widedeep-1.2.1", inputs={"x": normal(2, 7, 32)}, shows=_sums_to_more,
)  # fmt: skip
def widedeep_fastformer_softmax_over_heads() -> Adapter:
    """Fastformer pools queries with a softmax over the last axis of (b, t, h): over heads."""
    root = "pytorch_widedeep"
    inner = ("models", "models.tabular", "models.tabular.transformers")
    hollow(root, *(f"{root}.{x}" for x in inner))
    stand_in(f"{root}.wdtypes", Tensor=Tensor, Optional=Optional)
    stand_in(f"{root}.models._get_activation_fn")
    from pytorch_widedeep.models.tabular.transformers._attention_layers import AdditiveAttention

    torch.manual_seed(0)
    module = AdditiveAttention(32, 4, True, 0.0, False)
    return Adapter(module.eval(), lambda m, x: m(x))


@shipped(
    "onnx/onnx/pull/7274", "key-heads-tiled", "onnx-1.18.0", "onnx-1.23.2",
    inputs={**qkv(1, 2, 5, 8), "q": normal(1, 4, 5, 8)},
    shows=lambda f, g: above(
        apart(f(**g), F.scaled_dot_product_attention(*g.values(), enable_gqa=True))),
)  # fmt: skip
def onnx_reference_gqa_tile() -> Adapter:
    """Shared key and value heads are expanded as (0, 1, 0, 1) where (0, 0, 1, 1) is defined."""
    from onnx.reference.ops import op_attention

    def run(_: None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = op_attention._compute_attention(q.numpy(), k.numpy(), v.numpy())
        return torch.from_numpy(np.asarray(made[0]))

    return Adapter(None, run)


@shipped(
    "meta-pytorch/opacus/pull/825", "merged-by-reshape", "opacus-1.5.4",
    inputs={"x": normal(3, 6, 16)},
    shows=lambda f, g: above(apart(f(x=g["x"][:, ORDER]), f(**g)[:, ORDER])),
)  # fmt: skip
def opacus_mha_batch_first_merge() -> Adapter:
    """With batch_first, heads are merged by a view: their pieces land on other positions."""
    from opacus.layers import DPMultiheadAttention

    torch.manual_seed(0)
    module = DPMultiheadAttention(16, 4, batch_first=True).eval()
    return Adapter(module, lambda m, x: m(x, x, x, need_weights=False)[0])


@shipped(
    "openspeech-team/openspeech/issues/176", "scale-model-width", "openspeech-0.4.0",
    inputs={"x": normal(2, 6, 32), "positions": normal(2, 6, 32, seed=2)},
    shows=lambda f, g: above(f.subject.sqrt_dim / f.subject.d_head**0.5, 1.001),
)  # fmt: skip
def openspeech_relative_scale_model_width() -> Adapter:
    """Relative attention divides its scores by √c of the model, not √d of a head."""
    hollow("openspeech", "openspeech.modules")
    from openspeech.modules.relative_multi_head_attention import RelativeMultiHeadAttention

    torch.manual_seed(0)
    module = RelativeMultiHeadAttention(32, num_heads=4, dropout_p=0.0)
    return Adapter(module.eval(), lambda m, x, positions: m(x, x, x, positions))


def _unlike_pytorch(attend: Adapter, given: dict[str, Any]) -> Shown:
    module = attend.subject
    qkv = module.to_qkv(given["x"]).chunk(3, -1)
    q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in qkv)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return above(apart(attend(**given), module.to_out(y)), 1e-4)


@shipped(
    "lucidrains/vit-pytorch/issues/65", "scale-model-width", "vit-pytorch-0.6.5",
    "vit-pytorch-0.6.8", inputs={"x": normal(2, 6, 32)}, shows=_unlike_pytorch,
)  # fmt: skip
def vit_pytorch_scale_model_width() -> Adapter:
    """The scale is 1/√c of the model, not 1/√d of a head."""
    from vit_pytorch.vit_pytorch import Attention

    torch.manual_seed(0)
    return Adapter(Attention(32, heads=2, dim_head=8).eval(), lambda m, x: m(x))


@shipped(
    "huggingface/pytorch-image-models/pull/1978", "dropout-in-eval", "timm-0.9.7", "timm-0.9.8",
    inputs={"x": normal(2, 6, 32)}, shows=unlike(1e-6),
)  # fmt: skip
def timm_attention_dropout_in_eval() -> Adapter:
    """Fused attention hands its dropout to scaled_dot_product_attention in evaluation mode too."""
    old_timm()
    from timm.models.vision_transformer import Attention

    torch.manual_seed(0)
    module = Attention(32, num_heads=4, qkv_bias=True, attn_drop=0.3)
    return Adapter(module.eval(), lambda m, x: m(x))


class Dropping(nn.Module):
    """Self-attention with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        p = 0.2 if self.training or not mended() else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return y.transpose(1, 2).reshape(b, t, c)


@shipped(
    "pytorch/pytorch/issues/124464", "dropout-in-eval", "", "", inputs={"x": normal(2, 6, 32)},
    shows=unlike(1e-6),
)  # fmt: skip
def torch_sdpa_dropout_in_eval() -> Adapter:
    """scaled_dot_product_attention drops out whatever the mode: the caller has to ask."""
    torch.manual_seed(0)
    return Adapter(Dropping().eval(), lambda m, x: m(x))


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)


@shipped(
    "meta-pytorch/torchtune/issues/1791", "dropout-in-eval", "torchtune-0.3.0",
    inputs={"x": normal(2, 6, 32)}, shows=unlike(1e-6), intent={"mask": "causal()"},
)  # fmt: skip
def torchtune_attn_dropout_in_eval() -> Adapter:
    """attn_dropout acts in evaluation mode, although the documentation says that it is ignored."""
    stand_in("torchao", "torchao.dtypes", "torchao.dtypes.nf4tensor", "torchdata")
    hollow("torchtune", "torchtune.modules")
    try:
        library = importlib.import_module("torchtune.modules.attention")
    except Exception:  # what chooses the kernel needs more than is installed
        stand_in(
            "torchtune.modules.attention_utils",
            _MaskType=Tensor,
            _sdpa_or_flex_attention=lambda: _sdpa,
        )
        library = importlib.import_module("torchtune.modules.attention")
    torch.manual_seed(0)
    module = library.MultiHeadAttention(
        **dict(embed_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, max_seq_len=32),
        **dict(q_proj=nn.Linear(32, 32), k_proj=nn.Linear(32, 16), v_proj=nn.Linear(32, 16)),
        **dict(output_proj=nn.Linear(32, 32), attn_dropout=0.3),
    )
    return Adapter(module.eval(), lambda m, x: m(x, x))
