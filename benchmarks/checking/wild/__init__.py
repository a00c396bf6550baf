"""Attention mistakes that shipped: small programs against the affected and the mended releases."""
