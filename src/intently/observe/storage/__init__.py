"""Where queries and keys are kept."""
