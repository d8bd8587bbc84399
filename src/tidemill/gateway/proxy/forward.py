"""One request to whichever replica answers it, as an ASGI response.

    choose -> send -> hold back until something is visible -> pass on untouched
       ^                │                                        │
       └── failed ──────┴── broke, and another can go on with it ┘   as long as attempts and the retry budget last

After the first visible byte another replica is asked for the rest and never for a second answer: what was shown becomes
part of the prompt. Where that cannot be, the caller gets one error event and the end marker. A caller who hangs up ends
the request at the replica at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from tidemill.core.errors import TidemillError, Unavailable
from tidemill.core.trace import TraceValue
from tidemill.gateway.config import GatewayConfig
from tidemill.gateway.metrics import ADDED_SECONDS, BROKEN, FIRST_TOKEN_SECONDS, HEDGES, PREFIX_SOURCE, REFUSED
from tidemill.gateway.proxy.asked import Asked
from tidemill.gateway.proxy.attempt import Arrived, Attempt, arrive
from tidemill.gateway.proxy.call import Call
from tidemill.gateway.proxy.continuation import CannotContinue, Continuation, unfit
from tidemill.gateway.proxy.hedge import race
from tidemill.gateway.proxy.inflow import Inflow
from tidemill.gateway.proxy.outlet import Outlet, attended
from tidemill.gateway.proxy.shown import Shown
from tidemill.gateway.proxy.stream_watch import StreamWatch, error_ending, form_of
from tidemill.gateway.router import Router
from tidemill.gateway.routing.work import Work
from tidemill.gateway.upstream import Upstream
from tidemill.serve.deadline import HEADER as DEADLINE_HEADER
from tidemill.serve.tracing import HEADER as TRACE_HEADER
from tidemill.serve.tracing import RequestSpan

__all__ = ["ADDED_HEADER", "REPLICA_HEADER", "Forward"]

ADDED_HEADER: Final = b"x-tidemill-added-ms"
"""Milliseconds that the gateway itself took."""
REPLICA_HEADER: Final = b"x-tidemill-replica"
_HOP: Final = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "expect", "accept-encoding"),
        *("authorization", "x-api-key", "cookie", "x-request-id", "x-request-timeout"),
    )
)
"""Headers that are of one hop, or the gateway's own to say, or the caller's secret."""
_CALLERS: Final = frozenset(
    {"deadline_exceeded", "request_timeout", "invalid_request_error", "context_length_exceeded"}
)
"""Errors within an answer that are about the request."""
_PAUSE_SECONDS: Final = 1.0
"""For a replica that is full and does not say when it will not be."""


@dataclass(slots=True)
class _Failed:
    """An attempt that came to nothing, or to no end."""

    why: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    """What the replica said, where it said something."""
    shown: bool = False
    """Some of an answer was."""
    final: bool = False
    """Nobody else can do better."""


class Forward:
    """An ASGI response that runs a request."""

    def __init__(self, call: Call, asked: Asked, work: Work, *, router: Router, config: GatewayConfig) -> None:
        self._call = call
        self._asked = asked
        self._work = work
        self._router = router
        self._config = config
        self._headers = {
            name: value.decode("latin-1") for raw, value in call.headers if (name := raw.decode("latin-1")) not in _HOP
        }
        self._form = form_of(call.path)
        self._began = call.began
        """Of the attempt's own time."""
        self._own_seconds = 0.0
        """That the gateway itself took so far."""
        self._shown = Shown() if self._form == "openai" and config.resume.attempts else None
        self._rest: Continuation | None = None
        """Of an answer that has broken: what is still to come."""
        self._resumed = 0
        self._tried: list[str] = []
        self._out: Outlet | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        self._out = out = Outlet(send, self._form, stall_seconds=self._call.stall_seconds)
        await attended(self._run(out), out, receive, self._call)

    @property
    def resumed(self) -> bool:
        """More than one replica made the answer: asked again, one alone might give another."""
        return self._resumed > 0

    @property
    def ending(self) -> bytes | None:
        """What is left to send of an answer that is whole with what is being sent; None: it is not."""
        return None if self._out is None else self._out.ending

    async def _run(self, out: Outlet) -> None:
        """Attempts, until an answer is whole or nobody is left to ask."""
        self._router.request()
        prompt = await self._router.prompt(self._call.path, self._call.body, self._work.model)
        if prompt is not None:
            self._work = replace(self._work, prompt=prompt)
        failed: _Failed | None = None
        while len(self._tried) < self._config.retries.attempts:
            if self._tried and not self._router.budget.retry():
                self._call.recorder.add(REFUSED)
                break
            try:
                attempt = self._begin()
            except TidemillError as error:
                if failed is None:
                    self._call.decision.outcome = error.message
                    raise
                break
            failed = await self._attempt(attempt, out)
            if failed is None:
                if self._resumed:
                    self._call.recorder.add(BROKEN, outcome="resumed")
                return
            if failed.shown:
                self._rest = self._continuation(failed)
                if self._rest is None:
                    break
                if self._rest.nothing_left:
                    await self._finish(self._rest, out)
                    return
        assert failed is not None
        if out.started:
            await self._break_off(failed, out)
        else:
            await self._give_up(failed, out)

    def _begin(self) -> Attempt:
        """Send the request to whoever has not had it. Raises what the router raises."""
        upstream, choice, barred = self._router.choose(
            self._work, tried=self._tried, unfit=self._unfit(), priority=self._asked.urgency
        )
        record: dict[str, object] = {
            "replica": upstream.name,
            "reason": choice.reason,
            "scores": {one.replica: {"total": round(one.total, 6), **one.parts} for one in choice.scores},
            "not": dict(barred),
            "prefix_source": (source := "precise" if upstream.replica.knows(self._work) else "approximate"),
        }
        if choice.scored > len(choice.scores):
            record["scores_left_out"] = choice.scored - len(choice.scores)
        self._call.recorder.add(PREFIX_SOURCE, source=source)
        if self._rest is not None:
            record["resumes_after_tokens"] = self._rest.tokens
        self._call.decision.attempts.append(record)
        self._tried.append(upstream.name)
        permit = upstream.breaker(self._work.model).enter()
        assert permit is not None, "the router has looked"
        scope = ExitStack()
        scope.enter_context(permit)
        flight = scope.enter_context(upstream.flight(self._work))
        span = self._span(upstream)
        attempt = Attempt(upstream=upstream, permit=permit, flight=flight, scope=scope, record=record, span=span)
        sent = self._call.clock.now()
        self._own_seconds += sent - self._began
        self._began = sent
        attempt.inflow.start(upstream.client, self._request(upstream, span))
        return attempt

    def _unfit(self) -> dict[str, str]:
        """Who cannot go on with what was begun."""
        if self._rest is None:
            return {}
        found = {one.name: unfit(self._call.path, one.adapter) for one in self._router.upstreams}
        return {name: why for name, why in found.items() if why}

    def _continuation(self, failed: _Failed) -> Continuation | None:
        """What is still to come of an answer that has broken; None: nobody may be asked for it."""
        if self._shown is None or failed.final or self._resumed >= self._config.resume.attempts:
            return None
        try:
            rest = Continuation(self._call.path, self._call.body, self._shown, self._resumed + 1)
        except CannotContinue as error:
            failed.why += f"; not gone on with: {error}"
            return None
        self._resumed += 1
        return rest

    async def _finish(self, rest: Continuation, out: Outlet) -> None:
        """All tokens that were asked for had been shown when the replica broke."""
        self._call.decision.outcome = "answered"
        self._call.recorder.add(BROKEN, outcome="resumed")
        await out.body(rest.ended(), more=False)

    async def _attempt(self, attempt: Attempt, out: Outlet) -> _Failed | None:
        """None: an answer has been given, whole or with its end said."""
        failed: _Failed | None = _Failed("cancelled")
        hedge = self._config.hedge.after_seconds
        try:
            if hedge is None or out.started:
                arrived = await self._arrive(attempt)
            else:
                attempt, found = await race(attempt, self._arrive, self._second, self._lost, after=hedge)
                arrived = found.result()
            failed = await self._answer(attempt, arrived, out)
        except TimeoutError:
            self._judge(attempt, well=False)
            failed = _Failed(f"{attempt.upstream.name} had nothing to show within {self._patience:g} s")
        except OSError as error:
            self._judge(attempt, well=False)
            failed = _Failed(f"{attempt.upstream.name}: {str(error) or type(error).__name__}")
        finally:
            await attempt.end("answered" if failed is None else failed.why, self._call.recorder)
            self._began = self._call.clock.now()  # of the next attempt's own time
        return failed

    @property
    def _patience(self) -> float:
        return self._config.timeouts.first_token_seconds

    async def _arrive(self, attempt: Attempt) -> Arrived:
        shown = self._shown
        if shown is not None and self._rest is None:
            shown = Shown()  # what other attempts began with has not been shown
        now = self._call.clock.now
        return await arrive(attempt.inflow, self._form, shown, now=now, patience=self._patience)

    def _second(self) -> Attempt | None:
        """Somebody else for a request that waits, if there may be one."""
        if len(self._tried) >= self._config.retries.attempts or not self._router.hedges.retry():
            return None
        try:
            attempt = self._begin()
        except TidemillError:
            return None
        attempt.record["hedge"] = True
        return attempt

    async def _lost(self, attempt: Attempt, what: Arrived | BaseException | None) -> None:
        """One of two was not needed: it was slower, or it failed."""
        failed = isinstance(what, OSError) or (isinstance(what, Arrived) and (what.refused or what.empty))
        if failed:
            self._judge(attempt, well=False)
        self._call.recorder.add(HEDGES, outcome="lost" if attempt.record.get("hedge") else "won")
        await attempt.end("failed while another was asked" if failed else "cancelled", self._call.recorder)

    async def _answer(self, attempt: Attempt, arrived: Arrived, out: Outlet) -> _Failed | None:
        """Show what has arrived, and the rest."""
        name, flight, watch = attempt.upstream.name, attempt.flight, arrived.watch
        if arrived.status >= 400:
            return await self._refused(attempt, arrived, out)
        if watch is None:
            if out.started:
                return _Failed(f"{name} gave no stream")
            self._judge(attempt, well=True)
            flight.first()
            flight.done(*_usage(arrived.body))
            await self._whole(attempt, arrived.body, out)
            return None
        if arrived.empty:
            self._judge(attempt, well=False)
            return _Failed(f"{name} {f'began with an error: {watch.error}' if watch.error else 'gave an empty answer'}")
        self._shown = arrived.shown
        flight.first()
        took = arrived.at - flight.at
        self._call.recorder.observe(FIRST_TOKEN_SECONDS, took, replica=name)
        self._own_seconds += self._call.clock.now() - arrived.at
        if not out.started:
            headers = [*_kept(attempt.inflow.headers), *self._own(attempt.upstream)]
            await out.start(arrived.status, headers, streaming=True)
        problem = await self._pass_on(attempt.inflow, watch, arrived.held, out)
        self._judge(attempt, well=not problem and took <= self._config.breaker.slow_seconds)
        if problem:
            return _Failed(problem, shown=True, final=watch.error_code in _CALLERS, body=watch.failure)
        self._call.decision.outcome = "answered"
        flight.done(watch.output_tokens, watch.cached_tokens)
        await out.body(watch.ending, more=False)
        return None

    async def _pass_on(self, inflow: Inflow, watch: StreamWatch, held: bytes, out: Outlet) -> str:
        """The rest of a stream that has begun to be shown, but for its end; why it broke, or nothing."""
        problem = "the answer ended before it was complete"
        passed = held
        try:
            while True:
                if watch.complete:  # before it is sent: whatever ends the request meanwhile must not say otherwise
                    out.ending = watch.ending
                if passed := passed if self._rest is None else self._rest.join(passed):
                    await out.body(passed)
                if watch.error is not None:
                    return "" if watch.complete else f"the replica sent an error: {watch.error}"
                async with asyncio.timeout(self._config.timeouts.silence_seconds):
                    piece = await inflow.next()
                if not piece:
                    break
                passed = watch.feed(piece)
        except TimeoutError:
            problem = f"nothing came for {self._config.timeouts.silence_seconds:g} s"
        except OSError as error:
            problem = f"the connection broke: {str(error) or type(error).__name__}"
        return "" if watch.complete else problem  # all may be there, whatever became of the connection then

    async def _break_off(self, failed: _Failed, out: Outlet) -> None:
        """One error, as the replica said it or in our words, and the end."""
        self._call.decision.outcome = failed.why
        self._call.recorder.add(BROKEN, outcome="ended")
        ending = failed.body
        if not ending or not failed.shown:
            ending = error_ending(Unavailable(f"the answer broke off at the replica: {failed.why}"), self._form)
        elif self._form == "openai" and not ending.rstrip().endswith(b"[DONE]"):
            ending += b"data: [DONE]\n\n"
        await out.body(ending, more=False)

    async def _refused(self, attempt: Attempt, arrived: Arrived, out: Outlet) -> _Failed | None:
        """A status of 400 or more: the caller's fault goes to the caller, the replica's is tried elsewhere."""
        status, headers = arrived.status, attempt.inflow.headers
        breaker = attempt.upstream.breaker(self._work.model)
        if status in (429, 503) and (after := _seconds(headers.get("retry-after"))) is not None:
            breaker.pause(min(after, 60.0))
        elif status == 429:
            breaker.pause(_PAUSE_SECONDS)
        if arrived.refused and status != 429:
            self._judge(attempt, well=False)
        if arrived.refused or out.started:
            return _Failed(f"{attempt.upstream.name} says {status}", status, headers, arrived.body)
        self._call.decision.outcome = f"{status}"
        await self._whole(attempt, arrived.body, out)
        return None

    async def _give_up(self, failed: _Failed, out: Outlet) -> None:
        """The last failure is the answer: as the replica said it, or in our words where it said nothing."""
        self._call.decision.outcome = failed.why
        if not failed.status:
            raise Unavailable(f"no replica answered (tried {', '.join(self._tried)}): {failed.why}")
        headers = [*_kept(failed.headers), (b"content-length", str(len(failed.body)).encode())]
        if "retry-after" not in failed.headers:
            headers.append((b"retry-after", b"1"))
        await out.start(failed.status, headers)
        await out.body(failed.body, more=False)

    def _judge(self, attempt: Attempt, *, well: bool) -> None:
        if well:
            attempt.permit.success()
        else:
            attempt.permit.failure()
        self._router.outliers.saw(attempt.upstream.name, well=well)

    # --- to the replica

    def _span(self, upstream: Upstream) -> RequestSpan | None:
        if self._call.trace is None:
            return None
        said: dict[str, TraceValue] = {"server.address": upstream.own.url, "tidemill.replica": upstream.name}
        if self._rest is not None:
            said["tidemill.resumes_after_tokens"] = self._rest.tokens
        return self._call.trace.call(f"attempt {upstream.name}", said)

    def _request(self, upstream: Upstream, span: RequestSpan | None) -> bytes:
        headers = {**self._headers, **upstream.headers, "x-request-id": self._call.id}
        if span is not None:
            headers[TRACE_HEADER] = span.header
        left = self._call.deadline.left()
        if left is not None:
            headers[DEADLINE_HEADER] = f"{max(0.001, left):.3f}"
        body = self._call.body if self._rest is None else self._rest.body(upstream.adapter)
        return upstream.client.request(self._call.path.removeprefix("/v1"), headers, body)

    # --- to the caller

    async def _whole(self, attempt: Attempt, body: bytes, out: Outlet) -> None:
        if self._call.decision.outcome == "under way":
            self._call.decision.outcome = "answered"
        kept, own = _kept(attempt.inflow.headers), self._own(attempt.upstream)
        await out.start(attempt.inflow.status, [*kept, *own, (b"content-length", str(len(body)).encode())])
        await out.body(body, more=False)

    def _own(self, upstream: Upstream) -> list[tuple[bytes, bytes]]:
        self._call.recorder.observe(ADDED_SECONDS, self._own_seconds)
        return [
            (REPLICA_HEADER, upstream.name.encode()),
            (ADDED_HEADER, f"{1000 * self._own_seconds:.3f}".encode()),
        ]


def _kept(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Of a replica's headers, those that are not of one hop."""
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name not in _HOP and name not in ("date", "server")
    ]


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens_details: dict[str, object] | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


def _usage(body: bytes) -> tuple[int | None, int | None]:
    """(tokens of the answer, cached tokens of its prompt) as a whole answer tells."""
    try:
        usage = msgspec.json.decode(body, type=_Answer).usage
    except (msgspec.DecodeError, UnicodeDecodeError):
        usage = None
    if usage is None:
        return None, None
    cached = (usage.prompt_tokens_details or {}).get("cached_tokens")
    return usage.completion_tokens, cached if isinstance(cached, int) else None


def _seconds(text: str | None) -> float | None:
    """Of a Retry-After header; dates are not read."""
    return float(text) if text and text.strip().isdecimal() else None
