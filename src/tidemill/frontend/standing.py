"""Fields of a request that say who is next, where the engine's order looks at them."""

from __future__ import annotations

from tidemill.core.errors import UnsupportedParameter
from tidemill.core.requests import EmbeddingRequest, GenerationRequest
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import EngineInfo

__all__ = ["check_standing", "least_tokens"]


def check_standing(request: GenerationRequest | EmbeddingRequest, info: EngineInfo) -> None:
    """Raise UnsupportedParameter for a field that the order does not look at, unless it asks for nothing."""
    if request.priority:
        _check(info, "priority", "priority")
    if not isinstance(request, EmbeddingRequest) and request.expected_tokens is not None:
        _check(info, "expected_output_tokens", "srf", "deadline")


def least_tokens(request: GenerationRequest, sampling: SamplingOptions) -> int:
    """Tokens of output without which an answer is of no use when its time is over: the first one of a stream; of
    others all there will be, as far as that is known."""
    if request.stream:
        return 1
    if sampling.ignore_eos and sampling.max_tokens is not None and not sampling.stop:
        return sampling.max_tokens
    expected = min(request.expected_tokens or 1, sampling.max_tokens or request.expected_tokens or 1)
    return max(sampling.min_tokens, expected, 1)


def _check(info: EngineInfo, field: str, *criteria: str) -> None:
    if not set(criteria) & set(info.order):
        order = ",".join(info.order) or "fcfs"
        raise UnsupportedParameter(
            f"{field} changes nothing in the order of this server, {order}; it needs --order with "
            f"{' or '.join(criteria)}",
            param=field,
        )
