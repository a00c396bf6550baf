"""Compute: the lazy matrix of attention, what it is made of, and the kernels that run it."""

from intently.foundation.on_demand import listed, names

__all__ = ["biases", "kernels", "masks", "matrix", "positions", "scores"]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__ = names(__name__, {})
__dir__ = listed(__name__)
