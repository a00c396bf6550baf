"""How attention works, in animations of your own numbers.

Each story is one call on real tensors, matrices or modules and returns an `Animation`, which
``save=`` writes as a GIF or as a page that plays offline. `product`, `temperature` and `dictionary`
explain one query, `matrices` all of them, `projections`, `heads`, `permutation` and `convolution` a
layer, `readings` and `writing` a model.
"""

from intently.show.animate.animation import Animation
from intently.show.animate.stories.convolution import convolution
from intently.show.animate.stories.dictionary import dictionary
from intently.show.animate.stories.heads import heads
from intently.show.animate.stories.matrices import matrices
from intently.show.animate.stories.permutation import permutation
from intently.show.animate.stories.product import product
from intently.show.animate.stories.projections import projections
from intently.show.animate.stories.readings import readings
from intently.show.animate.stories.temperature import temperature
from intently.show.animate.stories.writing import writing

__all__ = [
    "Animation",
    "convolution",
    "dictionary",
    "heads",
    "matrices",
    "permutation",
    "product",
    "projections",
    "readings",
    "temperature",
    "writing",
]
