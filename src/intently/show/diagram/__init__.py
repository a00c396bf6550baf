"""Diagrams of models: boxes, sums and arrows, laid out from the tree of a model's parts."""
