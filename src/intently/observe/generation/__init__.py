"""The calls of a generation, joined into one matrix."""
