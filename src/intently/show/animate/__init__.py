"""How attention works, in animations of your own numbers.

Each story is one call on real tensors, matrices or modules and returns an `Animation`, which
``save=`` writes as a page that plays offline. `product` and `dictionary` explain one
query, `heads`, `permutation` and `convolution` a layer, `writing` a model.
"""

from intently.show.animate.animation import Animation
from intently.show.animate.stories.convolution import convolution
from intently.show.animate.stories.heads import heads
from intently.show.animate.stories.permutation import permutation
from intently.show.animate.stories.queries import dictionary, product
from intently.show.animate.stories.writing import writing

__all__ = ["Animation", "convolution", "dictionary", "heads", "permutation", "product", "writing"]
