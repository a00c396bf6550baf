"""Runs the model in a folder on a text or a picture, and watches it."""
