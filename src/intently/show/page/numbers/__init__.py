"""The numbers of a page: rounded queries and keys, masks, biases and measures of weights."""
