"""The trace: what a call does to tensors, and the sites where values meet numbers of the data."""
