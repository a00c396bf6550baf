"""Collected mistakes and their mended twins: data, which `benchmarks.checking.over_field` runs."""
