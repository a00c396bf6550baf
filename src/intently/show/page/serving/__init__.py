"""The page over HTTP: a server on this machine, and exact answers at any zoom."""
