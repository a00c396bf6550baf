"""Flash attention asks for is_causal with a cache: a new query sees the oldest key alone."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, normal

meta = {
    "package": "x-transformers",
    "url": "https://github.com/lucidrains/x-transformers/issues/187",
    "kind": "mistake",
    "name": ("mask-top-left",),
    "intent": {"mask": "causal()", "same": [{"cached": True}]},
    "needs": {"affected": ("xt-1.21.4",), "mended": ("xt-1.23.6",)},
}


def make() -> Adapter:
    """A decoder of one layer, whole or with its last two steps from a cache."""
    from x_transformers import Decoder

    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=1, heads=4, attn_dim_head=8, attn_flash=True)

    def run(m: torch.nn.Module, x: Tensor, cached: bool = False) -> Tensor:
        if not cached:
            return m(x)
        first, cache = m(x[:, :4], return_hiddens=True)
        five, cache = m(x[:, :5], cache=cache, return_hiddens=True)
        six, _ = m(x, cache=cache, return_hiddens=True)
        return torch.cat([first, five[:, -1:], six[:, -1:]], 1)

    return Adapter(layers.eval(), run)


def inputs() -> dict[str, Tensor]:
    """Two sequences."""
    return {"x": normal(2, 6, 32)}


def wrong() -> tuple[bool, float]:
    """Steps with a cache differ from the whole pass."""
    decode, x = make(), inputs()["x"]
    off = apart(decode(x=x, cached=True), decode(x=x))
    return off > 1e-3, off
