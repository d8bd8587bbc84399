"""How fast this machine runs a model, and what of the hardware's limit that is."""
