"""The demo: an attention model learns to translate, and shows its attention."""
