"""The grammar of the built-in language: English and French sentences, with their alignment."""
