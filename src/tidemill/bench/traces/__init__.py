"""Traces: when requests came, how long they were, and what they shared. No text."""
