"""transformers: `load` converts its models; `register` runs its models on our attention.

Where transformers differs from us in use:

* a mask function must be registered beside an attention function: without it no mask is made, and
  padding is silently dropped; `register` does both;
* in its eager models a query that may attend to nothing (a padded one on the left) takes the mean
  of all values, here exactly zero; no other query is affected;
* ``position_ids`` follow the padding in ``generate`` only; a model called with a mask and without
  positions counts padded steps too, and so do ours; pass both the same ``positions``;
* about a fifth of its models (BLOOM, DeBERTa, Falcon, GPT-J, MPT, XLNet, …) do not use the
  attention interface: ``set_attn_implementation`` then logs a warning and changes nothing;
* ``config.output_attentions = True`` is allowed only with "eager"; ``output_attentions=True`` in
  the call works with ours.
"""

from intently.foundation.on_demand import listed, require
from intently.interop.blocks import TextModel, TextToText
from intently.interop.transformers.backend import register
from intently.interop.transformers.loading import load

__all__ = ["TextModel", "TextToText", "load", "register"]

__dir__ = listed(__name__)

require("transformers", "has these models")
