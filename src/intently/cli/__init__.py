"""The commands: thin; what they run is library code below them."""
