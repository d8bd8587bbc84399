"""The replica whose KV cache has most room: what is kept only for later counts as room, what running requests hold does
not."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.gateway.routing.choice import Choice, Random, Score
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.simple import LeastLoad, least
from tidemill.gateway.routing.work import Work

__all__ = ["KvAware"]


class KvAware:
    """Needs gauges. Replicas that do not say, or not lately, are chosen among by load where none says."""

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """The least part of the cache in use once the request is there."""
        scores = [score for replica in replicas if (score := _score(replica, work)) is not None]
        known = {score.replica for score in scores}
        speaking = [replica for replica in replicas if replica.name in known]
        if not speaking:
            return LeastLoad().choose(work, replicas, random)
        return least(speaking, scores, random, reason="most KV cache left", within=0.01)


def _score(replica: Replica, work: Work) -> Score | None:
    headroom, gauges = replica.kv_headroom(), replica.fresh_gauges
    if headroom is None or gauges is None or not gauges.kv_tokens:
        return None
    left = headroom - max(0, work.tokens - replica.cached(work)) - work.output_tokens
    parts = {"kv_headroom_tokens": float(headroom)}
    return Score(replica=replica.name, total=1.0 - left / gauges.kv_tokens, parts=parts)
