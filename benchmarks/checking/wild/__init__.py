"""Attention mistakes that shipped: small programs against the affected and the mended releases."""

from benchmarks.checking.wild import caches, masks, weights
from benchmarks.checking.wild.program import PROGRAMS

__all__ = ["PROGRAMS", "caches", "masks", "weights"]
