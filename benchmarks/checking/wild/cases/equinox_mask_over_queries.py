"""vmap over heads takes axis 1 of a mask (h, t, s): each head is masked by a row of queries."""

import numpy as np
import torch
from torch import Tensor

from wild.program import Adapter, apart, hollow, normal, stand_in

meta = {
    "package": "equinox",
    "url": "https://github.com/patrick-kidger/equinox/pull/190",
    "kind": "mistake",
    "name": ("mask-of-other-rows",),
    "intent": {"mask": "causal()"},
    "needs": {"affected": ("equinox-0.7.0",), "mended": ("equinox-0.7.1",)},
}


def make() -> Adapter:
    """Four heads over four positions, with a causal mask for each head."""
    import jax
    import jax.numpy as jnp

    hollow("equinox", "equinox.nn")
    stand_in("jax.experimental.host_callback")
    from equinox.nn.attention import MultiheadAttention

    jax.config.update("jax_enable_x64", True)
    module = MultiheadAttention(num_heads=4, query_size=32, key=jax.random.PRNGKey(0))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((4, 4), bool)), (4, 4, 4))

    def run(_: object, x: Tensor) -> Tensor:
        out = [module(y, y, y, mask) for y in map(jnp.asarray, x.detach().numpy())]
        return torch.from_numpy(np.stack(out))

    return Adapter(None, run)


def inputs() -> dict[str, Tensor]:
    """Four positions."""
    return {"x": normal(2, 4, 32)}


def wrong() -> tuple[bool, float]:
    """Outputs change with a later position."""
    attend, x = make(), inputs()["x"]
    changed = x.clone()
    changed[:, 3] += 1
    effect = apart(attend(x=changed)[:, :3], attend(x=x)[:, :3])
    return effect > 1e-3, effect
