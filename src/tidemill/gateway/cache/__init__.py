"""Answers that were given before, and answers on their way that others ask for as well."""
