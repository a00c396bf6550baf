"""A subject beside its reference."""
