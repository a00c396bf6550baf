"""Editing: the doors of watching, open in the other direction."""
