"""The commands: thin layers over the library."""
