"""A model as data: a small graph of operations over a ragged batch of tokens, and passes over it.

It is not a compiler: a fixed vocabulary of operations, and a fixed table of at most eight fusions.
"""
