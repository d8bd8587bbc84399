"""Where a request goes. Pure: numbers, an injected clock and injected randomness; no sockets, no text, no wall time."""
