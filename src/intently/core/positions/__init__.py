"""Position encodings, which tell attention the order of its inputs.

`sinusoidal` and `Learned` are added to the embeddings; `Rotary` rotates queries and keys, so that
their dot product depends on their distance, and its scalings extend it to longer texts.
"""

from intently.core.positions.absolute import Learned, sinusoidal
from intently.core.positions.rotary import Rotary
from intently.core.positions.scaling import DynamicNTK, Linear, Llama3, LongRope, Scaling, YaRN
from intently.foundation.on_demand import listed

__all__ = [
    "DynamicNTK",
    "Learned",
    "Linear",
    "Llama3",
    "LongRope",
    "Rotary",
    "Scaling",
    "YaRN",
    "sinusoidal",
]

__dir__ = listed(__name__)
