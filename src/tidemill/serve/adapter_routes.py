"""Adapters over HTTP: which there are, and loading and unloading them while the server runs, with vLLM's routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from tidemill.core.adapters import AdapterSource
from tidemill.core.errors import NotFound
from tidemill.core.protocols import AdapterHost
from tidemill.serve.fields import FieldFilter
from tidemill.serve.schemas import Incoming, parsed

__all__ = ["LOAD_NOT_BUILT", "UNLOAD_NOT_BUILT", "AdapterRoutes", "LoadBody", "UnloadBody"]


class LoadBody(BaseModel):
    """A body of /v1/load_lora_adapter."""

    model_config = ConfigDict(strict=True, extra="forbid")

    lora_name: str
    lora_path: str


class UnloadBody(BaseModel):
    """A body of /v1/unload_lora_adapter."""

    model_config = ConfigDict(strict=True, extra="forbid")

    lora_name: str


LOAD_NOT_BUILT: Final[Mapping[str, tuple[Any, ...]]] = {"load_inplace": (False,), "base_model_name": ()}
UNLOAD_NOT_BUILT: Final[Mapping[str, tuple[Any, ...]]] = {"lora_int_id": ()}
_LOAD_FIELDS: Final = FieldFilter(LoadBody.model_fields, not_built=LOAD_NOT_BUILT)
_UNLOAD_FIELDS: Final = FieldFilter(UnloadBody.model_fields, not_built=UNLOAD_NOT_BUILT)


class AdapterRoutes:
    """What the routes do, and what the list of models says of adapters."""

    def __init__(self, host: AdapterHost | None) -> None:
        """Without a host there are none."""
        self._host = host

    def described(self, name: str, model: str) -> dict[str, Any]:
        """What an adapter's entry has beside a model's: where it is, and the model that it belongs to."""
        for source in () if self._host is None else self._host.adapters:
            if source.name == name:
                return {"root": source.path, "parent": model}
        return {}

    async def load(self, incoming: Incoming) -> str:
        """Load an adapter; what vLLM says when it has. Raises InvalidRequest for one that cannot be."""
        body = parsed(LoadBody, _LOAD_FIELDS, incoming)
        await self._there().load_adapter(AdapterSource(name=body.lora_name, path=body.lora_path))
        return f"Success: LoRA adapter '{body.lora_name}' added successfully."

    async def unload(self, incoming: Incoming) -> str:
        """Unload one: no later request may name it, those that are here go on with it. Raises ModelNotFound."""
        body = parsed(UnloadBody, _UNLOAD_FIELDS, incoming)
        await self._there().unload_adapter(body.lora_name)
        return f"Success: LoRA adapter '{body.lora_name}' removed successfully."

    def _there(self) -> AdapterHost:
        if self._host is None:
            raise NotFound("there is no engine behind this server that could take adapters")
        return self._host
