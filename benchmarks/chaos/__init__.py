"""A gateway among replicas and callers that misbehave in every way that is known: see ``__main__``."""
