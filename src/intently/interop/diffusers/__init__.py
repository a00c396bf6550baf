"""Diffusers' attention: `load` and `dump` of its blocks, and a processor that runs them on ours.

Where diffusers differs from us in use:

* masks are numbers added to the scores (0 where attention is allowed, −10000 elsewhere). A row
  without keys is not masked at all there, as softmax ignores what is added to all of a row; here
  it is zero. A boolean mask means the same in both: True attends;
* ``dropout`` acts on the output of `Attention`, not on the weights;
* what a module computes hangs on its processor, so `load` refuses those it does not know. Biases
  are read from the projections: the constructor's ``bias`` says nothing about the output's;
* ``upcast_attention`` is heeded by some processors; ours sums half types in float32 always;
* `Transformer2DModel` gives an output object, the image in its ``sample``, and attends the pixels
  or nothing where it was made for a context and gets none; ours gives the image, or refuses.

Weights are copied, with their dtype and device; train or eval mode is kept, and what is frozen
stays frozen.
"""

from intently.interop.diffusers.loading import dump, load
from intently.interop.diffusers.processor import IntentlyAttnProcessor, register, unregister
from intently.interop.residual_attention import ResidualAttention

__all__ = ["IntentlyAttnProcessor", "ResidualAttention", "dump", "load", "register", "unregister"]
