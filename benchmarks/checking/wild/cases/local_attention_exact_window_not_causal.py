"""The mask of exact windows is joined to the causal one by "and": neither hides anything."""

from torch import Tensor

from wild.program import Adapter, apart, normal

meta = {
    "package": "local-attention",
    "url": "https://github.com/lucidrains/local-attention/issues/5",
    "kind": "mistake",
    "name": ("mask-missing",),
    "intent": {"mask": "causal() & window(4, 0)"},
    "needs": {"affected": ("local-attention-1.2.1",), "mended": ("local-attention-1.2.2",)},
}


def make() -> Adapter:
    """Blocks of four keys that see the block before."""
    from local_attention import LocalAttention

    module = LocalAttention(window_size=4, causal=True, look_backward=1, exact_windowsize=True)
    return Adapter(module.eval(), lambda m, q, k, v: m(q, k, v))


def inputs() -> dict[str, Tensor]:
    """Twelve positions."""
    q, k, v = (normal(2, 2, 12, 8, seed=n) for n in (1, 2, 3))
    return {"q": q, "k": k, "v": v}


def wrong() -> tuple[bool, float]:
    """A later value has an effect."""
    attend, given = make(), inputs()
    changed = given["v"].clone()
    changed[:, :, 3] += 1
    effect = apart(attend(**{**given, "v": changed})[:, :, :3], attend(**given)[:, :, :3])
    return effect > 1e-3, effect
