"""What an examination finds, and how it is told."""
