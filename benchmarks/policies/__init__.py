"""Routing policies live, beside what the simulator says of them: see ``__main__``."""
