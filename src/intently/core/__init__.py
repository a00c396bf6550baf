"""Compute: the lazy matrix of attention, what it is made of, and the kernels that run it."""

from intently.foundation.on_demand import names

__getattr__ = names(__name__, {})
