"""How a subject is called, and a subject that can be run."""
