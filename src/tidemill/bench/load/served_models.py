"""The names that a server has for its models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from tidemill.bench.load.http_target import HttpTarget
from tidemill.core.errors import SetupError
from tidemill.http.fetch import fetch

__all__ = ["served_models"]

_PATIENCE: Final = 60.0
"""Seconds for a server that may still be loading its model."""


async def served_models(target: HttpTarget) -> Sequence[str]:
    """As ``/models`` lists them. Raises SetupError where nobody answers, or not with a list."""
    client, status = target.client, 0
    try:
        status, page = await fetch(client, "/models", target.sent_headers(), seconds=_PATIENCE)
        names = [str(item["id"]) for item in json.loads(page)["data"]]
    except TimeoutError as error:
        raise SetupError(f"{client.url}: no answer within {_PATIENCE:g} s", param="url") from error
    except OSError as error:
        raise SetupError(f"{client.url}: no answer: {error}", param="url") from error
    except (ValueError, KeyError, TypeError) as error:
        why = f"status {status}" if status != 200 else "no list of models"
        raise SetupError(f"{client.url}/models: {why}; name the model with --model", param="model") from error
    return names
