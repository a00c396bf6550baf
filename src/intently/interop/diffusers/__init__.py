"""Diffusers' attention: `load` and `dump` for its blocks, and a processor that runs Intently.

Where diffusers differs from us in use:

* masks are numbers added to the scores (0 where attention is allowed, −10000 elsewhere). A row
  without keys is not masked at all there, because softmax ignores a constant added to a whole row;
  here such a row is zero. A boolean mask means the same in both: True means attend;
* ``dropout`` acts on the output of `Attention`, not on the weights;
* what a module computes depends on its processor, so `load` refuses unknown ones. Biases are read
  from the projections: the constructor's ``bias`` does not cover the output projection;
* some processors respect ``upcast_attention``; ours always sums half types in float32;
* `Transformer2DModel` returns an object with the image in its ``sample``; made for a context and
  called without one, it attends to the pixels or to nothing. Ours returns the image, or raises an
  error.

Weights are copied with dtype and device; train or eval mode and ``requires_grad`` are kept.
"""

from intently.foundation.on_demand import listed, require
from intently.interop.blocks import ResidualAttention
from intently.interop.diffusers.loading import dump, load
from intently.interop.diffusers.processor import IntentlyAttnProcessor, register, unregister

__all__ = ["IntentlyAttnProcessor", "ResidualAttention", "dump", "load", "register", "unregister"]

__dir__ = listed(__name__)

require("diffusers", "has these blocks")
