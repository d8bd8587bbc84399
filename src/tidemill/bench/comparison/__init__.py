"""Two runs, or two targets in turns: what differs, and what cannot be told apart."""
