"""Recipes compared: by sentence length, by alignment."""
