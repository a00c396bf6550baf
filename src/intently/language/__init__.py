"""Language models of any text."""
