"""Replicas' KV events: what they say that they hold, and the token ids to ask it with."""
