"""Other engines on the same weights, machine and load, each in a server of its own that ends with the measurement."""
