"""A page that opens anywhere: one file with every head of every layer.

It holds queries and keys, not weights; the browser computes any row, column or tile exactly from
the stored numbers. `save_page` writes it, ``seen.page(path)`` does so for a recording.
"""

from intently.show.page.contents import Highlight, Packed, packed
from intently.show.page.items import Item, Layer, Picture, Text, items_of
from intently.show.page.writing import save_page

__all__ = [
    "Highlight",
    "Item",
    "Layer",
    "Packed",
    "Picture",
    "Text",
    "items_of",
    "packed",
    "save_page",
]
