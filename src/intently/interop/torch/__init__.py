"""PyTorch's attention layers: `load` converts them to our blocks, `dump` converts back.

Where PyTorch's layers differ from ours in use:

* in its masks, True means *forbidden*; in ours, True means attend, and `mask` converts;
* their ``is_causal`` starts at the first key (top-left); `it.causal()` lets the last query see the
  last key, as a cache needs. The two agree where t = s; elsewhere write `it.causal(offset=0)`;
* a row that may attend to nothing is zero before the output bias here. There it is NaN; with
  ``need_weights=False`` it is the output bias as here, but NaN in eval mode under ``no_grad``. In
  that mode ``nn.TransformerEncoderLayer`` gives NaN, too, and ``nn.TransformerEncoder`` zeros;
* ``nn.TransformerEncoder`` in eval mode runs a nested-tensor fast path with
  ``src_key_padding_mask``, which writes zeros at padded steps; ours computes the outputs of padded
  queries, as theirs does in train mode;
* its inputs are (t, b, c) unless ``batch_first``; ours, and those of modules from `dump`, are
  always (b, t, c).

Weights are copied with dtype and device; dropout, train or eval mode and ``requires_grad`` are
kept.
"""

from intently.foundation.on_demand import listed
from intently.interop.torch.loading import dump, load, mask

__all__ = ["dump", "load", "mask"]

__dir__ = listed(__name__)
