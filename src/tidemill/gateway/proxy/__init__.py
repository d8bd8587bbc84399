"""Requests on their way through: read as far as routing needs, forwarded as they are."""
