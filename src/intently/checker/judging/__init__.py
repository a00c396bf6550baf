"""Compare what was measured with what is meant, and name the difference."""
