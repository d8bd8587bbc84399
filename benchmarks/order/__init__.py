"""What orders bring on a server, live: see ``__main__``."""
