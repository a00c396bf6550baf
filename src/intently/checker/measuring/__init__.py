"""Measure the attention inside a subject at the sites of one run, in their own axes."""
