"""How attention works, told in pictures that move, from numbers of your own.

Each story is one call on real tensors, matrices or modules, and returns an `Animation`, which
``save=`` writes as a GIF or as a page that plays offline. `product`, `temperature` and `dictionary`
tell one query, `heads`, `permutation` and `convolution` a layer, `readings` and `writing` a model.
"""

from intently.show.animate.animation import Animation
from intently.show.animate.convolution import convolution
from intently.show.animate.dictionary import dictionary
from intently.show.animate.heads import heads
from intently.show.animate.permutation import permutation
from intently.show.animate.product import product
from intently.show.animate.readings import readings
from intently.show.animate.temperature import temperature
from intently.show.animate.writing import writing

__all__ = [
    "Animation",
    "convolution",
    "dictionary",
    "heads",
    "permutation",
    "product",
    "readings",
    "temperature",
    "writing",
]
