"""The content of a recording: matrices, labels, coverage, statistics."""
