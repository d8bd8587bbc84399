"""Runs as a page: one HTML file with its pictures inside, which asks nobody for anything."""
