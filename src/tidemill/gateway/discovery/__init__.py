"""Replicas that are found: in files that others write, and under names that are looked up."""
