"""What a recording holds, and what it tells."""
