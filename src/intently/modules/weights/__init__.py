"""Anybody's weights: read, checked, copied."""
