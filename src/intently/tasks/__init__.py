"""Use: text, corpora, training, decoding, translation, language models, and the demo."""

from intently.foundation.on_demand import names

__getattr__ = names(__name__, {})
