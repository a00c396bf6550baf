"""The figures, one file each."""
