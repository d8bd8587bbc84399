"""What the routes answer, as JSON schemas. Strict: a field that is not here is not sent."""

from __future__ import annotations

from typing import Final

from tidemill.serve.openapi.anthropic import COUNTED, MESSAGE
from tidemill.serve.openapi.responses import response
from tidemill.serve.openapi.shapes import (
    Schema,
    any_of,
    constant,
    integer,
    listed,
    nullable,
    number,
    record,
    table,
    text,
)

__all__ = ["ANSWERS", "ANTHROPIC_ERROR", "ERROR"]

_COUNT: Final = integer(0)
_NULL: Final[Schema] = {"type": "null"}
_FINISH: Final = constant("stop", "length", "tool_calls")
ERROR: Final = record(
    {"error": record({"message": text(), "type": text(), "param": nullable(text()), "code": nullable(text())})}
)
ANTHROPIC_ERROR: Final = record({"type": constant("error"), "error": record({"type": text(), "message": text()})})

_USAGE: Final = record(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": record({"cached_tokens": _COUNT}),
    },
    {
        "completion_tokens_details": record(
            {},
            {
                "reasoning_tokens": _COUNT,
                "accepted_prediction_tokens": _COUNT,
                "rejected_prediction_tokens": _COUNT,
            },
        )
    },
)
_HEAD: Final = {"id": text(), "created": integer(), "model": text(), "system_fingerprint": text()}
_STOP: Final = {"stop_reason": any_of(text(), integer())}
_SCORE: Final = number(-9999, 0)
_TOKEN: Final = {"token": text(), "logprob": _SCORE, "bytes": listed(integer(0, 255))}
_SCORED: Final = record({**_TOKEN, "top_logprobs": listed(record(_TOKEN))})
_CHAT_LOGPROBS: Final = record({"content": listed(_SCORED), "refusal": _NULL})
_LOGPROBS: Final = record(
    {
        "tokens": listed(text()),
        "token_logprobs": listed(nullable(_SCORE)),
        "top_logprobs": listed(nullable(table(_SCORE))),
        "text_offset": listed(_COUNT),
    }
)
_PROMPT_LOGPROBS: Final = {
    "prompt_logprobs": listed(
        nullable(table(record({"logprob": number(), "rank": nullable(integer(1)), "decoded_token": text()})))
    )
}
_CALL: Final = record(
    {"id": text(), "type": constant("function"), "function": record({"name": text(), "arguments": text()})}
)
_MESSAGE: Final = record(
    {"role": constant("assistant"), "content": nullable(text()), "refusal": _NULL},
    {"tool_calls": listed(_CALL, 1), "reasoning_content": text()},
)
_CHAT: Final = record(
    {
        **_HEAD,
        "object": constant("chat.completion"),
        "choices": listed(
            record(
                {
                    "index": _COUNT,
                    "message": _MESSAGE,
                    "logprobs": nullable(_CHAT_LOGPROBS),
                    "finish_reason": _FINISH,
                },
                _STOP,
            ),
            1,
        ),
        "usage": _USAGE,
    },
    _PROMPT_LOGPROBS,
)
_COMPLETION: Final = record(
    {
        **_HEAD,
        "object": constant("text_completion"),
        "choices": listed(
            record(
                {"index": _COUNT, "text": text(), "logprobs": nullable(_LOGPROBS), "finish_reason": _FINISH},
                {**_STOP, **_PROMPT_LOGPROBS},
            ),
            1,
        ),
        "usage": _USAGE,
    }
)
_EMBEDDINGS: Final = record(
    {
        "object": constant("list"),
        "data": listed(
            record(
                {"object": constant("embedding"), "index": _COUNT, "embedding": any_of(listed(number(), 1), text())}
            ),
            1,
        ),
        "model": text(),
        "usage": record({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
    }
)
_MODEL: Final = record(
    {"id": text(), "object": constant("model"), "created": integer(), "owned_by": text()},
    {"root": text(), "parent": text()},
)
_DISTRIBUTION: Final = record({"bounds": listed(number()), "counts": listed(_COUNT), "count": _COUNT, "sum": number(0)})
_STATS: Final = record(
    {
        "time": number(),
        "model": text(),
        "version": text(),
        "executor": text(),
        "ready": {"type": "boolean"},
        "problem": nullable(text()),
        "running": _COUNT,
        "waiting": _COUNT,
        "kv": record(
            {
                **dict.fromkeys(("blocks", "held", "cached", "free", "block_size"), _COUNT),
                "fragmentation": number(0, 1),
                "format": text(),
                "bytes_per_token": _COUNT,
            }
        ),
        "prefix": record(
            dict.fromkeys(("asked_tokens", "hit_tokens", "missed_again_tokens", "evicted_blocks"), _COUNT)
        ),
        "tokens": record({"prompt": _COUNT, "generated": _COUNT}),
        "steps": record({"count": _COUNT, "seconds": number(0), "last_seconds": number(0), "last_tokens": _COUNT}),
        "preemptions": _COUNT,
        "restarts": _COUNT,
        "time_to_first_token": _DISTRIBUTION,
        "time_per_output_token": _DISTRIBUTION,
    }
)
ANSWERS: Final[dict[tuple[str, str], Schema]] = {
    ("get", "/"): record({"name": text(), "version": text(), "routes": table(text())}),
    ("get", "/v1/models"): record({"object": constant("list"), "data": listed(_MODEL, 1)}),
    ("get", "/v1/models/{id}"): _MODEL,
    ("post", "/v1/chat/completions"): _CHAT,
    ("post", "/v1/completions"): _COMPLETION,
    ("post", "/v1/responses"): response(_SCORED),
    ("post", "/v1/messages"): MESSAGE,
    ("post", "/v1/messages/count_tokens"): COUNTED,
    ("post", "/v1/embeddings"): _EMBEDDINGS,
    ("post", "/tokenize"): record(
        {"count": _COUNT, "max_model_len": integer(1), "tokens": listed(_COUNT)}, {"token_strs": listed(text())}
    ),
    ("post", "/detokenize"): record({"prompt": text()}),
    ("post", "/apply-template"): record({"prompt": text()}),
    ("get", "/v1/engine/stats"): _STATS,
    ("post", "/v1/load_lora_adapter"): text(),
    ("post", "/v1/unload_lora_adapter"): text(),
    ("post", "/v1/cache/reset"): record({"status": constant("reset")}),
    ("post", "/drain"): record({"status": constant("draining"), "active": _COUNT, "seconds": number(0)}),
    ("post", "/admin/reload"): record(
        {"status": constant("reloaded"), "changed": listed(text()), "needs_restart": listed(text())}
    ),
    ("get", "/health"): record({"status": constant("alive")}),
    ("get", "/ready"): record({"status": constant("ready")}),
}
"""By method and path: the JSON of an answer that is no error. /metrics and /openapi.json are not described."""
