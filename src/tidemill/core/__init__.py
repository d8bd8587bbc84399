"""The vocabulary every other layer is written in.

This is the bottom: it imports the standard library and nothing else of the package.
"""
