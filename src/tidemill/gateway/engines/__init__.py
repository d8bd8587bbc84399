"""What is different from engine to engine: where health and gauges are, and what they are called."""
