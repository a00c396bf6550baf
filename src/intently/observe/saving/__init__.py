"""Recordings as files."""
