"""Other ways to the same numbers: settings, returned weights, steps with a cache."""
