"""Position encodings, which tell attention the order of its inputs.

`sinusoidal` and `Learned` are added to the embeddings; `Rotary` rotates queries and keys, so that
their dot product depends on their distance, and its scalings extend it to longer texts.
"""

from intently.foundation.on_demand import listed
from intently.positions.absolute import Learned, sinusoidal
from intently.positions.rotary import Rotary
from intently.positions.scaling import DynamicNTK, Linear, Llama3, LongRope, Scaling, YaRN

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
