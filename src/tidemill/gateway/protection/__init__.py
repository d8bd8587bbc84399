"""What keeps failures small. Pure: an injected clock and no sockets."""
