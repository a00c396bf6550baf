"""Weights of any code: `reading` reads and checks them, `loading` loads all or none."""
