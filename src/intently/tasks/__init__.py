"""Use: text, corpora, training, decoding, translation, language models, and the demo."""

from intently.foundation.on_demand import listed, names

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *("text", "corpora", "training", "decoding", "translation", "language"),
    *("recipes", "runners", "demo", "play"),
]

__getattr__ = names(__name__, {})
__dir__ = listed(__name__)
