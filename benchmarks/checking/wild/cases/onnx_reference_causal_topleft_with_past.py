"""is_causal with a past builds a top-left triangle: new queries do not see their past."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wild.program import Adapter, apart, normal

meta = {
    "package": "onnx",
    "url": "https://github.com/onnx/onnx/pull/8068",
    "kind": "mistake",
    "name": ("mask-top-left",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("onnx-1.18.0",), "mended": ("onnx-1.23.2",)},
}


def make() -> Adapter:
    """The reference implementation of the operator, in NumPy."""
    from onnx.reference.ops import op_attention

    def run(
        _: None, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, is_causal: int
    ) -> Tensor:
        past = {"past_key": past_k.numpy(), "past_value": past_v.numpy()}
        given = (x.numpy() for x in (q, k, v))
        made = op_attention._compute_attention(*given, is_causal=is_causal, **past)
        return torch.from_numpy(np.asarray(made[0]))

    return Adapter(None, run)


def inputs() -> dict[str, Any]:
    """Three new positions after a past of four."""
    q, k, v = (normal(1, 2, 3, 8, seed=n) for n in (1, 2, 3))
    past_k, past_v = (normal(1, 2, 4, 8, seed=n) for n in (4, 5))
    return {"q": q, "k": k, "v": v, "past_k": past_k, "past_v": past_v, "is_causal": 1}


def wrong() -> tuple[bool, float]:
    """The newest key of the past has no effect on the first new query."""
    attend, given = make(), inputs()
    changed = given["past_v"].clone()
    changed[:, :, 3] += 1
    effect = apart(attend(**{**given, "past_v": changed})[:, :, 0], attend(**given)[:, :, 0])
    return effect < 1e-6, effect
