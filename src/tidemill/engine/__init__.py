"""How requests become steps and steps become tokens, on a thread or in a process of its own."""
