"""Keras 3: our self-attention layer for Keras, and `load`, which makes its layers ours.

`SelfAttention` is made on first access, so that importing this module loads no Keras; after
``from intently.interop.keras import SelfAttention`` Keras can load saved models that hold one.

Where Keras's layers differ from ours in use:

* in its masks True means attend, as in ours, but a row without keys is the mean of the values there
  and zero here;
* ``use_causal_mask`` starts at the first key (top-left); `it.causal()` lets the last query see the
  last key. The two agree where t = s; elsewhere write `it.causal(offset=0)`;
* masks that Keras propagates automatically (``Embedding(mask_zero=True)``) are arguments here:
  ``mask=it.padding(lengths)``. Keras's masks also hide padded queries, whose outputs are then the
  mean of all values. A ``query_mask`` handed to `MultiHeadAttention` itself is ignored (Keras
  3.15).

Weights are copied; what is not ``trainable`` is frozen. Blocks come in eval mode, as a Keras layer
that is called without ``training`` drops nothing.
"""

from typing import Any

from intently.foundation.on_demand import listed, require
from intently.interop.keras.loading import load

__all__ = ["SelfAttention", "load"]  # pyright: ignore[reportUnsupportedDunderAll]

require("keras", "has these layers")


def __getattr__(name: str) -> Any:
    if name == "SelfAttention":
        from intently.interop.keras.layer import self_attention

        return self_attention()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__dir__ = listed(__name__)
