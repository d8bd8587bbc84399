"""The names that a server has for its models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tidemill.bench.load.http_target import HttpTarget
from tidemill.core.errors import SetupError
from tidemill.http.client import Broken

__all__ = ["served_models"]


class _Whole:
    """Implements Receiver: keeps everything."""

    def __init__(self) -> None:
        self.status = 0
        self.data = bytearray()

    def head(self, status: int, headers: Mapping[str, str]) -> None:  # noqa: ARG002 (Receiver's)
        self.status = status

    def body(self, data: bytes) -> bool:
        self.data += data
        return len(self.data) > 2**20


async def served_models(target: HttpTarget) -> Sequence[str]:
    """As ``/models`` lists them. Raises SetupError where nobody answers, or not with a list."""
    client, whole = target.client, _Whole()
    try:
        await client.exchange(client.request("/models", target.sent_headers(), b"", method="GET"), whole)
        listed = json.loads(bytes(whole.data))["data"]
        names = [str(item["id"]) for item in listed]
    except (OSError, Broken) as error:
        raise SetupError(f"{client.url}: no answer: {error}", param="url") from error
    except (ValueError, KeyError, TypeError) as error:
        why = f"status {whole.status}" if whole.status != 200 else "no list of models"
        raise SetupError(f"{client.url}/models: {why}; name the model with --model", param="model") from error
    return names
