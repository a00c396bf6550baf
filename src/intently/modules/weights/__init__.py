"""Weights from any code: read, checked, copied."""
