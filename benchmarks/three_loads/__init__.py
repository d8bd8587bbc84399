"""What system control brings over continuous batching alone, on three loads: see ``__main__``."""
