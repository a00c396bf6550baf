"""The numbers of a page: rounded queries and keys, masks, biases, and what is measured of them."""
