"""Load on an engine or a server, and what came back: one record for each request."""
