"""A window of n keys does not count the query's own: each query sees one key too many."""

import numpy as np
import torch
from torch import Tensor

from wild.program import Adapter, apart, normal

meta = {
    "package": "onnxruntime",
    "url": "https://github.com/microsoft/onnxruntime/pull/25927",
    "kind": "mistake",
    "name": ("window-off-by-one",),
    "intent": {"mask": "causal() & window(2, 0)"},
    "needs": {
        "affected": ("onnxruntime-1.22.1", "onnx-1.18.0"),
        "mended": ("onnxruntime-1.24.1", "onnx-1.18.0"),
    },
}
HEADS, WIDTH, STEPS = 2, 16, 6


def make() -> Adapter:
    """The kernel of GroupQueryAttention for the CPU, with windows of three keys."""
    import onnxruntime
    from onnx import TensorProto, helper

    names = ["q", "k", "v", "past_k", "past_v", "last", "total"]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "present_k", "present_v"],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=HEADS,
        local_window_size=3,
    )
    kinds = [TensorProto.FLOAT] * 5 + [TensorProto.INT32] * 2
    given = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, kinds)]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", given, made), opset_imports=domains, ir_version=8
    )
    run = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )

    def attend(_: object, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = [x.detach().float().transpose(1, 2).flatten(2).numpy() for x in (q, k, v)]
        b, t = flat[0].shape[:2]
        past = np.zeros((b, HEADS, 0, WIDTH), np.float32)
        last = np.full((b,), t - 1, np.int32)
        values = [*flat, past, past, last, np.array(t, np.int32)]
        y = torch.from_numpy(run.run(["y"], dict(zip(names, values)))[0])
        return y.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2).to(q.dtype)

    return Adapter(None, attend)


def inputs() -> dict[str, Tensor]:
    """Six positions."""
    q, k, v = (normal(2, HEADS, STEPS, WIDTH, seed=n) for n in (1, 2, 3))
    return {"q": q, "k": k, "v": v}


def wrong() -> tuple[bool, float]:
    """The value three steps before a query has an effect."""
    attend, given = make(), inputs()
    changed = given["v"].clone()
    changed[:, :, 1] += 1
    effect = apart(attend(**{**given, "v": changed})[:, :, 4], attend(**given)[:, :, 4])
    return effect > 1e-3, effect
