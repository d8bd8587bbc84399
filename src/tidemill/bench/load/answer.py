"""The events of one OpenAI-style answer, told to the watch of its request."""

from __future__ import annotations

from tidemill.bench.load.chunks import Chunk
from tidemill.bench.load.record import Outcome
from tidemill.bench.load.watch import Watch

__all__ = ["AnswerReader", "failure"]


class AnswerReader:
    """One answer. ``chunk`` for each event as it comes, ``done`` at the end marker, ``ends`` after the last byte."""

    __slots__ = ("_counted", "_watch", "finished")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._counted = 0
        """Output tokens by the usage of the last chunk that had one."""
        self.finished = False
        """A finish reason has come."""

    def chunk(self, chunk: Chunk) -> bool:
        """One event. True: nothing more is wanted of this answer."""
        watch = self._watch
        if chunk.error is not None:
            watch.end("error", chunk.error)
            return True
        if chunk.finish_reason is not None:
            watch.record.finish_reason = chunk.finish_reason
            self.finished = True
        if chunk.queue_seconds is not None:
            watch.record.queued = chunk.queue_seconds
        tokens = chunk.tokens
        if chunk.output_tokens is not None:
            if tokens is None and chunk.brings_tokens:  # usage in every chunk: what it adds is what came
                tokens = max(1, chunk.output_tokens - self._counted)
            self._counted = chunk.output_tokens
        watch.usage(prompt=chunk.prompt_tokens, output=chunk.output_tokens, cached=chunk.cached_tokens)
        if not chunk.brings_tokens:
            return False
        if watch.came(tokens, weight=chunk.characters):
            watch.end("cancelled", "the load hung up as planned")
            return True
        return False

    def done(self) -> None:
        """The end marker has come."""
        self._watch.end("ok")

    def ends(self) -> None:
        """The body has ended without an end marker: all is there if a finish reason has come."""
        if self.finished:
            self._watch.end("ok")
        else:
            self._watch.end("disconnected", "the stream ended without a finish reason and [DONE]")


def failure(status: int, message: str) -> tuple[Outcome, str]:
    """The outcome of a status of 400 and above, or of one that is no answer."""
    return ("refused" if status in (429, 503) else "error", f"{status}: {message}")
