"""Who may get a request, and who gets it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

from tidemill.core.clock import Clock
from tidemill.core.errors import ModelNotFound, Overloaded, Unavailable
from tidemill.gateway.config import GatewayConfig
from tidemill.gateway.kv_events.prompt_tokens import PromptTokens
from tidemill.gateway.protection.outliers import Outliers
from tidemill.gateway.protection.retry_budget import RetryBudget
from tidemill.gateway.routing.affinity import SessionAffinity
from tidemill.gateway.routing.choice import Choice, Policy
from tidemill.gateway.routing.pins import Pin, Pins
from tidemill.gateway.routing.policies import POLICIES
from tidemill.gateway.routing.prompt import Prompt
from tidemill.gateway.routing.speed import PRESUMED
from tidemill.gateway.routing.work import Work
from tidemill.gateway.upstream import Upstream

__all__ = ["Router"]


class Router:
    """Over the upstreams of now. Belongs to one event loop; what it decides depends on its clock and its randomness."""

    def __init__(self, config: GatewayConfig, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self.outliers = Outliers(clock)
        self._tokens = PromptTokens(clock)
        self.upstreams: list[Upstream] = []
        self.expects: Callable[[str], str] = lambda _: ""
        """Why a model that there should be has no replica; empty: there should not."""
        self.change(config)

    def change(self, config: GatewayConfig) -> None:
        """Other settings from now on."""
        self._config = config
        policy: Policy = POLICIES[config.policy]()
        self._policy = SessionAffinity(policy, self._clock) if config.session_affinity else policy
        self._pins = Pins([Pin(**pin.model_dump()) for pin in config.pins])
        retries = config.retries
        self.budget = RetryBudget(self._clock, share=retries.share, least_per_second=retries.least_per_second)
        self.hedges = RetryBudget(self._clock, share=config.hedge.share, least_per_second=0.0, begins=0.0)

    def request(self) -> None:
        """A request has come: a little more may be tried again, and asked for twice."""
        self.budget.request()
        self.hedges.request()

    async def prompt(self, path: str, body: bytes, model: str) -> Prompt | None:
        """A request's prompt in token ids, where replicas' KV events can be looked up with them and they are known
        within ``tokenize_seconds``."""
        config = self._config
        return await self._tokens.of(path, body, model, config.policy, self.upstreams, seconds=config.tokenize_seconds)

    @property
    def models(self) -> Mapping[str, list[str]]:
        """The replicas of each model."""
        found: dict[str, list[str]] = {}
        for upstream in self.upstreams:
            for model in upstream.models:
                found.setdefault(model, []).append(upstream.name)
        return found

    def ready(self) -> str | None:
        """None if any replica takes work, else why none does, in one line."""
        if any(not self._bar(one, "", panic=False) for one in self.upstreams):
            return None
        return "no replica takes work: " + "; ".join(
            f"{one.name}: {self._bar(one, '', panic=False)}" for one in self.upstreams
        )

    def choose(
        self,
        work: Work,
        *,
        tried: Collection[str] = (),
        unfit: Mapping[str, str] = {},
        priority: int = 0,
    ) -> tuple[Upstream, Choice, Mapping[str, str]]:
        """(where to, why, and why not to the others by name). ``unfit``: why not, by name, for reasons of the request.
        Raises ModelNotFound, Unavailable and Overloaded."""
        serving = [one for one in self.upstreams if one.serves(work.model)]
        if not serving and (why := self.expects(work.model)):
            raise Unavailable(f"no replica serves the model {work.model[:200]!r} yet: {why}", retry_after=2.0)
        if not serving:
            raise ModelNotFound(f"no replica serves the model {work.model[:200]!r}", param="model")
        panic = self._panics(serving)
        barred = {
            one.name: bar
            for one in serving
            if (bar := self._pins.bar(work.tenant, one.name, one.own.labels) or self._bar(one, work.model, panic=panic))
        }
        barred |= unfit
        barred |= dict.fromkeys(tried, "has been tried")
        open_ones = [one for one in serving if one.name not in barred]
        if not open_ones:
            raise _nobody(serving, work.model, barred)
        self._shed(open_ones, priority)
        by_name = {one.name: one for one in open_ones}
        choice = self._policy.choose(work, [one.replica for one in open_ones], self._random)
        return by_name[choice.replica.name], choice, barred

    def _bar(self, upstream: Upstream, model: str, *, panic: bool) -> str:
        """Why it may not get a request; empty: it may."""
        if upstream.draining:
            return "is draining"
        if not upstream.healthy and not panic:
            return f"is not well: {upstream.problem}"
        if self.outliers.is_out(upstream.name) and not panic:
            return "fails more than the others"
        breaker = upstream.breaker(model)
        if not breaker.allows:
            return f"breaker {breaker.state}, for {breaker.retry_after:.1f} s"
        return ""

    def _panics(self, serving: Sequence[Upstream]) -> bool:
        """Whether so few seem well that it is not believed."""
        candidates = [one for one in serving if not one.draining]
        well = sum(one.healthy and not self.outliers.is_out(one.name) for one in candidates)
        return bool(candidates) and well < self._config.probes.panic_share * len(candidates)

    def _shed(self, open_ones: Sequence[Upstream], priority: int) -> None:
        limit = self._config.shed_seconds / (2 if priority > 0 else 1)
        shortest = min(one.replica.queue_seconds(one.replica.speed.pace(PRESUMED)) for one in open_ones)
        if shortest > limit:
            raise Overloaded(
                f"the shortest queue is {shortest:.0f} s long, and the limit is {limit:.0f} s",
                retry_after=shortest - limit,
            )


def _nobody(serving: Sequence[Upstream], model: str, barred: Mapping[str, str]) -> Unavailable:
    waits = [one.breaker(model).retry_after for one in serving if not one.draining]
    soon = min((wait for wait in waits if wait > 0), default=None)
    why = "; ".join(f"{name} {reason}" for name, reason in barred.items())
    return Unavailable(f"no replica can take the request: {why}", retry_after=soon)
