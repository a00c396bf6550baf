"""attn_dropout acts in evaluation mode, although the documentation says that it is ignored."""

import importlib

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wild.program import Adapter, apart, hollow, normal, stand_in

meta = {
    "package": "torchtune",
    "url": "https://github.com/meta-pytorch/torchtune/issues/1791",
    "kind": "mistake",
    "name": ("dropout-in-eval",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("torchtune-0.3.0",)},
}


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)


def make() -> Adapter:
    """Causal self-attention, four heads on two."""
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


def inputs() -> dict[str, Tensor]:
    """Two sequences."""
    return {"x": normal(2, 6, 32)}


def wrong() -> tuple[bool, float]:
    """Two equal calls differ."""
    attend, given = make(), inputs()
    off = apart(attend(**given), attend(**given))
    return off > 1e-6, off
