"""One program for each mistake."""
