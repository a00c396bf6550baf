"""Weights that are wrong in themselves: the axis of the softmax, scale, sign, heads, dropout."""

import importlib
from typing import Optional

import numpy as np
import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.checking.wild import program as p


def _farthest_over_nearest(attend, given):
    w = attend(**given)[0, 0, 7]
    return p.above(float(w[0] / w[7]), 1.0)


SAME = torch.zeros(1, 4, 8, 8)


@p.shipped({"q": SAME, "k": SAME, "v": torch.eye(8).repeat(1, 4, 1, 1)}, _farthest_over_nearest)
def attngym_alibi_sign():
    """ALiBi's bias is +(q − k) · slope: distant keys are favoured."""
    library = p.loaded("attn_gym/mods/alibi.py")

    def run(_, q, k, v):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        places = [torch.arange(n) for n in scores.shape]
        b, h, i, j = torch.meshgrid(*places, indexing="ij")
        scores = library.generate_alibi_bias(q.shape[1])(scores, b, h, i, j)
        return scores.masked_fill(j > i, float("-inf")).softmax(-1) @ v

    return None, run


ORDER = [3, 1, 5, 0, 2, 4]
"""Positions in another order: self-attention without positions does not care."""


@p.shipped(
    {"query": p.normal(2, 5, 32), "context": p.normal(2, 7, 32, seed=2)},
    p.reaches("query", s_[:, 3], s_[:, 0]),
)
def fastnlp_softmax_over_queries():
    """Softmax(dim=2) was written for (b, t, s); with heads, axis 2 is the queries."""
    p.hollow("fastNLP", "fastNLP.modules", "fastNLP.modules.encoder")
    module = p.take("fastNLP.modules.encoder.attention", "MultiHeadAttention")(
        32, key_size=8, value_size=8, num_head=4
    )
    return module, lambda m, query, context: m(query, context, context)


def _not_over_keys(attend, given):
    """The block differs from the same with the softmax over keys."""
    block, x = attend.subject, given["x"]
    q, k, v = block.projection(x.flatten(2).mT).view(2, -1, 2, 24).transpose(1, 2).chunk(3, -1)
    y = F.scaled_dot_product_attention(q, k, v, scale=block.scale)
    y = block.output(y.transpose(1, 2).reshape(2, -1, 16)).mT.reshape(x.shape)
    return p.above(p.apart(attend(x=x) - x, y))


@p.shipped({"x": p.normal(2, 32, 2, 3)}, _not_over_keys)
def labml_ddpm_softmax_axis():
    """The attention of a U-Net takes the softmax over axis i of (b, i, j, h): over queries."""
    p.stand_in("labml", "labml_helpers", "labml_helpers.module")
    p.stand_in("labml_helpers.module", Module=nn.Module)
    einsum = torch.einsum
    # newer releases of PyTorch return other strides, which the package's view() refuses
    torch.einsum = lambda *args: einsum(*args).contiguous()
    library = p.loaded("labml_nn/diffusion/ddpm/unet.py")
    return library.AttentionBlock(32, n_heads=2, d_k=8), lambda m, x: m(x)


@p.shipped(
    {"query": p.normal(3, 4, 16), "context": p.normal(3, 6, 16, seed=2)},
    lambda f, g: p.above(p.apart(f(**g)[:1], f(**{n: x[:1] for n, x in g.items()}))),
)
def pytorchnlp_softmax_dim0():
    """The softmax runs over axis 0 of (b · t, s): weights compete across the rows of the batch."""
    library = p.loaded("torchnlp/nn/attention.py")
    module = library.Attention(16, attention_type="dot")
    return module, lambda m, query, context: m(query, context)[0]


def _sums_to_more(attend, given):
    """The weights of a head do not sum to 1 over positions."""
    attend(**given)
    sums = attend.subject.attn_weights[0].sum(-1)
    return p.above(p.apart(sums, torch.ones_like(sums)))


@p.shipped({"x": p.normal(2, 7, 32)}, _sums_to_more)
def widedeep_fastformer_softmax_over_heads():
    """Fastformer pools queries with a softmax over the last axis of (b, t, h): over heads."""
    root = "pytorch_widedeep"
    inner = ("models", "models.tabular", "models.tabular.transformers")
    p.hollow(root, *(f"{root}.{x}" for x in inner))
    p.stand_in(f"{root}.wdtypes", Tensor=Tensor, Optional=Optional)
    p.stand_in(f"{root}.models._get_activation_fn")
    kind = p.take(
        "pytorch_widedeep.models.tabular.transformers._attention_layers", "AdditiveAttention"
    )
    module = kind(32, 4, True, 0.0, False)
    return module, lambda m, x: m(x)


@p.shipped(
    {**p.qkv(1, 2, 5, 8), "q": p.normal(1, 4, 5, 8)},
    lambda f, g: p.above(
        p.apart(f(**g), F.scaled_dot_product_attention(*g.values(), enable_gqa=True))
    ),
)
def onnx_reference_gqa_tile():
    """Shared key and value heads are expanded as (0, 1, 0, 1) where (0, 0, 1, 1) is defined."""

    def run(_, q, k, v):
        made = p.take("onnx.reference.ops.op_attention", "_compute_attention")(
            q.numpy(), k.numpy(), v.numpy()
        )
        return torch.from_numpy(np.asarray(made[0]))

    return None, run


@p.shipped(
    {"x": p.normal(3, 6, 16)},
    lambda f, g: p.above(p.apart(f(x=g["x"][:, ORDER]), f(**g)[:, ORDER])),
)
def opacus_mha_batch_first_merge():
    """With batch_first, heads are merged by a view: their pieces land on other positions."""
    from opacus.layers import DPMultiheadAttention

    module = DPMultiheadAttention(16, 4, batch_first=True)
    return module, lambda m, x: m(x, x, x, need_weights=False)[0]


@p.shipped(
    {"x": p.normal(2, 6, 32), "positions": p.normal(2, 6, 32, seed=2)},
    lambda f, g: p.above(f.subject.sqrt_dim / f.subject.d_head**0.5, 1.001),
)
def openspeech_relative_scale_model_width():
    """Relative attention divides its scores by √c of the model, not √d of a head."""
    p.hollow("openspeech", "openspeech.modules")
    from openspeech.modules.relative_multi_head_attention import RelativeMultiHeadAttention

    module = RelativeMultiHeadAttention(32, num_heads=4, dropout_p=0.0)
    return module, lambda m, x, positions: m(x, x, x, positions)


def _unlike_pytorch(attend, given):
    module = attend.subject
    qkv = module.to_qkv(given["x"]).chunk(3, -1)
    q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in qkv)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return p.above(p.apart(attend(**given), module.to_out(y)), 1e-4)


@p.shipped({"x": p.normal(2, 6, 32)}, _unlike_pytorch)
def vit_pytorch_scale_model_width():
    """The scale is 1/√c of the model, not 1/√d of a head."""
    from vit_pytorch.vit_pytorch import Attention

    return Attention(32, heads=2, dim_head=8), lambda m, x: m(x)


@p.shipped({"x": p.normal(2, 6, 32)}, p.unlike(1e-6))
def timm_attention_dropout_in_eval():
    """Fused attention hands its dropout to scaled_dot_product_attention in evaluation mode too."""
    p.old_timm()
    from timm.models.vision_transformer import Attention

    module = Attention(32, num_heads=4, qkv_bias=True, attn_drop=0.3)
    return module, lambda m, x: m(x)


class Dropping(p.SelfAttention):
    """Self-attention with dropout."""

    def forward(self, x):
        rate = 0.2 if self.training or not p.mended() else 0.0
        return self.joined(F.scaled_dot_product_attention(*self.split(x), dropout_p=rate))


@p.shipped({"x": p.normal(2, 6, 32)}, p.unlike(1e-6))
def torch_sdpa_dropout_in_eval():
    """scaled_dot_product_attention drops out whatever the mode: the caller has to ask."""
    return Dropping(), lambda m, x: m(x)


def _sdpa(q, k, v, mask=None, dropout_p=0.0, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)


@p.shipped({"x": p.normal(2, 6, 32)}, p.unlike(1e-6))
def torchtune_attn_dropout_in_eval():
    """attn_dropout acts in evaluation mode, although the documentation says that it is ignored."""
    p.stand_in("torchao", "torchao.dtypes", "torchao.dtypes.nf4tensor", "torchdata")
    p.hollow("torchtune", "torchtune.modules")
    try:
        library = importlib.import_module("torchtune.modules.attention")
    except Exception:  # what chooses the kernel needs more than is installed
        names = {"_MaskType": Tensor, "_sdpa_or_flex_attention": lambda: _sdpa}
        p.stand_in("torchtune.modules.attention_utils", **names)
        library = importlib.import_module("torchtune.modules.attention")
    module = library.MultiHeadAttention(
        **dict(embed_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, max_seq_len=32),
        **dict(q_proj=nn.Linear(32, 32), k_proj=nn.Linear(32, 16), v_proj=nn.Linear(32, 16)),
        **dict(output_proj=nn.Linear(32, 32), attn_dropout=0.3),
    )
    return module, lambda m, x: m(x, x)
