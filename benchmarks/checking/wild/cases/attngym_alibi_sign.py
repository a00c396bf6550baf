"""ALiBi's bias is +(q − k) · slope: distant keys are favoured."""

import torch
from torch import Tensor

from wild.program import Adapter, loaded

meta = {
    "package": "attn-gym",
    "url": "https://github.com/meta-pytorch/attention-gym/pull/86",
    "kind": "mistake",
    "name": ("bias-sign",),
    "intent": {"mask": "causal()", "bias": "alibi(4)"},
    "needs": {"affected": ("attngym-0.0.2",), "mended": ("attngym-0.0.17",)},
}


def make() -> Adapter:
    """Plain causal attention with the score function of the library."""
    library = loaded("attn_gym/mods/alibi.py")

    def run(_: None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        places = [torch.arange(n) for n in scores.shape]
        b, h, i, j = torch.meshgrid(*places, indexing="ij")
        scores = library.generate_alibi_bias(q.shape[1])(scores, b, h, i, j)
        return scores.masked_fill(j > i, float("-inf")).softmax(-1) @ v

    return Adapter(None, run)


def inputs() -> dict[str, Tensor]:
    """Equal scores, and values that show the weights."""
    equal = torch.zeros(1, 4, 8, 8)
    return {"q": equal, "k": equal, "v": torch.eye(8).expand(1, 4, 8, 8).clone()}


def wrong() -> tuple[bool, float]:
    """The weight of the farthest key over that of the nearest is above 1."""
    w = make()(**inputs())[0, 0, 7]
    return bool(w[0] > w[7]), float(w[0] / w[7])
