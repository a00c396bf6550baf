"""Caches of keys and values, and the masks over what they hold."""
