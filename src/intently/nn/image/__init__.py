"""Attention over pixels."""
