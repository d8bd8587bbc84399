"""Engines that the gateway starts itself, watches, and has more or fewer of."""
