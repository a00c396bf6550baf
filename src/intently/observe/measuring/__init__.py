"""What edits do to a score of a model's output, many edits at once."""
