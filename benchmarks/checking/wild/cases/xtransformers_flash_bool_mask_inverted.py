"""attn_flash hands over a mask in which True is hidden, where True is read as attend."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, flipped, tokens

meta = {
    "package": "x-transformers",
    "url": "https://github.com/lucidrains/x-transformers/issues/160",
    "kind": "mistake",
    "name": ("mask-inverted",),
    "intent": {"arguments": {"mask": "attend"}},
    "needs": {"affected": ("xt-1.14.0",), "mended": ()},
}


def make() -> Adapter:
    """An encoder of one layer on the fused path."""
    from x_transformers import Encoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Encoder(dim=32, depth=1, heads=4, attn_dim_head=8, attn_flash=True)
    model = TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers).eval()
    return Adapter(model, lambda m, input_ids, mask: m(input_ids, mask=mask))


def inputs() -> dict[str, Tensor]:
    """Five tokens, and three of padding."""
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[:, 5:] = False
    return {"input_ids": tokens(2, 8), "mask": mask}


def wrong() -> tuple[bool, float]:
    """Outputs change with padding."""
    encode, given = make(), inputs()
    changed = {**given, "input_ids": flipped(given["input_ids"], 6)}
    effect = apart(encode(**changed)[:, :5], encode(**given)[:, :5])
    return effect > 1e-3, effect
